"""An engine of a few lines that continues prompts with a tiny Llama, and can be made to do it wrongly."""

import copy
from functools import cache

import torch
from toys import tiny_llama

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


def own(shape, generator):
    """Random numbers of each row's own."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)


@torch.no_grad()
def ids_of(law, seed, rows, new, uniforms=own, engine=None):
    """Prompts, the same for every seed, and what follows them: (rows, PROMPT + new) token ids.

    law: logits (rows, V) and ids so far -> probabilities. uniforms: a shape and a generator -> numbers.
    """
    prompts = torch.randint(1, VOCABULARY, (rows, PROMPT), generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    module, ids, fresh, cached = (engine or target()).module, prompts, prompts, None
    for _ in range(new):
        output = module(input_ids=fresh, past_key_values=cached, use_cache=True)
        cached = output.past_key_values
        edges = law(output.logits[:, -1].double(), ids).cumsum(-1)
        shares = uniforms((rows, 1), generator) * edges[:, -1:]
        fresh = torch.searchsorted(edges, shares, right=True).clamp_max(VOCABULARY - 1)
        ids = torch.cat((ids, fresh), 1)
    return ids


def write(law=plain, seed=0, rows=80, new=40, keep_eos=True, uniforms=own, engine=None, **declared):
    """Transcripts of rows that end at the end-of-sequence token or after `new` tokens."""
    found = []
    for number, row in enumerate(ids_of(law, seed, rows, new, uniforms, engine).tolist()):
        output = row[PROMPT:]
        reason = "length"
        if EOS in output:
            output, reason = output[: output.index(EOS) + keep_eos], "stop"
        if output:
            values = {"finish_reason": reason, **declared, "place": f"rows.jsonl, line {number + 1}"}
            found.append(Transcript(tuple(row[:PROMPT]), tuple(output), **values))
    return found


def cut(count):
    """The law of the most probable tokens alone."""

    def law(logits, _):
        return torch.where(logits >= logits.topk(count).values[:, -1:], logits, -torch.inf).softmax(-1)

    return law


def toward_draft(variation):
    """The law p + l (q - p), l such that it lies this total variation from p."""

    def law(logits, ids):
        p, q = logits.softmax(-1), draft().module(input_ids=ids).logits[:, -1].double().softmax(-1)
        share = variation / (p - q).clamp_min(0).sum(-1, keepdim=True)
        return p + share.clamp_max(1) * (q - p)

    return law


def shared(shape, generator):
    """One random number for all rows."""
    return torch.rand(1, 1, generator=generator, dtype=torch.float64).expand(shape)
