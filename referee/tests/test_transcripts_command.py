"""The command that audits transcripts, from the outside: what it prints, writes and returns."""

import copy
import hashlib
import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from toy_engine import hot, write
from toys import save_tiny_pair

from referee import inputs
from referee.audit.__main__ import main
from referee.rescoring import Scorer, load_scorers
from referee.transcripts import line_of
from resispec.files import read_sealed


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with a pair, a target that float16 cannot hold, and what exact engines and a hot one wrote."""
    folder = tmp_path_factory.mktemp("desk")
    save_tiny_pair(folder)
    [engine] = load_scorers([str(folder / "target")], "cpu")
    large = copy.deepcopy(engine.module)
    with torch.no_grad():
        large.model.embed_tokens.weight.mul_(1e7)  # beyond float16; the norm behind it takes it back
    large.save_pretrained(shutil.copytree(folder / "target", folder / "large"))
    for name, rows in {
        "plain": write(engine=engine),
        "exact": write(engine=engine, seed=1, engine_version="1.2"),
        "hot": write(hot(1.4), engine=engine, seed=1),
        "few": write(engine=engine, rows=4),
        "large": write(engine=Scorer(large, 0)),
    }.items():
        (folder / f"{name}.jsonl").write_text("".join(map(line_of, rows)))
    return folder


def run(desk, capsys, name, *arguments):
    rows, target = (str(desk / path) for path in (f"{name}.jsonl", "target"))
    return main([rows, "--target", target, "--device", "cpu", *arguments]), capsys.readouterr()


def test_the_exit_code_says_the_verdict(desk, capsys):
    for name, finding, expected in (
        ("exact", "no bias seen (a total variation above 0.0", 0),
        ("hot", "biased\n", 3),
        ("few", "undecided\n", 4),
    ):
        code, printed = run(desk, capsys, name, "--draft", str(desk / "draft"))
        assert code == expected and printed.out.startswith(f"verdict: {finding}")
        assert "log(q/p)" in printed.out and "more tokens an arm" in printed.out
        assert "An exact engine is called biased with probability below 0.001" in printed.out


def test_evidence_is_a_file_that_says_how_to_repeat_it_and_a_text_for_an_issue(desk, capsys, tmp_path):
    file, control = tmp_path / "hot.json", str(desk / "plain.jsonl")
    code, printed = run(desk, capsys, "hot", "--control", control, "--evidence", str(file), "--markdown")
    found = read_sealed(file)
    assert code == 3 and found["finding"] == found["verdict"] == "biased"
    assert [one["finding"] for one in found["judgements"]] == ["biased", "biased", "no bias seen"]
    assert found["files"]["transcripts"] | {"rows": 0, "tokens": 0} == {
        "name": "hot.jsonl", "rows": 0, "tokens": 0,
        "sha256": hashlib.sha256((desk / "hot.jsonl").read_bytes()).hexdigest(),
    }  # fmt: skip
    assert set(found["files"]) == {"transcripts", "control"} and set(found["models"]) == {"target"}
    assert "a small bias toward the draft" in " ".join(found["not_tested"])
    lines = printed.out.splitlines()
    assert lines[0] == "**Audit of what the engine wrote: biased**" and len(lines) <= 20
    assert "speculation differs from the engine without it" in printed.out
    program, *again = shlex.split(lines[-1].split("`")[1])[2:]
    assert program == "referee.audit" and main(again) == 3  # what it names can be run as it is
    assert read_sealed(file) == found


def test_evidence_knows_other_weights_and_what_was_not_tested(desk, capsys, tmp_path):
    found = {}
    for name in ("target", "large"):
        file = tmp_path / f"{name}.json"
        run(desk, capsys, "exact", "--target", str(desk / name), "--evidence", str(file))
        found[name] = read_sealed(file)
    assert found["target"]["models"]["target"]["weights"] != found["large"]["models"]["target"]["weights"]
    unknown = found["target"]["not_tested"]
    assert unknown[0].startswith("a bias below 0.0")
    assert "whether it is the speculation: there is no control arm without it" in unknown


@pytest.mark.parametrize(("role", "name"), [("target", "large"), ("draft", "plain")])
def test_a_model_that_the_precision_cannot_hold_gives_no_verdict(desk, capsys, role, name):
    options = [str(desk / f"{name}.jsonl"), "--target", str(desk / "target"), "--device", "cpu"]
    options += [f"--{role}", str(desk / "large")]  # the last --target counts
    assert main([*options, "--dtype", "float16", "--evidence", "here.json"]) == 5
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and not Path("here.json").exists()
    assert f"the {role} in float16 gives NaN or infinite logits for" in printed.err
    assert printed.err.startswith(f"no verdict: {desk / name}.jsonl, line ")
    assert main([*options, "--dtype", "bfloat16"]) == 0


def test_a_pair_of_the_repository_is_known_by_its_name(desk, capsys, monkeypatch):
    """Its target, and its draft, whatever `_target_` makes them."""
    from resispec import embedded
    from resispec.models import load_pair

    asked = []

    def toy_pair(**options):
        asked.append(options)
        return load_pair(str(desk / "target"), str(desk / "draft"))

    monkeypatch.setattr(embedded, "load_pair", toy_pair)
    inputs._configured.cache_clear()
    assert main([str(desk / "exact.jsonl"), "--target", "embedded", "--device", "cpu"]) == 0
    inputs._configured.cache_clear()
    assert asked == [{"target": "2m", "draft": "80k", "device": "cpu", "dtype": "float32"}]
    assert "overdraft" in capsys.readouterr().out


BAD = {
    ("none.jsonl",): "transcripts none.jsonl are no file; give a .jsonl file",
    ("ROWS", "--control", "ROWS"): "the control is the file of the transcripts",
    ("ROWS", "--target", "./nowhere"): "model folder ./nowhere does not exist",
    ("ROWS", "--device", "abacus"): "device 'abacus' cannot be used",
    ("ROWS", "--dtype", "int3"): "unknown dtype 'int3'",
    ("BAD",): "bad.jsonl, line 1: output_token_ids is empty",
    ("ROWS", "--control", "BAD"): "bad.jsonl, line 1: output_token_ids",
    ("WIDE",): "wide.jsonl, line 1: prompt_token_ids holds",
    ("LONG",): "long.jsonl, line 1: 300 prompt and 1 output",
}


def test_what_is_wrong_is_one_line(desk, capsys):
    rows = {
        "bad": {"prompt_token_ids": [1], "output_token_ids": []},
        "wide": {"prompt_token_ids": [64000], "output_token_ids": [1]},
        "long": {"prompt_token_ids": [1] * 300, "output_token_ids": [1]},
    }
    for name, row in rows.items():
        (desk / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    names = {name.upper(): str(desk / f"{name}.jsonl") for name in rows} | {"ROWS": str(desk / "few.jsonl")}
    for arguments, expected in BAD.items():
        defaults = ["--target", str(desk / "target"), "--device", "cpu"]
        assert main([*defaults, *(names.get(word, word) for word in arguments)]) == 1
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.startswith("error: ") and expected in printed.err
        assert printed.err.count("\n") == 1
