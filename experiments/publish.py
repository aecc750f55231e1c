"""Make the dashboards of what was measured here: `python -m experiments.publish [KEY=VALUE ...]`.

    python -m experiments.publish experiment=table1                      # its cells and its report, to W&B
    python -m experiments.publish experiment=table1,frontier profile=paper
    python -m experiments.publish wandb.mode=offline                     # of every artefact, to results/wandb

experiment: artefacts, by default all that were run. report_only: their tables and figures alone. profile and
results: as in the sweep. wandb.mode: auto, online, offline or disabled. wandb.project, wandb.entity: of W&B.
Nothing is measured and no table is made: what is shown are the rows and files that are there. Sent again, a
run stays one run. The exit code is 0 only when everything was sent.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from analysis.cli import DIALECTS, chosen_profile
from experiments.schema import WandbConfig, check_patterns
from experiments.wandb_upload import Destination, NotSent, Record, chosen_mode, has_key, send
from resispec.errors import InvalidInput, fail, first_line, in_one_line


@dataclass
class PublishConfig:
    """Keys of the command.

    experiment: names of artefacts, or null for all. report_only: their reports without their cells, which a
    sweep has sent already.
    """

    experiment: str | None = None
    profile: str | None = None
    results: str = "results"
    report_only: bool = False
    wandb: WandbConfig = field(default_factory=WandbConfig)


def publish(arguments: Sequence[str]) -> int:
    """Send what a command line asks for; returns 1 where a cell cannot be read.

    Raises InvalidInput for what it does not know or cannot read at all, NotSent for the first run that W&B
    does not take.
    """
    for argument in arguments:
        if "=" not in argument:
            raise InvalidInput(f"{argument!r} is no KEY=VALUE; like experiment=table1")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(PublishConfig), OmegaConf.from_dotlist([*arguments]))
        config: Any = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        allowed = ", ".join([*asdict(PublishConfig()), *(f"wandb.{name}" for name in asdict(WandbConfig()))])
        raise InvalidInput(f"{first_line(error)}; allowed: {allowed}") from error
    check_patterns(asdict(config))
    mode, line = chosen_mode(config.wandb.mode)
    if mode == "disabled":
        sys.stderr.write(f"{line or 'W&B: disabled, nothing is sent'}\n")
        return 0
    if mode == "online" and not has_key():  # W&B would ask for one
        known = "`wandb login` or WANDB_API_KEY sets one"
        raise InvalidInput(f"wandb.mode is 'online', but no key is known; {known}")
    record = Record(Path(config.results), chosen_profile(config.profile or ""))
    to = Destination(mode, config.wandb.project, config.wandb.entity, Path(config.results))
    artefacts = config.experiment.split(",") if config.experiment else record.artefacts
    code = 0
    for artefact, cell_ids in {artefact: record.cells(artefact) for artefact in artefacts}.items():
        settings, num_sent = [] if config.report_only else record.settings(cell_ids), 0
        for run in chain(*map(record.runs, settings), record.report(artefact)):
            if isinstance(run, InvalidInput):
                code = fail(f"{artefact}: {run}")
            else:
                send(run, to)
                num_sent += 1
        sys.stderr.write(f"{artefact}: {num_sent} run{'s' * (num_sent != 1)} {to}\n")
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    words = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(words):
        sys.stdout.write(f"{__doc__}\n{DIALECTS}\n")
        return 0

    def work() -> int:
        try:
            return publish(words)
        except NotSent as error:
            return fail(f"W&B did not take a run ({error}); the same command sends all again")

    return in_one_line(work, "stopped; the same command sends all again")


if __name__ == "__main__":
    sys.exit(main())
