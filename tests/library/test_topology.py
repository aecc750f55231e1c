"""Shapes that a reader can check by eye."""

import pytest
import torch

from resispec.errors import InvalidInput
from resispec.trees import Topology, chain, complete, from_child_counts, root_only


@pytest.mark.parametrize(
    ("depth", "branching", "num_nodes"), [(5, 3, 121), (7, 2, 127), (4, 5, 156), (3, 11, 133), (4, 4, 85)]
)
def test_the_papers_verification_costs(depth, branching, num_nodes):
    topology = complete(depth, branching)
    assert (topology.num_nodes, topology.num_levels) == (num_nodes, depth)


def test_a_drawn_tree():
    #        0
    #    1   2   3
    #    4      5 6
    topology = from_child_counts([[3], [1, 0, 2]])
    assert topology.parents == (-1, 0, 0, 0, 1, 3, 3)
    assert topology.children == ((1, 2, 3), (4,), (), (5, 6), (), (), ())
    assert topology.depths.tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert topology.levels == (range(0, 1), range(1, 4), range(4, 7))
    assert topology.ancestors.int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0],
        [1, 0, 0, 1, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0],
        [1, 0, 0, 1, 0, 1, 0],
        [1, 0, 0, 1, 0, 0, 1],
    ]
    assert [(parents.tolist(), children.tolist()) for parents, children in topology.families] == [
        ([1], [[4]]),
        ([3], [[5, 6]]),
        ([0], [[1, 2, 3]]),
    ]


def test_chain_and_root_are_complete_trees():
    assert chain(3).parents == (-1, 0, 1, 2)
    assert torch.equal(chain(3).ancestors, torch.ones(4, 4, dtype=torch.bool).tril())
    assert root_only().parents == (-1,) and root_only().num_levels == 1 and root_only().families == ()


@pytest.mark.parametrize("parents", [(), (0,), (-1, 1), (-1, 0, 0, 2, 1), (-1, -1)])
def test_a_numbering_that_is_not_breadth_first_is_refused(parents):
    with pytest.raises(InvalidInput):
        Topology(parents)


@pytest.mark.parametrize(("depth", "branching"), [(0, 3), (5, 0), (-1, 1)])
def test_a_tree_without_levels_or_branches_is_refused(depth, branching):
    with pytest.raises(InvalidInput, match=f"depth {depth}, branching {branching}"):
        complete(depth, branching)
