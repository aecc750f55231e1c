"""How many tokens do bets take, and do the certificate's bounds hold? See docs/transcripts.md.

    python -m referee.bets_power
    python -m referee.bets_power --strays-of MODEL

Tokens are drawn independently from known laws: those of the embedded pair in its prompts, and what
a faulty engine makes of them. Audits stop as soon as the e-value is large enough. MODEL is a folder
or a hub name of another target, in whose laws stray tokens are planted, too. Takes about 5 minutes
on one core, and writes RESULTS/embedded/bets_power.{csv,md}.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Generator, Tensor

from referee import inputs
from referee.audit import alternatives, bets
from referee.audit.comparisons import BET_RATE, FALSE_ALARM_RATE
from referee.rescoring import Scorer
from referee.transcripts_power import printed_table, prompts_of
from resispec.draws import Draws
from resispec.errors import CommandParser, in_one_line
from resispec.files import write_atomically
from resispec.progress import progress_bar
from resispec.verifiers import get_rule

FIRST = 8
DRAWS = 300
"""Tokens that are drawn from each law; audits take theirs from these."""
PIECE = 32
"""Laws that are worked on at a time."""
LIMIT = 1 / BET_RATE
STRETCH = 100
"""Contexts in a row that share a bias which comes and goes."""
SIBLINGS, TUPLES = 3, 48
"""Drafted siblings of ResiSpec, and drafted tuples whose mean is its law."""


@dataclass(frozen=True)
class ContextLaws:
    """The laws of many contexts, (C, V) float64.

    target, draft: logits; draft is None without a draft model. eos: ends of sequence.
    """

    target: Tensor
    draft: Tensor | None
    eos: tuple[int, ...]

    @property
    def p(self) -> Tensor:
        """The target's laws."""
        return self.target.softmax(-1)

    @property
    def q(self) -> Tensor:
        """The draft's laws."""
        assert self.draft is not None
        return self.draft.softmax(-1)


Law = Callable[[ContextLaws], Tensor]
"""A function from laws to what an engine emits in their place, (C, V)."""


def toward_draft(variation: float) -> Law:
    """p + l (q - p), with one l for all contexts, of this mean total variation; away if < 0."""

    def law(laws: ContextLaws) -> Tensor:
        p, q = laws.p, laws.q
        share = variation / float((p - q).clamp_min(0).sum(-1).mean())
        return (p + share * (q - p)).clamp_min(0)

    return law


def with_strays(number: int) -> Law:
    """One token in `number` is any id of the vocabulary."""
    return lambda laws: laws.p * (1 - 1 / number) + 1 / number / laws.p.shape[-1]


def tempered(temperature: float) -> Law:
    """Another temperature."""
    return lambda laws: (laws.target / temperature).softmax(-1)


def cut(count: int) -> Law:
    """With top_k."""
    return lambda laws: laws.p * (laws.p >= laws.p.topk(count).values[:, -1:])


def endless(laws: ContextLaws) -> Tensor:
    """Sequences never end."""
    return laws.p.index_fill(1, torch.tensor(laws.eos), 0.0)


def exact(laws: ContextLaws) -> Tensor:
    """The target's laws."""
    return laws.p


def rounded(laws: ContextLaws) -> Tensor:
    """Logits in bfloat16."""
    return laws.target.bfloat16().double().softmax(-1)


PLANTS: dict[str, tuple[Law, int]] = {
    "toward the draft, TV .10": (toward_draft(0.1), 2_000),
    "toward the draft, TV .05": (toward_draft(0.05), 4_000),
    "toward the draft, TV .02": (toward_draft(0.02), 12_000),
    "toward the draft, TV .01": (toward_draft(0.01), 30_000),
    "away from the draft, TV .05": (toward_draft(-0.05), 10_000),
    "one stray token in 200": (with_strays(200), 20_000),
    "top-k of 50": (cut(50), 1_000),
    "temperature of 0.9": (tempered(0.9), 3_000),
    "temperature of 1.05": (tempered(1.05), 8_000),
    "sequences never end": (endless, 20_000),
    "logits rounded to bfloat16": (rounded, 40_000),
}
"""Laws of engines, and the most tokens of an audit of each."""
EXACT_TOKENS = 40_000


def laws_of(scorers: Sequence[Scorer], prompts: Sequence[Sequence[int]]) -> ContextLaws:
    """The laws of a target, and of its draft if there is one, after FIRST and more tokens."""
    tokens = torch.tensor(prompts)
    logits = []
    for scorer in scorers:
        parts = [part for _, part in scorer.pieces(tokens, (FIRST, tokens.shape[1]))]
        logits.append(torch.cat(parts, 1).flatten(0, 1).double())
    return ContextLaws(logits[0], logits[1] if len(logits) > 1 else None, scorers[0].eos_token_ids)


