"""Faults that shipped, and what finds them: `python -m referee.gallery`, see docs/gallery.md.

Every engine of the gallery continues prompts with a pair, the embedded one or another, and writes transcripts
to RESULTS/PAIR/gallery/. These are kept, so after a stop the same command goes on. Then the usual checks and
the audit judge the transcripts, and RESULTS/PAIR/gallery.csv holds the results. An engine that is not
installed is skipped; `make gallery` installs all of them.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd
import torch

from referee import inputs
from referee.audit import Arm, measure
from referee.engines.generate import TransformersEngine
from referee.gallery.exhibits import GALLERIES, Exhibit
from referee.gallery.measures import Questions, checks, curve, verdict, write, write_greedy
from referee.inputs import EMBEDDED, count
from referee.rescoring import pair_scorers
from referee.transcripts import Transcript
from resispec.errors import GOES_ON, InvalidInput, fail, first_line, in_one_line
from resispec.files import write_atomically
from resispec.machine import checkout, device_name
from resispec.models import Pair
from resispec.sampling import Sampling

NUMBERS = {
    "prompts": "continued by every engine",
    "tokens": "new ones a prompt, at most",
    "greedy": "prompts that are also continued at T = 0",
    "seeds": "prompts with the same seed again, and another",
}
"""Options that replace a gallery's own numbers, with their help texts."""


def rows_of(
    exhibit: Exhibit,
    pair: Pair,
    questions: Questions,
    greedy: Sequence[Transcript],
    folder: Path,
    arms: dict[str, Arm],
) -> Iterator[dict[str, Any]]:
    """The rows of an engine: one for each number of tokens, or one that says why there is no result.

    greedy: the target's own greedy continuations. folder: where the files are. arms: those of the earlier
    exhibits by name; the arm of this one is added.
    """
    row: dict[str, Any] = {"engine": exhibit.name, "beside": exhibit.beside, "thread": exhibit.thread}
    try:
        engine = exhibit.make(pair, folder / "models")
        own_questions = replace(
            questions,
            prompts=questions.prompts * exhibit.times,  # each time with other seeds
            settings=replace(questions.settings, **exhibit.settings),
            first_seed=exhibit.first_seed,
            concurrency=exhibit.concurrency,
        )
        answers = write(engine, own_questions, folder / exhibit.stem)
    except (ModuleNotFoundError, InvalidInput) as error:
        status = "not installed" if isinstance(error, ModuleNotFoundError) else "failed"
        yield row | {"status": status, "reason": first_line(error)}
        return
    arm = arms[exhibit.name] = measure(answers["sampled"], *pair_scorers(pair))
    has_control = exhibit.settings and exhibit.beside != exhibit.name
    row |= {"status": "done", "version": engine.version}
    row |= checks(answers, greedy, arm)
    row |= verdict(arm, arms.get(exhibit.beside) if has_control else None)
    yield from (row | point for point in curve(arm))


def gallery(
    exhibits: Sequence[Exhibit], pair: Pair, questions: Questions, folder: Path
) -> Iterator[pd.DataFrame]:
    """A table of the rows of all engines so far, after each engine. folder: where the files are."""
    (folder / "models").mkdir(parents=True, exist_ok=True)
    source = {**checkout(), "device": device_name(pair.target.device)}
    greedy = write_greedy(TransformersEngine(pair), questions, folder / "target_alone")
    arms: dict[str, Arm] = {}
    rows: list[dict[str, Any]] = []
    for exhibit in exhibits:
        rows += [row | source for row in rows_of(exhibit, pair, questions, greedy, folder, arms)]
        yield pd.DataFrame(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 1, after one line, if an option or a file does not fit."""
    options = parser().parse_args(arguments)
    numbers = {name: value for name in NUMBERS if (value := getattr(options, name)) is not None}
    exhibition, machine = replace(GALLERIES[options.pair], **numbers), (options.device, "float32")
    folder = options.results / options.pair
    if options.pair == EMBEDDED:
        torch.set_num_threads(1)  # small matrices: see conf/profile/embedded.yaml

    def work() -> int:
        pair = inputs.pair_of(options.pair, None, *machine)
        encode = inputs.encoder(options.pair, exhibition.prompt_tokens, *machine)
        prompts = inputs.token_prompts(exhibition.dataset, exhibition.prompts, encode)
        settings = Sampling(max_new_tokens=exhibition.tokens)
        questions = Questions(tuple(prompts), settings, exhibition.greedy, exhibition.seeds)
        for frame in gallery(exhibition.exhibits, pair, questions, folder / "gallery"):
            write_atomically(folder / "gallery.csv", frame.to_csv(index=False))
        sys.stdout.write(f"written: {folder / 'gallery.csv'}\n")
        return 0

    return in_one_line(work, GOES_ON)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.exit(fail(message))


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = _Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the results")
    parser.add_argument("--pair", choices=list(GALLERIES), default=EMBEDDED, help="of conf/pair")
    for name, text in NUMBERS.items():
        parser.add_argument(f"--{name}", type=count, help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
