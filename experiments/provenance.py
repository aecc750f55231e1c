"""The origin of a result: code, machine, versions and command."""

import os
import platform
import re
import resource
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from resispec.machine import checkout, device_name

PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "hydra-core", "numpy")


def provenance(device: torch.device) -> dict[str, Any]:
    """Everything that a reader needs to know where a measurement comes from.

    device: the target's.
    """
    return {
        **checkout(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "num_threads": torch.get_num_threads(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "num_cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
    }


def origin(device: torch.device) -> str:
    """The device and the commit in words, for the foot of a table that the run itself makes."""
    facts = provenance(device)
    changed = " (changed)" if facts["git_is_dirty"] else ""
    return f"Device: {facts['device']}. Commit: {facts['git_commit'][:10] or 'unknown'}{changed}."


def device_stem(device: torch.device) -> str:
    """The hardware's name for files, like "nvidia_h200"."""
    return re.sub("[^a-z0-9]+", "_", device_name(device).lower()).strip("_")


def peak_memory(device: torch.device) -> dict[str, int]:
    """The most bytes that this process has held of the machine's memory and an accelerator's."""
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    on_device = {"device": torch.cuda.max_memory_allocated(device)} if device.type == "cuda" else {}
    return {"process": process} | on_device
