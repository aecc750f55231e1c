"""How commands end when something goes wrong, and what they start without."""

import logging
import os
import shlex
import subprocess
import sys

import pytest

from experiments import status
from experiments.doctor import __main__ as doctor
from experiments.schema import CONF
from resispec.errors import InvalidInput, in_one_line
from tests.toy_cells import make_cell, write_plan

PYTHON = shlex.quote(sys.executable)
"""This Python, as a shell reads its path."""


def raising(error):
    def work(*_, **__):
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (InvalidInput("no\x1b[2J such\tpair\nmore about it"), "error: no[2J such pair\n", 1),
        (FileNotFoundError(2, "No such file or directory", "a.jsonl"), "a.jsonl", 1),
        (KeyboardInterrupt(), "error: stopped; all is well\n", 130),
    ],
)
def test_what_can_be_mended_is_one_line(error, line, code, capsys):
    command = in_one_line("stopped; all is well")
    assert command(raising(error))() == code
    said = capsys.readouterr().err
    assert line in said and said.startswith("error: ") and said.count("\n") == 1
    assert [command(lambda code=code: code)() for code in (3, 0, None)] == [3, 0, 0]
    with pytest.raises(ZeroDivisionError):  # a fault of the program keeps its traceback
        command(raising(ZeroDivisionError()))()


LIGHT = {
    "import experiments.search.fastest": "torch scipy",
    "import experiments.doctor.__main__": "torch",
    "import analysis.table1, analysis.table5": "torch transformers matplotlib scipy",
    "from experiments import run; run.sweep_of(['experiment=table1']).cells[0].cell_id": (
        "torch pandas scipy wandb"
    ),
    "from experiments.status import main; main(sys.argv[1:])": "torch hydra omegaconf pandas numpy",
}


@pytest.mark.parametrize("program", LIGHT)
def test_planning_and_looking_import_nothing_that_is_slow(program, tmp_path):
    """So that wrong input is refused at once."""
    write_plan(tmp_path, "table1", [make_cell(tmp_path, "standard")])
    code = (
        f"import sys; {program}; sys.exit(bool({{*{LIGHT[program].split()}}} & {{*sys.modules}}))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code, "--results", tmp_path], check=False).returncode
        == 0
    )


def test_an_unknown_profile_is_one_line(capsys):
    for command in (status, doctor):
        assert command.main(["--profile", "papers"]) == 1
        allowed = "embedded, inflated, inflated_cpu, paper, smollm2, smollm2_bfloat16"
        assert capsys.readouterr().err == f"error: unknown profile 'papers'; allowed: {allowed}\n"


def test_make_report_is_of_all_artefacts_unless_a_sweep_is_named():
    command = ["make", "--dry-run", "report", "PROFILE=embedded", f"PY={PYTHON}"]
    lines = [
        subprocess.run(
            [*command, *more], cwd=CONF.parent, capture_output=True, text=True, check=True
        )
        for more in ([], ["SWEEP=mine"])
    ]
    assert "--sweep" not in lines[0].stdout and "--sweep 'mine'" in lines[1].stdout


PACKAGES = ["experiments.status", "analysis.cells", "referee.audit", "recipes.inflate"]
"""A command of each package that has some."""


def ended(line, **variables):
    """The exit code of a shell's line, or of its first command, with what it said on stderr."""
    line = f"{line}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | variables,
    )
    return done.returncode, done.stderr


def test_without_docstrings_no_command_runs():
    """The same guard of every package is there, as the next test shows."""
    code, said = ended(f"{PYTHON} -OO -m {PACKAGES[0]} --help")
    assert code == 1 and said.startswith("error: python -OO leaves out docstrings")
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", PACKAGES)
def test_ctrl_c_while_a_command_is_imported_is_one_line(command, tmp_path):
    """A module that all commands import early stands for one that makes another error of Ctrl-C."""
    work = "signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt:\n raise ImportError"
    (tmp_path / "dataclasses.py").write_text(f"import signal\ntry:\n {work}\n")
    assert ended(f"{PYTHON} -m {command}", PYTHONPATH=str(tmp_path)) == (
        130,
        "error: stopped\n",
    )


