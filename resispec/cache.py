"""Rows of keys and values in preallocated slabs, with commit of an accepted path.

A cache that concatenates copies everything at every step; here a forward writes its rows in place, and a commit moves only
the rows of the tree that are kept.
"""

from __future__ import annotations

from torch import Tensor


class Slab:
    """One layer's keys and values, (2, 1, heads, capacity, head_dim), of which the first `length` rows are in use."""

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
            # index_select copies first, so moving rows within one slab cannot overwrite what is still to be read.
            self._rows[:, :, :, length - len(moved) : length] = self._rows.index_select(3, moved)
        self.length = length
