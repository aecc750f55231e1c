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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.commands import fail, in_one_line
from experiments.configuration.schema import WandbConfig, check_wandb
from experiments.dashboards.beside import place
from experiments.dashboards.mode import decided, has_key
from experiments.tracking import Destination, NotSent, Run, send
from resispec.errors import InvalidInput, first_line


@dataclass
class PublishConfig:
    """What the command takes.

    experiment: names of artefacts, or null for all. report_only: their reports without their cells, which a
    sweep has sent already.
    """

    experiment: str | None = None
    profile: str = "embedded"
    results: str = "results"
    report_only: bool = False
    wandb: WandbConfig = field(default_factory=WandbConfig)


def publish(arguments: Sequence[str]) -> bool:
    """Send what a command line asks for; whether all of it was sent.

    Raises InvalidInput for what cannot be read, NotSent for the first run that W&B does not take.
    """
    config = _config(arguments)
    mode, said = decided(config.wandb.mode)
    if mode == "disabled":
        sys.stderr.write(f"{said or 'W&B: disabled, nothing is sent'}\n")
        return True
    if mode == "online" and not has_key():  # W&B would ask for one
        raise InvalidInput(
            "wandb.mode is 'online', but no key is known; `wandb login` or WANDB_API_KEY sets one"
        )
    from experiments.dashboards.runs import Record

    results = Path(config.results)
    record = Record(results, config.profile)
    to = Destination(mode, config.wandb.project, config.wandb.entity, results)
    artefacts = config.experiment.split(",") if config.experiment else record.artefacts
    wanted = {artefact: record.cells(artefact) for artefact in artefacts}
    is_complete = True
    for artefact, cell_ids in wanted.items():
        num_sent = 0
        for run in _runs(record, artefact, [] if config.report_only else cell_ids):
            if isinstance(run, InvalidInput):
                sys.stderr.write(f"error: {artefact}: {run}\n")
                is_complete = False
            else:
                send(run, to)
                num_sent += 1
        where = place(mode, asdict(config))
        sys.stderr.write(f"{artefact}: {num_sent} run{'' if num_sent == 1 else 's'} {where}\n")
    return is_complete


def _runs(record: Any, artefact: str, cell_ids: Sequence[str]) -> Iterator[Run | InvalidInput]:
    """The runs of an artefact's cells, and its report."""
    for setting in record.settings(cell_ids):
        yield from record.runs(setting)
    if (written := record.report(artefact)) is not None:
        yield written


def _config(arguments: Sequence[str]) -> Any:
    """The checked configuration. Raises InvalidInput, in one line, for what it does not know."""
    for argument in arguments:
        if "=" not in argument:
            raise InvalidInput(f"{argument!r} is no KEY=VALUE; like experiment=table1")
    try:
        given = OmegaConf.from_dotlist([*arguments])
        config: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(PublishConfig), given))
    except OmegaConfBaseException as error:
        allowed = ", ".join([*asdict(PublishConfig()), *(f"wandb.{name}" for name in asdict(WandbConfig()))])
        raise InvalidInput(f"{first_line(error)}; allowed: {allowed}") from error
    check_wandb(asdict(config))
    return config


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    given = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(given):
        sys.stdout.write(__doc__)
        return 0

    def work() -> int:
        try:
            return 0 if publish(given) else 1
        except NotSent as error:
            return fail(f"W&B did not take a run ({error}); the same command sends all again")

    return in_one_line(work, "stopped; the same command sends all again")


if __name__ == "__main__":
    sys.exit(main())
