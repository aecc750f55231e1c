"""The command that audits transcripts, from the outside: what it prints, writes and returns."""

import copy
import hashlib
import shlex
import shutil
from dataclasses import replace

import pytest
import torch

from referee import inputs
from referee.audit.__main__ import main
from referee.rescoring import Scorer, load_scorers
from referee.tests.toy_engine import drawing, plain, write
from referee.transcripts import line_of
from resispec.files import read_sealed
from resispec.models import load_pair
from resispec.models.checkpoint import digest_of
from tests.toys import save_tiny_pair


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with a pair, a target beyond float16, and what exact engines and a hot one wrote."""
    folder = tmp_path_factory.mktemp("desk")
    save_tiny_pair(folder)
    [engine] = load_scorers([str(folder / "target")], "cpu")
    large = copy.deepcopy(engine.module)
    with torch.no_grad():
        # beyond float16; the norm behind it takes it back
        large.model.embed_tokens.weight.mul_(1e7)
    large.save_pretrained(shutil.copytree(folder / "target", folder / "large"))
    for name, rows in {
        "plain": write(engine=engine),
        "exact": write(engine=engine, seed=1, engine_version="1.2"),
        "hot": write(drawing(temperature=1.4), engine=engine, seed=1),
        "few": write(engine=engine, rows=4),
        "large": write(engine=Scorer(large, 0)),
        "starts": [
            replace(row, restart=start)
            for start, law in enumerate((plain, drawing(temperature=1.4), plain), 1)
            for row in write(law, engine=engine)
        ],
    }.items():
        (folder / f"{name}.jsonl").write_text("".join(map(line_of, rows)))
    return folder


def run(desk, capsys, name, *arguments):
    rows, target = (str(desk / path) for path in (f"{name}.jsonl", "target"))
    return main([rows, "--target", target, "--device", "cpu", *arguments]), capsys.readouterr()


def test_the_exit_code_says_the_verdict(desk, capsys):
    for name, finding, expected in (
        (
            "exact",
            "no bias seen (another temperature or a shift to the draft with",
            0,
        ),
        ("hot", "biased, total variation at least 0.0", 3),
        ("few", "undecided\n", 4),
    ):
        code, printed = run(desk, capsys, name, "--draft", str(desk / "draft"))
        assert code == expected and printed.out.startswith(f"verdict: {finding}")
        assert "log(q/p)" in printed.out and "more tokens an arm" in printed.out
        assert "An exact engine is called biased with probability below 0.001" in printed.out


def test_evidence_is_a_file_that_says_how_to_repeat_it_and_a_text_for_an_issue(
    desk, capsys, tmp_path
):
    file, control = tmp_path / "hot.json", str(desk / "plain.jsonl")
    code, printed = run(
        desk, capsys, "hot", "--control", control, "--evidence", str(file), "--markdown"
    )
    found = read_sealed(file)
    assert code == 3 and found["finding"] == found["verdict"] == "biased"
    assert [one["finding"] for one in found["judgements"]] == ["biased", "biased", "no bias seen"]
    assert found["files"]["transcripts"] | {"rows": 0, "tokens": 0} == {
        "name": "hot.jsonl", "rows": 0, "tokens": 0,
        "sha256": hashlib.sha256((desk / "hot.jsonl").read_bytes()).hexdigest(),
    }  # fmt: skip
    assert set(found["files"]) == {"transcripts", "control"} and set(found["models"]) == {"target"}
    weights = load_scorers([str(desk / "target")], "cpu")[0].module.state_dict()
    assert found["models"]["target"]["weights"] == digest_of(weights)
    assert "a small bias toward the draft" in " ".join(found["not_tested"])
    lines = printed.out.splitlines()
    assert lines[0] == "**Audit of what the engine wrote: biased**" and len(lines) <= 20
    assert "speculation differs from the engine without it" in printed.out
    program, *again = shlex.split(lines[-1].split("`")[1])[2:]
    assert program == "referee.audit" and main(again) == 3  # what it names can be run as it is
    assert read_sealed(file) == found


def test_of_several_arms_there_is_a_table_in_the_report_and_in_an_issue(desk, capsys):
    code, printed = run(desk, capsys, "starts")
    lines = printed.out.splitlines()
    [place] = [place for place, line in enumerate(lines) if line.startswith("arm ")]
    verdicts = [line.split("  ")[0] for line in lines[place : place + 4]]
    assert code == 3 and verdicts == ["arm", "start 1", "start 2", "start 3"]
    assert "biased" in lines[place + 2] and "differs from start 1" in lines[place + 2]
    code, printed = run(desk, capsys, "starts", "--markdown")
    lines = printed.out.splitlines()
    assert code == 3
    table = [line.split(" | ") for line in lines if line.startswith("| ")]
    assert [(row[0], row[5]) for row in table[2:]] == [
        ("| start 1", "no bias seen"),
        ("| start 2", "biased"),
        ("| start 3", "no bias seen"),
    ]
    # only what the table has not said
    comparisons = [line for line in lines if line.startswith("- transcripts, ")]
    assert len(comparisons) == 2 and all("start 2 against" in line for line in comparisons)


def test_a_model_that_the_precision_cannot_hold_gives_no_verdict_and_another_precision_does(
    desk, capsys
):
    file = desk / "large.json"
    options = ["--target", str(desk / "large"), "--evidence", str(file)]  # the last --target counts
    code, printed = run(desk, capsys, "large", *options, "--dtype", "float16")
    assert code == 5 and printed.out == "" and printed.err.count("\n") == 1 and not file.exists()
    assert printed.err.startswith(f"no verdict: {desk}/large.jsonl, line ")
    assert "the target in float16 gives NaN or infinite logits for" in printed.err
    assert run(desk, capsys, "large", *options, "--dtype", "bfloat16")[0] == 0
    found = read_sealed(file)
    assert found["models"]["target"]["dtype"] == "bfloat16"
    assert found["not_tested"][0].startswith("a bias below 0.0")
    assert (
        "whether it is the speculation: there is no control arm without it" in found["not_tested"]
    )


def test_a_pair_of_the_repository_brings_its_draft(desk, capsys, monkeypatch):
    asked, pair = [], load_pair(str(desk / "target"), str(desk / "draft"))
    monkeypatch.setattr(inputs, "pair_of", lambda *given: asked.append(given) or pair)
    code, printed = run(desk, capsys, "exact", "--target", "embedded")
    assert (
        code == 0 and asked == [("embedded", None, "cpu", "float32")] and "overdraft" in printed.out
    )


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("none", [], "none.jsonl cannot be read: [Errno 2] No such file"),
        ("few", ["--control", "few.jsonl"], "the control is the file of the transcripts"),
        (
            "few",
            ["--evidence", "few.jsonl"],
            "few.jsonl is read by this command, which would write over it",
        ),
        (
            "few",
            ["--control", "hot.jsonl", "--evidence", "./hot.jsonl"],
            "hot.jsonl is read by this command",
        ),
        (
            "few",
            ["--evidence", "target/config.json"],
            "target/config.json is in the folder of the model /",
        ),
        (
            "few",
            ["--draft", "draft", "--evidence", "draft/x"],
            "draft/x is in the folder of the model draft",
        ),
        (
            "few",
            ["--evidence", ""],
            "the file to write is '.', a folder; allowed: the name of a file",
        ),
        ("few", ["--target", "./nowhere"], "model folder ./nowhere does not exist"),
    ],
)
def test_what_is_wrong_is_one_line(desk, capsys, monkeypatch, name, options, expected):
    monkeypatch.chdir(desk)
    code, printed = run(desk, capsys, name, *options)
    assert (
        code == 1
        and printed.out == ""
        and printed.err.startswith("error: ")
        and expected in printed.err
    )
    assert printed.err.count("\n") == 1


def test_a_path_is_no_pair_even_if_there_is_one_of_that_name():
    """Defect: ./smollm2, a user's folder, was judged by the packaged weights."""
    assert inputs.is_pair("smollm2") and not inputs.is_pair("./smollm2")
