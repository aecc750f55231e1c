"""How commands end when something goes wrong, and what they start without."""

import subprocess
import sys

import pytest
from toy_cells import make_cell, write_plan

from experiments import status
from experiments.doctor import __main__ as doctor
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
    command = in_one_line("stopped; all is well")
    assert command(raising(error))() == 1
    said = capsys.readouterr().err
    assert line in said and said.startswith("error: ") and said.count("\n") == 1
    assert [command(lambda code=code: code)() for code in (3, 0, None)] == [3, 0, 0]
    with pytest.raises(ZeroDivisionError):  # a fault of the program keeps its traceback
        command(raising(ZeroDivisionError()))()


LIGHT = {
    "import experiments.search.fastest, experiments.costs": "torch scipy",
    "import experiments.doctor.__main__": "torch",
    "import analysis.table1, analysis.table5": "torch transformers matplotlib scipy",
    "from experiments import run; run.cells_of(['experiment=table1'])[0].cell_id": "torch pandas scipy wandb",
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
        allowed = "embedded, inflated, inflated_cpu, paper, smollm2, smollm2_bfloat16"
        assert capsys.readouterr().err == f"error: unknown profile 'papers'; allowed: {allowed}\n"
