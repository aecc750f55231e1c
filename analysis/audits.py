"""Verdicts of audit cells: z-scores of decoding, their number of tokens, and the finding."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from analysis import labels
from analysis.load import Results
from analysis.table import ABSENT, Audit, Column
from resispec.audit.verdict import (
    LIMIT,
    MIN_VARIANCE,
    Evidence,
    Finding,
    Statistic,
    holm,
    is_weighty,
    judge,
    z_scores,
)
from resispec.errors import InvalidInput

QUANTITIES = ("z_surprisal", "z_overdraft", "audited_tokens")
TERMS = tuple(name + kind for name in MIN_VARIANCE for kind in ("", "_variance"))
"""Fields of an audit's rows; each is a list with one term per token."""
DEFINITION = (
    "Audit: is the output's law the target's? Three z-scores over the tokens of a separate run "
    "with the same prompts and seeds (surprisal and overdraft, which are printed, and rank, see "
    "docs/exactness.md); beyond 4 is biased, too few tokens are undecided. Samples see only a bias "
    "that is large enough, so they say no bias seen; exact is said of enumeration and proof alone."
)
OF_ENUMERATION = (
    "Biased (enumerated): enumeration on small laws shows the bias; these rows have no audit that "
    "found one."
)
METHOD = ["decoder", "tree", "verifier"]
"""The labels that a method on its tree is told by."""
ENUMERATED = "biased (enumerated)"
"""The verdict of a verifier whose bias enumeration shows, and no audit of its decoding found."""
NOT_AUDITED = "not audited"
VERDICTS = (
    *map(str, Finding),
    *(ENUMERATED, NOT_AUDITED),
    *(f"audit {state}" for state in ("failed", "interrupted", "missing")),
)
"""All verdicts that a table may have."""
RATE = 0.01
"""Probability of a false alarm in any row of a table of exact verifiers, by Holm's rule."""


def is_biased(verdict: str) -> bool:
    """Whether a verdict says so, by an audit or by enumeration."""
    return verdict in (Finding.BIASED, ENUMERATED)


def is_acquitted(verdicts: Collection[str]) -> bool:
    """Whether verdicts, of which there are some, all say that no bias is seen."""
    return set(verdicts) == {str(Finding.NO_BIAS_SEEN)}


def is_decided(verdict: str) -> bool:
    """Whether a verdict is decided: biased, or no bias seen."""
    return is_biased(verdict) or is_acquitted([verdict])


def are(said: Callable[[str], bool], rows: pd.DataFrame) -> pd.Series:
    """For each row, whether `said` holds of its verdict."""
    return rows.verdict.map(said).astype(bool)


