"""The process that sends a sweep's cells to W&B while others are measured: `python -m` of this module.

It has the lowest priority and is told by a line of JSON what to wait for. It writes a line of JSON for every
run that was sent and for every reason why one was not. Nothing that happens here reaches a measurement.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.store import CellStore
from experiments.tracking import Destination, NotSent, send
from resispec.errors import InvalidInput, first_line

POLL_S = 1.0
OVER = "over"  # the line that says that no cell is measured any more


def follow(work: Mapping[str, Any], is_over: threading.Event) -> None:
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
                _send_all(work, [cell_id for cell_id in setting if cell_id in complete])


def _send_all(work: Mapping[str, Any], cell_ids: Sequence[str]) -> None:
    from experiments.dashboards.runs import Record  # needs pandas, which takes a second

    results = Path(work["results"])
    to = Destination(work["mode"], work["project"], work["entity"], results)
    record = Record(results, work["profile"])
    for setting in record.settings(cell_ids):
        for run in record.runs(setting):
            if isinstance(run, InvalidInput):
                _say(error=str(run))
            else:
                _say(sent=send(run, to))


def _say(**message: str) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _listen(is_over: threading.Event) -> None:
    """Learn that the sweep is over; end at once when the process that runs it has ended."""
    if sys.stdin.readline().strip() != OVER:
        os._exit(1)
    is_over.set()


def main() -> int:
    """The process."""
    os.nice(19)
    work, is_over = json.loads(sys.stdin.readline()), threading.Event()
    threading.Thread(target=_listen, args=(is_over,), daemon=True).start()
    try:
        follow(work, is_over)
    except (InvalidInput, NotSent, OSError) as error:
        _say(error=first_line(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
