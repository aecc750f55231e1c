"""Shapes of trees: the candidates, their comparison on one drafted tree, and the winners."""

import itertools
import random
from collections import Counter

import pytest
import torch

from experiments.search.candidates import (
    Value,
    delayed,
    even,
    fastest,
    filled,
    leaders,
    neighbours,
    ordered,
    regular,
    spread,
)
from experiments.tasks.prefix_laws import written_prefixes
from resispec.trees import (
    complete,
    from_child_counts,
    from_widths,
    parallel_chains,
    root_only,
    union,
)
from resispec.trees.search import expected_tokens, search, winners
from tests.harness.toy_shapes import comparing, workload
from tests.toys import table_pair


def test_a_union_holds_every_shape_and_no_more():
    #       0               0                 0
    #    1     2          1 2 3           1   2   3
    #   3 4                 4            4 5  6
    whole = union([from_child_counts([[2], [2]]), from_child_counts([[3], [0, 1]])])
    assert whole.parents == (-1, 0, 0, 0, 1, 1, 2)
    assert union([complete(3, 2), parallel_chains(2, 2), root_only()]) == complete(3, 2)


def test_prefixes_are_even_steps_of_what_the_target_writes():
    setting = workload(table_pair(vocab=6, seed=3), length=2, new_tokens=8)
    generator = torch.Generator().manual_seed(0)
    prefixes = written_prefixes(setting, 0, generator, 4)
    assert [len(tokens) for tokens in prefixes] == [2, 4, 6, 8] and prefixes[0] == [0, 0]
    assert all(
        longer[: len(shorter)] == shorter for shorter, longer in itertools.pairwise(prefixes)
    )
    few = written_prefixes(workload(setting.pair, new_tokens=3), 0, generator, 8)
    assert [len(tokens) for tokens in few] == [1, 2, 3]


def test_shapes_are_compared_on_the_same_draws_whatever_the_verifier():
    pair = table_pair(vocab=6, seed=3)
    task = comparing([[2, 2], [3], [2, 2]], num_prefixes=2)
    one, two, again = (
        task(workload(pair, name, length=6, draws="without_replacement"), 0)
        for name in ("standard", "traversal", "standard")
    )
    assert one == again and one.num_prefixes == 2
    assert one.emitted[0] == one.emitted[2] != two.emitted[0]
    assert two.emitted[1] == pytest.approx(one.emitted[1])  # a star has no depth to gain from
    assert task.progress([one]) == {"best": f"{max(one.emitted) / 2:.2f}"}


def test_topologies_are_filled_by_the_decoder_s_own_drafter():
    """A search for recycled laws compares trees that are drawn from them."""
    pair = table_pair(vocab=6, seed=3)
    task = comparing([[2, 2]], num_prefixes=4)
    plain, sharp, recycled = (
        task(workload(pair, "standard", length=8, **options), 0).emitted
        for options in ({}, {"sharpness": 3.0}, {"recycled": 0.5})
    )
    assert plain != sharp and plain != recycled


# Candidates


def test_shapes_are_filled_at_the_bottom_and_spread_with_their_ends():
    assert filled((8, 16), 120) == (8, *[16] * 7)
    assert filled((4, 8, 8, 3), 25) == (4, 8, 8, 5) and filled((4, 8, 8, 3), 30) == (4, 8, 8, 8, 2)
    assert (
        filled((5, 10), 12) == (5, 7)
        and filled((5, 10, 10), 5) == (5,)
        and filled((3,), 7) == (3, 3, 1)
    )
    assert spread([1, 2, 3, 4, 5], 3) == [1, 3, 5] and spread([1], 3) == [1]


