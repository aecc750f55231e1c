"""The rehearsal of cells: before the first is measured,
all are tried without models in a process with torch.

Cells that cannot work are refused here in a second, and not one by one after models were read. The
process is one of the scheduler's: its server has then done its imports for the cells that follow,
and if a user's rule harms its process, the process of the command is safe.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import signature
from multiprocessing import connection
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from hydra.utils import get_object

from experiments.cell import OURS, Cell, Reporter, build
from experiments.configurations import SETTINGS, check_settings
from experiments.scheduler import Job
from resispec.data import CHAT, TIMEOUT_S, check_turn
from resispec.errors import InvalidInput, first_line

LIMIT_S = TIMEOUT_S + 20.0
"""Seconds for a cell, which may fetch a file; the process starts
when its server has imported torch.
"""


def rehearse_cells(cells: Sequence[Cell]) -> None:
    """Raise InvalidInput for cells whose parts cannot go together: the first reason,
    and the number of cells.

    The rehearsal tries the prompts of a small data set, the tree's file, drafter, verifier and task
    with each other, the kind of the pair's draft, and the chat template of a local target. If the
    process ends without a reason, or takes longer than LIMIT_S for a cell, nothing is raised, and
    the cells themselves say later what is wrong.
    """
    job = Job(1, "", partial(_rehearse, cells), lambda _code, _reasons: ([], []), size=1)
    job.start(lambda *_: None)
    try:
        while connection.wait([job.channel], LIMIT_S) and job.read():
            pass
    finally:
        job.process.kill()  # a rule may hang, or a signal interrupt the wait
    _, reasons = job.end()
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
    """Raise InvalidInput for a small data set that cannot be read or has too few prompts."""
    data, count = cell.config["dataset"], cell.config["first_prompt"] + cell.config["num_prompts"]
    module, _, name = str(data["_target_"]).rpartition(".")
    if "fingerprint" in data:  # text made on this machine is not made just to count it
        build(data).check(count)
    elif name == "QuestionDataset" or (module == "resispec.data" and data["path"]):
        for prompt in build(data).prompts(count):
            check_turn(prompt, cell.config["prompt_template"])
    elif module == "resispec.plugins":
        build(data)


def _check_parts(cell: Cell) -> None:
    """Raise InvalidInput for a cell whose parts cannot go together.

    The search's stand-in replaces a tree that is still to be searched for; where there is none, the
    parts are right once the tree is found.
    """
    config = cell.config
    is_fastest = config["tree"].get("_target_") == "experiments.configurations.load"
    if cell.tree_file and cell.has_tree and is_fastest:
        check_settings(cell.tree_file, config)
    if not cell.has_tree:
        stand_in = build(config["search"]).stand_in()
        if stand_in is None:
            return
        config = _replaced(config, config["tree"], stand_in)
    task, decoder = build(config["task"]), build(config["decoder"])
    check_pair(config["pair"], decoder.drafter)
    if config["prompt_template"] == CHAT:
        _check_chat(config["pair"])
    try:
        task.check(decoder)
    except InvalidInput:
        raise
    except (Exception, SystemExit):  # noqa: BLE001, S110
        # a rule may raise it for want of its target's laws
        pass


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
    """Raise InvalidInput unless a pair's loader takes its values,
    and its draft suits the drafter.
    """
    from resispec.drafters import DraftModel, Eagle

    loader, eagle, model = str(pair["_target_"]), "an EAGLE drafter", "a draft model"
    try:
        signature(get_object(loader)).bind(
            **{key: pair[key] for key in pair if not key.startswith("_")}
        )
    except TypeError as error:
        raise InvalidInput(f"{loader} cannot be called: {error}") from error
    kind = (
        eagle
        if loader.endswith("load_eagle_pair")
        else model
        if pair.get("draft", True)
        else "no draft"
    )
    needed = {Eagle: eagle, DraftModel: model}.get(type(drafter), kind)
    if loader.startswith(OURS) and needed != kind and drafter.topology.num_nodes > 1:
        ways_out = {
            eagle: "a pair with one, like embedded_eagle",
            model: "draft=FOLDER, a pair with one, or another decoder",
        }
        raise InvalidInput(
            f"the decoder needs {needed} and the pair has {kind}; allowed: {ways_out[needed]}"
        )


def _check_chat(pair: Mapping[str, Any]) -> None:
    """Raise InvalidInput for a target whose tokenizer has no chat template,
    if its files are here.
    """
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


CHECKS: dict[Callable[[Cell], None], Sequence[str]] = {
    _check_prompts: ("dataset", "first_prompt", "num_prompts", "prompt_template"),
    _check_parts: ("pair", "decoder", "tree", "search", "task", "prompt_template", *SETTINGS),
}
"""Check, which raises InvalidInput for a cell -> keys of the configuration on
which its answer depends.
"""
