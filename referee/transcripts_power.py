"""How many tokens does a bias take, and how often is an exact engine called biased? See
docs/transcripts.md.

    python -m referee.transcripts_power

Rows are drawn from known laws with the embedded pair, rescored once, and audited many times, by
some of the rows each. The same rows are given to bets, which end as soon as their e-value is large
enough: a shift to the draft of total variation .05 takes them half of the tokens, and a cut tail of
.05 an eighth. No audit calls exact rows biased. Takes about 8 minutes on one core with 100 audits,
and writes RESULTS/embedded/transcripts_power.{csv,md}.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from referee import inputs
from referee.audit import Arm, Finding, Transcript, audit_arms, measure
from referee.audit.comparisons import BET_RATE
from referee.audit.own_check import draw
from referee.prompts import PromptSource
from referee.transcripts import INDEX
from resispec.errors import CommandParser, in_one_line
from resispec.files import write_atomically
from resispec.progress import progress_bar
from resispec.sampling import Sampling

PROMPT_TOKENS, NEW_TOKENS = 48, 64
EXACT_DRAWS = 6
"""Continuations of every prompt by the exact law."""
ROWS = 40
"""Rows of an audit of exact rows."""
WITH_DRAFT = ("overdraft", "log(q/p)")
NOT_LINEAR = ("places", "pit", "repeats", "first tokens")
"""Statistics whose z does not grow with the root of the number of tokens: families among them."""
LEAST_Z = 3.0
"""Least z in all the rows from which a number of tokens is told."""
LEVELS = (0.1, 0.01, 0.001)


def cut(**settings: float):
    """With top_k, top_p or min_p."""
    return lambda p, _q, _emitted, _eos: Sampling(**settings).law(p)


def tempered(temperature: float):
    """Another temperature."""
    return lambda p, _q, _emitted, _eos: (p / temperature).softmax(-1)


def toward_draft(variation: float):
    """p + l (q - p), at this total variation from p, or at q where that is nearer."""

    def law(logits, draft_logits, _emitted, _eos):
        p, q = logits.softmax(-1), draft_logits.softmax(-1)
        share = variation / (p - q).clamp_min(0).sum(-1, keepdim=True)
        return p + share.clamp_max(1) * (q - p)

    return law


def repeating_less(p, _q, emitted, _eos):
    """A presence penalty of 0.5."""
    return (p - 0.5 * torch.zeros_like(p).scatter_(1, emitted, 1.0)).softmax(-1)


LAWS = {
    "top-k of 50": cut(top_k=50),
    "top-p of 0.95": cut(top_p=0.95),
    "temperature of 0.9": tempered(0.9),
    "temperature of 0.95": tempered(0.95),
    "toward the draft, TV .10": toward_draft(0.10),
    "toward the draft, TV .05": toward_draft(0.05),
    "toward the draft, TV .02": toward_draft(0.02),
    "presence penalty of 0.5": repeating_less,
    "sequences never end": lambda p, _q, _e, eos: p.index_fill(
        1, torch.tensor(eos), -torch.inf
    ).softmax(-1),
    "logits rounded to bfloat16": lambda p, _q, _emitted, _eos: p.bfloat16().float().softmax(-1),
}
"""Laws that an engine may have where the rows say that it samples from the target's own."""


def drawn(law, prompts, scorers, seed: int) -> list[Transcript]:
    """A transcript of every prompt by a law of logits, emitted tokens and ends of sequence."""
    eos, generator = scorers[0].eos_token_ids, torch.Generator().manual_seed(seed)
    given = prompts, scorers, NEW_TOKENS, generator
    answers = draw(lambda logits, emitted: law(*logits, emitted, eos), *given)
    pairs = zip(prompts, answers, strict=True)
    return [Transcript(prompt, tokens, finish_reason=reason) for prompt, (tokens, reason) in pairs]


def needed(arm: Arm, unused: tuple[str, ...]) -> tuple[int | None, str | None]:
    """Tokens with which one statistic is beyond the limit nine times in ten, and which one."""
    scores = {name: abs(one.z) for name, one in arm.statistics().items() if name not in unused}
    best = max(scores, key=scores.get)
    if scores[best] < LEAST_Z:
        return None, None
    return math.ceil(
        arm.num_tokens * ((audit_arms(arm).allowed_z + 1.2816) / scores[best]) ** 2
    ), best


