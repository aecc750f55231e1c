"""The real SmolLM2-135M-Instruct, beside llama.cpp on its original file, and its questions.

The model's tests are skipped where neither the cache nor RESISPEC_WHEELS has the file.
"""

import builtins
import inspect
import os
import textwrap
from itertools import chain

import pytest
import torch
from omegaconf import OmegaConf

from experiments.cell import build
from experiments.schema import CONF
from recipes import smollm2
from recipes.embedded.corpus import content_keys, paragraph_key, read_sources
from recipes.smollm2.questions import QUESTIONS_RECIPE, make_questions
from recipes.smollm2.recipe import TARGET
from resispec.errors import InvalidInput
from resispec.files import cache_root
from resispec.packages import SMOLLM2, WHEELS, fetched
from resispec.sampling import Sampling

NAMES = sorted(name for name in vars(builtins) if name.islower())[5:65:3]
"""Twenty functions of Python to ask about."""
NUM_TOKENS = 48
MARKS = (
    "", " ", "\n\n\t \r\n", "a  b   c", "a   12   3", "don't I'LL we've",
    "3.14159 2026-11-23 1e-9 x86_64",
    "\u0663\u06f4\u0967 \u00bd\u00b2\u2167", "caf\u00e9 cafe\u0301 na\u00efve \u00c5ngstr\u00f6m",
    "\u4e2d\u6587\u5206\u8bcd, \u65e5\u672c\u8a9e\u306e\u6587",
    "\u0395\u03bb\u03bb\u03b7 \u0440\u0443\u0441",
    "\u05e2\u05d1\u05e8 \u0627\u0644\u0639", "\u0e20\u0e32\u0e29 \ud55c\uad6d",
    "\u0939\u093f\u0928\u094d\u0926\u0940",
    "\U0001f600\U0001f468\u200d\U0001f469 \u00a0\u2009\ufeff\u200b",
    "#include <x>\n\tint main(){return 0x1F;}",
    "<|im_start|>user\nhi<|im_end|>\n", "<|endoftext|><file_sep>a <|im_end|>b",
    "a < b | c > d <|im_en|>",
    "$100,000.00 & 50% @home #1", "_snake_case__ camelCase HTTPServer2",
    "trailing   ", "   leading", "\x00\x07\x1b[0m",
)  # fmt: skip


@pytest.fixture(scope="module")
def pair():
    is_here = (cache_root() / TARGET.key()).is_dir() or (
        cache_root() / "packages" / SMOLLM2.sha256
    ).is_dir()
    if not (is_here or os.environ.get(WHEELS)):
        pytest.skip(f"neither the cache nor {WHEELS} has {SMOLLM2.name}")
    return smollm2.load_pair()


@pytest.fixture(scope="module", params=["quantised", "float32"])
def engine(request, pair, tmp_path_factory):
    """llama.cpp on the package's file, or on one in float32 written from the converted model."""
    pytest.importorskip("xllamacpp", reason="the extra `engines` is not installed")
    from referee.engines.llama_cpp import LlamaCppEngine

    file = fetched(SMOLLM2) if request.param == "quantised" else None
    running = LlamaCppEngine(pair, tmp_path_factory.mktemp(request.param), file=file)
    running.is_quantised = file is not None
    return running


def margins_of(pair, prompt, answer):
    """The best token's logit less that of an answer's token, at each of the answer's places."""
    tokens = torch.tensor([[*prompt, *answer]])
    with torch.inference_mode():
        logits = pair.target.module(tokens).logits[0, len(prompt) - 1 : -1]
    return logits.max(-1).values - logits.gather(1, tokens[0, len(prompt) :, None])[:, 0]


def test_greedy_answers_are_llama_cpps_but_where_two_tokens_are_nearly_as_good(pair, engine):
    """In float32 they are the same, on the quantised file all but a few tokens.

    There llama.cpp rounds activations to 8 bits, which decided 25 of 875 tokens when measured; our
    best token's logit was at most 0.28 above theirs.
    """
    settings = Sampling(temperature=0, max_new_tokens=NUM_TOKENS)
    margins = []
    for name in NAMES:
        prompt = pair.tokenizer.encode_chat(
            f"Explain what {name}() does in Python, in two sentences."
        )
        margins.append(margins_of(pair, prompt, engine.answer(prompt, settings, 0).tokens))
    every = torch.cat(margins)
    assert len(NAMES) == 20 and len(every) > 600
    most, share = (0.6, 0.06) if engine.is_quantised else (2e-3, 0.003)
    assert every.max() < most and (every > 0).float().mean() < share


def test_texts_are_cut_into_llama_cpps_tokens(pair, engine):
    sources = [inspect.getsource(module) for module in (textwrap, inspect)]
    pieces = [source[start : start + 700] for source in sources for start in range(0, 21_000, 700)]
    for text in (*MARKS, *filter(None, pieces)):
        asked = {"content": text, "add_special": False, "parse_special": True}
        tokens = pair.tokenizer.encode(text)
        assert engine.server.post("/tokenize", asked)["tokens"] == tokens, text
        assert pair.tokenizer.decode(tokens) == text


# The questions that this installation gives


@pytest.fixture(scope="module")
def made():
    return make_questions(QUESTIONS_RECIPE, read_sources())


def test_no_training_question_holds_a_measured_paragraph_or_document(made):
    training = [paragraph_key(prompt.text) for prompt in made["training"]]
    assert (
        len(set(training))
        == len({prompt.id for prompt in made["training"]})
        == len(training)
        == 6144
    )
    held_out = [prompt.text for name in ("explain", "summarise") for prompt in made[name]]
    assert len(set(held_out)) == len(held_out) == 384
    inner = [
        text.partition("\n\n")[2].removeprefix("```python\n").removesuffix("\n```")
        for text in held_out
    ]
    hidden = set(chain.from_iterable(map(content_keys, inner)))
    everything = "\n".join(training)
    assert len(hidden) > 600 and not [key for key in hidden if key in everything]
    ids = {prompt.id for name in ("explain", "summarise") for prompt in made[name]}
    assert not ids & {prompt.id for prompt in made["training"]}


def test_no_training_question_holds_anything_of_humaneval(made):
    node = OmegaConf.to_container(OmegaConf.load(CONF / "dataset" / "humaneval.yaml"))
    node.pop("label")
    try:
        problems = build(node).prompts(164)
    except InvalidInput as error:
        pytest.skip(str(error))
    everything = "\n".join(paragraph_key(prompt.text) for prompt in made["training"])
    for problem in problems:
        keys = content_keys(problem.text) | {paragraph_key(problem.text)}
        assert not [key for key in keys if key in everything], problem.id
