"""Rows of keys and values in preallocated slabs, with commit of an accepted path.

A cache that concatenates copies everything at every step; here a forward writes its rows in place, and a commit moves only
the rows of the tree that are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class Slab:
    """One layer's keys and values, (1, heads, capacity, head_dim) each, of which the first `length` rows are in use."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._rows: tuple[Tensor, Tensor] | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write new rows (1, heads, K, head_dim) after those in use; return views of all rows in use.

        Raises IndexError when they do not fit.
        """
        if self._rows is None:
            self._rows = tuple(new.new_empty(*new.shape[:2], self.capacity, new.shape[3]) for new in (keys, values))  # type: ignore[assignment]
        assert self._rows is not None
        start, self.length = self.length, self.length + keys.shape[2]
        if self.length > self.capacity:
            raise IndexError(f"the cache holds {self.capacity} positions; {self.length} were needed")
        for slab, new in zip(self._rows, (keys, values), strict=True):
            slab[:, :, start : self.length] = new
        return self._rows[0][:, :, : self.length], self._rows[1][:, :, : self.length]

    def keep(self, past: int, rows: Sequence[int]) -> None:
        """Keep the first `past` rows and, of those after them, the ones at offsets `rows`, in this order."""
        self.length = past + len(rows)
        if list(rows) == list(range(len(rows))):
            return  # they lie where they should: a chain, or nothing but the root
        for slab in self._rows or ():
            # Indexing copies first, so moving rows within one slab cannot overwrite what is still to be read.
            slab[:, :, past : self.length] = slab[:, :, [past + row for row in rows]]
