"""Rules and verifiers at real vocabularies in float32, and on a device where there is one."""

import pytest
import torch

from resispec.audit.ceiling import ceiling
from resispec.core import Draws, Tree
from resispec.trees import chain, complete
from resispec.verifiers import get_rule, get_verifier
from tests.accounts import assert_drawn_from, drafted, rng

pytestmark = pytest.mark.numerics


def large_pairs(vocab):
    """Laws at a real vocabulary, float64, whose float32 copies are what a rule gets."""
    logits = 2.5 * torch.randn(vocab, generator=rng(0), dtype=torch.float64)
    other = logits + torch.randn(vocab, generator=rng(1), dtype=torch.float64)
    half = torch.arange(vocab) < vocab // 2
    flat = torch.full_like(logits, 1 / vocab)
    one_hot = torch.zeros_like(logits).index_fill(0, torch.tensor([7]), 1.0)
    zeros = torch.where(half, -torch.inf, logits).softmax(-1)
    return {
        "ordinary": (logits.softmax(-1), other.softmax(-1)),
        "peaked": ((logits / 0.1).softmax(-1), (other / 0.1).softmax(-1)),
        "peaked target": ((logits / 0.1).softmax(-1), other.softmax(-1)),
        "peaked draft": (logits.softmax(-1), (other / 0.1).softmax(-1)),
        "flat": (flat, flat),
        "flat draft": (logits.softmax(-1), flat),
        "one-hot target": (one_hot, other.softmax(-1)),
        "one-hot draft": (logits.softmax(-1), one_hot),
        "zeros in p": (zeros, other.softmax(-1)),
        "zeros in q": (other.softmax(-1), zeros),
        "p = q": (logits.softmax(-1), logits.softmax(-1)),
        "disjoint": (zeros, torch.where(half, logits, -torch.inf).softmax(-1)),
    }


FAMILIES = {
    "standard": Draws.WITHOUT_REPLACEMENT,
    "kseq": Draws.IID,
    "greedy": Draws.GREEDY,
    "optimal": Draws.IID,
}


@pytest.mark.parametrize(
    ("name", "options", "draws", "vocab"),
    [
        *(
            (name, {}, draws, vocab)
            for name, draws in FAMILIES.items()
            for vocab in (32_000, 128_256)
        ),
        *((name, {}, Draws.IID, 32_000) for name in ("naive", "khisti")),
        ("optimal", {"bins": 0}, Draws.IID, 32_000),
    ],
)
def test_laws_at_a_large_vocabulary(name, options, draws, vocab):
    for kind, (p, q) in large_pairs(vocab).items():
        siblings = draws.draw(q.expand(5, -1), 3, rng(2))
        rule, emitted = get_rule(name, **options), []
        for dtype in (torch.float32, torch.float64):
            target, draft = p.to(dtype).expand(5, -1), q.to(dtype).expand(5, -1)
            law = rule.law(target, draft, siblings, draws)
            assert law.select.dtype == law.residual.dtype == dtype
            assert (law.select >= 0).all() and (law.select.sum(-1) <= 1 + 1e-6).all(), kind
            total = law.residual.sum(-1)
            assert (law.residual >= 0).all() and torch.allclose(total, target.sum(-1), atol=1e-5), (
                kind
            )
            rest = 1 - law.select.double().sum(-1, keepdim=True)
            emitted.append(
                (rest * law.residual.double()).scatter_add(-1, siblings, law.select.double())
            )
        # Near p = q rounding chooses among factors that accept equally often.
        is_flat = name == "kseq" and kind in ("p = q", "flat")
        assert is_flat or (emitted[0] - emitted[1]).abs().sum(-1).max() / 2 < 1e-4, kind


