"""The target's laws from earlier steps, mixed into the laws that a draft model draws from.

Every step computes the target's law at all nodes of its tree, and most of these nodes are not kept.
The target's law after some tokens is a good guess of its law after the same tokens later: Token
Recycling (arXiv 2408.08696) makes whole trees of such guesses, here they correct a draft model. The
law that a node's children are drawn from may be any function of earlier steps and of the node's own
path, so verifiers stay exact.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from resispec.cuda_graphs import own_unit, upload
from resispec.errors import InvalidInput
from resispec.models import Model, Warp
from resispec.trees import Topology

NUM_PLACES = 1024
"""The number of laws that a table holds; a new law may take the place of an old one."""
NOTHING = -1
"""The id that stands for the token before a sequence's first token."""
MOST_READ = 512
"""The most laws of a prompt that are recycled: the last ones."""
_NONE = torch.iinfo(torch.int64).min  # the key of a place that holds no law


def check_share(share: float) -> None:
    """Raise InvalidInput unless `share` can be the share of recycled laws."""
    if not 0 <= share < 1:
        raise InvalidInput(f"recycled is {share}; allowed: from 0, which is off, to below 1")


class RecycledLaws:
    """Means of the target's laws after the same last token, and after the same last two tokens.

    share: the part of a law that a known mean replaces; the mean after the last token is mixed in
    first, then the mean after the last two. With 0 nothing is learnt or mixed. warp: turns the
    target's logits into laws. topology: the shape of the trees whose laws are learnt. Every
    sequence starts with a call of `begin`.
    """

    def __init__(self, share: float, target: Model, warp: Warp, topology: Topology) -> None:
        self._share, self._target, self._warp, self._device = share, target, warp, target.device
        self._tables = tuple(
            _Table(target.vocab_size, self._device) for _ in range(2 if share else 0)
        )
        self._parents = upload(topology.parents[1:], self._device)
        self._learn_tree = own_unit(self._learned, self._device)

    def begin(self, prompt: Sequence[int], features: Tensor | None) -> None:
        """Forget all laws, and take in the laws of a prompt.

        features: as for `DraftSession.prefill`.
        """
        for table in self._tables:
            table.keys.fill_(_NONE)
        if self._share and features is not None:
            tokens = upload([NOTHING, *prompt[:-1]], self._device)[-MOST_READ - 1 :]
            laws = self._warp.law(self._target.head(features[-MOST_READ:]))
            self.learn(tokens[:-1], tokens[1:], laws)

    def learn_tree(self, before: Tensor, tokens: Tensor, laws: Tensor) -> None:
        """Take in laws (N, V) of a tree of `tokens` (N,), whose root follows `before` (1,)."""
        if self._share:
            self._learn_tree(None, before, tokens, laws)

    def _learned(self, _: None, before: Tensor, tokens: Tensor, laws: Tensor) -> tuple[()]:
        self.learn(torch.cat((before, tokens.index_select(0, self._parents))), tokens, laws)
        return ()

    def learn(self, before: Tensor, tokens: Tensor, laws: Tensor) -> None:
        """Take in laws (K, V) after `tokens`, which follow `before`, (K,) int64 each; share > 0."""
        for table, keys in zip(self._tables, self._keys(before, tokens), strict=True):
            table.add(keys, laws)

    def mixed(self, before: Tensor, tokens: Tensor, laws: Tensor) -> Tensor:
        """A draft's `laws` (K, V) with the known means mixed in. before, tokens: as in `learn`."""
        if not self._share:
            return laws
        for table, keys in zip(self._tables, self._keys(before, tokens), strict=True):
            laws = table.mixed(keys, laws, self._share)
        return laws

    def _keys(self, before: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return tokens, before * self._target.vocab_size + tokens


class _Table:
    """Sums of laws by key, each in the place of its key; no method waits for the device.

    One more place, the last, takes writes that should change nothing.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.keys = torch.full((NUM_PLACES,), _NONE, device=device)
        # Not filled with zeros, which would take longest of all: a place is zeroed when a key takes
        # it.
        self._counts = torch.empty(NUM_PLACES + 1, 1, device=device)
        self._sums = torch.empty(NUM_PLACES + 1, vocab_size, device=device)

    def add(self, keys: Tensor, laws: Tensor) -> None:
        """Add laws (K, V) to the sums of their keys (K,); of a place's keys the largest stays."""
        places = keys.remainder(NUM_PLACES)
        before = self.keys.index_select(0, places)
        largest = torch.full_like(self.keys, _NONE).scatter_reduce(0, places, keys, "amax")
        now = largest.index_select(0, places)
        self.keys.index_copy_(0, places, now)
        # A place's sums stay if its key stays, and a law counts unless another key has taken its
        # place.
        resets = torch.where(now != before, places, NUM_PLACES)
        additions = torch.where(now == keys, places, NUM_PLACES)
        for sums, values in ((self._counts, torch.ones_like(laws[:, :1])), (self._sums, laws)):
            sums.index_fill_(0, resets, 0.0)
            sums.index_add_(0, additions, values.float())

    def mixed(self, keys: Tensor, laws: Tensor, share: float) -> Tensor:
        """Laws (K, V), each mixed with a share of the mean of its key (K,) if that key is known."""
        places = keys.remainder(NUM_PLACES)
        is_known = (self.keys.index_select(0, places) == keys)[:, None]
        mean = self._sums.index_select(0, places) / self._counts.index_select(0, places).clamp_min(
            1
        )
        return torch.where(is_known, torch.lerp(laws, mean.to(laws.dtype), share), laws)
