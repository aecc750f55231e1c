"""Wrong laws of the bonus token, the one behind a leaf."""

import torch

from faults.parts import argmax, only_top, taking, tempered
from resispec.trees import chain


def bonus(name, total_variation, change, vocab=6):
    """A fault that changes the target's laws (K, V) at leaves; nothing else depends on these laws."""

    def wrong(tree, target_probs, draft_probs):
        is_leaf = torch.tensor([not children for children in tree.topology.children])
        return torch.where(is_leaf[:, None], change(target_probs), target_probs), draft_probs

    return taking(name, total_variation, wrong, vocab=vocab, topology=chain(1))


def summed_in_bfloat16(laws):
    """Laws whose cumulative sums, which a draw inverts, are rounded: small masses vanish."""
    sums = laws.cumsum(-1).to(torch.bfloat16).to(laws.dtype)
    return torch.diff(sums, prepend=torch.zeros_like(sums[..., :1])) / sums[..., -1:]


FAULTS = [
    # TensorRT-LLM (pull request 15098) read a wrong slice of the logits in dynamic trees; smoke tests passed.
    bonus("bonus token from the root's law", 0.2293, lambda laws: laws[:1]),
    bonus("bonus token greedy", 0.3677, argmax),
    bonus("bonus token by a sum in bfloat16", 0.0566, summed_in_bfloat16, vocab=200),
    bonus("bonus token at T = .8", 0.0789, lambda laws: tempered(laws, 0.8), vocab=100),
    bonus("bonus token at T = .9", 0.0358, lambda laws: tempered(laws, 0.9), vocab=100),
    # A default of top_k = 50, as transformers' `generate` has it, applied in one place only; no vocabulary of
    # up to 50 tokens shows it.
    bonus("bonus token cut to its top 50", 0.1302, lambda laws: only_top(laws, 50), vocab=200),
]
