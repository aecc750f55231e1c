"""docs/own-code.md: its examples run one after another, as they stand, on two small models."""

import re
from pathlib import Path

import torch

from tests.toys import save_tiny_pair

PAGE = (Path(__file__).parents[3] / "docs" / "own-code.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    save_tiny_pair(tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict = {}
    results = []
    for block in BLOCKS:
        exec(compile(block, "docs/own-code.md", "exec"), names)
        results.append(names.get("written"))
    assert len(BLOCKS) == 7
    _, first, streamed, _, searched, *_ = results
    assert first.text == names["tokenizer"].decode(first.tokens) and 1 <= len(first.tokens) <= 40
    assert names["tokenizer"].decode(streamed.tokens) in capsys.readouterr().out
    assert len(searched.num_emitted) <= len(searched.tokens) <= sum(searched.num_emitted)
    assert names["ids"].shape[1] <= names["inputs"].input_ids.shape[1] + 40
    assert names["out"].num_emitted and names["out"].sequences.shape[0] == 1
