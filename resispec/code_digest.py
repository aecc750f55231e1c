"""Digests of the code that drafts and verifies in a cell, found without importing it; no torch.

The code of a cell is every file that its verifier, its draws, its drafter, its tree, its task, its
data set and its pair's loader come from, and every file that these import or name beside them: of
ours those of PARTS and TASKS, and modules of the user's outside site-packages. A file is identified
by its syntax tree without docstrings, so comments and formatting do not count. What a name stands
for counts, too: the version and the record of an installed package, and the commit of a model on
the hub, unless its revision is one.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, distribution, entry_points, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from resispec.errors import InvalidInput
from resispec.files import read_json

PACKAGE = Path(__file__).resolve().parent
PARTS = ("verifiers", "draws", "drafters", "distributions", "trees")
"""Modules and folders of resispec whose files are part of a cell's code."""
TASKS = "experiments.tasks"
"""The package whose files are, too."""
UNRECORDED = ("resispec/trees/", "experiments/tasks/")
"""Folders of files that cells of earlier versions did not record."""
OURS = {"resispec", "experiments", "analysis", "referee", "recipes"}
INSTALLED = {"site-packages", "dist-packages"}
BY_NAME = {"get_rule", "get_verifier"}
"""Functions that find a verifier by the name that it is registered under."""
FASTEST = "experiments.configurations.load"
"""The function that reads a file of tree=fastest, which names draws and verifiers."""
ON_HUB = " on the hub"
"""Ending of the names of models in `commit_digests`."""


_LOADED: dict[Path, str] = {}
"""The digests of users' files as this process first met them."""


@dataclass(frozen=True)
class Source:
    """A parsed file.

    digest: of its syntax tree. imports: (module, name, level) of all import statements; name is ""
    for a whole module, level the number of leading dots. registered: names of verifiers and of
    draws that it defines. verifiers, draws: names of others that it asks for. texts: names of
    files beside it that it may read.
    """

    digest: str
    imports: tuple[tuple[str, str, int], ...] = ()
    registered: frozenset[str] = frozenset()
    verifiers: frozenset[str] = frozenset()
    draws: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()


def code_digests(config: Mapping[str, Any]) -> dict[str, str]:
    """The digests of a cell's code: file -> digest, "package NAME" -> version, and commits.

    Files have names relative to their import folder; commits are as in `commit_digests`. config:
    the cell's resolved configuration. Files and models that are not there are left out.
    """
    digests: dict[str, str] = {}
    for path, name in sorted(_files(config).items()):  # two folders may have a file of one name
        digest = _source(path).digest
        digests[name] = _sha256(digests[name] + digest) if name in digests else digest
    packages = dict(_packages(_nodes(config)))
    return digests | packages | commit_digests(_cached_commits(config.get("pair")))


def check_loaded(config: Mapping[str, Any]) -> None:
    """Raise InvalidInput if a user's file has changed since this process first met it.

    What the process has imported from it is no longer what the file says. config: as in
    `code_digests`.
    """
    for path, name in _files(config).items():
        digest = _source(path).digest
        is_of_user = not name.startswith(("resispec/", *UNRECORDED))
        if is_of_user and _LOADED.setdefault(path, digest) != digest:
            raise InvalidInput(
                f"{name} has changed since this process read it; run the command again"
            )


def _nodes(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: config.get(key) for key in ("decoder", "task", "dataset", "pair")}


def _files(config: Mapping[str, Any]) -> dict[Path, str]:
    """The files of a cell's code, each with its name."""
    nodes = _nodes(config).items()
    pending = [file for key, node in nodes for file in _named(node, key == "decoder")]
    files: dict[Path, str] = {}
    while pending:
        path, name = pending.pop()
        if path not in files and path.is_file():
            files[path] = name
            stat = path.stat()
            pending += _imported(path, name, stat.st_size, stat.st_mtime_ns)
    return files


def commit_digests(commits: Mapping[str, str | None]) -> dict[str, str]:
    """Commits of models by role as `code_digests` has them; those from elsewhere have none."""
    return {f"{role}{ON_HUB}": commit for role, commit in commits.items() if commit}


def is_ours(kind: str, name: str) -> bool:
    """Whether a name is that of an object of ours, whose place no entry point takes."""
    return kind == "verifier" and bool(_of_registered("verifiers", name))


