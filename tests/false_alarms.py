"""False alarms on exact verifiers: `make faults` writes results/PROFILE/false_alarms.{csv,md}."""

import sys
from pathlib import Path

import pandas as pd
import torch

from analysis.artefact import listed
from analysis.table import Table, plain, write
from analysis.terminal import printed
from experiments.audit import documents_of, settings
from experiments.auditing import evidence, material
from experiments.auditing.audits import audit_all
from experiments.auditing.evidence import Candidate, JudgedVerifier, candidates
from experiments.cli import Point, run_single
from experiments.provenance import origin
from resispec.audit import simulate
from resispec.audit.battery import shown_bias
from resispec.audit.verdict import Finding
from resispec.verifiers import DrawsKind, Verifier

SEEDS = (1,)
LEVELS = (0.1, 0.01, 0.001)


class MeasuredOnce(Candidate):
    """A verifier with the draws with which it is exact.

    Nothing is measured again, so that every p-value is that of a first measurement.
    """

    def supported(self) -> tuple[DrawsKind, ...]:
        """See `Candidate.supported`; those that enumeration shows to be biased are left out."""
        return tuple(one for one in super().supported() if shown_bias(self.build(), one) is None)

    def build(self) -> Verifier:
        """See `Candidate.build`."""
        for module in (evidence, material, simulate):
            module.remeasured = lambda measure: measure(1)
        return super().build()


def run_false_alarms(point: Point) -> None:
    """Audit the exact verifiers with several seeds, print and write what their p-values are."""
    configs = settings(point.overrides)
    config, documents = configs[0], documents_of(configs)
    exact = [MeasuredOnce(one.name, one.node) for one in candidates(config, None)]
    audits = [
        found for seed in SEEDS for found in audit_all(exact, config | {"seed": seed}, documents)
    ]
    frame = pd.DataFrame([row for audit in audits for row in p_values(audit)])
    table = table_of(frame, audits, origin(torch.device(config["device"])))
    sys.stdout.write(printed(table) + "\n")
    write(table, Path(config["results"]) / config["profile"], ("csv", "md"))


def p_values(audit: JudgedVerifier) -> list[dict[str, object]]:
    """A row for every statistic."""
    found = audit.evidence
    every = [("total variation", one) for one in found.total_variations.values()]
    every += [("acceptance above its ceiling", one) for one in found.excesses.values()]
    for kind, groups in (("decoding", found.z_scores), ("simulation", found.simulations)):
        every += [
            (f"{kind}, {name}", one) for group in groups.values() for name, one in group.items()
        ]
    labels = {"verifier": audit.name, "draws": str(audit.draws)}
    return [labels | {"kind": kind, "p_value": one.p_value} for kind, one in every]


def table_of(frame: pd.DataFrame, audits: list[JudgedVerifier], source: str) -> Table:
    """The table: of every kind of statistic how many p-values lie below what share should.

    Positions of a walk stand together there, and steps before one.
    """
    kinds = frame.kind.replace(
        {r"token \d": "one position", r"\d back": "steps before"}, regex=True
    )
    shown = []
    for kind, part in [*frame.groupby(kinds, sort=False), ("all", frame)]:
        shares = {
            f"p < {level:g}": f"{100 * (part.p_value < level).mean():.2f} %" for level in LEVELS
        }
        row = {"statistic": kind, "number": str(len(part)), **shares}
        shown.append(row | {"least p": f"{part.p_value.min():.1g}"})
    accused = sum(found.judgement.finding is not Finding.NO_BIAS_SEEN for found in audits)
    bound = max(found.evidence.false_alarm_rate for found in audits)
    notes = (
        f"{source} Made by: make faults. {len(audits)} audits of exact verifiers, seeds "
        f"{listed(SEEDS)}; measured once, without the second measurement that suspicious "
        f"statistics get, {accused} are called biased, inconsistent or undecided. With it an "
        f"audit of one kind of draws accuses an exact one with probability below {bound:.0e}, by "
        "a union bound.",
    )
    texts = pd.DataFrame(shown).set_index("statistic")
    return plain(
        "false_alarms", counts_of(frame), "p-values of exact verifiers", notes, shown=texts
    )


def counts_of(frame: pd.DataFrame) -> pd.DataFrame:
    """The number of p-values, in all and below LEVELS, and the least, by verifier, draws, kind."""
    groups = frame.groupby(["verifier", "draws", "kind"], sort=False).p_value
    counts = groups.agg(["size", "min"])
    for level in LEVELS:
        counts[f"below_{level:g}"] = groups.agg(lambda values, level=level: (values < level).sum())
    return counts.rename(columns={"size": "number", "min": "least_p"}).reset_index()


if __name__ == "__main__":
    sys.exit(run_single(run_false_alarms, "audit", ["pair"]))
