"""Progress of long work: a bar on a terminal, and in a log a line each half minute."""

import sys
from typing import Any

from tqdm import tqdm

LINES_S = 30.0
"""Seconds between lines of progress without a terminal."""


def progress_bar(*arguments: Any, **options: Any) -> tqdm:
    """A bar of tqdm's, with its arguments.

    Without a terminal, work of less than LINES_S has no line.
    """
    if not sys.stderr.isatty():
        options |= {
            "file": _Lines(),
            "delay": LINES_S,
            "mininterval": LINES_S,
            "maxinterval": LINES_S,
        }
    return tqdm(*arguments, dynamic_ncols=True, **options)


def quiet_downloads() -> None:
    """Turn off the bars of datasets and of the hub where stderr is no terminal.

    So a log has the lines of our own bars alone. Those of transformers are always off
    (`resispec.models.loading`).
    """
    if sys.stderr.isatty():
        return
    import datasets  # takes over a second; who calls is about to import it, too
    from huggingface_hub.utils.tqdm import disable_progress_bars

    datasets.disable_progress_bars()
    disable_progress_bars()


class _Lines:
    """A file for a bar: what would be drawn over the bar before becomes a line of stderr."""

    def write(self, text: str) -> None:
        if line := text.strip():
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        sys.stderr.flush()
