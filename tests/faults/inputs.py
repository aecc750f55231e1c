"""Right rules that work with wrong laws: of the bonus token behind a leaf, or of all nodes."""

import torch

from resispec.trees import chain, complete
from tests.faults.parts import Fault, Where, WrongInputs, argmax, only_top, remembering, tempered


def taking(name, total_variation, wrong, **options):
    """A fault of the laws (N, V) that `verify` takes for p and q: `wrong(tree, p, q)`."""
    return Fault(name, lambda: WrongInputs(wrong=wrong), Where.VERIFY, total_variation, **options)


def bonus(name, total_variation, change, vocab=6):
    """A fault that changes the target's laws (K, V) at leaves; nothing else depends on them."""

    def wrong(tree, target_probs, draft_probs):
        is_leaf = torch.tensor([not children for children in tree.topology.children])
        return torch.where(is_leaf[:, None], change(target_probs), target_probs), draft_probs

    return taking(name, total_variation, wrong, vocab=vocab, topology=chain(1))


def summed_in_bfloat16(laws):
    """Laws whose cumulative sums, which a draw inverts, are rounded: small masses vanish."""
    sums = laws.cumsum(-1).to(torch.bfloat16).to(laws.dtype)
    return torch.diff(sums, prepend=torch.zeros_like(sums[..., :1])) / sums[..., -1:]


class RowsOffByOne(WrongInputs):
    """Every node is given the target's law of the node before it, in `outcomes`, too.

    TensorRT-LLM (pull request 15098) took a wrong slice of the target's logits.
    """

    outcomes = WrongInputs.true_outcomes


def stale(memory, verify, tree, target_probs, *given):
    """The target's laws are those of the previous tree: a buffer per shape that is filled too late.

    The first tree of a shape is verified with its own laws.
    """
    used = memory.get(target_probs.shape, target_probs)
    memory[target_probs.shape] = target_probs
    return verify(tree, used, *given)


ON_A_CHAIN = {"vocab": 4, "topology": chain(2)}
FAULTS = [
    # TensorRT-LLM (pull request 15098) read a wrong slice of the logits in dynamic trees; smoke
    # tests passed.
    bonus("bonus token from the root's law", 0.2293, lambda laws: laws[:1]),
    bonus("bonus token greedy", 0.3677, argmax),
    bonus("bonus token by a sum in bfloat16", 0.0566, summed_in_bfloat16, vocab=200),
    bonus("bonus token at T = .8", 0.0789, lambda laws: tempered(laws, 0.8), vocab=100),
    bonus("bonus token at T = .9", 0.0358, lambda laws: tempered(laws, 0.9), vocab=100),
    # A default of top_k = 50, as transformers' `generate` has it, applied in one place only; no
    # vocabulary of up to 50 tokens shows it.
    bonus("bonus token cut to its top 50", 0.1302, lambda laws: only_top(laws, 50), vocab=200),
    # Every node but the root is verified with the draft's law of the node before it.
    taking(
        "draft's rows off by one",
        0.0612,
        lambda _, p, q: (p, torch.cat((q[:1], q[:-1]))),
        **ON_A_CHAIN,
    ),
    # Only the likeliest token is accepted or emitted although T > 0. SGLang (issues 31214 and
    # 39253); users saw repetitions.
    taking("verification greedy", 0.5929, lambda _, p, q: (argmax(p), q), topology=complete(2, 2)),
    remembering("laws of the previous tree", 0.252, stale),
    Fault(
        "target's rows off by one",
        lambda: RowsOffByOne(wrong=lambda _, p, q: (p.roll(1, 0), q)),
        Where.LAW,
        0.2543,
        **ON_A_CHAIN,
    ),
    # T = .7 is given to the target, and the verifier works with T = 1. In vLLM (issues 9834 and
    # 10198) sampling parameters were not applied to the target's law when it was verified.
    taking(
        "temperature forgotten",
        0.0937,
        lambda _, p, q: (tempered(p, 1 / 0.7), q),
        topology=complete(2, 2),
    ),
]
