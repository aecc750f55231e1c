"""Which algorithm emits the law that OpenVINO GenAI emits with a draft model? Hypotheses against
counts.

    python docs/studies/openvino_law.py

It is about the three tokens of `openvino_reproduction`, the second of which is drafted. A
hypothesis gives the exact law of the first two by enumeration, for a chi-square over 16 values;
`replay` runs the source, as docs/studies/openvino.md reads it, with the random numbers of the
engine's seed. Found, in 2026.4.1 under 2,000 seeds: nine of the ten hypotheses have p < 1e-6 and
the source's has not; all its tokens are replayed.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from openvino_reproduction import DRAFT, PROMPT, TARGET, open_pipeline, three_tokens, write_model

from resispec.audit.chi_square import chi_square

P, Q = (np.exp(np.log(laws).astype(np.float16), dtype=np.float64) for laws in (TARGET, DRAFT))
P, Q = (laws / laws.sum(1, keepdims=True) for laws in (P, Q))
"""The laws of target and draft after each token, (4, 4), as float16 logits give them."""

# The ratio that keeps a draft, (4, 4, 4): by the token before, the drafted token, and the target's
# own draw.
OWN, INVERSE, MIXED = (P / Q)[:, :, None], (Q / P)[:, :, None], Q[:, :, None] / P[:, None, :]
# The law after a rejection, (4, 4, 4): by the token before and the drafted token.
RESIDUAL = np.maximum(P - Q, 0)[:, None, :] / np.maximum(P - Q, 0).sum(1)[:, None, None]
HERE, LATER = P[:, None, :], P[None, :, :]
# ratio, law after a rejection, is r one of 101 values?, does one number draw both tokens?
HYPOTHESES = {
    "speculative sampling": (OWN, RESIDUAL, False, False),
    "one stream of random numbers": (OWN, RESIDUAL, False, True),
    "r is one of 101 values": (OWN, RESIDUAL, True, False),
    "ratio q/p of the drafted token": (INVERSE, RESIDUAL, False, False),
    "ratio q(drafted) / p(drawn)": (MIXED, RESIDUAL, False, False),
    "target's law here after a rejection": (OWN, HERE, False, False),
    "target's law one place on after a rejection": (OWN, LATER, False, False),
    "that ratio, law here, one stream": (MIXED, HERE, True, True),
    "that ratio, law one place on, two streams": (MIXED, LATER, True, False),
    "that ratio, law one place on, one stream": (MIXED, LATER, True, True),
}
"""Algorithms for the second token; the source's last."""


def law_of(ratio, redraw, is_grid, is_shared):
    """The exact law of the first two tokens, (4, 4): r <= ratio keeps the drafted one,
    else redraw.
    """
    high, cuts = np.cumsum(P[PROMPT])[:, None], np.cumsum(Q, 1)
    overlap = np.minimum(cuts, high) - np.maximum(cuts - Q, high - P[PROMPT][:, None])
    drafted = np.maximum(overlap, 0) / P[PROMPT][:, None] if is_shared else Q
    chance = np.minimum(1, (np.floor(100 * ratio) + 1) / 101 if is_grid else ratio)
    kept = drafted * (P[:, None, :] * chance).sum(-1)
    second = kept + np.einsum("bx,bxt->bt", drafted - kept, np.broadcast_to(redraw, (4, 4, 4)))
    return P[PROMPT][:, None] * second


def replay(seed):
    """The three tokens that the source gives under a seed."""
    numbers = np.random.RandomState(seed)  # which std::mt19937 of C++ equals, state by state
    bits = [int(number) for number in numbers.randint(0, 2**32, 5, dtype=np.uint32)]
    uniforms = [np.float32(number) / np.float32(2**32) for number in bits]

    def drawn(law, uniform):
        return min(int(np.searchsorted(np.cumsum(law), uniform, side="right")), len(law) - 1)

    first = drawn(P[PROMPT], uniforms[0])
    drafted = drawn(Q[first], uniforms[0])  # the draft's generator begins with the same seed
    own = drawn(P[first], uniforms[1])
    if (bits[2] * 101 >> 32) / 100 <= MIXED[first, drafted, own]:
        return [first, drafted, drawn(P[drafted], uniforms[3])]
    # Then the target reads past the last token: a hidden state of zeros, and all tokens are as
    # likely.
    return [first, drawn(P[drafted], uniforms[3]), drawn(np.full(4, 0.25), uniforms[4])]


def fit(law, tokens):
    """A line about how far counted tokens (n, 3) are from a law (4, 4) of the first two."""
    laws = torch.from_numpy(law.reshape(1, -1)).expand(len(tokens), -1)
    found = chi_square(laws, torch.from_numpy(tokens[:, 0] * len(law) + tokens[:, 1]))
    return (
        f"chi-square {found.value:8.1f} with {found.degrees} degrees of freedom, p = "
        f"{found.p_value:.2g}"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        target, draft = (
            write_model(Path(folder) / "p", TARGET),
            write_model(Path(folder) / "q", DRAFT),
        )
        plain = three_tokens(open_pipeline(target), range(2000), 0)
        tokens = three_tokens(open_pipeline(target, draft), range(2000), 1)
    lines = [
        "no draft model, against the target's law: "
        f"{fit(law_of(OWN, RESIDUAL, False, False), plain)}"
    ]
    lines += [f"  {name:<44} {fit(law_of(*parts), tokens)}" for name, parts in HYPOTHESES.items()]
    equal = int((np.array([replay(seed) for seed in range(2000)]) == tokens).sum())
    sys.stdout.write(
        "\n".join([*lines, f"replay of the source: {equal} of {tokens.size} tokens equal\n"])
    )
