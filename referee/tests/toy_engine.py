"""An engine of a few lines that continues prompts with a tiny Llama, and can do it wrongly."""

import copy
from functools import cache

import torch

from referee.audit.own_check import draw
from referee.engines import Answer, Engine
from referee.rescoring import Scorer
from referee.transcripts import Transcript
from resispec.sampling import Warp
from tests.toys import tiny_llama

EOS = 0
VOCABULARY = 64
PROMPT = 6


@cache
def target():
    return Scorer(tiny_llama(VOCABULARY, layers=1).module, EOS)


@cache
def draft():
    return Scorer(tiny_llama(VOCABULARY, layers=1, seed=1).module, EOS)


def quantised(steps):
    """The target with its weights rounded to so many steps up to the largest of each row."""
    module = copy.deepcopy(target().module)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.ndim == 2:
                scale = weight.abs().amax(-1, keepdim=True) / steps
                weight.copy_((weight / scale).round() * scale)
    return Scorer(module, EOS)


def drawing(**settings):
    """The law of an engine that applies these settings."""
    return lambda logits, _: Warp(**settings).law(logits)


plain = drawing()


def write(law=plain, seed=0, rows=80, new=40, keep_eos=True, engine=None, **declared):
    """Transcripts of rows that end at the end-of-sequence token or after `new` tokens.

    The prompts are the same for every seed. law: logits (rows, V) and ids so far -> probabilities.
    """
    prompts = torch.randint(
        1, VOCABULARY, (rows, PROMPT), generator=torch.Generator().manual_seed(99)
    )

    def after(logits, emitted):
        return law(logits[0].double(), torch.cat((prompts, emitted), 1))

    generator, found = torch.Generator().manual_seed(seed), []
    answers = draw(after, prompts.tolist(), [engine or target()], new, generator)
    for number, (prompt, (output, reason)) in enumerate(
        zip(prompts.tolist(), answers, strict=True), 1
    ):
        output = output if keep_eos or reason == "length" else output[:-1]
        if output:
            values = {"finish_reason": reason, **declared, "place": f"rows.jsonl, line {number}"}
            found.append(Transcript(tuple(prompt), output, **values))
    return found


def toward_draft(variation):
    """The law p + l (q - p), l such that it lies this total variation from p."""
    module = draft().module

    def law(logits, ids):
        p, q = logits.softmax(-1), module(input_ids=ids).logits[:, -1].double().softmax(-1)
        share = variation / (p - q).clamp_min(0).sum(-1, keepdim=True)
        return p + share.clamp_max(1) * (q - p)

    return law


class ToyEngine(Engine):
    """An engine that continues each prompt by the target, in this thread.

    law: as for `write`, given the prompt that it reads. read: the ids that it reads in place of a
    prompt's, which a fault changes.
    """

    name, version, orders = "toy", "1", ("transformers",)

    def __init__(self, law=plain, read=tuple):
        self.law, self.read = law, read
        self.asked = []

    def answer(self, prompt, settings, seed):
        self.asked.append(tuple(prompt))
        ids = self.read(tuple(prompt))

        def after(logits, _):
            return self.law(logits[0].double(), ids)

        generator = torch.Generator().manual_seed(seed)
        [(tokens, reason)] = draw(after, [ids], [target()], settings.max_new_tokens, generator)
        return Answer(tokens, reason, seed)
