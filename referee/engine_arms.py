"""Three engines through every arm that runs here: does what they emit depend on one?

    python -m referee.engine_arms [--profile smollm2]

See docs/transcripts.md. Each engine, plain and with a draft model, continues prompts of the
embedded pair under several loads, after several starts of a server, in turns of chats and behind
contexts of two lengths; `resispec judge` compares all arms with the target and with each other.
With SmolLM2 the engines continue prompts as they are and behind 4,096 tokens of context, which it
was made for. Takes about 20 minutes on one core, with SmolLM2 half an hour on two, and goes on
where it was stopped. Writes RESULTS/PROFILE/arms.{csv,md}, and transcripts and evidence to
RESULTS/PROFILE/arms/; without their evidence (.json) rows are judged again. Needs the extra
`engines`, and port 8090 of this machine.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from referee.audit.__main__ import EXIT_CODES
from referee.audit.table import ArmLine
from referee.conditions import KINDS
from referee.transcripts import Transcript, read_transcripts
from referee.transcripts_power import printed_table
from resispec.audit.verdict import Finding
from resispec.errors import CommandParser, InvalidInput, in_one_line
from resispec.files import checksums, read_sealed, write_atomically
from resispec.progress import progress_bar

NEW_TOKENS = 64
SEEDS = {"plain": 1000, "assisted": 2000}
PORT = 8090
OPTIONS = {
    "concurrency": ("--concurrency", "{} at a time"),
    "restart": ("--restarts", "{} starts of a server"),
    "turn": ("--turns", "the first of {} turns, and later ones"),
    "context": ("--context", "{} tokens of context"),
}
"""The option that makes the arms of a kind, and these in words by its value."""
JUDGED = [code for verdict, code in EXIT_CODES.items() if verdict != "no verdict"]
SAME_PROMPTS = {kind.name for kind in KINDS if kind.has_same_prompts}


@dataclass(frozen=True)
class Run:
    """One file of transcripts: an engine, and the kind of its arms.

    engine: of `resispec transcripts --engine`. mode: "plain" or "assisted". kind: the name of a
    kind of arms, see `referee.conditions`. value: that of the option that makes them. prompts: the
    number of them in each arm. target, dataset: of `resispec transcripts`.
    """

    engine: str
    mode: str
    kind: str
    value: str
    prompts: int
    target: str = "embedded"
    dataset: str = "embedded_reference"

    @property
    def stem(self) -> str:
        """The name of its files, without a suffix."""
        return f"{self.engine}-{self.mode}-{self.kind}"

    def asked(self) -> list[str]:
        """The command that writes the transcripts, without its file."""
        engine = ["--engine", self.engine, "--mode", self.mode]
        if self.kind == "restart":
            served = ["resispec", "serve", "--mode", self.mode, "--port", str(PORT)]
            engine = ["--server", f"http://localhost:{PORT}", "--format", self.engine]
            engine += ["--start", shlex.join(served)]
        lengths = ["--num-prompts", str(self.prompts), "--max-new-tokens", str(NEW_TOKENS)]
        arms = [OPTIONS[self.kind][0], self.value]
        models = ["--target", self.target, "--prompts", self.dataset]
        words = ["resispec", "transcripts", *engine, *models, *arms, *lengths]
        return [*words, "--seed", str(SEEDS[self.mode])]


def runs_of(engine: str, mode: str, prompts: int, **arms: str) -> list[Run]:
    """The runs of an engine in a mode. arms: values of the options, by the kind of arms."""
    return [Run(engine, mode, kind, value, prompts) for kind, value in arms.items()]


LLAMA_CPP = {"concurrency": "1,4,16,64", "restart": "3", "turn": "3", "context": "0,256"}
OPENVINO = {"concurrency": "1,4", "turn": "3"}
RUNS = [
    *runs_of("transformers", "plain", 100, concurrency="1,4,16", turn="3", context="0,256"),
    *runs_of("transformers", "assisted", 60, turn="3", context="0,256"),
    *runs_of("llama_cpp", "plain", 80, **LLAMA_CPP),
    *runs_of("llama_cpp", "assisted", 60, **LLAMA_CPP),
    *runs_of("openvino_genai", "plain", 30, **OPENVINO),
    *runs_of("openvino_genai", "assisted", 30, **OPENVINO),
]
"""The runs with the embedded pair, the engines in the order of the table."""
SMOLLM2 = [
    Run(engine, "plain", "context", "0,4096", 30, "smollm2_alone", "smollm2_summarise")
    for engine in ("transformers", "llama_cpp")
]
PROFILES = {"embedded": (RUNS, "the embedded pair"), "smollm2": (SMOLLM2, "SmolLM2-135M-Instruct")}
"""Runs by profile, and their models in words."""


def command(words: Sequence[str], allowed: Sequence[int] = (0,)) -> None:
    """Run a command of this installation.

    allowed: exit codes. Raises InvalidInput for another one, with the last line of its errors.
    """
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    ended = subprocess.run(
        words,
        env=os.environ | {"PATH": programs},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ended.returncode not in allowed:
        reason = (ended.stderr.strip().splitlines() or ["nothing"])[-1]
        raise InvalidInput(f"{shlex.join(words)} ended with {ended.returncode}: {reason}")


def judged(run: Run, folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of a run's arms, after its transcripts are written and judged.

    What is there already is kept; rows are judged again if they have changed.
    """
    rows, evidence = folder / f"{run.stem}.jsonl", folder / f"{run.stem}.json"
    asked = run.asked()
    command([*asked, "--out", str(rows)])
    hashes = checksums(folder, [rows.name])
    found = read_sealed(evidence) if evidence.is_file() else None
    if found is None or found["files"]["transcripts"]["sha256"] != hashes[rows.name]:
        words = ["resispec", "judge", str(rows), "--target", run.target]
        command([*words, "--evidence", str(evidence)], JUDGED)
        found = read_sealed(evidence)
    yield from rows_of(run, found, read_transcripts(rows), shlex.join(asked))


