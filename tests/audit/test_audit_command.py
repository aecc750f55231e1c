"""The audit command from the outside: what it is given, what it refuses, and what it prints."""

import re

import pytest
import torch

from experiments import audit
from experiments.auditing import audits, evidence
from experiments.auditing.evidence import decode_terms
from experiments.auditing.material import Nodes, gather
from experiments.cli import Point
from experiments.composition import hydra_here
from experiments.grid import cells_of
from resispec.audit.battery import pair_of_laws
from resispec.data import Prompt
from resispec.decode import Decoder
from resispec.drafters import DraftModel
from resispec.draws import Draws, Hub
from resispec.errors import InvalidInput
from resispec.trees import complete
from resispec.verifiers import available, get_rule, get_verifier
from tests.audit.audit_toys import run_command
from tests.harness.toy_runs import save_rule, save_toys, toy_overrides


@pytest.mark.usefixtures("small")
def test_one_verifier_is_printed_and_not_written_and_a_baseline_must_be_clean(
    monkeypatch, capsys, tmp_path
):
    arguments = ["verifier=standard", f"results={tmp_path}"]
    found, once = [], audits.audit_all

    def audit_all(*given):
        found[:] = found or once(*given)
        return found

    monkeypatch.setattr(audits, "audit_all", audit_all)
    code, printed = run_command(capsys, *arguments)
    assert re.search(r"\| standard .*\| +exact \(.*\| +\*\*undecided\*\* \|", printed.out)
    assert "standard, iid: undecided: " in printed.out and not list(tmp_path.iterdir())
    assert all(len(line) < 200 for line in printed.out.split("standard, iid:")[1].splitlines())
    assert (
        code == 1
        and "error: a baseline failed its audit: standard with iid draws is und" in printed.err
    )
    monkeypatch.setattr("resispec.verifiers.BASELINES", ())
    code, printed = run_command(capsys, *arguments)
    summary = [
        "undecided with draws: iid",
        "no bias seen with draws: none",
        "biased with draws: none",
    ]
    assert code == 4 and printed.out.splitlines()[-3:] == summary  # defect: 0, as if exact


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_the_law_behind_filters_is_said(capsys, tmp_path):
    """In the caption, and where decoding is told; a bad filter is one line."""
    law = ["verifier=resispec", f"results={tmp_path}", "temperature=0.6", "sampling.top_p=0.9"]
    printed = run_command(capsys, *law)[1].out
    assert "Pair: embedded, behind top-p = 0.9." in printed
    assert "real decoding on the pair at T = 0.6, top-p = 0.9, the furthest" in printed
    assert "behind top" not in run_command(capsys, *law[:3])[1].out
    code, printed = run_command(capsys, *law, "sampling.min_p=2")
    assert code == 1 and printed.err.endswith(
        "min_p is 2.0; allowed: from 0 to 1, where 0 is off\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "differing"),
    [
        (["temperature=1.0", "device=cpu", "num_threads=2"], None),
        (["temperature=0.6", "sampling.top_p=0.9"], "sampling.top_p, temperature"),
        (["dataset=embedded_code"], "dataset"),
        (["pair=embedded_800k__80k"], "pair.fingerprint, pair.target"),
    ],
)
@pytest.mark.usefixtures("small")
def test_an_audit_of_all_is_written_at_the_profile_s_own_settings_alone(
    monkeypatch, capsys, tmp_path, arguments, differing
):
    """Defect: at any temperature and behind any filter it was written over the profile's file."""
    monkeypatch.setattr(evidence, "available", lambda: ["standard"])
    monkeypatch.setattr("resispec.verifiers.BASELINES", ())
    given = ["profile=embedded", f"results={tmp_path}", *arguments]
    code, printed = run_command(capsys, *given)
    files = sorted(path.name for path in tmp_path.rglob("*.*"))
    said = f"not written: they have the settings of profile embedded; here others: {differing}\n"
    assert code == 0 and printed.out.count("not written") == (differing is not None)
    assert files == ["audit.csv", "audit.json", "audit.md"] if differing is None else not files
    assert differing is None or printed.out.endswith(said)


@pytest.mark.usefixtures("small")
def test_a_biased_verifier_of_one_s_own_ends_with_two_lines_and_3(capsys, tmp_path):
    """Defect: the exit code was 0, and all reasons stood in one line of 4,913 characters."""
    biased = save_rule(tmp_path, "import torch; return Law(torch.zeros_like(s, dtype=p.dtype), q)")
    code, printed = run_command(capsys, "verifier=custom", f"verifier.name={biased}")
    *lines, clean, found = printed.out.splitlines()
    assert code == 3 and clean == "no bias seen with draws: none"
    assert re.fullmatch(r"biased with draws: iid \(enumerated total variation 0\.\d+\)", found)
    start = next(
        number
        for number, line in enumerate(lines)
        if line.startswith(f"{biased}, iid: biased: enum")
    )
    assert len(lines[start:]) == 5 and re.fullmatch(r"  and \d+ more", lines[-1])
    assert max(map(len, lines[start:])) < 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        # legal for one sibling alone
        (
            "return Law((p / q).gather(-1, s).clamp_max(1), p)",
            "rule '.*:Rule': .*entries of select sum to 2; allowed: at most 1",
        ),
        ("sys.exit(0)", "verifier '.*:Rule' raised SystemExit: 0"),
    ],
)
@pytest.mark.usefixtures("small")
def test_a_rule_that_breaks_the_contract_is_named(capsys, tmp_path, body, message):
    name = f"verifier.name={save_rule(tmp_path, body)}"
    code, printed = run_command(capsys, "verifier=custom", name)
    assert code == 1 and re.search(f"^error: {message}", printed.err.splitlines()[-1]), printed.err
    assert "Traceback" not in printed.err


