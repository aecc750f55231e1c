"""Linear layers on a CPU, each computed in the way that was fastest here when it was timed.

Torch has several ways to multiply few rows by a large weight. Which is fast depends on the
processor, the shape, the precision and the number of rows, and no name of a processor tells: oneDNN
brings a plain weight into its own order in every call, MKL is slow for a few rows on some machines,
docs/speed.md has times. So a shape is timed when a layer of it is loaded for the first time, and
the answer is kept for this processor, for all processes.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from resispec.errors import InvalidInput
from resispec.files import cache_root, locked, read_json, write_json
from resispec.kept import entry
from resispec.machine import memory_bytes, processor_name
from resispec.models.grid import Grid, grid_of
from resispec.models.module_state import version

FORCED = "RESISPEC_LINEAR"
"""The variable of the environment that forces one of WAYS on all layers, and turns timing off."""
PLAIN, PACKED, TRANSPOSED, FEW_BITS = "plain", "packed", "transposed", "few bits"
WAYS = {
    PLAIN: "torch's own layer",
    PACKED: "a second copy of the weight in the order in which oneDNN's kernels read it",
    TRANSPOSED: "the product of the weight and the rows as columns",
    FEW_BITS: "the whole numbers of a weight of eight or four bits, see `resispec.models.grid`",
}
ROWS = (1, 8, 32)
"""Numbers of rows that are timed."""
UP_TO = (2, 16)
"""The most rows for which the first and the second of ROWS speak."""
LEAST = 2**15
"""The number of weights from which on a shape is timed; a call of a smaller one takes no time."""
SAMPLE_BYTES = 32 << 20
"""The most weights that a round of a timing reads, so that it takes milliseconds."""
ROUNDS = 3
GAIN = 0.9
"""The time, over the plain way's, from which on another way is taken."""

Choice = tuple[str, ...]
"""A way for each of ROWS."""
Multiply = Callable[[Tensor], Tensor]
"""The function from inputs (..., in) to outputs (..., out) of a layer."""

_CHOSEN: dict[str, dict[str, Choice]] = {}
"""The choices of this process: setting -> shape -> choice, see `_setting` and `_shape`."""


def bucket(num_rows: int) -> int:
    """The place in ROWS of the number that speaks for a number of rows."""
    few, some = UP_TO
    return 0 if num_rows <= few else 1 if num_rows <= some else 2


