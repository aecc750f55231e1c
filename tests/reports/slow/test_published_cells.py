"""Committed cells give the committed numbers when drawn again, or else one of both is old."""

import re
import shutil

import pytest

from analysis import gallery, publish, published, table

ARCHIVES = sorted(published.FOLDER.glob(f"*/{published.CELLS}/*{published.SUFFIX}"))
NAMES = [f"{path.parents[1].name}-{path.name.partition('.')[0]}" for path in ARCHIVES]
GALLERIES = sorted(published.FOLDER.glob("*/gallery.csv"))
COMMITTED = ("csv", "md")


@pytest.mark.parametrize("archive", ARCHIVES, ids=NAMES)
def test_published_tables_are_those_of_the_published_cells(archive, tmp_path):
    """The CSV files and the pages, byte for byte."""
    drawn = set()
    profile, name = archive.parents[1], archive.name.removesuffix(published.SUFFIX)
    made = publish.drawn(archive)
    for one in made.tables:
        suffixes = [suffix for suffix in made.suffixes if suffix in COMMITTED]
        for path in table.write(one, tmp_path, suffixes):
            if path.suffix == ".json":  # what is published has none
                continue
            assert path.read_bytes() == (profile / path.name).read_bytes(), path.name
            drawn.add(path.name)
    own = [file for suffix in COMMITTED for file in profile.glob(f"{name}*.{suffix}")]
    assert {file.name for file in own} <= drawn


@pytest.mark.parametrize("archive", ARCHIVES, ids=NAMES)
def test_published_archives_name_no_folder_of_a_machine(archive):
    """Defect: 3,736 absolute paths were in them."""
    for file in published.unpacked(archive).rglob("*.json"):
        assert not re.search(r"(?<![\w.~])/(tmp|home|root|work|Users|mnt)/", file.read_text()), (
            file.name
        )


@pytest.mark.parametrize("path", GALLERIES, ids=[path.parent.name for path in GALLERIES])
def test_the_published_gallery_is_drawn_from_its_numbers(path, tmp_path):
    profile = path.parent.name
    (tmp_path / profile).mkdir()
    shutil.copy(path, tmp_path / profile)
    assert gallery.main(["--results", str(tmp_path), "--pair", profile]) == 0
    for name in ("gallery.csv", "gallery.md"):
        assert (tmp_path / profile / name).read_bytes() == path.with_name(name).read_bytes()
