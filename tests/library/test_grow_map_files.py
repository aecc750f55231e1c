"""Grow maps: what is written is read; a map that contradicts itself is refused with the key and the place."""

import json
import os

import pytest
import torch

from resispec.errors import InvalidInput
from resispec.trees import chain, complete, from_child_counts, parallel_chains, root_only
from resispec.trees.grow_map import about, load, save

# Levels of 1, 13, 18, 17, 9, 6 nodes, of which later siblings never have more children: the widths of a
# published map.
IRREGULAR = from_child_counts(
    [
        [13],
        [8, 3, 2, 1, 1, 1, 1, 1],
        [5, 3, 2, 1, 1, 1, 0, 0, 2, 1, 0, 1],
        [3, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1],
        [3, 1, 0, 1, 1],
    ]
)
SHAPES = {
    "complete": complete(4, 3),
    "chain": chain(15),
    "chains": parallel_chains(4, 4),
    "irregular": IRREGULAR,
    "demo": chain(3),
    "root": root_only(),
    "star": complete(2, 7),
}


def drawn():
    """Sequoia's format by hand, of this tree.

       0
    1  2  3
    4    5 6
    """
    return {
        "size": 7,
        "roots": [[0], [1, 2, 3], [4, 5, 6]],
        "branches": [[3], [1, 0, 2], [0, 0, 0]],
        "Successors": [[1, 2, 3], [4], [], [5, 6], [], [], []],
        "mask": torch.tensor(
            [
                [1, 0, 0, 0, 0, 0, 0],
                [1, 1, 0, 0, 0, 0, 0],
                [1, 0, 1, 0, 0, 0, 0],
                [1, 0, 0, 1, 0, 0, 0],
                [1, 1, 0, 0, 1, 0, 0],
                [1, 0, 0, 1, 0, 1, 0],
                [1, 0, 0, 1, 0, 0, 1],
            ]
        ),
        "depth": torch.tensor([0, 1, 1, 1, 2, 2, 2]),
    }


DRAWN = from_child_counts([[3], [1, 0, 2]])


def test_the_irregular_map_has_the_published_widths():
    assert [len(level) for level in IRREGULAR.levels] == [1, 13, 18, 17, 9, 6]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("suffix", [".pt", ".json"])
def test_what_is_written_is_read(tmp_path, name, suffix):
    save(SHAPES[name], tmp_path / f"map{suffix}")
    assert load(tmp_path / f"map{suffix}") == SHAPES[name]
    assert load(str(tmp_path / f"map{suffix}"), num_nodes=SHAPES[name].num_nodes) == SHAPES[name]
    assert [path.name for path in tmp_path.iterdir()] == [f"map{suffix}"]


@pytest.mark.parametrize("name", SHAPES)
def test_a_map_survives_our_format(tmp_path, name):
    first, middle, last = tmp_path / "first.pt", tmp_path / "middle.json", tmp_path / "last.pt"
    save(SHAPES[name], first)
    save(load(first), middle)
    save(load(middle), last)
    before, after = (torch.load(path, weights_only=True) for path in (first, last))
    assert list(before) == list(after)
    for key, value in before.items():
        assert torch.equal(value, after[key]) if isinstance(value, torch.Tensor) else value == after[key]


def test_a_map_by_hand_is_read_and_written(tmp_path):
    torch.save(drawn(), tmp_path / "map.pt")
    assert load(tmp_path / "map.pt") == DRAWN
    save(DRAWN, tmp_path / "ours.pt")
    written = torch.load(tmp_path / "ours.pt", weights_only=True)
    assert set(written) == set(drawn())
    for key, value in drawn().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(written[key], value) and written[key].dtype == torch.int64
        else:
            assert written[key] == value and type(written[key]) is type(value)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_other_whole_numbers_are_read_too(tmp_path, dtype):
    content = drawn()
    content["mask"] = content["mask"].to(dtype)
    content["depth"] = content["depth"].to(torch.int16)
    torch.save(content, tmp_path / "map.pt")
    assert load(tmp_path / "map.pt") == DRAWN


def test_our_format_is_one_key_a_line(tmp_path):
    save(DRAWN, tmp_path / "made" / "map.json", about={"pair": "embedded", "expected_tokens": 2.5})
    assert (tmp_path / "made" / "map.json").read_text() == (
        '{\n  "format": "resispec grow map 1",\n  "num_nodes": 7,\n  "child_counts": [[3], [1, 0, 2]],\n'
        '  "about": {"pair": "embedded", "expected_tokens": 2.5}\n}\n'
    )
    assert load(tmp_path / "made" / "map.json") == DRAWN


def with_entry(tensor, place, value):
    changed = tensor.clone()
    changed[place] = value
    return changed


