"""The audit's table: a row for every verifier and kind of draws."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from analysis import labels
from analysis.load import filters_of
from analysis.table import Table, plain
from experiments.auditing.evidence import JudgedVerifier
from experiments.provenance import origin
from resispec.audit.battery import MOST_SIBLINGS
from resispec.audit.verdict import LEAST_P, MIN_VARIANCE, TOLERANCE

COLUMNS = {
    "verifier": "{verifier}",
    "draws": "{draws}",
    "enumerated (error)": "{found} ({enumerated_error:.1e})",
    "TV, V = 32,000 (z)": "{tv_wide:.4f} ({tv_wide_z:.1f})",
    "TV, 8 siblings (z)": "{tv_siblings:.4f} ({tv_siblings_z:.1f})",
    "TV, pair (z)": "{tv_recorded:.4f} ({tv_recorded_z:.1f})",
    "simulated, least p": "{least_p:.1g}",
    "z surprisal": "{surprisal}",
    "z overdraft": "{overdraft}",
    "acceptance": "{acceptance:.3f}",
    "ceiling": "{ceiling:.3f}",
    "verdict": "**{verdict}**",
}
"""Header -> format of a row's text below it."""
NODES = {"V = 32,000": "wide", "8 siblings": "siblings", "recorded": "recorded"}
"""Names of the nodes of `Material` -> their names in columns."""


def table_of(audits: Sequence[JudgedVerifier], config: Mapping[str, Any], pair: str) -> Table:
    """The table, a row for every verifier and kind of draws."""
    rows = [_row(audit) for audit in audits]
    frame = pd.DataFrame(rows)
    kinds = ("enumerated", "simulated", "decoded")
    levels = ", ".join(f"levels 1 to {frame[f'levels_{kind}'].min()} {kind}" for kind in kinds)
    shown = [
        {header: text.format(**_words(row), **row) for header, text in COLUMNS.items()}
        for row in rows
    ]
    filters = filters_of(config)
    law = labels.setting({"temperature": config["temperature"], **filters})
    device = torch.device(config["device"])
    # a kernel of a verifier's own for a device is run by decoding alone
    of_cpu = "" if device.type == "cpu" else " All but decoding was done on the CPU."
    notes = (
        f"Profile: {config['profile']}. {origin(device)}{of_cpu} Made by: make "
        f"audit. Nodes of 1 to {MOST_SIBLINGS} siblings, of one for verifiers of chains.",
        "Enumerated: worst total variation over a battery of small laws and trees; exact below "
        f"{TOLERANCE:g}, where rounding in float32 ends. TV: total variation between the emitted "
        "law and the target's, as a set of tokens shows it that other tuples chose, in brackets "
        "in standard errors; 0 in the mean for an exact rule. Simulated: tokens and verdicts of "
        f"small trees, counted against their laws; below {LEAST_P:g} tokens are biased, and "
        "verdicts inconsistent with what the verifier says of them. z: of real decoding on the "
        f"pair at {law}, the furthest of two trees. Acceptance: probability that the emitted "
        "token is a drafted sibling, over laws recorded from the pair, beside the highest that "
        "an exact rule can have with these draws.",
        f"Walked: {levels}; by `verify`, {walked_by(audits)}. What begins deeper, is rarer than a "
        f"total variation of {frame.smallest_seen.max():.2g} at one node of the stated law, or is "
        "done by `verify` alone and more rarely than that, could hide from all of it. An exact "
        f"verifier is called biased with probability below {frame.false_alarm_rate.max():.1e} a "
        "row.",
    )
    behind = f", behind {labels.setting(filters)}" if filters else ""
    caption = f"Audit: which verifiers are exact? Pair: {pair}{behind}."
    return plain(
        "audit", frame, caption, notes, shown=pd.DataFrame(shown).set_index(["verifier", "draws"])
    )


def walked_by(audits: Sequence[JudgedVerifier]) -> str:
    """The ground that every audit's `verify` walked, and the error of it that shows."""
    ground = [audit.evidence.walked for audit in audits if audit.evidence.walked]
    first, *others = dict.fromkeys(setting for walked in ground for setting in walked.settings)
    siblings = min(walked.siblings for walked in ground)
    moved = max(walked.moved for walked in ground)
    moved_elsewhere = max(walked.moved_elsewhere for walked in ground)
    return (
        f"each position apart, up to {siblings} siblings, so that {moved:.2g} of the mass moved to "
        f"or from a set of tokens at one in ten of a walk's tokens would have shown at {first}, "
        f"and {moved_elsewhere:.2g} at every token at {'; '.join(others)}"
    )


def _row(audit: JudgedVerifier) -> dict[str, Any]:
    """The tidy row of one verifier with one kind of draws.

    A z-score is the one of the decoded trees that is furthest from 0.
    """
    evidence = audit.evidence
    scores = {
        name: [scores[name].z for scores in evidence.z_scores.values() if name in scores]
        for name in MIN_VARIANCE
    }
    chances = [
        count.p_value for counts in evidence.simulations.values() for count in counts.values()
    ]
    variations = {NODES[kind]: variation for kind, variation in evidence.total_variations.items()}
    return {
        "verifier": audit.name,
        "draws": str(audit.draws),
        "enumerated_error": evidence.enumerated_error,
        **{f"tv_{kind}": variation.value for kind, variation in variations.items()},
        **{f"tv_{kind}_z": variation.z for kind, variation in variations.items()},
        "smallest_seen": evidence.smallest_seen,
        "least_p": min(chances),
        **{f"z_{name}": max(values, key=abs, default=math.nan) for name, values in scores.items()},
        **{f"levels_{kind}": deepest for kind, deepest in evidence.levels.items()},
        "num_tokens": evidence.num_tokens,
        "acceptance": audit.acceptance,
        "ceiling": audit.ceiling,
        "verdict": str(audit.judgement.finding),
        "reasons": "; ".join(audit.judgement.reasons),
        "false_alarm_rate": evidence.false_alarm_rate,
    }


def _words(row: Mapping[str, Any]) -> dict[str, str]:
    """The words of COLUMNS that are no fields of a row."""
    words = {name: labels.number(row[f"z_{name}"], ".1f") for name in ("surprisal", "overdraft")}
    return words | {"found": "exact" if row["enumerated_error"] <= TOLERANCE else "biased"}