class Product:
    """The multiplication by one weight, in a way for each number of rows.

    weight: (out, in). bias: (out,) or None. choice: a way for each of ROWS. grid: the weight's, if
    it has one. A packed way, and that of few bits, hold a copy of the weight that does not follow
    changes of it.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, choice: Choice, grid: Grid | None = None
    ) -> None:
        self.shape, self.width, self.choice = _shape(weight, grid), weight.shape[1], choice
        made: dict[str, Multiply] = {way: _made(way, weight, bias, grid) for way in choice}
        self._by_rows = [made[way] for way in choice]

    def of(self, num_rows: int) -> Multiply:
        """The function for inputs with this number of rows."""
        return self._by_rows[bucket(num_rows)]


class QuickLinear(nn.Linear):
    """A linear layer that uses a `Product`, in calls that need no gradient.

    Loading a weight, changing it in place, moving the layer or copying it makes it a plain one
    again. It does not see a change through `Tensor.data`, see `quicken_again`.
    """

    product: Product | None = None
    made_of: Any = None

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's output."""
        if self.product is None or torch.is_grad_enabled() or self.made_of != version(self.weight):
            return super().forward(inputs)
        return self.product.of(inputs.numel() // self.in_features)(inputs)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "product"}

    def _apply(self, *arguments: Any, **options: Any) -> Any:
        vars(self).pop("product", None)
        return super()._apply(*arguments, **options)

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        vars(self).pop("product", None)
        super()._load_from_state_dict(*arguments, **options)


def quicken(module: nn.Module) -> None:
    """Let the linear layers of a module on a CPU use their fastest ways.

    Raises InvalidInput when `FORCED` names no way.
    """
    _quicken(
        [
            layer
            for layer in module.modules()
            if type(layer) is nn.Linear or isinstance(layer, QuickLinear)
        ]
    )


def _quicken(layers: Sequence[Any]) -> None:
    layers = [layer for layer in layers if layer.weight.device.type == "cpu"]
    weights, grids = [layer.weight.detach() for layer in layers], [*map(grid_of, layers)]
    chosen = choices(weights, grids)
    for layer, choice, grid in zip(layers, chosen, grids, strict=True):
        bias = None if layer.bias is None else layer.bias.detach()
        if type(layer) is nn.Linear:
            layer.__class__ = QuickLinear
        # Not a buffer or a module: it is no part of the model's state.
        layer.product = Product(layer.weight.detach(), bias, choice, grid)
        layer.made_of = version(layer.weight)


def quicken_again(module: nn.Module) -> None:
    """Make the products of a module's layers anew, as their weights are now."""
    _quicken(_quick_layers(module))


def _quick_layers(module: nn.Module) -> list[Any]:
    """The layers of a module that use a product."""
    layers = (layer for layer in module.modules() if isinstance(layer, QuickLinear))
    return [layer for layer in layers if layer.product is not None]


def choices(weights: Sequence[Tensor], grids: Sequence[Grid | None] | None = None) -> list[Choice]:
    """The ways for these weights, (out, in) each; weights of a shape have the same ones.

    grids: those of the weights, None for one without. Weights on other devices, and small ones,
    are multiplied in the plain way. Packed weights take twice the memory, so no weight is packed
    if their copies would need more than a quarter of the machine's memory. Raises InvalidInput
    when `FORCED` names no way.
    """
    grids = grids or [None] * len(weights)
    by_shape: dict[str, list[tuple[Tensor, Grid | None]]] = {}
    for weight, grid in zip(weights, grids, strict=True):
        by_shape.setdefault(_shape(weight, grid), []).append((weight, grid))
    fits = sum(weight.nbytes for weight in weights) <= memory_bytes() / 4
    forced = os.environ.get(FORCED)
    if forced is not None:
        entry(FORCED, forced, WAYS)
    chosen = {}
    timed = {}
    for shape, alike in by_shape.items():
        weight, grid = alike[0]
        allowed = _allowed(weight, fits, grid)
        if forced is not None:
            chosen[shape] = (forced if forced in allowed else PLAIN,) * len(ROWS)
        elif len(allowed) == 1 or weight.numel() < LEAST:
            chosen[shape] = (PLAIN,) * len(ROWS)
        else:
            timed[shape] = alike
    if timed:
        with _kept(_setting()) as known:
            for shape, alike in timed.items():
                if shape not in known:
                    known[shape] = fastest(*zip(*alike, strict=True))
                weight, grid = alike[0]
                ways = _allowed(weight, fits, grid)
                chosen[shape] = tuple(way if way in ways else PLAIN for way in known[shape])
    return [chosen[_shape(weight, grid)] for weight, grid in zip(weights, grids, strict=True)]


@torch.inference_mode()
def fastest(weights: Sequence[Tensor], grids: Sequence[Grid | None] | None = None) -> Choice:
    """The fastest way for each of ROWS, timed on weights of one shape, (out, in) each.

    grids: those of the weights, None for one without.

    Every weight's least time of a few rounds counts, in which the ways take turns, so that other
    work of the machine hardly matters. A round reads several weights, as a forward does, since a
    weight that was just read is still in the processor's caches. A way that fails, or is wrong by
    more than rounding, is left out.
    """
    num_rows = max(1, SAMPLE_BYTES // (weights[0].nbytes // len(weights[0])))
    sample = [weight[:num_rows] for weight in weights]
    sample = sample[: max(1, SAMPLE_BYTES // sample[0].nbytes)]
    parts = [grid and grid.rows(slice(num_rows)) for grid in grids or [None] * len(weights)]
    made: dict[str, list[Multiply]] = {}
    for way in _allowed(sample[0], True, parts[0]):
        with suppress(Exception):  # a private operator can raise anything
            functions = [
                _made(way, weight, None, part) for weight, part in zip(sample, parts, strict=False)
            ]
            if all(_is_right(functions[0], sample[0], count) for count in ROWS):
                made[way] = functions
    return tuple(_fastest(made, _rows(sample[0], count)) for count in ROWS)


def _fastest(made: dict[str, list[Multiply]], inputs: Tensor) -> str:
    least = {way: [float("inf")] * len(functions) for way, functions in made.items()}
    for _ in range(ROUNDS):
        for way, functions in made.items():
            for place, function in enumerate(functions):
                started = time.perf_counter()
                function(inputs)
                seconds = time.perf_counter() - started
                least[way][place] = min(least[way][place], seconds)
    totals = {way: sum(times) for way, times in least.items()}
    way = min(totals, key=lambda name: totals[name], default=PLAIN)
    return PLAIN if PLAIN in totals and totals[way] > GAIN * totals[PLAIN] else way


def _is_right(function: Multiply, weight: Tensor, count: int) -> bool:
    """Whether a way gives the plain way's result but for rounding."""
    inputs = _rows(weight, count)
    expected = functional.linear(inputs, weight).double()
    gap = (function(inputs).double() - expected).norm()
    return bool(gap <= 8 * torch.finfo(weight.dtype).eps * expected.norm())


def _rows(weight: Tensor, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, weight.shape[1], generator=generator).to(weight.dtype)


def _allowed(weight: Tensor, fits: bool, grid: Grid | None = None) -> tuple[str, ...]:
    """The ways that can be tried for a weight. fits: whether there is memory for copies."""
    if weight.device.type != "cpu" or not weight.is_floating_point():
        return (PLAIN,)
    packed = (PACKED,) if fits and can_pack(weight.dtype) else ()
    return PLAIN, TRANSPOSED, *packed, *(() if grid is None else (FEW_BITS,))


def _made(way: str, weight: Tensor, bias: Tensor | None, grid: Grid | None) -> Multiply:
    if way != FEW_BITS:
        return _multiply(way, weight, bias)
    assert grid is not None
    return grid.multiply(bias)


def _multiply(way: str, weight: Tensor, bias: Tensor | None) -> Multiply:
    if way == PLAIN:
        return lambda inputs: functional.linear(inputs, weight, bias)
    if way == TRANSPOSED:

        def transposed(inputs: Tensor) -> Tensor:
            columns = inputs.reshape(-1, weight.shape[1]).t()
            product = (
                torch.mm(weight, columns)
                if bias is None
                else torch.addmm(bias[:, None], weight, columns)
            )
            return product.t().contiguous().view(*inputs.shape[:-1], -1)

        return transposed
    operators: Any = torch.ops.mkldnn  # which torch keeps for its compiler
    multiply = operators._linear_pointwise.default
    packed = operators._reorder_linear_weight(weight, None)
    return lambda inputs: multiply(inputs, packed, bias, "none", [], "")


def can_pack(dtype: torch.dtype) -> bool:
    """Whether torch has the operators for packing on this machine and for this precision."""
    operators: Any = torch.ops.mkldnn
    names = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
    if not (
        torch.backends.mkldnn.is_available() and all(hasattr(operators, name) for name in names)
    ):
        return False
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and bool(operators._is_mkldnn_bf16_supported())
    )


def _shape(weight: Tensor, grid: Grid | None = None) -> str:
    """A weight's shape and precision in words, like "576x1536 float32" or "576x1536 int4"."""
    size = "x".join(map(str, weight.shape))
    dtype = str(weight.dtype).removeprefix("torch.")
    return f"{size} {dtype if grid is None else f'int{grid.bits}'}"


def _setting() -> str:
    """All that a time depends on besides the shape."""
    kernels, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    return f"{processor_name()}, {kernels}, threads {threads}, torch {torch.__version__}"


@contextmanager
def _kept(setting: str) -> Iterator[dict[str, Choice]]:
    """The choices that are known for a setting; those that the block adds are kept.

    They are in a file of the cache, whose lock is held in the block, so that processes which start
    together choose alike. If the cache cannot be used, this process has its own choices.
    """
    known = _CHOSEN.setdefault(setting, {})
    digest = hashlib.sha256(setting.encode()).hexdigest()[:16]
    path = cache_root() / "linear" / f"{digest}.json"
    with ExitStack() as stack:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(path.with_suffix(".lock"), on_wait=lambda: None))
        with suppress(InvalidInput):
            known |= {shape: c for shape, c in _read(read_json(path)).items() if shape not in known}
        before = dict(known)
        yield known
        if known != before:
            with suppress(OSError):
                write_json(path, {"setting": setting, "rows": ROWS, "ways": known})


def _read(content: dict[str, Any]) -> dict[str, Choice]:
    """The choices in a file; what is no choice of today is left out, and timed again."""
    if content.get("rows") != list(ROWS) or not isinstance(content.get("ways"), dict):
        return {}
    return {
        shape: tuple(choice)
        for shape, choice in content["ways"].items()
        if isinstance(choice, list)
        and len(choice) == len(ROWS)
        and all(isinstance(way, str) and way in WAYS for way in choice)
    }


def described(products: Sequence[Product]) -> dict[str, str]:
    """The ways that products take, by shape: one word, or one for each of ROWS."""
    return {
        product.shape: product.choice[0]
        if len({*product.choice}) == 1
        else ", ".join(product.choice)
        for product in products
    }


def products_in(module: nn.Module) -> list[Product]:
    """The products that the layers of a module use."""
    return [layer.product for layer in _quick_layers(module)]