def rows_of(
    run: Run, found: Mapping[str, Any], rows: Sequence[Transcript], asked: str
) -> Iterator[dict[str, Any]]:
    """A row for each arm.

    found: the evidence. rows: the transcripts. asked: the command that wrote them.
    """
    sizes = [size for one in found["judgements"] for size in one["smallest_bias"].values()]
    for line in (ArmLine(**line) for line in found["arms"]):
        same = same_answers(run.kind, line.arm, rows)
        yield {
            "engine": run.engine,
            "version": rows[0].engine_version,
            "mode": run.mode,
            "kind": run.kind,
            "arms": OPTIONS[run.kind][1].format(run.value.replace(",", ", ")),
            "arm": line.name,
            "tokens": line.tokens,
            "verdict": line.finding,
            "shown_from": line.smallest_bias,
            "largest_z": line.largest_z,
            "differs_from": "; ".join(line.differs_from) or None,
            "undecided_from": "; ".join(line.undecided_from) or None,
            "same_answers": same,
            "of_all": found["finding"],
            "all_shown_from": max(sizes, default=None),
            "command": asked,
        }


def same_answers(kind: str, arm: Mapping[str, int], rows: Sequence[Transcript]) -> float | None:
    """The share of an arm's answers that are token for token those of the smallest arm.

    None if the arms have other prompts, or draws of their own: rows without a seed.
    """
    if kind not in SAME_PROMPTS or any(row.seed is None for row in rows):
        return None
    answers: dict[int, dict[tuple[Any, ...], tuple[int, ...]]] = {}
    for row in rows:
        number = getattr(row.condition, kind)
        answers.setdefault(number, {})[row.prompt_token_ids, row.seed] = row.output_token_ids
    own, first = answers[arm[kind]], answers[min(answers)]
    return sum(own[key] == first[key] for key in own) / len(own)


def table_of(frame: pd.DataFrame) -> str:
    """A row for each kind of arms of an engine, in Markdown."""
    rows = []
    for (engine, mode, _), arms in frame.groupby(["engine", "mode", "kind"], sort=False):
        biased = arms.arm[arms.verdict == Finding.BIASED]
        verdict = arms.of_all.iloc[0]
        if 0 < len(biased) < len(arms):
            verdict = f"biased: {', '.join(biased)}"
        same = arms.same_answers.min()
        rows.append(
            {
                "engine": f"{engine}, {'with a draft' if mode == 'assisted' else mode}",
                "arms": arms.arms.iloc[0],
                "tokens": f"{arms.tokens.sum():,}",
                "verdict": verdict,
                "between arms": between_arms(arms),
                "equal answers": None if pd.isna(same) else f"{same:.0%}",
                "TV, target": f"{arms.shown_from.max():.3f}",
                "TV, all": f"{arms.all_shown_from.max():.3f}",
            }
        )
    return printed_table(pd.DataFrame(rows))


def between_arms(arms: pd.DataFrame) -> str:
    """Words for the comparisons of an engine's arms with each other."""
    if arms.differs_from.notna().any():
        return "different"
    if "undecided_from" in arms and arms.undecided_from.notna().any():
        return "undecided"
    return "no difference"


def page_of(frame: pd.DataFrame, profile: str) -> str:
    """The table and its notes."""
    runs, models = PROFILES[profile]
    counts = [run.prompts for run in runs]
    least, most = min(counts), max(counts)
    prompts = f"{least}" if least == most else f"{least} to {most}"
    option = "" if profile == "embedded" else f" --profile {profile}"
    versions = frame.drop_duplicates("engine")
    named = ", ".join(f"{row.engine} {row.version}" for row in versions.itertuples())
    paragraphs = (
        "**Engines through arms**",
        table_of(frame),
        "Verdict: of all comparisons, with the target and between arms. Equal answers: the least "
        "share of an arm's answers that are token for token those of the first arm. TV: the bias "
        "of a token that would have been found nine times in ten in every arm; against the target "
        "alone, and in all comparisons. –: other prompts, or draws of their own.",
        f"Engines: {named}; at T = 1, on {models} in float32 on a CPU, with {prompts} prompts an "
        "arm. A CSV has a line for each arm, with the command that wrote it.",
        f"Made by: `python -m referee.engine_arms{option}`.",
    )
    return "\n\n".join(paragraphs) + "\n"


@in_one_line("stopped; the same command goes on")
def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = CommandParser(
        prog="python -m referee.engine_arms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder of the results"
    )
    parser.add_argument(
        "--profile", choices=[*PROFILES], default="embedded", help="whose models the engines run"
    )
    options = parser.parse_args(arguments)
    stem = options.results / options.profile / "arms"
    stem.mkdir(parents=True, exist_ok=True)
    chosen, _ = PROFILES[options.profile]
    runs = progress_bar(chosen, total=len(chosen), unit="run")
    rows = [row for run in runs for row in judged(run, stem)]
    frame = pd.DataFrame(rows)
    write_atomically(stem.with_suffix(".csv"), frame.to_csv(index=False))
    write_atomically(stem.with_suffix(".md"), page := page_of(frame, options.profile))
    sys.stdout.write(f"{page}\nwritten: {stem}.md\n")


if __name__ == "__main__":
    sys.exit(main())
