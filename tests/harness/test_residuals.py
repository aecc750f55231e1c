"""The task of Figure 2 against recursions and sums worked out by hand."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
from toys import TableModel, ToyTokenizer, table_pair

from experiments.store import parse
from experiments.tasks.base import Workload
from experiments.tasks.residuals import ResidualRow, Residuals
from resispec.audit.as_sibling_rule import rule_of
from resispec.audit.ceiling import ceiling
from resispec.audit.enumerate import emitted_law
from resispec.decode import Decoder, Sampling
from resispec.drafters import NoDraft
from resispec.draws import Draws
from resispec.models import Pair
from resispec.verifiers import get_verifier

P, Q = (0.5, 0.3, 0.2), (0.2, 0.4, 0.4)  # docs/exactness.md and docs/optimal-verification.md, by hand


def workload(verifier: str, pair: Pair, length: int = 1) -> Workload:
    decoder = Decoder(NoDraft(), get_verifier(verifier))
    return Workload(pair, decoder, Sampling(1.0, 8, 64), [("p0", [0] * length)], seed=0)


def by_hand(p=P, q=Q) -> Pair:
    laws = (torch.tensor([law] * len(p), dtype=torch.float64).log() for law in (p, q))
    return Pair(*map(TableModel, laws), ToyTokenizer())


def of_tokens(row: ResidualRow, law: list[float]) -> list[float]:
    """Numbers of the first prefix in the order of the vocabulary; every token has an entry of its own."""
    known = {token: value for token, value in zip(row.tokens[0], law, strict=True) if token >= 0}
    return [known[token] for token in sorted(known)]


def measure(verifier: str, num_siblings: int, pair: Pair, num_tuples: int = 2048) -> ResidualRow:
    task = Residuals(1, num_siblings, num_tuples, num_tokens=8, num_next=1)
    return task(workload(verifier, pair), 0)


def test_the_standard_residual_is_its_closed_recursion() -> None:
    pair = table_pair(vocab=6, seed=3)
    target, q = (torch.softmax(model.logits[0], -1) for model in (pair.target, pair.draft))
    row = measure("standard", 3, pair)
    p, left = target, 1.0
    for count in range(4):
        assert of_tokens(row, row.residual[0][count]) == pytest.approx(p.tolist(), abs=1e-9)
        assert sum(row.residual[0][count]) == pytest.approx(1)
        assert row.overlap[0][count] == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-9)
        assert row.overdraft[0][count] == pytest.approx(float(p[q > target].sum()), abs=1e-9)
        assert row.rejected[0][count] == pytest.approx(left, abs=5e-3)
        left *= 1 - float(torch.minimum(p, q).sum())
        p = (p - q).clamp_min(0) / (p - q).clamp_min(0).sum()
    assert row.overdraft[0][0] > 0.05 and row.overdraft[0][1] == 0
    assert of_tokens(row, row.target[0]) == pytest.approx(target.tolist())
    assert of_tokens(row, row.draft[0]) == pytest.approx(q.tolist())


def test_resispec_after_one_rejection_by_hand() -> None:
    """Token 2 is rejected with probability .1, token 3 with .2: the page has the residual of each."""
    row = measure("resispec", 1, by_hand())
    residual = [(0.1 * 0.5 + 0.2 * 0.4706) / 0.3, 0.2 * 0.5294 / 0.3, 0.1 * 0.5 / 0.3]
    assert row.rejected[0] == pytest.approx([1, 0.3], abs=2e-3)
    assert of_tokens(row, row.residual[0][1]) == pytest.approx(residual, abs=5e-3)
    assert row.overdraft[0] == pytest.approx([0.5, residual[1] + residual[2]], abs=5e-3)
    assert of_tokens(row, row.emitted[0]) == pytest.approx([0.3441, 0.4059, 0.25], abs=2e-3)
    assert row.excess[0] == pytest.approx(0.4059 + 0.25 - 0.5, abs=2e-3)
    # (.5, 0, .5) and (.4706, .5294, 0) meet q in .6 each, whichever token was rejected
    assert row.overlap[0][1] == pytest.approx(0.6, abs=2e-3)


def test_the_optimal_residual_is_what_its_proxy_leaves_by_hand() -> None:
    """With two siblings m is (.36, .32, .32): .14 is rejected, all of it for token 1."""
    row = measure("optimal", 2, by_hand())
    assert row.rejected[0] == pytest.approx([1, 0.3, 0.14], abs=3e-3)
    assert of_tokens(row, row.residual[0][2]) == pytest.approx([1, 0, 0], abs=1e-9)
    assert row.overlap[0] == pytest.approx([0.7, 0.2, 0.2], abs=1e-6)
    pair = table_pair(vocab=6, seed=1)
    p, q = (torch.softmax(model.logits[0], -1) for model in (pair.target, pair.draft))
    row = measure("optimal", 3, pair)
    highest = [float(ceiling(p, q, count, Draws.IID)) for count in (1, 2, 3)]
    assert row.rejected[0][1:] == pytest.approx([1 - value for value in highest], abs=5e-3)


@pytest.mark.parametrize("verifier", ["standard", "optimal", "resispec"])
@pytest.mark.parametrize("seed", range(2))
def test_the_emitted_law_is_that_of_an_enumeration_within_its_errors(verifier: str, seed: int) -> None:
    pair = table_pair(vocab=5, seed=seed, gap=1.5)
    setting = workload(verifier, pair)
    p, q = (torch.softmax(model.logits[0], -1) for model in (pair.target, pair.draft))
    true = emitted_law(rule_of(setting.decoder.verifier), p, q, 3, Draws.IID)
    row = measure(verifier, 3, pair, num_tuples=512)
    found, errors = (torch.tensor(of_tokens(row, law)) for law in (row.emitted[0], row.emitted_error[0]))
    assert bool(((found - true).abs() < 5 * errors).all()) and float(errors.max()) < 0.02
    assert min(row.excess_error[0], float(errors.min())) >= 1 / 512  # what 512 tuples cannot resolve
    excess = float((true - p)[q > p].sum())
    assert abs(row.excess[0] - excess) < 5 * row.excess_error[0]
    # ResiSpec cannot overdraw where all rejections are of one token
    assert (abs(excess) > 0.01) == (verifier == "resispec" and int((q > p).sum()) > 1)


def test_laws_are_told_by_side_and_the_likeliest_come_first() -> None:
    p = (0.30, 0.10, 0.05, 0.25, 0.10, 0.08, 0.02, 0.10)
    q = (0.10, 0.20, 0.15, 0.05, 0.04, 0.30, 0.07, 0.09)
    row = Residuals(1, 1, 8, num_tokens=2, num_next=1)(workload("standard", by_hand(p, q)), 0)
    assert row.tokens == [[5, 1, -1, -1, 0, 3, -1, -1]]  # q > p: 5, 1, 2, 6; the rest: 0, 3, 4 and 7
    assert row.texts == [["5", "1", "next 1", "all others", "0", "3", "next 1", "all others"]]
    assert row.target[0] == pytest.approx([0.08, 0.10, 0.05, 0.02, 0.30, 0.25, 0.10, 0.10])
    assert row.draft[0] == pytest.approx([0.30, 0.20, 0.15, 0.07, 0.10, 0.05, 0.04, 0.09])
    # 5, 1, 2, 0, 7, 6 hold .91 of q and 3 more than .95, so 4 is outside of the draft's support
    assert row.outside[0][0] == pytest.approx(0.10) and row.overdraft[0][0] == pytest.approx(0.25)


def test_models_that_agree_leave_nothing_to_reject() -> None:
    pair = table_pair(vocab=5)
    row = measure("resispec", 3, Pair(pair.target, pair.target, pair.tokenizer))
    assert row.rejected[0] == pytest.approx([1, 0, 0, 0], abs=1e-9)
    assert row.excess == pytest.approx([0]) and row.overdraft[0] == pytest.approx([0] * 4)
    assert parse(json.dumps(asdict(row), allow_nan=False), ResidualRow) == row
