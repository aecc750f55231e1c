"""The tree search against every ordered tree of up to eight nodes."""

import itertools
import math

import numpy as np
import pytest

from resispec.errors import InvalidInput
from resispec.trees import Topology, chain, complete, from_child_counts, root_only
from resispec.trees.search import Times, choose, expected_tokens, search

VECTORS = [
    (0.6, 0.2, 0.1, 0.05),
    (0.1, 0.5, 0.0, 0.3, 0.05),  # not in order, and a child that is never accepted
    (0.0, 0.0, 0.9),
    (1.0,),
    (0.25, 0.25, 0.25, 0.25, 0.0, 0.0, 0.0),
    (0.0,),
]


def breadth_first_parents(num_nodes):
    """Every ordered tree, as parents that never decrease; their number is Catalan's."""
    rows = [(-1,)]
    for node in range(1, num_nodes):
        rows = [(*row, parent) for row in rows for parent in range(max(0, row[-1]), node)]
    return rows


def account(parents, acceptance):
    """(levels, expected tokens) by walking up from every node; None when a node has too many children."""
    depths, total = [], 0.0
    for node in range(len(parents)):
        product, depth = 1.0, 0
        while node:
            rank = sum(parents[sibling] == parents[node] for sibling in range(node))
            if rank >= len(acceptance):
                return None
            product, depth, node = product * acceptance[rank], depth + 1, parents[node]
        depths.append(depth)
        total += product
    return max(depths) + 1, total


ALL_TREES = {num_nodes: breadth_first_parents(num_nodes) for num_nodes in range(1, 9)}


def test_every_tree_is_there_once():
    assert [len(set(trees)) for trees in ALL_TREES.values()] == [1, 1, 2, 5, 14, 42, 132, 429]


@pytest.mark.parametrize("acceptance", VECTORS)
def test_the_value_of_every_tree(acceptance):
    for parents in itertools.chain(*ALL_TREES.values()):
        found = account(parents, acceptance)
        if found is None:
            with pytest.raises(
                InvalidInput, match=f"children; allowed: at most {len(acceptance)}, one a probability"
            ):
                expected_tokens(Topology(parents), acceptance)
        else:
            assert expected_tokens(Topology(parents), acceptance) == pytest.approx(found[1], rel=1e-13)


@pytest.mark.parametrize("acceptance", VECTORS)
def test_the_search_is_as_good_as_every_tree(acceptance):
    searched = search(acceptance, 8, 8)
    for num_nodes, trees in ALL_TREES.items():
        found = [both for both in (account(parents, acceptance) for parents in trees) if both is not None]
        for num_levels in range(1, 9):
            best = max((value for levels, value in found if levels <= num_levels), default=-math.inf)
            assert searched.expected[num_nodes, num_levels] == pytest.approx(best, rel=1e-13)
            if best == -math.inf:
                with pytest.raises(
                    InvalidInput, match=f"no tree has {num_nodes} nodes in {num_levels} levels"
                ):
                    searched.topology(num_nodes, num_levels)
                continue
            topology = searched.topology(num_nodes, num_levels)
            assert topology.num_nodes == num_nodes and topology.num_levels <= num_levels
            assert expected_tokens(topology, acceptance) == pytest.approx(best, rel=1e-13)


def test_known_trees():
    assert search((0.6, 0.3), 1, 3).topology(1, 3) == root_only()
    assert search((1.0,), 6, 6).topology(6, 6) == chain(5)
    assert search((1.0, 0.0), 6, 6).expected[6, 6] == 6
    # Children are worth the same at every rank, so a tree is worth the more the higher its nodes are.
    assert search((0.3, 0.3, 0.3), 13, 4).topology(13, 4) == complete(3, 3)
    # By hand: a second child (0.3) is worth less than a chain's third (0.6^2), more than its fourth (0.6^3).
    assert search((0.6, 0.3), 4, 4).topology(3, 4) == chain(2)
    assert search((0.6, 0.3), 4, 4).topology(4, 4) == from_child_counts([[2], [1]])
    assert expected_tokens(from_child_counts([[2], [1]]), (0.6, 0.3)) == pytest.approx(1 + 0.6 + 0.3 + 0.36)


def test_at_ties_the_root_has_fewest_children_and_the_last_the_most_nodes():
    # Nothing is ever accepted, so all trees are worth 1.
    assert search((0.0, 0.0), 5, 5).topology(5, 5) == chain(4)
    # Five nodes in three levels need a fork: the first child could be the large one as well.
    assert search((0.0, 0.0), 5, 3).topology(5, 3) == from_child_counts([[2], [0, 2]])


def test_what_was_searched_for_does_not_depend_on_the_limits():
    small, large = search(VECTORS[0], 10, 4), search(VECTORS[0], 40, 9)
    assert (small.expected == large.expected[:11, :5]).all()
    assert small.topology(10, 4) == large.topology(10, 4)


