"""`make verify`: what runs left behind is as it was written, or is named with what to do."""

import errno
import json
import os
import re
import shutil

import pytest

from experiments import states, status, verify
from experiments.configurations import ONE_TOKEN, Chosen
from experiments.grid import sweep_of
from experiments.store import plans_of, write_plans
from experiments.verify import committed, main
from resispec.files import read_json, write_json
from resispec.kept import Kept
from resispec.trees import complete, grow_map
from tests.toy_cells import save_methods
from tests.toy_cells import write_plan as save_plan


class Model(Kept):
    """A recipe that trains nothing."""

    def key(self):
        return "b" * 16

    def make(self, folder):
        (folder / "weights").write_text("whole")
        return {}


@pytest.fixture
def results(toy, tmp_path, monkeypatch):
    """A results folder and a cache of models with all that has a checksum, as runs write it."""
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path / "cache"))
    Model().folder()
    ours = tmp_path / "ours" / "target"
    shutil.copytree(next(one for one in committed() if one.name == "draft_2m_80k"), ours)
    monkeypatch.setattr(verify, "committed", lambda: [ours])
    results = tmp_path / "results"
    save_plan(results, "table1", save_methods(results)[1:])
    save_plan(results, "table2", [])
    sweep = sweep_of(toy)
    write_plans(sweep, [])
    [path] = plans_of(sweep)
    path.rename(results / "embedded" / "plans" / "sweep.json")
    for folder in ("embedded", "published/embedded"):
        grow_map.save(complete(2, 3), results / folder / "growmap" / "map.json", {"pair": "toy"})
    Chosen(ONE_TOKEN, {}).save(results / "embedded" / "growmap" / "fastest.json", {"expected": []})
    by_hand = {"format": grow_map.FORMAT, "num_nodes": 2, "child_counts": [[1]]}  # has no checksum
    write_json(results / "embedded" / "growmap" / "by_hand.json", by_hand)
    return results


COUNTS = "3 cells, 3 plans, 3 trees, 0 published archives, 1 published trees, 2 models"


def test_all_is_as_it_was_written(results, capsys):
    path = results / "embedded" / "growmap" / "map.json"
    path.write_text(json.dumps(dict(reversed(read_json(path).items()))))  # the layout is no content
    assert main(["--results", str(results)]) == 0
    assert capsys.readouterr().out == f"{COUNTS}: all are as they were written\n"


def edited(**changed):
    """An edit of a JSON file by hand, which leaves its checksum as it is."""
    return lambda path: write_json(path, read_json(path) | changed)


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


CELL = "raw/embedded/embedded-embedded_code-1.0"
AGAIN = "`python -m experiments.run experiment=table1 profile=embedded` measures it anew"
OTHER = "is not what was written: its sha256 is that of other content; .*; "
DAMAGES = {
    f"{CELL}-specinfer-d5b3-standard/rows.jsonl": (
        replace_by_folder,
        f"rows.jsonl cannot be read .*; {AGAIN}",
    ),
    f"{CELL}-specinfer-d5b3-resispec/status.json": (
        lambda path: write_json(path, {"state": "done", "files": {"rows.jsonl": "0"}}),
        f"its list of files lacks cell.json, provenance.json; {AGAIN}",
    ),
    f"{CELL}-autoregressive/rows.jsonl": (
        lambda path: path.write_text("{}\n"),
        "rows.jsonl is not what was written; the command that asked for it measures it anew",
    ),
    "embedded/plans/sweep.json": (
        edited(part="a"),
        f"{OTHER}running its sweep again writes it anew",
    ),
    "embedded/plans/table2.json": (
        edited(cells=[{"cell_id": None, "labels": {}}]),
        "is no plan .ValueError: cell_id is None; .*; running its sweep again writes it anew",
    ),
    "embedded/growmap/map.json": (
        edited(child_counts=[[2]], num_nodes=3),
        f"{OTHER}.* searched for again",
    ),
    "embedded/growmap/fastest.json": (edited(best={"iid": []}), f"{OTHER}.* searched for again"),
    "embedded/growmap/by_hand.json": (edited(format="?"), "'format' is .*; .* searched for again"),
    "published/embedded/growmap/map.json": (edited(about={}), f"{OTHER}git has it"),
    "../cache/bbbbbbbbbbbbbbbb/manifest.json": (
        edited(size=1),
        f"{OTHER}delete that folder and run again",
    ),
}


def test_damage_is_a_line_with_what_to_do(results, monkeypatch, capsys):
    """Of the plans, which say what to do about cells, each is read once."""
    read, reader = [], states.read_plan
    monkeypatch.setattr(states, "read_plan", lambda *plan: read.append(plan[0]) or reader(*plan))
    for name, (damage, _) in DAMAGES.items():
        damage(results / name)
    assert main(["--results", str(results)]) == 1
    out, err = capsys.readouterr()
    assert err == f"error: {len(DAMAGES)} damaged, of {COUNTS}\n"
    lines = out.splitlines()
    for name, (_, expected) in DAMAGES.items():
        folder, _, file = name.removeprefix("../").rpartition("/")
        named = f"{folder}/{file}|{folder}[:,]"  # of cells and models the folder
        assert [line for line in lines if re.search(f"({named}).*{expected}$", line)], (name, out)
    assert len(lines) == len(DAMAGES)
    assert sorted(read) == ["sweep", "table1", "table2"]


def test_models_that_come_with_us_are_checked_too(results, tmp_path, capsys):
    """Defect: an edited one was as it was written, and cells of it stayed done."""
    [weights] = (tmp_path / "ours" / "target").glob("*.safetensors")
    weights.write_bytes(b"another")
    assert main(["--results", str(results)]) == 1
    out = capsys.readouterr().out
    assert "a part of the repository, is damaged" in out and "restore it by git" in out


def test_no_folder_is_no_good_news(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(verify, "committed", list)
    assert main(["--results", str(tmp_path / "resluts")]) == 1
    assert "resluts is no folder" in capsys.readouterr().err
    (tmp_path / "empty" / "raw").mkdir(parents=True)
    assert main(["--results", str(tmp_path / "empty")]) == 1
    assert "nothing was read: " in capsys.readouterr().err


def test_folders_without_permission_are_named(results, monkeypatch, capsys):
    refused = {str(results / "raw"): "Permission denied"}
    scandir = os.scandir

    def of_a_user(folder):
        if str(folder) in refused:
            raise PermissionError(errno.EACCES, refused[str(folder)], str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", of_a_user)
    assert main(["--results", str(results)]) == 1
    assert f"{results}/raw cannot be read (Permission denied)" in capsys.readouterr().out
    refused[str(results)] = "Permission denied"
    for command in (main, status.main):
        assert command(["--results", str(results)]) == 1
        assert (
            f"{results} cannot be read (Permission denied), so nothing was"
            in capsys.readouterr().err
        )


def test_a_fifo_is_named_and_never_opened(results, capsys):
    """In the place of any file, and of a cell."""
    names = [
        *DAMAGES,
        "raw/embedded/pipe",
        f"{CELL}-autoregressive/other",
        "embedded/growmap/map.pt",
    ]
    for name in names:
        (results / name).unlink(missing_ok=True)
        os.mkfifo(results / name)
    assert main(["--results", str(results)]) == 1
    out = capsys.readouterr().out
    for name in names:
        path = results / name
        found = [
            line
            for line in out.splitlines()
            if f"{path.resolve()} " in line or f"{path.parent}: " in line
        ]
        assert len(found) == 1, (name, out)
    assert status.main(["--results", str(results)]) == 0
    assert "FIFO" in capsys.readouterr().out