C4 = "allenai/c4"


@pytest.mark.parametrize(
    ("arguments", "asked_for"),
    [
        (["profile=embedded"], ("2m", "cpu", 3, None)),
        (["profile=paper"], ("meta-llama/Llama-2-7b-hf", "cuda", 3, C4)),
        (["profile=paper", "pair=embedded", "dataset=c4"], ("2m", "cuda", 1, C4)),
    ],
)
def test_the_profile_decides_the_models_and_the_data_sets(
    monkeypatch, capsys, arguments, asked_for
):
    """Defect D: an audit of the paper's profile audited the embedded pair without a word."""
    seen = []

    def audit_all(chosen, config, repositories):
        seen.append(
            (config["pair"]["target"], config["device"], len(repositories), repositories[-1])
        )
        assert len(chosen) == len(available())
        raise InvalidInput("seen enough")

    monkeypatch.setattr(
        audit, "documents_of", lambda every: [one["dataset"].get("repo") for one in every]
    )
    monkeypatch.setattr(audits, "audit_all", audit_all)
    code, printed = run_command(capsys, *arguments)
    assert code == 1 and printed.err.endswith("error: seen enough\n") and seen == [asked_for]
    code, printed = run_command(capsys, "--cfg", "job", *arguments)
    assert code == 0 and f"target: {asked_for[0]}" in printed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verifier=nope"], "unknown verifier 'nope'; .*allowed: block"),
        (["profile=nope"], "unknown profile 'nope'"),
        (["num_prompts=0"], "num_prompts is 0"),
        (["verifier=custom", "verifier.name=none.py:Rule"], "verifier file none.py does not exist"),
        (
            ["pair.target=/nowhere"],
            "^error: unknown embedded target '/nowhere'; allowed: 2m, 800k$",
        ),
    ],
)
@pytest.mark.usefixtures("small")
def test_bad_input_is_one_line(capsys, arguments, message):
    code, printed = run_command(capsys, *arguments)
    [line] = printed.err.splitlines()
    assert code == 1 and line.startswith("error: ") and re.search(message, line)


def test_an_unknown_ceiling_is_1():
    nodes = Nodes([pair_of_laws("random", 5, torch.Generator().manual_seed(0))], [2], 40)
    statistics, bound = nodes.estimates(
        get_rule("standard"), Hub(), 2, torch.Generator().manual_seed(0)
    )
    assert bound == 1 and statistics["excess"].value < 0


def test_material_is_that_of_the_configuration(tmp_path):
    """Prompts are encoded as in cells; laws are of the pair, which decodes the prompts in turn."""
    [cell] = cells_of(toy_overrides(save_toys(tmp_path), tmp_path / "results"))
    material = gather(cell.config, [Prompt("long", "abc def gh a" * 4), Prompt("short", "abc")])
    encode = material.pair.tokenizer.encode
    assert material.prompts == [encode("abc def gh a" * 4)[:12], encode("abc")]
    assert len(material.nodes["recorded"].laws) == 2 and material.nodes["recorded"].siblings == [
        1,
        2,
    ]
    assert len(material.nodes["V = 32,000"].laws[0][0]) == 32_000
    assert [*material.walked_laws][:2] == ["T = 1", "T = 0.6"]
    assert all(
        torch.stack(laws).sum(-1).allclose(torch.ones(2, 2))
        for laws in material.walked_laws.values()
    )
    assert torch.equal(
        material.walked_laws["T = 1"][0],
        torch.stack([p for p, _ in material.nodes["recorded"].laws]),
    )
    decoder = Decoder(DraftModel(complete(3, 2), Draws.IID), get_verifier("standard"))
    lengths = []
    [score, *_] = decode_terms(decoder, material, 1, lengths).scores().values()
    assert 2 <= score.n <= 16 and sum(lengths) >= score.n


def test_material_has_the_filters_of_the_configuration(tmp_path):
    toy = toy_overrides(save_toys(tmp_path), tmp_path / "results")
    [cell] = cells_of([*toy, "sampling.top_k=3"])
    material = gather(cell.config, [Prompt("long", "abc def gh a" * 4)])
    assert material.sampling.top_k == 3
    assert [int((law > 0).sum()) for law in material.nodes["recorded"].laws[0]] == [3, 3]


def test_a_key_that_nothing_reads_is_said(capsys):
    """Defect: an audit with ++temprature=0.6 was one at the profile's temperature, in silence."""
    words = ("profile=embedded", "pair=embedded", "++temprature=0.6", "temperature=0")
    with hydra_here(), pytest.raises(InvalidInput, match="temperature is 0"):
        audit.run_audit(Point({}, {}, words))
    said = "note: temprature=... changes nothing: nothing refers to temprature\n"
    assert said in capsys.readouterr().err
