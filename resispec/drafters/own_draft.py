"""A pair's own draft, of either kind, fills a fixed topology."""

from dataclasses import dataclass

from resispec.core import Draws
from resispec.drafters.base import Drafter, DraftSession
from resispec.drafters.draft_model import DraftModel
from resispec.drafters.eagle import Eagle
from resispec.drafters.eagle_trees import Reading
from resispec.errors import InvalidInput
from resispec.models import EagleModel, Pair, Warp
from resispec.trees import Topology

READINGS = {reading.draws: reading for reading in Reading if reading is not Reading.SOFTMAX}
"""The reading for each kind of draws that an EAGLE drafter has."""


@dataclass(frozen=True)
class OwnDraft:
    """Drafts as `DraftModel` if the pair has a draft model, and as `Eagle` if the pair has an EAGLE drafter.

    topology: the fixed shape of the tree. draws: how siblings are drawn, by name or as an object. recycled:
    as for `DraftModel`.
    """

    topology: Topology
    draws: Draws = Draws.IID
    recycled: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", Draws(self.draws))

    def drafter(self, pair: Pair) -> Drafter:
        """The drafter of the pair's kind. Raises InvalidInput for draws that an EAGLE drafter lacks."""
        if not isinstance(pair.draft, EagleModel):
            return DraftModel(self.topology, self.draws, recycled=self.recycled)
        if self.draws not in READINGS:
            raise InvalidInput(f"an EAGLE drafter has no draws {self.draws}; allowed: {', '.join(READINGS)}")
        return Eagle(self.topology, READINGS[self.draws], self.recycled)

    def session(self, pair: Pair, warp: Warp, capacity: int) -> DraftSession:
        """See `Drafter.session`. Raises as `drafter`, and as the session of the drafter that it returns."""
        return self.drafter(pair).session(pair, warp, capacity)
