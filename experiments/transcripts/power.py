"""How many tokens does a bias take, and how often is an exact engine called biased? See docs/transcripts.md.

    python -m experiments.transcripts.power

Rows are drawn from known laws with the embedded pair (`experiments.transcripts.drawn`), rescored once, and
audited many times, by some of the rows each. Takes about 3 minutes on one core, and writes
RESULTS/embedded/transcripts_power.{csv,md}.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from analysis.report import Table, markdown, write
from experiments.bench.options import Options, count
from experiments.commands import in_one_line
from experiments.transcripts import models
from experiments.transcripts.drawn import LAWS, draw, exact
from experiments.transcripts.prompts import token_prompts
from resispec.audit.transcripts import Arm, Finding, Report, audit_arms, measure

PROMPT_TOKENS = 48
EXACT_DRAWS = 6
"""How often every prompt is continued by the exact law."""
ROWS = 40
"""Of an audit of exact rows."""
WITH_DRAFT = ("overdraft", "log(q/p)")
"""The statistics that need the draft."""
NOT_LINEAR = ("places", "pit")
"""Those whose z does not grow with the root of the number of tokens."""
NINE_IN_TEN = 1.2816
"""A normal variable is below this nine times in ten."""
LEAST_Z = 3.0
"""With less than this in all the rows, nothing is said about how many would be needed."""
LEVELS = (0.1, 0.01, 0.001)


def needed(arm: Arm, has_draft: bool) -> tuple[int | None, str | None]:
    """Tokens with which one statistic is beyond what is allowed nine times in ten, and which one."""
    allowed = audit_arms(arm).allowed_z
    names = NOT_LINEAR if has_draft else (*NOT_LINEAR, *WITH_DRAFT)
    found = {name: abs(one.z) for name, one in arm.statistics().items() if name not in names}
    best = max(found, key=lambda name: found[name])
    if found[best] < LEAST_Z:
        return None, None
    return math.ceil(arm.num_tokens * ((allowed + NINE_IN_TEN) / found[best]) ** 2), best


def power(name: str, arm: Arm, audits: int, generator: torch.Generator) -> dict[str, Any]:
    """The row of a biased law, with how many audits of rows with so many tokens found it.

    Audits are made where all rows hold twice as many tokens, or else they would share most of their rows.
    """
    (tokens, by), (without, by_without) = (needed(arm, has_draft) for has_draft in (True, False))
    row = {"engine": name, "rows": len(arm.transcripts), "all_tokens": arm.num_tokens}
    row |= {"tokens": tokens, "by": by, "tokens_without": without, "by_without": by_without}
    if tokens is None or tokens > arm.num_tokens / 2:
        return row
    number = math.ceil(tokens / arm.num_tokens * len(arm.transcripts))
    order = (torch.randperm(len(arm.transcripts), generator=generator) for _ in range(audits))
    reports = (audit_arms(arm.of_rows(rows[:number].tolist())) for rows in order)
    return row | {"audits": audits, "found": sum(one.finding is Finding.BIASED for one in reports)}


def exact_reports(
    arm: Arm, num_prompts: int, audits: int, is_paired: bool, generator: torch.Generator
) -> Iterator[Report]:
    """Audits of exact rows: ROWS prompts at random, each by one of its draws; paired: against another one.

    arm: EXACT_DRAWS times `num_prompts` rows.
    """
    for _ in range(audits):
        prompts = torch.randperm(num_prompts, generator=generator)[:ROWS]
        draws = torch.rand(EXACT_DRAWS, ROWS, generator=generator).argsort(0)[: 1 + is_paired]
        yield audit_arms(*(arm.of_rows((one * num_prompts + prompts).tolist()) for one in draws))


def false_alarms(name: str, arm: Arm, reports: Sequence[Report]) -> dict[str, Any]:
    """The row of an exact law: audits that called it biased, and the share of chances below LEVELS."""
    first = [report.judgements[0].comparison for report in reports]
    chances = torch.tensor([found.p_value for one in first for found in one.groups["all"].values()])
    row = {"engine": name, "rows": len(arm.transcripts), "all_tokens": arm.num_tokens, "audits": len(reports)}
    row["found"] = sum(any(one.finding is Finding.BIASED for one in report.judgements) for report in reports)
    row["audit_tokens"] = sum(one.tokens for one in first) / len(first)
    return row | {f"below_{level:g}": float((chances < level).double().mean()) for level in LEVELS}


def measured(num_prompts: int, audits: int) -> Iterator[dict[str, Any]]:
    """The rows of all laws, the exact one last."""
    pair = models.load("embedded", None, "cpu", "float32")
    target, draft = models.scorers("embedded", None, "cpu", "float32")
    found = token_prompts("embedded_reference", num_prompts, PROMPT_TOKENS, pair.tokenizer.encode)
    prompts = [prompt for prompt in found if len(prompt) == PROMPT_TOKENS]
    generator = torch.Generator().manual_seed(0)
    for seed, (name, law) in enumerate(LAWS.items(), start=EXACT_DRAWS):
        yield power(name, measure(draw(law, prompts, target, draft, seed), target, draft), audits, generator)
    rows = [row for seed in range(EXACT_DRAWS) for row in draw(exact, prompts, target, draft, seed)]
    arm = measure(rows, target, draft)
    kinds = ("exact", 10 * audits, False), ("exact, against a control", 4 * audits, True)
    for name, number, is_paired in kinds:
        reports = [*exact_reports(arm, len(prompts), number, is_paired, generator)]
        yield false_alarms(name, arm, reports)


def table_of(frame: pd.DataFrame) -> Table:
    """The table."""
    shown = pd.DataFrame(
        {
            "what the engine does unsaid": frame.engine,
            "tokens with the draft": [_number(value) for value in frame.tokens],
            "seen by": frame.by.fillna("–"),
            "tokens without": [_number(value) for value in frame.tokens_without],
            "by": frame.by_without.fillna("–"),
            "audits that found it": [
                "–" if pd.isna(found) else f"{found:.0f} of {audits:.0f}"
                for found, audits in zip(frame.found, frame.audits, strict=True)
            ],
        }
    )
    alone = frame[frame.engine == "exact"].iloc[0]
    below = ", ".join(f"{alone[f'below_{level:g}']:.2%} are below {level:.1%}" for level in LEVELS)
    notes = (
        "Tokens: with so many, one statistic alone deviates enough nine times in ten; the audits have as "
        "many. A bias half as large takes four times as many. "
        f"–: not seen in {frame.all_tokens.min():,} tokens.",
        f"False alarms: audits of {ROWS} exact rows ({alone.audit_tokens:,.0f} tokens); of the chances of "
        f"all their statistics {below}.",
        "Made by: `python -m experiments.transcripts.power`, on the embedded pair at T = 1.",
    )
    return Table("transcripts_power", frame, shown, 1, "Tokens that a bias takes, and false alarms", notes)


def _number(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:,.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 with one line when an option does not fit."""
    options = Options(__doc__, "cpu")
    options.add_argument(
        "--prompts", type=count, default=160, help="rows of a biased law; an exact one has more"
    )
    options.add_argument("--audits", type=count, default=100, help="of a biased law; an exact one has more")
    given = options.parse_args(arguments)
    torch.set_num_threads(1)  # small matrices: see conf/profile/embedded.yaml

    def work() -> int:
        laws = measured(given.prompts, given.audits)
        table = table_of(pd.DataFrame(tqdm(laws, total=len(LAWS) + 2, unit="law", dynamic_ncols=True)))
        write(table, given.results / "embedded", ("csv", "md"))
        sys.stdout.write(markdown(table))
        return 0

    return in_one_line(work, "stopped; nothing is written")


if __name__ == "__main__":
    sys.exit(main())
