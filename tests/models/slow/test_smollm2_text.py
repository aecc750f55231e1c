"""The questions that this installation gives: what training asks shares nothing with what is measured."""

from itertools import chain

import pytest
from omegaconf import OmegaConf

from experiments.cell import build
from experiments.schema import CONF
from resispec.embedded.corpus import content_keys, paragraph_key, read_sources
from resispec.errors import InvalidInput
from resispec.smollm2.questions import QUESTIONS_RECIPE, make_questions


@pytest.fixture(scope="module")
def made():
    return make_questions(QUESTIONS_RECIPE, read_sources())


def test_no_training_question_holds_a_measured_paragraph_or_document(made):
    training = [paragraph_key(prompt.text) for prompt in made["training"]]
    assert len(set(training)) == len({prompt.id for prompt in made["training"]}) == len(training) == 6144
    held_out = [prompt.text for name in ("explain", "summarise") for prompt in made[name]]
    assert len(set(held_out)) == len(held_out) == 384
    inner = [text.partition("\n\n")[2].removeprefix("```python\n").removesuffix("\n```") for text in held_out]
    hidden = set(chain.from_iterable(map(content_keys, inner)))
    everything = "\n".join(training)
    assert len(hidden) > 600 and not [key for key in hidden if key in everything]
    ids = {prompt.id for name in ("explain", "summarise") for prompt in made[name]}
    assert not ids & {prompt.id for prompt in made["training"]}


def problems_of_humaneval():
    node = OmegaConf.to_container(OmegaConf.load(CONF / "dataset" / "humaneval.yaml"))
    node.pop("label")
    return build(node).prompts(164)


def test_no_training_question_holds_anything_of_humaneval(made):
    try:
        problems = problems_of_humaneval()
    except InvalidInput as error:
        pytest.skip(str(error))
    everything = "\n".join(paragraph_key(prompt.text) for prompt in made["training"])
    for problem in problems:
        keys = content_keys(problem.text) | {paragraph_key(problem.text)}
        assert not [key for key in keys if key in everything], problem.id
