"""Committed cells give the committed numbers: what is published is drawn again, or one of both is old."""

import pytest

from analysis import artefact, published, table
from analysis.load import read_plan
from analysis.page.sections import maker

ARCHIVES = sorted(published.FOLDER.glob(f"*/{published.CELLS}"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=[path.parent.name for path in ARCHIVES])
def test_published_numbers_are_those_of_the_published_cells(archive, tmp_path):
    """The CSV files, byte for byte; pages also name what changed since."""
    for folder in sorted(published.unpacked(archive).iterdir()):
        plan = read_plan(folder.name, archive.parent.name, folder)
        for one in artefact.complete(maker(folder.name), plan).tables:
            [path] = table.write(one, tmp_path, ("csv",))
            assert path.read_bytes() == (archive.parent / path.name).read_bytes(), path.name