def own_digests() -> dict[str, str]:
    """The digests of all files of PARTS and TASKS, by the names that `code_digests` gives them."""
    files = [file for part in PARTS for file in _of_ours(f"resispec.{part}")]
    return {name: _source(path).digest for path, name in (*files, *_of_tasks(TASKS, ""))}


def changed_files(recorded: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """The names of the files that differ between two results of `code_digests`.

    A file of the user's that is not present is not compared: the cell may come from another
    machine. Nor is one of UNRECORDED, or a package, that is not recorded.
    """
    may_lack = (*UNRECORDED, "package ")
    changed = {
        name
        for name, digest in present.items()
        if recorded.get(name, digest if name.startswith(may_lack) else None) != digest
    }
    removed = {name for name in recorded if name not in present and name.startswith("resispec/")}
    return sorted(changed | removed)


def _named(node: Any, is_decoder: bool) -> Iterator[tuple[Path, str]]:
    """The files that a node of a configuration names, each with its name."""
    if isinstance(node, str) and ".py:" in node:
        path = Path(node.rpartition(":")[0]).expanduser().absolute()
        yield path, path.name
    elif isinstance(node, list | tuple):
        for item in node:
            yield from _named(item, is_decoder)
    elif isinstance(node, Mapping):
        target = str(node.get("_target_", ""))
        module, _, attribute = target.rpartition(".")
        yield from _of_module(module, attribute)
        for kind, name in _by_name(node):
            yield from _of_plugin(kind, name)
            for option in node.values():  # as the rule of a verifier's own weights
                if isinstance(option, str) and option != name:
                    yield from _of_registered("verifiers", option)
        if isinstance(draws := node.get("draws"), str):
            yield from _of_registered("draws", draws) or _of_ours("resispec.draws")
        if target == FASTEST:
            yield from _of_fastest(Path(str(node.get("path"))), is_decoder)
        for value in node.values():
            yield from _named(value, is_decoder)


def _by_name(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Kind and name of what a node asks for by name."""
    target = str(node.get("_target_", ""))
    if target.rpartition(".")[2] in BY_NAME or target == "resispec.plugins.make":
        yield str(node.get("kind", "verifier")), str(node.get("name"))
    if isinstance(rule := node.get("rule"), str):  # a verifier over another one
        yield "verifier", rule


def _packages(node: Any) -> Iterator[tuple[str, str]]:
    """Names and versions of the packages that a node names, by an entry point or a class."""
    if isinstance(node, list | tuple):
        for item in node:
            yield from _packages(item)
    elif isinstance(node, Mapping):
        for kind, name in _by_name(node):
            entry = None if is_ours(kind, name) else _entry(kind, name)
            if entry and entry.dist:
                yield f"package {entry.dist.name}", entry.dist.version
        top = str(node.get("_target_", "")).partition(".")[0]
        if top and top not in OURS | sys.stdlib_module_names and _is_installed(top):
            yield from _of_package(top)
        for value in node.values():
            yield from _packages(value)


@cache
def _of_package(top: str) -> list[tuple[str, str]]:
    """Name and version, with a hash of the modules, of the packages that install a module."""
    found = []
    for part in map(distribution, packages_distributions().get(top, [])):
        record = (part.read_text("RECORD") or "").splitlines()
        modules = sorted(line for line in record if line.partition(",")[0].endswith(".py"))
        found.append((f"package {part.name}", f"{part.version} {_sha256(repr(modules))[:16]}"))
    return found


def _cached_commits(pair: Any) -> dict[str, str | None]:
    """The commits, by role, that a pair's names stand for in the hub's cache.

    A name whose revision is a commit stands for nothing else.
    """
    names = {}
    for role in ("target", "draft") if isinstance(pair, Mapping) else ():
        name = str(pair.get(role))
        is_on_hub = name.count("/") == 1 and not Path(name).expanduser().exists()
        revision = pair.get(f"{role}_revision")
        if is_on_hub and not re.fullmatch("[0-9a-f]{40}", str(revision)):
            names[role] = name, revision
    if not names:
        return {}
    from resispec.hub import cached_commit  # imports the hub's library

    return {role: cached_commit(*known_by) for role, known_by in names.items()}


def _of_fastest(path: Path, is_decoder: bool) -> Iterator[tuple[Path, str]]:
    """The files of what a file of tree=fastest names; for a decoder, of the fastest alone."""
    # which loading the file reports
    with suppress(InvalidInput, LookupError, TypeError, AttributeError):
        content = read_json(path)
        groups = [] if is_decoder else content["best"].values()
        for facts in [content["fastest"], *(facts for group in groups for facts in group)]:
            yield from _of_registered("draws", str(facts["draws"]))
            yield from _of_registered("verifiers", str(facts["verifier"]))
        yield from _of_ours("resispec.drafters", "DraftModel")


def _of_plugin(kind: str, name: str) -> list[tuple[Path, str]]:
    """The files of a verifier or decoder by name: one of ours, or that of an entry point."""
    if is_ours(kind, name):
        return _of_registered("verifiers", name)
    if entry := _entry(kind, name):
        return _of_module(entry.module, "")
    # registered in another way than is read here, so any file may be the one
    return _of_ours("resispec.verifiers") if kind == "verifier" and ".py:" not in name else []


@cache
def _entry(kind: str, name: str) -> EntryPoint | None:
    """The entry point of a name; None without one."""
    entries = entry_points(group=f"resispec.{kind}s")
    return next((entry for entry in entries if entry.name == name), None)


def _of_registered(part: str, name: str) -> list[tuple[Path, str]]:
    """The file of one of PARTS that gives this name to a verifier or to draws."""
    return [file for file in _of_ours(f"resispec.{part}") if name in _source(file[0]).registered]


def _of_module(module: str, attribute: str) -> list[tuple[Path, str]]:
    """The files behind an attribute of a module; none for a module outside of a cell's code."""
    top = module.partition(".")[0]
    if top == "resispec":
        return _of_ours(module, attribute)
    if module == TASKS or module.startswith(f"{TASKS}."):
        return _of_tasks(module, attribute)
    folder = None if not top or top in OURS else _import_folder(top)
    return _below(folder, folder, module, attribute) if folder else []


def _of_ours(module: str, attribute: str = "") -> list[tuple[Path, str]]:
    """The files of PARTS behind an attribute of a module of resispec.

    A package stands for the file that it takes the attribute from, since it imports all its files;
    without an attribute it stands for all of them.
    """
    _, *parts = [part for part in (*module.split("."), attribute) if part]
    if not parts or parts[0] not in PARTS:
        return []
    folder, *rest = PACKAGE / parts[0], *parts[1:]
    if not folder.is_dir():
        paths = [folder.with_suffix(".py")]
    elif not rest or rest[0] == "*":
        paths = [path for path in sorted(folder.rglob("*.py")) if path != folder / "__init__.py"]
    elif (folder / rest[0]).is_dir():
        paths = sorted((folder / rest[0]).rglob("*.py"))
    elif (path := folder / f"{rest[0]}.py").is_file():
        paths = [path]
    else:
        exports = _source(folder / "__init__.py").imports
        origins = [origin for origin, name, _ in exports if name == rest[0]]
        return _of_ours(origins[0], rest[0]) if origins else []
    return [(path, f"resispec/{path.relative_to(PACKAGE).as_posix()}") for path in paths]


def _of_tasks(module: str, attribute: str) -> list[tuple[Path, str]]:
    """The file of TASKS behind an attribute of one of its modules; without either, all files."""
    name = module.removeprefix(TASKS).lstrip(".") or attribute or "*"
    paths = sorted((PACKAGE.parent / "experiments" / "tasks").glob(f"{name.partition('.')[0]}.py"))
    return [(path, f"experiments/tasks/{path.name}") for path in paths]


def _below(root: Path, folder: Path, module: str, attribute: str) -> list[tuple[Path, str]]:
    """The files that importing a module from a folder reads.

    root: the folder that names are relative to.
    """
    files = []
    for part in filter(None, (*module.split("."), attribute)):
        if (folder / part).is_dir():
            folder /= part
            files.append(folder / "__init__.py")
        else:
            files.append(folder / f"{part}.py")
            break
    return [(path, path.relative_to(root).as_posix()) for path in files if path.is_file()]


def _import_folder(top: str) -> Path | None:
    """The folder that a user's module is imported from; None for other and unknown modules."""
    if top in sys.stdlib_module_names or _is_installed(top):
        return None
    location = _location(top)
    return location.parent if location else None


@cache
def _is_installed(top: str) -> bool:
    """Whether a module comes from site-packages; a process asks once, since that takes time."""
    location = _location(top)
    return location is not None and not INSTALLED.isdisjoint(location.parts)


def _location(top: str) -> Path | None:
    """The file of a module or the folder of a package; None if it is not found or has neither."""
    # ValueError: a module that was made without a specification
    with suppress(ImportError, ValueError):
        if spec := find_spec(top):
            places = [*(spec.submodule_search_locations or ()), *filter(None, [spec.origin])]
            return Path(places[0]).absolute() if Path(places[0]).exists() else None
    return None


@lru_cache(maxsize=4096)
def _imported(
    path: Path, name: str, _num_bytes: int, _changed: int
) -> tuple[tuple[Path, str], ...]:
    """The files that a file imports, and those of verifiers and draws that it asks for by name."""
    source = _source(path)
    files = [file for imported in source.imports for file in _of_import(path, name, *imported)]
    files += [
        file for verifier in source.verifiers for file in _of_registered("verifiers", verifier)
    ]
    files += [file for draws in source.draws for file in _of_registered("draws", draws)]
    if name.startswith(UNRECORDED):  # else cells of earlier versions would lack what they import
        ours = tuple(f"resispec/{part}" for part in PARTS)
        files = [
            file for file in files if file[1].startswith(UNRECORDED) or not file[1].startswith(ours)
        ]
    files += [(path.parent / text, str(Path(name).parent / text)) for text in source.texts]
    return tuple(files)


def _of_import(
    path: Path, name: str, module: str, attribute: str, level: int
) -> list[tuple[Path, str]]:
    """The files behind an import statement of a file. level: the number of leading dots."""
    folder = path.parents[max(0, level - 1)]
    if level and folder.is_relative_to(PACKAGE):
        parts = ("resispec", *folder.relative_to(PACKAGE).parts, module)
        return _of_ours(".".join(filter(None, parts)), attribute)
    if level:
        root = path.parents[name.count("/")]
        return _below(root if folder.is_relative_to(root) else folder, folder, module, attribute)
    files = _of_module(module, attribute)
    if module.partition(".")[0] not in OURS and path.parent.name not in INSTALLED:
        # the file may add its folder to the path, before others with a module of this name
        beside = _below(path.parent, path.parent, module, attribute)
        files += [one for one in beside if one[0] not in dict(files)]
    return files


def _source(path: Path) -> Source:
    stat = path.stat()
    return _parsed(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _parsed(path: Path, _num_bytes: int, _changed: int) -> Source:
    """A parsed file; one that is no Python, or nested too deep to compare, counts by its bytes."""
    data = path.read_bytes()
    try:
        if path.suffix != ".py":
            raise ValueError
        tree = ast.parse(data)
        digest = _sha256(repr(_plain(tree)))
    except (SyntaxError, ValueError, RecursionError):
        return Source(hashlib.sha256(data).hexdigest())
    imports: list[tuple[str, str, int]] = []
    registered, verifiers, draws, texts = set[str](), set[str](), set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                imports += [(alias.name, "", 0) for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                imports += [(module or "", alias.name, level) for alias in names]
            case ast.Call(
                func=ast.Name(id="register") | ast.Attribute(attr="register"),
                args=[ast.Constant(value=str(name))],
            ):
                registered.add(name)
            case (
                ast.Assign(targets=[ast.Name(id="name")], value=ast.Constant(value=str(name)))
                | ast.AnnAssign(target=ast.Name(id="name"), value=ast.Constant(value=str(name)))
            ):
                registered.add(name)
            case ast.Constant(value=str(text)) if _is_file_name(text):
                texts.add(text)
            case ast.Call(func=ast.Name(id=function), args=[ast.Constant(value=str(name)), *_]):
                if function in BY_NAME:
                    verifiers.add(name)
            case ast.Attribute(value=ast.Name(id="Draws"), attr=name) if name.isupper():
                draws.add(name.lower())
    asked = frozenset(verifiers), frozenset(draws), frozenset(texts)
    return Source(digest, tuple(imports), frozenset(registered), *asked)


def _is_file_name(text: str) -> bool:
    """Whether a text in a file may be the name of another one beside it, which it reads."""
    return re.fullmatch(r"(?!/)[\w./ +-]{0,50}\w\.\w{1,12}", text) is not None


def _plain(node: Any) -> Any:
    """A syntax tree as nested tuples without docstrings, the same in every version of Python."""
    if isinstance(node, list):
        return tuple(map(_plain, node))
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        fields["body"] = [
            child
            # a text that stands alone does nothing, as a docstring or after a value
            for child in node.body
            if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant))
        ]
    values = ((name, _plain(value)) for name, value in fields.items() if value not in (None, []))
    return (type(node).__name__, *values)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