@pytest.mark.parametrize(
    ("name", "topology", "draws"),
    [
        ("traversal", complete(4, 2), Draws.IID),
        ("traversal", complete(4, 2), Draws.WITHOUT_REPLACEMENT),
        ("block", chain(5), Draws.IID),
        ("level_optimal", complete(4, 2), Draws.IID),
    ],
)
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0])
def test_trees_at_a_large_vocabulary(name, topology, draws, scale):
    """Flat, Zipf-like and peaked laws: float64's outcomes within float32's rounding, and no NaN."""
    generator, verifier = rng(8), get_verifier(name)
    ranks = torch.arange(1, 32_001, dtype=torch.float32).log()
    logits = -scale * ranks + 0.5 * torch.randn(topology.num_nodes, 32_000, generator=generator)
    target = logits.softmax(-1)
    noisy = (logits + torch.randn(logits.shape, generator=generator)).softmax(-1)
    for draft in (noisy, target):
        tokens = torch.zeros(topology.num_nodes, dtype=torch.int64)
        for parents, children in topology.families:
            tokens[children] = draws.draw(draft[parents], children.shape[1], generator)
        tree = Tree(topology, tokens, draws)
        outcomes = verifier.outcomes(tree, target, draft)
        exact = verifier.outcomes(
            tree, *(rows.double() / rows.double().sum(-1, keepdim=True) for rows in (target, draft))
        )
        assert outcomes.stop.dtype == outcomes.final.dtype == torch.float32
        assert outcomes.stop.sum().item() == pytest.approx(1, abs=1e-6)
        assert outcomes.final.sum(-1).sub(1).abs().max() < 1e-5
        assert (outcomes.stop - exact.stop).abs().max() < 1e-4
        for _ in range(20):
            verdict = verifier.verify(tree, target, draft, generator)
            assert exact.stop[verdict.path[-1] if verdict.path else 0] > 0


def test_bins_of_the_optimal_rule_give_away_less_than_a_thousandth():
    """1,000 pairs of 50 to 2,000 tokens, by the acceptance sum min(p, m)."""
    generator = rng(3)

    def acceptance(bins, p, q, num_siblings):
        groups, ratio, _ = get_rule("optimal", bins=bins)._proxy(p, q, num_siblings)
        return float(torch.minimum(p, q * ratio.gather(-1, groups)).sum())

    for case in range(1000):
        num_siblings, temperature = (1, 2, 3, 4, 16)[case % 5], (0.3, 0.6, 1.0)[case % 3]
        vocab = int(torch.randint(50, 2001, (), generator=generator))
        scales = torch.tensor([[4.0], [2.5]]) * torch.rand(2, 1, generator=generator)
        logits = (scales * torch.randn(2, vocab, generator=generator)).cumsum(0).double()
        p, q = (logits / temperature).softmax(-1)
        highest = float(ceiling(p, q, num_siblings, Draws.IID))
        assert acceptance(0, p, q, num_siblings) == pytest.approx(highest, abs=1e-9)
        # The sum of up to 2,000 probabilities is rounded by 1e-15, however small it is.
        assert (
            0.999 * highest <= acceptance(1024, p, q, num_siblings) <= highest * (1 + 1e-12) + 1e-15
        )


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["traversal", "traversal_optimal"])
def test_traversal_on_cuda(name):
    """The law of the CPU, and verdicts that are drawn from it."""
    tree, target, draft = drafted(complete(4, 3), 50, Draws.IID, seed=11)
    there = Tree(tree.topology, tree.tokens.cuda(), tree.draws), target.cuda(), draft.cuda()
    verifier, generator = get_verifier(name), torch.Generator("cuda").manual_seed(0)
    wanted, outcomes = verifier.outcomes(tree, target, draft), verifier.outcomes(*there)
    assert torch.allclose(outcomes.stop.cpu(), wanted.stop, atol=1e-9)
    joint, expected = outcomes.stop[:, None] * outcomes.final, wanted.stop[:, None] * wanted.final
    # where no walk stops, the final law is arbitrary
    assert torch.allclose(joint.cpu(), expected, atol=1e-9)
    assert_drawn_from(wanted, lambda: verifier.verify(*there, generator), 1000)
