"""Configurations that decode: draws, verifier and the tree's shape. It imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resispec.trees import Topology, from_child_counts, root_only

if TYPE_CHECKING:
    from resispec.decode import Decoder


@dataclass(frozen=True)
class Configuration:
    """Draws and verifier by name, and a topology; a root alone does not speculate."""

    draws: str
    verifier: str
    topology: Topology

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Configuration:
        """The configuration that `facts` describes.

        Raises InvalidInput for child counts that are no tree, LookupError for what is missing.
        """
        counts = facts["child_counts"]
        topology = from_child_counts(counts) if counts else root_only()
        return cls(str(facts["draws"]), str(facts["verifier"]), topology)

    @property
    def facts(self) -> dict[str, Any]:
        """Values that JSON can hold, for `of`; the last level has no children and is left out."""
        children = self.topology.children
        counts = [[len(children[node]) for node in level] for level in self.topology.levels[:-1]]
        return {"draws": self.draws, "verifier": self.verifier, "child_counts": counts}

    @property
    def decoder(self) -> Decoder:
        """A new decoder with the draft model. Reuse it: it keeps CUDA graphs and caches.

        Raises InvalidInput for names that are not known.
        """
        from resispec.decode import Decoder
        from resispec.drafters import DraftModel
        from resispec.draws import Draws
        from resispec.verifiers import get_verifier

        return Decoder(DraftModel(self.topology, Draws(self.draws)), get_verifier(self.verifier))


ONE_TOKEN = Configuration("iid", "standard", root_only())
"""One token of the target a step: no speculation."""

METHODS = {
    "iid": ("standard", "optimal", "traversal_optimal", "level_optimal"),
    "without_replacement": ("standard", "traversal"),
    "point_mass": ("naive",),
}
"""Exact verifiers that are timed and compared on trees, by the draws."""
ON_CHAINS = ("block", "standard")
"""Verifiers on chains, whose draws are independent: a node has one child only."""