def drawn(
    laws: ContextLaws, law: Law, generator: Generator
) -> tuple[Sequence[str], Tensor, Tensor]:
    """Names of alternatives, their ratios (C, DRAWS, A), and terms of every set (C, DRAWS, E)."""
    columns: list[list[Tensor]] = [[], []]
    names: Sequence[str] = ()
    emitted = law(laws)
    for first in range(0, len(emitted), PIECE):
        piece = slice(first, first + PIECE)
        # in float64, since cumulative sums in float32 lose the mass of single strays
        tokens = torch.multinomial(emitted[piece], DRAWS, True, generator=generator)
        q = None if laws.draft is None else laws.draft[piece].softmax(-1)
        p = laws.target[piece].softmax(-1)
        parts = alternatives.bet_terms(p, tokens, q, laws.eos)
        names = [*parts[0]]
        for column, part in zip(columns, parts, strict=True):
            column.append(torch.stack([*part.values()], -1))
    return names, torch.cat(columns[0]), torch.cat(columns[1])


def audits(
    engine: str, laws: ContextLaws, law: Law, num_tokens: int, number: int, generator: Generator
) -> dict[str, Any]:
    """The row of an engine: after how many tokens its audits ended."""
    names, ratios, _ = drawn(laws, law, generator)
    ends, winners = [], Counter[str]()
    for _ in range(number):
        context = torch.randint(len(ratios), (num_tokens,), generator=generator)
        place = torch.randint(DRAWS, (num_tokens,), generator=generator)
        wealth = bets.wealth_of(names, ratios[context, place])
        took = wealth.took(LIMIT)
        ends.append(math.inf if took is None else took)
        if took is not None:
            winners[wealth.winner] += 1
    median, ninth = (sorted(ends)[math.ceil(share * number) - 1] for share in (0.5, 0.9))
    row = {"engine": engine, "audits": number, "audit_tokens": num_tokens}
    row |= {"found": sum(map(math.isfinite, ends)), "vocabulary": laws.target.shape[-1]}
    row |= {
        name: value if math.isfinite(value) else None
        for name, value in (("median", median), ("nine_in_ten", ninth))
    }
    return row | {"bet": winners.most_common(1)[0][0] if winners else None}


