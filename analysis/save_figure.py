"""Writes a figure as PNG and PDF, reproducibly and atomically."""

from __future__ import annotations

import io
import os
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem.png` and `stem.pdf`, without dates, and return their paths."""
    mpl.rcParams["pdf.fonttype"] = 42  # text stays text
    paths = []
    for suffix, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None, "Producer": None})):
        content = io.BytesIO()
        figure.savefig(content, format=suffix, dpi=200, metadata=metadata)
        paths.append(stem.with_name(f"{stem.name}.{suffix}"))
        partial = paths[-1].with_name(f".{paths[-1].name}.{os.getpid()}")
        partial.write_bytes(content.getvalue())
        partial.replace(paths[-1])
    return paths
