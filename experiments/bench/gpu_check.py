"""Everything that needs a CUDA device, one after another: `make gpu-check`.

    python -m experiments.bench.gpu_check [--results FOLDER]

The tests that need a device, every bench, the cost model, and the artefact `speed` on few prompts with the
pair that is inflated to the size of Llama-2-7B. Each is a process of its own with a limit of time, all limits
together are 20 minutes, and a step that fails does not stop the next ones. What it lacks a package for is
skipped. The exit code is 0 only when no step failed. Tables go to RESULTS/timing/ and RESULTS/inflated/, what
every step printed to RESULTS/timing/gpu_check/.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from experiments.bench.options import Options
from experiments.commands import fail, in_one_line
from resispec.errors import first_line
from resispec.files import write_atomically

ROOT = Path(__file__).parents[2]
MARKER = "pytest.mark.cuda"
TABLES = ("pandas", "tabulate")
HARNESS = ("hydra", "omegaconf", "pydantic", "datasets")
"""What the commands of `experiments` import that take KEY=VALUE."""
MOST_SHOWN = 160


@dataclass(frozen=True)
class Step:
    """One command. limit_s: seconds after which it is stopped. needs: packages that it imports."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    needs: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """The name of its log."""
        return re.sub("[^a-z0-9]+", "_", self.name.lower()).strip("_")


@dataclass(frozen=True)
class Outcome:
    """How a step ended. state: "ok", "failed" or "skipped". said: why, or the last line that it printed."""

    step: Step
    state: str
    seconds: float
    said: str

    def __str__(self) -> str:
        return f"{self.state:<7} {self.seconds:6.1f} s  {self.step.name}: {self.said}"


def steps(results: Path) -> list[Step]:
    """All steps, in their order; the limits add up to 20 minutes."""
    bench = "experiments.bench"
    cuda = ("--device", "cuda", "--results", str(results))
    inflated, where = "profile=inflated", f"results={results}"
    speed = ("experiments.run", "experiment=speed", inflated, where, "temperature=1.0", "num_prompts=4")
    train = "from resispec.embedded import load_pair; load_pair(); print('the pair is there')"
    return [
        *device_tests(),
        Step("embedded pair, trained once", (sys.executable, "-c", train), 240),
        Step("bench of decoders", _module(f"{bench}.decoders", *cuda), 60, TABLES),
        Step("bench of rules", _module(f"{bench}.rules", *cuda), 120, TABLES),
        Step("bench of memory", _module(f"{bench}.memory", *cuda), 60, TABLES),
        Step("step time, Llama-2-7B + 68M", _module(f"{bench}.step_time", *cuda), 100, TABLES),
        Step("costs", _module(f"{bench}.costs", inflated, where), 150, (*HARNESS, "scipy")),
        Step("speed, inflated pair", _module(*speed), 270, (*HARNESS, "scipy")),
        Step(
            "table of speed",
            _module("analysis.speed", "--profile", "inflated", "--results", str(results)),
            20,
            (*TABLES, "matplotlib"),
        ),
    ]


def device_tests() -> Iterator[Step]:
    """The tests that need a device: those of the harness apart, since they need more packages.

    Only files that hold such tests are read, so that no other file's imports are needed.
    """
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    marked = [path for path in files if f"@{MARKER}\n" in path.read_text(encoding="utf-8")]
    options = ("-o", "addopts=", "-q", "--strict-markers", "-m", "cuda")
    for name, is_harness, limit_s, needs in (("library", False, 120, ()), ("harness", True, 60, HARNESS)):
        chosen = [str(path) for path in marked if (path.parent.name == "harness") == is_harness]
        if chosen:
            command = _module("pytest", *options, *chosen)
            yield Step(f"CUDA tests of the {name}", command, limit_s, ("pytest", "scipy", *needs))


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *arguments)


def run_step(step: Step, logs: Path) -> Outcome:
    """Run one step with its output in `logs`; a step that takes too long is stopped with what it started."""
    missing = [package for package in step.needs if find_spec(package) is None]
    if missing:
        return Outcome(step, "skipped", 0.0, f"{', '.join(missing)} not installed")
    started, log = time.monotonic(), logs / f"{step.stem}.log"
    try:
        code = _exit_code(step, log)
    except OSError as error:
        return Outcome(step, "failed", time.monotonic() - started, first_line(error))
    seconds, last = time.monotonic() - started, last_line(log.read_text(encoding="utf-8", errors="replace"))
    if code is None:
        return Outcome(step, "failed", seconds, f"stopped after {step.limit_s:g} s; the last line: {last}")
    if code:
        return Outcome(step, "failed", seconds, f"exit code {code}; the last line: {last}")
    return Outcome(step, "ok", seconds, last)


def _exit_code(step: Step, log: Path) -> int | None:
    """Run a command; None when it took too long. It is ended with all that it started, also by Ctrl-C."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            step.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            return process.wait(step.limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
                process.wait()


def last_line(output: str) -> str:
    """The last line that says something; what a progress bar wrote over counts as lines before it."""
    lines = [line.strip() for line in output.splitlines()]
    return next((line[:MOST_SHOWN] for line in reversed(lines) if line), "no output")


def run_all(wanted: Iterable[Step], logs: Path) -> Iterator[Outcome]:
    """Every step in turn, each shown when it begins and when it ended."""
    logs.mkdir(parents=True, exist_ok=True)
    for step in wanted:
        sys.stdout.write(f"{step.name} ...\n")
        sys.stdout.flush()
        outcome = run_step(step, logs)
        sys.stdout.write(f"{outcome}\n")
        yield outcome


def summary(outcomes: Sequence[Outcome], machine: str) -> str:
    """What passed, for people."""
    counts = {state: sum(one.state == state for one in outcomes) for state in ("ok", "failed", "skipped")}
    counted = ", ".join(f"{count} {state}" for state, count in counts.items())
    seconds = sum(one.seconds for one in outcomes)
    return "\n".join(
        [f"gpu-check on {machine}", *map(str, outcomes), f"{counted}; {seconds / 60:.1f} min", ""]
    )


def check(results: Path) -> int:
    """Run all steps and write what passed; returns the exit code."""
    import torch

    from experiments.provenance import device_name, device_stem

    if not torch.cuda.is_available():
        return fail("no CUDA device was found on this machine, and everything that gpu-check runs needs one")
    device = torch.device("cuda")
    folder = results.resolve() / "timing"  # steps run in the repository's root
    outcomes = [*run_all(steps(results.resolve()), folder / "gpu_check")]
    text = summary(outcomes, f"{device_name(device)}, torch {torch.__version__}")
    write_atomically(folder / f"gpu_check_{device_stem(device)}.txt", text)
    sys.stdout.write(f"\n{text}")
    return int(any(one.state == "failed" for one in outcomes))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 when no step failed."""
    options = Options(__doc__, None).parse_args(arguments)
    return in_one_line(lambda: check(options.results), "stopped; the logs of finished steps stay")


if __name__ == "__main__":
    sys.exit(main())
