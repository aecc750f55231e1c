"""Real runs that take seconds: tiny models, tiny documents, and the command as a user types it."""

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from experiments.cell import Cell
from experiments.run import main
from experiments.worker import measure
from resispec.models import save_eagle
from tests.toys import save_prompts, save_tiny_pair, tiny_eagle

COMMAND = [sys.executable, "-m", "experiments.run"]


def save_toys(folder: Path, num_documents: int = 8) -> Path:
    """Write a tiny pair, a tiny EAGLE drafter and documents into a folder."""
    save_tiny_pair(folder)
    save_eagle(tiny_eagle(), folder / "eagle")
    save_prompts(folder, num_documents)
    return folder


def toy_overrides(folder: Path, results: Path) -> list[str]:
    """Overrides that make any configuration a toy cell."""
    return [
        "pair=llama2_7b__jf68m", f"pair.target={folder}/target", f"pair.draft={folder}/draft",
        "device=cpu",
        "dtype=float32", "dataset=jsonl", f"dataset.path={folder}/prompts.jsonl", "num_prompts=3",
        "warmup_prompts=0", "prompt_tokens=12", "sampling.max_new_tokens=6",
        "sampling.max_length=40",
        "sampling.ignore_eos=true", f"results={results}", "num_threads=1",
    ]  # fmt: skip


def save_rule(folder: Path, body: str) -> str:
    """Write a user's rule whose law has this body; returns how a command line names it."""
    imports = ("import os, sys, time", "from resispec.errors import NotDefined")
    imports += ("from resispec.verifiers import Law, Standard",)
    law = "\n        ".join(("def law(self, p, q, s, draws):", *imports, body))
    (folder / "rule.py").write_text(f"class Rule:\n    {law}\n")
    return f"{folder}/rule.py:Rule"


def run(*overrides: str) -> subprocess.CompletedProcess[str]:
    """The command in this process, its server of workers with imports done; workers are real."""
    handler = signal.getsignal(signal.SIGTERM)
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(overrides)
    except SystemExit as ended:  # Hydra ends --help so
        code = ended.code
    finally:
        signal.signal(signal.SIGTERM, handler)
        os.environ.pop("HYDRA_FULL_ERROR", None)
    return subprocess.CompletedProcess(["run", *overrides], code, out.getvalue(), err.getvalue())


def rows(cell: Cell) -> list[dict]:
    return [json.loads(line) for line in (cell.folder / "rows.jsonl").read_text().splitlines()]


def hashes(cell: Cell) -> list[str]:
    return [row["tokens_sha256"] for row in rows(cell)]


def ignore(*_: object) -> None:
    """Nobody watches a test."""


def run_here(cell: Cell) -> Cell:
    """Measure a cell in this process."""
    measure([cell], ignore)
    return cell


def messages(text: str) -> list[str]:
    """Lines of stderr for people to read: without the progress line, which is written over."""
    lines = [line.rpartition("\r")[2].rstrip() for line in text.splitlines()]
    return [line for line in lines if line and "%" not in line]
