"""The checks of a run before anything is measured: whatever composes and cannot be is refused here.

Trees that are missing must be such as a search finds, devices and repositories must be there, and
cells are rehearsed: all are tried without models in a process with torch. Cells that cannot work
are refused in a second, and not one by one after models were read. The server of that process has
then done its imports for the cells that follow, and if a user's rule harms its process, the process
of the command is safe.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from hydra.utils import get_object

from experiments.cell import OURS, Cell, Reporter, build, check_task
from experiments.configurations import SETTINGS, TUNING
from experiments.doctor.needs import check_cells
from experiments.processes import Worker, ready, stop
from resispec.data import CHAT, TIMEOUT_S
from resispec.errors import InvalidInput, first_line
from resispec.loaders import loads_eagle

LIMIT_S = TIMEOUT_S + 20.0
"""Seconds for a cell, which may fetch a file.

The process starts when its server has imported torch.
"""


def check(waiting: Sequence[Cell], searching: Sequence[Cell], is_here: bool) -> None:
    """Raise InvalidInput for cells that cannot be measured, before any is.

    waiting: the cells that are not complete; searching: those whose trees are missing. is_here:
    whether the cells are measured on this machine, as searches always are.
    """
    here = [*waiting, *searching] if is_here else list(searching)
    if here:
        check_cells(here)
    if waiting or searching:
        rehearse_cells([*waiting, *searching])


def missing_trees(cells: Sequence[Cell]) -> dict[Path, list[Cell]]:
    """Missing tree file -> the cells that need it.

    Raises InvalidInput if a file cannot be searched for.
    """
    trees: dict[Path, list[Cell]] = {}
    for cell in cells:
        if (path := cell.tree_file) is not None and not cell.has_tree:
            trees.setdefault(path, []).append(cell)
    for path, group in trees.items():
        search = group[0].config["search"]
        if path.exists() or not search:
            problem = "is no file" if path.exists() else "does not exist"
            raise InvalidInput(
                f"tree.path={path} {problem}; allowed: a file, or a tree that is searched for"
            )
        if any(cell.config["search"] != search for cell in group):
            raise InvalidInput(
                f"{path} is searched for in several ways; allowed: a tree.path for each"
            )
        build(search).check(path, group)
    return trees


def rehearse_cells(cells: Sequence[Cell]) -> None:
    """Raise InvalidInput for cells whose parts cannot go together.

    The message gives the first reason and the number of such cells. The rehearsal tries the prompts
    of a small data set, the tree's file, drafter, verifier and task with each other, the kind of
    the pair's draft, and the chat template of a local target. If the process ends without a reason,
    or takes longer than LIMIT_S for a cell, nothing is raised, and the cells themselves say later
    what is wrong.
    """
    worker = Worker(partial(_rehearse, cells))
    worker.start(lambda *_: None)
    try:
        while ready([worker], LIMIT_S) and worker.read():
            pass
    finally:
        stop([worker], patience_s=0.0)  # a rule may hang, or a signal interrupt the wait
    _, reasons = worker.end()
    if reasons:
        raise InvalidInput(reasons[0])


def _rehearse(cells: Sequence[Cell], report: Reporter) -> None:
    reasons: dict[str, str] = {}
    refusals = []
    for number, cell in enumerate(cells):
        report("", number, len(cells))
        for check, names in CHECKS.items():
            key = json.dumps(
                [check.__name__, *(cell.config[name] for name in names)], sort_keys=True
            )
            if key not in reasons:
                try:
                    check(cell)
                    reasons[key] = ""
                except InvalidInput as error:
                    reasons[key] = first_line(error)
            if reasons[key]:
                refusals.append(f"{cell}: {reasons[key]}")
                break
    if refusals:
        more = (
            f" ({len(refusals) - 1} more of {len(cells)} cells cannot be, either)"
            if refusals[1:]
            else ""
        )
        raise InvalidInput(refusals[0] + more)


def _check_prompts(cell: Cell) -> None:
    """Raise InvalidInput for a data set that knows that it cannot give the prompts."""
    config = cell.config
    dataset = build(config["dataset"])
    if hasattr(dataset, "check"):  # those of others need not have it
        count = config["first_prompt"] + config["num_prompts"]
        dataset.check(count, config["prompt_template"])


def trees_found_otherwise(cells: Iterable[Cell]) -> dict[str, None]:
    """Lines about searched trees that were found with other code or documents than now."""
    searched = {
        (cell.tree_file, str(cell.labels["dataset"])): cell
        for cell in cells
        if cell.tree_file and cell.has_tree and cell.config["search"]
    }
    return dict.fromkeys(
        line
        for (path, _), cell in searched.items()
        for line in build(cell.config["search"]).found_otherwise(path, cell)
    )


def _check_parts(cell: Cell) -> None:
    """Raise InvalidInput for a cell whose parts cannot go together.

    The search's stand-in replaces a tree that is still to be searched for; where there is none, the
    parts are right once the tree is found.
    """
    config = cell.config
    if not cell.has_tree:
        stand_in = build(config["search"]).stand_in()
        if stand_in is None:
            return
        config = _replaced(config, config["tree"], stand_in)
    task, decoder = build(config["task"]), build(config["decoder"])
    check_pair(config["pair"], decoder.drafter)
    if config["prompt_template"] == CHAT:
        _check_chat(config["pair"])
    check_task(task, decoder)


def _replaced(node: Any, old: Any, new: Any) -> Any:
    """A configuration with `new` in every place of `old`."""
    if node == old:
        return new
    if isinstance(node, Mapping):
        return {key: _replaced(value, old, new) for key, value in node.items()}
    if isinstance(node, list):
        return [_replaced(value, old, new) for value in node]
    return node


def check_pair(pair: Mapping[str, Any], drafter: Any) -> None:
    """Raise InvalidInput unless a pair's loader takes its values and its draft fits the drafter."""
    from resispec.drafters import DraftModel, Eagle

    name, eagle, model = str(pair["_target_"]), "an EAGLE drafter", "a draft model"
    loader = get_object(name)
    try:
        signature(loader).bind(**{key: pair[key] for key in pair if not key.startswith("_")})
    except TypeError as error:
        raise InvalidInput(f"{name} cannot be called: {error}") from error
    if not str(loader.__module__).startswith(OURS):
        return  # what it loads is known when it is loaded
    kind = eagle if loads_eagle(loader) else model if pair.get("draft", True) else "no draft"
    needed = {Eagle: eagle, DraftModel: model}.get(type(drafter), kind)
    if needed != kind and drafter.topology.num_nodes > 1:
        ways_out = {
            eagle: "a pair with one, like embedded_eagle",
            model: "draft=FOLDER, a pair with one, or another decoder",
        }
        raise InvalidInput(
            f"the decoder needs {needed} and the pair has {kind}; allowed: {ways_out[needed]}"
        )