def asked(arm: Arm, rows: Sequence[int]) -> Arm:
    """An arm of the given rows, asked for in the given order, which says so."""
    part = arm.of_rows(rows)
    numbered = [replace(row, extra={INDEX: n}) for n, row in enumerate(part.transcripts)]
    return replace(part, transcripts=numbered)


def bet(arm: Arm, audits: int, generator: torch.Generator) -> tuple[int | None, str | None]:
    """Tokens after which bets are over nine times in ten, and the bet that then wins.

    None if that takes more than half of the tokens, since audits would share most of their rows.
    """
    ends, winners = [], Counter()
    for _ in range(audits):
        rows = torch.randperm(len(arm.transcripts), generator=generator).tolist()
        wealth = asked(arm, rows).wealth
        took = None if wealth is None else wealth.took(1 / BET_RATE)
        ends.append(math.inf if took is None else took)
        winners.update([wealth.winner] if took else [])
    end = sorted(ends)[math.ceil(0.9 * audits) - 1]
    if end > arm.num_tokens / 2:
        return None, None
    return end, winners.most_common(1)[0][0]


def power(name: str, arm: Arm, audits: int, generator: torch.Generator) -> dict[str, Any]:
    """The row of a biased law, with how many audits of rows with so many tokens found it.

    Audits are made where all rows hold twice as many tokens, or else they would share most of their
    rows.
    """
    (tokens, by), (without, by_without) = (
        needed(arm, NOT_LINEAR),
        needed(arm, NOT_LINEAR + WITH_DRAFT),
    )
    row = {"engine": name, "rows": len(arm.transcripts), "all_tokens": arm.num_tokens}
    row |= {"tokens": tokens, "by": by, "tokens_without": without, "by_without": by_without}
    row |= dict(zip(("bet_tokens", "bet"), bet(arm, audits, generator), strict=True))
    if tokens is None or tokens > arm.num_tokens / 2:
        return row
    number = math.ceil(tokens / arm.num_tokens * len(arm.transcripts))
    order = (torch.randperm(len(arm.transcripts), generator=generator) for _ in range(audits))
    reports = (audit_arms(asked(arm, rows[:number].tolist())) for rows in order)
    return row | {
        "audits": audits,
        "found": sum(report.finding is Finding.BIASED for report in reports),
    }


def false_alarms(name: str, arm: Arm, audits: int, num_arms: int, generator) -> dict[str, Any]:
    """The row of the exact law: how many audits of ROWS prompts call it biased.

    num_arms: 1, or 2 for audits against a control.
    """
    num_prompts, reports = len(arm.transcripts) // EXACT_DRAWS, []
    for _ in range(audits):
        prompts = torch.randperm(num_prompts, generator=generator)[:ROWS]
        draws = torch.rand(EXACT_DRAWS, ROWS, generator=generator).argsort(0)[:num_arms]
        reports.append(
            audit_arms(*(asked(arm, (one * num_prompts + prompts).tolist()) for one in draws))
        )
    first = [report.judgements[0].comparison for report in reports]
    chances = torch.tensor([one.p_value for found in first for one in found.groups["all"].values()])
    row = {
        "engine": name,
        "rows": len(arm.transcripts),
        "all_tokens": arm.num_tokens,
        "audits": audits,
    }
    row["found"] = sum(
        any(one.finding is Finding.BIASED for one in report.judgements) for report in reports
    )
    row["audit_tokens"] = sum(one.tokens for one in first) / len(first)
    return row | {f"below_{level:g}": float((chances < level).double().mean()) for level in LEVELS}


def prompts_of(target: str, number: int) -> list[tuple[int, ...]]:
    """The first PROMPT_TOKENS ids of texts, without those of shorter ones among `number`."""
    tokenizer = partial(inputs.tokenizer_of, target, "cpu", "float32")
    prompts = PromptSource("embedded_reference", PROMPT_TOKENS, tokenizer).prompts(number)
    return [prompt for prompt in prompts if len(prompt) == PROMPT_TOKENS]


