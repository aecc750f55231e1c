"""Figure 2: what is left of the target after each rejection, and what is emitted in the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

from experiments.tasks.base import Workload, share
from experiments.tasks.prefix_laws import Prefixes, PrefixRow, SiblingTask, prefix_laws
from resispec.audit.row_checks import CheckedRule, emitted
from resispec.distributions import invert, normalise
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.verifiers import SiblingRule

SUPPORT = 0.95
"""The draft's support is the smallest set of tokens that holds this share of q."""
NUM_SETS = 8
"""Number of independent sets in which tuples come; their spread gives the standard errors."""
CONTEXT_TOKENS = 24
"""Number of a prefix's last tokens that a row quotes."""


@dataclass(frozen=True)
class ResidualRow(PrefixRow):
    """A row of Figure 2; the outer lists have one entry for each prefix.

    A law is given in entries: `num_tokens` single tokens with q > p, the next `num_next` of them
    together, all others of them, and then the same for tokens with q <= p; the likeliest by max(p,
    q) come first. The residual after k rejections is the law of the emitted token given that none
    of k drafted siblings was selected, averaged over siblings; lists over k begin with k = 0, the
    target itself.

    context: the end of the prefix, or of the part of it that the target wrote. tokens, texts: of
    every entry; -1 if the entry is no single token. target, draft: p and q. residual: [k], laws.
    rejected: [k], probability that none of k siblings is selected. overlap: [k], sum of
    min(residual, q), averaged over siblings; with a rule of Algorithm 1, the chance that the next
    sibling is accepted. outside: [k], the residual's mass outside of the draft's support, see
    SUPPORT. overdraft: [k], its mass on tokens with q > p. emitted, emitted_error: the law that is
    emitted with all siblings, and its standard errors. excess, excess_error: the mass that it gives
    to tokens with q > p beyond what p gives; 0 for an exact rule.
    """

    num_tuples: int
    context: list[str]
    tokens: list[list[int]]
    texts: list[list[str]]
    target: list[list[float]]
    draft: list[list[float]]
    residual: list[list[list[float]]]
    rejected: list[list[float]]
    overlap: list[list[float]]
    outside: list[list[float]]
    overdraft: list[list[float]]
    emitted: list[list[float]]
    emitted_error: list[list[float]]
    excess: list[float]
    excess_error: list[float]


