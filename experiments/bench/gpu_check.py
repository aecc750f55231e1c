"""Everything that needs a CUDA device, one after another: `make gpu-check`.

    python -m experiments.bench.gpu_check [--results FOLDER]

The tests that need a device, every bench, the cost model, and the artefact `speed` on few prompts with the
pair that is inflated to the size of Llama-2-7B. Each is a process of its own with a limit of time, all limits
together are 20 minutes, and a step that fails does not stop the next ones. What it lacks a package for is
skipped. The exit code is 0 only when no step failed. Tables go to RESULTS/timing/ and RESULTS/inflated/, what
every step printed to RESULTS/timing/gpu_check/.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from resispec.errors import fail, first_line, in_one_line
from resispec.files import write_atomically

ROOT = Path(__file__).parents[2]
TABLES = ("pandas", "tabulate")
HARNESS = ("hydra", "omegaconf", "pydantic", "datasets")
"""Packages that the commands of `experiments` import that take KEY=VALUE."""
MOST_SHOWN = 160


class Job(NamedTuple):
    """One command: arguments of Python. limit_s: seconds after which it is stopped. needs: packages."""

    name: str
    arguments: tuple[str, ...]
    limit_s: float
    needs: tuple[str, ...] = ()


def jobs(results: Path) -> list[Job]:
    """All commands, in their order; the limits add up to 20 minutes."""
    bench, where = "-m experiments.bench.", f"results={results}"
    cuda = ("--device", "cuda", "--results", str(results))
    train = "from resispec.embedded import load_pair; load_pair(); print('the pair is there')"
    speed = ("-m", "experiments.run", "experiment=speed", "profile=inflated", "temperature=1.0")
    table = ("-m", "analysis.speed", "--profile", "inflated", "--results", str(results), "--slice")
    return [
        *device_tests(),
        Job("embedded pair, trained once", ("-c", train), 240),
        Job("bench of decoders", (*f"{bench}decoders".split(), *cuda), 60, TABLES),
        Job("bench of rules", (*f"{bench}rules".split(), *cuda), 120, TABLES),
        Job("bench of memory", (*f"{bench}memory".split(), *cuda), 60, TABLES),
        Job("step time, Llama-2-7B + 68M", (*f"{bench}step_time".split(), *cuda), 100, TABLES),
        Job("costs", (*f"{bench}costs profile=inflated".split(), where), 150, (*HARNESS, "scipy")),
        Job("speed, inflated pair", (*speed, "num_prompts=4", where), 270, (*HARNESS, "scipy")),
        Job("table of speed", table, 20, (*TABLES, "matplotlib")),
    ]


def device_tests() -> list[Job]:
    """The tests that need a device: those of the harness apart, since they need more packages.

    Only files that hold such tests are read, so that no other file's imports are needed.
    """
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    marked = [path for path in files if "@pytest.mark.cuda\n" in path.read_text(encoding="utf-8")]
    options = ("-m", "pytest", "-o", "addopts=", "-q", "--strict-markers", "-m", "cuda")
    wanted = []
    for name, limit_s, needs in (("library", 120, ()), ("harness", 60, HARNESS)):
        chosen = [str(path) for path in marked if ("harness" in path.parts) == (name == "harness")]
        job = Job(f"CUDA tests of the {name}", (*options, *chosen), limit_s, ("pytest", "scipy", *needs))
        wanted += [job] * bool(chosen)
    return wanted


def run_job(job: Job, logs: Path) -> tuple[str, float, str]:
    """Run one command with its output in `logs`; one that takes too long is stopped with what it started.

    Returns "ok", "failed" or "skipped"; seconds; and why, or the last line that it printed.
    """
    if missing := [package for package in job.needs if find_spec(package) is None]:
        return "skipped", 0.0, f"{', '.join(missing)} not installed"
    log = logs / f"{re.sub('[^a-z0-9]+', '_', job.name.lower()).strip('_')}.log"
    started, why = time.monotonic(), ""
    with log.open("wb") as out:
        command, nothing = [sys.executable, *job.arguments], subprocess.DEVNULL
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=nothing, stdout=out, stderr=out, start_new_session=True
        )
        try:
            if code := process.wait(job.limit_s):
                why = f"exit code {code}; the last line: "
        except subprocess.TimeoutExpired:
            why = f"stopped after {job.limit_s:g} s; the last line: "
        finally:  # also by Ctrl-C
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
                process.wait()
    seconds, last = time.monotonic() - started, last_line(log.read_text(encoding="utf-8", errors="replace"))
    return "failed" if why else "ok", seconds, f"{why}{last}"


def last_line(output: str) -> str:
    """The last line that says something; what a progress bar wrote over counts as lines before it."""
    lines = [line.strip()[:MOST_SHOWN] for line in output.splitlines()]
    return next(filter(None, reversed(lines)), "no output")


def run_all(wanted: Sequence[Job], logs: Path, machine: str) -> tuple[str, bool]:
    """Run all in turn, each shown when it begins and when it ended; the summary, and whether one failed."""
    logs.mkdir(parents=True, exist_ok=True)
    lines, states, total_s = [f"gpu-check on {machine}"], [], 0.0
    for job in wanted:
        sys.stdout.write(f"{job.name} ...\n")
        sys.stdout.flush()
        try:
            state, seconds, reason = run_job(job, logs)
        except OSError as error:
            state, seconds, reason = "failed", 0.0, first_line(error)
        lines.append(f"{state:<7} {seconds:6.1f} s  {job.name}: {reason}")
        sys.stdout.write(f"{lines[-1]}\n")
        states.append(state)
        total_s += seconds
    counted = ", ".join(f"{states.count(state)} {state}" for state in ("ok", "failed", "skipped"))
    return "\n".join([*lines, f"{counted}; {total_s / 60:.1f} min", ""]), "failed" in states


def check(results: Path) -> int:
    """Run everything and write what passed; returns the exit code."""
    import torch

    from experiments.provenance import device_name, device_stem

    if not torch.cuda.is_available():
        return fail("no CUDA device was found on this machine, and everything that gpu-check runs needs one")
    device = torch.device("cuda")
    folder = results.resolve() / "timing"  # commands run in the repository's root
    machine = f"{device_name(device)}, torch {torch.__version__}"
    text, has_failed = run_all(jobs(results.resolve()), folder / "gpu_check", machine)
    write_atomically(folder / f"gpu_check_{device_stem(device)}.txt", text)
    sys.stdout.write(f"\n{text}")
    return int(has_failed)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 when no step failed."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the results")
    options = parser.parse_args(arguments)
    return in_one_line(lambda: check(options.results), "stopped; the logs of finished steps stay")


if __name__ == "__main__":
    sys.exit(main())
