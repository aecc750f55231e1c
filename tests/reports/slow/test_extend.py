"""docs/extend.md, followed literally in a copy of the repository: files, edits and commands."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

from resispec.verifiers import Draws
from tests.harness.toy_runs import messages
from tests.toys import save_prompts, save_tiny_pair

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "extend.md").read_text()
SOURCES = (
    "conf",
    "resispec",
    "experiments",
    "analysis",
    "pyproject.toml",
    "Makefile",
    "results/reference",
)
MAKES_IT_A_TOY = [
    *("device=cpu", "dtype=float32", "num_threads=1", "warmup_prompts=0", "num_prompts=3"),
    *("prompt_tokens=12", "sampling.max_new_tokens=6", "sampling.max_length=40"),
]
AXES = ["axes.pairs=mine", "axes.datasets=notes", "axes.main_dataset=notes"]


def section(title):
    [found] = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    return found


def blocks(text):
    """(the text since the block before, language, content) of every block of code."""
    return re.findall(r"(.*?)^```(\w*)\n(.*?)^```$", text, re.M | re.S)


def files(text):
    """What the page says to write: path -> content."""
    named = [
        (re.search(r"^`(\w+/[\w./]+)`:\n\n\Z", before, re.M), content)
        for before, _, content in blocks(text)
    ]
    return {found[1]: content for found, content in named if found}


def commands(text):
    """The lines of the blocks that name no language."""
    return [
        line
        for _, language, content in blocks(text)
        if not language
        for line in content.splitlines()
    ]


def edits(text):
    """(path, old, new) for every diff of the page; several of one file stand under one heading."""
    found, path = [], ""
    for before, language, content in blocks(text):
        heading = re.search(r"^In `([\w./]+)`:$", before, re.M)
        path = heading[1] if heading else path
        if language == "diff":
            lines = content.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if not line.startswith("+"))
            found.append(
                (path, old, "".join(line[1:] for line in lines if not line.startswith("-")))
            )
    return found


FEWER = (
    ("resispec/audit/simulate.py", "\nNUM_TURNS = 100", "\nNUM_TURNS = 3"),
    ("experiments/auditing/material.py", "[2], 4000)", "[2], 200)"),
    ("experiments/auditing/material.py", "[MOST_SIBLINGS], 4000)", "[MOST_SIBLINGS], 200)"),
    ("resispec/audit/battery.py", "repeats: int = 3", "repeats: int = 1"),
    (
        "resispec/audit/battery.py",
        "for topology, vocab in trees:",
        "for topology, vocab in trees[:2]:",
    ),
    ("resispec/audit/battery.py", "(1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)", "(1e-1, 1e-6)"),
)
"""Edits of the copy, as (path, old, new), for short audits.

Too few tokens are decoded for a verdict anyway. The page's rule is still enumerated at one node
with laws of all kinds; other tests have more trees.
"""


FIND_A_RULE = (
    *("tests/library/test_every_verifier.py", "tests/library/test_rules.py"),
    *("tests/library/test_draws.py", "tests/library/test_imports.py"),
    *("tests/audit/test_ceilings.py", "tests/audit/test_enumeration.py"),
    *("tests/audit/test_estimation.py", "tests/reports/test_words.py"),
)
"""The tests that go over the verifiers, draws and files that there are."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository with everything on the page, beside two tiny models and a few documents."""
    root = tmp_path_factory.mktemp("copy")
    for name in SOURCES:
        source, target = ROOT / name, root / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    for path, content in files(PAGE).items():
        assert not (root / path).exists(), f"{path} exists already"
        (root / path).write_text(content)
    for path, old, new in (*edits(PAGE), *FEWER):
        content = (root / path).read_text()
        assert content.count(old) == 1, (
            f"{path} does not hold the lines that are edited, once:\n{old}"
        )
        (root / path).write_text(content.replace(old, new))
    profile = root / "conf" / "profile" / "embedded.yaml"  # whose artefacts are toys, and whole
    toy = OmegaConf.from_dotlist([*MAKES_IT_A_TOY, *AXES, "artefacts.table1.temperature=1.0"])
    values = OmegaConf.merge(OmegaConf.load(profile), toy)
    profile.write_text(f"# @package _global_\n{OmegaConf.to_yaml(values)}")
    save_tiny_pair(root / "models")
    save_prompts(root, 8)
    (root / "prompts.jsonl").rename(root / "notes.jsonl")
    return root


