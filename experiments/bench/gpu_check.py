"""Everything that needs a CUDA device, one after another: `make gpu-check`.

The steps are the tests that need a device, every bench, the cost model, and the artefact `speed` on few
prompts with the pair that is inflated to the size of Llama-2-7B. Each is a process of its own with a time
limit; all limits together are 25 minutes. A step that fails, for lack of a package, say, does not stop the
next ones. The exit code is 0 only when no step failed. Tables go to RESULTS/timing/ and RESULTS/inflated/,
the output of every step to RESULTS/timing/gpu_check/.
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from analysis.cli import DIALECTS
from resispec.errors import fail, in_one_line
from resispec.files import write_atomically

ROOT = Path(__file__).parents[2]


class Command(NamedTuple):
    """A step: seconds after which it is stopped, and arguments of Python."""

    name: str
    limit_s: float
    arguments: str


def commands(results: Path) -> list[Command]:
    """All steps in their order; the limits add up to 25 minutes."""
    folder = shlex.quote(str(results))
    pytest = "-m pytest -o addopts= -q --strict-markers"  # of all testpaths
    bench, cuda = "-m experiments.bench", f"--device cuda --results {folder}"
    train = "from resispec.embedded import load_pair; load_pair(); print('the pair is there')"
    speed, table = "-m experiments.run experiment=speed", "-m analysis.speed --profile inflated"
    return [
        Command("CUDA tests", 120, f"{pytest} --continue-on-collection-errors -m cuda"),
        Command("embedded pair, trained once", 240, f"-c {shlex.quote(train)}"),
        Command("bench of decoders", 60, f"{bench}.decoders {cuda}"),
        Command("bench of rules", 160, f"{bench}.rules {cuda}"),
        Command("bench of memory", 40, f"{bench}.memory {cuda}"),
        Command("step time, Llama-2-7B + 68M", 60, f"{bench}.step_time {cuda}"),
        Command("costs", 270, f"{bench}.costs profile=inflated results={folder}"),
        Command("speed, inflated pair", 530, f"{speed} profile=inflated results={folder}"),
        Command("table of speed", 20, f"{table} --results {folder}"),
    ]


def run_command(command: Command, logs: Path) -> tuple[str, float, str]:
    """Run a step with its output in `logs`; a step that takes too long is stopped with all its processes.

    Returns "ok" or "failed"; seconds; and the last line that it printed, after the reason for a failure.
    """
    log = logs / f"{re.sub('[^a-z0-9]+', '_', command.name.lower()).strip('_')}.log"
    started, why = time.monotonic(), ""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *shlex.split(command.arguments)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            if code := process.wait(command.limit_s):
                why = f"exit code {code}; the last line: "
        except subprocess.TimeoutExpired:
            why = f"stopped after {command.limit_s:g} s; the last line: "
        finally:  # also by Ctrl-C
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
                process.wait()
    # Overwritten states of a progress bar count as lines before the last one.
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    last = next(filter(None, reversed(lines)), "no output")
    return "failed" if why else "ok", time.monotonic() - started, f"{why}{last}"


@in_one_line("stopped; the logs of finished steps stay")
def main(arguments: Sequence[str] | None = None) -> int:
    """The command: prints when each step begins and ends, and writes its results."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout, epilog=DIALECTS)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the results")
    results = parser.parse_args(arguments).results.resolve()  # commands run in the repository
    import torch

    from experiments.provenance import device_name, device_stem

    if not torch.cuda.is_available():
        return fail("no CUDA device was found on this machine, and everything that gpu-check runs needs one")
    device, folder = torch.device("cuda"), results / "timing"
    (folder / "gpu_check").mkdir(parents=True, exist_ok=True)
    lines = [f"gpu-check on {device_name(device)}, torch {torch.__version__}"]
    states, started = [], time.monotonic()
    for command in commands(results):
        sys.stdout.write(f"{command.name} ...\n")
        sys.stdout.flush()
        state, seconds, reason = run_command(command, folder / "gpu_check")
        lines.append(f"{state:<6} {seconds:6.1f} s  {command.name}: {reason}")
        sys.stdout.write(f"{lines[-1]}\n")
        states.append(state)
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("ok", "failed"))
    text = "\n".join([*lines, f"{counts}; {(time.monotonic() - started) / 60:.1f} min", ""])
    write_atomically(folder / f"gpu_check_{device_stem(device)}.txt", text)
    sys.stdout.write(f"\n{text}")
    return int("failed" in states)


if __name__ == "__main__":
    sys.exit(main())
