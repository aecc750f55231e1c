"""Cells and plans in the format that analysis reads, small enough to derive numbers by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.artefact import run
from analysis.labels import Label
from analysis.load import Plan, read_plan
from analysis.stats import MIN_PROMPTS
from analysis.table import Table
from resispec.files import checksums

# (decode_s, histogram) per prompt. By hand, emitted over steps and over seconds:
# 4 + 8 = 12 tokens in 12 steps: 1.00; in 2 s: 6.0 a second
AUTOREGRESSIVE = [(1.0, [4]), (1.0, [8])]
STANDARD = [(0.5, [1, 2]), (1.0, [2, 0, 2])]  # 5 in 3 steps + 8 in 4: 13/7 = 1.857; in 1.5 s: 8.667
# 6 in 2 steps + 10 in 4: 16/6 = 2.667; in 0.75 s: 21.333
RESISPEC = [(0.25, [0, 0, 2]), (0.5, [1, 0, 3])]
METHODS = {"autoregressive": AUTOREGRESSIVE, "standard": STANDARD, "resispec": RESISPEC}


@dataclass(frozen=True)
class ToyCell:
    """A cell that was asked for. results: the folder of raw/ and embedded/."""

    results: Path
    cell_id: str
    labels: dict[str, Any]
    tree_file: Path | None = None

    @property
    def folder(self) -> Path:
        return self.results / "raw" / "embedded" / self.cell_id

    def labelled(self, **changed: Any) -> ToyCell:
        """The same cell, asked for with other labels."""
        return replace(self, labels=self.labels | changed)


def make_cell(
    results: Path, method: str, dataset: str = "embedded_code", **changed: Any
) -> ToyCell:
    """A cell that was asked for and never run."""
    labels: dict[str, Any] = {"pair": "embedded", "dataset": dataset, "temperature": 1.0}
    labels |= {"decoder": "autoregressive"}
    if method != "autoregressive":
        labels |= {"decoder": "specinfer", "tree": "d5b3", "verifier": method}
    labels |= changed
    return ToyCell(results, "-".join(map(str, labels.values())), labels)


def make_row(index: int, decode_s: float, histogram: list[int]) -> dict[str, Any]:
    emitted = sum(size * count for size, count in enumerate(histogram, start=1))
    return {
        "prompt_index": index,
        "prompt_id": f"p{index}",
        "seed": index,
        "num_prompt_tokens": 64,
        "num_returned": emitted,
        "num_emitted": emitted,
        "num_steps": sum(histogram),
        "histogram": histogram,
        "stop_reason": "max_new_tokens",
        "prefill_s": 0.1,
        "decode_s": decode_s,
        "tokens_sha256": "0" * 16,
        "timed_by": "toy",
    }


def rows_of(measured: list[tuple[float, list[int]]]) -> list[dict[str, Any]]:
    return [
        make_row(index, decode_s, histogram) for index, (decode_s, histogram) in enumerate(measured)
    ]


def repeated(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows repeated as other prompts until they suffice for an interval; ratios of sums stay."""
    count = len(rows) * math.ceil(MIN_PROMPTS / len(rows))
    return [
        row | {"prompt_index": index, "prompt_id": f"p{index}", "seed": index}
        for index, row in zip(range(count), cycle(rows), strict=False)
    ]


PROVENANCE = {"device": "test CPU", "git_commit": "abc1234567890", "git_is_dirty": True}


def save(
    cell: ToyCell, rows: list[dict[str, Any]] | None, state: str = "done", reason: str = "",
    config: Mapping[str, Any] = {}, provenance: Mapping[str, Any] = PROVENANCE,
    seconds: float = 1.0,
) -> ToyCell:  # fmt: skip
    """Write a cell's folder; `rows.jsonl` only when there are rows.

    Filters in the labels were on.
    """
    filters = {
        key.partition(".")[2]: value for key, value in cell.labels.items() if "sampling." in key
    }
    config = ({"sampling": filters} if filters else {}) | config
    cell.folder.mkdir(parents=True, exist_ok=True)
    for file, content in (
        ("cell", {"cell_id": cell.cell_id, "config": config}),
        ("provenance", provenance),
    ):
        (cell.folder / f"{file}.json").write_text(json.dumps(content), encoding="utf-8")
    if rows is not None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (cell.folder / "rows.jsonl").write_text(text, encoding="utf-8")
    status = {"state": state, "reason": reason, "seconds": seconds}
    if state == "done":
        status["files"] = checksums(cell.folder, ["cell.json", "provenance.json", "rows.jsonl"])
    (cell.folder / "status.json").write_text(json.dumps(status), encoding="utf-8")
    return cell


def save_methods(results: Path) -> list[ToyCell]:
    """A finished cell for each of METHODS."""
    return [
        save(make_cell(results, method), rows_of(measured)) for method, measured in METHODS.items()
    ]


