"""Helpers for tests of rules and audits: small laws, drafting in plain Python, broken rules."""

from itertools import product
from math import prod

import pytest
import torch
from hypothesis import strategies as st
from scipy.stats import chisquare

from resispec.audit.battery import pair_of_laws
from resispec.audit.enumerate import _tuples, drafted_tuples
from resispec.audit.row_checks import accepted, emitted
from resispec.core import Draws, Tree
from resispec.errors import InvalidInput
from resispec.verifiers import Law, get_rule


def rng(seed):
    return torch.Generator().manual_seed(seed)


def law(*weights):
    return torch.tensor(weights, dtype=torch.float64)


def random_law(vocab, generator, zeros=0):
    weights = -torch.rand(vocab, generator=generator, dtype=torch.float64).log()
    weights[torch.randperm(vocab, generator=generator)[:zeros]] = 0
    return weights / weights.sum()


OURS = (Draws.IID, Draws.WITHOUT_REPLACEMENT, Draws.POINT_MASS, Draws.GREEDY)


def tuples(q, count, draws):
    """Every drafted tuple with its probability, as plain Python."""
    largest = sorted(range(len(q)), key=lambda token: -q[token])
    if draws is Draws.POINT_MASS:
        return [(tuple(largest[:count]), 1.0)]
    if draws not in OURS:  # by the laws that it says its siblings are drawn from
        return [
            (one, prod(float(law[token]) for law, token in zip(laws, one, strict=True)))
            for one in product(range(len(q)), repeat=count)
            for laws in [draws.laws(torch.tensor(q, dtype=torch.float64), torch.tensor(one))]
        ]

    def extend(prefix, weight, left):
        if len(prefix) == count:
            yield prefix, weight
            return
        if sum(left.values()) <= 0:
            left = {token: 1.0 for token in range(len(q)) if token not in prefix}
        for token, mass in left.items():
            rest = {other: left[other] for other in left if draws is Draws.IID or other != token}
            if mass > 0:
                yield from extend((*prefix, token), weight * mass / sum(left.values()), rest)

    chosen = tuple(largest[: count - 1]) if draws is Draws.GREEDY else ()
    return list(
        extend(chosen, 1.0, {token: mass for token, mass in enumerate(q) if token not in chosen})
    )


def over_tuples(rule, p, q, num_siblings, draws):
    """The emitted token's law, the mass of no token and the acceptance, over all drafted tuples."""
    tokens, weights = drafted_tuples(q, num_siblings, draws)
    laws = rule.law(p.expand(len(tokens), -1), q.expand(len(tokens), -1), tokens, draws)
    rest = (1 - laws.select.sum(-1)) * (1 - laws.residual.sum(-1))
    return (
        weights @ emitted(laws, tokens),
        float(weights @ rest),
        float(weights @ accepted(laws, tokens)),
    )


def accepted_tokens(verifier, topology, rows, draws=Draws.IID):
    """E[accepted tokens], summed over every drafted tree."""
    target, draft = rows
    drafted = _tuples(len(target), topology.num_nodes - 1, False)
    tokens = torch.cat((drafted.new_zeros(len(drafted), 1), drafted), 1)
    weights = target.new_ones(len(tokens))
    for parents, children in topology.families:
        weights = weights * draws.weights(draft[tokens[:, parents]], tokens[:, children]).prod(-1)
    total = 0.0
    for row, weight in zip(tokens[weights > 0], weights[weights > 0], strict=True):
        stop = verifier.outcomes(Tree(topology, row, draws), target[row], draft[row]).stop
        total += float(weight * (stop * topology.depths).sum())
    return total


def drafted(topology, vocab, draws=Draws.IID, seed=0, kind="random"):
    """A tree drafted from laws of its own at every node, with the target's and the draft's laws."""
    rows = [
        pair_of_laws(kind, vocab, generator) for generator in [rng(seed)] for _ in topology.parents
    ]
    target, draft = (torch.stack(laws) for laws in zip(*rows, strict=True))
    tokens, generator = torch.zeros(topology.num_nodes, dtype=torch.int64), rng(seed + 1)
    for parents, children in topology.families:
        tokens[children] = draws.draw(draft[parents], children.shape[1], generator)
    return Tree(topology, tokens, draws), target, draft