def test_a_large_budget_is_filled():
    acceptance = [0.3 * 0.5**rank for rank in range(32)]
    searched = search(acceptance, 128, 12)
    topology = searched.topology(128, 12)
    assert topology.num_nodes == 128 and topology.num_levels <= 12
    assert expected_tokens(topology, acceptance) == pytest.approx(searched.expected[128, 12], rel=1e-12)
    # No leaf is worth less than a new last child of any other node would be.
    reached = [1.0] * 128
    for node, children in enumerate(topology.children):
        for rank, child in enumerate(children):
            reached[child] = reached[node] * acceptance[rank]
    leaves = [node for node in range(128) if not topology.children[node]]
    for node in range(128):
        if topology.depths[node] < 11 and len(topology.children[node]) < 32:
            new = reached[node] * acceptance[len(topology.children[node])]
            assert new <= min(reached[leaf] for leaf in leaves if leaf != node) + 1e-15


BAD_VECTORS = [(), (0.7, 0.4), (-0.1, 0.5), (1.5,), (float("nan"), 0.2), (float("inf"), float("-inf"))]


@pytest.mark.parametrize("acceptance", BAD_VECTORS)
def test_what_is_no_probability_is_refused(acceptance):
    with pytest.raises(InvalidInput, match=f"acceptance holds {len(acceptance)} values"):
        search(acceptance, 4, 4)
    with pytest.raises(InvalidInput, match=f"acceptance holds {len(acceptance)} values"):
        expected_tokens(root_only(), acceptance)


