"""A right verifier that works with wrong laws."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from faults.parts import Fault, Where, WrongInputs, argmax, taking, tempered
from resispec.trees import chain, complete
from resispec.verifiers import SiblingRule, Standard, TopDown


@dataclass(frozen=True)
class Stale(TopDown):
    """The target's laws are those of the previous tree: a buffer per shape that is filled too late.

    The first tree of a shape is verified with its own laws.
    """

    rule: SiblingRule = field(default_factory=Standard)
    buffers: dict[torch.Size, Tensor] = field(default_factory=dict)

    def verify(self, tree, target_probs, draft_probs, generator):
        used = self.buffers.get(target_probs.shape, target_probs)
        self.buffers[target_probs.shape] = target_probs
        return super().verify(tree, used, draft_probs, generator)


class RowsOffByOne(WrongInputs):
    """Every node is given the target's law of the node before it, in `outcomes`, too.

    TensorRT-LLM (pull request 15098) took a wrong slice of the target's logits.
    """

    outcomes = WrongInputs.true_outcomes


FAULTS = [
    # Every node but the root is verified with the draft's law of the node before it.
    taking(
        "draft's rows off by one",
        0.0612,
        lambda _, p, q: (p, torch.cat((q[:1], q[:-1]))),
        vocab=4,
        topology=chain(2),
    ),
    # Only the likeliest token is accepted or emitted although T > 0. SGLang (issues 31214 and 39253); users
    # saw repetitions.
    taking("verification greedy", 0.5929, lambda _, p, q: (argmax(p), q), topology=complete(2, 2)),
    Fault("laws of the previous tree", Stale, Where.LOOP, 0.252, vocab=3, topology=chain(1)),
    Fault(
        "target's rows off by one",
        lambda: RowsOffByOne(wrong=lambda _, p, q: (p.roll(1, 0), q)),
        Where.LAW,
        0.2543,
        vocab=4,
        topology=chain(2),
    ),
    # T = .7 is given to the target, and the verifier works with T = 1. In vLLM (issues 9834 and 10198)
    # sampling parameters were not applied to the target's law when it was verified.
    taking(
        "temperature forgotten", 0.0937, lambda _, p, q: (tempered(p, 1 / 0.7), q), topology=complete(2, 2)
    ),
]
