"""The audit's verdicts on planted faults: `make faults` writes results/PROFILE/faults.{csv,md}."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from analysis.table import Table, plain, write
from analysis.terminal import printed
from experiments.audit import documents_of, settings
from experiments.auditing.audits import audit_all
from experiments.auditing.evidence import Candidate, JudgedVerifier
from experiments.cli import Point, run_single
from experiments.provenance import origin
from resispec.audit.verdict import LEAST_P, LIMIT, TOLERANCE, Evidence, Finding
from resispec.draws import DrawsKind
from resispec.errors import InvalidInput
from resispec.verifiers import Verifier, as_verifier
from tests.faults import FAULTS, Fault


@dataclass(frozen=True)
class Planted(Candidate):
    """A fault as a candidate for the audit."""

    def build(self) -> Verifier:
        """Make it."""
        return as_verifier(FAULTS[self.name].make())

    def supported(self) -> tuple[DrawsKind, ...]:
        """Siblings are drawn as they really are; the rule is told what it is told."""
        return (FAULTS[self.name].draws,)


def run_faults(point: Point) -> None:
    """Audit all faults, print and write the table.

    Raises InvalidInput when an innocent case is accused.
    """
    configs = settings(point.overrides)
    config, pair = configs[0], point.choices["pair"]
    audits = audit_all([Planted(name, {}) for name in FAULTS], config, documents_of(configs))
    rows = [row_of(FAULTS[found.name], found) for found in audits]
    table = table_of(pd.DataFrame(rows), pair, origin(torch.device(config["device"])))
    sys.stdout.write(printed(table) + "\n")
    write(table, Path(config["results"]) / config["profile"], ("csv", "md"))
    accused = [
        row["fault"]
        for row in rows
        if not row["total_variation"] and row["verdict"] == Finding.BIASED
    ]
    if accused:
        raise InvalidInput(f"exact, and yet found biased: {', '.join(accused)}")


def row_of(fault: Fault, audit: JudgedVerifier) -> dict[str, object]:
    """A tidy row: the truth, the verdict, and what of the evidence would have been enough alone."""
    return {
        "fault": fault.name,
        "where": str(fault.where),
        "total_variation": fault.total_variation,
        "vocab": fault.vocab,
        "verdict": str(audit.judgement.finding),
        "caught_by": "; ".join(
            f"{what} ({needed})" for what, needed in caught_by(audit.evidence).items()
        ),
        "smallest_seen": audit.evidence.smallest_seen,
    }


def caught_by(evidence: Evidence) -> dict[str, str]:
    """The kinds of evidence that show a fault, each with how much of it is needed."""
    found = {}
    if not evidence.enumerated_error <= TOLERANCE:
        found["enumeration"] = f"TV {evidence.enumerated_error:.2g}"
    for name, deviation in evidence.total_variations.items():
        if not deviation.z <= LIMIT:
            found[f"estimate, {name}"] = f"z {deviation.z:.0f}"
    counts = [
        (count, f"simulation, {name}, {scene}")
        for scene, statistics in evidence.simulations.items()
        for name, count in statistics.items()
    ]
    worst, where = min(counts, key=lambda item: item[0].p_value)
    if worst.p_value < LEAST_P:
        # A chi-square grows in proportion to the outcomes; LEAST_P is at about 20 more than its
        # degrees.
        share = 1.0 if math.isinf(worst.value) else 20 / max(20, worst.value - worst.degrees)
        found[where] = f"{math.ceil(share * worst.n)} outcomes"
    for tree, scores in evidence.z_scores.items():
        for name, score in scores.items():
            if not abs(score.z) <= LIMIT:
                found[f"decoding, {name}: {tree}"] = (
                    f"{math.ceil(score.n * (LIMIT / score.z) ** 2)} tokens"
                )
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
    biased, large = frame[frame.total_variation > 0], frame[frame.total_variation >= 0.02]
    large_ones, all_ones, innocents = (
        ", ".join(f"{int((part.verdict == finding).sum())} {finding}" for finding in Finding)
        for part in (large, biased, frame[frame.total_variation == 0])
    )
    notes = (
        f"{source} Made by: make faults, on the pair {pair}. Of {len(large)} faults with a total "
        f"variation of at least .02: {large_ones}. Of all {len(biased)}: {all_ones}. Of "
        f"{len(frame) - len(biased)} cases without bias: {innocents}. Inconsistent: verdicts do "
        "not follow what the verifier says.",
        "True TV: by enumeration on the laws of tests/faults/truth.py, of faults of the loop by "
        "simulation. Outcomes and tokens: about as many as the statistic needs to reach its limit.",
    )
    texts = shown.set_index(["fault", "lives in"])
    return plain("faults", frame, "Planted faults, and what the audit says", notes, shown=texts)


if __name__ == "__main__":
    sys.exit(run_single(run_faults, "audit", ["pair"]))
