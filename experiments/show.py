"""Text that a cell wrote, step by step: `resispec show [CELL] [PROMPT]`.

It prints a prompt of a cell that decodes, the answer with a mark between steps, and their tokens
and times. Without a cell it lists the newest ones.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from analysis.cli import check_profile, profile_parser
from analysis.load import read_status, readable_plans
from experiments.cell import build, prompts_of
from experiments.store import CELL, PARTIAL, PROVENANCE, ROWS, CellStore
from resispec.commands import as_typed
from resispec.errors import InvalidInput, first_line, in_one_line
from resispec.files import read_json

MARK = "|"
"""Mark between the tokens of two steps."""
NUM_LISTED = 10
"""Number of cells that are listed where none is named."""


@in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = profile_parser("experiments.show", __doc__.splitlines()[0])
    help_text = "its id, or the beginning of it; without one, the newest cells are listed"
    parser.add_argument("cell", metavar="CELL", nargs="?", help=help_text)
    parser.add_argument(
        "prompt", metavar="PROMPT", nargs="?", type=int, default=0, help="from 0 (0)"
    )
    options = parser.parse_args(arguments)
    check_profile(options.profile, options.results)
    raw, labels = options.results / "raw" / options.profile, _labels(options)
    if options.cell is None:
        folders = newest(raw)
        lines = [f"{folder.name}{labels.get(folder.name, '')}" for folder in folders]
        following = f"{as_typed('experiments.show')} {folders[0].name}"
        sys.stdout.write("\n".join([*lines, f"the newest first; to read one: {following}"]) + "\n")
        return
    folder = find_cell(options.cell, raw)
    status = read_status(folder)
    if status.state == "damaged":
        raise InvalidInput(f"cell {folder.name}: {status.reason}")
    row = find_row(folder, options.prompt)
    lines = [f"cell {folder.name}{labels.get(folder.name, '')}"]
    if status.state != "done":
        lines.append(f"{status.state}: {status.reason}" if status.reason else status.state)
    if bias := read_json(folder / PROVENANCE).get("shown_bias"):
        lines.append(bias)
    sys.stdout.write("\n".join([*lines, *text(read_json(folder / CELL)["config"], row)]) + "\n")


def newest(raw: Path) -> list[Path]:
    """Folders of the newest cells in `raw` that keep text, at most NUM_LISTED, the newest first.

    Raises InvalidInput for none.
    """
    files = [path for name in (ROWS, PARTIAL) for path in raw.glob(f"*/{name}")]
    files.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    with_text = (
        folder
        for folder in dict.fromkeys(path.parent for path in files)
        if any(has_text(row) for row in CellStore(folder).rows_so_far()[:1])
    )
    folders = list(islice(with_text, NUM_LISTED))
    if not folders:
        raise InvalidInput(f"no cell in {raw} keeps text; `resispec run` measures one")
    return folders


def find_cell(beginning: str, raw: Path) -> Path:
    """The folder of the cell in `raw` whose id begins so.

    Raises InvalidInput unless there is exactly one.
    """
    cell_ids = sorted(path.parent.name for path in raw.glob(f"*/{CELL}"))
    matches = [cell_id for cell_id in cell_ids if cell_id.startswith(beginning)]
    if len(matches) != 1:
        problem = f"{len(matches) or 'no'} cells in {raw} begin with {beginning!r}"
        examples = ", ".join((matches or cell_ids)[:5]) or "none"
        more = ", ..." if len(matches or cell_ids) > 5 else ""
        raise InvalidInput(f"{problem}; allowed: the beginning of one id, of {examples}{more}")
    return raw / matches[0]


def find_row(folder: Path, index: int) -> dict[str, Any]:
    """The row of a prompt; the cell may be incomplete.

    Raises InvalidInput if it or its tokens are absent.
    """
    name, rows = folder.name, CellStore(folder).rows_so_far()
    if not 0 <= index < len(rows):
        allowed = f"0 to {len(rows) - 1}" if rows else "none; nothing is measured yet"
        raise InvalidInput(f"cell {name} has no prompt {index}; allowed: {allowed}")
    if not has_text(rows[index]):
        raise InvalidInput(
            f"cell {name} keeps no tokens: another task, or an earlier version, measured it"
        )
    return rows[index]


def has_text(row: Mapping[str, Any]) -> bool:
    """Whether a row keeps what its prompt's decoding wrote."""
    return {"tokens", "step_emitted"} <= set(row)


