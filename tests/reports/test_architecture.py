"""docs/architecture.md shows the imports as they are."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = sorted({"resispec", "referee", "analysis", "experiments", "recipes"})


def imported(path):
    """The top-level packages that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


def edges():
    """The lines of the picture: each pair of rooms of which one imports the other."""
    pairs = {
        (room, name)
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if "tests" not in path.parts
        for name in imported(path)
        if name in ROOMS and name != room
    }
    return [f"  {room} --> {name}" for room, name in sorted(pairs)]


def test_the_picture_is_made_from_the_imports():
    page = (ROOT / "docs" / "architecture.md").read_text()
    picture = re.search(r"```mermaid\ngraph TD\n(.*?)```", page, re.S).group(1)
    assert picture.splitlines() == edges()


def test_the_tree_of_files_names_what_exists_and_leaves_out_no_room():
    page = (ROOT / "docs" / "architecture.md").read_text()
    tree = page.partition("## Where things are")[2].split("```")[1]
    folder, named = "", set()
    for indent, name in re.findall(r"^( *)([\w.]+/?)  ", tree, re.M):
        folder = folder if indent else name
        path = ROOT / (folder + name if indent else name)
        assert path.exists(), path
        named.add(name.strip("/"))
    assert {room for room in ROOMS if (ROOT / room).is_dir()} <= named
