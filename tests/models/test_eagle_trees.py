"""Trees of EAGLE, against EAGLE-1's ranks and EAGLE-2's algorithm written out over paths."""

import itertools

import pytest
import torch

from resispec.drafters import DraftModel, DynamicTree, Eagle, Reading
from resispec.drafters.eagle_trees import FixedTree, Growth
from resispec.drafters.recycled import RecycledLaws
from resispec.errors import InvalidInput
from resispec.models import Warp
from resispec.trees import chain, from_child_counts, root_only
from tests.toys import table_pair

pytestmark = pytest.mark.numerics

EAGLE1 = from_child_counts([[4], [3, 2, 2, 1], [3, 2, 2, 1], [3], [2]])


class TableDrafter:
    """A drafter whose prediction is a row of logits for the token; checks depths and masks."""

    def __init__(self, logits):
        self.logits, self.forwarded = logits, []

    def forward(self, tokens, features, depths, visible):
        depth = len(self.forwarded)
        drafted = [token for level in self.forwarded for token in level]
        assert depths.tolist() == [depth] * len(tokens)
        assert visible.shape == (len(tokens), len(drafted) + len(tokens))
        for row, token in enumerate(tokens.tolist()):
            assert visible[row, len(drafted) + row]
            path = [
                [*drafted, *tokens.tolist()][place]
                for place in visible[row].nonzero()[:, 0].tolist()
            ]
            # one node of every level, itself included
            assert len(path) == depth + 1 and path[-1] == token
            expected = self.logits[path[-2] if depth else 0]
            assert torch.equal(features[row], expected)  # the parent's prediction
        self.forwarded.append(tokens.tolist())
        return self.logits[tokens]


def growth(logits):
    """The root's token is 0."""
    drafter, unrecycled = (
        TableDrafter(logits),
        RecycledLaws(0.0, table_pair().target, Warp(), root_only()),
    )
    known = torch.tensor([0, 0])
    return drafter, Growth(
        drafter, lambda features: features, logits[:1], Warp(), known, unrecycled
    )


def grow(tree, growing):
    return tree.connect(*tree.grow(growing, torch.Generator()))


def path_of(grown, node):
    parent = grown.topology.parents[node]
    return () if node == 0 else (*path_of(grown, parent), int(grown.tokens[node - 1]))


def paths(grown):
    return [path_of(grown, node) for node in range(1, grown.topology.num_nodes)]


def published(logits, tree):
    """EAGLE-2's algorithm over paths: (path, score) of the nodes that stay, best first."""
    laws = torch.log_softmax(logits, -1)
    beam, pool = {(): 0.0}, {}
    for _ in range(tree.depth + 1):
        found = {}
        for path, score in beam.items():
            values, tokens = laws[path[-1] if path else 0].topk(tree.top_k)
            found |= {
                (*path, token): score + value
                for value, token in zip(values.tolist(), tokens.tolist(), strict=True)
            }
        pool |= found
        beam = dict(sorted(found.items(), key=lambda item: -item[1])[: tree.top_k])
    return sorted(pool.items(), key=lambda item: -item[1])[: tree.total_token - 1]


@pytest.mark.parametrize(
    "sizes", [(60, 5, 10), (8, 3, 2), (500, 2, 3), (2, 5, 3), (100, 0, 3), (100, 4, 1)]
)
def test_the_dynamic_tree_equals_the_published_algorithm(sizes):
    tree = DynamicTree(*sizes)
    for seed in range(4):
        logits = 3 * torch.randn(
            20, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        drafter, growing = growth(logits)
        grown = grow(tree, growing)
        assert len(drafter.forwarded) == tree.depth
        assert sorted(paths(grown)) == sorted(path for path, _ in published(logits, tree))
        assert len(set(paths(grown))) == grown.topology.num_nodes - 1
        tokens = [0, *grown.tokens.tolist()]
        # siblings from the likeliest down
        for node, children in enumerate(grown.topology.children):
            drawn = logits[tokens[node], [tokens[child] for child in children]].tolist()
            assert drawn == sorted(drawn, reverse=True)
        inner = [node for node, children in enumerate(grown.topology.children) if children]
        expected = logits[torch.tensor(tokens)[inner]].softmax(-1)
        assert grown.nodes.tolist() == inner and torch.allclose(
            torch.cat(growing.laws)[grown.rows], expected
        )
        assert grown.topology.num_nodes <= tree.largest.num_nodes
        assert grown.topology.num_levels <= tree.largest.num_levels


@pytest.mark.parametrize("kind", ["certain", "uniform", "half"])
def test_ties_at_the_cut_do_not_break_the_tree(kind):
    """A certain token has log-probability exactly 0, so that its node ties with its parent."""
    logits = {
        "certain": torch.eye(6).roll(1, 1) * 1e4,
        "uniform": torch.zeros(6, 6),
        "half": (torch.eye(6).roll(1, 1) * 30).half(),
    }[kind]
    for total_token in range(2, 14):
        grown = grow(DynamicTree(total_token, depth=3, top_k=3), growth(logits)[1])
        kept = set(paths(grown))
        assert len(kept) == total_token - 1 == grown.topology.num_nodes - 1
        assert all(path[:-1] in kept or len(path) == 1 for path in kept)


def test_a_law_of_nan_is_not_a_tree():
    logits = torch.eye(6).roll(1, 1)
    logits[1] = torch.nan
    with pytest.raises(FloatingPointError, match="NaN"):
        grow(DynamicTree(8, 1, 3), growth(logits)[1])


def test_the_fixed_tree_is_eagle_1s():
    ranks = (
        "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
    )
    logits = torch.randn(30, 30, generator=torch.Generator().manual_seed(0))
    drafter, growing = growth(logits)
    grown = grow(FixedTree(EAGLE1, Reading.POINT_MASS), growing)
    places = logits.argsort(-1, descending=True).argsort(-1).tolist()
    found = [
        "".join(str(places[a][b]) for a, b in itertools.pairwise((0, *path)))
        for path in paths(grown)
    ]
    assert found == ranks.split()
    assert [len(level) for level in drafter.forwarded] == [4, 4, 1, 1]  # leaves are not forwarded
    assert len(grown.nodes) == 11 and grown.rows.tolist() == list(range(11))
    tokens = torch.cat((torch.zeros(1, dtype=torch.int64), grown.tokens))
    assert torch.allclose(torch.cat(growing.laws), logits[tokens[grown.nodes]].softmax(-1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DynamicTree(1, 5, 10),
            "total_token >= 2, depth >= 0 and top_k >= 1; found DynamicTree",
        ),
        (lambda: DynamicTree(60, 5, True), "top_k=True.; allowed: whole numbers up to 16384"),
        (
            lambda: DynamicTree(10**9, 5, 10),
            "total_token=1000000000, .*; allowed: whole numbers up to 16384",
        ),
        (
            lambda: Eagle(DynamicTree(60, 5, 10), "sampled"),
            "sampled candidates need a tree of fixed shape",
        ),
        (
            lambda: Eagle(chain(3), recycled=0.5),
            "recycled is 0.5 and nothing is drawn; allowed: 0, or",
        ),
        (lambda: Eagle(chain(3), "iid", 1.0), "recycled is 1.0; allowed: from 0"),
        (
            lambda: Eagle(chain(3), "greedy"),
            "unknown reading 'greedy'; allowed: point_mass, softmax",
        ),
        (
            lambda: DraftModel(DynamicTree(60, 5, 10)),
            "fills a tree of fixed shape; found DynamicTree",
        ),
    ],
)
def test_what_gives_no_tree_is_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()