def _check_chat(pair: Mapping[str, Any]) -> None:
    """Raise InvalidInput for a target whose tokenizer, if it is here, has no chat template."""
    from resispec.models import TransformersTokenizer
    from resispec.models.checkpoint import read_tokenizer

    if str(pair["_target_"]).startswith("resispec.embedded."):
        raise InvalidInput(f"prompt_template={CHAT}: the embedded models have no chat template")
    if "fingerprint" in pair:  # models that are made here have one
        return
    name, tokenizer = str(pair.get("target")), None
    file: Any = Path(name).expanduser() / "config.json"
    with suppress(InvalidInput, ValueError):  # an unreadable model says why when it is loaded
        if not file.is_file():
            file = try_to_load_from_cache(name, file.name, revision=pair.get("target_revision"))
        if isinstance(file, str | Path):
            tokenizer = read_tokenizer(str(Path(file).parent))
    if tokenizer is not None:
        TransformersTokenizer(tokenizer).encode_chat("a question")


MEASURED = ("dataset", "first_prompt", "num_prompts")
LAW = ("temperature", "sampling")
CHECKS: dict[Callable[[Cell], None], Sequence[str]] = {
    _check_prompts: (*MEASURED, "prompt_template"),
    Cell.check_tree: (*LAW, "pair", "decoder", "tree", "search", *MEASURED, *TUNING, *SETTINGS),
    _check_parts: ("pair", "decoder", "tree", "search", "task", "prompt_template"),
}
"""Check, which raises InvalidInput for a cell -> configuration keys that decide its answer."""