def run(root, line):
    """A command of the page, typed in the copy; a run of models that is no artefact is a toy."""
    [program, *words] = shlex.split(line)
    assert program in ("python", "resispec")
    is_toy = program == "resispec" and words[0] in ("run", "audit")
    if program == "resispec":
        words = ["-m", "resispec.console", *words]
    if is_toy and not any(word.startswith("experiment=") for word in words):
        words += [option for option in ("pair=mine", "dataset=notes") if option not in words]
        words += MAKES_IT_A_TOY
    environment = os.environ | {"PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def cells_done(done):
    """How many cells a run says that it has, all of them complete."""
    assert done.returncode == 0, done.stderr
    [(total, complete_ones)] = re.findall(r"^(\d+) cells?: (\d+) done", messages(done.stderr)[-1])
    assert total == complete_ones
    return int(total)


def test_the_table_of_the_page_names_what_its_sections_edit():
    titles = ("A verifier", "A decoder", "An artefact", "A metric", "A data set, a pair")
    rows = re.findall(r"^\| (an? .*?) \| (.*) \|$", PAGE, re.M)
    for title, (named, cell) in zip(titles, rows, strict=True):
        assert named.split(",")[0] == title.lower().split(",")[0]
        text, places = section(title), set(re.findall(r"`([\w./]+)`", cell))
        written = {*files(text), *(path for path, _, _ in edits(text))}
        assert len(written) == len(places)
        assert all(any(path.startswith(place) for place in places) for path in written), written


def test_a_verifier(copy):
    audit, sweep, by_file = commands(section("A verifier"))
    done = run(copy, audit)
    assert done.returncode == 4, done.stderr  # undecided, for too few tokens
    rows = re.findall(r"^\| draw_and_look +\| (\w+) +\| +exact \(([\d.e+-]+)\) ", done.stdout, re.M)
    assert {draws for draws, _ in rows} == {*Draws, "flat"}
    assert all(float(error) < 1e-9 for _, error in rows)
    # 18 tokens are too few
    assert set(re.findall(r"\*\*(\w+)\*\* \|$", done.stdout, re.M)) == {"undecided"}
    assert cells_done(run(copy, sweep)) == 4
    assert cells_done(run(copy, by_file)) == 2
    measure = (
        "from resispec.audit.battery import tree_cases, worst\n"
        "from resispec.verifiers import Draws, get_verifier\n"
        "verifier = get_verifier('traversal', weights='draw_and_look')\n"
        "print(worst(tree_cases(verifier, Draws.IID)).error)"
    )
    assert float(run(copy, f"python -c {shlex.quote(measure)}").stdout) < 1e-9


def test_a_verifier_and_draws_pass_lint_and_the_tests_that_find_them_by_themselves(tmp_path):
    """With new files alone, and no list to edit."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    for path, content in files(section("A verifier") + section("A decoder")).items():
        (tmp_path / path).write_text(content)
    for words in (["init", "-q"], ["add", "-A"]):  # tests ask git which files there are
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    chosen = {"PYTEST_ADDOPTS": shlex.join(["-vv", *FIND_A_RULE])}
    for target in ("lint", "test"):
        command = ["make", target, f"PY={shlex.quote(sys.executable)}"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment | chosen, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert "draw_and_look" in done.stdout and "-flat" in done.stdout


def test_a_decoder_with_draws_of_its_own(copy):
    [sweep] = commands(section("A decoder"))
    assert cells_done(run(copy, sweep)) == 2
    measure = (
        "from resispec.audit.battery import rule_cases, worst\n"
        "from resispec.verifiers import Draws, get_rule\n"
        "for name in ('standard', 'resispec'): print(worst(rule_cases(get_rule(name), "
        "Draws.FLAT)).error)"
    )
    done = run(copy, f"python -c {shlex.quote(measure)}")
    exact, biased = (float(line) for line in done.stdout.split())
    assert exact < 1e-9 < 0.1 < biased


def test_an_artefact(copy):
    sweep, table = commands(section("An artefact"))
    done = run(copy, sweep)
    assert cells_done(done) == 2 and "overlap PROFILE=embedded" in messages(done.stderr)[-1]
    done = run(copy, table)
    assert done.returncode == 0, done.stderr
    frame = pd.read_csv(copy / "results" / "embedded" / "overlap.csv")
    assert list(frame.temperature) == [1.0, 0.6] and set(frame.status) == {"done"}
    assert frame.value.between(0, 1).all() and frame.lower.isna().all()  # of few prompts
    page = (copy / "results" / "embedded" / "overlap.md").read_text()
    assert "mass that target and draft share" in page
    assert (copy / "results" / "embedded" / "overlap.tex").exists()
    assert "`python -m analysis.publish overlap`" in section("An artefact")
    assert run(copy, "python -m analysis.publish overlap").returncode == 0
    assert (copy / "results" / "published" / "embedded" / "overlap.csv").exists()


def test_a_metric(copy):
    sweep, table = commands(section("A metric"))
    assert cells_done(run(copy, sweep)) == 5  # baseline, two rules, their audits
    done = run(copy, table)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\| +Empty steps +\|", done.stdout)
    assert "share of the steps that accepted no drafted token" in done.stdout
    frame = pd.read_csv(copy / "results" / "embedded" / "table1.csv")
    found = (
        frame[frame.quantity == "empty_steps"]
        .set_index(["temperature", "decoder", "verifier"])
        .value
    )
    assert len(found) == 3 and found.between(0, 1).all()
    assert (found.xs("autoregressive", level="decoder") == 1).all()  # nothing is drafted


def test_a_data_set_and_a_pair(copy):
    [sweep] = commands(section("A data set, a pair"))
    assert cells_done(run(copy, sweep)) == 2
    plans = [
        path.read_text()
        for path in (copy / "results" / "embedded" / "plans" / "sweep").glob("*.json")
    ]
    [plan] = [
        text for text in plans if "pair=mine dataset=notes verifier=standard,resispec" in text
    ]
    assert '"pair": "mine"' in plan and '"dataset": "notes"' in plan
