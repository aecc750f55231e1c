"""Engines that the referee's authors had not seen, judged blind: `python docs/studies/held_out.py`.

The engines of held_out_engines.py continue the same prompts of the embedded pair and write
transcripts under shuffled names, which are numbers. Every file is judged as `resispec judge` does
it, with target and draft, and its verdict is written down. Only then numbers and names are joined.
Found (results/published/embedded/held_out.md): no exact engine of ten is called biased, and
twenty of twenty-nine faulty ones are, three of them since the audit has learnt from this study;
docs/gallery.md says why the others are not.

    python docs/studies/held_out.py [--results RESULTS]

Takes about a quarter of an hour on one core, and goes on where it was stopped. It writes
RESULTS/embedded/held_out/, and RESULTS/embedded/held_out.{csv,md}.
"""

import argparse
import io
import json
import math
import random
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from held_out_engines import HELD_OUT, HeldOut

from referee import inputs
from referee.audit import Finding, audit_transcripts, measure
from referee.engines import write_transcripts
from referee.inputs import EMBEDDED
from referee.prompts import PromptSource
from referee.rescoring import Scorer, pair_scorers
from referee.transcripts import read_transcripts
from referee.transcripts_power import printed_table
from resispec.errors import GOES_ON, CommandParser, NoVerdict, in_one_line
from resispec.files import write_atomically
from resispec.progress import progress_bar
from resispec.sampling import Sampling

DATASET, PROMPTS, PROMPT_TOKENS, NEW_TOKENS = "embedded_reference", 80, 64, 64
SHUFFLE = 20261129
"""The seed of the shuffled numbers."""
STEP = 250
"""Tokens after which the statistics are looked at again."""


def numbered(engines: Sequence[HeldOut]) -> dict[str, HeldOut]:
    """The engines by meaningless names."""
    numbers = list(range(1, len(engines) + 1))
    random.Random(SHUFFLE).shuffle(numbers)
    return {f"engine_{number:02d}": one for number, one in zip(numbers, engines, strict=True)}


def judged(path: Path, scorers: Sequence[Scorer]) -> dict[str, Any]:
    """The verdict on a file of transcripts, which knows nothing but the file.

    bet_tokens, statistic_tokens: those after which a bet, and a statistic, decided; the statistics
    are looked at after every STEP tokens. None if they never did.
    """
    rows = read_transcripts(path)
    verdict: dict[str, Any] = {"file": path.stem}
    verdict["num_tokens"] = sum(len(row.output_token_ids) for row in rows)
    try:
        report = audit_transcripts(rows, *scorers)
    except NoVerdict as error:
        return verdict | {"finding": "no verdict", "verdict": "no verdict", "reason": str(error)}
    judgement = report.judgements[0]
    verdict |= {"finding": str(report.finding), "verdict": report.verdict}
    verdict |= {"cause": report.cause, "reason": judgement.reasons[0]}
    verdict |= {"bet_tokens": judgement.took, "bet": None, "statistic_tokens": None}
    wealth = judgement.comparison.wealth
    if wealth is not None and judgement.took is not None:
        verdict["bet"] = wealth.winner
    if report.finding is Finding.BIASED:
        arm = measure(rows, *scorers)
        for num_tokens in range(STEP, arm.num_tokens + STEP, STEP):
            statistics = arm.statistics(num_tokens)
            name = min(statistics, key=lambda one: statistics[one].p_value)
            if statistics[name].p_value < report.limit:
                verdict |= {"statistic_tokens": min(num_tokens, arm.num_tokens), "statistic": name}
                break
    return verdict


def write_all(engines: dict[str, HeldOut], folder: Path) -> None:
    """Let every engine write the answers that its file lacks."""
    pair = inputs.pair_of(EMBEDDED, None, "cpu", "float32")
    tokenizer = partial(inputs.tokenizer_of, EMBEDDED, "cpu", "float32")
    prompts = PromptSource(DATASET, PROMPT_TOKENS, tokenizer).prompts(PROMPTS)
    for name in progress_bar(sorted(engines), unit="engine"):
        one = engines[name]
        settings = Sampling(max_new_tokens=NEW_TOKENS, **one.settings)
        path = folder / f"{name}.jsonl"
        write_transcripts(one.make(name, pair), prompts * one.times, settings, path)


