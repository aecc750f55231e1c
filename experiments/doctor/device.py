"""The device of a profile, asked for in a process of its own,
since asking takes memory of an accelerator.

python -m experiments.doctor.device cuda      # prints the answer as JSON
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

LIMIT_S = 25.0


@dataclass(frozen=True)
class Device:
    """Torch's answer about a device.

    name: the hardware's name, "" without such a device; then `missing` says why. free, total: bytes
    of its memory. has_bfloat16: whether it computes in that precision itself.
    """

    kind: str
    name: str = ""
    free: int = 0
    total: int = 0
    has_bfloat16: bool = True
    missing: str = ""


def ask(kind: str) -> Device:
    """The answer about a device that a configuration names, like "cuda" or "cpu"."""
    command, root = (
        [sys.executable, "-m", "experiments.doctor.device", kind],
        Path(__file__).parents[2],
    )
    try:
        run = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
        return Device(**json.loads(run.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return Device(kind, missing=f"torch gave no answer within {LIMIT_S:g} s")
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        return Device(kind, missing=lines[-1])


def free_memory() -> tuple[int, int]:
    """Bytes of the machine's memory that are free for a new process,
    and all bytes; zeros if unknown.
    """
    info = Path("/proc/meminfo")
    if not info.is_file():
        return 0, 0
    lines = dict(line.split(":", 1) for line in info.read_text(encoding="utf-8").splitlines())
    free, total = (1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    return free, total


def ask_torch(kind: str) -> Device:
    """Torch's answer about a device, asked in this process."""
    import torch

    from experiments.provenance import device_name

    if kind == "cpu":
        return Device(kind, device_name(torch.device(kind)), *free_memory())
    if torch.version.cuda is None and torch.version.hip is None:
        missing = f"this torch, {torch.__version__}, was built without CUDA"
        return Device(kind, missing=f"no CUDA device can be used: {missing}")
    if not torch.cuda.is_available():
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if devices is None else f" (CUDA_VISIBLE_DEVICES is {devices!r})"
        return Device(kind, missing=f"no CUDA device was found{hint}")
    device = torch.device(kind)
    if (device.index or 0) >= torch.cuda.device_count():
        return Device(
            kind, missing=f"no {kind}: {torch.cuda.device_count()} CUDA devices were found"
        )
    has_bfloat16 = torch.cuda.get_device_capability(device) >= (8, 0)  # older devices emulate it
    return Device(
        kind, torch.cuda.get_device_name(device), *torch.cuda.mem_get_info(device), has_bfloat16
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(ask_torch(sys.argv[1]))) + "\n")