HAND = drawn()
FAULTS = [
    ("size", 8, "'size' is 8; 'Successors' gives 7"),
    ("size", "7", "'size' is '7'; allowed: an int"),
    ("size", True, "'size' is True; allowed: an int"),
    ("roots", [[0], [1, 2], [3, 4, 5, 6]], r"'roots' at level 1 is \[1, 2\]; 'Successors' gives \[1, 2, 3\]"),
    ("roots", [[0], [1, 3, 2], [4, 5, 6]], "'roots' at level 1 at entry 1 is 3; 'Successors' gives 2"),
    ("roots", [[0], [1, 2, 3]], r"'roots' is \[\[0\], \[1, 2, 3\]\]; 'Successors' gives \[\[0\], "),
    ("roots", [0, 1, 2], r"'roots' is \[0, 1, 2\]; allowed: a list of lists of int"),
    ("branches", [[3], [1, 1, 1], [0, 0, 0]], "'branches' at level 1 at entry 1 is 1; 'Successors' gives 0"),
    ("branches", [[3], [1, 0, 2]], r"'branches' is \[\[3\], \[1, 0, 2\]\]; 'Successors' gives"),
    ("branches", [[3], [1, 0, 2.0], [0, 0, 0]], "'branches' is .*; allowed: a list of lists of int"),
    ("branches", [[3], [True, 0, 2], [0, 0, 0]], "'branches' is .*; allowed: a list of lists of int"),
    (
        "Successors",
        [[1, 2, 3], [5], [], [4, 6], [], [], []],
        r"'Successors' at node 1 is \[5\]; allowed: .* here \[4\]",
    ),
    ("Successors", [[1, 3, 2], [4], [], [5, 6], [], [], []], "'Successors' at node 0 is"),
    ("Successors", [[1, 2, 3], [4], [], [5, 6]], "'Successors' names 7 nodes, the root counted, and lists 4"),
    ("Successors", [], "'Successors' names 1 nodes, the root counted, and lists 0"),
    ("Successors", [[], [1], [2]], r"'Successors' at node 1 is \[1\]"),
    (
        "Successors",
        [[1, 2, 3], [4], [5], [6], [], [], []],
        "'branches' at level 1 at entry 1 is 0; 'Successors' gives 1",
    ),
    ("Successors", {0: [1]}, "'Successors' is {0: .*; allowed: a list of lists of int"),
    ("mask", with_entry(HAND["mask"], (4, 2), 1), "'mask' at node 4 at entry 2 is 1; 'Successors' gives 0"),
    ("mask", with_entry(HAND["mask"], (6, 3), 0), "'mask' at node 6 at entry 3 is 0; 'Successors' gives 1"),
    ("mask", HAND["mask"][:6], r"'mask' is \[\["),
    (
        "mask",
        HAND["mask"].float(),
        "'mask' is a tensor of torch.float32; allowed: a dense tensor of integers or booleans",
    ),
    ("mask", HAND["mask"].to_sparse(), "'mask' is a tensor of torch.int64; allowed: a dense tensor"),
    ("mask", HAND["mask"].to("meta"), "'mask' is a tensor of torch.int64; allowed: a dense tensor"),
    ("mask", HAND["mask"].tolist(), r"'mask' is \[\[.*allowed: a dense tensor"),
    ("depth", with_entry(HAND["depth"], 5, 1), "'depth' at node 5 is 1; 'Successors' gives 2"),
    ("depth", HAND["depth"][:, None], r"'depth' at node 0 is \[0\]; 'Successors' gives 0"),
    ("depth", HAND["depth"].double(), "'depth' is a tensor of torch.float64; allowed"),
]


@pytest.mark.parametrize(("key", "value", "message"), FAULTS)
def test_a_fault_in_any_key_is_named(tmp_path, key, value, message):
    torch.save(drawn() | {key: value}, tmp_path / "bad.pt")
    with pytest.raises(InvalidInput, match=f"grow map .*bad.pt: {message}") as error:
        load(tmp_path / "bad.pt")
    assert "\n" not in str(error.value)


def test_keys_are_exactly_six(tmp_path):
    content = drawn() | {"widths": [1]}
    del content["mask"]
    torch.save(content, tmp_path / "bad.pt")
    with pytest.raises(
        InvalidInput, match=r"missing keys \['mask'\], unexpected keys \['widths'\]; allowed: Successors, "
    ):
        load(tmp_path / "bad.pt")
    torch.save(torch.zeros(3), tmp_path / "bad.pt")
    with pytest.raises(
        InvalidInput, match="bad.pt: holds a Tensor; allowed: a mapping with keys Successors, branches"
    ):
        load(tmp_path / "bad.pt")


class MakesFolder:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_code_in_a_pickle_is_not_run(tmp_path):
    torch.save(drawn() | {"depth": MakesFolder(tmp_path / "trap")}, tmp_path / "bad.pt")
    with pytest.raises(
        InvalidInput, match="bad.pt: cannot be read as plain values and tensors .*; nothing else is loaded"
    ) as error:
        load(tmp_path / "bad.pt")
    assert "\n" not in str(error.value) and not (tmp_path / "trap").exists()
    torch.load(tmp_path / "bad.pt", weights_only=False)
    assert (tmp_path / "trap").exists(), "the trap was no trap"


