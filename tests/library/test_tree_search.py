"""The tree search against every ordered tree of up to seven nodes."""

import math

import numpy as np
import pytest

from resispec.errors import InvalidInput
from resispec.trees import Topology, chain, complete, from_child_counts, root_only
from resispec.trees.search import Times, choose, expected_tokens, search

VECTORS = [
    (0.6, 0.2, 0.1, 0.05),
    (0.1, 0.5, 0.0, 0.3, 0.05),  # not in order, and a child that is never accepted
    (1.0,),
    (0.25, 0.25, 0.25, 0.25, 0.0, 0.0, 0.0),
    (0.0,),
]
MOST = 7


def breadth_first_parents(num_nodes):
    """Every ordered tree, as parents that never decrease; their number is Catalan's."""
    rows = [(-1,)]
    for node in range(1, num_nodes):
        rows = [(*row, parent) for row in rows for parent in range(max(0, row[-1]), node)]
    return rows


def account(parents, acceptance):
    """(levels, expected tokens) by walking up from all nodes; None if one has too many children."""
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


ALL_TREES = {num_nodes: breadth_first_parents(num_nodes) for num_nodes in range(1, MOST + 1)}


@pytest.mark.parametrize("acceptance", VECTORS)
def test_the_search_is_as_good_as_every_tree(acceptance):
    searched = search(acceptance, MOST, MOST)
    assert [len(trees) for trees in ALL_TREES.values()] == [1, 1, 2, 5, 14, 42, 132]
    for num_nodes, trees in ALL_TREES.items():
        accounts = [account(parents, acceptance) for parents in trees]
        for parents, both in zip(trees, accounts, strict=True):
            if both is not None:
                assert expected_tokens(Topology(parents), acceptance) == pytest.approx(
                    both[1], rel=1e-13
                )
        possible = [both for both in accounts if both is not None]
        for num_levels in range(1, MOST + 1):
            best = max(
                (value for levels, value in possible if levels <= num_levels), default=-math.inf
            )
            assert searched.expected[num_nodes, num_levels] == pytest.approx(best, rel=1e-13)
            if best == -math.inf:
                with pytest.raises(
                    InvalidInput, match=f"no tree of {num_nodes} nodes in {num_levels} levels"
                ):
                    searched.topology(num_nodes, num_levels)
                continue
            topology = searched.topology(num_nodes, num_levels)
            assert topology.num_nodes == num_nodes and topology.num_levels <= num_levels
            assert expected_tokens(topology, acceptance) == pytest.approx(best, rel=1e-13)


def test_known_trees():
    # By hand: a second child (0.3) is worth less than a chain's third (0.6^2), more than its fourth
    # (0.6^3).
    assert search((0.6, 0.3), 4, 4).topology(3, 4) == chain(2)
    assert search((0.6, 0.3), 4, 4).topology(4, 4) == from_child_counts([[2], [1]])
    assert expected_tokens(from_child_counts([[2], [1]]), (0.6, 0.3)) == pytest.approx(
        1 + 0.6 + 0.3 + 0.36
    )
    # At ties the root has the fewest children, and the last of them the most nodes.
    assert search((0.0, 0.0), 5, 5).topology(5, 5) == chain(4)
    assert search((0.0, 0.0), 5, 3).topology(5, 3) == from_child_counts([[2], [0, 2]])


def test_rounding_of_float32_is_no_fault():
    """On another processor the sum of a measured vector was 1.0000000049670537."""
    exact = (0.5, 0.25, 0.125, 0.125)
    for excess in (4.9670537e-9, 9e-6):
        rounded = (exact[0] + excess, *exact[1:])
        assert search(rounded, 8, 8).topology(8, 8) == search(exact, 8, 8).topology(8, 8)
        assert expected_tokens(complete(2, 4), rounded) == pytest.approx(2, abs=1e-5)
    counts = np.random.default_rng(0).integers(1, 50, 32).astype(np.float32)
    search((counts / np.nextafter(counts.sum(), np.float32(0))).tolist(), 8, 8)
    assert expected_tokens(chain(3), (1 + 1e-7, -1e-9)) == 4


BAD_VECTORS = [
    (),
    (0.7, 0.4),
    (-0.1, 0.5),
    (1.5,),
    (float("nan"), 0.2),
    (0.5, 0.50002),
    (-0.00002, 0.5),
]


@pytest.mark.parametrize("acceptance", BAD_VECTORS)
def test_numbers_that_are_no_probabilities_are_refused(acceptance):
    for use in (lambda: search(acceptance, 4, 4), lambda: expected_tokens(root_only(), acceptance)):
        with pytest.raises(InvalidInput, match=f"acceptance holds {len(acceptance)} values"):
            use()


def test_limits_of_a_search_are_whole_numbers_that_fit():
    for size, levels in ((8, 2.5), (True, 3), (10**9, 3), (0, 3), (3, 0)):
        with pytest.raises(
            InvalidInput, match=f"found {size!r} nodes, {levels!r} levels; allowed:"
        ):
            search((0.5,), size, levels)
    for size, levels in ((0, 3), (3, 0), (6, 3), (3, 5)):
        with pytest.raises(InvalidInput, match=f"no tree of {size} nodes in {levels} levels"):
            search((0.5, 0.3), 5, 4).topology(size, levels)


TIMES = [Times({1: 1.0, 2: 1.01, 4: 1.02, 7: 1.2}, 0.05), Times({1: 1.0, 2: 2.5, 6: 9.0}, 0.0)]


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("acceptance", VECTORS)
@pytest.mark.parametrize("most_levels", [3, 7])
def test_the_choice_is_the_fastest_of_all_trees(acceptance, times, most_levels):
    fastest = {}
    for num_nodes, target_s in times.target_s.items():
        for levels, tokens in filter(
            None, (account(tree, acceptance) for tree in ALL_TREES[num_nodes])
        ):
            if levels <= most_levels:
                s = ((levels - 1) * times.draft_s + target_s) / tokens
                fastest[num_nodes] = min(fastest.get(num_nodes, math.inf), s)
    searched = search(acceptance, MOST, most_levels)
    for num_nodes in (None, *fastest):
        choice = choose(searched, times, num_nodes)
        levels, value = account(choice.topology.parents, acceptance)
        target_s = times.target_s[choice.topology.num_nodes]
        wanted = min(fastest.values()) if num_nodes is None else fastest[num_nodes]
        assert ((levels - 1) * times.draft_s + target_s) / value == pytest.approx(wanted, rel=1e-13)
        assert choice.expected_tokens == pytest.approx(value, rel=1e-13)
        assert choice.speedup == pytest.approx(times.target_s[1] / wanted, rel=1e-13)


def test_sizes_are_chosen_only_where_there_is_a_tree_and_the_smallest_of_equally_fast_ones():
    # Children are never accepted and nothing costs more.
    assert choose(search((0.0, 0.0), 8, 8), Times({8: 1.0, 1: 1.0}, 0.0)).topology == root_only()
    assert choose(search((0.9,), 8, 4), Times({1: 1.0, 3: 1.0, 8: 1e-3}, 0.01)).topology == chain(2)
