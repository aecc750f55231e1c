"""The command that audits transcripts, from the outside: what it prints, writes and returns."""

import json

import pytest
from toy_engine import hot, write
from toys import save_tiny_pair

from experiments.audit_transcripts import main
from experiments.transcripts import models
from resispec.models.scoring import load_scorers
from resispec.transcripts import line_of


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with a pair, and with what an exact engine and a hot one wrote."""
    folder = tmp_path_factory.mktemp("desk")
    save_tiny_pair(folder)
    [engine] = load_scorers([str(folder / "target")], "cpu")
    for name, rows in {
        "plain": write(engine=engine),
        "exact": write(engine=engine, seed=1, engine_version="1.2"),
        "hot": write(hot(1.4), engine=engine, seed=1),
        "few": write(engine=engine, rows=4),
    }.items():
        (folder / f"{name}.jsonl").write_text("".join(map(line_of, rows)))
    return folder


def run(desk, capsys, name, *arguments):
    code = main(
        [str(desk / f"{name}.jsonl"), "--target", str(desk / "target"), "--device", "cpu", *arguments]
    )
    return code, capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "finding", "expected"),
    [("exact", "consistent", 0), ("hot", "biased", 3), ("few", "undecided", 4)],
)
def test_the_exit_code_says_the_verdict(desk, capsys, name, finding, expected):
    code, printed = run(desk, capsys, name, "--draft", str(desk / "draft"))
    assert code == expected and printed.out.startswith(f"verdict: {finding}\n")
    assert "log(q/p)" in printed.out and "more tokens an arm" in printed.out
    assert "An exact engine is called biased with probability below 0.001" in printed.out
    assert not list(desk.glob("*.json"))


def test_a_control_and_every_number_in_a_file(desk, capsys):
    code, printed = run(desk, capsys, "hot", "--control", str(desk / "plain.jsonl"), "--json")
    assert code == 3 and "speculation differs from the engine without it" in printed.out
    content = json.loads((desk / "hot.audit.json").read_text())
    assert content["finding"] == "biased" and content["options"]["control"] == str(desk / "plain.jsonl")
    assert [one["finding"] for one in content["judgements"]] == ["biased", "biased", "consistent"]
    (desk / "hot.audit.json").unlink()


def test_a_pair_of_the_repository_is_known_by_its_name(desk, capsys, monkeypatch):
    """Its target, and its draft, whatever `_target_` makes them."""
    from resispec import embedded
    from resispec.models import load_pair

    asked = []

    def toy_pair(**options):
        asked.append(options)
        return load_pair(str(desk / "target"), str(desk / "draft"))

    monkeypatch.setattr(embedded, "load_pair", toy_pair)
    models._configured.cache_clear()
    assert main([str(desk / "exact.jsonl"), "--target", "embedded", "--device", "cpu"]) == 0
    models._configured.cache_clear()
    assert asked == [{"target": "2m", "draft": "80k", "device": "cpu", "dtype": "float32"}]
    assert "overdraft" in capsys.readouterr().out


BAD = {
    "no file": (["none.jsonl", "--target", "."], "transcripts none.jsonl are no file; give a .jsonl file"),
    "no model": (["ROWS", "--target", "./nowhere"], "model folder ./nowhere does not exist"),
    "no device": (["ROWS", "--target", "TARGET", "--device", "abacus"], "device 'abacus' cannot be used"),
    "no dtype": (
        ["ROWS", "--target", "TARGET", "--device", "cpu", "--dtype", "int3"],
        "unknown dtype 'int3'",
    ),
    "bad row": (["BAD", "--target", "TARGET"], "bad.jsonl, line 1: output_token_ids is empty"),
    "bad control": (
        ["ROWS", "--control", "BAD", "--target", "TARGET"],
        "bad.jsonl, line 1: output_token_ids",
    ),
    "vocabulary": (
        ["WIDE", "--target", "TARGET", "--device", "cpu"],
        "wide.jsonl, line 1: prompt_token_ids holds",
    ),
    "too long": (
        ["LONG", "--target", "TARGET", "--device", "cpu"],
        "long.jsonl, line 1: 300 prompt and 1 output",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_one_line(desk, capsys, what):
    rows = {
        "bad": {"prompt_token_ids": [1], "output_token_ids": []},
        "wide": {"prompt_token_ids": [64000], "output_token_ids": [1]},
        "long": {"prompt_token_ids": [1] * 300, "output_token_ids": [1]},
    }
    for name, row in rows.items():
        (desk / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    names = {name.upper(): str(desk / f"{name}.jsonl") for name in rows}
    names |= {"ROWS": str(desk / "few.jsonl"), "TARGET": str(desk / "target")}
    arguments, expected = BAD[what]
    assert main([names.get(word, word) for word in arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ") and expected in printed.err
    assert printed.err.count("\n") == 1
