"""GPUs of the key `devices`, of which each process sees one."""

import os
from collections.abc import Mapping
from typing import Any

from experiments.doctor.device import ask
from experiments.processes import GPUS
from resispec.errors import InvalidInput


def gpus_of(config: Mapping[str, Any]) -> list[str | None]:
    """The value of CUDA_VISIBLE_DEVICES for the processes on each GPU; None, once, leaves it.

    `devices` counts the entries of that variable if it is set, which may be UUIDs. Raises
    InvalidInput for an entry that it has not.
    """
    chosen = config["devices"]
    if GPUS not in os.environ:
        return [str(device) for device in chosen] or [None]
    visible = [name.strip() for name in os.environ[GPUS].split(",") if name.strip()]
    for device in chosen:
        if device >= len(visible):
            hint = f"{GPUS}={os.environ[GPUS]} has {len(visible)} entries, counted from 0"
            raise InvalidInput(f"devices has {device}; {hint}")
    return [visible[device] for device in chosen] or [None]


def check_devices(config: Mapping[str, Any]) -> None:
    """Raise InvalidInput for `devices` that are not there."""
    if config["devices"]:
        gpus_of(config)
        if reason := ask(config["device"], config["devices"]).missing:
            raise InvalidInput(reason)
