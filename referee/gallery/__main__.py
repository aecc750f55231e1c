"""Faults that shipped, and what finds them: `python -m referee.gallery`, see docs/gallery.md.

Every engine of the gallery continues prompts with a pair, the embedded one or another, and writes
transcripts to RESULTS/PAIR/gallery/. These are kept, so after a stop the same command goes on. Then
the usual checks and the audit judge the transcripts, and RESULTS/PAIR/gallery.csv holds the
results. An engine that is not installed is skipped; `make gallery` installs all of them.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from referee import inputs
from referee.audit import Arm, measure
from referee.engines import write_transcripts
from referee.engines.generate import TransformersEngine
from referee.gallery.exhibits import GALLERIES, Gallery
from referee.gallery.measures import checks, curve, verdict, write
from referee.inputs import EMBEDDED
from referee.prompts import PromptSource
from referee.rescoring import pair_scorers
from referee.transcripts import DRAFT_WEIGHTS, WEIGHTS
from resispec.errors import GOES_ON, CommandParser, InvalidInput, first_line, in_one_line
from resispec.files import write_atomically
from resispec.machine import checkout, device_name
from resispec.models import Pair
from resispec.models.checkpoint import digest_of
from resispec.sampling import Sampling


def gallery(
    exhibition: Gallery, pair: Pair, prompts: Sequence[tuple[int, ...]], folder: Path
) -> Iterator[pd.DataFrame]:
    """A table of the rows of all engines so far, after each engine. folder: where the files are.

    An engine has a row for each number of tokens, or one that says why there is no result.
    """
    weights = digest_of(pair.target.module.state_dict())
    drafts = digest_of(pair.draft_model().module.state_dict())
    models = folder / "models" / f"{weights}-{drafts}"  # converted ones are kept, and taken again
    models.mkdir(parents=True, exist_ok=True)
    code = checkout()
    source = {"git_commit": code["git_commit"], "git_is_dirty": code["git_is_dirty"]}
    source["device"] = device_name(pair.target.device)
    alone = TransformersEngine(pair)
    alone.drafting = {WEIGHTS: weights}
    settings = Sampling(temperature=0.0, max_new_tokens=exhibition.tokens)
    path = folder / "target_alone.greedy.jsonl"
    greedy = write_transcripts(alone, prompts[: exhibition.greedy], settings, path)
    arms: dict[str, Arm] = {}
    rows: list[dict[str, Any]] = []
    for exhibit in exhibition.exhibits:
        facts = ("beside", "thread", "where")
        row = {"engine": exhibit.name} | {fact: getattr(exhibit, fact) for fact in facts}
        try:
            engine = exhibit.make(pair, models)
            engine.drafting = {**engine.drafting, WEIGHTS: weights, DRAFT_WEIGHTS: drafts}
            answers = write(engine, exhibit, exhibition, prompts, folder)
        except (ModuleNotFoundError, InvalidInput) as error:
            status = "not installed" if isinstance(error, ModuleNotFoundError) else "failed"
            rows.append(row | {"status": status, "reason": first_line(error)} | source)
        else:
            arm = arms[exhibit.name] = measure(answers["sampled"], *pair_scorers(pair))
            has_control = exhibit.settings and exhibit.beside != exhibit.name
            row |= {"status": "done", "version": engine.version} | checks(answers, greedy, arm)
            row |= verdict(arm, arms.get(exhibit.beside) if has_control else None)
            rows += [row | point | source for point in curve(arm)]
        yield pd.DataFrame(rows)


@in_one_line(GOES_ON)
def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; the exit code is 1, after one line, if a file does not fit."""
    parser = CommandParser(
        prog="python -m referee.gallery",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder of the results"
    )
    parser.add_argument("--pair", choices=list(GALLERIES), default=EMBEDDED, help="of conf/pair")
    options = parser.parse_args(arguments)
    exhibition, machine = GALLERIES[options.pair], (options.device, "float32")
    folder = options.results / options.pair
    if options.pair == EMBEDDED:
        torch.set_num_threads(1)  # small matrices: see conf/profile/embedded.yaml
    pair = inputs.pair_of(options.pair, None, *machine)
    tokenizer = partial(inputs.tokenizer_of, options.pair, *machine)
    source = PromptSource(exhibition.dataset, exhibition.prompt_tokens, tokenizer)
    prompts = source.prompts(exhibition.prompts)
    for frame in gallery(exhibition, pair, prompts, folder / "gallery"):
        write_atomically(folder / "gallery.csv", frame.to_csv(index=False))
    sys.stdout.write(f"written: {folder / 'gallery.csv'}\n")


if __name__ == "__main__":
    sys.exit(main())
