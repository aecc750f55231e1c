"""Make the dashboards of what was measured here: `python -m experiments.publish [KEY=VALUE ...]`.

    python -m experiments.publish experiment=table1                      # its cells and its report,
    to W&B python -m experiments.publish experiment=table1,frontier profile=paper
    python -m experiments.publish wandb.mode=offline                     # of every artefact, to
    results/wandb

experiment: artefacts, by default all that were run. report_only: only their tables and figures.
profile and results: as in the sweep. wandb.mode: auto, online, offline or disabled. wandb.project,
wandb.entity: W&B's. Nothing is measured and no table is made: the command shows existing rows and
files. A run that is sent again stays one run. The exit code is 0 only when everything was sent. A
sweep runs this command beside itself, with follow: then the command shows cells while they are
measured, until standard input ends.
"""

import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from analysis.cli import DIALECTS, chosen_profile
from experiments.schema import WandbConfig, check_patterns, leaves
from resispec.errors import InvalidInput, fail, first_line, in_one_line

POLL_S = 1.0
"""Seconds between looks at the cells that are being measured."""
END_S = 60.0
"""Seconds that a sweep waits for W&B at its end."""


@dataclass
class PublishConfig:
    """Keys of the command.

    experiment: names of artefacts, or null for all. report_only: send their reports without their
    cells, which a sweep has sent already. follow: send no reports, but cells while they are
    measured, except for settings that were done before this instant, in seconds since 1970.
    """

    experiment: str | None = None
    profile: str | None = None
    results: str = "results"
    report_only: bool = False
    follow: float | None = None
    wandb: WandbConfig = field(default_factory=WandbConfig)


def publish(arguments: Sequence[str]) -> int:
    """Send the runs that a command line asks for; return 1 if a cell cannot be read, else 0.

    Raises InvalidInput for unknown or unreadable input, and whatever W&B or the network raises.
    """
    for argument in arguments:
        if "=" not in argument:  # OmegaConf takes it for a null
            raise InvalidInput(f"{argument!r} is no KEY=VALUE; like experiment=table1")
    try:
        merged = OmegaConf.merge(
            OmegaConf.structured(PublishConfig), OmegaConf.from_dotlist([*arguments])
        )
        config: Any = OmegaConf.to_object(merged)
    except (OmegaConfBaseException, YAMLError) as error:
        allowed = ", ".join(
            [*asdict(PublishConfig()), *(f"wandb.{name}" for name in asdict(WandbConfig()))]
        )
        raise InvalidInput(f"{first_line(error)}; allowed: {allowed}") from error
    check_patterns(leaves(asdict(config)))
    # a sweep has no need of it
    from experiments.wandb_upload import Live, Record, chosen_mode, follow

    mode, line = chosen_mode(config.wandb.mode)
    if config.wandb.mode == "online" and line:
        raise InvalidInput(line)
    if mode == "disabled":
        sys.stderr.write(f"{line or 'W&B: disabled, nothing is sent'}\n")
        return 0
    to = {
        "mode": mode,
        "project": config.wandb.project,
        "entity": config.wandb.entity,
        "dir": config.results,
    }
    profile, names = chosen_profile(config.profile or ""), (config.experiment or "").split(",")
    record = Record(Path(config.results), profile, names if config.experiment else ())
    cell_ids, is_over, artefacts = record.cells, lambda: True, record.artefacts
    if config.follow is not None:
        os.nice(10)  # gives way to cells that are measured beside it
        cell_ids, is_over, artefacts = record.changing(config.follow), _has_ended, []
    num_runs, errors = follow(record, [] if config.report_only else cell_ids, to, is_over)
    for run in chain.from_iterable(map(record.report, artefacts)):
        Live(run, to).finish(run)
        num_runs += 1
    for error in errors:
        fail(str(error))
    where = f"sent to project {config.wandb.project}"
    if mode == "offline":
        folder = f"{config.results}/wandb"
        where = (
            f"written to {folder}; `wandb sync {shlex.quote(folder)}/offline-run-*` uploads them"
        )
    sys.stderr.write(f"W&B: {num_runs} run{'s' if num_runs != 1 else ''} {where}\n")
    return int(bool(errors))


def _has_ended() -> bool:
    """Whether standard input ends within POLL_S."""
    return bool(select.select([sys.stdin], [], [], POLL_S)[0])


@contextmanager
def following(artefacts: Sequence[str], config: Mapping[str, Any]) -> Iterator[None]:
    """Show cells on W&B while the block measures them, in a process beside it,
    if `wandb.mode` says so.

    W&B's work stays in that process: the block neither waits for it nor sees its errors. After the
    block W&B has END_S to take in the rest; then a line says what was sent, or what failed and how
    to send it later.

    artefacts: names of those that ask for the cells. config: the configuration of one cell.
    """
    wandb = config["wandb"]
    if "disabled" in (
        wandb["mode"],
        os.environ.get("WANDB_MODE") if wandb["mode"] == "auto" else "",
    ):
        yield
        return
    values = {"experiment": ",".join(dict.fromkeys(artefacts))}
    values |= {name: config[name] for name in ("profile", "results")}
    defaults = OmegaConf.structured(WandbConfig)
    values |= {f"wandb.{name}": value for name, value in wandb.items() if value != defaults[name]}
    command = ["-m", "experiments.publish", *(f"{key}={value}" for key, value in values.items())]
    process = subprocess.Popen(
        [sys.executable, *command, f"follow={time.time()}"], stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        try:
            line = process.communicate(timeout=END_S)[1].strip().replace("\n", "; ")
        except subprocess.TimeoutExpired:
            line = f"W&B: not all was taken in within {END_S:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        if code := process.wait():
            line = line.removeprefix("error: ") or f"W&B: its process ended with exit code {code}"
            line += f"; `{shlex.join(['python', *command])}` sends what is missing"
        sys.stderr.write(f"{line}\n")


@in_one_line("stopped; the same command sends all again")
def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    words = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(words):
        sys.stdout.write(f"{__doc__}\n{DIALECTS}\n")
        return 0
    try:
        return publish(words)
    except InvalidInput:
        raise
    except Exception as error:  # noqa: BLE001 - whatever W&B and the network do: the rows are the record
        return fail(f"W&B did not take a run ({type(error).__name__}: {first_line(error)})")


if __name__ == "__main__":
    sys.exit(main())
