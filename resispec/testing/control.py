"""The negative control: a sampler that is known to be biased, for the test to find."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

import torch
from torch import Generator, Tensor

from resispec.audit.enumerate import total_variation
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.testing.stage import NONE, Stage, Step


@dataclass(frozen=True)
class Biased:
    """Draws from the target and looks whether that was drafted, but accepts blindly with probability `share`.

    Tokens that the target rules out are never accepted: one of them gives a sampler away, however few tokens
    are counted. Without blind acceptance it is exact for every kind of draws; so its total variation is
    `share` times what `distance` says.
    """

    stage: Stage
    share: float
    ours: Generator

    def play(self, root: Tensor) -> Step:
        """See `Player.play`."""
        stage, laws = self.stage, self.stage.laws
        drafted = stage.drafted(root, stage.draw(self.ours))
        emitted = torch.full((len(root), stage.num_positions), NONE)
        goes_on, previous = torch.ones_like(root, dtype=torch.bool), root
        for position in range(stage.num_positions):
            place = laws.place(position, previous)
            token = laws.draw(laws.target, place, Draws.IID, 1, self.ours)[:, 0]
            if position < stage.num_drafted:
                previous = drafted[:, position]
                is_allowed = laws.target[place.row, laws.columns(place, previous)] > 0
                is_blind = torch.rand(len(root), generator=self.ours) < self.share
                token = torch.where(is_blind & is_allowed, previous, token)
            emitted[goes_on, position] = token[goes_on]
            goes_on = goes_on & (token == previous)
        return Step(drafted, emitted)


def share_of(stage: Stage, bias: float, generator: Generator) -> float:
    """How often the control accepts blindly so that its mean total variation is `bias`; at most always."""
    rows = zip(stage.laws.target.double(), stage.laws.draft.double(), strict=True)
    count = stage.siblings or 1
    return share_for(bias, mean(distance(p, q, stage.draws, count, generator) for p, q in rows))


def share_for(bias: float, distance: float) -> float:
    """The share of what is at a distance that is as far away as `bias`; at most all of it.

    Raises InvalidInput where the distance is 0, so that there is no control of this kind.
    """
    if distance < 1e-6:
        raise InvalidInput(
            "no token that the target allows is drafted too often, so the negative control has no bias; "
            "give other laws, or negative_control=False"
        )
    return min(1.0, bias / distance)


def distance(p: Tensor, q: Tensor, draws: Draws, count: int, generator: Generator) -> float:
    """Total variation to the target's law if the first of `count` siblings is emitted where p allows it.

    p, q: (V,).
    """
    drafted = next(iter(draws.laws(q, draws.draw(q, count, generator))))
    is_allowed = p > 0
    return total_variation(drafted * is_allowed + drafted[~is_allowed].sum() * p, p)
