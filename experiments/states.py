"""The plans of a profile and the states of its cells, each read once.

`experiments.status` counts them, and `experiments.verify` checks them.
"""

from collections.abc import Iterable
from pathlib import Path

from analysis.load import Plan, Status, plan_names, read_cell, read_plan, read_status
from experiments.store import NO_TREE, without_lost
from resispec.errors import InvalidInput


class States:
    """Plans and states of a profile, read when they are asked for and then kept.

    results: the folder of raw/ and PROFILE/. raw: that of the cells' folders.
    """

    def __init__(self, profile: str, results: Path) -> None:
        self.profile, self.results = profile, results
        self.raw = results / "raw" / profile
        self._plans: dict[str, Plan | InvalidInput] = {}
        self._statuses = {NO_TREE: Status("missing")}

    def plans(self) -> Iterable[tuple[str, Plan | InvalidInput]]:
        """The plans by their names in order; in the place of a damaged one, its error."""
        if not self._plans:
            for name in plan_names(self.profile, self.results):
                try:
                    self._plans[name] = read_plan(name, self.profile, self.results)
                except InvalidInput as error:
                    self._plans[name] = error
        return self._plans.items()

    def status(self, cell_id: str) -> Status:
        """The state of a cell as its folder says it, see `analysis.load.read_status`.

        One whose own files are gone is missing, as for a run.
        """
        if cell_id not in self._statuses:
            folder = self.raw / cell_id
            status = read_status(folder)
            if status.state == "done":
                status = without_lost(status, read_cell(folder).get("config") or {})
            self._statuses[cell_id] = status
        return self._statuses[cell_id]

    def command(self, cell_id: str) -> str | None:
        """The command of the first plan that asks for a cell; None if no plan does."""
        for _, plan in self.plans():
            if isinstance(plan, Plan):
                for request in plan.requests:
                    if request.cell_id == cell_id:
                        return plan.commands[request.part]
        return None
