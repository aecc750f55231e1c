"""Questions for SmolLM2: two sides that share nothing, kinds, cuts, counts, and their data sets."""

import dataclasses
import hashlib
import json

import pytest

from experiments.cell import build
from recipes.embedded import corpus
from recipes.smollm2 import SmolLM2Dataset, questions
from recipes.smollm2.questions import FUNCTION_KINDS, QuestionsRecipe, make_questions
from resispec.errors import InvalidInput

RECIPE = QuestionsRecipe(num_functions=60, num_pages=60, num_prompts=12, max_chars=600)
SHARED = (
    "    # A remark that a function of both sides has, and long enough to be content.\n"
    "    shared = 1\n"
)


def function(number, docstring):
    lines = [f"    value_{number}_{line} = argument * {number} + {line}\n" for line in range(6)]
    # Long enough to be a page, were its function not asked about.
    about = (
        f"Return a number of module {number}.\n\n    It is made of {number} and the argument"
        + ", again" * 20
    )
    text = f'    """{about}\n    """\n'
    body = f"{text * docstring}{''.join(lines)}"
    return f"def make_{number}(argument):\n{body}\n    return argument\n\n\n"


def page(number):
    return "\n\n".join(
        f"Rule {number}.{part} says {part} things " + "of some length " * 12 for part in range(9)
    )


def write_sources():
    """Files of three functions and a class with a long docstring; a reference of thirty topics."""
    sources = {}
    for number in range(120):
        text = 'class C:\n    """' + f"What class {number} is for, in words. " * 9 + '"""\n\n\n'
        text += "".join(function(3 * number + place, docstring=place > 0) for place in range(3))
        sources[f"stdlib/m{number}.py"] = text.encode()
    sources[corpus.TOPICS] = (
        f"topics = { {f't{number}': page(number) for number in range(30)}!r}".encode()
    )
    return sources


@pytest.fixture(scope="module")
def sources():
    return write_sources()


@pytest.fixture(scope="module")
def made(sources):
    return make_questions(RECIPE, sources)


def test_functions_are_whole_or_left_out(sources):
    """Those with a docstring are too long here."""
    few = make_questions(dataclasses.replace(RECIPE, num_functions=30, max_chars=450), sources)
    functions = [prompt for prompt in few["training"] if prompt.category in FUNCTION_KINDS]
    assert {prompt.category for prompt in functions} == set(FUNCTION_KINDS) - {"complete"}
    assert all("return argument\n```" in prompt.text for prompt in (*functions, *few["explain"]))


def test_a_function_and_a_page_with_a_held_out_paragraph_are_not_asked_about(sources, made):
    """The whole document counts, not only what a question quotes of it."""
    training, held_out = corpus.split_files(sources)
    changed, returned = dict(sources), b"    return argument\n"
    for name in (*held_out, *training[:50]):
        changed[name] = sources[name].replace(returned, SHARED.encode() + returned)
    again = make_questions(dataclasses.replace(RECIPE, max_chars=800), changed)
    assert all("A remark that" in prompt.text for prompt in again["explain"])
    about = {
        prompt.id.partition(":")[0]
        for prompt in again["training"]
        if prompt.category in FUNCTION_KINDS
    }
    assert len(about) > 20 and not about & set(training[:50])
    rule = next(iter(corpus.content_keys(made["summarise"][0].text.partition("\n\n")[2])))
    own = f"{training[50]}:1"
    few = dict.fromkeys(sources, b"") | {corpus.TOPICS: sources[corpus.TOPICS]}
    few |= {name: sources[name] for name in (*held_out, *training[:40])}
    # all pages, its own among them
    small = dataclasses.replace(RECIPE, num_functions=5, num_pages=86)
    few[training[50]] = (
        f'class Copy:\n    """Begins.\n\n    {"Other words. " * 20}\n    """\n'.encode()
    )
    assert own in {prompt.id for prompt in make_questions(small, few)["training"]}
    for copy in (f"Begins.\n\n    {rule}", f"Begins. {rule} Goes on."):  # in other paragraphs, too
        few[training[50]] = f'class Copy:\n    """{copy}\n    """\n'.encode()
        with pytest.raises(InvalidInput, match="gives 85; 86 are needed"):
            make_questions(small, few)


def test_the_order_is_that_of_every_machine(sources, made):
    """Another text for the same key would pass for the one that a drafter was trained on."""
    shuffled = dict(sorted(sources.items(), reverse=True))
    assert make_questions(RECIPE, shuffled) == made
    lines = [
        f"{name} {prompt.id} {prompt.text}" for name, prompts in made.items() for prompt in prompts
    ]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == "550d0ba32156ecbd"
    more = make_questions(dataclasses.replace(RECIPE, num_prompts=15), sources)
    assert more["explain"][:12] == made["explain"] and more["summarise"][:12] == made["summarise"]


def test_the_data_sets_are_the_recipe_s_files(sources, made, monkeypatch, tmp_path):
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path))
    for module in (questions, corpus):  # which write the questions, and name them
        monkeypatch.setattr(module, "read_sources", lambda: sources)
    monkeypatch.setattr(questions, "text_key", corpus.text_key.__wrapped__)
    monkeypatch.setattr(questions, "QUESTIONS_RECIPE", RECIPE)
    assert (
        SmolLM2Dataset("smollm2_explain", fingerprint=RECIPE.key()).prompts(12) == made["explain"]
    )
    assert SmolLM2Dataset("smollm2_summarise").prompts(3) == made["summarise"][:3]
    lines = (RECIPE.folder() / "training.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == [
        prompt.text for prompt in made["training"]
    ]


def test_a_cell_of_before_finds_what_has_moved():
    """A published configuration names the module that the data set was in."""
    node = {"_target_": "resispec.smollm2.SmolLM2Dataset", "name": "smollm2_explain"}
    assert build(node) == SmolLM2Dataset("smollm2_explain")