def measured(num_prompts: int, audits: int) -> Iterator[dict[str, Any]]:
    """The rows of all laws, the exact one last."""
    scorers = inputs.scorers("embedded", None, "cpu", "float32")
    prompts = prompts_of("embedded", num_prompts)
    generator = torch.Generator().manual_seed(0)
    for seed, (name, law) in enumerate(LAWS.items(), start=EXACT_DRAWS):
        yield power(name, measure(drawn(law, prompts, scorers, seed), *scorers), audits, generator)
    exact = [
        row for seed in range(EXACT_DRAWS) for row in drawn(tempered(1.0), prompts, scorers, seed)
    ]
    arm = measure(exact, *scorers)
    yield false_alarms("exact", arm, 10 * audits, 1, generator)
    yield false_alarms("exact, against a control", arm, 4 * audits, 2, generator)


def table_of(frame: pd.DataFrame) -> str:
    """A row for every law, in Markdown."""
    headers = {
        "engine": "what the engine does unsaid",
        "tokens": "tokens, draft known",
        "by": "by statistic",
    }
    headers |= {
        "bet_tokens": "tokens by bets, draft known",
        "bet": "by the bet on",
        "tokens_without": "tokens, draft unknown",
        "by_without": "by the statistic",
        "ratio": "audits that found it",
    }
    ratios = frame.found.map("{:.0f}".format) + " of " + frame.audits.map("{:.0f}".format)
    shown = frame.assign(ratio=ratios.where(frame.found.notna()))[list(headers)]
    for name in ("tokens", "bet_tokens", "tokens_without"):
        shown[name] = shown[name].map("{:,.0f}".format, na_action="ignore")
    return printed_table(shown.rename(columns=headers))


def printed_table(shown: pd.DataFrame) -> str:
    """A table in Markdown: names at the left, numbers at the right, a dash for what is missing."""
    shown = shown.astype(object)
    shown = shown.where(shown.notna(), "–")
    sides = ("left", *["right"] * (shown.shape[1] - 1))
    return shown.to_markdown(index=False, colalign=sides, disable_numparse=True)


def page_of(frame: pd.DataFrame) -> str:
    """The table of all laws, and its notes."""
    alone = frame[frame.engine == "exact"].iloc[0]
    below = ", ".join(f"{alone[f'below_{level:g}']:.2%} are below {level:.1%}" for level in LEVELS)
    paragraphs = (
        "**Tokens that a bias takes, and false alarms**",
        table_of(frame),
        "Tokens: with so many, the named statistic alone deviates enough nine times in ten. The "
        "audits have as many, and know the draft. Tokens by bets: nine times in ten the e-value is "
        "large enough after so many, at the latest, if one looks after every token. A z-score may "
        "be looked at only once, at a number of tokens that was fixed before. A bias half as large "
        "takes four times as many. –: in all tokens that were drawn, "
        f"{frame.all_tokens.min():,} or more, no statistic deviates enough to tell a number. Bets "
        "and audits that would take more than half of these tokens have a –, too.",
        f"False alarms: audits of {ROWS} exact rows ({alone.audit_tokens:,.0f} tokens); of the "
        f"chances of all their statistics {below}.",
        "Made by: `python -m referee.transcripts_power`, on the embedded pair at T = 1.",
    )
    return "\n\n".join(paragraphs) + "\n"


@in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = CommandParser(
        prog="python -m referee.transcripts_power",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder of the results"
    )
    help_text = "rows of a biased law; an exact one has more"
    parser.add_argument("--prompts", type=inputs.count, default=160, help=help_text)
    help_text = "of a biased law; an exact one has more"
    parser.add_argument("--audits", type=inputs.count, default=100, help=help_text)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # small matrices: see conf/profile/embedded.yaml
    rows = measured(options.prompts, options.audits)
    frame = pd.DataFrame(progress_bar(rows, total=len(LAWS) + 2, unit="law"))
    stem, page = options.results / "embedded" / "transcripts_power", page_of(frame)
    write_atomically(stem.with_suffix(".csv"), frame.to_csv(index=False))
    write_atomically(stem.with_suffix(".md"), page)
    sys.stdout.write(f"{page}\nwritten: {stem}.md\n")


if __name__ == "__main__":
    sys.exit(main())
