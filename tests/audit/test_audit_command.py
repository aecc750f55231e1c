"""The audit command from the outside: what it is given, what it refuses, and what it prints."""

import re
import sys

import pytest
from audit_toys import rule_file, run_command, tiny_overrides, toy_material, use
from hydra.core.hydra_config import HydraConfig

from experiments import audit
from experiments.audit import settings
from experiments.auditing import evidence, processes
from experiments.auditing.evidence import decode_terms
from experiments.auditing.material import gather
from experiments.cli import run_single
from experiments.grid import cells_of
from resispec.data import Prompt
from resispec.decode import Decoder
from resispec.drafters import DraftModel
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.trees import complete
from resispec.verifiers import available, get_verifier


@pytest.fixture
def small(monkeypatch):
    """Too little material for a verdict without a bias, quickly."""
    use(monkeypatch, toy_material(num_prompts=2, num_tuples=40), [Draws.IID])
    monkeypatch.setattr(evidence, "NUM_TURNS", 2)
    monkeypatch.setattr("resispec.audit.battery.KINDS", ("random",))
    monkeypatch.setattr("resispec.audit.battery.RESIDUAL_MASSES", (1e-1,))
    monkeypatch.setattr("resispec.audit.battery.TREES", evidence.TREES[:2])


@pytest.mark.usefixtures("small")
def test_one_verifier_is_printed_and_not_written_and_a_baseline_must_be_clean(monkeypatch, capsys, tmp_path):
    arguments = ["verifier=standard", f"results={tmp_path}"]
    code, printed = run_command(monkeypatch, capsys, *arguments)
    assert re.search(r"\| standard .*\| +exact \(.*\| +\*\*undecided\*\* \|", printed.out)
    assert "standard, iid: undecided: " in printed.out and not list(tmp_path.iterdir())
    assert code == 1 and "error: a baseline failed its audit: standard with iid draws is und" in printed.err
    monkeypatch.setattr("resispec.verifiers.BASELINES", ())
    assert run_command(monkeypatch, capsys, *arguments)[0] == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return Law(-p.gather(-1, s), p)", "rule '.*:Rule': .*entries of select hold -0"),
        ("q.zero_(); return Law(0 * p.gather(-1, s), p)", "rule '.*:Rule': .*changed its input draft_probs"),
        ("return {}['law']", "verifier '.*:Rule' raised KeyError: 'law'"),
        ("sys.exit(0)", "verifier '.*:Rule' raised SystemExit: 0"),
    ],
)
@pytest.mark.usefixtures("small")
def test_a_rule_that_breaks_the_contract_is_named(monkeypatch, capsys, tmp_path, body, message):
    code, printed = run_command(monkeypatch, capsys, *rule_file(tmp_path, body))
    assert code == 1 and re.search(f"^error: {message}", printed.err.splitlines()[-1]), printed.err
    assert "Traceback" not in printed.err


def test_the_profile_decides_the_pair_and_the_data_sets(monkeypatch, capsys):
    seen = []

    def job(_):
        choices, repositories = (
            HydraConfig.get().runtime.choices,
            [one["dataset"].get("repo") for one in settings()],
        )
        seen.append((choices["pair"], len(repositories), repositories[-1]))

    for given in (["profile=embedded"], ["profile=paper"], ["profile=paper", "pair=embedded", "dataset=c4"]):
        monkeypatch.setattr(sys, "argv", ["audit", *given])
        assert run_single(job, "audit", {"pair": "pairs"}) == 0
    c4 = "allenai/c4"
    assert seen == [("embedded", 3, None), ("llama2_7b__jf68m", 3, c4), ("embedded", 1, c4)]
    code, printed = run_command(monkeypatch, capsys, "--cfg", "job", "profile=paper")
    assert code == 0 and "target: meta-llama/Llama-2-7b-hf" in printed.out


def test_an_audit_of_the_papers_profile_asks_for_the_papers_models(monkeypatch, capsys):
    """Defect D: it audited the embedded pair without a word."""
    seen = []
    monkeypatch.setattr(audit, "documents_of", lambda _: [])

    def audit_all(chosen, config, *_):
        seen.append((len(chosen), config["pair"]["target"], config["device"]))
        raise InvalidInput("seen enough")

    monkeypatch.setattr(processes, "audit_all", audit_all)
    code, printed = run_command(monkeypatch, capsys, "profile=paper")
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
@pytest.mark.usefixtures("small")
def test_bad_input_is_one_line(monkeypatch, capsys, arguments, message):
    code, printed = run_command(monkeypatch, capsys, *arguments)
    [line] = printed.err.splitlines()
    assert code == 1 and line.startswith("error: ") and re.search(message, line)


def test_material_is_that_of_the_configuration(tmp_path):
    """Prompts are encoded as cells encode them; laws are those of the pair, which prompts in turn decode."""
    [cell] = cells_of(tiny_overrides(tmp_path))
    material = gather(cell.config, [Prompt("long", "abc def gh a" * 4), Prompt("short", "abc")])
    encode = material.pair.tokenizer.encode
    assert material.prompts == [encode("abc def gh a" * 4)[:12], encode("abc")]
    assert len(material.nodes["recorded"].laws) == 2 and material.nodes["recorded"].siblings == [1, 2]
    assert len(material.nodes["V = 32,000"].laws[0][0]) == 32_000
    decoder = Decoder(DraftModel(complete(3, 2), Draws.IID), get_verifier("standard"))
    lengths = []
    [score, *_] = decode_terms(decoder, material, 1, lengths).scores().values()
    assert 2 <= score.n <= 16 and sum(lengths) >= score.n