def assert_drawn_from(outcomes, draw, count):
    """Chi-square of `count` verdicts over (last node, final token); fresh seeds fail at 1e-4."""
    joint = outcomes.stop[:, None] * outcomes.final
    assert joint.sum().item() == pytest.approx(1, abs=1e-9) and (joint >= 0).all()
    counts = torch.zeros_like(joint)
    for _ in range(count):
        verdict = draw()
        counts[verdict.path[-1] if verdict.path else 0, verdict.tokens[-1]] += 1
    assert counts[joint == 0].sum() == 0
    large = count * joint > 5
    observed = [*counts[large].tolist(), float(counts[~large].sum())]
    expected = [*(count * joint)[large].tolist(), float((count * joint)[~large].sum())]
    kept = [index for index, value in enumerate(expected) if value > 1e-9]
    total = sum(expected[index] for index in kept)
    expected = [expected[index] * count / total for index in kept]
    assert len(kept) < 2 or chisquare([observed[index] for index in kept], expected).pvalue > 1e-4


@st.composite
def corners(draw):
    """Laws with zeros, ties, one-hot rows and equal pairs, and siblings that q could have drawn."""
    vocab = draw(st.integers(1, 6))
    weight = st.sampled_from([0.0, 0.0, 1e-30, 1e-7, 0.5, 1.0, 1.0, 3.0])
    rows = st.lists(weight, min_size=vocab, max_size=vocab).filter(lambda row: sum(row) > 1e-9)
    p, q = draw(rows), draw(rows)
    q = p if draw(st.booleans()) and draw(st.booleans()) else q
    support = [token for token in range(vocab) if q[token] > 0]
    siblings = draw(st.lists(st.sampled_from(support), min_size=1, max_size=3))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    p, q = (torch.tensor(row, dtype=torch.float64) for row in (p, q))
    return (p / p.sum()).to(dtype), (q / q.sum()).to(dtype), torch.tensor(siblings)


class Broken:
    """The naive rule with its law changed."""

    def __init__(self, change):
        self.change = change

    def law(self, *given):
        law = get_rule("naive").law(*given)
        return self.change(law.select, law.residual)


def moved(tensor, amount):
    """The largest entry gets `amount` more and the smallest that much less, so the sum stays."""
    change = torch.zeros_like(tensor).scatter(-1, tensor.argmax(-1, keepdim=True), amount)
    return tensor + change.scatter(-1, tensor.argmin(-1, keepdim=True), -amount)


# What a rule of one's own may get wrong: how a right law is changed, and what the message says.
WRONG_SHAPES = {
    "select too short": (lambda s, r: Law(s[..., :-1], r), r"select is \(1,\) .*allowed: .*\(2,\)"),
    "residual of B": (lambda s, _: Law(s, s), "residual is "),
    "no law": (lambda s, r: (s, r), "select is tuple|select is NoneType; allowed: a tensor"),
    "half precision": (lambda s, r: Law(s.half(), r), "select is .*float16; allowed: .*float64"),
}
WRONG_MASSES = {
    "negative select": (lambda s, r: Law(s - 0.9, r), "cannot choose with chances"),
    "select above 1": (lambda s, r: Law(s + 0.6, r), "cannot choose with chances"),
    "select is NaN": (lambda s, r: Law(s * torch.nan, r), "cannot choose with chances .*nan"),
    "negative residual": (lambda s, r: Law(s * 0, moved(r, 0.1)), "cannot "),
    "dropped residual": (
        lambda s, r: Law(s * 0, r.scatter(-1, r.argmax(-1, keepdim=True), 0)),
        "(cannot draw|the residual)",
    ),
    "residual above 1": (lambda s, r: Law(s * 0, 1.5 * r), "cannot (choose|draw)"),
}
BROKEN = [
    *(
        (change, InvalidInput, f"^rule Broken: {message}")
        for change, message in WRONG_SHAPES.values()
    ),
    *(
        (change, FloatingPointError, rf"^rule Broken, node \d+: {said}")
        for change, said in WRONG_MASSES.values()
    ),
]
