"""Tokens to be asked for, and the bias that so many show, said before anything is written."""

import math
from collections.abc import Iterator

from resispec.audit.verdict import MIN_TOKENS
from resispec.sampling import Sampling

SHIFT = 0.05
"""A shift toward the draft, as a total variation, for which the tokens it takes were measured."""
TAKES = {"with the draft's model": 817, "without": 4979}
"""The tokens after which that shift was found nine times in ten.

It was found by bets with the draft's model and by a z-score without, on the embedded pair, see
docs/transcripts.md.
"""


def planned_lines(settings: Sampling, num_prompts: int, num_arms: int) -> Iterator[str]:
    """Lines about the most tokens of a file, a warning among them if these are too few.

    num_arms: the arms (loads, starts, turns, contexts) in which every prompt is asked for; each is
    judged by itself. A shift half as large takes four times as many tokens.
    """
    tokens = num_prompts * settings.max_new_tokens
    arms = f" x {num_arms} arms" if num_arms > 1 else ""
    of_each = " of each arm" if num_arms > 1 else ""
    asked = (
        f"asks for at most {tokens * num_arms:,} tokens ({num_prompts} prompts x "
        f"{settings.max_new_tokens}{arms})"
    )
    if settings.temperature == 0:
        yield asked
    else:
        sizes = (
            f"{min(1.0, SHIFT * math.sqrt(takes / tokens)):.2g} {model}"
            for model, takes in TAKES.items()
        )
        yield (
            f"{asked}; on the embedded pair so many{of_each} show a shift toward the draft nine "
            f"times in ten from a total variation of {', '.join(sizes)}"
        )
    if tokens < MIN_TOKENS:
        least = math.ceil(MIN_TOKENS / settings.max_new_tokens)
        yield (
            f"warning: too few to acquit an engine, which takes {MIN_TOKENS:,} tokens{of_each}: "
            f"--num-prompts {least} or more, since answers may end early"
        )