@pytest.mark.parametrize(("num_nodes", "known"), [(16, (4, 4, 4, 3)), (121, (8, *[16] * 7))])
def test_regular_shapes_fill_the_budget(num_nodes, known):
    found = regular(num_nodes, 12, 6, lambda _: True)
    assert known in found
    assert len(set(found)) == len(found) and all(sum(shape) + 1 == num_nodes for shape in found)
    depths = Counter(map(len, found))
    assert set(depths) <= set(range(2, 12)) and max(depths.values()) <= 6
    for (
        shape
    ) in found:  # branchings that do not increase: no node has more children than its parent
        children = [-(-below // above) for above, below in itertools.pairwise((1, *shape))]
        assert all(now <= before for before, now in itertools.pairwise(children))


def test_delayed_shapes_are_a_path_and_then_independent_paths():
    found = delayed(121, 14, (1, 4))
    assert (1, 1, 1, 1, *[29] * 4) in found and (1, *[11] * 10, 9) in found
    for widths in found:
        trunk = widths.count(1)
        shape, below = from_widths(widths), widths[trunk]
        assert trunk in (1, 4) and len(set(found)) == len(found)
        assert shape.num_nodes == 121 and shape.num_levels <= 14
        branching = [len(children) for children in shape.children if len(children) > 1]
        assert branching == [below]  # one node branches, the trunk's last
    assert delayed(4, 14, (1, 2, 4)) == []


def test_even_shapes_have_levels_of_equal_nodes_or_leaves():
    found = even(121, 9, 10**6)
    assert {complete(5, 3), parallel_chains(15, 8), parallel_chains(20, 6)} <= set(found)
    for shape in found:
        counts = [{len(shape.children[node]) for node in level} - {0} for level in shape.levels]
        most = [max(of_level) for of_level in counts if of_level]
        above = shape.levels[-2]
        assert 4 * sum(bool(shape.children[node]) for node in above) >= len(above)
        assert shape.num_nodes == 121 and 3 <= shape.num_levels <= 9 and max(map(len, counts)) == 1
        assert most == sorted(most, reverse=True)
    few = even(121, 9, 2)
    assert Counter(shape.num_levels for shape in few) == dict.fromkeys(range(3, 10), 2) and set(
        few
    ) < set(found)


def test_neighbours_keep_the_budget_and_the_limit_of_levels():
    around = neighbours((4, 8, 8, 8, 2), 0.25, 6)
    assert (5, 8, 8, 8, 1) in around and (5, 9, 9, 7) in around and (4, 8, 6, 8, 4) in around
    assert all(sum(shape) == 30 and 2 <= len(shape) <= 5 and min(shape) >= 1 for shape in around)
    assert len(set(around)) == len(around) and (4, 8, 8, 8, 2) not in around
    assert (3, 7, 7, 7, 6) in neighbours((4, 8, 8, 8, 2), 0.25, 7)


def test_winners_against_brute_force():
    generator = random.Random(0)
    for _ in range(60):
        levels = [generator.randrange(1, 13) for _ in range(generator.randrange(1, 9))]
        shapes = [(level, 1 + generator.random() * level) for level in levels]
        found = winners(shapes)
        assert found[0].from_ratio == 0 and found[-1].to_ratio == float("inf")
        assert all(
            before.to_ratio == after.from_ratio for before, after in itertools.pairwise(found)
        )
        for ratio in (0, 0.001, 0.01, 0.03, 0.1, 0.17, 0.3, 1, 3, 10, 1000):
            rates = [tokens / (1 + ratio * (level - 1)) for level, tokens in shapes]
            [win] = [win for win in found if win.from_ratio <= ratio < win.to_ratio]
            assert rates[win.index] == pytest.approx(max(rates), rel=1e-12)


def test_leaders_and_the_fastest_of_what_was_found():
    values = {(2, 4): 2.0, (3, 3): 2.1, (2, 2, 2): 2.15, (6,): 1.9}
    found = {from_widths(widths): Value(tokens, 0.1) for widths, tokens in values.items()}
    star, best, second, deep = map(from_widths, ((6,), (3, 3), (2, 4), (2, 2, 2)))
    assert leaders(found) == {shape: found[shape] for shape in (star, best, deep)}
    assert list(leaders(found, 2)) == [star, best, second, deep]
    assert list(fastest(found)) == [deep, best, star] and fastest(found)[star] == float("inf")


def test_ordered_shapes_are_those_of_the_search_for_every_number_of_levels_and_flatter_vectors():
    vector = [0.6, 0.2, 0.1, 0.03, 0.02]
    found = ordered(vector, 13, range(3, 6))
    assert {search(vector, 13, 5).topology(13, levels) for levels in range(3, 6)} <= set(found)
    assert len(set(found)) == len(found) > 3
    assert all(shape.num_nodes == 13 and shape.num_levels <= 5 for shape in found)
    best = max(found, key=lambda shape: expected_tokens(shape, vector))
    # Flatter vectors ask for more children.
    assert max(len(shape.children[0]) for shape in found) > len(best.children[0])
    assert ordered([0.5], 13, range(3, 6)) == []  # a chain of 13 has more levels
    # where nothing is ever accepted there is still a tree
    assert ordered([0.0, 0.0, 0.0], 4, range(2, 4))
    assert ordered([0.6, -1e-9, 0.0], 4, range(2, 4))  # less than nothing, by rounding