@pytest.mark.parametrize("excess", [4.9670537e-9, 1.2e-7, 9e-6])
def test_a_law_measured_in_float32_may_sum_to_slightly_more_than_one(excess):
    """On another processor the sum of a measured vector was 1.0000000049670537."""
    exact = (0.5, 0.25, 0.125, 0.125)
    rounded = (exact[0] + excess, *exact[1:])
    assert math.fsum(rounded) > 1
    assert search(rounded, 8, 8).topology(8, 8) == search(exact, 8, 8).topology(8, 8)
    assert expected_tokens(complete(2, 4), rounded) == pytest.approx(2, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_a_vector_divided_in_float32_is_taken(seed):
    counts = np.random.default_rng(seed).integers(1, 50, 32).astype(np.float32)
    sums = []
    for divisor in (counts.sum(), np.nextafter(counts.sum(), np.float32(0))):
        chances = (counts / divisor).tolist()
        sums.append(math.fsum(chances))
        assert search(chances, 8, 8).expected[8, 8] > 1
    assert max(sums) > 1 + 1e-9  # which was refused


def test_what_rounding_put_outside_is_moved_to_the_border():
    assert expected_tokens(chain(3), (1 + 1e-7, -1e-9)) == 4
    assert expected_tokens(complete(2, 2), (1 + 1e-7, -1e-9)) == 2


@pytest.mark.parametrize("acceptance", [(0.5, 0.50002), (1.00002,), (-0.00002, 0.5)])
def test_more_than_rounding_is_refused(acceptance):
    with pytest.raises(InvalidInput, match="each in .0, 1., of sum at most 1"):
        search(acceptance, 4, 4)


@pytest.mark.parametrize(("num_nodes", "num_levels"), [("8", 3), (8, 2.5), (True, 3), (10**9, 3)])
def test_limits_of_a_search_are_whole_numbers_that_fit(num_nodes, num_levels):
    with pytest.raises(
        InvalidInput, match=f"found {num_nodes!r} nodes, {num_levels!r} levels; allowed: up to 16384"
    ):
        search((0.5,), num_nodes, num_levels)


@pytest.mark.parametrize(("num_nodes", "num_levels"), [(0, 3), (3, 0), (-1, -1)])
def test_a_tree_without_a_root_is_refused(num_nodes, num_levels):
    with pytest.raises(InvalidInput, match=f"found {num_nodes} nodes, {num_levels} levels"):
        search((0.5,), num_nodes, num_levels)


@pytest.mark.parametrize(("num_nodes", "num_levels"), [(0, 3), (3, 0), (6, 3), (3, 5), (-1, 2)])
def test_a_tree_that_was_not_searched_for_is_refused(num_nodes, num_levels):
    with pytest.raises(
        InvalidInput,
        match=f"{num_nodes} nodes in {num_levels} levels were not searched for; allowed: 1 to 5, 1 to 4",
    ):
        search((0.5, 0.3), 5, 4).topology(num_nodes, num_levels)


TIMES = [
    Times({1: 1.0, 2: 1.01, 4: 1.02, 8: 1.2}, 0.05),
    Times({1: 1.0, 3: 1.0, 5: 1.4, 6: 1.5, 7: 1.9}, 0.2),
    Times({1: 1.0, 2: 1.0, 3: 1.0, 8: 1.0}, 0.0),
    Times({1: 1.0, 2: 2.5, 8: 9.0}, 0.1),
]


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("acceptance", VECTORS)
@pytest.mark.parametrize("most_levels", [1, 3, 8])
def test_the_choice_is_the_fastest_of_all_trees(acceptance, times, most_levels):
    fastest = math.inf
    for num_nodes, target_s in times.target_s.items():
        for parents in ALL_TREES[num_nodes]:
            found = account(parents, acceptance)
            if found is not None and found[0] <= most_levels:
                fastest = min(fastest, ((found[0] - 1) * times.draft_s + target_s) / found[1])
    choice = choose(search(acceptance, 8, most_levels), times)
    levels, value = account(choice.topology.parents, acceptance)
    target_s = times.target_s[choice.topology.num_nodes]
    assert choice.s_per_token == pytest.approx(fastest, rel=1e-13)
    assert ((levels - 1) * times.draft_s + target_s) / value == pytest.approx(fastest, rel=1e-13)
    assert choice.expected_tokens == pytest.approx(value, rel=1e-13)
    assert choice.speedup == pytest.approx(times.target_s[1] / fastest, rel=1e-13)


def test_the_choice_follows_the_price_of_drafting():
    searched = search(VECTORS[0], 16, 16)
    target_s = {1: 1.0, 2: 1.0, 4: 1.05, 8: 1.1, 16: 1.2}
    dear, fair, cheap = (choose(searched, Times(target_s, draft_s)) for draft_s in (2.0, 0.2, 0.001))
    assert dear.topology == root_only() and dear.speedup == 1 and dear.expected_tokens == 1
    assert 1 < fair.topology.num_levels < cheap.topology.num_levels
    assert 1 < fair.speedup < cheap.speedup


def test_of_equally_fast_trees_the_smallest_is_chosen():
    # Children are never accepted and nothing costs more for them.
    searched = search((0.0, 0.0), 8, 8)
    assert choose(searched, Times({8: 1.0, 2: 1.0, 1: 1.0}, 0.0)).topology == root_only()


def test_a_published_choice():
    """Sequoia's demonstration: these times and the rounded head of its vector give a chain of four nodes.

    It is worth 2.291 tokens.
    """
    acceptance = (0.6342, 0.1079, 0.0570, 0.0225, 0.0195, 0.015, 0.0045, 0.003, 0.012)
    choice = choose(search(acceptance, 128, 10), Times({1: 10, 2: 10, 4: 10, 8: 12, 16: 14, 32: 18}, 0.3))
    assert choice.topology == chain(3)
    assert choice.expected_tokens == pytest.approx(2.291, abs=5e-4)
    # There the draft is forwarded once more, over leaves.
    assert (choice.s_per_token * choice.expected_tokens + 0.3) / choice.expected_tokens == pytest.approx(
        4.888, abs=1e-3
    )


def test_sizes_that_no_tree_has_are_passed_over():
    choice = choose(search((0.9,), 8, 4), Times({1: 1.0, 3: 1.0, 8: 1e-3}, 0.01))
    assert choice.topology == chain(2)


@pytest.mark.parametrize("num_nodes", [1, 2, 4, 8])
def test_one_size_alone_can_be_asked_for(num_nodes):
    target_s, draft_s = TIMES[0].target_s[num_nodes], TIMES[0].draft_s
    found = [account(parents, VECTORS[0]) for parents in ALL_TREES[num_nodes]]
    fastest = min(((both[0] - 1) * draft_s + target_s) / both[1] for both in found if both is not None)
    choice = choose(search(VECTORS[0], 8, 8), TIMES[0], num_nodes)
    assert choice.topology.num_nodes == num_nodes and choice.s_per_token == pytest.approx(fastest, rel=1e-13)
    assert choice.speedup == pytest.approx(1 / fastest, rel=1e-13)


@pytest.mark.parametrize("num_nodes", [3, 8])
def test_one_size_must_be_timed_and_have_a_tree(num_nodes):
    with pytest.raises(
        InvalidInput, match=rf"no tree of {num_nodes} nodes was searched and timed; timed sizes: \[1, 8\]"
    ):
        choose(search((0.9,), 8, 4), Times({1: 1.0, 8: 1.0}, 0.1), num_nodes)


BAD_TIMES = [
    ({}, 0.1, "of which 1 is one"),
    ({2: 1.0}, 0.1, "of which 1 is one"),
    ({1: 1.0, 0: 1.0}, 0.1, "sizes from 1"),
    ({1: 0.0}, 0.1, "positive seconds"),
    ({1: float("nan")}, 0.1, "positive seconds"),
    ({1: float("inf")}, 0.1, "positive seconds"),
    ({1: 1.0}, -0.1, "draft_s is -0.1"),
    ({1: 1.0}, float("nan"), "draft_s is nan"),
    ({1: 1.0}, float("inf"), "draft_s is inf"),
]


@pytest.mark.parametrize(("target_s", "draft_s", "message"), BAD_TIMES)
def test_what_is_no_time_is_refused(target_s, draft_s, message):
    with pytest.raises(InvalidInput, match=message):
        Times(target_s, draft_s)


def test_a_measured_size_must_have_been_searched():
    with pytest.raises(InvalidInput, match="time for 9 nodes; allowed: up to 8"):
        choose(search((0.5,), 8, 8), Times({1: 1.0, 9: 1.0}, 0.1))
