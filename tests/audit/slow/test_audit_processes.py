"""Whole audits: every verifier in files, and processes that a rule or a signal ends."""

import os
import re
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from experiments.auditing import evidence
from experiments.auditing.evidence import Candidate
from resispec.audit import battery, verdict
from resispec.draws import Draws
from tests.audit.audit_toys import audited, run_command, toy_material, use
from tests.harness.toy_runs import save_rule, save_toys, toy_overrides


def test_every_registered_verifier_gets_a_verdict_in_files(monkeypatch, capsys, tmp_path):
    """Audits use few laws, trees, tokens; test_exact.py and test_battery.py have more trees.

    One whose verdict depends on the draws is audited with all of their kinds, an exact one with
    two, and the others with their first, which is never without replacement. Of wide residuals the
    largest and the smallest are enough: a rule that is wrong above or below some mass is off there
    by far more than 1e-12.
    """
    supported, num_kinds = {}, {"resispec": 4, "standard": 2}

    def draws_of(candidate):
        kinds = supported[candidate.name] = candidate.supported()
        return kinds[: num_kinds.get(candidate.name, 1)]

    use(monkeypatch, toy_material(num_prompts=6), draws_of)
    monkeypatch.setattr(verdict, "MIN_TOKENS", 6 * 64)
    monkeypatch.setattr(battery, "TREES", battery.TREES[:3])
    monkeypatch.setattr(battery, "KINDS", ("random", "ties"))
    monkeypatch.setattr(battery, "RESIDUAL_MASSES", (1e-1, 1e-6))
    code, printed = run_command(capsys, f"results={tmp_path}")
    assert code == 0, printed.err
    frame = pd.read_csv(tmp_path / "embedded" / "audit.csv").set_index(["verifier", "draws"])
    every = {"iid", "without_replacement", "point_mass", "greedy"}
    expected = dict.fromkeys(("standard", "naive", "traversal", "block", "resispec", "hsd"), every)
    lossy = ("lenience", "typical", "relaxed")
    expected |= dict.fromkeys(lossy, every) | {"dial": {"iid"}}
    expected |= dict.fromkeys(("kseq", "optimal", "traversal_optimal", "level_optimal"), {"iid"})
    expected |= dict.fromkeys(("khisti", "gbv"), {"iid"}) | dict.fromkeys(
        ("greedy", "univer"), {"greedy"}
    )
    assert {name: {*kinds} for name, kinds in supported.items()} == expected
    assert {*frame.index.get_level_values("verifier")} == {*expected} and len(frame) == len(
        expected
    ) + 3 + 1
    biased = frame.index[frame.verdict == "biased"]
    wanted = {("resispec", draws) for draws in every - {"point_mass"}}
    assert {*biased} == wanted | {(name, "iid") for name in ("hsd", "dial", *lossy)}
    exact = frame.drop(index=biased)
    assert {*exact.verdict} == {"no bias seen"} and exact.enumerated_error.max() < 1e-12
    page = (tmp_path / "embedded" / "audit.md").read_text()
    assert page in printed.out and "resispec, iid: biased: " in printed.out


@pytest.mark.usefixtures("small")
def test_a_dial_is_called_biased_and_at_0_it_is_not(capsys, tmp_path):
    words = ["verifier=dial", "verifier.rule=level_optimal", f"results={tmp_path}"]
    code, printed = run_command(capsys, *words, "verifier.bias=0.05")
    assert code == 3 and "biased with draws: iid (enumerated total variation" in printed.out
    code, printed = run_command(capsys, *words, "verifier.bias=0")
    # so few tokens acquit nobody
    assert code == 4 and "\nbiased with draws: none" in printed.out


def test_a_rule_for_one_sibling_is_audited_on_chains(monkeypatch, tmp_path):
    """Defect: it was enumerated with as many siblings as any other rule, and refused."""
    body = (
        "if s.shape[-1] > 1: raise NotDefined('one')\n        return Standard().law(p, q, s, draws)"
    )
    name = save_rule(tmp_path, body)
    one = Candidate(name, {"_target_": "resispec.verifiers.get_verifier", "name": name})
    monkeypatch.setattr(evidence, "NUM_TURNS", 5)  # simulation has tests of its own
    found = audited(one, Draws.IID, toy_material())
    assert found.judgement.finding == "no bias seen" and found.evidence.enumerated_error < 1e-12


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    folder = save_toys(tmp_path_factory.mktemp("tiny"))
    return [sys.executable, "-m", "experiments.audit", *toy_overrides(folder, folder / "results")]


def test_a_rule_cannot_end_the_audit_with_success(command, tmp_path):
    rule = f"verifier.name={save_rule(tmp_path, 'os._exit(0)')}"
    arguments = [*command, "verifier=custom", rule]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    message = "error: verifier '.*:Rule' ended its process$"
    assert done.returncode == 1 and re.search(message, done.stderr, re.M), done.stderr
    assert "Traceback" not in done.stderr


def test_an_audit_stops_at_once_with_all_its_processes(command, tmp_path):
    """`kill` reaches the command alone, which ends the others; Ctrl-C reaches all of them."""
    marks = tmp_path / "marks"
    body = f"open({str(marks)!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(600)"
    process = subprocess.Popen(
        [*command, "verifier=custom", f"verifier.name={save_rule(tmp_path, body)}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not marks.exists() or not marks.read_text().endswith(" "):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=60)
    assert process.returncode != 0 and "Traceback" not in printed, printed
    for worker in map(int, marks.read_text().split()):
        while os.path.exists(f"/proc/{worker}"):  # noqa: PTH110 - a process, not a file
            time.sleep(0.1)
