"""Verifiers compared on logged laws, without a model: `resispec replay LAWS
verifier=NAME,...`.

LAWS are files or folders of files (docs/replay.md). Every verifier meets the same drafted trees:
the table has its expected tokens a step, and an audit of the tokens that it draws.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from analysis import audits
from analysis.stats import BRACKETS, few_prompts, paired_gain, ratio
from analysis.table import Column, Key, Notes, Number, Table
from analysis.terminal import printed
from referee.inputs import count
from resispec.audit.battery import shown_bias
from resispec.audit.z_score import join
from resispec.commands import as_typed
from resispec.core import DrawsKind
from resispec.errors import CommandParser, InvalidInput, in_one_line
from resispec.files import check_output, checksums, write_atomically
from resispec.progress import progress_bar
from resispec.replay import num_steps, read_laws, replay
from resispec.verifiers import get_verifier

COLUMNS = (
    Column("verifier", "Verifier", "key"),
    Column("accepted_length", "Accepted length", "number"),
    Column("gain", "Gain", "number"),
    Column("verdict", "Audit", "audit"),
)
ABOUT = (
    "Accepted length: tokens a step in expectation, given the logged trees. Gain: over the first "
    "verifier, on the same trees. Audit: of the tokens that each verifier draws there, by "
    "three z-scores (surprisal, overdraft and rank, see docs/exactness.md); beyond 4 is biased, "
    "too few tokens are undecided."
)


def laws_files(places: Sequence[str]) -> list[Path]:
    """The files of laws at these places, each a file or a folder of files.

    A file that is named twice counts once. Raises InvalidInput for none, and for a copy of another.
    """
    files: list[Path] = []
    for place in map(Path, places):
        paths = sorted(place.glob("*.safetensors")) if place.is_dir() else [place]
        if not all(path.is_file() for path in paths) or not paths:
            raise InvalidInput(
                f"{place} has no laws; allowed: .safetensors files, or folders of them"
            )
        files += paths
    if not files:
        raise InvalidInput("no laws are given; allowed: .safetensors files, or folders of them")
    found: dict[Path, Path] = {}
    for path in files:
        found.setdefault(path.resolve(), path)
    files = list(found.values())
    owners: dict[str, Path] = {}
    for path in files:
        [digest] = checksums(path.parent, [path.name]).values()
        if (other := owners.setdefault(digest, path)) is not path:
            raise InvalidInput(
                f"{path} is a copy of {other}, whose prompt would count twice; allowed: each once"
            )
    return files


def measure(files: Sequence[Path], name: str, seed: int) -> pd.DataFrame:
    """A verifier's rows, one for every file: its steps, expected tokens and the audit's terms.

    `attrs["shown_bias"]`: the sentence about the bias that enumeration shows of it for the draws of
    the steps, at temperature 0 if all logged laws of the target are point masses; None without one.
    Raises InvalidInput, with the step, as `replay` and for a verifier's law that is none.
    """
    verifier, rows = get_verifier(name), list[dict[str, Any]]()
    are_greedy: dict[str, bool] = {}
    kinds: dict[str, DrawsKind] = {}
    with progress_bar(total=sum(map(num_steps, files)), desc=name, unit="step") as bar:
        for index, path in enumerate(files):
            generator, expected, terms = torch.Generator().manual_seed(seed + index), 0.0, []
            for place, step in enumerate(read_laws(path)):
                try:
                    emitted, drawn = replay(step, verifier, generator)
                except FloatingPointError as error:
                    raise InvalidInput(f"verifier {name}: {path}, step {place}: {error}") from error
                expected += emitted
                draws = step.draft.tree.draws
                kinds[draws.name] = draws
                is_greedy = bool((step.target_probs.max(-1).values == 1).all())
                are_greedy[draws.name] = is_greedy and are_greedy.get(draws.name, True)
                terms.append(drawn)
                bar.update()
            row = {"num_steps": len(terms), "expected_emitted": expected}
            columns = {key: values.tolist() for key, values in join(terms)._asdict().items()}
            rows.append(row | columns)
    frame = pd.DataFrame(rows)
    biases = (shown_bias(verifier, kinds[name], are_greedy[name]) for name in kinds)
    frame.attrs["shown_bias"] = next(filter(None, biases), None)
    return frame


def table(measured: dict[str, pd.DataFrame]) -> Table:
    """The verifiers side by side, by name and rows of `measure`; the frame has their numbers."""
    sums = {name: (rows.expected_emitted, rows.num_steps) for name, rows in measured.items()}
    _, steps = first = next(iter(sums.values()))
    lines, numbers = [], []
    for name, rows in measured.items():
        length, gain = ratio(*sums[name]), paired_gain(sums[name], first)
        judged = audits.with_bias(audits.judged(name, rows), rows.attrs["shown_bias"])
        shown = (Number.of(length, ".2f"), Number.of(gain, ".2f"), audits.cell_of(judged))
        lines.append((Key(name, name), *shown))
        row: dict[str, Any] = {"verifier": name, "num_steps": int(steps.sum())}
        for key, interval in (("accepted_length", length), ("gain", gain)):
            row[key] = interval.value
            row[f"{key}_lower"], row[f"{key}_upper"] = interval.lower, interval.upper
        numbers.append(row | judged)
    caption = f"Verifiers on {steps.sum():,} logged steps of {len(steps)} files"
    sentences = {name: rows.attrs["shown_bias"] for name, rows in measured.items()}
    biases = [f"{name}: {sentence}" for name, sentence in sentences.items() if sentence]
    notes = Notes((ABOUT, *biases, "A file is a prompt. " + BRACKETS, *few_prompts([len(steps)])))
    return Table("replay", COLUMNS, tuple(lines), caption, pd.DataFrame(numbers), notes)


@in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command: prints the table, and writes its numbers where --out says."""
    parser = CommandParser(
        prog=as_typed("experiments.replay"),
        usage="%(prog)s LAWS... verifier=NAME[,NAME...] [--seed N] [--out FILE.csv]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", nargs="*", metavar="LAWS", help="files or folders, and verifier=NAME,..."
    )
    parser.add_argument(
        "--seed", type=partial(count, least=0), default=0, help="of what the verifiers draw (0)"
    )
    parser.add_argument("--out", type=Path, help="a .csv file for the numbers")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # one node's laws at a time: more threads only wait for each other
    choices = [word for word in options.words if word.startswith("verifier=")]
    names = [name for word in choices for name in word.partition("=")[2].split(",") if name]
    files = laws_files([word for word in options.words if word not in choices])
    if options.out is not None:
        modules = [Path(name.rpartition(":")[0]) for name in names if ".py:" in name]
        check_output(options.out, [*files, *modules])
    names = names or ["standard"]
    result = table({name: measure(files, name, options.seed) for name in names})
    sys.stdout.write(printed(result, "" if options.out is None else str(options.out)))
    if options.out is not None:
        write_atomically(options.out, result.frame.to_csv(index=False))


if __name__ == "__main__":
    sys.exit(main())
