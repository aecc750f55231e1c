"""This machine's processor and compiler; nothing here needs torch."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path


def processor_name() -> str:
    """The processor's own name, like "Intel(R) Xeon(R) Processor @ 2.50GHz"."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cpp_compiler() -> str | None:
    """The path of the C++ compiler that torch would use; None where there is none."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    return next(filter(None, map(shutil.which, names)), None)
