"""The command `resispec`: it passes words on as they are, and says what is missing.

It ends with the codes of the table in docs/running.md.
"""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from experiments.cli import read_command_line
from experiments.schema import CONF
from referee.audit.__main__ import EXIT_CODES
from resispec import commands, console
from resispec.commands import COMMANDS, as_typed, needs_clone
from resispec.errors import OUTPUT_CLOSED, STOPPED
from resispec.verifiers import available

ROOT = CONF.parent
PAGE = (ROOT / "docs" / "running.md").read_text()


def typed(*words):
    """The exit code of `resispec WORDS`."""
    with pytest.raises(SystemExit) as ended:
        console.main(list(words))
    return ended.value.code


def ran(*words):
    """A command that has ended, started in the clone."""
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.fixture
def script(tmp_path):
    """The command as an installer writes it."""
    target = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["resispec"]
    module, _, name = target.partition(":")
    path = tmp_path / "resispec"
    lines = ["import sys", f"from {module} import {name}", "if __name__ == '__main__':"]
    path.write_text("\n".join([*lines, f"    sys.exit({name}())", ""]))
    return path


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """The package without a clone around it."""
    monkeypatch.setattr(commands, "ROOT", tmp_path)


@pytest.mark.parametrize("words", ["--help", "table --help"])
def test_help_fits_a_screen_and_imports_nothing_that_is_slow(words, script):
    heavy = "{'torch', 'hydra', 'omegaconf', 'pandas', 'experiments', 'analysis', 'referee'}"
    program = (
        f"import sys, runpy; sys.argv = ['resispec', *{words.split()}]\n"
        f"try: runpy.run_path({str(script)!r}, run_name='__main__')\n"
        f"finally: sys.stderr.write(str({heavy} & {{*sys.modules}}))"
    )
    done = ran(sys.executable, "-c", program)
    assert done.stderr == "set()"
    lines = done.stdout.splitlines()
    assert 5 < len(lines) < 28 and max(map(len, lines)) <= 80
    if words == "--help":
        assert set(re.findall(r"^  ([a-z]+)  ", done.stdout, re.M)) == {*COMMANDS, "list"}


@pytest.mark.parametrize("name", [*COMMANDS, "table cells"])
def test_every_word_reaches_the_module_as_it_was_typed(name, monkeypatch):
    """Hydra and argparse read flags, `--`, empty words and `--help` themselves."""
    words = ["--help", "-m", "--", "tree=glob(d*)", "", "--cfg", "job", "a b", "-x=1", "--version"]
    calls = []
    first, *rest = name.split()
    if name == "table":
        rest = ["table1"]
    module = "analysis.cells" if "cells" in rest else COMMANDS[first].module
    leading = rest if rest and "cells" not in rest else []
    monkeypatch.setattr(import_module(module), "main", lambda given: calls.append(given) or 7)
    before = list(sys.argv)
    assert typed(first, *rest, *words) == 7
    assert calls == [[*leading, *words]] and sys.argv == before


def test_an_artefact_s_command_is_its_script(tmp_path, capsys):
    assert typed("table", "table1", "--profile", "embedded", "--results", str(tmp_path)) == 1
    assert f"there is no plan {tmp_path}" in capsys.readouterr().err
    assert typed("table", "tabel1") == 2
    assert "unknown table 'tabel1'; allowed: agreement, field, " in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in COMMANDS if needs_clone(COMMANDS[name].module)])
@pytest.mark.usefixtures("wheel")
def test_without_the_clone_a_command_of_the_harness_says_so_in_one_line(name, capsys):
    assert typed(name, "--help") == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert (
        said.err.startswith(f"error: `resispec {name}` is of the harness") and "clone" in said.err
    )


@pytest.mark.usefixtures("wheel")
def test_without_the_clone_engines_are_judged_and_verifiers_listed(capsys):
    without = {name for name in COMMANDS if not needs_clone(COMMANDS[name].module)}
    assert without == {"transcripts", "serve", "judge"}
    assert typed("judge", "--help") == 0 and "--control" in capsys.readouterr().out
    assert typed("list", "verifiers") == 0
    lines = listed(capsys)
    assert lines.keys() == {*available()} and len(set(lines.values())) == len(lines)
    assert typed("list", "trees") == 1
    assert capsys.readouterr().err.startswith("error: trees are of the harness")


def test_a_package_that_is_missing_is_named_and_a_fault_of_ours_is_not_hidden(monkeypatch, capsys):
    command = console.ConsoleCommand("json.nothing", "")
    monkeypatch.setitem(sys.modules, "hydra", None)
    for name in [name for name in sys.modules if name.startswith("experiments")]:
        monkeypatch.delitem(sys.modules, name)
    assert typed("run", "--help") == 1
    assert "`resispec run` needs the package hydra, which" in capsys.readouterr().err
    assert console.call("x", command, []) == 1
    with pytest.raises(ModuleNotFoundError):
        console.call("x", console.ConsoleCommand("resispec.nothing", ""), [])