def text(config: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[str]:
    """The printed lines about a row. config: that of its cell."""
    tokenizer, sizes, seconds = _tokenizer(config["pair"]), row["step_emitted"], row.get("step_s")
    about = [row["prompt_id"], f"{row['num_prompt_tokens']} tokens", f"seed {row['seed']}"]
    about += [f"category {row['category']}"] if row.get("category") else []
    yield f"prompt {row['prompt_index']}: {', '.join(about)}"
    yield _printable(_prompt(config, row, tokenizer))
    length = f"{row['num_emitted'] / row['num_steps']:.2f} a step; it ended by {row['stop_reason']}"
    yield f"\nanswer: {row['num_returned']} tokens, {length}; {MARK} stands between steps"
    yield _printable(MARK.join(pieces(tokenizer, row["tokens"], sizes)))
    yield f"\ntokens of each step: {' '.join(map(str, sizes))}"
    if seconds and config.get("timed", True):  # an audit has none
        rate = f"{row['num_emitted'] / row['decode_s']:.1f} tokens/s"
        step = f"{1e3 * median(seconds):.1f} ms a step (median)"
        yield (
            f"times: prompt {1e3 * row['prefill_s']:.1f} ms, then {row['decode_s']:.2f} s, "
            f"{rate}, {step}"
        )


def pieces(tokenizer: Any, tokens: list[int], sizes: Sequence[int]) -> Iterator[str]:
    """The text of every step of `sizes` tokens; a character of two steps is the later one's."""
    previous, end = "", 0
    for size in sizes:
        end += size
        prefix = tokenizer.decode(tokens[:end])
        prefix = prefix if end >= len(tokens) else prefix.rstrip("\ufffd")
        yield prefix[len(previous) :]
        previous = prefix


def _prompt(config: Mapping[str, Any], row: Mapping[str, Any], tokenizer: Any) -> str:
    """The prompt as the target read it, or the reason why it cannot be read here.

    One reason is a data set that has changed since.
    """
    from experiments.tasks.base import hash_tokens  # imports torch

    length, template = config["prompt_tokens"], config["prompt_template"]
    try:
        prompt = prompts_of(config)[row["prompt_index"]]
        tokens = tokenizer.encode_prompt(prompt, length, template)
        here = {"prompt_id": prompt.id, "num_prompt_tokens": len(tokens)}
        here["prompt_sha256"] = hash_tokens(tokens)  # rows of earlier versions have none
        if any(row.get(name, value) != value for name, value in here.items()):
            raise InvalidInput("another prompt stands in its place; the data set has changed since")
        return tokenizer.decode(tokens)
    except InvalidInput as error:
        return f"(cannot be read here: {first_line(error)})"


def _tokenizer(pair: Mapping[str, Any]) -> Any:
    """The tokenizer of a pair; the weights of our own kinds of pairs are not read."""
    from resispec.embedded import committed
    from resispec.embedded.pairs import model_names
    from resispec.models import TransformersTokenizer
    from resispec.models.checkpoint import read_tokenizer

    module = str(pair["_target_"]).rpartition(".")[0]
    if module == "resispec.embedded":
        [folder] = model_names(pair["target"])
        return TransformersTokenizer(read_tokenizer(str(committed.folder(folder))))
    if module == "resispec.models":
        return TransformersTokenizer(read_tokenizer(pair["target"], pair.get("target_revision")))
    return build(pair).tokenizer


def _labels(options: Namespace) -> dict[str, str]:
    """The labels of cells by their ids, each by the first plan that asks for it."""
    labels: dict[str, str] = {}
    for plan in readable_plans(options.profile, options.results):
        for request in plan.requests:
            texts = (f"{key} {value}" for key, value in request.texts.items() if value != "")
            labels.setdefault(request.cell_id, f": {', '.join(texts)}")
    return labels


def _printable(text: str) -> str:
    """A text with escapes in place of characters that would steer a terminal."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in text
    )


if __name__ == "__main__":
    sys.exit(main())
