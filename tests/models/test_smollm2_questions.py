"""Questions for SmolLM2: two sides that share nothing, kinds, cuts, counts, and the data sets of them."""

import dataclasses
import hashlib
import json
import subprocess
import sys
from collections import Counter

import pytest

from resispec import kept
from resispec.embedded import corpus
from resispec.errors import InvalidInput
from resispec.files import cache_root
from resispec.smollm2 import SmolLM2Dataset, questions
from resispec.smollm2.questions import FUNCTION_KINDS, PAGE_KINDS, QuestionsRecipe, make_questions

RECIPE = QuestionsRecipe(num_functions=60, num_pages=60, num_prompts=12, max_chars=600)
SHARED = "    # A remark that a function of both sides has, and long enough to be content.\n    shared = 1\n"


def function(number, docstring):
    lines = [f"    value_{number}_{line} = argument * {number} + {line}\n" for line in range(6)]
    # Long enough to be a page, were its function not asked about.
    about = (
        f"Return a number of module {number}.\n\n    It is made of {number} and the argument" + ", again" * 20
    )
    text = f'    """{about}\n    """\n'
    return f"def make_{number}(argument):\n{text * docstring}{''.join(lines)}\n    return argument\n\n\n"


def page(number):
    return "\n\n".join(
        f"Rule {number}.{part} says {part} things " + "of some length " * 12 for part in range(9)
    )


def write_sources():
    """Files of three functions and a class with a long docstring each, and a reference of thirty topics."""
    sources = {}
    for number in range(120):
        text = 'class C:\n    """' + f"What class {number} is for, in words. " * 9 + '"""\n\n\n'
        text += "".join(function(3 * number + place, docstring=place > 0) for place in range(3))
        sources[f"stdlib/m{number}.py"] = text.encode()
    sources[corpus.TOPICS] = f"topics = { {f't{number}': page(number) for number in range(30)}!r}".encode()
    return sources


@pytest.fixture(scope="module")
def sources():
    return write_sources()


@pytest.fixture(scope="module")
def made(sources):
    return make_questions(RECIPE, sources)


def contents(text):
    """The long paragraphs of a question, without the instruction and the fence around code."""
    inner = text.partition("```python\n")[2].removesuffix("\n```") or text.partition("\n\n")[2] or text
    return corpus.content_keys(inner)


