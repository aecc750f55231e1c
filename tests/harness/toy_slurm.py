"""Slurm's commands in little: a job starts in the background at once, whatever it asked for."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

STAND_INS = {
    "sbatch": """
import os, re, subprocess, sys, pathlib

script = pathlib.Path(sys.argv[1]).read_text()
command = script.partition("# command\\n")[2]
first = os.getpid() * 10
last = re.search(r"--array=0-(\\d+)", script)
for task in range(int(last.group(1)) + 1 if last else 1):
    place = {
        "SLURM_JOB_ID": str(first + task), "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_JOB_NODELIST": "here", "SLURM_LOCALID": "0", "SLURM_PROCID": "0",
    }
    array = {"SLURM_ARRAY_JOB_ID": str(first), "SLURM_ARRAY_TASK_ID": str(task)} if last else {}
    subprocess.Popen(["bash", "-c", command], env=os.environ | place | array, start_new_session=True,
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(f"Submitted batch job {first}")
""",
    "srun": """
import subprocess, sys

start = next(place for place, word in enumerate(sys.argv) if "/bin/python" in word)
sys.exit(subprocess.run(sys.argv[start:]).returncode)
""",
    "sacct": 'print("JobID|State\\n70|RUNNING\\n70_0|RUNNING\\n70_1|RUNNING")\n',
    "scontrol": 'print("here")\n',
}


def stand_in_for_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the commands to a folder and put it on the path."""
    folder.mkdir(exist_ok=True)
    for name, body in STAND_INS.items():
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{body}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
