"""Audit cases that need no model: wide laws, and scenes to simulate."""

import torch
from torch import Generator, Tensor

from resispec.audit.battery import MOST_SIBLINGS, pair_of_laws
from resispec.audit.walk_statistics import Scene
from resispec.trees import Topology, chain, complete, from_child_counts

DEEP = 3
"""Number of tokens for every level of a deep scene."""
NUM_CLASSES = 32
"""The most classes of tokens in a scene with laws of a pair."""


def wide_laws(vocab: int, noise: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A Zipf-like target and a draft with normal noise on its logits, both (V,) float32."""
    generator = Generator().manual_seed(seed)
    logits = -1.2 * torch.arange(1, vocab + 1, dtype=torch.float32).log()
    target = logits + 0.5 * torch.randn(vocab, generator=generator)
    draft = target + noise * torch.randn(vocab, generator=generator)
    return target.softmax(-1), draft.softmax(-1)


def scenes(max_siblings: int) -> list[Scene]:
    """Scenes for verifiers of trees or, with max_siblings = 1, of chains.

    Laws that differ much, so that rejections lead to residuals; laws that differ little, so that
    most walks end at a leaf; six levels that decide and a bonus token; peaked and sparse laws; wide
    vocabularies, with many bonus tokens; 8 siblings, which repeat tokens if they are independent;
    and many single siblings, whose residuals are counted token by token. The number of trees makes
    `MOVED` true at each position.
    """
    chains = [
        _narrow("long chain", chain(6), 16, 0.85, 200),
        _equal("equal levels", chain(6), (0.5, 0.5), (0.75, 0.25), 30),
        _narrow("peaked chain", chain(3), 16, 0.7, 40, "peaked"),
        _narrow("sparse chain", chain(3), 16, 0.7, 40, "sparse"),
        _wide("bonus, 2,048 tokens", chain(1), 2_048, 0.2, 50),
        _wide("bonus, 32,000 tokens", chain(1), 32_000, 0.2, 25),
        _single("single, 16 tokens", 16, 40),
        _single("single, 300 tokens", 300, 40),
        _single("single, 64 tokens", 64, 360),
    ]
    if max_siblings == 1:
        pairs = [_narrow("far", chain(3), 4, 0.0, 25), _narrow("near", chain(2), 3, 0.8, 25)]
        return [*pairs, _wide("wide", chain(2), 2_048, 0.5, 15), *chains]
    deep = from_child_counts([[2], [1, 1], [1, 2], [1, 0, 1], [1, 0]])
    return [
        _narrow("far", from_child_counts([[3], [0, 2, 1]]), 4, 0.0, 25),
        _narrow("near", complete(3, 2), 3, 0.8, 25),
        _deep("deep", deep, 20),
        _wide("wide", from_child_counts([[3], [2, 0, 1]]), 2_048, 0.5, 15),
        _equal("equal siblings", complete(2, 3), (0.3, 0.35, 0.35), (0.6, 0.3, 0.1), 50),
        _narrow("many siblings", complete(2, MOST_SIBLINGS), MOST_SIBLINGS + 1, 0.3, 30),
        *chains,
    ]


def scenes_of_laws(setting: str, target: Tensor, draft: Tensor, max_siblings: int) -> list[Scene]:
    """Scenes of a pair's laws (R, V) under named sampling settings: a chain, and a tree."""
    classes = torch.arange(target.shape[1]) % NUM_CLASSES
    scenes = [Scene(f"pair's chain, {setting}", chain(4), target, draft, classes, 30, setting)]
    if max_siblings > 1:
        tree = complete(3, 3)
        scenes.append(Scene(f"pair's tree, {setting}", tree, target, draft, classes, 4, setting))
    return scenes


def _narrow(
    name: str,
    topology: Topology,
    vocab: int,
    likeness: float,
    trees_per_turn: int,
    kind: str = "random",
) -> Scene:
    """A scene of a bigram pair.

    likeness: the share of the target in the mixture that is the draft.
    """
    generator = Generator().manual_seed(vocab)
    rows = [pair_of_laws(kind, vocab, generator) for _ in range(vocab)]
    target, draft = (torch.stack(laws) for laws in zip(*rows, strict=True))
    draft = likeness * target + (1 - likeness) * draft
    return Scene(name, topology, target.float(), draft.float(), torch.arange(vocab), trees_per_turn)


def _equal(
    name: str,
    topology: Topology,
    target: tuple[float, ...],
    draft: tuple[float, ...],
    trees_per_turn: int,
) -> Scene:
    """A scene with the same laws at all nodes: a random number used twice shows at any two."""
    rows = torch.tensor([target]), torch.tensor([draft])
    return Scene(name, topology, *rows, torch.arange(len(target)), trees_per_turn)


def _deep(name: str, topology: Topology, trees_per_turn: int) -> Scene:
    """A scene with separate tokens for every level, whose walks go deep.

    Half of the levels reject little. At odd depths the draft is the target. At even depths it is
    not, so that dependent decisions two levels apart show in where walks stop.
    """
    generator, num_blocks = Generator().manual_seed(1), topology.num_levels + 1
    target = torch.zeros(num_blocks * DEEP, num_blocks * DEEP, dtype=torch.float64)
    draft = torch.zeros_like(target)
    for row in range(len(target)):
        depth = row // DEEP
        columns = torch.arange(DEEP) + (depth + 1) % num_blocks * DEEP
        kind = "p = q" if depth % 2 else "random"
        target[row, columns], draft[row, columns] = pair_of_laws(kind, DEEP, generator)
    return Scene(
        name, topology, target.float(), draft.float(), torch.arange(len(target)), trees_per_turn
    )


def _single(name: str, vocab: int, trees_per_turn: int) -> Scene:
    """A scene of one sibling, with the same laws at the sibling and at the final token."""
    target, draft = pair_of_laws("random", vocab, Generator().manual_seed(0))
    classes = torch.arange(vocab)
    return Scene(name, chain(1), target.float()[None], draft.float()[None], classes, trees_per_turn)


def _wide(name: str, topology: Topology, vocab: int, noise: float, trees_per_turn: int) -> Scene:
    """A scene of wide laws, whose 32 likeliest tokens are counted one by one.

    The others are counted by their place: from 32 to 63, from 64 to 127 and so on, even tokens and
    odd ones.
    """
    target, draft = wide_laws(vocab, noise)
    place = torch.empty(vocab, dtype=torch.int64)
    place[target.argsort(descending=True)] = torch.arange(vocab)
    octave = place.clamp_min(32).double().log2().long() - 5
    classes = torch.where(place < 32, place, 32 + 2 * octave + torch.arange(vocab) % 2)
    return Scene(name, topology, target[None], draft[None], classes, trees_per_turn)
