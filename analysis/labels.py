"""Printed texts of tables and figures: names, their order, formats of numbers, a gap's sign."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from resispec.errors import InvalidInput, first_line

ABSENT = "–"
"""The printed sign for an absent value."""
CONF = Path(__file__).resolve().parent.parent / "conf"
GROUPS = ("pair", "dataset", "decoder", "tree", "verifier")
ROLES = ("target", "draft")
"""The models of a pair."""


@dataclass(frozen=True, eq=False)
class Label:
    """A cell's label: an option of a group, and the parameters that differ from the option's.

    A label equals and hashes like its text, "d5b3" or "chain(num_drafted=7)", so a label without
    parameters can be compared with a name. parameters: in the order of print. An empty label stands
    for no option.
    """

    option: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """The label as a text, in the form of CSVs and command lines."""
        parameters = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.option}({parameters})" if parameters else self.option

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Label | str) and self.text == str(other)

    def __hash__(self) -> int:
        return hash(self.text)

    def __bool__(self) -> bool:
        return bool(self.option)

    def json(self) -> dict[str, Any]:
        """The label as plans hold it."""
        return {"option": self.option, "parameters": dict(self.parameters)}

    @classmethod
    def of(cls, entry: Label | str | Mapping[str, Any]) -> Label:
        """The label of a name or a plan's entry.

        Raises LookupError, TypeError or ValueError for a damaged entry.
        """
        if isinstance(entry, Label):
            return entry
        if isinstance(entry, Mapping):
            return cls(str(entry["option"]), dict(entry["parameters"]))
        return cls(str(entry))


HEADERS = {"pair": "Pair", "temperature": "T", "dataset": "Data set", "decoder": "Decoder"}
HEADERS |= {"tree": "Tree", "verifier": "Verifier", "method": "Method"}
HEADERS |= {"task": "Task", "of": "Artefact", "part": "Part"}
HEADERS |= {"sampling.top_p": "top-p", "sampling.top_k": "top-k", "sampling.min_p": "min-p"}
"""Headers of the keys that name a row; other keys are printed with spaces for underscores."""


def rounded(value: float) -> float:
    """A number with the 12 digits of CSVs, so that processors that round differently agree."""
    return float(f"{value:.12g}")


def number(value: float, spec: str) -> str:
    """The printed form of a number: "–" for NaN, and no minus sign before a zero."""
    if math.isnan(value):
        return ABSENT
    # As CSVs have it, so that a number read from one is rounded as the number itself.
    digits = format(rounded(value), spec)
    return digits if digits.strip("-0.") else digits.removeprefix("-")


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file; none of an empty file.

    Raises InvalidInput, which names the file and the line, for anything else.
    """
    try:
        with path.open(encoding="utf-8") as file:
            content = yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise InvalidInput(slip(error)) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is no text in UTF-8 ({first_line(error)})") from error
    if not isinstance(content, dict | None):
        found = type(content).__name__
        raise InvalidInput(f"{path} holds a {found}; allowed: keys and values, KEY: VALUE")
    return content or {}


