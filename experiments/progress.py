"""One line on stderr: what is being done, how far it is, and how long all of it will take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from experiments.cells import Cell


class Progress:
    """The progress line of cells or searches, of which several may run at a time.

    size: prompts of all cells, or the number of searches. count: of cells or searches.
    """

    def __init__(self, size: int, count: int) -> None:
        self._count = count
        self._running: dict[int, _Running] = {}
        layout = "{desc} |{bar:12}| {percentage:3.0f}% [{elapsed}<{remaining}]"
        interval = 0.1 if sys.stderr.isatty() else 5.0
        self._bar = tqdm(total=size, bar_format=layout, dynamic_ncols=True, mininterval=interval, leave=False)

    def start(self, number: int, cell: Cell) -> Callable[[str, int, int], None]:
        """A cell begins, the `number`-th of all; the result is what reports of it, see `worker.Report`."""
        self._running[number] = _Running(cell.config["num_prompts"])
        self._show(number, str(cell))

        def report(what: str, done: int, total: int) -> None:
            running = self._running[number]
            if running.done is None:  # what a cell begins with was there before and takes no time
                self._bar.total -= done
                running.done = done
            self._show(number, f"{what} {done}/{total}")
            self._bar.update(max(0, done - running.done))
            running.done = max(done, running.done)

        return report

    def start_search(self, number: int, path: Path) -> Callable[[str, int, int], None]:
        """A search begins, the `number`-th of all; the result is what reports of it.

        It counts as a whole: how many stages it will have is not known.
        """
        self._show(number, f"searching for {path.name}")
        return lambda what, done, total: self._show(number, f"{path.name}: {what} {done}/{total}", True)

    def finish_search(self) -> None:
        """A search has ended."""
        self._bar.update()

    def finish(self, number: int) -> None:
        """A cell has ended, complete or not; nothing of it remains to be waited for."""
        running = self._running.pop(number)
        self._bar.total -= running.total - (running.done or 0)
        self._bar.refresh()

    def put_back(self, number: int) -> None:
        """A cell that was begun is left for later."""
        running = self._running.pop(number)
        self._bar.total += running.done or 0

    def say(self, line: str) -> None:
        """Print a line above the progress line."""
        self._bar.write(line, file=sys.stderr)

    def say_briefly(self, what: str) -> None:
        """Show something in the line itself, until a cell says what it does."""
        self._bar.set_description_str(what)

    def close(self) -> None:
        """Remove the line."""
        self._bar.close()

    def _show(self, number: int, what: str, refresh: bool = False) -> None:
        self._bar.set_description_str(f"[{number}/{self._count}] {what}", refresh)


class _Running:
    """A cell that is being measured: its prompts, and how many of them are done, once it has said so."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done: int | None = None
