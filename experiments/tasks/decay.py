"""Figure 1: acceptance by sibling index, from the laws of the cell's verifier."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator

from experiments.tasks.base import Workload, share
from experiments.tasks.prefix_laws import Prefixes, PrefixRow, SiblingTask, prefix_laws
from resispec.audit.ceiling import ceiling
from resispec.audit.row_checks import CheckedRule
from resispec.distributions import draw
from resispec.draws import Draws


@dataclass(frozen=True)
class DecayRow(PrefixRow):
    """A row of Figure 1; every list has one value for each sibling, in the order of their tests.

    tested[i]: probability that all siblings before i are rejected. selected[i]: probability that
    they are rejected and i is accepted. Both are summed over prefixes and over `num_tuples` drafted
    tuples a prefix. ceiling_tested, ceiling_selected: the same for rules that are the best for
    every number of siblings: 1 - a(i - 1) and a(i) - a(i - 1), where a(i) is the highest acceptance
    of an exact rule with i siblings.
    """

    num_tuples: int
    selected: list[float]
    tested: list[float]
    ceiling_selected: list[float]
    ceiling_tested: list[float]


@dataclass(frozen=True)
class Decay(SiblingTask):
    """Acceptance rates of each of `num_siblings` i.i.d. siblings once all before were rejected."""

    row: ClassVar[type[DecayRow]] = DecayRow

    def measure(
        self, workload: Workload, prefixes: Prefixes, generator: Generator
    ) -> dict[str, Any]:
        """See `SiblingTask`."""
        target, draft = prefix_laws(workload, prefixes)
        rule = CheckedRule.of(workload.decoder.verifier)
        selected = tested = torch.zeros(
            self.num_siblings, dtype=torch.float64, device=target.device
        )
        for p, q in zip(target, draft, strict=True):
            siblings = draw(q, self.num_tuples * self.num_siblings, generator).view(
                self.num_tuples, -1
            )
            shape = (self.num_tuples, len(p))
            select = rule.law(p.expand(shape), q.expand(shape), siblings, Draws.IID).select.double()
            selected = selected + select.sum(0)
            tested = tested + (1 - select.cumsum(-1) + select).clamp_min(0).sum(0)
        counts = range(1, self.num_siblings + 1)
        ceilings = torch.stack([ceiling(target, draft, count, Draws.IID) for count in counts])
        previous = torch.cat((torch.zeros_like(ceilings[:1]), ceilings[:-1]))
        sums = {"selected": selected, "tested": tested}
        sums |= {
            "ceiling_selected": (ceilings - previous).sum(-1),
            "ceiling_tested": (1 - previous).sum(-1),
        }
        return {name: values.tolist() for name, values in sums.items()}

    def progress(self, rows: Sequence[DecayRow]) -> dict[str, str]:
        """Acceptance rates of the first and last sibling; "none" for one that is never tested."""
        rates = [
            share(
                sum(row.selected[place] for row in rows),
                sum(row.tested[place] for row in rows),
                ".2f",
            )
            for place in (0, self.num_siblings - 1)
        ]
        return {"acceptance": " to ".join(rates)}
