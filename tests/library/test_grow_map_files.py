"""Grow maps: a written map is read; one that holds no topology is refused with its place."""

import json

import pytest
import torch

from resispec.errors import InvalidInput
from resispec.trees import chain, complete, from_child_counts, root_only
from resispec.trees.grow_map import about, load, save
from tests.toys import MakesFolder

DRAWN = from_child_counts([[3], [1, 0, 2]])
SUCCESSORS = [[1, 2, 3], [4], [], [5, 6], [], [], []]
OURS = {"format": "resispec grow map 1", "num_nodes": 7, "child_counts": [[3], [1, 0, 2]]}


def sequoias(successors=SUCCESSORS):
    """A map of a root with three children: the first has one, the second none, the third two."""
    return {"size": 7, "Successors": successors, "depth": torch.tensor([0, 1, 1, 1, 2, 2, 2])}


def test_a_written_map_is_read_and_says_where_it_comes_from(tmp_path):
    for shape in (complete(4, 3), chain(15), root_only(), DRAWN):
        path = tmp_path / "made" / "map.json"
        save(shape, path, about={"pair": "embedded", "expected_tokens": 2.5})
        assert load(str(path), num_nodes=shape.num_nodes) == shape
        assert [other.name for other in path.parent.iterdir()] == ["map.json"]
    assert path.read_text() == (
        '{\n  "format": "resispec grow map 1",\n  "num_nodes": 7,\n'
        '  "child_counts": [[3], [1, 0, 2]],\n'
        '  "about": {"pair": "embedded", "expected_tokens": 2.5},\n'
        '  "sha256": "26db221cc8102fae11effc25b7e9d69f0a23b96500a96b6f029fb6ded05f40b6"\n}\n'
    )
    assert about(path) == {"pair": "embedded", "expected_tokens": 2.5}
    save(DRAWN, tmp_path / "silent.json")
    assert [about(tmp_path / name) for name in ("silent.json", "map.pt", "none.json")] == [
        {},
        {},
        {},
    ]
    path.write_text(json.dumps(OURS | {"child_counts": [[3], [1, 0, 2], [0, 0, 0]]}))
    assert load(path) == DRAWN  # the last level may be written out


def test_a_map_that_was_edited_is_refused_until_it_is_said_to_be_by_hand(tmp_path):
    path = tmp_path / "map.json"
    save(DRAWN, path, about={"pair": "embedded"})
    content = json.loads(path.read_text()) | {"about": {"pair": "another"}}
    path.write_text(json.dumps(content))
    for read in (load, about):
        with pytest.raises(
            InvalidInput, match=f"^{path} is not what was written: .*take the sha256 out"
        ):
            read(path)
    del content["sha256"]
    path.write_text(json.dumps(content))
    assert load(path) == DRAWN and about(path) == {"pair": "another"}


def test_a_map_of_sequoias_is_read_and_none_is_written(tmp_path):
    torch.save(sequoias(), tmp_path / "map.pt")
    assert load(tmp_path / "map.pt") == DRAWN
    with pytest.raises(InvalidInput, match=r"new.pt: '.pt' is not written; allowed: .json"):
        save(DRAWN, tmp_path / "new.pt")


@pytest.mark.parametrize(
    "content",
    [
        sequoias([[1, 2, 3], [5], [], [4, 6], [], [], []]),  # not breadth first
        sequoias([[1, 2, 3], [4], [], [5, 6]]),  # nodes are missing
        sequoias([[], [1], [2]]),  # a child before its parent
        {"size": 7},
        torch.zeros(3),
    ],
)
def test_sequoias_map_without_a_topology_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "bad.pt")
    with pytest.raises(InvalidInput, match="^grow map .*bad.pt: ('Successors'|nodes are numbered)"):
        load(tmp_path / "bad.pt")


def test_a_damaged_pickle_is_refused_and_code_in_it_is_not_run(tmp_path):
    torch.save(sequoias() | {"depth": MakesFolder(tmp_path / "trap")}, tmp_path / "trap.pt")
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "trap.pt").read_bytes()[:-200])
    for name in ("trap.pt", "empty.pt", "cut.pt"):
        with pytest.raises(
            InvalidInput, match=f"{name}: cannot be read as plain values and ten.*$"
        ):
            load(tmp_path / name)
    assert not (tmp_path / "trap").exists()
    torch.load(tmp_path / "trap.pt", weights_only=False)
    assert (tmp_path / "trap").exists(), "the trap was no trap"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (OURS | {"format": "map 2"}, "'format' is 'map 2'; allowed: 'resispec grow map 1'"),
        (OURS | {"num_nodes": 6}, "'num_nodes' is 6; 'child_counts' gives 7"),
        (
            OURS | {"child_counts": [[3], [-1, 2, 2]]},
            "child counts are .*; allowed: a list of whole numbers",
        ),
        (OURS | {"child_counts": [[2], [1, 0, 3]]}, "3 child counts for a level of 2 nodes"),
        (OURS | {"child_counts": [[10**12]]}, "a tree of these child counts has too many nodes"),
        ({"format": OURS["format"]}, "child counts are 'missing'"),
        ([1], "holds a list; expected a JSON object"),
        (b"{", "cannot be read as JSON"),
    ],
)
def test_a_fault_in_our_format_is_named(tmp_path, content, message):
    path = tmp_path / "bad.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(InvalidInput, match=f"bad.json:? {message}"):
        load(path)


def test_another_file_or_number_of_nodes_is_refused(tmp_path):
    save(DRAWN, tmp_path / "map.json")
    with pytest.raises(
        InvalidInput, match="map.json: 7 nodes, the root counted; allowed here: num_nodes 64"
    ):
        load(tmp_path / "map.json", num_nodes=64)
    for name, message in (
        ("none.pt", "there is no such file"),
        ("map.npz", "unknown kind of file '.npz'"),
    ):
        with pytest.raises(InvalidInput, match=f"{name}: {message}"):
            load(tmp_path / name)
