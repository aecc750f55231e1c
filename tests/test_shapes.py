"""Shapes for verification from the leaves up: candidates, their comparison on one drafted tree, and the search for the best."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import asdict

import pytest
import torch
from toys import TableModel, ToyTokenizer, table_pair

from experiments.law_trees import Root, part
from experiments.maps import mean_and_error
from experiments.shapes import Shapes, filled, neighbours, regular
from experiments.tasks import Context
from resispec.audit.enumerate import sibling_weights
from resispec.core import Draws
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, NoDraft
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.topology import chain, complete, from_child_counts, from_widths, parallel_chains, root_only, union
from resispec.tree_search import Winner, winners
from resispec.verifiers import get_verifier


def test_widths_spread_children_evenly_and_narrower_levels_go_on_below_the_first_nodes():
    #        0
    #   1    2    3
    #  4 5  6 7   8
    #  9 10
    assert from_widths([3, 5, 2]).parents == (-1, 0, 0, 0, 1, 1, 2, 2, 3, 4, 5)
    assert from_widths([3, 9, 27, 81]) == complete(5, 3) and from_widths([4, 4, 4]) == parallel_chains(4, 3)
    assert from_widths([1, 1]) == chain(2) and from_widths([]) == root_only()
    assert from_widths([8, *[16] * 7]).num_nodes == 121
    with pytest.raises(InvalidInput, match=r"at least 1; found \[3, 0\]"):
        from_widths([3, 0])


def test_a_union_holds_every_shape_and_no_more():
    #       0               0                 0
    #    1     2          1 2 3           1   2   3
    #   3 4                 4            4 5  6
    whole = union([from_child_counts([[2], [2]]), from_child_counts([[3], [0, 1]])])
    assert whole.parents == (-1, 0, 0, 0, 1, 1, 2)
    assert union([complete(3, 2), parallel_chains(2, 2), root_only()]) == complete(3, 2)
    with pytest.raises(InvalidInput, match="at least one shape"):
        union([])


def chi_square_bound(degrees: int) -> float:
    return degrees + 4 * (2 * degrees) ** 0.5  # 4 standard deviations


@pytest.mark.parametrize("draws", [Draws.IID, Draws.WITHOUT_REPLACEMENT, Draws.POINT_MASS])
def test_a_part_of_a_union_follows_the_law_of_a_direct_draft(draws):
    """Root 0 with children a, b and a's child c: frequencies against the product of the sibling laws, all tuples enumerated."""
    pair, generator, count = table_pair(vocab=4, seed=3), torch.Generator().manual_seed(0), 4000
    q = torch.softmax(pair.draft.logits, -1)
    shape = from_widths([2, 1])
    whole = union([shape, from_widths([3, 1]), from_widths([1, 2, 2])])
    root, found = Root(pair, [1], 1.0, 64), Counter()
    for _ in range(count):
        drafted, _ = part(draft := root.draft(whole, generator, draws), draft.probs, shape)
        found[tuple(drafted.tree.tokens[1:].tolist())] += 1
    assert drafted.tree.draws is draws and torch.allclose(drafted.probs[:2], q[drafted.tree.tokens[:2]])
    if draws is Draws.POINT_MASS:
        first, second = q[1].topk(2).indices.tolist()
        assert set(found) == {(first, second, int(q[first].argmax()))}
        return
    expected = {}
    for a, b in itertools.product(range(4), repeat=2):
        both = float(sibling_weights(q[1][None], torch.tensor([[a, b]]), draws))
        for c in range(4):
            expected[a, b, c] = both * float(q[a, c]) * count
    possible = {tokens: value for tokens, value in expected.items() if value > 0}
    assert set(found) <= set(possible)
    statistic = sum((found[tokens] - value) ** 2 / value for tokens, value in possible.items())
    assert statistic < chi_square_bound(len(possible) - 1)


def same_everywhere(vocab=6, seed=5):
    """A pair whose laws do not depend on the context, so that every step has the same expectation."""
    models = table_pair(vocab, seed)
    p, q = (model.logits[:1].expand(vocab, vocab) for model in (models.target, models.draft))
    return Pair(TableModel(p), TableModel(q), ToyTokenizer())


def context(pair, verifier="traversal_optimal", prompts=1, length=1):
    named = [(f"p{index}", [index % 3] * length) for index in range(prompts)]
    return Context(pair, Decoder(NoDraft(), get_verifier(verifier)), Sampling(1.0, 8, 64), named, seed=0)


@pytest.mark.parametrize("verifier", ["traversal_optimal", "traversal", "standard"])
def test_expected_tokens_are_what_decoding_emits(verifier):
    pair, candidates = same_everywhere(), [[2, 3, 3], [2, 4, 2, 1]]
    task, setting = Shapes(1, candidates, "iid"), context(pair, verifier, prompts=300)
    rows = [asdict(task(setting, index)) for index in range(300)]
    mean, error = mean_and_error(rows, "emitted")
    for place, widths in enumerate(candidates):
        decoder = Decoder(DraftModel(from_widths(widths)), get_verifier(verifier))
        done = decoder.generate(pair, [0], Sampling(1.0, 2000, 4000), torch.Generator().manual_seed(1))
        emitted = torch.tensor(done.num_emitted[:-1], dtype=torch.float64)
        both = (error[place] ** 2 + float(emitted.var()) / len(emitted)) ** 0.5
        assert abs(mean[place] - float(emitted.mean())) < 4 * both < 0.4


