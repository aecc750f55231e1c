"""Faults that shipped, and what finds them: `python -m experiments.gallery`, see docs/gallery.md.

Every engine of the gallery continues prompts with the embedded pair and writes transcripts to
RESULTS/embedded/gallery/, which are kept: stopped, the same command goes on. Then the usual checks and the
audit look at them, and RESULTS/embedded/gallery.csv has what they say. An engine that is not installed is
skipped; `make gallery` installs all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from experiments.bench.options import Options, count
from experiments.commands import GOES_ON, in_one_line
from experiments.gallery.checks import checks
from experiments.gallery.curve import curve, verdict
from experiments.gallery.exhibits import EXHIBITS, Exhibit
from experiments.gallery.writing import Asked, write, write_greedy
from experiments.provenance import provenance
from experiments.transcripts import models
from experiments.transcripts.prompts import token_prompts
from resispec.audit.transcripts import measure
from resispec.engines import Settings, Unanswered
from resispec.errors import InvalidInput, first_line
from resispec.files import write_atomically
from resispec.models import Pair
from resispec.models.generate import TransformersEngine
from resispec.models.scoring import Scorer, pair_scorers
from resispec.transcripts import Transcript

PROMPT_TOKENS = 48
"""Texts are cut to their first tokens."""


@dataclass(frozen=True)
class Reference:
    """What every engine is held against: the two models' laws, and what the target alone continues greedily.

    scorers: of the target and of its draft.
    """

    pair: Pair
    scorers: Sequence[Scorer]
    greedy: Sequence[Transcript]

    @classmethod
    def of(cls, pair: Pair, asked: Asked, folder: Path) -> Reference:
        """Rescores with the pair, and writes or reads the greedy answers, whose files are in `folder`."""
        greedy = write_greedy(TransformersEngine(pair), asked, folder / "target_alone")
        return cls(pair, pair_scorers(pair), greedy)


def rows_of(exhibit: Exhibit, reference: Reference, asked: Asked, folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of an engine: one for every number of tokens, or one that says why there are none."""
    about: dict[str, Any] = {"engine": exhibit.name, "beside": exhibit.beside, "thread": exhibit.thread}
    try:
        engine = exhibit.make(reference.pair, folder / "models")
        many = replace(asked, prompts=asked.prompts * exhibit.times)  # each time with other seeds
        written = write(engine, many, folder / exhibit.stem)
    except (ModuleNotFoundError, InvalidInput, Unanswered) as error:
        status = "not installed" if isinstance(error, ModuleNotFoundError) else "failed"
        yield about | {"status": status, "reason": first_line(error)}
        return
    arm = measure(written.sampled, *reference.scorers)
    about |= {"status": "done", "version": engine.version}
    about |= checks(written, reference.greedy, reference.scorers[0]) | verdict(arm)
    yield from (about | point for point in curve(arm))


def gallery(exhibits: Sequence[Exhibit], pair: Pair, asked: Asked, folder: Path) -> pd.DataFrame:
    """The rows of all engines. folder: of their files."""
    (folder / "models").mkdir(parents=True, exist_ok=True)
    source = provenance(pair.target.device)
    where = {name: source[name] for name in ("git_commit", "git_is_dirty", "device")}
    reference = Reference.of(pair, asked, folder)
    rows = [row | where for exhibit in exhibits for row in rows_of(exhibit, reference, asked, folder)]
    return pd.DataFrame(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 with one line when an option or a file does not fit."""
    options = parser().parse_args(arguments)
    torch.set_num_threads(1)  # small matrices: see conf/profile/embedded.yaml
    folder = options.results / "embedded"

    def work() -> int:
        pair = models.load("embedded", None, options.device, "float32")
        prompts = token_prompts("embedded_reference", options.prompts, PROMPT_TOKENS, pair.tokenizer.encode)
        asked = Asked(tuple(prompts), Settings(max_new_tokens=options.tokens), options.greedy, options.seeds)
        frame = gallery(EXHIBITS, pair, asked, folder / "gallery")
        write_atomically(folder / "gallery.csv", frame.to_csv(index=False))
        sys.stdout.write(f"written: {folder / 'gallery.csv'}\n")
        return 0

    return in_one_line(work, GOES_ON)


def parser() -> Options:
    """What the command takes."""
    made = Options(__doc__, "cpu")
    made.add_argument("--prompts", type=count, default=80, help="continued at T = 1 by every engine")
    made.add_argument("--tokens", type=count, default=64, help="new ones a prompt, at most")
    made.add_argument("--greedy", type=count, default=16, help="prompts that are also continued at T = 0")
    made.add_argument("--seeds", type=count, default=6, help="prompts with the same seed again, and another")
    return made


if __name__ == "__main__":
    sys.exit(main())
