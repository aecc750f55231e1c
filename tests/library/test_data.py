"""Prompts from files, and what a user is told when there are none."""

import json

import pytest

from resispec.data import HubDataset, JsonlDataset
from resispec.errors import InvalidInput

CNN = HubDataset("abisee/cnn_dailymail", "3.0.0", "test", "article", "main")


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return str(path)


def test_lines_in_order_with_ids(tmp_path):
    path = write(tmp_path / "x.jsonl", {"text": "one", "id": "a"}, "", {"text": "two"}, {"text": "three"})
    prompts = JsonlDataset(path).prompts(2)
    assert [(prompt.id, prompt.text) for prompt in prompts] == [("a", "one"), ("2", "two")]


def test_a_local_path_replaces_the_hub(tmp_path):
    path = write(tmp_path / "x.jsonl", {"article": "long", "text": "short"}, {"text": "only this"})
    data = HubDataset("abisee/cnn_dailymail", "3.0.0", "test", "article", "main", path=path)
    assert [prompt.text for prompt in data.prompts(2)] == ["long", "only this"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{broken"], "line 1 is not JSON"),
        ([{"text": "fine"}, {"body": "x"}], "line 2 has no text: expected an object with a non-empty 'text'"),
        ([{"text": ""}], "line 1 has no text"),
        (["[1, 2]"], "line 1 has no text"),
        ([{"text": 7}], "line 1 has no text"),
        ([{"text": "alone"}], "2 prompts were asked for and .* has 1; lower num_prompts"),
    ],
)
def test_a_bad_line_is_named(tmp_path, lines, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        JsonlDataset(write(tmp_path / "x.jsonl", *lines)).prompts(2)
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
