"""Acceptance rates of a node's first, second, ... child, which searches for trees need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from experiments.tasks.base import Task, Workload, identity, share
from experiments.tasks.prefix_laws import PrefixRow, written
from experiments.tasks.sampled_trees import drafter_of_own_laws
from resispec.audit.row_checks import CheckedRule
from resispec.cuda_graphs import upload
from resispec.decode import Decoder
from resispec.draws import Draws, DrawsKind
from resispec.errors import InvalidInput
from resispec.models import EagleModel, Pair, features_of

BLOCK = 32  # positions whose laws are in memory at once


@dataclass(frozen=True)
class AcceptanceRow(PrefixRow):
    """The probability that a child is accepted, by place in draw order, summed over prefixes.

    Every position of the target's text ends a prefix. The sum of `selected` is the expected number
    of prefixes at which a child is accepted; at the others none is.
    """

    selected: list[float]


@dataclass(frozen=True)
class Acceptance(Task):
    """Acceptance by place in draw order under a star of `num_siblings` children.

    Source: Sequoia (arXiv 2402.12374), section 3.1.

    The target writes a continuation of every prompt, and the cell's verifier meets fresh children
    at each of its positions. Its law gives the probability of accepting each of them, so no
    acceptance is drawn.
    """

    row: ClassVar[type[AcceptanceRow]] = AcceptanceRow
    num_siblings: int
    draws: DrawsKind

    def check(self, decoder: Decoder) -> None:
        """See `Task`; of the decoder only the verifier is used, so the drafter must draw alike."""
        drafter = drafter_of_own_laws(decoder, "acceptance is measured")
        draws = Draws(self.draws)
        if drafter.draws != draws:
            raise InvalidInput(
                f"acceptance is measured with draws {draws}, and the decoder's are "
                f"{drafter.draws}; allowed: task.draws={drafter.draws}, or another decoder"
            )
        super().check(decoder)

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> AcceptanceRow:
        """See `Task`."""
        generator = workload.generator(index)
        draws = Draws(self.draws)
        prompt = workload.prompts[index][1]
        tokens = written(workload, index, generator)
        rule = CheckedRule.of(workload.decoder.verifier)
        pair, warp = workload.pair, workload.sampling.warp
        sequence = [*prompt, *tokens[:-1]]
        features = features_of(pair.target, sequence, len(prompt))
        drafted, head = _draft_features(pair, sequence, features, len(prompt))
        sums = torch.zeros(self.num_siblings, dtype=torch.float64)
        for rows in zip(
            *(rows[-len(tokens) :].split(BLOCK) for rows in (features, drafted)), strict=True
        ):
            target_probs = warp.law(pair.target.head(rows[0]))
            draft_probs = warp.for_draft.law(head(rows[1]))
            siblings = draws.draw(draft_probs, self.num_siblings, generator)
            sums += (
                rule.law(target_probs, draft_probs, siblings, draws).select.double().sum(0).cpu()
            )
        return AcceptanceRow(
            **identity(workload, index), num_prefixes=len(tokens), selected=sums.tolist()
        )

    def progress(self, rows: Sequence[AcceptanceRow]) -> dict[str, str]:
        """The acceptance of the first child."""
        first = sum(row.selected[0] for row in rows)
        prefixes = sum(row.num_prefixes for row in rows)
        return {"first": share(first, prefixes, ".3f")}


def _draft_features(
    pair: Pair, tokens: list[int], features: Tensor, prompt_length: int
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The draft's features after K tokens, an EAGLE drafter's but the first, and the head for them.

    features: (K, H), those of the target. prompt_length: see `features_of`.
    """
    if isinstance(pair.draft, EagleModel):
        session, inputs = pair.draft.session(len(tokens)), upload(tokens[1:], pair.draft.device)
        return session.extend(inputs, features[:-1]), pair.eagle_head()
    draft = pair.draft_model()
    return features_of(draft, tokens, prompt_length), draft.head