def listed(capsys):
    """What was listed: name -> line."""
    return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("kind", console.Listing)
def test_every_option_is_listed_with_a_line(kind, capsys):
    assert typed("list", kind) == 0
    lines = listed(capsys)
    options = {path.stem for path in (CONF / kind.group).glob("*.yaml")}
    assert lines.keys() == options
    assert all(re.search(r"\w{3}", line) for line in lines.values())
    if kind is console.Listing.VERIFIERS:
        biased = {"resispec", "hsd", "dial", "lenience", "typical", "relaxed"}
        assert {name for name, line in lines.items() if "BIASED" in line} == biased
    if kind is console.Listing.TREES:
        assert lines["d5b3"] == "complete, depth=5, branching=3"
        assert lines["root"] == "Nothing is drafted." and lines["best_16"].endswith("num_nodes=16")


def test_a_sentence_ends_where_the_next_one_begins():
    text = "Rules for i.i.d. draws (see a.b).\n  And more."
    assert console.first_sentence(text) == "Rules for i.i.d. draws (see a.b)."


def test_a_line_fits_the_terminal_and_is_whole_elsewhere(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    assert typed("list", "pairs") == 0
    whole = capsys.readouterr().out.splitlines()
    assert len(whole) == len(list((CONF / "pair").iterdir())) and max(map(len, whole)) > 60
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert typed("list", "pairs") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(whole).split())


def test_usage_says_the_command_as_it_was_typed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/resispec", "judge"])
    assert as_typed("referee.audit") == "resispec judge"
    assert as_typed("experiments.status") == "resispec status"
    assert as_typed("analysis.table1") == "resispec table table1"
    assert as_typed("referee.gallery") == "python -m referee.gallery"
    monkeypatch.setattr(sys, "argv", ["/x/referee/audit/__main__.py"])
    assert as_typed("referee.audit") == "python -m referee.audit"


def exit_codes():
    """The codes of the page's table."""
    [table] = re.findall(r"^### Exit codes\n(.*?)^#", PAGE, re.M | re.S)
    return {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)}


@pytest.mark.slow
def test_the_table_of_exit_codes_is_complete(tmp_path, capsys):
    """Codes of audits and of interruptions have tests of their own."""
    assert exit_codes() == {0, 1, 2, *EXIT_CODES.values(), STOPPED, OUTPUT_CLOSED}
    examples = {
        "--version": 0,
        "run --version": 0,
        "run --help": 0,
        "audit --cfg job": 0,
        "status --help": 0,
        "run tree=d5b4": 1,
        "run table1": 1,
        "audit my_rule.py:Rule": 1,
        "audit standrad": 1,
        f"show --results {tmp_path} --profile embedded": 1,
        "status --profile papers": 1,
        "doctor --profile papers": 1,
        f"verify --results {tmp_path}/none": 1,
        f"report --results {tmp_path} --profile papers": 1,
        f"replay {tmp_path}": 1,
        f"judge {tmp_path}/none.jsonl --target embedded": 1,
        f"table cells --results {tmp_path} --profile embedded": 1,
        "rnu": 2,
        "--verbos": 2,
        "list": 2,
        "list verifires": 2,
        "run --verbos": 2,
        "audit --verbos": 2,
        "status --verbos": 2,
        "table table1 --verbos": 2,
        "transcripts": 2,
        "judge": 2,
        "serve --port 70000": 2,
        "show a b": 2,
    }
    assert set(COMMANDS) <= {line.split()[0] for line in examples}
    for line, code in examples.items():
        assert typed(*line.split()) == code, line
        said = capsys.readouterr()
        assert code == 0 or not said.out, line
        assert code != 1 or said.err.splitlines()[-1].startswith("error: "), line


@pytest.mark.parametrize(
    ("words", "tail"),
    [
        ("--help", "| true"),
        ("--help", ">&-"),
        ("list trees", "| true"),
        ("list trees", ">&- 2>&-"),
        ("rnu", "| true"),
        ("rnu", ">&- 2>&-"),
    ],
)
def test_nobody_needs_to_listen(words, tail, script):
    line = f"{shlex.join([sys.executable, str(script)])} {words} {tail}; exit ${{PIPESTATUS[0]}}"
    done = ran("bash", "-c", line)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2 if words == "rnu" else done.returncode in (0, OUTPUT_CLOSED)


@pytest.mark.parametrize(("words", "module"), [("--help", "typer"), ("run", "omegaconf")])
def test_ctrl_c_while_a_command_is_imported_is_one_line(words, module, script):
    """Of the script that an installer writes, where no `-m` names a package."""
    (script.parent / f"{module}.py").write_text(
        "import signal\ntry:\n signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt:\n pass"
    )
    done = ran(sys.executable, script, words)
    assert (done.returncode, done.stderr) == (STOPPED, "error: stopped\n")


