"""Where a result comes from."""

import subprocess

import torch

from experiments import provenance


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
