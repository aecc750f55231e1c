"""Spread of tokens/s between runs of one cell: `python docs/studies/run_spread.py`; `--runs 12` are its runs.

Found (run_spread.csv): .14 over twelve runs, one after another on a processor of two cores with other work
beside them (the slowest had .61 of the tokens/s of the fastest), and .12 over the twelve autoregressive cells
of the tables that were published with commit 34ed971. Those do the same work at two temperatures on three
data sets, and were measured alone, hours or days apart.

The spread is the standard deviation of log tokens/s. Intervals of speedups have the larger one, for each of
two cells that were not timed in turn (`analysis.stats.RUN_SPREAD`). Here the autoregressive cell of the
embedded pair is measured again and again, each time by a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

CSV = Path(__file__).with_suffix(".csv")
CELL = ["decoder=autoregressive", "dataset=embedded_code", "num_prompts=20", "wandb.mode=disabled"]


def spread(rates: pd.DataFrame) -> pd.Series:
    """The standard deviation of log tokens/s, by source."""
    return rates.groupby("source").tokens_per_s.agg(lambda own: np.log(own).std(ddof=1))


def measured(results: str) -> dict[str, object]:
    """One run of the cell, into a results folder of its own."""
    command = [sys.executable, "-m", "experiments.run", *CELL, f"results={results}", "name=run"]
    subprocess.run(command, check=True, capture_output=True)
    [row] = pd.read_csv(Path(results) / "embedded" / "sweeps" / "run.csv").to_dict("records")
    source = f"runs one after another, {row['device']}"
    return {"source": source, "temperature": row["temperature"]} | {
        name: row[name] for name in ("dataset", "num_prompts", "tokens_per_s")
    }


def main() -> None:
    """Measure the runs, write the file anew, and print the spreads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=12)
    rows = []
    for _ in range(parser.parse_args().runs):
        with tempfile.TemporaryDirectory() as results:
            rows.append(measured(results))
    rates = pd.read_csv(CSV)
    kept = rates[rates.source.str.startswith("published")]
    rates = pd.concat([kept, pd.DataFrame(rows)], ignore_index=True)
    rates.to_csv(CSV, index=False)
    sys.stdout.write(f"{spread(rates).to_string()}\n")


if __name__ == "__main__":
    main()
