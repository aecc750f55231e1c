"""Spread of tokens/s between runs of one cell: `python docs/studies/run_spread.py`.

Found (run_spread.csv): .14 over twelve runs, one after another on a processor of two cores with other work
beside them (the slowest had .61 of the tokens/s of the fastest), and .12 over the twelve autoregressive cells
of the tables that were published with commit 34ed971. Those do the same work at two temperatures on three
data sets, and were measured alone, hours or days apart.

The spread is the standard deviation of log tokens/s. Intervals of speedups have the larger one, for each of
two cells that were not timed in turn (`analysis.stats.RUN_SPREAD`). Here the autoregressive cell of the
embedded pair is measured again and again, each time by a process of its own.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

NUM_RUNS = 12
CSV = Path(__file__).with_suffix(".csv")
CELL = ["decoder=autoregressive", "dataset=embedded_code", "num_prompts=20", "wandb.mode=disabled"]


def measured() -> pd.DataFrame:
    """One run of the cell, into a results folder of its own."""
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, "-m", "experiments.run", *CELL, f"results={results}", "name=run"]
        subprocess.run(command, check=True, capture_output=True)
        [path] = Path(results).glob("*/sweeps/run.csv")
        return pd.read_csv(path).assign(source=lambda row: f"runs one after another, {row.device[0]}")


if __name__ == "__main__":
    before = pd.read_csv(CSV)
    own = pd.concat([measured() for _ in range(NUM_RUNS)])[list(before)]
    rates = pd.concat([before[before.source.str.startswith("published")], own])
    rates.to_csv(CSV, index=False)
    sys.stdout.write(f"{np.log(rates.tokens_per_s).groupby(rates.source).std(ddof=1).to_string()}\n")