def make_audit(cell: ToyCell, tokens: int, shift: float, sha: str | None = None) -> ToyCell:
    """The audit of a timed cell, whose terms deviate by `shift` standard deviations a token."""
    audit = replace(cell, cell_id=f"{cell.cell_id}-audit", labels=cell.labels | {"audit": True})
    rows = [json.loads(line) for line in (cell.folder / "rows.jsonl").read_text().splitlines()]
    for row in rows:
        for name, variance in (("surprisal", 1.0), ("overdraft", 0.25), ("rank", 1 / 12)):
            row[name], row[f"{name}_variance"] = (
                [shift * variance**0.5] * tokens,
                [variance] * tokens,
            )
        row["overdraft"][0] = row["overdraft_variance"][0] = (
            None  # a leaf: the draft's law is not known
        )
        row["tokens_sha256"] = sha or row["tokens_sha256"]
    return save(audit, rows)


def write_plan(
    results: Path,
    artefact: str,
    cells: list[ToyCell],
    /,
    part: str = "",
    of: str = "",
    **changed: Any,
) -> Path:
    """Write the plan that asks for these cells.

    of: the artefact whose cells they are in a sweep of one's own.
    """
    path = (
        results / "embedded" / "plans" / (f"{artefact}/{part}.json" if part else f"{artefact}.json")
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f"{artefact}/{part}" if part else artefact
    entries = [{"cell_id": cell.cell_id, "labels": _json(cell.labels)} for cell in cells]
    for entry, cell in zip(entries, cells, strict=True):
        entry |= {"tree_file": str(cell.tree_file)} if cell.tree_file else {}
        entry |= {"of": of} if of else {}
    content = {
        "artefact": artefact,
        "part": part,
        "profile": "embedded",
        "command": f"python -m experiments.run experiment={name} profile=embedded",
        "sources": {},
        "cells": entries,
    }
    path.write_text(json.dumps(content | changed), encoding="utf-8")
    return path


def _json(labels: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.json() if isinstance(value, Label) else value for name, value in labels.items()
    }


def planned(results: Path, artefact: str, cells: list[ToyCell], part: str = "") -> Plan:
    """The plan of these cells, written and read."""
    write_plan(results, artefact, cells, part)
    return read_plan(artefact, "embedded", results)


def shown(table: Table) -> pd.DataFrame:
    """A table as printed, of text."""
    texts = [[str(cell) for cell in row] for row in table.rows]
    return pd.DataFrame(texts, columns=[column.header for column in table.columns])


def identity(index: int, prefixes: int) -> dict[str, Any]:
    return {
        "prompt_index": index,
        "prompt_id": f"p{index}",
        "seed": index,
        "num_prompt_tokens": 64,
        "num_prefixes": prefixes,
    }


def kl_rows(variation: list[list[float]], error: float = 0.1) -> list[dict[str, Any]]:
    """Per prompt, the total variation of every prefix; every divergence follows from it."""
    return [
        identity(index, len(values))
        | {
            "num_tuples": 1600,
            "paper_kl_resispec": [-3e-7] * len(values),
            "paper_kl_standard": [1e-7, -1e-7][: len(values)],
            "paper_kl_random": [2e-7] * len(values),
            "total_variation": values,
            "total_variation_error": [error] * len(values),
            "kl_plug_in": [value + 0.5 for value in values],
            "kl_at_least": values,
        }
        for index, values in enumerate(variation)
    ]


def scaling_row(index: int, emitted: list[float]) -> dict[str, Any]:
    """Two prefixes; `emitted` for N = 1, 2, 4, 8 as complete trees, then as chains."""
    return identity(index, 2) | {
        "arrangement": ["complete"] * 4 + ["chains"] * 4,
        "num_candidates": [1, 2, 4, 8] * 2,
        "num_nodes": [4, 15, 85, 585, 4, 7, 13, 25],
        "emitted": emitted,
        "tree_log_ratios": [[[0.0] * 3] * 2] * 8,
        "rollout_log_ratios": [[1.0] * 3] * 4,
    }


# Sums over two prefixes of two prompts: EAL (2 + 4) / 4 = 1.5 at N = 1, then 2, 3 and 3.5; as
# chains 1.5, 1.75, 2 and 2.25.
EMITTED = ([2.0, 3.0, 5.0, 6.0, 2.0, 2.5, 3.0, 3.5], [4.0, 5.0, 7.0, 8.0, 4.0, 4.5, 5.0, 5.5])
SCALING_ROWS = [scaling_row(index, emitted) for index, emitted in enumerate(EMITTED)]


def decay_rows(selected: list[list[float]], tested: list[list[float]]) -> list[dict[str, Any]]:
    """Two prefixes of five tuples; the ceiling accepts first siblings in 1/2, second in 1/4."""
    return [
        identity(index, 2)
        | {"num_tuples": 5, "selected": above, "tested": below}
        | {"ceiling_selected": [1.0, 0.25], "ceiling_tested": [2.0, 1.0]}
        for index, (above, below) in enumerate(zip(selected, tested, strict=True))
    ]


def write_artefact(name: str, *arguments: str) -> int:
    """The exit code of an artefact's command with these arguments."""
    return run(name, import_module(f"analysis.{name}").make, arguments)


def stored(cell, measured, task="experiments.tasks.decode.Decode"):
    """A toy cell with the configuration that every real one has."""
    config = {"task": {"_target_": task}, "seed": 0, "audit": False, "num_prompts": 2, "jobs": 4}
    config |= {"wandb": {"mode": "auto"}, "sampling": {"max_length": 40}, "temperature": 1.0}
    return save(cell, measured, config=config)
