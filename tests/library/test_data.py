"""Prompts from files, and what a user is told when there are none."""

import json
import pickle
import sys
from dataclasses import replace

import pytest

from resispec.data import HubDataset, JsonlDataset
from resispec.embedded import EmbeddedDataset
from resispec.errors import InvalidInput

CNN = HubDataset("abisee/cnn_dailymail", "3.0.0", "test", "article", "main")


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return str(path)


def test_lines_in_order_with_ids(tmp_path):
    lines = [
        {"text": "one", "id": "a"},
        {"text": "two"},
        {"text": "three", "id": 7},
        {"text": "four", "id": None},
    ]
    path = write(tmp_path / "x.jsonl", *lines, "never read")
    prompts = JsonlDataset(path).prompts(4)
    assert [(prompt.id, prompt.text) for prompt in prompts] == [
        ("a", "one"),
        ("1", "two"),
        ("7", "three"),
        ("3", "four"),
    ]


def test_a_file_may_begin_with_a_byte_order_mark_and_end_without_a_line_break(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "caf\xc3\xa9"}\r\n{"text": "two"}')
    assert [prompt.text for prompt in JsonlDataset(str(tmp_path / "x.jsonl")).prompts(2)] == ["café", "two"]


def test_a_local_path_replaces_the_hub(tmp_path):
    path = write(tmp_path / "x.jsonl", {"article": "long", "text": "short"}, {"text": "only this"})
    data = HubDataset("abisee/cnn_dailymail", "3.0.0", "test", "article", "main", path=path)
    assert [prompt.text for prompt in data.prompts(2)] == ["long", "only this"]


GOOD = b'{"text": "fine"}\n'
FAULTS = {
    "not JSON": (b"{broken", "line 1 is not JSON .*: '{broken'"),
    "no such field": (
        GOOD + b'{"body": "x"}',
        "line 2 has no text: expected an object with a non-empty 'text'",
    ),
    "no text": (b'{"text": ""}', "line 1 has no text"),
    "white space": (GOOD + b'{"text": " \\n\\t "}', "line 2 has no text.*found {'text': ' "),
    "no object": (GOOD + b"[1, 2]", r"line 2 has no text.*found \[1, 2\]"),
    "a text alone": (b'"text"', "line 1 has no text"),
    "a number": (b'{"text": 7}', "line 1 has no text"),
    "an empty line": (GOOD + b"\n" + GOOD, "line 2 is empty; allowed: one JSON object a line"),
    "an empty file": (b"", "2 prompts were asked for and .*x.jsonl has 0; lower num_prompts"),
    "too short": (GOOD, "2 prompts were asked for and .*x.jsonl has 1; lower num_prompts"),
    "binary": (bytes(range(256)), r"line 1 is not .*: "),
    "pickled": (pickle.dumps({"text": "x"}), r"line 1 is not text in UTF-8 \(byte 0\): b'.x80"),
    "Latin-1": (GOOD + '{"text": "café"}'.encode("latin-1"), r"line 2 is not text in UTF-8 \(byte 13\)"),
    "UTF-16": ('{"text": "x"}'.encode("utf-16"), "line 1 is not text in UTF-8"),
    "half a character, escaped": (GOOD + b'{"text": "a\\ud83d b"}', "line 2 holds half of a character"),
    "half a character, raw": (GOOD + b'{"text": "a\xed\xa0\xbd"}', "line 2 is not text in UTF-8"),
    "half a character in an id": (b'{"text": "a", "id": "\\udc00"}', "line 1 holds half of a character"),
    "two of an id": (
        b'{"text": "a", "id": "x"}\n' * 2,
        "line 2 has the id 'x' of line 1; allowed: one of its own",
    ),
    "a line's number as an id": (b'{"text": "a", "id": 1}\n{"text": "b"}', "line 2 has the id '1' of line 1"),
    "an id that is none": (
        b'{"text": "a", "id": [1]}',
        r"line 1 has the id \[1\]; allowed: a text or a whole",
    ),
    "nested without end": (b"[" * 100_000, "line 1 is not JSON"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_line_is_named_with_its_file(tmp_path, name):
    content, message = FAULTS[name]
    (tmp_path / "x.jsonl").write_bytes(content)
    for data in (
        JsonlDataset(str(tmp_path / "x.jsonl")),
        replace(CNN, field="text", path=str(tmp_path / "x.jsonl")),
    ):
        with pytest.raises(InvalidInput, match=message) as caught:
            data.prompts(2)
        assert str(tmp_path / "x.jsonl") in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
        str(caught.value).encode()  # can be printed


def test_ids_that_nobody_asked_for_may_repeat(tmp_path):
    path = write(tmp_path / "x.jsonl", {"text": "a", "id": 1}, {"text": "b", "id": 2}, {"text": "c", "id": 2})
    assert [prompt.id for prompt in JsonlDataset(path).prompts(2)] == ["1", "2"]


@pytest.mark.parametrize("count", [0, -3, 2.0, "2", True, None])
def test_only_whole_numbers_from_one_can_be_asked_for(tmp_path, count):
    path = write(tmp_path / "x.jsonl", {"text": "a"}, {"text": "b"}, {"text": "c"})
    for data in (JsonlDataset(path), replace(CNN, path=path), CNN, EmbeddedDataset("embedded_code")):
        with pytest.raises(
            InvalidInput, match=f"^{count!r} prompts were asked for; allowed: whole numbers from 1$"
        ):
            data.prompts(count)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"article": "a"}, {"highlights": "b"}],
            "document 1 has no text: expected an object with a non-empty 'article'",
        ),
        ([{"article": "a", "id": 5}, {"article": "b", "id": 5}], "document 1 has the id '5' of document 0"),
        ([{"article": "a"}], "2 prompts were asked for and data set abisee/cnn_dailymail .test. has 1"),
    ],
)
def test_documents_of_the_hub_are_checked_as_well(monkeypatch, rows, message):
    monkeypatch.setattr(HubDataset, "_rows", lambda _: rows)
    with pytest.raises(InvalidInput, match=message):
        CNN.prompts(2)


def test_a_hub_that_breaks_off_is_one_line(monkeypatch):
    def rows(_self):
        yield {"article": "a"}
        raise RuntimeError("connection lost\nwhile reading")

    monkeypatch.setattr(HubDataset, "_rows", rows)
    with pytest.raises(
        InvalidInput, match="^data set abisee/cnn_dailymail .test. cannot be loaded: connection lost$"
    ):
        CNN.prompts(2)


def test_without_the_datasets_library_the_way_to_get_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        InvalidInput, match=r"pip install 'resispec\[harness\]', or give a local file"
    ) as caught:
        CNN.prompts(1)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="nothing.jsonl does not exist"):
        JsonlDataset(str(tmp_path / "nothing.jsonl")).prompts(1)


def test_without_a_hub_the_ways_out_are_named():
    with pytest.raises(
        InvalidInput, match="abisee/cnn_dailymail.*not cached.*ways out: .*HF_HOME.*dataset.path=FILE.jsonl"
    ):
        CNN.prompts(1)


def test_a_hub_that_cannot_be_reached_is_noticed_at_once(monkeypatch):
    from huggingface_hub import HfApi, constants

    def unreachable(*_arguments, **options):
        assert options["timeout"] <= 5
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "repo_info", unreachable)
    with pytest.raises(InvalidInput, match="cannot be reached .Name or service not known."):
        CNN.prompts(1)
