"""Topologies that can be checked by eye, and sizes that are refused before anything is built."""

import pickle
import weakref
from copy import deepcopy

import pytest
import torch

from resispec.drafters.levels import inner_levels
from resispec.errors import InvalidInput
from resispec.trees import (
    MAX_NODES,
    Topology,
    chain,
    complete,
    families_by_level_on,
    families_on,
    from_child_counts,
    from_widths,
    parallel_chains,
    root_only,
    union,
)


def test_a_drawn_tree():
    #        0
    #    1   2   3
    #    4      5 6
    topology = from_child_counts([[3], [1, 0, 2]])
    assert topology.parents == (-1, 0, 0, 0, 1, 3, 3)
    assert topology.children == ((1, 2, 3), (4,), (), (5, 6), (), (), ())
    assert topology.depths.tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert topology.levels == (range(0, 1), range(1, 4), range(4, 7))
    seen = [[0], [0, 1], [0, 2], [0, 3], [0, 1, 4], [0, 3, 5], [0, 3, 6]]
    assert [row.nonzero().flatten().tolist() for row in topology.ancestors] == seen
    families = [(parents.tolist(), children.tolist()) for parents, children in topology.families]
    assert families == [([1], [[4]]), ([3], [[5, 6]]), ([0], [[1, 2, 3]])]
    by_level = [
        parents.tolist() for parents, _ in families_by_level_on(topology, torch.device("cpu"))
    ]
    assert by_level == [[0], [1], [3]]


def test_tensors_on_a_device_live_as_long_as_their_topology():
    """A captured graph reads their memory, however many other topologies there were since."""
    device, topology = torch.device("cpu"), complete(3, 2)
    families, levels = families_on(topology, device), inner_levels(topology, device)
    assert [children.tolist() for _, children in families.groups] == [[[1, 2], [3, 4], [5, 6]]]
    assert families.owners.tolist() == [0, 0, 1, 1, 2, 2] and families.ends.tolist() == [1, 3, 5]
    assert families.above.tolist() == [0, 0, 0, 0, 1, 1]
    assert families.sums(torch.arange(1.0, 7.0)).tolist() == [3.0, 7.0, 11.0]
    for count in range(1, 100):
        families_on(chain(count), device)
        inner_levels(chain(count), device)
    assert families_on(topology, device) is families and inner_levels(topology, device) is levels
    for copy in (pickle.loads(pickle.dumps(topology)), deepcopy(topology)):
        assert copy == topology and vars(copy) == {"parents": topology.parents}
    tensor = weakref.ref(levels[0].places)
    del topology, families, levels
    assert tensor() is None


def test_chains_widths_and_the_root():
    assert chain(3).parents == (-1, 0, 1, 2) and parallel_chains(2, 2).parents == (-1, 0, 0, 1, 2)
    assert from_widths([3, 5, 2]).parents == (-1, 0, 0, 0, 1, 1, 2, 2, 3, 4, 5)
    assert torch.equal(chain(3).ancestors, torch.ones(4, 4, dtype=torch.bool).tril())
    assert (
        root_only().parents == (-1,) and root_only().num_levels == 1 and root_only().families == ()
    )
    for largest in (complete(2, MAX_NODES - 1), chain(MAX_NODES - 1), from_widths([MAX_NODES - 1])):
        assert largest.num_nodes == MAX_NODES


@pytest.mark.parametrize("parents", [(), (0,), (-1, 1), (-1, 0, 0, 2, 1), (-1, -1)])
def test_a_numbering_that_is_not_breadth_first_is_refused(parents):
    with pytest.raises(InvalidInput):
        Topology(parents)


TOO_LARGE = {
    "complete tree of depth 12, branching 4": lambda: complete(12, 4),
    "branching 1000000": lambda: complete(10**6, 10**6),
    f"chain of {MAX_NODES} drafted tokens": lambda: chain(MAX_NODES),
    "1000000 chains of 1000000 tokens": lambda: parallel_chains(10**6, 10**6),
    "these widths": lambda: from_widths([10, 10**9]),
    "these child counts": lambda: from_child_counts([[2], [10**12, 3]]),
    "a topology": lambda: Topology((-1, *[0] * MAX_NODES)),
    "of these child counts": lambda: union(
        [complete(2, MAX_NODES - 1), from_child_counts([[1], [2]])]
    ),
}


@pytest.mark.parametrize("shape", TOO_LARGE)
def test_a_topology_that_is_too_large_is_refused_before_it_is_built(shape):
    with pytest.raises(
        InvalidInput, match=f"{shape} has too many nodes; allowed: at most {MAX_NODES}, .*$"
    ):
        TOO_LARGE[shape]()


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda wrong: complete(wrong, 2), "a complete tree takes whole numbers from 1; found .*"),
        (lambda wrong: complete(2, wrong), "a complete tree takes whole numbers from 1; found .*"),
        (chain, "a chain takes whole numbers from 0; found num_drafted .*"),
        (
            lambda wrong: parallel_chains(2, wrong),
            "parallel chains takes whole numbers from 1; found .*",
        ),
        (
            lambda wrong: from_child_counts([[wrong]]),
            "child counts are .*; allowed: a list of whole numbe.*",
        ),
        (
            lambda wrong: Topology((-1, wrong)),
            "nodes are numbered breadth first; node 1 has parent .*",
        ),
    ],
)
def test_a_size_that_is_no_whole_number_is_refused_in_one_line(attempt, message):
    for wrong in ("five", True, [3], -2):
        with pytest.raises(InvalidInput, match=f"^{message}$"):
            attempt(wrong)


def test_an_object_that_is_no_list_is_refused_in_one_line():
    for build in (from_child_counts, lambda row: from_child_counts([row])):
        for wrong in ("35", None, {3: 5}):
            with pytest.raises(InvalidInput, match="allowed: a list of whole numbers"):
                build(wrong)
