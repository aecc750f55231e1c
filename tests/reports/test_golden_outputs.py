"""The files of every artefact from toy cells, byte for byte as tests/golden/outputs has them.

Where an output changes on purpose, `UPDATE_GOLDEN=1 pytest tests/reports/test_golden_outputs.py`
writes the files anew; the change is then read in the diff.
"""

import os
import shutil
from pathlib import Path

import pytest

from analysis import cells, load, published
from tests import toy_artefacts
from tests.toy_cells import write_artefact

FIGURES = ("frontier", "field", "length", "lossy", "speed", "overview", "agreement")
"""Artefacts that have one, beside those that are figures of the paper."""
GOLDEN = Path(__file__).parents[1] / "golden" / "outputs"


def outputs(folder):
    """The tables' files of a profile's folder, by their paths."""
    files = [path for path in folder.rglob("*") if path.suffix in (".csv", ".md", ".tex")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(files)}


def compare(found, stem):
    """Compare files with the golden ones, which are all below the folder `stem`."""
    folder = GOLDEN / stem
    if os.environ.get("UPDATE_GOLDEN"):
        shutil.rmtree(folder, ignore_errors=True)
        for name, content in found.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    golden = outputs(folder)
    assert list(found) == list(golden)
    for name in golden:
        assert found[name].decode().splitlines() == golden[name].decode().splitlines(), name
        assert found[name] == golden[name], name


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A results folder; the repository decides neither what is published nor which sweeps exist."""
    for name in toy_artefacts.ARTEFACTS:
        (tmp_path / "experiment").mkdir(exist_ok=True)
        (tmp_path / "experiment" / f"{name}.yaml").touch()
    (tmp_path / "published" / "embedded").mkdir(parents=True)
    for name in ("table1", "table5"):
        path = GOLDEN / name / f"{name}.csv"
        if path.is_file():
            text = path.read_text().replace("no bias seen", "biased", 6).replace(",2.0", ",9.0")
            (tmp_path / "published" / "embedded" / f"{name}.csv").write_text(text)
    monkeypatch.setattr(published, "FOLDER", tmp_path / "published")
    monkeypatch.setattr(load, "EXPERIMENTS", tmp_path / "experiment")
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    return Path("results")


@pytest.mark.parametrize("name", list(toy_artefacts.ARTEFACTS))
def test_files_are_byte_for_byte_the_golden_ones(name, results, monkeypatch, capsys):
    toy_artefacts.ARTEFACTS[name](results)

    drawn: list[str] = []
    monkeypatch.setattr(
        "analysis.figures.save_figure", lambda _, stem, _formats: drawn.append(stem.name) or []
    )
    assert write_artefact(name, "--results", str(results)) == 0
    if name == "table1":
        assert write_artefact(name, "--results", str(results), "--plan", "chain") == 0
    printed = capsys.readouterr().out
    assert printed.startswith((results / "embedded" / f"{name}.md").read_text())
    assert drawn == ([name] if name.startswith("figure") or name in FIGURES else [])
    compare(outputs(results / "embedded"), name)


def test_the_tidy_file_of_all_cells_is_the_golden_one(results):
    for name in ("table1", "table5", "levels"):
        toy_artefacts.ARTEFACTS[name](results)
    assert cells.main(["--results", str(results)]) == 0
    compare(outputs(results / "embedded"), "cells")
