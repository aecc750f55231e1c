"""Cells as jobs: of submitit's local executor, and of a Slurm whose commands are stood in for."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import submitit

from analysis.load import read_status
from experiments.grid import cells_of
from tests.harness.toy_runs import COMMAND, hashes, messages, rows, run, run_here, save_rule

LOCAL = "hydra/launcher=submitit_local"


def command(*overrides):
    arguments = [*COMMAND, *overrides]
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def provenance(cell):
    return json.loads((cell.folder / "provenance.json").read_text())


def test_jobs_of_several_cells_measure_the_same_and_a_failed_cell_stops_no_other(toy, tmp_path):
    """The ids and the logs are named at once; timed cells of a job take turns as elsewhere."""
    sweep = [*toy, "tree=d7b2,chain,root", "temperature=1.0,0.6", "sampling.max_length=17"]
    calm = cells_of([*sweep, f"results={tmp_path}/calm"])
    expected = {str(cell): hashes(run_here(cell)) for cell in calm if "d7b2" not in str(cell)}
    process = command(*sweep, LOCAL, "cells_per_job=4")
    of_times, first = process.stderr.readline(), process.stderr.readline()
    assert of_times.endswith(
        "beside each other on this machine; their times are not to be compared\n"
    )
    found = re.fullmatch(
        r"note: 2 jobs, (\d+) to \d+, submitted for 6 cells; logs in (.*)\n", first
    )
    assert found, first + process.stderr.read()
    printed = process.communicate(timeout=300)[1]
    assert process.returncode == 1 and messages(printed)[-1].startswith(
        "6 cells: 4 done (0 before)"
    )
    cells = cells_of(sweep)
    assert {str(one): hashes(one) for one in cells if str(one) in expected} == expected
    failed = [one for one in cells if str(one) not in expected]
    # two jobs run at once, and either may be the first to say it
    assert sorted(line for line in messages(printed) if line.startswith("error: ")) == sorted(
        f"error: {one}: {read_status(one.folder).reason}" for one in failed
    )
    logs = os.path.join(found[2], found[1])  # noqa: PTH118 - both are text
    assert os.path.isdir(logs), os.listdir(found[2])  # noqa: PTH112, PTH208
    [_, chain, root] = [one for one in cells if "T=0.6" in str(one)]
    assert {row["turn"] for row in rows(chain) + rows(root)} == {0, 1}


def test_a_job_that_is_preempted_is_sent_again_and_goes_on(toy, tmp_path):
    marks = tmp_path / "marks"
    slow = f"open({str(marks)!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(.2)"
    rule = save_rule(tmp_path, f"{slow}; return Standard().law(p, q, s, draws)")
    sweep = [*toy, "tree=chain", "verifier=custom", f"verifier.name={rule}"]
    [cell] = cells_of(sweep)
    process = command(*sweep, LOCAL)
    partial = cell.folder / "rows.partial.jsonl"
    while not partial.is_file() or not partial.read_text():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    first = int(marks.read_text().split()[-1])
    os.kill(first, signal.SIGUSR2)
    printed = process.communicate(timeout=300)[1]
    assert process.returncode == 0, printed
    assert int(marks.read_text().split()[-1]) != first
    assert len(provenance(cell)["before"]) == 1 and len(rows(cell)) == 3


def test_why_a_job_ended_is_why_its_cells_failed(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(submitit.core.core.Job, "_results_timeout_s", 0)
    ends = "sys.stderr.write('error: of the node\\n'); sys.stderr.flush(); os._exit(7)"
    rule = save_rule(tmp_path, ends)
    sweep = [*toy, "tree=d5b3,chain", "temperature=0,1", "verifier=custom", f"verifier.name={rule}"]
    done = run(*sweep, LOCAL)
    reasons = {read_status(cell.folder).reason for cell in cells_of(sweep)}
    assert done.returncode == 1 and len(reasons) == 1
    assert re.fullmatch(r"job \d+ ended in state FINISHED: error: of the node", *reasons)
    said = [line for line in messages(done.stderr) if line.startswith("error: ")]
    assert {*said} == {f"error: {cell}: {next(iter(reasons))}" for cell in cells_of(sweep)}


def test_two_commands_at_the_same_time_measure_each_cell_once(toy):
    """One by jobs, one by processes of its own, in the same results folder."""
    sweep = [*toy, "temperature=1.0,0.8,0.6,0.4", "num_prompts=4", "sampling.max_new_tokens=20"]
    processes = [command(*sweep, LOCAL, "cells_per_job=2"), command(*sweep)]
    cells, files = cells_of(sweep), set()
    while any(process.poll() is None for process in processes):
        for path in (cell.folder / "rows.jsonl" for cell in cells):
            if path.is_file():
                files.add((path, path.stat().st_ino))
        time.sleep(0.02)
    for process in processes:
        printed = process.communicate()[1]
        assert process.returncode == 0 and "4 cells: 4 done" in messages(printed)[-1], printed
    assert len(files) == 4
    for cell in cells:
        assert [row["prompt_index"] for row in rows(cell)] == [0, 1, 2, 3]
        assert "before" not in provenance(cell)


def test_a_launcher_s_cells_need_no_device_of_this_machine(toy):
    """A login node has none; the job, here on the same machine, fails its cell for want of one."""
    sweep = [*(word for word in toy if word != "device=cpu"), "device=cuda", "tree=chain"]
    done = run(*sweep, LOCAL)
    lines = messages(done.stderr)
    assert lines[0] == "note: hydra.launcher.gpus_per_node=1, for device=cuda"
    assert "1 cell: 0 done (0 before), 1 not complete" in lines[-1]
    [cell] = cells_of(sweep)
    assert read_status(cell.folder).state == "failed"
    several = run(*sweep, LOCAL, "hydra.launcher.gpus_per_node=8")
    assert several.returncode == 1 and "gpus_per_node is 8; allowed: 1, or" in several.stderr


SBATCH = """#!{python}
import os, pathlib, re, subprocess, sys
text = pathlib.Path(sys.argv[1]).read_text()
pathlib.Path({script!r}).write_text(text)
last = int((re.findall(r"--array=0-(\\d+)", text) or ["0"])[0])
for index in range(last + 1):
    facts = {{"SLURM_JOB_ID": f"{{71 + index}}", "SLURM_ARRAY_JOB_ID": "71"}}
    facts |= {{"SLURM_ARRAY_TASK_ID": str(index), "SLURM_JOB_NUM_NODES": "1"}}
    log = open({script!r} + ".log", "a")
    subprocess.Popen(["bash", {script!r}], env=os.environ | facts, stdout=log, stderr=log)
