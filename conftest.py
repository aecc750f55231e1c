"""Quiet, quick and offline: one thread a test process, no hub, linear layers in torch's own way,
and nothing of the `make` around the tests.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["RESISPEC_LINEAR"] = "plain"  # nothing depends on what is fast here
os.environ["WANDB_MODE"] = "disabled"  # whatever key this machine knows
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

torch.set_num_threads(1)
if "ATEN_CPU_CAPABILITY" in os.environ:
    # Fused attention in half precision packs by what the processor can (AMX), not by what this
    # variable allows, and ends with "pack_vnni2 is only supported when avx512 is supported".
    torch.backends.cuda.enable_flash_sdp(False)
for name in [name for name in os.environ if name.startswith("MAKE")]:
    del os.environ[name]  # a `make` that a test calls would print and do otherwise


def pytest_collection_modifyitems(items):
    """What lies in a folder `slow` is for `make test-all`; `make test` leaves it out.

    What is marked `cuda` is skipped where there is no device.
    """
    has_device = torch.cuda.is_available()
    for item in items:
        if "slow" in item.path.parts:
            item.add_marker("slow")
        if not has_device and item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