def test_completion_names_commands_kinds_and_artefacts(script):
    def completed(line):
        environment = {"_RESISPEC_COMPLETE": "complete_bash", "COMP_WORDS": line}
        environment |= {"COMP_CWORD": str(len(line.split(" ")) - 1), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, check=True, env=environment
        )
        return done.stdout.split()

    assert completed("resispec st") == ["status"]
    assert completed("resispec list tr") == ["trees"]
    assert {"table1", "table6"} <= set(completed("resispec table ta"))


def test_make_and_the_command_start_the_same_modules():
    """So that neither goes another way."""
    makefile = (ROOT / "Makefile").read_text()
    by_hand = {"run", "table"}  # in a recipe of several lines
    alone = {"list", "replay", "show", "transcripts", "serve", "judge"}
    for name, command in COMMANDS.items():
        if name not in by_hand | alone:
            module = command.module.removesuffix(".__main__")
            recipe = re.search(rf"^{name}:.*\n((?:\t.*\n)+)", makefile, re.M)[1]
            assert f"$(PY) -m {module} " in recipe, name


def test_make_help_names_every_target_in_groups_and_starts_at_the_start():
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["make", "help", f"PY={shlex.quote(sys.executable)}"],
        cwd=ROOT, capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0] == "start here" and len(lines) <= 50 and max(map(len, lines)) <= 100
    named = set(re.findall(r"^  ([a-z][a-z-]+)  ", done.stdout, re.M))
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
    assert len(targets) > 15 and targets <= named
    text = " ".join(done.stdout.split())
    assert " ".join(sorted(path.stem for path in (CONF / "experiment").iterdir())) in text
    every = set(re.findall(r"^\.PHONY: ([a-z0-9-]+)$", (ROOT / "Makefile").read_text(), re.M))
    assert every - targets == {"help"}


def test_no_profile_is_chosen_for_a_target_that_has_none(tmp_path):
    """Defect: it was, before any recipe, so a first make on a GPU machine took that of a CPU."""
    probe, asked = tmp_path / "probe", tmp_path / "asked"
    probe.write_text(f"#!/bin/sh\ntouch {asked}\necho embedded\n")
    probe.chmod(0o755)
    for goal, is_asked in (("clean", False), ("bench", False), ("table1", True)):
        asked.unlink(missing_ok=True)
        command = ["make", "--dry-run", goal, f"PY={probe}"]
        environment = {"PATH": "/usr/bin:/bin"}  # without a PROFILE
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True, env=environment)
        assert asked.exists() is is_asked, goal


def test_a_variable_of_another_target_is_refused():
    """Defect: it was dropped, so that something else was done than what was asked for."""
    done = ran("make", "--dry-run", "report", "PY=python", "VERIFIER=naive")
    expected = "VERIFIER changes nothing for make report; allowed: SWEEP"
    assert done.returncode and expected in done.stderr


@pytest.mark.parametrize(
    ("words", "overrides"),
    [
        (["standard"], ["verifier=standard"]),
        (["mine.py:A", "num_prompts=2"], ["verifier=custom", "verifier.name=mine.py:A"]),
        (["my rules/mine.py:A"], ["verifier=custom", "verifier.name=my rules/mine.py:A"]),
        (["of_a_package"], ["verifier=custom", "verifier.name=of_a_package"]),
        (["--config-dir", "FOLDER", "own"], ["verifier=own"]),
        (["own"], ["verifier=custom", "verifier.name=own"]),
    ],
)
def test_a_verifier_is_audited_by_its_name_alone(words, overrides, tmp_path):
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier" / "own.yaml").write_text("_target_: resispec.verifiers.Standard")
    words = [word.replace("FOLDER", str(tmp_path)) for word in words]
    line = read_command_line([*words, "profile=embedded"], "audit", ["pair"])
    assert [word for word in line.overrides if word.startswith("verifier")] == overrides


def test_several_verifiers_or_a_word_of_another_command_are_refused(capsys):
    assert typed("audit", "standard", "naive") == 1
    line = "standard, naive were given; allowed: one verifier"
    assert capsys.readouterr().err == f"error: {line}\n"
    for flags in ((), ("--multirun",)):
        assert typed("audit", "verifier=standard,naive", *flags) == 1
        line = "verifier=standard,naive has several values; allowed: one"
        assert capsys.readouterr().err == f"error: {line}\n"
    assert typed("run", "standard") == 1
    assert "'standard' is no KEY=VALUE" in capsys.readouterr().err


def test_a_run_by_the_command_is_whole_and_knows_how_it_was_started(script, toy):
    """Workers start with the script as their main module."""
    done = ran(sys.executable, script, "run", *toy, "verifier=naive")
    assert done.returncode == 0, done.stderr
    following = done.stderr.splitlines()[-1].partition("; next: ")[2]
    assert following.startswith("resispec show ")
    shown = ran(sys.executable, script, *following.split()[1:])
    assert shown.stdout.startswith(f"cell {following.split()[2]}: pair ")
    results = next(word for word in toy if word.startswith("results=")).partition("=")[2]
    [path] = Path(results).rglob("provenance.json")
    assert json.loads(path.read_text())["command"][:2] == ["resispec", "run"]
