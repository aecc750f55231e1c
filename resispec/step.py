"""One decoding step: draft a tree, forward it in the target, verify it, commit what was accepted.

The pieces of a step have fixed shapes and are units, see `resispec.cuda_graphs`. Between them, once
a step, the host reads the verdict and says which rows of the cache to keep.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from resispec.audit.row_checks import check_rows, verifies_otherwise
from resispec.core import Draft, Draws, DrawsKind, Tree, Verdict
from resispec.cuda_graphs import Unit, own_unit, send, upload
from resispec.distributions import summing_to_one
from resispec.drafters import Drafter, DraftModel, Eagle, NoDraft
from resispec.drafters.levels import inner_nodes
from resispec.errors import InvalidInput
from resispec.machine import keep_freed_memory
from resispec.models import Pair, Warp, keeping
from resispec.models.module_state import runs_other_code, settings_in
from resispec.timing import looks_inside, part
from resispec.trees import Topology, kept_with_topology
from resispec.verifiers import Verifier, draw_outcome, read_verdict
from resispec.verifiers.base import (
    check_tensor,
    check_unchanged,
    check_verdict,
    reads_numbers,
    unchanging,
)

UNCAPTURED = torch.device("cpu")
"""A device for which `own_unit` gives functions as they are."""
SUM_TOLERANCE = 1e-2
"""Allowed distance from 1 of the sum of a drafter's law, which may be a softmax in bfloat16."""


@dataclass(frozen=True)
class Step:
    """All that one step decided, for observers of the loop; tensors are valid until the next step.

    target_probs: (N, V) float32 or better, the target's law at every node of `draft.tree`.
    """

    draft: Draft
    target_probs: Tensor
    verdict: Verdict


