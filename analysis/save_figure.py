"""Writes a figure as PNG and PDF, reproducibly and atomically."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from resispec.record import replacing


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem.png` and `stem.pdf`, without dates, and return their paths."""
    mpl.rcParams["pdf.fonttype"] = 42  # text stays text
    paths = []
    for suffix, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None, "Producer": None})):
        paths.append(stem.with_name(f"{stem.name}.{suffix}"))
        with replacing(paths[-1]) as partial:
            figure.savefig(partial, format=suffix, dpi=200, metadata=metadata)
    return paths