def of_resispec(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose verifier is ResiSpec, with any parameters."""
    options = rows.verifier.map(lambda verifier: labels.Label.of(verifier).option)
    return rows[options == "resispec"]


def best_unbiased(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the best method on its tree without a bias seen, at the highest temperature.

    Of the methods whose rows all say no bias seen, it has the largest mean; without one there are
    no rows. Methods that lack rows of others are left out: their mean is of something else.

    rows: of a long frame, all of the same quantity.
    """
    rows = rows[rows.value.notna()]
    hottest = rows[rows.temperature == rows.temperature.max()]
    methods = [group for _, group in hottest.groupby(METHOD, sort=False)]
    most = max(map(len, methods), default=0)
    exact = [group for group in methods if is_acquitted(group.verdict) and len(group) == most]
    return max(exact, key=lambda group: group.value.mean(), default=hottest[:0])


def by_labels(results: Results) -> dict[tuple[Any, ...], dict[str, Any]]:
    """QUANTITIES and "verdict" of each audit, by the labels that it shares with the audited cell.

    An audit that did not finish has NaN, and its status in its verdict. A verifier that is known to
    be biased has a verdict without an audit, too, and where its audit saw no bias. Raises
    InvalidInput when an audit decoded other tokens than the cell that it audits.
    """
    verdicts = {}
    timed_ids = {results.place(cell): cell["cell_id"] for cell in results.timed.to_dict("records")}
    for cell in results.cells[results.cells.is_audit].to_dict("records"):
        key, rows = results.place(cell), results.rows.get(cell["cell_id"])
        verdicts[key] = of_cell(cell, rows, results)
        timed_rows = results.rows.get(timed_ids.get(key, ""))
        if rows is not None and timed_rows is not None:
            pairs = rows.merge(timed_rows, on="prompt_index", suffixes=("", "_timed"))
            prompts = pairs.prompt_index[pairs.tokens_sha256 != pairs.tokens_sha256_timed].tolist()
            if prompts:
                problem = f"decoded other tokens of prompt {prompts[0]} than the timed cell"
                raise InvalidInput(f"cell {cell['cell_id']}: {problem}")
    for key, cell_id in timed_ids.items():
        if bias := results.biases.get(cell_id):
            known = verdicts.get(key, dict.fromkeys(QUANTITIES, np.nan))
            verdicts[key] = with_bias(known, bias)
    return verdicts


def of_cell(cell: Mapping[str, Any], rows: pd.DataFrame | None, results: Results) -> dict[str, Any]:
    """QUANTITIES and "verdict" of an audit cell. rows: None if the audit did not finish."""
    if rows is None:
        return dict.fromkeys(QUANTITIES, np.nan) | {"verdict": f"audit {cell['status']}"}
    return with_bias(judged(cell["cell_id"], rows), results.biases.get(cell["cell_id"]))


def with_bias(numbers: Mapping[str, Any], bias: str | None) -> dict[str, Any]:
    """Numbers with the verdict ENUMERATED, unless they have that of an audit that found a bias.

    bias: the sentence about the bias that enumeration shows; without one the numbers are as before.
    """
    is_new = bias and numbers.get("verdict") != Finding.BIASED
    return {**numbers} | ({"verdict": ENUMERATED} if is_new else {})


def judged(cell_id: str, rows: pd.DataFrame) -> dict[str, Any]:
    """QUANTITIES and "verdict" of a finished audit.

    Raises InvalidInput when a statistic is missing.
    """
    scores = _scores(cell_id, rows)
    tokens = scores["surprisal"].n if "surprisal" in scores else 0
    z = {
        f"z_{name}": scores[name].z if name in scores else np.nan
        for name in ("surprisal", "overdraft")
    }
    return z | {"audited_tokens": tokens, "verdict": str(_finding(scores))}


def of_many(results: Results) -> list[str]:
    """The note of a table with several finished audits: expected false alarms, and Holm's rule."""
    frame = results.cells[results.cells.is_audit & results.cells.cell_id.isin(results.rows)]
    cells = {cell["cell_id"]: cell for cell in frame.to_dict("records")}
    scores = {cell_id: _scores(cell_id, results.rows[cell_id]) for cell_id in cells}
    statistics = [
        (cell_id, one) for cell_id in cells for one in scores[cell_id].items() if is_weighty(*one)
    ]
    if len(cells) < 2 or not statistics:
        return []
    is_out = holm([score.p_value for _, (_, score) in statistics], RATE)
    by_holm = {
        cell_id for (cell_id, _), is_biased in zip(statistics, is_out, strict=True) if is_biased
    }
    by_limit = {cell_id for cell_id in cells if _finding(scores[cell_id]) is Finding.BIASED}
    expected = len(statistics) * math.erfc(LIMIT / math.sqrt(2))
    changes = [
        f"{'also' if cell_id in by_holm else 'not'} "
        + ", ".join(labels.text(key, cell[key]) for key in results.keys)
        for cell_id, cell in cells.items()
        if (cell_id in by_holm) is not (cell_id in by_limit)
    ]
    by_rule = "; ".join(changes) + " are" if changes else f"the same rows ({len(by_limit)}) are"
    return [
        f"{len(cells)} audits have {len(statistics)} statistics; {expected:.1g} of them are "
        f"expected beyond {LIMIT:g} where all verifiers are exact. By Holm's rule, with a false "
        f"alarm in {RATE:.0%} of such tables, {by_rule} biased."
    ]


def _scores(cell_id: str, rows: pd.DataFrame) -> dict[str, Statistic]:
    """The z-scores of a finished audit, by name.

    Raises InvalidInput when a statistic is missing.
    """
    if missing := [name for name in TERMS if name not in rows]:
        raise InvalidInput(f"cell {cell_id}: its rows lack the statistics {', '.join(missing)}")
    terms = {name: list(chain.from_iterable(rows[name])) for name in TERMS}
    terms["surprisal"] = [math.inf if term is None else term for term in terms["surprisal"]]
    return z_scores(terms)


def _finding(scores: Mapping[str, Statistic]) -> Finding:
    return judge(Evidence(z_scores={"": scores}), required=("z_scores",)).finding


def columns(frame: pd.DataFrame) -> list[Column]:
    """The column of a long frame's verdicts, in words alone; none if it has no verdict."""
    if not frame.verdict.any():
        return []
    return [Column("verdict", "Audit", "audit", cell=lambda row: Audit(row[()]["verdict"]))]


def cell_of(quantities: Mapping[str, Any]) -> Audit:
    """The cell of a table from "verdict" and QUANTITIES, which are NaN if unknown."""
    *z, tokens = (float(quantities[name]) for name in QUANTITIES)
    return Audit(str(quantities["verdict"]), tuple(z), tokens)


def counted(verdicts: Collection[str]) -> str:
    """Verdicts with their counts, most frequent first: "no bias seen (6 of 6)"; "–" without any."""
    counts = Counter(verdict for verdict in verdicts if verdict).most_common()
    return (
        ", ".join(f"{verdict} ({count} of {len(verdicts)})" for verdict, count in counts) or ABSENT
    )
