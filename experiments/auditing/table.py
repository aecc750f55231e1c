"""The audit's table: a row for every verifier and kind of draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from analysis.report import Table
from experiments.auditing.evidence import Audit
from experiments.provenance import origin
from resispec.audit.battery import MOST_SIBLINGS
from resispec.audit.verdict import LEAST_P, TOLERANCE

COLUMNS = {
    "verifier": "verifier",
    "draws": "draws",
    "enumerated_error": "enumerated error",
    "tv_wide": "TV, V = 32,000 (z)",
    "tv_siblings": "TV, 8 siblings (z)",
    "tv_recorded": "TV, pair (z)",
    "least_p": "simulated, least p",
    "z_surprisal": "z surprisal",
    "z_overdraft": "z overdraft",
    "acceptance": "acceptance",
    "ceiling": "ceiling",
    "verdict": "verdict",
}


NAMES = {"V = 32,000": "wide", "8 siblings": "siblings", "recorded": "recorded"}
"""How columns call the nodes of `Material`."""


def table_of(audits: Sequence[Audit], config: Mapping[str, Any], pair: str) -> Table:
    """The table, a row for every verifier and kind of draws."""
    frame = frame_of(audits)
    shown = pd.DataFrame([_printed(row) for row in frame.to_dict("records")], columns=list(COLUMNS.values()))
    notes = (
        f"Profile: {config['profile']}. {origin(torch.device(config['device']))} Made by: make audit. "
        f"Nodes of 1 to {MOST_SIBLINGS} siblings, of one for verifiers of chains.",
        "Enumerated error: worst total variation over a battery of small laws; exact rules stay below "
        f"{TOLERANCE:g}. TV: total variation between the emitted law and the target's, as a set of tokens "
        "shows it that other tuples chose, in brackets in standard errors; 0 in the mean for an exact rule. "
        "Simulated: verdicts, tokens and siblings of small trees, counted against their laws; below "
        f"{LEAST_P:g} is bias. z: of real decoding on the pair at "
        f"T = {config['temperature']:g}, trees of three levels. Acceptance: probability that the emitted "
        "token is a drafted sibling, over laws recorded from the pair, beside the highest that an exact rule "
        "can have with these draws. An exact verifier is called biased with probability below "
        f"{frame.false_alarm_rate.max():.1e} a row.",
    )
    return Table("audit", frame, shown, 2, f"Audit: which verifiers are exact? Pair: {pair}.", notes)


def frame_of(audits: Sequence[Audit]) -> pd.DataFrame:
    """One tidy row for every verifier and kind of draws."""
    rows = []
    for found in audits:
        evidence, scores = found.evidence, found.evidence.z_scores
        rows.append(
            {
                "verifier": found.name,
                "draws": str(found.draws),
                "enumerated_error": evidence.enumerated_error,
                **{f"tv_{NAMES[kind]}": item.value for kind, item in evidence.total_variations.items()},
                **{f"tv_{NAMES[kind]}_z": item.z for kind, item in evidence.total_variations.items()},
                "smallest_seen": evidence.smallest_seen,
                "least_p": min((count.p_value for count in evidence.simulations.values()), default=math.nan),
                **{f"z_{name}": score.z for name, score in scores.items()},
                "num_tokens": max((score.n for score in scores.values()), default=0),
                "acceptance": found.acceptance,
                "ceiling": found.ceiling,
                "verdict": str(found.judgement.finding),
                "reasons": "; ".join(found.judgement.reasons),
                "false_alarm_rate": evidence.false_alarm_rate,
            }
        )
    return pd.DataFrame(rows)


def _printed(row: Mapping[str, Any]) -> list[str]:
    """A row as printed, in the order of COLUMNS."""
    return [
        row["verifier"],
        row["draws"],
        f"{row['enumerated_error']:.1e}",
        *(f"{row[f'tv_{kind}']:.4f} ({row[f'tv_{kind}_z']:.1f})" for kind in NAMES.values()),
        f"{row['least_p']:.1g}",
        *(f"{row[f'z_{name}']:.1f}" if f"z_{name}" in row else "–" for name in ("surprisal", "overdraft")),
        *(f"{row[name]:.3f}" for name in ("acceptance", "ceiling")),
        f"**{row['verdict']}**",
    ]
