"""Prompts as cells use them: categories end up in rows, chat templates around documents."""

import json

import pytest
from tokenizers import processors
from transformers import AutoTokenizer

from experiments.grid import cells_of
from experiments.store import RowLog
from experiments.tasks.decode import PromptRow
from experiments.worker import load_workload
from resispec.data import CHAT, Prompt
from resispec.errors import InvalidInput
from resispec.models import TransformersTokenizer
from tests.harness.toy_runs import rows, run_here

QUESTIONS = [
    {"question_id": 7, "category": "qa", "turns": ["abc def gh a", "abc"]},
    {"question_id": 8, "category": "qa", "turns": ["abc def gh b", "abc"]},
    {"question_id": 9, "category": "rag", "turns": ["abc def gh c"]},
]


@pytest.fixture
def asked(toy, tmp_path):
    """A toy cell of three questions."""
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, QUESTIONS)))
    return [*toy, "tree=chain", "dataset=spec_bench", f"dataset.path={path}"]


def test_rows_have_the_categories_of_their_prompts_and_no_field_without(asked, toy):
    [cell], [plain] = cells_of(asked), cells_of([*toy, "tree=chain"])
    categories = [(row["prompt_id"], row["category"]) for row in rows(run_here(cell))]
    assert categories == [("7", "qa"), ("9", "rag"), ("8", "qa")]
    assert all("category" not in row for row in rows(run_here(plain)))
    (plain.folder / "rows.jsonl").rename(plain.folder / "rows.partial.jsonl")
    workload = load_workload(plain.config, None)
    kept = RowLog(plain.folder, PromptRow, workload).rows  # such rows are gone on from, too
    assert [row.category for row in kept] == [None] * 3


def test_prompts_that_are_the_same_after_a_cut_are_refused(asked):
    """Defect: documents with one preamble were as many prompts, in intervals over prompts, too."""
    [cell] = cells_of([*asked, "prompt_tokens=1"])
    with pytest.raises(InvalidInput, match=r"^2 of 3 prompts are another one after the cut"):
        load_workload(cell.config, None)


def tokenizer_with(folder, template):
    made = AutoTokenizer.from_pretrained(folder / "target")
    made.chat_template = template
    return TransformersTokenizer(made)


def test_a_chat_template_stands_around_a_cut_document_and_is_never_cut(folder):
    """Nor are earlier turns; of special tokens it has those that the template writes alone."""
    tokenizer = tokenizer_with(
        folder,
        "{% for turn in messages %}{{ 'g' if turn.role == 'user' else 'h' }}{{ turn.content }}{% "
        "endfor %}{% if add_generation_prompt %}gh{% endif %}",
    )
    processor = processors.TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 0)])
    tokenizer.inner.backend_tokenizer.post_processor = processor
    prompt, later = Prompt("p", "abcdefgh"), Prompt("p", "abcdefgh", earlier=("a", "b"))
    for count in (2, 100):
        beginning = tokenizer.beginning(prompt.text, count)
        for asked, before in ((prompt, ""), (later, "gahb")):
            tokens = tokenizer.encode_prompt(asked, count, CHAT)
            assert tokenizer.decode(tokens) == f"{before}g{beginning}gh" and 0 not in tokens
    for template in (None, "say {text}"):
        with pytest.raises(
            InvalidInput, match="^prompt p is a later turn of a chat; allowed with prompt_t"
        ):
            tokenizer.encode_prompt(later, 3, template)


CHATTING = (
    "{% for turn in messages %}{{ turn.role[0] }}{{ turn.content }}h{% endfor %}"
    "{% if add_generation_prompt %}gh{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (CHATTING, "htcchuab"),
        (
            "{% if 'tool' in messages|map(attribute='role') %}{{ raise_exception('') }}{% endif %}"
            + CHATTING,
            "hucc\nab",
        ),
        (CHATTING.replace("messages", "messages if turn.role != 'tool'"), "hucc\nab"),
    ],
)
def test_a_turn_goes_on_from_an_answer_with_what_a_tool_returned(folder, template, said):
    """A template that refuses a tool's role, or leaves it out, has its words before the user's."""
    texts = []
    tokenizer = tokenizer_with(folder, template)
    encode = tokenizer.inner.encode
    tokenizer.inner.encode = lambda text, **options: texts.append(text) or encode(text, **options)
    tokens = tokenizer.encode_turn("ab" * 9, 1, CHAT, tool_result="cc")
    beginning = tokenizer.beginning("ab" * 9, 1)
    expected = said.replace("ab", beginning) + "hgh"
    assert expected in texts and tokens == encode(expected, add_special_tokens=False)
    bare = tokenizer.encode_turn("ab" * 9, 1, CHAT)
    assert bare == encode(f"hu{beginning}hgh", add_special_tokens=False)


def test_a_template_that_leaves_out_answers_is_refused(folder):
    tokenizer = tokenizer_with(folder, "{{ messages[-1].content }}gh")
    with pytest.raises(InvalidInput, match="leaves out an earlier answer, so it cannot go on"):
        tokenizer.encode_turn("ab", 1, CHAT)


def test_a_template_that_asks_for_the_day_gets_the_same_one_every_day(folder):
    inner = tokenizer_with(
        folder, "{{ strftime_now('%a %d %b %Y') }} {{ messages[0].content }}"
    ).inner
    said = []
    inner.encode = lambda chat, **_: said.append(chat) or []
    TransformersTokenizer(inner).encode_chat("abc")
    inner.chat_template = "\n  {% if strftime_now is defined %}\nx {% endif %}"
    TransformersTokenizer(inner).encode_chat("abc")
    assert said == ["Fri 26 Jul 2024 abc", "\nx "]


def test_a_template_that_cannot_be_used_is_refused_in_one_line(folder):
    tokenizer = tokenizer_with(folder, "{{ raise_exception('roles must\nalternate') }}")
    with pytest.raises(
        InvalidInput, match="chat template of the tokenizer .*cannot be used: roles must"
    ):
        tokenizer.encode_chat("abc")


def test_a_cell_asks_by_its_template(folder, asked):
    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    cells = cells_of([*asked, "prompt_template=null,'gh{text}gh gh'"])
    bare, asking = ([row["num_prompt_tokens"] for row in rows(run_here(cell))] for cell in cells)
    around = len(tokenizer.encode("gh")) + len(tokenizer.encode("gh gh"))
    assert [two - one for one, two in zip(bare, asking, strict=True)] == [around] * 3
