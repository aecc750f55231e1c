"""Trainings that can be killed at any moment: each goes on from its own checkpoint and no other.

A step's result depends only on the state before it, so a training that goes on ends with the same
bytes as a training that was never stopped.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor, nn

from resispec.errors import InvalidInput, first_line
from resispec.files import replacing
from resispec.models.checkpoint import digest_of
from resispec.progress import progress_bar

BETAS = (0.9, 0.95)
"""AdamW's betas, in every training."""

_FINAL_SHARE = 0.02  # of the peak learning rate, at the end of the cosine
_SAVE_EVERY_S = 20.0
_SAVING_SHARE = 0.02  # of the time at most: a checkpoint of gigabytes is written less often


class Training(ABC):
    """A training that can be stopped at any moment and goes on from its checkpoint.

    module: the network. recipe: the settings; all trainings read the fields `steps`,
    `learning_rate` (at its peak) and `warmup_steps`. history: the losses `measured` of every step
    that is done.
    """

    measured: ClassVar[tuple[str, ...]]
    """Names of the losses that a step returns."""

    def __init__(
        self,
        module: nn.Module,
        recipe: Any,
        optimizers: Iterable[torch.optim.Optimizer],
        sources: Mapping[str, Mapping[str, Tensor]],
    ) -> None:
        """sources: tensors besides the recipe that decide the result, by source, then by name."""
        self.module: Any = module
        self.recipe = recipe
        self.history: list[tuple[float, ...]] = []
        self._optimizers, self._sources = list(optimizers), sources

    @abstractmethod
    def _update(self) -> tuple[float, ...]:
        """Make one update; returns the losses `measured` before the update."""

    @property
    def done(self) -> int:
        """Number of steps that are done."""
        return len(self.history)

    def step(self) -> tuple[float, ...]:
        """Make the next update at its learning rate; returns the losses `measured` before it.

        The rate rises linearly, then falls with a cosine.
        """
        recipe = self.recipe
        share = (self.done + 1) / max(1, recipe.warmup_steps)
        if self.done >= recipe.warmup_steps:
            progress = (self.done - recipe.warmup_steps) / max(
                1, recipe.steps - recipe.warmup_steps
            )
            share = _FINAL_SHARE + (1 - _FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * progress))
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * share
        self.history.append(self._update())
        return self.history[-1]

    def run(self, title: str, checkpoint: Path) -> None:
        """Train to the last step, from the checkpoint if there is one, with a progress bar.

        checkpoint: the file that is replaced every 20 seconds, less often if writing it takes long,
        and at the end; no other process may write it. Raises InvalidInput when the checkpoint is
        damaged or belongs to another training, and when the training diverges; the checkpoint then
        stays as it was.
        """
        kind, steps = type(self.recipe).__name__, self.recipe.steps
        identity = {f"{kind}.{name}": repr(value) for name, value in vars(self.recipe).items()}
        identity |= {name: digest_of(tensors) for name, tensors in self._sources.items()}
        # half-written files of a killed run
        for leftover in checkpoint.parent.glob(f".{checkpoint.name}.*"):
            leftover.unlink()
        if checkpoint.exists():
            self._restore(_read(checkpoint, identity))
        due = time.monotonic() + _SAVE_EVERY_S
        with progress_bar(total=steps, initial=self.done, desc=title, unit="step") as bar:
            while self.done < steps:
                losses = (f"{loss:.3f}" for loss in self.step())
                bar.set_postfix(dict(zip(self.measured, losses, strict=True)), refresh=False)
                bar.update()
                if (start := time.monotonic()) >= due or self.done == steps:
                    self._check_finite()
                    with replacing(checkpoint) as partial:
                        torch.save({"identity": identity, **self._state()}, partial)
                    end = time.monotonic()
                    due = end + max(_SAVE_EVERY_S, (end - start) / _SAVING_SHARE)

    def _check_finite(self) -> None:
        """Raise InvalidInput if a weight is no number."""
        if all(bool(weight.isfinite().all()) for weight in self.module.parameters()):
            return
        losses = ", ".join(map(str, self.history[-1]))
        raise InvalidInput(
            f"the training diverges: weights are no numbers after step {self.done}, whose losses "
            f"were {losses}; take a lower learning_rate"
        )

    def last_losses(self) -> dict[str, float]:
        """The mean of every loss over the last tenth of the recipe's steps."""
        tail = self.history[-max(1, self.recipe.steps // 10) :]
        means = (math.fsum(losses) / len(tail) for losses in zip(*tail, strict=True))
        return {name: round(mean, 4) for name, mean in zip(self.measured, means, strict=True)}

    def _state(self) -> dict[str, Any]:
        """Values and tensors that decide the next step, of types that `torch.load` reads safely."""
        return {
            "history": list(self.history),
            "module": self.module.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `_state` returned."""
        self.history = list(state["history"])
        self.module.load_state_dict(state["module"])
        for optimizer, values in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(values)


def _read(path: Path, identity: Mapping[str, str]) -> dict[str, Any]:
    """A file's checkpoint.

    Raises InvalidInput when it is damaged, or of a training of another identity.
    """
    try:
        with ZipFile(path) as archive:  # torch.load does not verify checksums
            if (member := archive.testzip()) is not None:
                raise BadZipFile(f"{member} is not what was written")
        checkpoint = dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        raise InvalidInput(
            f"checkpoint {path} is damaged: {first_line(error)}; remove it to start anew"
        ) from error
    origin = checkpoint.get("identity", {})
    changes = "; ".join(
        f"{name} was {origin.get(name)}, is {value}"
        for name, value in identity.items()
        if origin.get(name) != value
    )
    if changes:
        raise InvalidInput(
            f"checkpoint {path} is another training's ({changes}); remove it to start anew"
        )
    return checkpoint