def test_counts_kinds_and_texts(made):
    training = made["training"]
    assert [len(made[name]) for name in ("training", "explain", "summarise")] == [120, 12, 12]
    for prompts in made.values():
        assert (
            len({prompt.id for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)
        )
    counts = Counter(prompt.category for prompt in training)
    assert set(counts) == {*FUNCTION_KINDS, *PAGE_KINDS}
    assert counts["explain"] + counts["complete"] > 30 < counts["summarise"]  # what is measured, above all
    assert {
        len({prompt.category for prompt in training[start : start + 40]}) > 5 for start in (0, 40, 80)
    } == {True}
    by_kind = {prompt.category: prompt.text for prompt in training}
    assert by_kind["complete"].startswith("def make_") and by_kind["complete"].endswith('"""\n')
    assert '"""' not in by_kind["docstring"] and "return argument\n```" in by_kind["docstring"]
    for prompt in made["explain"]:
        assert prompt.text.startswith("Explain what this function does.\n\n```python\ndef make_")
        assert prompt.text.endswith("    return argument\n```")  # whole


def test_functions_are_whole_or_left_out(sources):
    """Those with a docstring are too long here."""
    small = dataclasses.replace(RECIPE, num_functions=30, num_pages=60, max_chars=450)
    few = make_questions(small, sources)
    functions = [prompt for prompt in few["training"] if prompt.category in FUNCTION_KINDS]
    assert len(functions) == 30 and {prompt.category for prompt in functions} == set(FUNCTION_KINDS) - {
        "complete"
    }
    assert all("return argument\n```" in prompt.text for prompt in (*functions, *few["explain"]))


def test_excerpts_are_cut_at_the_end_of_a_line(made):
    inner = [prompt.text.partition("\n\n")[2] for prompt in (*made["training"], *made["summarise"])]
    assert max(map(len, inner)) <= RECIPE.max_chars + len("```python\n\n```")
    for prompt in made["summarise"]:
        assert prompt.text.endswith("of some length ")  # the end of a line of the page


def test_sides_share_no_file_and_no_paragraph(sources, made):
    def files(name, prefix="stdlib/"):
        return {prompt.id.partition(":")[0] for prompt in made[name] if prompt.id.startswith(prefix)}

    training, held_out = corpus.split_files(sources)
    assert files("training") <= set(training) and files("explain") <= set(held_out) and files("explain")
    hidden = set().union(
        *(contents(prompt.text) for name in ("explain", "summarise") for prompt in made[name])
    )
    assert len(hidden) > 20
    assert not hidden & set().union(*(contents(prompt.text) for prompt in made["training"]))


def test_a_function_and_a_page_with_a_held_out_paragraph_are_not_asked_about(sources, made):
    """The whole document counts, not only what a question quotes of it."""
    training, held_out = corpus.split_files(sources)
    changed, returned = dict(sources), b"    return argument\n"
    for name in (*held_out, *training[:50]):
        changed[name] = sources[name].replace(returned, SHARED.encode() + returned)
    again = make_questions(dataclasses.replace(RECIPE, max_chars=800), changed)
    assert all("A remark that" in prompt.text for prompt in again["explain"])
    about = {prompt.id.partition(":")[0] for prompt in again["training"] if prompt.category in FUNCTION_KINDS}
    assert len(about) > 20 and not about & set(training[:50])
    rule = next(iter(contents(made["summarise"][0].text)))
    own = f"{training[50]}:1"
    few = dict.fromkeys(sources, b"") | {corpus.TOPICS: sources[corpus.TOPICS]}
    few |= {name: sources[name] for name in (*held_out, *training[:40])}
    small = dataclasses.replace(RECIPE, num_functions=5, num_pages=86)  # all pages, its own among them
    few[training[50]] = f'class Copy:\n    """Begins.\n\n    {"Other words. " * 20}\n    """\n'.encode()
    assert own in {prompt.id for prompt in make_questions(small, few)["training"]}
    for copy in (f"Begins.\n\n    {rule}", f"Begins. {rule} Goes on."):  # in other paragraphs, too
        few[training[50]] = f'class Copy:\n    """{copy}\n    """\n'.encode()
        with pytest.raises(InvalidInput, match="gives 85; 86 are needed"):
            make_questions(small, few)


def test_the_order_is_that_of_every_machine(sources, made):
    """Another text for the same key would pass for the one that a drafter was trained on."""
    shuffled = dict(sorted(sources.items(), reverse=True))
    assert make_questions(RECIPE, shuffled) == made
    lines = [f"{name} {prompt.id} {prompt.text}" for name, prompts in made.items() for prompt in prompts]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == "550d0ba32156ecbd"
    more = make_questions(dataclasses.replace(RECIPE, num_prompts=15), sources)
    assert more["explain"][:12] == made["explain"] and more["summarise"][:12] == made["summarise"]


def test_too_little_text_is_refused(sources):
    few = dataclasses.replace(RECIPE, num_prompts=5000)
    with pytest.raises(InvalidInput, match=r"^smollm2 questions .explain.: .* gives \d+; 5000 are needed$"):
        make_questions(few, sources)


@pytest.fixture
def small(monkeypatch, tmp_path, sources):
    """The data sets of a small recipe over toy sources, in a cache of its own."""
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path))
    for module in (questions, corpus):  # which write the questions, and name them
        monkeypatch.setattr(module, "read_sources", lambda: sources)
    corpus.text_key.cache_clear()
    monkeypatch.setattr(SmolLM2Dataset, "recipe", RECIPE)
    yield SmolLM2Dataset
    corpus.text_key.cache_clear()


def test_the_data_sets_are_the_recipe_s_files(small, made, tmp_path):
    data = small("smollm2_explain", fingerprint=RECIPE.key())
    data.check(12)
    with pytest.raises(InvalidInput, match="13 prompts were asked for and smollm2_explain has at most 12"):
        data.check(13)
    assert not (cache_root() / RECIPE.key()).exists()  # checking makes nothing
    assert (
        data.prompts(12) == made["explain"] and small("smollm2_summarise").prompts(3) == made["summarise"][:3]
    )
    kept.check(cache_root() / RECIPE.key())
    lines = (RECIPE.folder() / "training.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == [prompt.text for prompt in made["training"]]
    for wrong, message in (
        (
            lambda: small("smollm2_training"),
            "unknown data set 'smollm2_training'; allowed: smollm2_explain, smol",
        ),
        (
            lambda: small("smollm2_explain", fingerprint="0").prompts(1),
            "the prompts of smollm2_explain 0 were a",
        ),
    ):
        with pytest.raises(InvalidInput, match=message):
            wrong()
    (tmp_path / "own.jsonl").write_text('{"text": "own"}\n')
    assert [prompt.text for prompt in small("smollm2_explain", str(tmp_path / "own.jsonl")).prompts(1)] == [
        "own"
    ]


@pytest.mark.usefixtures("small")
def test_a_key_depends_on_every_field_and_the_sources_and_takes_no_torch(monkeypatch):
    keys = {RECIPE.key()}
    for field in dataclasses.fields(RECIPE):
        changed = dataclasses.replace(RECIPE)
        object.__setattr__(changed, field.name, (getattr(RECIPE, field.name) or 0) + 1)
        keys.add(changed.key())
    assert len(keys) == 1 + len(dataclasses.fields(RECIPE))
    corpus.text_key.cache_clear()
    monkeypatch.setattr(corpus, "read_sources", lambda: {"a.py": b"other"})
    assert RECIPE.key() not in keys
    code = "import sys, resispec.smollm2; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
