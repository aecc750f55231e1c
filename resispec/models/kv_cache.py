"""Keys and values in memory allocated once, in places that do not depend on what was accepted.

The rows of the current step come first, always at the same places; after them come the committed
rows, in order. A forward reads all places, and its mask says which of them hold a row. So no shape
and no address in a step depends on data, and a device can run the step as one captured unit.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from resispec.errors import InvalidInput

Mask = Tensor | dict[str, Tensor]
"""The rows that each row may attend to, (1, 1, K, places): bool, or numbers added to the scores.

It is a mask by kind of layer if there are several kinds.
"""

Windows = Mapping[str, int | None]
"""Windows by kind of layer: how many positions back a row sees, its own included; None for all."""

FULL: Windows = {"full_attention": None}


def cache_argument(forward: Callable[..., Any]) -> str:
    """The name of a forward's cache: `cache` since transformers 5.24, `past_key_values` before.

    A forward's output gives the cache back under the same name.
    """
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def check_window(name: str, config: Any) -> None:
    """Raise InvalidInput if a Llama has a window, as `windows_of` does."""
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if window and kinds is None and config.model_type == "llama":
        raise InvalidInput(
            f"{name}: sliding_window is {window}, which no layer of a llama reads but the cache of "
            "transformers does; allowed: None"
        )


def windows_of(name: str, config: Any) -> Windows:
    """The attention window of each kind of layer of a text model.

    config: the transformers configuration. Raises InvalidInput, which names the kinds, if a layer
    has neither full attention nor a window, or if a Llama has a window.
    """
    check_window(name, config)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:  # all layers are of one kind, as in Mistral
        return {"sliding_attention": window} if window else FULL
    windows = {**FULL, "sliding_attention": window}
    if not set(kinds) <= windows.keys() or ("sliding_attention" in kinds and not window):
        raise InvalidInput(
            f"{name}: found layers of {', '.join(sorted(set(kinds)))}, sliding_window {window}; "
            f"allowed: {' and '.join(windows)} with a sliding_window"
        )
    return {kind: windows[kind] for kind in sorted(set(kinds))}


class _Store:
    """The memory of all layers: tensors (layers, 2, 1, heads, places, head_dim) of keys and values.

    Layers with the first layer's shape share one tensor, so that their rows move at once; any other
    layer has its own tensor. Where values have another shape than keys, as latent attention (MLA)
    caches them, both have a tensor of their own, with 1 in place of 2.
    places: where the next forward writes its rows: (K,) int64, or a slice of places that are known.
    """

    def __init__(self, num_layers: int, num_places: int) -> None:
        self.num_layers, self.num_places = num_layers, num_places
        self.places: Tensor | slice = torch.empty(0, dtype=torch.int64)
        self.rows: list[Tensor] = []

    def allocated(self, layer: int, key_states: Tensor, value_states: Tensor) -> Sequence[Tensor]:
        """Memory of a layer's keys and of its values, (1, heads, places, head_dim) each.

        key_states, value_states: the layer's first ones, (1, heads, K, head_dim) each.
        """
        if key_states.shape != value_states.shape:
            memory = [
                states.new_zeros(1, 1, *states.shape[:2], self.num_places, states.shape[3])
                for states in (key_states, value_states)
            ]
            self.rows += memory
            return [rows[0, 0] for rows in memory]
        shape = torch.Size((2, *key_states.shape[:2], self.num_places, key_states.shape[3]))
        # A mask does not hide NaN, so unused rows must hold numbers.
        if not self.rows:
            self.rows.append(key_states.new_zeros(self.num_layers, *shape))
        if self.rows[0].shape[1:] == shape:
            return self.rows[0][layer].unbind()
        self.rows.append(key_states.new_zeros(1, *shape))
        return self.rows[-1][0].unbind()

    def write(self, memory: Tensor, states: Tensor) -> None:
        """Write rows (..., K, head_dim) to their places in memory (..., places, head_dim)."""
        if isinstance(self.places, slice):
            memory[..., self.places, :] = states
        else:
            memory.index_copy_(memory.ndim - 2, self.places, states)


class _Layer(CacheLayerMixin):
    """One layer of a store, in the form that transformers asks for."""

    is_sliding = False

    def __init__(self, store: _Store, layer: int) -> None:
        super().__init__()
        self._store, self._layer = store, layer
        self._rows: Sequence[Tensor] = ()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing, since `update` allocates the memory."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write rows (1, heads, K, head_dim) to their places; return all rows."""
        if not self._rows:
            self._rows = self._store.allocated(self._layer, key_states, value_states)
        keys, values = self._rows
        self._store.write(keys, key_states)
        self._store.write(values, value_states)
        return keys, values

    def get_seq_length(self) -> int:
        """Return 0: nothing depends on the length, since positions and masks are always given."""
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Width of the attention mask, and its offset."""
        return self._store.num_places, 0

    def get_max_length(self) -> int:
        """The number of rows that fit."""
        return self._store.num_places

    get_max_cache_shape = get_max_length  # the name that transformers before 5.14 asks for


class KeyValues:
    """A sequence's cache: `drafted` places for a step's rows, then `capacity` for committed ones.

    Every layer holds all rows; if a layer has a window, its mask leaves out the rows beyond the
    window. So neither the places of rows nor the keeping of a path depends on the window.
    cache: the cache that transformers gets. past: () int64 on the device, the number of committed
    rows. added: the precision of masks of numbers, which are added to scores; None for masks of
    bool.
    """

    def __init__(
        self,
        num_layers: int,
        capacity: int,
        drafted: int,
        device: torch.device,
        windows: Windows = FULL,
        added: torch.dtype | None = None,
    ) -> None:
        self._drafted, self._windows = drafted, windows
        self._numbers: tuple[Tensor, Tensor] | None = None  # that a mask adds: seen, and not seen
        if added is not None:
            least = torch.finfo(added).min
            seen, unseen = torch.tensor([0.0, least], dtype=added).to(device).unbind()
            self._numbers = seen, unseen
        self._store = _Store(num_layers, drafted + capacity)
        self.cache = Cache(layers=[_Layer(self._store, layer) for layer in range(num_layers)])
        self.past = torch.zeros((), dtype=torch.int64, device=device)
        self._columns = torch.arange(capacity, device=device)
        self._places = self._columns + drafted  # of committed rows
        self._depths = torch.zeros(drafted, dtype=torch.int64, device=device)  # of the step's rows

    @property
    def places(self) -> Tensor | slice:
        """The places of the rows of the forward that room was made for last."""
        return self._store.places

    def memory(self, heads: int, head_dim: int, dtype: torch.dtype) -> list[Tensor]:
        """The memory of each layer's keys and values, (2, heads, places, head_dim).

        It is for a forward that writes its rows to `places` there instead of using `cache`.
        """
        states = torch.empty(1, heads, 0, head_dim, dtype=dtype, device=self.past.device)
        for layer in range(self._store.num_layers):
            self._store.allocated(layer, states, states)
        return [rows.squeeze(1) for rows in self._store.rows[0]]

    def extend(self, count: int) -> tuple[Tensor, Mask]:
        """Make room for `count` committed rows; returns their positions (1, K) and their mask.

        Each row sees all rows before it that its layer's window reaches. Rows that do not fit have
        no place, so on a CPU the forward that writes them raises IndexError.
        """
        positions = self.past + torch.arange(count, device=self.past.device)
        self._store.places = self._drafted + positions
        visible = torch.nn.functional.pad(self._columns <= positions[:, None], (self._drafted, 0))
        mask = self._masked(visible, positions)
        self.past.add_(count)
        return positions[None], mask

    def draft(self, depths: Tensor, visible: Tensor) -> tuple[Tensor, Mask]:
        """Make room for K rows of the current step; returns their positions (1, K) and their mask.

        depths, visible: as for `Session.forward`. Raises IndexError if there is no room for them.
        """
        count, total = visible.shape
        if total > self._drafted:
            raise IndexError(f"index {self._drafted} is out of bounds for the rows of a step")
        self._store.places = places = slice(total - count, total)
        self._depths[places] = depths
        padding = visible.new_zeros(count, self._drafted - total)
        committed = (self._columns < self.past).expand(count, -1)
        positions = self.past + depths
        return positions[None], self._masked(torch.cat((visible, padding, committed), 1), positions)

    def _masked(self, visible: Tensor, positions: Tensor) -> Mask:
        """The mask of rows at `positions` (K,): `visible` (K, places) within layers' windows."""
        masks = {}
        for kind, window in self._windows.items():
            mask = visible
            if window is not None:
                # the position at every place
                held = torch.cat((self.past + self._depths, self._columns))
                mask = visible & (positions[:, None] - held < window)
            if self._numbers is not None:
                mask = torch.where(mask, *self._numbers)
            masks[kind] = mask[None, None]
        return masks if len(masks) > 1 else masks.popitem()[1]

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """Commit these rows of the step (K,) int64, in this order."""
        places = self.past + self._places[: len(rows)]
        for memory in self._store.rows:
            memory.index_copy_(4, places, memory.index_select(4, rows))
        self.past.add_(len(rows))

    @torch.inference_mode()
    def clear(self) -> None:
        """Forget everything."""
        self.past.zero_()