@dataclass(frozen=True)
class Residuals(SiblingTask):
    """Residuals after 0 to `num_siblings` rejections of i.i.d. siblings, and the emitted law.

    num_tokens, num_next: the entries in which laws are given, see `ResidualRow`.
    """

    row: ClassVar[type[ResidualRow]] = ResidualRow
    num_tokens: int
    num_next: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_tuples % NUM_SETS:
            raise InvalidInput(
                f"task.num_tuples is {self.num_tuples}; allowed: multiples of {NUM_SETS}"
            )

    def measure(
        self, workload: Workload, prefixes: Prefixes, generator: Generator
    ) -> dict[str, Any]:
        """See `SiblingTask`."""
        decode, rule = workload.pair.tokenizer.decode, CheckedRule.of(workload.decoder.verifier)
        laws = zip(*prefix_laws(workload, prefixes), strict=True)
        values = [self._prefix(rule, p, q, generator) for p, q in laws]
        fields = {name: [one[name] for one in values] for name in values[0]}
        # Of an answer, and not of its question.
        quotes = [text[prefixes.first :][-CONTEXT_TOKENS:] for text in prefixes.texts()]
        fields["context"] = [decode(quote) for quote in quotes]
        fields["texts"] = [
            [decode([token]) if token >= 0 else "" for token in tokens]
            for tokens in fields["tokens"]
        ]
        for texts in fields["texts"]:  # the last two entries of each side are of several tokens
            for end in (len(texts) // 2, len(texts)):
                texts[end - 2 : end] = [f"next {self.num_next}", "all others"]
        return fields

    def _prefix(
        self, rule: SiblingRule, p: Tensor, q: Tensor, generator: Generator
    ) -> dict[str, list]:
        """The entries of `ResidualRow` that follow from the laws (V,) after one prefix."""
        means = [
            torch.stack(
                [_after(rule, p, q, tuples[:, :count]) for count in range(1, self.num_siblings + 1)]
            )
            for tuples in self._sets(p, q, generator)
        ]
        # (k, V) and (k,): means over the sets, after the values for k = 0, which need no sibling.
        rest, overlap, output = torch.stack(means).split((len(p), 1, len(p)), -1)
        rest = torch.cat((p.double()[None], rest.mean(0)))
        overlap = torch.cat((torch.minimum(p, q).double().sum()[None], overlap.mean(0)[:, 0]))
        output = output[:, -1]
        rejected, residual = rest.sum(-1), normalise(rest, p.double())
        mass, order = q.double().sort(descending=True)
        is_beyond = mass.cumsum(0) - mass >= SUPPORT
        overdrafted = q > p
        outside = torch.zeros_like(q, dtype=torch.bool).scatter(0, order, is_beyond)
        entries, tokens = self._entries(p, q)
        excess = ((output - p) * overdrafted).sum(-1)
        laws = {"target": p, "draft": q, "residual": residual, "emitted": output.mean(0)}
        return {
            "tokens": tokens.tolist(),
            **{name: _told(law, entries, len(tokens)).tolist() for name, law in laws.items()},
            "rejected": rejected.tolist(),
            "overlap": torch.where(rejected > 0, overlap / rejected, overlap[0]).tolist(),
            "outside": (residual * outside).sum(-1).tolist(),
            "overdraft": (residual * overdrafted).sum(-1).tolist(),
            "emitted_error": self._error(_told(output, entries, len(tokens))).tolist(),
            "excess": float(excess.mean()),
            "excess_error": float(self._error(excess)),
        }

    def _sets(self, p: Tensor, q: Tensor, generator: Generator) -> list[Tensor]:
        """NUM_SETS sets of tuples (n, B) of i.i.d. siblings.

        Their uniform numbers are the points of scrambled Sobol nets: every tuple has the law of
        independent draws, and the tuples of a set spread evenly, so that averages have far less
        noise. Tokens are put in the order of p / q first, so that neighbours have similar outcomes.
        """
        seeds = torch.randint(1 << 31, (NUM_SETS,), generator=generator, device=q.device).tolist()
        nets = [SobolEngine(self.num_siblings, scramble=True, seed=seed) for seed in seeds]
        size, order = self.num_tuples // NUM_SETS, (p / q).nan_to_num(0.0).argsort()
        points = [net.draw(size, dtype=torch.float64).to(q.device) for net in nets]
        return [order[invert(q[order], uniform)] for uniform in points]

    def _entries(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """The entry (V,) int64 of every token, and the token of every entry or -1."""
        size, score = self.num_tokens + 2, torch.maximum(p, q)
        entries = torch.zeros_like(p, dtype=torch.int64)
        tokens = torch.full((2 * size,), -1, device=p.device)
        for start, side in ((0, q > p), (size, q <= p)):
            ranked = side.nonzero()[:, 0]
            ranked = ranked[score[ranked].argsort(descending=True, stable=True)]
            entries[ranked] = start + self.num_tokens + 1
            entries[ranked[: self.num_tokens + self.num_next]] = start + self.num_tokens
            single = ranked[: self.num_tokens]
            tokens[start : start + len(single)] = single
            entries[single] = start + torch.arange(len(single), device=p.device)
        return entries, tokens

    def _error(self, values: Tensor) -> Tensor:
        """Standard error of means over sets (sets, ...), with the resolution 1 / `num_tuples`."""
        spread = values.std(0) / len(values) ** 0.5
        return torch.hypot(spread, torch.full_like(spread, 1 / self.num_tuples))

    def progress(self, rows: Sequence[ResidualRow]) -> dict[str, str]:
        """The mean overlap of residual and draft, before any rejection and after all."""
        ends = [[prefix[place] for row in rows for prefix in row.overlap] for place in (0, -1)]
        return {"overlap": " to ".join(share(sum(values), len(values), ".2f") for values in ends)}


def _after(rule: SiblingRule, p: Tensor, q: Tensor, siblings: Tensor) -> Tensor:
    """Means over tuples of siblings (n, k), in one tensor (V + 1 + V,) float64.

    They are the residual and its overlap with q, both times the probability that no sibling is
    selected, and the emitted law.
    """
    shape = (len(siblings), len(p))
    law = rule.law(p.expand(shape), q.expand(shape), siblings, Draws.IID)
    rest = (1 - law.select.double().sum(-1)).clamp_min(0) / len(siblings)
    overlap = torch.minimum(law.residual, q).double().sum(-1)
    output = emitted(law, siblings).double().mean(0)
    return torch.cat((rest @ law.residual.double(), (rest @ overlap)[None], output))


def _told(law: Tensor, entries: Tensor, count: int) -> Tensor:
    """A law (..., V) in the entries of `ResidualRow`, (..., count)."""
    return law.new_zeros(*law.shape[:-1], count).index_add(-1, entries, law)
