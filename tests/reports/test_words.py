"""Docstrings name their subject first, and a name of a class means one thing."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("resispec", "experiments", "analysis", "referee")
EMPTY = ("What", "Such", "So many", "Those", "Whoever", "As", "The same")
SHARED = {"Greedy"}
"""Names that several classes have."""


@cache
def modules():
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def docstrings(module):
    """Of modules, classes and functions, and the texts below constants and fields."""
    for node in ast.walk(module):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                yield str(child.value.value).strip()


def test_docstrings_begin_with_a_subject():
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path, module in modules()
        for text in docstrings(module)
        if text.startswith(tuple(f"{word} " for word in EMPTY))
    ]
    assert not found, "\n".join(found)


def test_no_two_classes_have_one_name():
    counts = Counter(
        node.name
        for _, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in counts.items() if count > 1} <= SHARED
