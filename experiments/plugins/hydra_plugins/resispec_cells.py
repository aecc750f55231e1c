"""Hydra's view of our sweeps: a sweeper that plans all points at once, and a launcher of processes.

Hydra finds plugins by this folder's name, whose parent `experiments` puts on the path.
"""

import sys
from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class CellSweeper(BasicSweeper):
    """Turns a command line into cells and has any launcher run those that are not done."""

    def sweep(self, arguments: list[str]) -> Any:
        """Run the sweep; the process ends with exit code 1 unless every cell is complete."""
        from experiments.sweep import sweep

        assert self.config is not None
        given = [str(line) for line in self.config.hydra.overrides.hydra if "hydra.mode" not in str(line)]
        if not sweep([*given, *arguments], self.config.hydra.job.config_name, self._launch):
            sys.exit(1)

    def _launch(self, points: list[tuple[str, ...]], cells: list[Any], total: int) -> None:
        if isinstance(self.launcher, CellLauncher):
            self.launcher.run(cells, total)
        else:
            assert self.launcher is not None
            # The launcher adds Hydra's own overrides itself.
            jobs = [[line for line in point if not line.startswith("hydra")] for point in points]
            try:
                self.launcher.launch(jobs, initial_job_idx=0)
            except Exception as error:  # noqa: BLE001 - of one job; which cells are complete is read from their folders
                sys.stderr.write(f"error: a job of the launcher failed: {str(error).splitlines()[0]}\n")


class CellLauncher(Launcher):
    """Runs cells on this machine, see `experiments.launcher`."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Nothing to prepare."""

    def run(self, cells: list[Any], total: int) -> None:
        """Run cells that are not done; how each ended is in its status."""
        from experiments.launcher import run_cells

        run_cells(cells, total)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:  # noqa: ARG002
        """Run points that another sweeper gives; see `Launcher.launch`."""
        from experiments.configuration.compose import cell_at

        self.run([cell_at(tuple(overrides)) for overrides in job_overrides], len(job_overrides))
        return []