@pytest.mark.parametrize("content", [b"", b"no pickle", b"PK\x03\x04", "cut"])
def test_a_damaged_map_is_refused(tmp_path, content):
    if content == "cut":
        torch.save(drawn(), tmp_path / "whole.pt")
        content = (tmp_path / "whole.pt").read_bytes()[:-200]
    (tmp_path / "bad.pt").write_bytes(content)
    with pytest.raises(InvalidInput, match="bad.pt: cannot be read as plain values and tensors"):
        load(tmp_path / "bad.pt")


def test_missing_files_and_unknown_kinds_are_refused(tmp_path):
    for name in ("none.pt", "none.json"):
        with pytest.raises(InvalidInput, match=f"{name}: there is no such file"):
            load(tmp_path / name)
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(InvalidInput, match="folder.pt: there is no such file"):
        load(tmp_path / "folder.pt")
    for use in (load, lambda path: save(DRAWN, path)):
        with pytest.raises(InvalidInput, match="map.npz: unknown kind of file '.npz'; allowed: .pt, .json"):
            use(tmp_path / "map.npz")


@pytest.mark.parametrize("suffix", [".pt", ".json"])
def test_another_number_of_nodes_is_refused(tmp_path, suffix):
    save(DRAWN, tmp_path / f"map{suffix}")
    with pytest.raises(
        InvalidInput, match=f"map{suffix}: 7 nodes, the root counted; allowed here: num_nodes 64"
    ):
        load(tmp_path / f"map{suffix}", num_nodes=64)


GOOD = {"format": "resispec grow map 1", "num_nodes": 7, "child_counts": [[3], [1, 0, 2]]}
JSON_FAULTS = [
    (
        GOOD | {"format": "resispec grow map 2"},
        "'format' is 'resispec grow map 2'; allowed: 'resispec grow map 1'",
    ),
    (GOOD | {"num_nodes": 6}, "'num_nodes' is 6; 'child_counts' gives 7"),
    (GOOD | {"num_nodes": 7.0}, "'num_nodes' is 7.0; 'child_counts' gives 7"),
    (
        GOOD | {"num_nodes": 1, "child_counts": [[True]]},
        "'child_counts' is .*; allowed: lists of whole numbers from 0",
    ),
    (
        GOOD | {"child_counts": [[3], [1, 0, 2.0]]},
        "'child_counts' is .*; allowed: lists of whole numbers from 0",
    ),
    (
        GOOD | {"child_counts": [[3], [-1, 2, 2]]},
        "'child_counts' is .*; allowed: lists of whole numbers from 0",
    ),
    (GOOD | {"child_counts": [3, 3]}, "'child_counts' is .*; allowed: lists of whole numbers from 0"),
    (GOOD | {"child_counts": [[2], [1, 0, 3]]}, "3 child counts for a level of 2 nodes"),
    (GOOD | {"child_counts": [[], [6]]}, "1 child counts for a level of 0 nodes"),
    (GOOD | {"about": "me"}, "'about' is 'me'; allowed: an object"),
    (
        GOOD | {"size": 7},
        r"missing keys \[\], unexpected keys \['size'\]; allowed: about, child_counts, format, num_nodes",
    ),
    (
        {"format": "resispec grow map 1"},
        r"missing keys \['child_counts', 'num_nodes'\], unexpected keys \[\]",
    ),
    ([1], "holds a list; allowed: a mapping with keys about"),
    (
        GOOD | {"num_nodes": 10**12 + 1, "child_counts": [[10**12]]},
        "a tree of these child counts has 1000000000001 nodes; allowed: at most 16384",
    ),
]


@pytest.mark.parametrize(("content", "message"), JSON_FAULTS)
def test_a_fault_in_our_format_is_named(tmp_path, content, message):
    (tmp_path / "bad.json").write_text(json.dumps(content))
    with pytest.raises(InvalidInput, match=f"grow map .*bad.json: {message}"):
        load(tmp_path / "bad.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
@pytest.mark.parametrize("use", [load, about])
def test_what_is_not_json_is_refused(tmp_path, content, use):
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(InvalidInput, match="bad.json: is not JSON") as caught:
        use(tmp_path / "bad.json")
    assert "\n" not in str(caught.value)


def test_a_map_says_where_it_comes_from(tmp_path):
    save(DRAWN, tmp_path / "told.json", about={"pair": "embedded"})
    save(DRAWN, tmp_path / "silent.json")
    save(DRAWN, tmp_path / "map.pt")
    assert about(tmp_path / "told.json") == {"pair": "embedded"}
    assert [about(tmp_path / name) for name in ("silent.json", "map.pt", "none.json")] == [{}, {}, {}]


def test_the_last_level_may_be_written_out(tmp_path):
    (tmp_path / "map.json").write_text(json.dumps(GOOD | {"child_counts": [[3], [1, 0, 2], [0, 0, 0]]}))
    assert load(tmp_path / "map.json") == DRAWN


def test_what_a_file_cannot_hold_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="map.pt: a .pt map has no room for 'about'; allowed: .json"):
        save(DRAWN, tmp_path / "map.pt", about={})
    for value in (object(), float("nan")):
        with pytest.raises(InvalidInput, match="map.json: 'about' is not what JSON can hold"):
            save(DRAWN, tmp_path / "map.json", about={"value": value})
    assert not list(tmp_path.iterdir())
