"""The library's needs: no torch to name a tree or prompt, none of the harness, its own wheel."""

import ast
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import resispec

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DEPENDENCIES = {
    re.split(r"[<>=\[]", requirement)[0] for requirement in PYPROJECT["project"]["dependencies"]
}
MODULES = [module.name for module in pkgutil.walk_packages(resispec.__path__, "resispec.")]
HARNESS = ["hydra", "omegaconf", "pandas", "datasets", "pydantic"]
HARNESS += ["matplotlib", "jinja2", "tabulate", "wandb"]
WITHOUT_TORCH = [
    "resispec",
    *(
        f"resispec.{name}"
        for name in ("errors", "files", "hub", "data", "sampling", "embedded", "trees")
    ),
    *(
        "resispec.trees.grow_map",
        "resispec.trees.search",
        "recipes.training.recipe",
        "recipes.smollm2",
    ),
    *("referee.engines", "referee.transcripts"),
]


def run(program):
    """Run a program in a fresh interpreter, in the repository's root."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_naming_trees_and_prompts_takes_no_torch(tmp_path):
    program = f"""
import sys
for name in ("torch", "transformers", "datasets", "pandas"):
    sys.modules[name] = None  # an import of it raises
import importlib
for name in {WITHOUT_TORCH}:
    importlib.import_module(name)
from resispec.trees import complete
from resispec.trees.grow_map import about, load, save
tree, path = complete(5, 3), {str(tmp_path / "map.json")!r}
save(tree, path, about={{"pair": "toy"}})
print(tree.num_nodes, tree.num_levels, len(tree.children), load(path) == tree, about(path))
try:
    complete(12, 4)
except ValueError as error:
    print(error)
"""
    assert run(program).splitlines() == [
        "121 5 121 True {'pair': 'toy'}",
        "a complete tree of depth 12, branching 4 has too many nodes; "
        "allowed: at most 16384, the root counted",
    ]


@pytest.mark.slow
def test_every_module_can_be_imported_where_the_library_alone_is_installed():
    assert "resispec.models.causal" in MODULES and "resispec.embedded.pairs" in MODULES
    program = f"""
import importlib, sys
for name in {HARNESS}:
    sys.modules[name] = None
for name in {MODULES}:
    importlib.import_module(name)
print("all")
"""
    assert run(program).strip() == "all"


def imported(statements):
    """The packages that import statements name, but for our own and those of Python."""
    names = set()
    for statement in statements:
        if isinstance(statement, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            names.add((statement.module or "").partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"resispec", "referee"}


def distributions(packages):
    by_package = packages_distributions()
    return {name.lower().replace("_", "-") for package in packages for name in by_package[package]}


def test_what_is_imported_is_declared():
    """At a module's top only dependencies of the library; in functions four of the harness, too."""
    top, anywhere = set(), set()
    for path in (ROOT / "resispec").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top |= imported(tree.body)
        anywhere |= imported(ast.walk(tree))
    assert {"torch", "transformers", "numpy"} <= top and "datasets" in anywhere
    assert distributions(top) <= DEPENDENCIES
    assert distributions(anywhere) <= DEPENDENCIES | {
        "datasets",
        "gguf",
        "pyarrow",
        "sentencepiece",
    }