def test_shapes_are_compared_on_the_same_draws_whatever_the_verifier():
    pair = table_pair(vocab=6, seed=3)
    task = Shapes(2, [[2, 2], [3], [2, 2]], "without_replacement")
    one, two, again = (task(context(pair, name, length=6), 0) for name in ("standard", "traversal", "standard"))
    assert one == again and one.num_contexts == 2 and one.widths == [[2, 2], [3], [2, 2]]
    assert one.emitted[0] == one.emitted[2] and two.emitted[1] == pytest.approx(
        one.emitted[1]
    )  # a star has no depth to gain from
    assert two.emitted[0] != one.emitted[0]
    row = asdict(one)
    assert json.loads(json.dumps(row)) == row and task.progress([row]) == {"best": f"{max(one.emitted) / 2:.2f}"}


def test_every_part_meets_the_laws_of_its_own_nodes():
    """Both models are bigrams, so the laws at a node are the rows of its token; a node has other places in shape and union."""
    pair, candidates = table_pair(vocab=6, seed=3), [[3, 6, 6], [2, 2, 2], [1, 1, 1]]
    setting = context(pair)
    row = Shapes(1, candidates, "iid")(setting, 0)
    p, q = (torch.softmax(model.logits, -1) for model in (pair.target, pair.draft))
    shapes = [from_widths(widths) for widths in candidates]
    whole = Root(pair, setting.prompts[0][1], 1.0, 64).draft(union(shapes), setting.generator(0))
    for shape, emitted in zip(shapes, row.emitted, strict=True):
        drafted, _ = part(whole, whole.probs, shape)
        tokens = drafted.tree.tokens
        stop = setting.decoder.verifier.outcomes(drafted.tree, p[tokens], q[tokens]).stop
        assert emitted == pytest.approx(float(stop @ (shape.depths + 1.0).double()), rel=1e-9)


@pytest.mark.parametrize(
    ("widths", "draws", "message"),
    [
        ([], "iid", "at least one shape"), ([[2], [0]], "iid", "at least 1; found"),
        ([[2]], "greedy", "allowed: iid, without_replacement"),
    ],
)  # fmt: skip
def test_bad_candidates_are_one_line(widths, draws, message):
    with pytest.raises(InvalidInput, match=message):
        Shapes(1, widths, draws)


def test_shapes_are_filled_at_the_bottom():
    assert filled((8, 16), 120) == (8, *[16] * 7)
    assert filled((4, 8, 8, 3), 25) == (4, 8, 8, 5) and filled((4, 8, 8, 3), 30) == (4, 8, 8, 8, 2)
    assert filled((5, 10), 12) == (5, 7) and filled((5, 10, 10), 5) == (5,) and filled((3,), 7) == (3, 3, 1)


@pytest.mark.parametrize("num_nodes", [4, 16, 64, 121])
def test_regular_shapes_fill_the_budget(num_nodes):
    found = regular(num_nodes, 12, 6)
    assert len(set(found)) == len(found) and all(sum(shape) + 1 == num_nodes for shape in found)
    depths = Counter(map(len, found))
    assert found and set(depths) <= set(range(2, 12)) and max(depths.values()) <= 6
    assert (8, *[16] * 7) in found if num_nodes == 121 else (4, 4, 4, 3) in found if num_nodes == 16 else True
    for shape in found:  # branchings that do not increase: no node has more children than its parent
        children = [-(-below // above) for above, below in itertools.pairwise((1, *shape))]
        assert all(now <= before for before, now in itertools.pairwise(children))


def test_neighbours_keep_the_budget_and_the_limit_of_levels():
    around = neighbours((4, 8, 8, 8, 2), 0.25, 6)
    assert (5, 8, 8, 8, 1) in around and (5, 9, 9, 7) in around and (4, 8, 6, 8, 4) in around
    assert all(sum(shape) == 30 and 2 <= len(shape) <= 5 and min(shape) >= 1 for shape in around)
    assert len(set(around)) == len(around) and (4, 8, 8, 8, 2) not in around
    assert (3, 7, 7, 7, 6) in neighbours((4, 8, 8, 8, 2), 0.25, 7)


def test_winners_against_brute_force():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        count = int(torch.randint(1, 9, (1,), generator=generator))
        levels = torch.randint(1, 13, (count,), generator=generator).tolist()
        shapes = [(level, 1 + float(torch.rand(1, generator=generator)) * level) for level in levels]
        found = winners(shapes)
        assert found[0].from_ratio == 0 and found[-1].to_ratio == float("inf")
        assert all(before.to_ratio == after.from_ratio for before, after in itertools.pairwise(found))
        for ratio in (0, 0.001, 0.01, 0.03, 0.1, 0.17, 0.3, 1, 3, 10, 1000):
            rates = [tokens / (1 + ratio * (level - 1)) for level, tokens in shapes]
            [win] = [win for win in found if win.from_ratio <= ratio < win.to_ratio]
            assert rates[win.index] == pytest.approx(max(rates), rel=1e-12)


def test_winners_by_hand():
    # 4 / (1 + 3 r) = 3 / (1 + r) at r = 0.2, and 3 / (1 + r) = 1 at r = 2; (3, 3.1) is below at both sides.
    assert winners([(1, 1.0), (4, 4.0), (2, 3.0), (3, 3.1), (2, 3.0)]) == [
        Winner(1, 0.0, pytest.approx(0.2)),
        Winner(2, pytest.approx(0.2), pytest.approx(2)),
        Winner(0, pytest.approx(2), float("inf")),
    ]
    assert winners([(5, 2.0), (3, 2.0)]) == [Winner(1, 0.0, float("inf"))]  # as many tokens from fewer levels
    for bad in ([], [(0, 1.0)], [(2, 0.0)], [(2, float("nan"))]):
        with pytest.raises(InvalidInput, match="at least one, each of at least 1 level and positive tokens"):
            winners(bad)
