"""Questions of benchmarks, on small files in the formats of the real ones."""

import gzip
import hashlib
import json

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments.configuration.schema import CONF
from resispec.errors import InvalidInput
from resispec.questions import QuestionDataset

SPEC_BENCH = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Again, shorter."]},
    {"question_id": 82, "category": "writing", "turns": ["Describe.", "Now in verse."]},
    {"question_id": 83, "category": "writing", "turns": ["Rewrite.", "Once more."]},
    {"question_id": 401, "category": "math_reasoning", "turns": ["2 + 2?"], "reference": ["4"]},
    {"question_id": 402, "category": "math_reasoning", "turns": ["3 + 3?"], "reference": ["6"]},
    {"question_id": 481, "category": "rag", "turns": ["By these pages, who?"], "reference": [["she"], 7]},
]
GSM8K = [{"question": "How many ducks?", "answer": "#### 18"}, {"question": "How far?", "answer": "#### 3"}]
HUMANEVAL = [
    {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "canonical_solution": "    return x\n", "test": ""}
]


@pytest.fixture
def published(tmp_path, monkeypatch):
    """The data set of a file of conf/dataset, whose url is that of a small file of the same format."""
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path / "cache"))

    def make(name, rows, **changed):
        node = OmegaConf.to_container(OmegaConf.load(CONF / "dataset" / f"{name}.yaml"))
        content = "\n".join(map(json.dumps, rows)).encode()
        file = tmp_path / node["url"].rpartition("/")[2]
        file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
        given = {"url": file.as_uri(), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        return instantiate(node | given | changed)

    return make


def found(data, count):
    return [(prompt.id, prompt.category, prompt.text) for prompt in data.prompts(count)]


def test_categories_take_turns_and_a_question_is_its_first_turn(published):
    data = published("spec_bench", SPEC_BENCH)
    assert found(data, 6) == [
        ("81", "writing", "Write."),
        ("401", "math_reasoning", "2 + 2?"),
        ("481", "rag", "By these pages, who?"),
        ("82", "writing", "Describe."),
        ("402", "math_reasoning", "3 + 3?"),
        ("83", "writing", "Rewrite."),
    ]
    assert found(data, 2) == found(data, 6)[:2]
    assert [name for name, *_ in found(published("mt_bench", SPEC_BENCH[:3]), 3)] == ["81", "82", "83"]


def test_questions_without_a_category_of_their_own_have_their_data_set_s(published):
    assert found(published("gsm8k", GSM8K), 2) == [
        ("0", "math_reasoning", "How many ducks?"),
        ("1", "math_reasoning", "How far?"),
    ]
    assert found(published("humaneval", HUMANEVAL), 1) == [("HumanEval/0", "coding", "def f(x):\n")]


def test_categories_can_be_chosen_and_unknown_ones_are_refused_with_the_known(published):
    data = published("spec_bench", SPEC_BENCH, categories=["rag", "writing"])
    assert [name for name, *_ in found(data, 4)] == ["481", "81", "82", "83"]
    known = "allowed: writing, math_reasoning, rag$"
    for asked, message in (
        (["rag", "cooking"], f"no category 'cooking'; {known}"),
        ("rag", f"categories is 'rag'; expected a list like .qa,rag.; {known}"),
        ([], f"categories is .*; expected a list like .qa,rag.; {known}"),
    ):
        with pytest.raises(InvalidInput, match=message):
            published("spec_bench", SPEC_BENCH, categories=asked).prompts(1)
    with pytest.raises(InvalidInput, match="5 prompts were asked for and file:.* has 4; lower num_prompts"):
        data.prompts(5)
    bare = [{"question_id": 1, "turns": ["What?"]}]
    with pytest.raises(InvalidInput, match="no category 'rag'; its questions have no categories"):
        published("spec_bench", bare, categories=["rag"]).prompts(1)


def test_a_file_is_fetched_once_and_known_by_its_checksum(published, tmp_path):
    data = published("spec_bench", SPEC_BENCH)
    first = found(data, 3)
    (tmp_path / "question.jsonl").unlink()
    assert found(data, 3) == first
    other = published("spec_bench", SPEC_BENCH[:2], sha256="0" * 64)
    with pytest.raises(InvalidInput, match="another file than the pinned one: SHA-256 .*expected 0000"):
        other.prompts(1)
    (tmp_path / "question.jsonl").unlink()
    with pytest.raises(InvalidInput, match="cannot be fetched .*ways out: .*dataset.path=FILE.jsonl"):
        other.prompts(1)


def test_a_local_file_takes_the_place_of_the_web(tmp_path):
    lines = [*SPEC_BENCH[:1], {"id": "mine", "text": "hello", "category": "own"}]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, lines)))
    data = QuestionDataset("https://nowhere", "0", "turns", "question_id", path=str(tmp_path / "q.jsonl"))
    assert found(data, 2) == [("81", "writing", "Write."), ("mine", "own", "hello")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question_id": 1, "turns": []}, "line 1 has no text: expected an object with a non-empty 'turns'"),
        ({"question_id": 1, "turns": [["a"]]}, "line 1 has no text"),
        ({"question_id": 1, "turns": ["a"], "category": ["x"]}, r"line 1 has the category \['x'\]; allowed"),
        ({"question_id": [1], "turns": ["a"]}, r"line 1 has the id \[1\]; allowed: a text or a whole number"),
        ([1], "line 1 has no text"),
    ],
)
def test_a_bad_question_is_named(published, row, message):
    with pytest.raises(InvalidInput, match=f"question.jsonl, {message}"):
        published("spec_bench", [row]).prompts(1)
