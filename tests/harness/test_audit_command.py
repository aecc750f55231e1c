"""`make audit` from the outside, on material that is known through and through."""

import sys

import pytest
import torch
from toys import table_pair

from experiments import audit
from resispec.audit.battery import pair_of_laws

NUM_PROMPTS = 18


@pytest.fixture
def material(monkeypatch):
    """A bigram pair of 12 tokens and two pairs of laws in place of the trained pair and of V = 32,000."""
    generator = torch.Generator().manual_seed(0)
    laws = {kind: [pair_of_laws("random", 12, generator)] for kind in ("synthetic", "recorded")}
    prompts = [[0, 1, index % 12] for index in range(NUM_PROMPTS)]
    found = audit.Material(table_pair(vocab=12, gap=1.5), prompts, laws)
    monkeypatch.setattr(
        audit, "audit_all", lambda rows: [audit.audit(name, draws, found) for name, draws in rows]
    )
    return found


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["audit", *arguments])
    code = audit.main()
    return code, capsys.readouterr()


def test_every_registered_verifier_gets_a_verdict_in_files(material, monkeypatch, capsys, tmp_path):
    assert len(material.prompts) == NUM_PROMPTS
    code, printed = run(monkeypatch, capsys, "--results", str(tmp_path))
    assert code == 0, printed.err
    page = (tmp_path / "embedded" / "audit.md").read_text()
    lines = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if "| **" in line]
    verdicts = {(row[1], row[2]): row[-2].strip("*") for row in lines}
    every = {"iid", "without_replacement", "point_mass", "greedy"}
    supported = dict.fromkeys(("standard", "naive", "traversal", "block", "resispec"), every)
    supported |= {"kseq": {"iid"}, "optimal": {"iid"}, "traversal_optimal": {"iid"}, "greedy": {"greedy"}}
    assert set(verdicts) == {(name, draws) for name, found in supported.items() for draws in found}
    biased = {("resispec", draws) for draws in every - {"point_mass"}}
    assert {row for row, verdict in verdicts.items() if verdict == "biased"} == biased
    assert {verdict for row, verdict in verdicts.items() if row not in biased} == {"exact"}
    assert (tmp_path / "embedded" / "audit.csv").read_text().count("\n") == 1 + len(lines)


@pytest.mark.usefixtures("material")
def test_a_baseline_that_is_not_exact_fails_the_command(monkeypatch, capsys):
    monkeypatch.setattr(audit, "BASELINES", ("resispec",))
    monkeypatch.setattr(audit, "_draws", lambda _: (audit.Draws.IID,))
    code, printed = run(monkeypatch, capsys, "--verifier", "resispec")
    assert code == 1 and "error: the baseline resispec with iid draws is biased" in printed.err


def test_too_few_tokens_are_undecided(material, monkeypatch, capsys):
    del material.prompts[4:]
    monkeypatch.setattr(audit, "_draws", lambda _: (audit.Draws.IID,))
    code, printed = run(monkeypatch, capsys, "--verifier", "standard")
    assert "**undecided**" in printed.out and code == 1  # a baseline that is not found exact


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return Law(-p.gather(-1, s), p)", "rule '.*:Rule': .*entries of select hold -0"),
        ("return Law(p.gather(-1, s) * float('nan'), p)", "rule '.*:Rule': .*entries of select hold nan"),
        ("return Law(0 * p.gather(-1, s), 2 * p)", "rule '.*:Rule': .*residual"),
        ("return Law(0 * p.gather(-1, s), p[..., :1])", "rule '.*:Rule': .*residual is"),
        ("q.zero_(); return Law(0 * p.gather(-1, s), p)", "rule '.*:Rule': .*changed its input draft_probs"),
    ],
)
@pytest.mark.usefixtures("material")
def test_a_rule_that_breaks_the_contract_is_named(monkeypatch, capsys, tmp_path, body, message):
    import re

    path = tmp_path / "mine.py"
    path.write_text(
        f"from resispec.verifiers import Law\n\nclass Rule:\n    def law(self, p, q, s, draws):\n        {body}\n"
    )
    code, printed = run(monkeypatch, capsys, "--verifier", f"{path}:Rule")
    assert code == 1 and re.search(f"^error: {message}", printed.err.splitlines()[-1]), printed.err
