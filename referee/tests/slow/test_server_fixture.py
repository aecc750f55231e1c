"""The fixture `resispec_server` in another repository's test of three lines.

The server is llama.cpp, which a command of ours starts.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from referee import transcribe
from referee.tests.toy_server import free_port

ROOT = Path(__file__).parents[3]
PYTHON = shlex.quote(sys.executable)
TEST = """
def test_speculation_keeps_the_law(resispec_server):
    resispec_server({arguments})
"""
INI = """
[pytest]
resispec_server =
    command = {command}
    address = http://127.0.0.1:{port}
    format = llama_cpp
    target = embedded
    tokens = 6000
"""


def printed_by(folder, arguments=""):
    """The finished run of pytest on the test, where our command serves the pair with its draft."""
    number = free_port()
    command = f"{PYTHON} -m referee.serve --mode assisted --port {number}"
    (folder / "test_engine.py").write_text(TEST.format(arguments=arguments))
    (folder / "pytest.ini").write_text(INI.format(command=command, port=number))
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "COLUMNS": "300"}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_llama_cpp_with_a_draft_is_acquitted(tmp_path):
    pytest.importorskip("xllamacpp", reason="the extra `engines` is not installed")
    done = printed_by(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("  llama_cpp")]
    assert " with a total variation above " in line
    assert "certificate: with 95% confidence" in done.stdout
    assert "a bias toward the draft has a total variation of at most" in done.stdout


def test_another_model_than_the_target_is_biased_and_the_cause_is_the_summary(tmp_path):
    """The line of pytest's summary, which is all that many read."""
    pytest.importorskip("xllamacpp", reason="the extra `engines` is not installed")
    done = printed_by(tmp_path, "target='embedded_800k__80k', tokens=3000")
    summary = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AssertionError: likely cause: " in summary[0]


def test_a_port_that_is_taken_is_one_line():
    pytest.importorskip("xllamacpp", reason="the extra `engines` is not installed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "referee.serve", "--port", number],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.splitlines()[-1].endswith(f"at port {number}; is the port taken?")


def test_several_starts_go_to_one_file(tmp_path, capsys):
    """Rows once named the model by its file, which is another one after each start."""
    pytest.importorskip("xllamacpp", reason="the extra `engines` is not installed")
    number, out = free_port(), tmp_path / "rows.jsonl"
    words = ["--server", f"http://127.0.0.1:{number}", "--format", "llama_cpp", "--restarts", "2"]
    words += ["--start", f"{PYTHON} -m referee.serve --port {number}"]
    words += ["--num-prompts", "1", "--max-new-tokens", "4", "--target", "embedded"]
    code = transcribe.main([*words, "--out", str(out)])
    assert code == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in out.open()]
    assert [row["restart"] for row in rows] == [1, 2]
    assert {row["model"] for row in rows} == {"embedded"}
