"""What the audit says of every planted fault: `make faults`, which writes results/PROFILE/faults.{csv,md}."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from faults import FAULTS, Fault
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from analysis.report import Table, markdown, write
from experiments.audit import settings, texts_of
from experiments.auditing.evidence import Audit, Candidate
from experiments.auditing.processes import audit_all
from experiments.configuration.single import run_single
from experiments.provenance import origin
from resispec.audit.verdict import LEAST_P, LIMIT, TOLERANCE, Finding
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.verifiers import Verifier, as_verifier


@dataclass(frozen=True)
class Planted(Candidate):
    """A fault as a candidate for the audit."""

    def build(self) -> Verifier:
        """Make it."""
        return as_verifier(FAULTS[self.name].make())

    def supported(self) -> tuple[Draws, ...]:
        """Siblings are drawn as they really are; the rule is told what it is told."""
        return (FAULTS[self.name].draws,)


def run_faults(_config: DictConfig) -> None:
    """Audit all faults, print and write the table. Raises InvalidInput when an innocent case is accused."""
    choices = HydraConfig.get().runtime.choices
    configs = settings(HydraConfig.get().overrides.task, choices)
    config = configs[0]
    audits = audit_all([Planted(name, {}) for name in FAULTS], config, texts_of(configs))
    rows = [row_of(FAULTS[found.name], found) for found in audits]
    table = table_of(pd.DataFrame(rows), choices["pair"], origin(torch.device(config["device"])))
    sys.stdout.write(markdown(table) + "\n")
    write(table, Path(config["results"]) / config["profile"], ("csv", "md"))
    accused = [row["fault"] for row in rows if row["total_variation"] == 0 and row["verdict"] == "biased"]
    if accused:
        raise InvalidInput(f"exact, and yet found biased: {', '.join(accused)}")


def row_of(fault: Fault, audit: Audit) -> dict[str, object]:
    """A tidy row: the truth, the verdict, and what of the evidence would have been enough alone."""
    caught = caught_by(audit)
    return {
        "fault": fault.name,
        "where": str(fault.where),
        "total_variation": fault.total_variation,
        "vocab": fault.vocab,
        "verdict": str(audit.judgement.finding),
        "caught_by": "; ".join(f"{what} ({needed})" for what, needed in caught.items()),
        "smallest_seen": audit.evidence.smallest_seen,
    }


def caught_by(audit: Audit) -> dict[str, str]:
    """The kinds of evidence that show a bias, each with how much of it is needed."""
    evidence, found = audit.evidence, {}
    if evidence.enumerated_error is not None and not evidence.enumerated_error <= TOLERANCE:
        found["enumeration"] = f"TV {evidence.enumerated_error:.2g}"
    for name, deviation in evidence.total_variations.items():
        if not deviation.z <= LIMIT:
            found[f"estimate, {name}"] = f"z {deviation.z:.0f}"
    worst = min(evidence.simulations.items(), key=lambda item: item[1].p_value)
    if worst[1].p_value < LEAST_P:
        # A chi-square grows in proportion to the outcomes; LEAST_P is at about 20 more than its degrees.
        share = 1.0 if math.isinf(worst[1].statistic) else 20 / max(20, worst[1].statistic - worst[1].degrees)
        found[f"simulation, {worst[0]}"] = f"{math.ceil(share * worst[1].n)} outcomes"
    for name, score in evidence.z_scores.items():
        if not abs(score.z) <= LIMIT:
            found[f"decoding, {name}"] = f"{math.ceil(score.n * (LIMIT / score.z) ** 2)} tokens"
    return found


def table_of(frame: pd.DataFrame, pair: str, source: str) -> Table:
    """The table."""
    shown = pd.DataFrame(
        {
            "fault": frame.fault,
            "lives in": frame["where"],
            "true TV": [f"{value:.4f}" if value else "0" for value in frame.total_variation],
            "verdict": [f"**{verdict}**" for verdict in frame.verdict],
            "what shows it alone": [text or "–" for text in frame.caught_by],
        }
    )
    biased = frame[frame.total_variation > 0]
    large = biased[biased.total_variation >= 0.02]
    accused = int((frame[frame.total_variation == 0].verdict == Finding.BIASED).sum())
    caught = [int((part.verdict == Finding.BIASED).sum()) for part in (large, biased)]
    notes = (
        f"{source} Made by: make faults, on the pair {pair}. Of {len(large)} faults with a total variation "
        f"of at least .02 {caught[0]} are found biased, of all {len(biased)} {caught[1]}; of "
        f"{len(frame) - len(biased)} exact cases {accused}.",
        "True TV: by enumeration on the laws of tests/faults/truth.py, of faults of the loop by simulation. "
        "Outcomes and tokens: about as many as the statistic needs to reach its limit.",
    )
    return Table("faults", frame, shown, 2, "Planted faults, and what the audit says", notes)


if __name__ == "__main__":
    sys.exit(run_single(run_faults, "audit", {"pair": "pairs"}))
