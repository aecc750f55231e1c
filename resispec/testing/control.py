"""The negative control: what a sampler emits that is known to be biased, for the test to find."""

from __future__ import annotations

import torch
from torch import Tensor

from resispec.audit.enumerate import total_variation
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.testing.stage import NONE, Stage


def emitted_blindly(stage: Stage, root: Tensor, share: float) -> Tensor:
    """(C, P) tokens, NONE behind the last: draws from the target, and then looks whether that was drafted.

    That is exact for every kind of draws. But with probability `share` a drafted token, of siblings the
    first, is accepted blindly, unless the target rules it out: one such token gives a sampler away, however
    few are counted.
    """
    drafted = stage.drafted(root, stage.choose)
    rows = stage.rows(root, drafted)
    drawn = [stage.draw(stage.target, row, Draws.IID, 1) for row in rows.unbind(1)]
    emitted, drafted = torch.cat(drawn, 1), drafted[:, : stage.length or 1]
    head, count = emitted[:, : drafted.shape[1]], emitted.shape[1] - 1
    is_blind = torch.rand(head.shape, generator=stage.generator) < share
    is_allowed = stage.target[rows[:, : head.shape[1]], drafted] > 0
    head[:] = torch.where(is_blind & is_allowed, drafted, head)
    goes_on = (head == drafted).cumprod(1).bool()
    emitted[:, 1:][~goes_on[:, :count]] = NONE
    return emitted


def share_for(stage: Stage, bias: float) -> float:
    """How often the control accepts blindly so that its mean total variation is `bias`; at most always.

    It is the mean of positions at which something is drafted. Raises InvalidInput where accepting everything
    is no bias at all.
    """
    rows = slice(stage.length or 1) if stage.by_position else slice(None)
    target, draft = stage.target[rows].double(), stage.draft[rows]
    siblings = stage.draws.draw(draft, stage.siblings or 1, stage.generator)
    drafted = next(stage.draws.laws(draft, siblings)).double()
    is_ruled_out = (drafted * (target == 0)).sum(-1, keepdim=True)
    always = torch.where(target > 0, drafted, 0.0) + is_ruled_out * target
    distance = total_variation(always, target) / len(target)
    if distance < 1e-6:
        raise InvalidInput(
            "no token that the target allows is drafted too often, so the negative control has no bias; "
            "give other laws, or bias=0 for no control"
        )
    return min(1.0, bias / distance)