def varying(laws: ContextLaws) -> Tensor:
    """A bias of a fifth toward the draft, in every other stretch of STRETCH contexts."""
    share = 0.2 * (torch.arange(len(laws.target)) // STRETCH % 2)[:, None]
    return laws.p + share * (laws.q - laws.p)


def resispec(laws: ContextLaws) -> Tensor:
    """The mean law of the rule `resispec` over TUPLES tuples of SIBLINGS drafted tokens."""
    rule, generator = get_rule("resispec"), torch.Generator().manual_seed(0)
    emitted = []
    for p, q in zip(laws.p, laws.q, strict=True):
        siblings = torch.multinomial(q.expand(TUPLES, -1), SIBLINGS, True, generator=generator)
        wide = p.expand(TUPLES, -1), q.expand(TUPLES, -1)
        law = rule.law(*wide, siblings, Draws.IID)
        rest = (1 - law.select.sum(-1, keepdim=True)) * law.residual
        emitted.append(rest.scatter_add(-1, siblings, law.select).mean(0))
    return torch.stack(emitted)


def coverage(
    engine: str, laws: ContextLaws, law: Law, num_tokens: int, number: int, generator: Generator
) -> dict[str, Any]:
    """The row of an engine: in how many audits all bounds hold at every number of tokens.

    In a text, contexts come in order, so a bias that depends on them comes and goes.
    """
    _, _, terms = drawn(laws, law, generator)
    p, q, emitted = laws.p, laws.q, law(laws)
    tail = p.sort(-1).values
    sets = {
        alternatives.DRAFT_SET: q > p,
        alternatives.TAIL_SET: p < alternatives.tail_edge(tail, tail.cumsum(-1), alternatives.TAIL),
    }
    truths = [((emitted - p) * members).sum(-1) for members in sets.values()]
    held, ends = 0, []
    confidence = 1 - (1 - bets.CONFIDENCE) / len(sets)
    for _ in range(number):
        start = int(torch.randint(len(p), (), generator=generator))
        context = (start + torch.arange(num_tokens)) % len(p)
        place = torch.randint(DRAWS, (num_tokens,), generator=generator)
        values = terms[context, place]
        is_held = True
        for name, truth, column in zip(sets, truths, values.T, strict=True):
            means = truth[context].cumsum(0) / torch.arange(1, num_tokens + 1)
            given = alternatives.LARGEST_MASS[name], confidence
            is_held &= not bool(bets.is_excluded(column, means, *given).any())
        held += is_held
        if len(ends) < 50:
            ends.append(bets.excess_of(values[:, 0], 1.0, confidence))
    row = {"engine": engine, "audits": number, "audit_tokens": num_tokens, "held": held}
    return row | {
        "excess": float(truths[0].mean()),
        "low": sum(end.low for end in ends) / len(ends),
        "high": sum(end.high for end in ends) / len(ends),
    }


BOUNDS: dict[str, Law] = {
    "exact": exact,
    "toward the draft in every other stretch of the text": varying,
    "ResiSpec, 3 siblings": resispec,
}
"""Engines whose certificates are checked."""


def model_laws(model: str, num_prompts: int) -> ContextLaws:
    """The laws of a target in texts of the package."""
    prompts = prompts_of(model, num_prompts)
    return laws_of(inputs.scorers(model, None, "cpu", "float32"), prompts)


def measured(num_prompts: int, number: int, model: str | None) -> Iterator[dict[str, Any]]:
    """All rows: those of plants, of stray tokens of another model, and of certificates.

    number: of audits of a plant; twice as many of exact tokens, five times of certificates.
    """
    laws, generator = model_laws(inputs.EMBEDDED, num_prompts), torch.Generator().manual_seed(0)
    for engine, (law, num_tokens) in PLANTS.items():
        yield audits(engine, laws, law, num_tokens, number, generator)
    yield audits("exact", laws, exact, EXACT_TOKENS, 2 * number, generator)
    if model is not None:
        others = model_laws(model, max(1, num_prompts // 4))
        for every in (200, 750, 2000):
            law = with_strays(every)
            yield audits(
                f"one stray token in {every}, {others.target.shape[-1]:,} ids",
                others, law, 10_000, number // 2, generator,
            )  # fmt: skip
    for engine, law in BOUNDS.items():
        yield coverage(engine, laws, law, 4_000, 5 * number, generator)


def whole(numbers: pd.Series) -> pd.Series:
    """Numbers without decimals; missing ones stay missing."""
    return numbers.map("{:,.0f}".format, na_action="ignore")


def page_of(frame: pd.DataFrame) -> str:
    """Both tables, and their notes."""
    bias, bounds = frame[frame.held.isna()], frame[frame.held.notna()]
    ratio = whole(bias.found) + " of " + whole(bias.audits)
    shown = {
        "what the engine does unsaid": bias.engine,
        "tokens, half of the time": whole(bias["median"]),
        "nine times in ten": whole(bias.nine_in_ten),
        "found": ratio + " in " + whole(bias.audit_tokens),
        "by the bet on": bias.bet,
    }
    held = {
        "engine": bounds.engine,
        "excess on what the draft overrates": bounds.excess.map("{:.3f}".format),
        "mean bounds": bounds.low.map("{:.3f}".format) + " to " + bounds.high.map("{:.3f}".format),
        "audits whose bounds hold": whole(bounds.held) + " of " + whole(bounds.audits),
    }
    paragraphs = (
        "**Tokens that bets take, and bounds that hold**",
        printed_table(pd.DataFrame(shown)),
        f"An audit ends when its e-value is {LIMIT:,.0f}, which an exact engine ever reaches with "
        f"probability {BET_RATE:g}; z-scores have the rest of {FALSE_ALARM_RATE:g}. –: not seen "
        "that often.",
        printed_table(pd.DataFrame(held)),
        f"Bounds hold if they have the mean excess at every one of "
        f"{bounds.audit_tokens.max():,.0f} tokens, on both sets; {bets.CONFIDENCE:.0%} of audits "
        "must have that.",
        "Made by: `python -m referee.bets_power`, on laws of the embedded pair at T = 1; with "
        "`--strays-of` a folder of SmolLM2-135M, for its vocabulary.",
    )
    return "\n\n".join(paragraphs) + "\n"


@in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = CommandParser(
        prog="python -m referee.bets_power",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder of the results"
    )
    parser.add_argument("--prompts", type=inputs.count, default=24, help="whose laws are taken")
    help_text = "of a biased law; an exact one has more"
    parser.add_argument("--audits", type=inputs.count, default=200, help=help_text)
    parser.add_argument("--strays-of", metavar="MODEL", help="a folder or a hub name")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # small matrices: see conf/profile/embedded.yaml
    rows = measured(options.prompts, options.audits, options.strays_of)
    frame = pd.DataFrame(progress_bar(rows, unit="engine"))
    stem, page = options.results / "embedded" / "bets_power", page_of(frame)
    write_atomically(stem.with_suffix(".csv"), frame.to_csv(index=False))
    write_atomically(stem.with_suffix(".md"), page)
    sys.stdout.write(f"{page}\nwritten: {stem}.md\n")


if __name__ == "__main__":
    sys.exit(main())
