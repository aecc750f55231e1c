"""Which algorithm emits the law that OpenVINO GenAI emits with a draft model? Hypotheses against counts.

    python -m experiments.engines.openvino_law

It is about the three tokens of `openvino_reproduction`, the second of which is drafted. A hypothesis gives
the exact law of the first two by enumeration, for a chi-square over 16 values. `replay` is what the source
says, run with the random numbers of the engine's seed: it gives the three tokens themselves.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from experiments.engines.openvino_reproduction import (
    DRAFT,
    PROMPT,
    TARGET,
    open_pipeline,
    three_tokens,
    write_model,
)
from resispec.audit.chi_square import ChiSquare, chi_square

P, Q = (np.exp(np.log(laws).astype(np.float16), dtype=np.float64) for laws in (TARGET, DRAFT))
P, Q = (laws / laws.sum(1, keepdims=True) for laws in (P, Q))
"""The laws of target and draft after each token, (4, 4), as float16 logits give them."""

_LAWS = {"target": TARGET, "draft": DRAFT}

# What r is compared with, (4, 4, 4): by the token before, the drafted token, and what the target draws there.
OWN = (P / Q)[:, :, None]
INVERSE = (Q / P)[:, :, None]
MIXED = Q[:, :, None] / P[:, None, :]
# What is drawn from after a rejection, (4, 4, 4): by the token before and the drafted token.
RESIDUAL = np.maximum(P - Q, 0)[:, None, :] / np.maximum(P - Q, 0).sum(1)[:, None, None]
HERE = P[:, None, :]
LATER = P[None, :, :]


@dataclass(frozen=True)
class Hypothesis:
    """An algorithm for the second token: r <= ratio keeps the drafted one, else one is drawn from redraw.

    is_grid: r is one of 0, 0.01, ..., 1; otherwise uniform from 0 to 1. is_shared: the number that drew the
    first token draws the drafted one as well.
    """

    name: str
    ratio: np.ndarray = field(default_factory=lambda: OWN)
    redraw: np.ndarray = field(default_factory=lambda: RESIDUAL)
    is_grid: bool = False
    is_shared: bool = False

    def law(self) -> np.ndarray:
        """The exact law of the first two tokens, (4, 4)."""
        drafted = self._drafted()
        chance = np.minimum(1, (np.floor(100 * self.ratio) + 1) / 101 if self.is_grid else self.ratio)
        kept = drafted * (P[:, None, :] * chance).sum(-1)
        redraw = np.broadcast_to(self.redraw, (4, 4, 4))
        second = kept + np.einsum("bx,bxt->bt", drafted - kept, redraw)
        return P[PROMPT][:, None] * second

    def _drafted(self) -> np.ndarray:
        """The law of the drafted token for each first one, (4, 4)."""
        if not self.is_shared:
            return Q
        high, cuts = np.cumsum(P[PROMPT])[:, None], np.cumsum(Q, 1)
        low = high - P[PROMPT][:, None]
        overlap = np.minimum(cuts, high) - np.maximum(cuts - Q, low)
        return np.maximum(overlap, 0) / P[PROMPT][:, None]


HYPOTHESES = (
    Hypothesis("speculative sampling"),
    Hypothesis("one stream of random numbers", is_shared=True),
    Hypothesis("r is one of 101 values", is_grid=True),
    Hypothesis("ratio q/p of the drafted token", INVERSE),
    Hypothesis("ratio q(drafted) / p(drawn)", MIXED),
    Hypothesis("target's law here after a rejection", redraw=HERE),
    Hypothesis("target's law one place on after a rejection", redraw=LATER),
    Hypothesis("that ratio, law here, one stream", MIXED, HERE, True, True),
    Hypothesis("that ratio, law one place on, two streams", MIXED, LATER, True),
    Hypothesis("that ratio, law one place on, one stream", MIXED, LATER, True, True),
)
"""Speculative sampling first; the source last."""


def replay(seed: int) -> list[int]:
    """The three tokens that the source, as docs/openvino.md reads it, gives under a seed."""
    numbers = np.random.RandomState(seed)  # which std::mt19937 of C++ equals, state by state
    bits = [int(number) for number in numbers.randint(0, 2**32, 5, dtype=np.uint32)]
    uniforms = [np.float32(number) / np.float32(2**32) for number in bits]
    first = _drawn(P[PROMPT], uniforms[0])
    drafted = _drawn(Q[first], uniforms[0])  # the draft's generator begins with the same seed
    drawn = _drawn(P[first], uniforms[1])
    if (bits[2] * 101 >> 32) / 100 <= MIXED[first, drafted, drawn]:
        return [first, drafted, _drawn(P[drafted], uniforms[3])]
    # Then the target reads past the last token: a hidden state of zeros, and all tokens are as likely.
    return [first, _drawn(P[drafted], uniforms[3]), _drawn(np.full(4, 0.25), uniforms[4])]


def _drawn(law: np.ndarray, uniform: np.float32) -> int:
    return min(int(np.searchsorted(np.cumsum(law), uniform, side="right")), len(law) - 1)


def fit(law: np.ndarray, tokens: np.ndarray) -> ChiSquare:
    """How far counted tokens (n, 3) are from a law (4, 4) of the first two."""
    laws = torch.from_numpy(law.reshape(1, -1)).expand(len(tokens), -1)
    return chi_square(laws, torch.from_numpy(tokens[:, 0] * len(law) + tokens[:, 1]))


def count_tokens(num_seeds: int) -> dict[str, np.ndarray]:
    """What the engine emits under seeds 0, 1, ..., (num_seeds, 3), without and with a draft model."""
    with tempfile.TemporaryDirectory() as folder:
        target, draft = (write_model(Path(folder) / name, laws) for name, laws in _LAWS.items())
        return {
            "without a draft model": three_tokens(open_pipeline(target), range(num_seeds), 0),
            "with a draft model": three_tokens(open_pipeline(target, draft), range(num_seeds), 1),
        }


def main(num_seeds: int = 2000) -> int:
    """The command."""
    found = count_tokens(num_seeds)
    exact = HYPOTHESES[0].law()
    for name, tokens in found.items():
        sys.stdout.write(f"{name}, against the target's law: {_row(fit(exact, tokens))}\n")
    tokens = found["with a draft model"]
    for hypothesis in HYPOTHESES:
        sys.stdout.write(f"  {hypothesis.name:<44} {_row(fit(hypothesis.law(), tokens))}\n")
    again = np.array([replay(seed) for seed in range(num_seeds)])
    equal = int((again == tokens).sum())
    sys.stdout.write(f"replay of the source: {equal} of {tokens.size} tokens equal\n")
    return 0


def _row(found: ChiSquare) -> str:
    return (
        f"chi-square {found.statistic:8.1f} with {found.degrees} degrees of freedom, p = {found.p_value:.2g}"
    )


if __name__ == "__main__":
    sys.exit(main())
