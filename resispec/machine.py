"""This machine's processor, accelerator and checkout; importing this module imports no torch."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CODE = ("resispec", "referee", "experiments", "conf", "pyproject.toml", "constraints.txt")
"""Paths on which a measurement depends; tables, tests and documents are none of them."""
DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Device files of CUDA's drivers on Linux and in WSL, and of ROCm's."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
LARGEST_KEPT = 128 << 20, 32 << 20
"""Bytes of the largest blocks whose memory is kept: the wanted size, and older glibc's most."""


@cache
def processor_name() -> str:
    """The processor's own name, like "Intel(R) Xeon(R) Processor @ 2.50GHz"."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def device_name(device: torch.device) -> str:
    """The hardware's own name, like "NVIDIA H200" or "Intel(R) Xeon(R) @ 2.50GHz (2 cores)"."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    return _processor()


def _processor() -> str:
    return f"{processor_name()} ({os.cpu_count()} cores)"


def device_names() -> set[str]:
    """The names that `device_name` gives to this machine's devices; torch is not asked.

    Of accelerators only those that nvidia-smi lists are known.
    """
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    listing = ""
    if shutil.which(command[0]):
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=10.0, check=True)
            listing = done.stdout
    return {_processor(), *map(str.strip, listing.splitlines())}


@cache  # a process measures with the code that it has loaded, however long it runs
def checkout() -> dict[str, str | bool | list[str]]:
    """The commit of the running code, "" outside a checkout, and the files of CODE that differ.

    An untracked file differs, too, unless git ignores it: it may hold the verifier that is
    measured.
    """
    # installed, perhaps inside another repository
    if not _git("ls-files", "--", "resispec/machine.py"):
        return {"git_commit": "", "git_is_dirty": False, "changed_files": []}
    changed = _git("diff", "--name-only", "HEAD", "--", *CODE).splitlines()
    untracked = _git("ls-files", "--others", "--exclude-standard", "--", *CODE).splitlines()
    files = sorted({*changed, *untracked})
    return {
        "git_commit": _git("rev-parse", "HEAD"),
        "git_is_dirty": bool(files),
        "changed_files": files,
    }


def _git(*arguments: str) -> str:
    root = Path(__file__).parent.parent
    try:
        process = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=True, cwd=root
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return process.stdout.strip()


def memory_bytes() -> int:
    """The bytes of the machine's memory, free or not; 0 if the system does not say."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0


@cache
def keep_freed_memory() -> None:
    """Let the C library, if it is glibc, keep the memory of freed blocks of up to LARGEST_KEPT.

    Otherwise glibc returns the memory of a step's laws to the system, tens of MB with a vocabulary
    of 50,000 tokens, and the next step waits until the system has cleared as many pages. Larger
    blocks are returned as before. The setting holds for the whole process.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        if any(mallopt(M_MMAP_THRESHOLD, size) for size in LARGEST_KEPT):
            mallopt(M_TRIM_THRESHOLD, 1 << 30)


def has_cuda() -> bool:
    """Whether torch can use a CUDA device.

    Torch takes seconds to import and keeps hold of a device that it has touched. So it is asked in
    a separate process, and only if there is a driver.
    """
    if not (shutil.which("nvidia-smi") or any(Path(driver).exists() for driver in DRIVERS)):
        return False
    command = [
        sys.executable,
        "-c",
        "import torch; raise SystemExit(not torch.cuda.is_available())",
    ]
    try:
        return (
            subprocess.run(command, capture_output=True, timeout=60.0, check=False).returncode == 0
        )
    except subprocess.TimeoutExpired:
        return False
