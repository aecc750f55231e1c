"""Table 4: the paper's KL beside the audited deviation of the law that a cell's verifier emits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Generator

from experiments.tasks.base import Workload, share
from experiments.tasks.prefix_laws import Prefixes, PrefixRow, SiblingTask, prefix_laws
from resispec.audit.estimate import Tuples, estimate
from resispec.audit.paper_kl import draft_proxy, kl_bound, paper_kl, random_proxy, resispec_proxy
from resispec.audit.row_checks import CheckedRule
from resispec.draws import Draws

PROXIES = {
    "paper_kl_resispec": resispec_proxy,
    "paper_kl_standard": draft_proxy,
    "paper_kl_random": random_proxy,
}


@dataclass(frozen=True)
class KlRow(PrefixRow):
    """A row of Table 4; every list has one value for each prefix; divergences are in nats.

    paper_kl_*: the paper's D_KL(p_hat || p) in float32 if the proxy is ResiSpec's, q or a random
    law; it has the sign that rounding leaves. total_variation: that of the emitted law, on a set of
    tokens that other tuples chose, with its standard error; its mean is 0 for an exact rule, else
    at most the true value, which it approaches as `num_tuples` grows. kl_plug_in: D_KL of the
    emitted law after merging tokens into two sets, a lower bound; kl_at_least: the same, with
    masses moved two standard errors toward the target.
    """

    num_tuples: int
    paper_kl_resispec: list[float]
    paper_kl_standard: list[float]
    paper_kl_random: list[float]
    total_variation: list[float]
    total_variation_error: list[float]
    kl_plug_in: list[float]
    kl_at_least: list[float]


@dataclass(frozen=True)
class Kl(SiblingTask):
    """The paper's KL and the audited law at one node with `num_siblings` i.i.d. siblings."""

    row: ClassVar[type[KlRow]] = KlRow

    def measure(
        self, workload: Workload, prefixes: Prefixes, generator: Generator
    ) -> dict[str, Any]:
        """See `SiblingTask`."""
        # The paper's figure is the rounding of this precision.
        target, draft = (laws.float() for laws in prefix_laws(workload, prefixes))
        fields: dict[str, Any] = {
            name: paper_kl(target, draft, proxy, self.num_siblings, generator).tolist()
            for name, proxy in PROXIES.items()
        }
        rule = CheckedRule.of(workload.decoder.verifier)
        tuples = Tuples(self.num_siblings, Draws.IID, self.num_tuples)
        laws = [estimate(rule, p, q, tuples, generator) for p, q in zip(target, draft, strict=True)]
        fields["total_variation"] = [law.total_variation.value for law in laws]
        fields["total_variation_error"] = [law.total_variation.error for law in laws]
        fields["kl_at_least"] = [kl_bound(law, num_errors=2) for law in laws]
        fields["kl_plug_in"] = [kl_bound(law) for law in laws]
        return fields

    def progress(self, rows: Sequence[KlRow]) -> dict[str, str]:
        """The audited total variation, the mean over all prefixes."""
        values = [value for row in rows for value in row.total_variation]
        return {"total_variation": share(sum(values), len(values), ".4f")}
