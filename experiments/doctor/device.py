"""The device of a profile, from a process of its own, since asking takes an accelerator's memory.

python -m experiments.doctor.device cuda 0 1    # prints the answer about both as JSON
"""

import json
import subprocess
import sys
from collections.abc import Sequence
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


def ask(kind: str, indexes: Sequence[int] = ()) -> Device:
    """The answer about a device that a configuration names, like "cuda" or "cpu".

    indexes: of several GPUs, see `ask_torch`.
    """
    command = [sys.executable, "-m", "experiments.doctor.device", kind, *map(str, indexes)]
    options = {"cwd": Path(__file__).parents[2], "capture_output": True, "text": True}
    try:
        run = subprocess.run(command, timeout=LIMIT_S, check=True, **options)
        return Device(**json.loads(run.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return Device(missing=f"torch gave no answer within {LIMIT_S:g} s")
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        return Device(missing=lines[-1])


def ask_torch(kind: str, indexes: Sequence[int] = ()) -> Device:
    """Torch's answer about a device, asked in this process.

    indexes: GPUs of the kind "cuda"; the answer is that of the one with the least free memory.
    """
    import torch

    from experiments.provenance import device_name

    device = torch.device(kind)
    if device.type == "cpu":
        return Device(device_name(device), free_memory(), memory_bytes())
    count = torch.cuda.device_count()
    absent = [str(index) for index in indexes if index >= count]
    if absent:
        found = f"torch {torch.__version__} finds {count} GPUs, counted from 0"
        return Device(missing=f"devices has {', '.join(absent)}; {found}")
    chosen = [torch.device(kind, index) for index in indexes] or [device]
    try:
        memory = {one: torch.cuda.mem_get_info(one) for one in chosen}
    except (AssertionError, RuntimeError, ValueError) as error:
        [reason, *_] = str(error).splitlines()
        return Device(missing=f"torch {torch.__version__} finds no {kind}: {reason}")
    fullest = min(chosen, key=lambda one: memory[one][0])
    return Device(device_name(fullest), *memory[fullest])


def free_memory() -> int:
    """Bytes of the machine's memory that a new process may take, as Linux says; else all bytes."""
    info = Path("/proc/meminfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * kilobytes[0] if kilobytes else memory_bytes()


if __name__ == "__main__":
    answer = ask_torch(sys.argv[1], [*map(int, sys.argv[2:])])
    sys.stdout.write(json.dumps(asdict(answer)) + "\n")
