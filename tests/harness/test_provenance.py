"""Where a result comes from."""

import json
import subprocess

import pytest
import torch
from huggingface_hub import constants
from toy_layouts import cached, write_eagle, write_layout
from toy_runs import run_here, toy_overrides
from toys import save_prompts

from experiments import provenance
from experiments.grid import cells_of


def test_only_changes_to_what_measures_count_as_changed(tmp_path, monkeypatch):
    names = ["resispec/law.py", "conf/run.yaml", "docs/page.md", "results/table.md", "experiments/run.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for arguments in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "all"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "experiments" / "provenance.py"))
    found = {}
    for name in names:
        (tmp_path / name).write_text("two\n")
        found[name] = provenance.provenance(torch.device("cpu"))["git_is_dirty"]
        (tmp_path / name).write_text("one\n")
    assert found == {name: not name.startswith(("docs", "results")) for name in names}


@pytest.mark.parametrize("overrides", ["pair=llama2_7b__jf68m", "pair=llama2_7b_chat__eagle decoder=eagle"])
def test_the_commits_of_both_models_are_recorded(tmp_path, monkeypatch, overrides):
    """Of a cell that is measured: those of the hub's cache, which are the pinned ones where some are."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    save_prompts(tmp_path, 1)
    toy = [word for word in toy_overrides(tmp_path, tmp_path / "results") if not word.startswith("pair")]
    [cell] = cells_of([*toy, *overrides.split(), "tree=chain", "prompt_template=null", "num_prompts=1"])
    pair, expected = cell.config["pair"], {}
    for role, newest in (("target", "d" * 40), ("draft", "e" * 40)):
        name, expected[role] = pair[role], pair[f"{role}_revision"] or newest
        is_eagle = role == "draft" and "EAGLE" in name
        write = write_eagle if is_eagle else lambda to, of=name: write_layout(of, to)
        cached(tmp_path, name, expected[role], write)
    run_here(cell)
    assert json.loads((cell.folder / "provenance.json").read_text())["model_commits"] == expected