print("Submitted batch job 71")
"""
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do
  if [[ $1 == *=* || $1 == --unbuffered ]]; then shift; else shift 2; fi
done
exec "$@"
"""


def test_a_slurm_array_gets_its_options_and_its_jobs_measure_the_cells(toy, tmp_path, monkeypatch):
    """Of Slurm only the commands are stood in for: sbatch runs each job of the array here."""
    folder, script = tmp_path / "bin", tmp_path / "script.sh"
    folder.mkdir()
    sbatch = SBATCH.format(python=sys.executable, script=str(script))
    sacct = "#!/bin/bash\necho 'JobID|State|NodeList'\n"
    for name, text in {"sbatch": sbatch, "srun": SRUN, "sacct": sacct}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    assert shutil.which("srun") is None
    without = run(*toy, "hydra/launcher=submitit_slurm")
    assert without.returncode == 1
    assert 'error: hydra/launcher=submitit_slurm: Could not detect "srun"' in without.stderr
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    sweep = [*toy, "temperature=1.0,0.8,0.6", "cells_per_job=2"]
    more = ["device=cuda", "hydra/launcher=submitit_slurm", "hydra.launcher.gres=gpu:h100:4"]
    several = run(*(word for word in sweep if word != "device=cpu"), *more)
    assert several.returncode == 1 and "gres is gpu:h100:4; allowed: 1, or" in several.stderr
    options = {"gpus_per_node": 1, "timeout_min": 90, "array_parallelism": 1, "partition": "gpu"}
    words = [f"hydra.launcher.{key}={value}" for key, value in options.items()]
    done = run(*sweep, "hydra/launcher=submitit_slurm", *words)
    assert done.returncode == 0, done.stderr
    assert "note: 2 jobs, 71_0 to 71_1, submitted for 3 cells; logs in " in done.stderr
    assert {read_status(cell.folder).state for cell in cells_of(sweep)} == {"done"}
    given = re.findall(r"^#SBATCH (--\S+)$", script.read_text(), re.M)
    wanted = ["--gpus-per-node=1", "--time=90", "--array=0-1%1", "--partition=gpu"]
    assert {*wanted, "--job-name=resispec"} <= {*given}