def slip(error: yaml.YAMLError) -> str:
    """One line for a slip in a YAML file: the file, the line in it, and the parser's words."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"{getattr(error, 'name', 'a file')} cannot be read as YAML ({first_line(error)})"
    problem = getattr(error, "problem", None) or first_line(error)
    return f"{mark.name} cannot be read as YAML (line {mark.line + 1}: {problem})"


@cache
def options(group: str) -> dict[str, dict[str, Any]]:
    """The options of a group from conf/GROUP/OPTION.yaml: name -> node, in the order of print.

    The `label` of a node has the option's printed `text` and its `order`. A pair's label has no
    text, but `target`, `draft`, `paper` (the names of both in the paper's rows beside it) and
    `made` (how the pair is made at first use). An option without an order comes last. An option
    without a text is printed as its name, with spaces in place of underscores. The node of an
    option that sets other keys alone is empty. Raises InvalidInput as `read_yaml`.
    """
    nodes: dict[str, dict[str, Any]] = {}
    for path in sorted((CONF / group).glob("*.yaml")):
        content = read_yaml(path)
        if "@package _global_" in path.read_text(encoding="utf-8"):
            content = content.get(group) or {}
        nodes[path.stem] = content

    def order(name: str) -> float:
        return (nodes[name].get("label") or {}).get("order", math.inf)

    return {name: nodes[name] for name in sorted(nodes, key=order)}


def _printed(group: str, value: Label | str) -> Mapping[str, Any]:
    """The `label` of an option; empty if the option has none.

    A pair whose parameters name other models than its option does is no longer that pair: its label
    has the names of its models and nothing else, and no `draft` if it has none.
    """
    label = Label.of(value)
    node = options(group).get(label.option, {})
    entry = node.get("label") or {}
    given = {role: label.parameters[role] for role in ROLES if role in label.parameters}
    is_named = "target" in entry or node.get("target") == "???"
    if group != "pair" or not given or not is_named:
        return entry
    named = {role: entry[role] for role in ROLES if role in entry}
    return {role: model for role, model in (named | given).items() if model is not None}


def models(pair: Label | str) -> tuple[str, str]:
    """The printed names of a pair's target and draft; by default the pair's own name, and "–".

    Parameters follow the model that they are of, as in "Llama-2-7B, target_revision=main".
    """
    label, entry = Label.of(pair), _printed("pair", pair)
    if "target" not in entry:
        return name("pair", label), str(entry.get("draft", ABSENT))
    names = {"target": str(entry["target"]), "draft": str(entry.get("draft", ABSENT))}
    for key, value in label.parameters.items():
        if key not in ROLES:
            role = "draft" if key.startswith("draft") else "target"
            names[role] += f", {key}={value}"
    return names["target"], names["draft"]


def paper_models(pair: Label | str) -> dict[str, str]:
    """Target and draft in the paper's rows that are printed beside a pair's; "" for none.

    A pair with another target or draft than its option's, or another revision of one, has none.
    """
    none = {"target": "", "draft": ""}
    if any(key.startswith(ROLES) for key in Label.of(pair).parameters):
        return none
    return none | _printed("pair", pair).get("paper", {})


def made(pair: Label | str) -> str:
    """Words on how a pair is made at first use and how long it takes; "" if its label has none."""
    return str(_printed("pair", pair).get("made", ""))


def owner_of_tree(verifier: Label | str) -> str:
    """The verifier whose own tree a verifier has: itself, or the one that a parameter names.

    The label says which parameter does (`own_tree_of`); a dial has the tree of its exact verifier.
    """
    label = Label.of(verifier)
    node = options("verifier").get(label.option, {}) | label.parameters
    key = _printed("verifier", verifier).get("own_tree_of")
    return str(node[key]) if key else label.text


def num_nodes(tree: Label | str) -> int | None:
    """A tree's number of nodes with the root, if its option and parameters say it; else None."""
    label = Label.of(tree)
    node = options("tree").get(label.option, {}) | label.parameters
    if "branching" in node and isinstance(node.get("depth"), int):
        return sum(node["branching"] ** level for level in range(node["depth"]))
    return node["num_nodes"] if isinstance(node.get("num_nodes"), int) else None


def header(key: str) -> str:
    """The header of a column that names rows."""
    return HEADERS.get(key, key.replace("_", " "))


def name(group: str, value: Label | str) -> str:
    """The printed name of a label: `name("dataset", "cnn_dm")` is "CNN/DM".

    With parameters, "chain(num_drafted=7)" is "chain, num_drafted=7". The printed text of a tree
    describes the parameters in its file, so a tree with other parameters is called by the name of
    its option.
    """
    label, entry = Label.of(value), _printed(group, value)
    plain = label.option.replace("_", " ")
    text = entry.get("text", plain)
    if "target" in entry:
        text = " + ".join(str(entry[role]) for role in ROLES if role in entry)
    parameters = [
        f"{key}={value}" for key, value in label.parameters.items() if entry.get(key) != value
    ]
    return ", ".join([str(plain if group == "tree" and parameters else text), *parameters])


def short(verifier: Label | str) -> str:
    """The short name of a verifier: "Mine" for "custom, name=path/to/file.py:Mine".

    Other verifiers have their printed name. It need not be unique. A label of a CSV is its text,
    "custom(name=path/to/file.py:Mine)", and has the same short name.
    """
    label = Label.of(verifier)
    source = str(label.parameters.get("name", "")) if label.option == "custom" else label.option
    words = source.rpartition(":")[2]
    if words in ("", source):
        return name("verifier", label)
    others = [f"{key}={value}" for key, value in label.parameters.items() if key != "name"]
    return ", ".join([words.removesuffix(")"), *others])


def method(decoder: Label | str, verifier: Label | str, is_short: bool = False) -> str:
    """A decoder with a verifier as printed: "SpecInfer (standard)", "SpecInfer + ResiSpec".

    is_short: whether the verifier has its `short` name.
    """
    printed = short(verifier) if is_short else name("verifier", verifier)
    words = {"": "", "standard": " (standard)"}.get(str(verifier), f" + {printed}")
    return name("decoder", decoder) + words


def method_on_tree(decoder: Label | str, verifier: Label | str, tree: Label | str) -> str:
    """A method with its tree as printed: "SpecInfer + ResiSpec, d5b3"."""
    return f"{method(decoder, verifier)}, {name('tree', tree)}"


def rank(group: str, value: Any) -> float:
    """The sort key of a value in print: its label's order; temperatures go from high to low."""
    if group == "temperature":
        return -float(value)
    return float(_printed(group, value).get("order", math.inf))


def text(key: str, value: Any) -> str:
    """A label's value as printed; "–" for none. Values of other keys are printed as they are."""
    if isinstance(value, int | float):
        return number(value, "g")
    return (name(key, value) if key in GROUPS else str(value)) or ABSENT


def together(datasets: Iterable[str]) -> str:
    """Words for the data sets that numbers are of: all of them, or the only one by its name."""
    names = list(dict.fromkeys(datasets))
    return name("dataset", names[0]) if len(names) == 1 else "all data sets together"


def setting(values: Mapping[str, Any]) -> str:
    """Labels of a setting in a line: "embedded 2M + 80k, Python code, T = 1"."""
    texts = {key: text(key, value) for key, value in values.items()}
    return ", ".join(
        word if key in GROUPS else f"{header(key)} = {word}" for key, word in texts.items()
    )
