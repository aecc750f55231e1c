"""Named shapes, the embedded pair in them, and the command that writes an inflated pair."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from toy_inflated import TOY, large_of, pairs, tokens
from toys import save_tiny_pair

from experiments.cli import run_single
from experiments.inflate import run_inflating
from resispec import embedded
from resispec.embedded.pairs import inflated_fingerprint
from resispec.embedded.recipe import DRAFTS, TARGETS, TEXT_RECIPE
from resispec.embedded.shapes import PAIR_SHAPES, find_shape
from resispec.errors import InvalidInput
from resispec.models import build_llama, load_pair
from resispec.models.inflate import distance


def test_named_shapes_have_the_sizes_of_their_names_and_hold_the_embedded_pairs():
    found = {}
    for name, shape in PAIR_SHAPES.items():
        for role, one in asdict(shape).items():
            with torch.device("meta"):
                module = build_llama(**one)
            found[name, role] = sum(parameter.numel() for parameter in module.parameters())
    assert found == {
        ("llama2_7b__jf68m", "target"): 6_738_415_616,
        ("llama2_7b__jf68m", "draft"): 68_030_208,
        ("cpu_74m__6m", "target"): pytest.approx(74e6, rel=0.01),
        ("cpu_74m__6m", "draft"): pytest.approx(6.4e6, rel=0.01),
    }
    shape = PAIR_SHAPES["cpu_74m__6m"]
    for sizes, large in ((TARGETS["2m"].sizes, shape.target), (DRAFTS["80k"], shape.draft)):
        small = build_llama(vocab_size=TEXT_RECIPE.vocab_size, **asdict(sizes)).eval()
        assert distance(small, large_of(small, large), tokens(20)) < 1e-5
    with pytest.raises(InvalidInput, match=r"^unknown shape '7b'; allowed: llama2_7b__jf68m, cpu_74m__6m$"):
        find_shape("7b")


@pytest.fixture
def toy_shape(monkeypatch):
    monkeypatch.setitem(PAIR_SHAPES, "toy", TOY)


@pytest.mark.usefixtures("toy_shape")
def test_an_embedded_pair_is_inflated_in_memory(monkeypatch):
    small, large = pairs()
    asked = []
    monkeypatch.setattr("resispec.embedded.pairs.load_pair", lambda *names: asked.append(names) or small)
    expected = inflated_fingerprint("toy", "800k", "80k")
    found = embedded.load_inflated_pair("toy", "800k", "80k", "cpu", "bfloat16", expected)
    assert asked == [("800k", "80k")] and found.tokenizer is small.tokenizer
    for one, other in ((found.target, large.target), (found.draft, large.draft)):
        assert one.module.dtype == torch.bfloat16 and one.vocab_size == 200 and one.context == 256
        assert torch.equal(one.module.lm_head.weight, other.module.to(torch.bfloat16).lm_head.weight)
    with pytest.raises(InvalidInput, match="were asked for; this installation makes"):
        embedded.load_inflated_pair("toy", "2m", "80k", fingerprint=expected)
    named = {inflated_fingerprint(*one) for one in
             (("toy", "2m", "80k"), ("toy", "2m", "180k"), ("cpu_74m__6m", "2m", "80k"))}  # fmt: skip
    assert len(named | {expected}) == 4


def inflate_command(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["inflate", *arguments])
    return run_single(run_inflating, "inflate", {})


@pytest.mark.usefixtures("toy_shape")
def test_the_command_writes_folders_that_load_as_a_pair(tmp_path, monkeypatch, capsys):
    save_tiny_pair(tmp_path)
    own = [f"pair.{role}={tmp_path / role}" for role in ("target", "draft")]
    output = tmp_path / "new" / "inflated"
    arguments = ["pair=llama2_7b__jf68m", *own, "shape=toy", f"output={output}"]
    assert inflate_command(monkeypatch, *arguments) == 0
    written = capsys.readouterr().out
    assert written.startswith(f"written: {output}, inflated: target of ") and written.count("\n") == 1
    small, large = (load_pair(str(folder / "target"), str(folder / "draft")) for folder in (tmp_path, output))
    for one, other in ((small.target, large.target), (small.draft, large.draft)):
        assert distance(one.module, other.module, tokens()) < 1e-5
        assert other.vocab_size == 200
    assert large.tokenizer.encode("abc gh") == small.tokenizer.encode("abc gh")
    assert json.loads((output / "target" / "config.json").read_text())["inflated"]["hidden_size"] == 32
    card = (output / "draft" / "README.md").read_text()
    assert "# An inflated draft" in card and "within a total variation of" in card
    assert sorted(path.name for path in output.parent.iterdir()) == ["inflated"]  # and nothing half-written
    assert inflate_command(monkeypatch, *arguments) == 1
    assert capsys.readouterr().err == f"error: output is '{output}', which exists; allowed: a new folder\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["output=x"], "error: shape must be given, like shape=SHAPE\n"),
        (["shape=cpu_74m__6m"], "error: output must be given, like output=OUTPUT\n"),
        (["shape=7b", "output=x"], "error: unknown shape '7b'; allowed: llama2_7b__jf68m, cpu_74m__6m\n"),
        (["shape=cpu_74m__6m", "output=x", "dtype=int8"], "error: dtype is 'int8'; allowed: "),
    ],
)
def test_what_the_command_lacks_is_one_line(arguments, message, monkeypatch, capsys, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert inflate_command(monkeypatch, *arguments) == 1
    found = capsys.readouterr().err
    assert found.startswith(message) and found.count("\n") == 1
