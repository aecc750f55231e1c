"""The audit command from the outside, on material that is known through and through."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from toys import save_prompts, save_tiny_pair, table_pair

from experiments import audit
from experiments.auditing import evidence, processes
from experiments.auditing.evidence import Candidate, decode_terms
from experiments.auditing.evidence import audit as audit_one
from experiments.auditing.material import Material, Nodes, gather
from experiments.configuration.single import axes_of, run_single, with_implied
from experiments.plan import cells_of
from resispec.audit.battery import pair_of_laws
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.trees import complete
from resispec.verifiers import available, get_verifier

NUM_PROMPTS = 18
SAMPLING = Sampling(temperature=1.0, max_new_tokens=64, max_length=256, ignore_eos=True)


@pytest.fixture
def material(monkeypatch):
    """A bigram pair of 12 tokens and two pairs of laws in place of a trained pair and of V = 32,000."""
    generator = torch.Generator().manual_seed(0)
    nodes = {
        kind: Nodes([pair_of_laws("random", 12, generator)], [3], 600)
        for kind in ("V = 32,000", "8 siblings", "recorded")
    }
    prompts = [[0, 1, index % 12] for index in range(NUM_PROMPTS)]
    found = Material(table_pair(vocab=12, gap=1.5), SAMPLING, prompts, nodes)

    def audit_all(chosen, *_):
        return [audit_one(one, draws, found) for one in chosen for draws in one.supported()]

    monkeypatch.setattr(processes, "audit_all", audit_all)
    monkeypatch.setattr(audit, "texts_of", lambda _: [])
    monkeypatch.setattr(evidence, "NUM_TURNS", 25)  # simulation has tests of its own
    return found


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["audit", *arguments])
    code = run_single(audit.run_audit, "audit", {"pair": "pairs"})
    return code, capsys.readouterr()


def only_iid(monkeypatch):
    monkeypatch.setattr(Candidate, "supported", lambda _: (Draws.IID,))


def test_every_registered_verifier_gets_a_verdict_in_files(material, monkeypatch, capsys, tmp_path):
    assert len(material.prompts) == NUM_PROMPTS
    code, printed = run(monkeypatch, capsys, f"results={tmp_path}")
    assert code == 0, printed.err
    page = (tmp_path / "embedded" / "audit.md").read_text()
    lines = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if " **" in line]
    verdicts = {(row[1], row[2]): row[-2].strip("*") for row in lines}
    every = {"iid", "without_replacement", "point_mass", "greedy"}
    supported = dict.fromkeys(("standard", "naive", "traversal", "block", "resispec"), every)
    supported |= dict.fromkeys(("kseq", "optimal", "traversal_optimal", "level_optimal"), {"iid"})
    supported |= {"greedy": {"greedy"}}
    assert set(verdicts) == {(name, draws) for name, found in supported.items() for draws in found}
    biased = {("resispec", draws) for draws in every - {"point_mass"}}
    assert {row for row, verdict in verdicts.items() if verdict == "biased"} == biased
    assert {verdict for row, verdict in verdicts.items() if row not in biased} == {"exact"}
    assert (tmp_path / "embedded" / "audit.csv").read_text().count("\n") == 1 + len(lines)
    assert page in printed.out and "resispec, iid: biased: " in printed.out


@pytest.mark.usefixtures("material")
def test_one_verifier_is_printed_and_not_written(monkeypatch, capsys, tmp_path):
    only_iid(monkeypatch)
    code, printed = run(monkeypatch, capsys, "verifier=optimal", "verifier.bins=0", f"results={tmp_path}")
    assert code == 0 and "| optimal " in printed.out and not list(tmp_path.iterdir())


@pytest.mark.usefixtures("material")
def test_a_baseline_that_is_not_exact_fails_the_command(monkeypatch, capsys):
    monkeypatch.setattr("resispec.verifiers.BASELINES", ("resispec",))
    only_iid(monkeypatch)
    code, printed = run(monkeypatch, capsys, "verifier=resispec")
    assert code == 1
    assert "error: not every baseline was found exact: resispec with iid draws is biased" in printed.err


def test_too_few_tokens_are_undecided(material, monkeypatch, capsys):
    del material.prompts[4:]
    only_iid(monkeypatch)
    code, printed = run(monkeypatch, capsys, "verifier=standard")
    assert "**undecided**" in printed.out and code == 1  # a baseline that is not found exact


def test_a_rule_for_one_sibling_is_audited_on_chains(material, tmp_path):
    """It was enumerated with as many siblings as any other rule, and refused."""
    path = tmp_path / "single.py"
    path.write_text(
        "from resispec.errors import InvalidInput\n"
        "from resispec.verifiers import Standard\n\n"
        "class Rule(Standard):\n"
        "    def law(self, p, q, siblings, draws):\n"
        "        if siblings.shape[-1] > 1:\n"
        "            raise InvalidInput('one sibling')\n"
        "        return super().law(p, q, siblings, draws)\n"
    )
    name = f"{path}:Rule"
    one = Candidate(name, {"_target_": "resispec.verifiers.get_verifier", "name": name})
    found = audit_one(one, Draws.IID, material)
    assert found.judgement.finding == "exact" and found.evidence.enumerated_error < 1e-12


def rule_file(folder, body, before=""):
    path = folder / "mine.py"
    head = f"import os, sys\nfrom resispec.verifiers import Law\n\n{before}\nclass Rule:\n"
    path.write_text(f"{head}    def law(self, p, q, s, draws):\n        {body}\n")
    return path


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return Law(-p.gather(-1, s), p)", "rule '.*:Rule': .*entries of select hold -0"),
        ("return Law(p.gather(-1, s) * float('nan'), p)", "rule '.*:Rule': .*entries of select hold nan"),
        ("return Law(0 * p.gather(-1, s), 2 * p)", "rule '.*:Rule': .*residual"),
        ("return Law(0 * p.gather(-1, s), p[..., :1])", "rule '.*:Rule': .*residual is"),
        ("q.zero_(); return Law(0 * p.gather(-1, s), p)", "rule '.*:Rule': .*changed its input draft_probs"),
        ("raise ValueError('no idea')", "verifier '.*:Rule' raised ValueError: no idea"),
        ("return {}['law']", "verifier '.*:Rule' raised KeyError: 'law'"),
        ("sys.exit(0)", "verifier '.*:Rule' raised SystemExit: 0"),
    ],
)
@pytest.mark.usefixtures("material")
def test_a_rule_that_breaks_the_contract_is_named(monkeypatch, capsys, tmp_path, body, message):
    path = rule_file(tmp_path, body)
    code, printed = run(monkeypatch, capsys, "verifier=custom", f"verifier.name={path}:Rule")
    assert code == 1 and re.search(f"^error: {message}", printed.err.splitlines()[-1]), printed.err
    assert "Traceback" not in printed.err


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Overrides of a tiny pair and data set."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_pair(folder)
    save_prompts(folder, 2)
    return [
        "pair=llama2_7b__jf68m", f"pair.target={folder}/target", f"pair.draft={folder}/draft",
        "dataset=jsonl", f"dataset.path={folder}/prompts.jsonl", "num_prompts=2",
        "prompt_tokens=12", "device=cpu",
        "dtype=float32", "sampling.max_new_tokens=8", "sampling.max_length=64", f"results={folder}/results",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit(0)", "verifier '.*:Rule' raised SystemExit"),
        ("os._exit(0)", "verifier '.*:Rule', or one that was audited beside it, ended its process"),
    ],
)
def test_a_rule_cannot_end_the_audit_with_success(tiny, tmp_path, body, message):
    path = rule_file(tmp_path, body)
    command = [
        sys.executable,
        "-m",
        "experiments.audit",
        *tiny,
        "verifier=custom",
        f"verifier.name={path}:Rule",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and re.search(f"error: {message}", done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_the_profile_decides_the_pair_and_the_data_sets():
    assert with_implied([], {"pair": "pairs"}) == ["pair=embedded"]
    implied = with_implied(["--cfg", "job", "profile=paper", "device=cpu"], {"pair": "pairs"})
    assert implied == ["--cfg", "job", "pair=llama2_7b__jf68m", "profile=paper", "device=cpu"]
    assert with_implied(["profile=paper", "pair=embedded"], {"pair": "pairs"}) == [
        "profile=paper",
        "pair=embedded",
    ]
    assert with_implied(["profile=nope"], {"pair": "pairs"}) == ["profile=nope"]
    assert axes_of("paper")["datasets"] == ["cnn_dm", "openwebtext", "c4"] and axes_of("nope") == {}


def test_an_audit_of_the_papers_profile_asks_for_the_papers_models(monkeypatch, capsys):
    """Defect D: it audited the embedded pair without a word."""
    seen = []
    monkeypatch.setattr(audit, "texts_of", lambda _: [])

    def audit_all(chosen, config, *_):
        seen.append((len(chosen), config["pair"]["target"], config["device"]))
        raise InvalidInput("seen enough")

    monkeypatch.setattr(processes, "audit_all", audit_all)
    code, printed = run(monkeypatch, capsys, "profile=paper")
    assert code == 1 and printed.err.endswith("error: seen enough\n")
    assert seen == [(len(available()), "meta-llama/Llama-2-7b-hf", "cuda")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verifier=nope"], "unknown verifier 'nope'; .*allowed: block"),
        (["profile=nope"], "unknown profile 'nope'"),
        (["num_prompts=0"], "num_prompts is 0"),
        (["verifier=custom", "verifier.name=none.py:Rule"], "verifier file none.py does not exist"),
        (["pair.target=/nowhere"], "^error: unknown embedded target '/nowhere'; allowed: 2m, 800k$"),
    ],
)
@pytest.mark.usefixtures("material")
def test_bad_input_is_one_line(monkeypatch, capsys, arguments, message):
    code, printed = run(monkeypatch, capsys, *arguments)
    [line] = printed.err.splitlines()
    assert code == 1 and line.startswith("error: ") and re.search(message, line)


def test_material_is_that_of_the_configuration(tiny):
    """Prompts are encoded as cells encode them; laws are those of the pair, which prompts in turn decode."""
    [cell] = cells_of(tiny)
    texts = ["abc def gh a" * 4, "abc"]
    found = gather(cell.config, texts)
    assert found.prompts == [found.pair.tokenizer.encode(text)[:12] for text in texts]
    assert [len(prompt) for prompt in found.prompts] == [12, 1]
    assert len(found.nodes["recorded"].laws) == 2 and found.nodes["recorded"].siblings == [1, 2]
    assert len(found.nodes["V = 32,000"].laws[0][0]) == 32_000
    decoder = Decoder(DraftModel(complete(3, 2), Draws.IID), get_verifier("standard"))
    [score, *_] = decode_terms(decoder, found, 1).scores().values()
    assert 2 <= score.n <= 16
