"""An engine of a few lines that continues prompts with a tiny Llama, and can be made to do it wrongly."""

import copy
from functools import cache

import torch
from toys import tiny_llama

from referee.audit.own_check import draw
from referee.rescoring import Scorer
from referee.transcripts import Transcript

EOS = 0
VOCABULARY = 64
PROMPT = 6


@cache
def target() -> Scorer:
    return Scorer(tiny_llama(VOCABULARY, layers=1).module, EOS)


@cache
def draft() -> Scorer:
    return Scorer(tiny_llama(VOCABULARY, layers=1, seed=1).module, EOS)


def quantised(steps: float) -> Scorer:
    """The target with its weights rounded to so many steps up to the largest of each row."""
    module = copy.deepcopy(target().module)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.ndim == 2:
                scale = weight.abs().amax(-1, keepdim=True) / steps
                weight.copy_((weight / scale).round() * scale)
    return Scorer(module, EOS)


def plain(logits, ids):
    return logits.softmax(-1)


def hot(temperature):
    return lambda logits, _: (logits / temperature).softmax(-1)


def write(law=plain, seed=0, rows=80, new=40, keep_eos=True, engine=None, **declared):
    """Transcripts of rows that end at the end-of-sequence token or after `new` tokens.

    The prompts are the same for every seed. law: logits (rows, V) and ids so far -> probabilities.
    """
    prompts = torch.randint(1, VOCABULARY, (rows, PROMPT), generator=torch.Generator().manual_seed(99))

    def after(logits, emitted):
        return law(logits[0].double(), torch.cat((prompts, emitted), 1))

    generator, found = torch.Generator().manual_seed(seed), []
    answers = draw(after, prompts.tolist(), [engine or target()], new, generator)
    for number, (prompt, (output, reason)) in enumerate(zip(prompts.tolist(), answers, strict=True), 1):
        output = output if keep_eos or reason == "length" else output[:-1]
        if output:
            values = {"finish_reason": reason, **declared, "place": f"rows.jsonl, line {number}"}
            found.append(Transcript(tuple(prompt), output, **values))
    return found


def cut(count):
    """The law of the most probable tokens alone."""

    def law(logits, _):
        return torch.where(logits >= logits.topk(count).values[:, -1:], logits, -torch.inf).softmax(-1)

    return law


def toward_draft(variation):
    """The law p + l (q - p), l such that it lies this total variation from p."""
    module = draft().module

    def law(logits, ids):
        p, q = logits.softmax(-1), module(input_ids=ids).logits[:, -1].double().softmax(-1)
        share = variation / (p - q).clamp_min(0).sum(-1, keepdim=True)
        return p + share.clamp_max(1) * (q - p)

    return law