def test_a_program_that_imports_us_keeps_its_own_ctrl_c(tmp_path):
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__init__.py").write_text(
        "import analysis, experiments, recipes, referee"
    )
    (tmp_path / "program" / "__main__.py").write_text(
        "import signal; signal.raise_signal(signal.SIGINT)"
    )
    code, said = ended(f"{PYTHON} -m program", PYTHONPATH=str(tmp_path))
    assert code == 130 and said.endswith("KeyboardInterrupt\n")


def test_after_the_imports_ctrl_c_is_the_commands_own():
    program = (
        "import signal, sys; sys.argv, sys.orig_argv = ['-m'], ['-m', 'experiments.x']; import "
        "experiments;from resispec.errors import in_one_line;sys.exit(in_one_line('all "
        "stays')(lambda: signal.raise_signal(signal.SIGINT))())"
    )
    assert ended(f'{PYTHON} -c "{program}"') == (130, "error: all stays\n")


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("| head -1", (141, "")),
        ("| tail -1", (3, "")),
        ("2>&1 >&- | head -1", (3, "")),
        ("> /dev/full", (1, "error: [Errno 28] No space left on device\n")),
    ],
)
@pytest.mark.parametrize("is_unbuffered", ["", "1"])
def test_output_that_nobody_takes_is_no_traceback(tail, expected, is_unbuffered):
    program = "for number in range(10**5):\n  print(number)\n return 3"
    code = f"import sys\nfrom resispec.errors import in_one_line\ndef work():\n {program}\n"
    code += "sys.exit(in_one_line()(work)())"
    line = f"{PYTHON} -c '{code}' {tail}"
    assert ended(line, PYTHONUNBUFFERED=is_unbuffered) == expected


@pytest.mark.parametrize(
    ("words", "tail", "is_unbuffered"),
    [
        ("experiments.status --help", "| true", ""),  # a parser ends the process
        ("experiments.status --help", "| true", "1"),
        ("experiments.run --version", "| true", ""),
        ("experiments.run --version", ">&-", ""),
        ("experiments.status --help", ">&- 2>&-", ""),
    ],
)
def test_nobody_needs_to_listen(words, tail, is_unbuffered):
    code, said = ended(f"{PYTHON} -m {words} {tail}", PYTHONUNBUFFERED=is_unbuffered)
    assert code in (0, 141) and said == ""


def test_a_short_answer_to_a_full_disk_is_an_error():
    line = f"{PYTHON} -m experiments.run --version > /dev/full"
    assert ended(line, PYTHONUNBUFFERED="") == (1, "error: [Errno 28] No space left on device\n")


def test_every_command_shows_the_traceback_of_an_error_with_verbose(capsys, tmp_path):
    """Those with Hydra's syntax, those with a profile, and those with a parser of their own."""
    from experiments.replay import main as replay
    from experiments.run import main as run
    from experiments.status import main as status

    for command, words in (
        (run, ["tree=none"]),
        (replay, [str(tmp_path / "none")]),
        (status, ["--profile", "mine"]),
    ):
        for flags in ([], ["--verbose"]):
            assert command([*words, *flags]) == 1
            *traceback, last = capsys.readouterr().err.splitlines()
            assert last.startswith("error: ") and bool(flags) == ("Traceback" in "".join(traceback))


def test_log_levels_follow_one_variable(monkeypatch, capsys):
    """Also those of libraries, imported before or after; their own variables come first."""
    code = (
        "import logging, sys, transformers; from resispec.errors import in_one_line\n"
        "def work():\n"
        "    import datasets\n"
        "    print(*(logging.getLogger(n).getEffectiveLevel() for n in\n"
        "        ('resispec', 'transformers', 'datasets')))\n"
        "sys.exit(in_one_line()(work)())"
    )
    for variables, levels in (
        ({"RESISPEC_LOG": "info"}, "20 20 20"),
        ({"RESISPEC_LOG": "error", "DATASETS_VERBOSITY": "info"}, "40 40 20"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == levels, (variables, done.stderr)
    level = logging.getLogger("resispec").getEffectiveLevel()
    assert in_one_line()(lambda: None)() == 0  # without the variable everything stays as it is
    assert logging.getLogger("resispec").getEffectiveLevel() == level
    monkeypatch.setenv("RESISPEC_LOG", "loud")
    assert in_one_line()(lambda: None)() == 1
    said = "error: RESISPEC_LOG is 'loud'; allowed: debug, info, warning, error\n"
    assert capsys.readouterr().err == said
