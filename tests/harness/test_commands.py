"""How commands end when something goes wrong, and what they start without."""

import subprocess
import sys

import pytest
from toy_cells import make_cell, write_plan

from experiments import publish, status
from experiments.doctor import __main__ as doctor
from referee import transcribe
from referee.audit import __main__ as audit_transcripts
from referee.gallery import __main__ as gallery
from resispec.errors import InvalidInput, in_one_line


def raising(error):
    def work(*_, **__):
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InvalidInput("no\x1b[2J such\tpair\nmore about it"), "error: no[2J such pair\n"),
        (FileNotFoundError(2, "No such file or directory", "a.jsonl"), "a.jsonl"),
        (KeyboardInterrupt(), "error: stopped; all is well\n"),
    ],
)
def test_what_can_be_mended_is_one_line(error, line, capsys):
    assert in_one_line(raising(error), "stopped; all is well") == 1
    said = capsys.readouterr().err
    assert line in said and said.startswith("error: ") and said.count("\n") == 1
    assert in_one_line(lambda: 3, "stopped") == 3
    with pytest.raises(ZeroDivisionError):  # a fault of the program keeps its traceback
        in_one_line(raising(ZeroDivisionError()), "stopped")


@pytest.mark.parametrize(
    ("command", "work", "arguments", "stopped"),
    [
        (audit_transcripts, "run", ["a.jsonl", "--target", "x"], "nothing was judged"),
        (transcribe, "transcribe", ["--out", "a", "--engine", "transformers"], "goes on from there"),
        (publish, "publish", [], "sends all again"),
        (gallery, "inputs.pair_of", [], "goes on from there"),
    ],
)
def test_a_command_that_is_stopped_says_what_is_left(
    command, work, arguments, stopped, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(f"{command.__name__}.{work}", raising(KeyboardInterrupt()))
    results = ["--results", str(tmp_path)] if command is gallery else []
    assert command.main([*arguments, *results]) == 1
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: stopped; ") and line.endswith(stopped)
    assert not list(tmp_path.iterdir())


LIGHT = {
    "import experiments.search.fastest, experiments.costs": "torch",
    "import experiments.doctor.__main__": "torch",
    "from experiments import run; run.cells_of(['experiment=table1'])[0].cell_id": "torch pandas wandb",
    "from experiments.status import main; main(sys.argv[1:])": "torch hydra omegaconf pandas numpy",
}


@pytest.mark.parametrize("program", LIGHT)
def test_planning_and_looking_import_nothing_that_is_slow(program, tmp_path):
    """So that wrong input is refused at once."""
    write_plan(tmp_path, "table1", [make_cell(tmp_path, "standard")])
    code = f"import sys; {program}; sys.exit(bool({{*{LIGHT[program].split()}}} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", code, "--results", tmp_path], check=False).returncode == 0


def test_an_unknown_profile_is_one_line(capsys):
    for command in (status, doctor):
        assert command.main(["--profile", "papers"]) == 1
        allowed = "embedded, inflated, inflated_cpu, paper, smollm2"
        assert capsys.readouterr().err == f"error: unknown profile 'papers'; allowed: {allowed}\n"
