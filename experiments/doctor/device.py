"""The device of a profile, asked for in a process of its own,
since asking takes memory of an accelerator.

python -m experiments.doctor.device cuda      # prints the answer as JSON
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from resispec.machine import memory_bytes

LIMIT_S = 25.0


@dataclass(frozen=True)
class Device:
    """Torch's answer about a device.

    name: the hardware's name, "" without such a device; then `missing` says why. free, total: bytes
    of its memory.
    """

    name: str = ""
    free: int = 0
    total: int = 0
    missing: str = ""


def ask(kind: str) -> Device:
    """The answer about a device that a configuration names, like "cuda" or "cpu"."""
    command = [sys.executable, "-m", "experiments.doctor.device", kind]
    options = {"cwd": Path(__file__).parents[2], "capture_output": True, "text": True}
    try:
        run = subprocess.run(command, timeout=LIMIT_S, check=True, **options)
        return Device(**json.loads(run.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return Device(missing=f"torch gave no answer within {LIMIT_S:g} s")
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        return Device(missing=lines[-1])


def ask_torch(kind: str) -> Device:
    """Torch's answer about a device, asked in this process."""
    import torch

    from experiments.provenance import device_name

    device = torch.device(kind)
    if device.type == "cpu":
        return Device(device_name(device), free_memory(), memory_bytes())
    try:
        free, total = torch.cuda.mem_get_info(device)
    except (AssertionError, RuntimeError, ValueError) as error:
        [reason, *_] = str(error).splitlines()
        return Device(missing=f"torch {torch.__version__} finds no {kind}: {reason}")
    return Device(device_name(device), free, total)


def free_memory() -> int:
    """Bytes of the machine's memory that a new process may take, as Linux says; else all bytes."""
    info = Path("/proc/meminfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * kilobytes[0] if kilobytes else memory_bytes()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(ask_torch(sys.argv[1]))) + "\n")
