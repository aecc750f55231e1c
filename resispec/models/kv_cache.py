"""Keys and values in memory that is allocated once, in the form that transformers asks for.

A cache that concatenates copies everything at every step. Here a forward writes its rows in place, and
keeping an accepted path moves only that path's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class Slab:
    """Keys and values of one layer, (2, 1, heads, capacity, head_dim); the first `length` rows are in use."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._rows: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write new rows (1, heads, K, head_dim) after those in use; return views of all rows in use.

        Raises IndexError when they do not fit.
        """
        if self._rows is None:
            self._rows = keys.new_empty(2, *keys.shape[:2], self.capacity, keys.shape[3])
        start, stop = self.length, self.length + keys.shape[2]
        if stop > self.capacity:
            raise IndexError(f"the cache holds {self.capacity} positions; {stop} were needed")
        self._rows[0, :, :, start:stop] = keys
        self._rows[1, :, :, start:stop] = values
        self.length = stop
        return self._rows[0, :, :, :stop], self._rows[1, :, :, :stop]

    def keep(self, length: int, moved: Tensor | None) -> None:
        """Keep the first `length` rows, after moving the rows `moved` (K,) int64 to their end."""
        if moved is not None and self._rows is not None:
            # index_select copies first, so moving rows within one slab overwrites nothing still to be read.
            self._rows[:, :, :, length - len(moved) : length] = self._rows.index_select(3, moved)
        self.length = length


class _SlabLayer(CacheLayerMixin):
    """Lets transformers write into a `Slab`."""

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.slab = Slab(capacity)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the slab allocates itself."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append rows and return all rows in use."""
        return self.slab.append(key_states, value_states)

    def get_seq_length(self) -> int:
        """Rows in use."""
        return self.slab.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Width of the attention mask for `query_length` new rows, and its offset."""
        return self.slab.length + query_length, 0

    def get_max_length(self) -> int:
        """Rows that fit."""
        return self.slab.capacity

    get_max_cache_shape = get_max_length  # the name that transformers before 5.14 asks for


class SlabCache:
    """The keys and values of one sequence in `num_layers` layers, at most `capacity` rows.

    cache: what transformers gets.
    """

    def __init__(self, num_layers: int, capacity: int, device: torch.device) -> None:
        self._layers, self._device = [_SlabLayer(capacity) for _ in range(num_layers)], device
        self.cache = Cache(layers=list(self._layers))

    @property
    def length(self) -> int:
        """Cached positions."""
        return self._layers[0].slab.length

    def keep(self, past: int, rows: Sequence[int]) -> None:
        """See `Session.keep`."""
        # Rows that lie where they should stay there: a chain, or nothing but the root.
        is_in_place = list(rows) == list(range(len(rows)))
        moved = None if is_in_place else torch.tensor(rows, device=self._device) + past
        for layer in self._layers:
            layer.slab.keep(past + len(rows), moved)
