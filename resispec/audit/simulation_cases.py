"""Audit cases that need no model: wide laws, and scenes to simulate."""

import torch
from torch import Generator, Tensor

from resispec.audit.battery import MOST_SIBLINGS, pair_of_laws
from resispec.audit.simulate import Scene
from resispec.trees import Topology, chain, complete, from_child_counts

DEEP = 3
"""Number of tokens for every level of a deep scene."""
WIDE = 2_000
"""The vocabulary of the wide scene, in which a law cut to its top 50 or 1,000 tokens shows."""


def wide_laws(vocab: int, noise: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A Zipf-like target over `vocab` tokens and a draft with normal noise on its logits: (V,) float32."""
    generator = Generator().manual_seed(seed)
    logits = -1.2 * torch.arange(1, vocab + 1, dtype=torch.float32).log()
    target = logits + 0.5 * torch.randn(vocab, generator=generator)
    draft = target + noise * torch.randn(vocab, generator=generator)
    return target.softmax(-1), draft.softmax(-1)


def scenes(max_siblings: int) -> list[Scene]:
    """Scenes for verifiers of trees or, with max_siblings = 1, of chains.

    Laws that differ much, so that rejections lead to residuals; laws that differ little, so that most walks
    end at a leaf; six levels; a wide vocabulary; 8 siblings, which repeat tokens if they are independent; and
    many single siblings, whose residuals and final tokens are counted one by one.
    """
    laws = pair_of_laws("random", 16, Generator().manual_seed(0))
    singles = [_single("single, 16 tokens", *laws), _single("single, 300 tokens", *wide_laws(300))]
    deep_chain = _deep("deep chain", chain(5))
    if max_siblings == 1:
        pairs = [_narrow("far", chain(3), 4, 0.0), _narrow("near", chain(2), 3, 0.8)]
        return [*pairs, deep_chain, _wide(chain(2)), *singles]
    return [
        _narrow("far", from_child_counts([[3], [0, 2, 1]]), 4, 0.0),
        _narrow("near", complete(3, 2), 3, 0.8),
        _deep("deep", from_child_counts([[2], [1, 1], [1, 2], [1, 0, 1], [1, 0]])),
        deep_chain,
        _wide(from_child_counts([[3], [2, 0, 1]])),
        _narrow("many siblings", complete(2, MOST_SIBLINGS), MOST_SIBLINGS + 1, 0.3),
        *singles,
    ]


def _narrow(name: str, topology: Topology, vocab: int, likeness: float) -> Scene:
    """A scene of a bigram pair. likeness: the share of the target in the mixture that is the draft."""
    generator = Generator().manual_seed(vocab)
    rows = [pair_of_laws("random", vocab, generator) for _ in range(vocab)]
    target, draft = (torch.stack(laws) for laws in zip(*rows, strict=True))
    draft = likeness * target + (1 - likeness) * draft
    return Scene(name, topology, target.float(), draft.float(), torch.arange(vocab))


def _deep(name: str, topology: Topology) -> Scene:
    """A scene with separate tokens for every level; half of the levels reject little, so walks go deep.

    At odd depths the draft is the target. At even depths it is not, so that dependent decisions two levels
    apart show in where walks stop.
    """
    generator, num_blocks = Generator().manual_seed(1), topology.num_levels + 1
    target = torch.zeros(num_blocks * DEEP, num_blocks * DEEP, dtype=torch.float64)
    draft = torch.zeros_like(target)
    for row in range(len(target)):
        depth = row // DEEP
        columns = torch.arange(DEEP) + (depth + 1) % num_blocks * DEEP
        kind = "p = q" if depth % 2 else "random"
        target[row, columns], draft[row, columns] = pair_of_laws(kind, DEEP, generator)
    classes = torch.arange(len(target))
    return Scene(name, topology, target.float(), draft.float(), classes, trees_per_turn=2)


def _single(name: str, target: Tensor, draft: Tensor) -> Scene:
    """A scene of one sibling, with the same laws at the sibling and at the final token."""
    rows = target.float()[None], draft.float()[None]
    return Scene(name, chain(1), *rows, torch.arange(len(target)), trees_per_turn=6)


def _wide(topology: Topology) -> Scene:
    target, draft = wide_laws(WIDE, noise=0.5)
    place = torch.empty(WIDE, dtype=torch.int64)
    place[target.argsort(descending=True)] = torch.arange(WIDE)
    # The places in descending probability at which classes of tokens begin.
    classes = torch.bucketize(place, torch.tensor((1, 2, 5, 10, 20, 50, 100, 500)), right=True)
    return Scene("wide", topology, target[None], draft[None], classes)
