"""The process that sends a sweep's cells to W&B while others are measured: `python -m` of this module.

It has the lowest priority and is told by a line of JSON what to wait for. It writes a line of JSON for every
run that was sent and for every reason why one was not. No error here reaches a measurement.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from experiments.store import CellStore
from experiments.tracking import Destination, NotSent, send
from resispec.errors import InvalidInput, first_line

POLL_S = 1.0
OVER = "over"  # the line that says that no cell is measured any more


Say = Callable[[dict[str, str]], None]
"""Told what was sent, and why something was not."""


def follow(work: Mapping[str, Any], is_over: threading.Event, say: Say) -> None:
    """Send the cells of every setting once all of them are complete, and what remains at the end.

    work: `results`, `profile`, `settings` (lists of cell ids), `mode`, `project` and `entity`.
    Raises NotSent at the first run that W&B does not take: it would not take the next one either.
    """
    waiting = [list(setting) for setting in work["settings"]]
    folder = Path(work["results"]) / "raw" / work["profile"]
    complete: set[str] = set()
    while waiting:
        was_over = is_over.wait(POLL_S)
        for setting in list(waiting):
            unknown = [cell_id for cell_id in setting if cell_id not in complete]
            complete |= {one for one in unknown if CellStore(folder / one).status().state == "done"}
            if was_over or complete.issuperset(setting):
                waiting.remove(setting)
                _send_all(work, [cell_id for cell_id in setting if cell_id in complete], say)


def _send_all(work: Mapping[str, Any], cell_ids: Sequence[str], say: Say) -> None:
    from experiments.dashboards.runs import Record  # needs pandas, which takes a second

    results = Path(work["results"])
    to = Destination(work["mode"], work["project"], work["entity"], results)
    record = Record(results, work["profile"])
    for setting in record.settings(cell_ids):
        for run in record.runs(setting):
            if isinstance(run, InvalidInput):
                say({"error": str(run)})
            else:
                say({"sent": send(run, to)})


def _channels() -> tuple[TextIO, TextIO]:
    """Standard input and output, taken away from whatever W&B starts and prints."""
    channels = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nowhere, number)
    os.close(nowhere)
    return channels


def _listen(incoming: TextIO, is_over: threading.Event) -> None:
    """Learn that the sweep is over; end at once when the process that runs it has ended."""
    for line in incoming:
        if line.strip() == OVER:
            is_over.set()
    os._exit(1)


def main() -> int:
    """The process."""
    os.nice(19)
    incoming, outgoing = _channels()
    work, is_over = json.loads(incoming.readline()), threading.Event()
    threading.Thread(target=_listen, args=(incoming, is_over), daemon=True).start()

    def say(message: dict[str, str]) -> None:
        outgoing.write(json.dumps(message) + "\n")
        outgoing.flush()

    try:
        follow(work, is_over, say)
    except (InvalidInput, NotSent, OSError) as error:
        say({"error": first_line(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