class Stepper:
    """A stepper decodes prompts one after another, which share its memory and captured graphs.

    warp: turns logits into laws, for both models. capacity: most committed tokens of a sequence.
    """

    def __init__(
        self, drafter: Drafter, verifier: Verifier, pair: Pair, warp: Warp, capacity: int
    ) -> None:
        self._verifier, self._target, self._warp = verifier, pair.target, warp
        self._needs_verify = reads_numbers(verifier) or verifies_otherwise(verifier)
        self._device = device = pair.target.device
        if reading_is_free(device):
            keep_freed_memory()
        self._topology = drafter.topology
        # the laws of our drafters sum to 1; those of others may be a softmax in bfloat16
        self._is_of_ours = type(drafter) in (DraftModel, Eagle, NoDraft)
        self._draws_are_known = self._is_of_ours and drafter.draws in list(Draws)
        # captured units draw from this one, whatever a prompt brings
        self._generator = Generator(device)
        self._session = pair.target.session(capacity, drafted=self._topology.num_nodes)
        self._drafts = drafter.session(pair, warp.for_draft, capacity)
        module = pair.modules()[0]
        # a graph would repeat what a hook did when it was captured
        is_fixed = module is None or not runs_other_code(module)
        self._read = own_unit(self._laws, device if is_fixed else UNCAPTURED)
        # by the draws, for trees of the drafter's own shape
        self._decide: dict[DrawsKind, Unit] = {}
        self._keep = keeping(self._session, device)

    def begin(self, prompt: list[int], generator: Generator) -> None:
        """Read a prompt; the steps' draws start at the present state of `generator`."""
        self._generator.set_state(generator.get_state())
        self._session.clear()
        features = self._session.extend(upload(prompt[:-1], self._device)) if prompt[:-1] else None
        self._drafts.prefill(prompt, features)
        self._root = prompt[-1]
        self._is_first, self._has_seen_laws = True, False

    def end(self, generator: Generator) -> None:
        """Set `generator` to the state after the draws of all steps."""
        generator.set_state(self._generator.get_state())

    def step(self, is_checked: bool = False) -> Step:
        """Draft a tree, forward it, verify it and commit what was accepted.

        is_checked: whether to look at the drafter's laws in every step, not only in a prompt's
        first, and to raise InvalidInput if the verifier or the drafter changed its inputs. This
        takes time.

        Raises FloatingPointError when a law is invalid; InvalidInput for a verdict as
        `check_verdict`, when the drafter's laws are none or its tree begins elsewhere, and for
        siblings that `Tree.check_siblings` refuses.
        """
        with part("draft"):
            draft = self._drafts.draft(self._root, self._generator)
        if is_checked or self._is_first or reading_is_free(self._device):
            self._check_root(draft.tree)
            if not self._draws_are_known:
                draft.tree.check_siblings()
            self._is_first = False
        with part("target"):
            places = _placed(draft.tree.topology, self._device)
            features, target_probs = self._read(None, draft.tree.tokens, *places)
        if is_checked or not self._has_seen_laws:
            self._check_laws(draft, target_probs)
        if not self._is_of_ours:
            draft = replace(draft, probs=summing_to_one(draft.probs))
        given = draft.tree, target_probs, draft.probs
        with unchanging(self._verifier, *given) if is_checked else nullcontext(), part("verify"):
            verdict = self._verdict(draft, target_probs)
        copy = target_probs.clone() if is_checked else target_probs
        with part("commit"):
            self._keep((0, *verdict.path))
            self._drafts.commit(verdict, features, target_probs)
            self._root = verdict.tokens[-1]
        if is_checked:
            check_unchanged("the drafter", {"target_probs": copy}, {"target_probs": target_probs})
        return Step(draft, target_probs, verdict)

    def _laws(
        self, _: None, tokens: Tensor, depths: Tensor, visible: Tensor
    ) -> tuple[Tensor, Tensor]:
        features = self._session.forward(tokens, depths, visible)
        return features, self._warp.law(self._target.head(features))

    def _verdict(self, draft: Draft, target_probs: Tensor) -> Verdict:
        tree, generator = draft.tree, self._generator
        if reading_is_free(self._device) or self._needs_verify:
            verdict = self._verifier.verify(tree, target_probs, draft.probs, generator)
            check_verdict(self._verifier, verdict, tree, target_probs.shape[-1])
            return verdict
        if tree.topology != self._topology or looks_inside():
            # Not captured: the tree's shape changes every step, or parts inside are timed one by
            # one.
            outcome = draw_outcome(self._verifier, tree, target_probs, draft.probs, generator)
        else:
            draws, inputs = tree.draws, (tree.tokens, target_probs, draft.probs)
            if draws in self._decide:
                (outcome,) = self._decide[draws](generator, *inputs)
            else:
                before = settings_in(self._verifier)
                (outcome,) = self._decided(draws, generator, *inputs)
                is_fixed = settings_in(self._verifier) == before
                # a graph would repeat the state that a verifier had when it was captured
                unit = own_unit(self._decided, self._device if is_fixed else UNCAPTURED, draws)
                self._decide[draws] = unit
        return read_verdict(outcome.tolist(), tree.topology, target_probs.dtype)

    def _check_root(self, tree: Tree) -> None:
        """Raise InvalidInput unless a tree begins at the last committed token.

        The target gives the features and the law of that token next.
        """
        if (found := int(tree.tokens[0])) != self._root:
            raise InvalidInput(
                f"the drafter's tree has token {found} at its root; allowed: {self._root}, the "
                "last committed token"
            )

    def _check_laws(self, draft: Draft, target_probs: Tensor) -> None:
        """Raise InvalidInput unless every law (V,) of a node with children is a probability law.

        NaN is left to the drafter and to the verifier. This waits for the device.
        """
        laws = draft.probs[inner_nodes(draft.tree.topology, draft.probs.device)]
        self._has_seen_laws = len(laws) > 0
        if self._has_seen_laws:
            shape = torch.Size((len(laws), target_probs.shape[-1]))
            check_tensor("the drafter's laws are", laws, shape, laws.dtype)
            is_off = (laws.amin(-1) < 0) | ((laws.sum(-1) - 1).abs() > SUM_TOLERANCE)
            for law in laws[is_off]:
                check_rows("the drafter's laws", law, SUM_TOLERANCE)

    def _decided(
        self,
        draws: DrawsKind,
        generator: Generator,
        tokens: Tensor,
        target_probs: Tensor,
        draft_probs: Tensor,
    ) -> tuple[Tensor]:
        tree = Tree(self._topology, tokens, draws)
        return (draw_outcome(self._verifier, tree, target_probs, draft_probs, generator),)


def reading_is_free(device: torch.device) -> bool:
    """Whether the host can look at a number on this device without waiting for anything."""
    return device.type == "cpu"


@kept_with_topology
def _placed(topology: Topology, device: torch.device) -> tuple[Tensor, Tensor]:
    """Depths (N,) of a topology's nodes and the mask (N, N) bool of what each sees, on a device."""
    return send(topology.depths, device), send(topology.ancestors, device)
