"""Run cells: `python -m experiments.run [KEY=VALUE ...]`. See `--help`, and conf/ for the choices.

    python -m experiments.run decoder=specinfer tree=d5b3 verifier=resispec temperature=1.0
    python -m experiments.run experiment=table1                          # every cell of Table 1
    python -m experiments.run experiment=table1 dataset=embedded_code    # one slice of it
    python -m experiments.run verifier=standard,resispec                 # a sweep of one's own

Cells that are complete are skipped. A cell's folder is results/raw/PROFILE/CELL; a failed cell is recorded
there with its reason while the others go on. The exit code is 0 only when every cell is complete.
"""

from __future__ import annotations

import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.configuration.command import run_command
from experiments.configuration.compose import cell_of
from experiments.configuration.schema import CONF


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="run")
def run_job(config: DictConfig) -> None:
    """Measure one cell in this process: what a job on a cluster does.

    A cell that fails is no error of the job: its status says so, and the sweep reads it once all jobs ended.
    """
    from experiments.progress import Progress
    from experiments.worker import CellFailed, measure

    cell = cell_of(config, dict(HydraConfig.get().runtime.choices))
    progress = Progress(cell.config["num_prompts"], 1)
    try:
        measure(cell, progress.start(1, cell), wait=True)
    except CellFailed as error:
        progress.say(f"error: {error}")
    finally:
        progress.close()


if __name__ == "__main__":
    sys.exit(run_command(run_job))