def judge_all(folder: Path) -> list[dict[str, Any]]:
    """The verdicts on all files of a folder, those that are written down and the others."""
    path = folder / "verdicts.json"
    verdicts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    scorers = pair_scorers(inputs.pair_of(EMBEDDED, None, "cpu", "float32"))
    known = {verdict["file"] for verdict in verdicts}
    files = [file for file in sorted(folder.glob("*.jsonl")) if file.stem not in known]
    for file in progress_bar(files, unit="file"):
        verdicts.append(judged(file, scorers))
        write_atomically(path, json.dumps(verdicts, indent=1) + "\n")
    return list(verdicts)


def joined(verdicts: Sequence[dict[str, Any]], engines: dict[str, HeldOut]) -> pd.DataFrame:
    """The verdicts with the names of the engines, in the order of HELD_OUT."""
    by_file = {verdict["file"]: verdict for verdict in verdicts}
    places = {id(one): place for place, one in enumerate(HELD_OUT)}
    rows = [
        {"engine": one.name, "is_exact": one.is_exact, "what": one.what} | by_file[name]
        for name, one in sorted(engines.items(), key=lambda item: places[id(item[1])])
    ]
    return pd.DataFrame(rows)


def decided(row: Any) -> str | None:
    """The number of tokens after which a bet or a statistic decided, and which of them did."""
    ways = [(row.bet_tokens, row.bet), (row.statistic_tokens, row.statistic)]
    known = [(tokens, way) for tokens, way in ways if not math.isnan(tokens)]
    if not known:
        return None
    tokens, way = min(known)
    return f"{tokens:,.0f}, {way}"


def page_of(frame: pd.DataFrame) -> str:
    """The table of all engines, and what it comes to."""
    texts = frame.cause.where(frame.cause.notna() & (frame.cause != ""))
    shown = {
        "engine": frame.engine,
        "it is": frame.is_exact.map({True: "exact", False: "faulty"}),
        "what is wrong, or odd": frame.what,
        "verdict": frame.verdict,
        "tokens, by": [decided(row) for row in frame.itertuples()],
        "likely cause": texts,
    }
    faulty, exact = frame[~frame.is_exact], frame[frame.is_exact]
    missed = faulty[faulty.finding != Finding.BIASED].engine
    accused = exact[exact.finding != Finding.NO_BIAS_SEEN].engine
    counts = (
        f"Counts: of {len(faulty)} faulty engines {len(faulty) - len(missed)} are called "
        f"biased; not: {', '.join(missed) or 'none'}. Of {len(exact)} exact engines "
        f"{len(exact) - len(accused)} are acquitted; not: {', '.join(accused) or 'none'}."
    )
    paragraphs = (
        "**Engines that were held out, judged blind**",
        printed_table(pd.DataFrame(shown)),
        counts,
        f"Tokens: those after which the bet or the statistic decided, of "
        f"{frame.num_tokens.min():,} to {frame.num_tokens.max():,}; statistics were looked at "
        f"after every {STEP}. –: none did.",
        "Made by: `python docs/studies/held_out.py`, on the embedded pair, at T = 1 where nothing "
        "else is said.",
    )
    return "\n\n".join(paragraphs) + "\n"


@in_one_line(GOES_ON)
def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = CommandParser(
        prog="python docs/studies/held_out.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder of the results"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # small matrices: see conf/profile/embedded.yaml
    stem = options.results / EMBEDDED / "held_out"
    engines = numbered(HELD_OUT)
    write_all(engines, stem)
    table = joined(judge_all(stem), engines).to_csv(index=False)
    page = page_of(pd.read_csv(io.StringIO(table)))  # as anybody reads it
    write_atomically(stem.with_suffix(".csv"), table)
    write_atomically(stem.with_suffix(".md"), page)
    sys.stdout.write(f"{page}\nwritten: {stem}.md\n")


if __name__ == "__main__":
    sys.exit(main())
