"""Does an engine emit the target's law? Judge it by what it wrote, see docs/transcripts.md.

    python -m experiments.audit_transcripts rows.jsonl --target meta-llama/Llama-3.1-8B
    python -m experiments.audit_transcripts spec.jsonl --control plain.jsonl --target ./model --draft ./small
    python -m experiments.audit_transcripts rows.jsonl --target embedded

A model is a hub name or a folder. A target can also be a pair of conf/pair, which brings its draft.
The exit code is 0 when the transcripts are consistent with the target (with a control: when no difference
between the two was found), 3 when they are biased, 4 when there is too little to tell, and 1 or 2 when
something is wrong with what was given.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from experiments.commands import in_one_line
from experiments.transcripts import models
from resispec.files import write_json
from resispec.transcripts import Transcript, read_transcripts

EXIT_CODES = {"consistent": 0, "biased": 3, "undecided": 4}


def run(options: argparse.Namespace) -> int:
    """Audit, print the report, and write its numbers if asked; returns the exit code. Raises InvalidInput."""
    transcripts = read_transcripts(options.transcripts)
    control = None if options.control is None else read_transcripts(options.control)
    # What follows imports torch, which takes seconds; wrong rows were refused before.
    from resispec.audit.transcripts import audit_transcripts, report_json, report_lines
    from resispec.models.scoring import found_device

    device = found_device(options.device)
    target, *drafts = models.scorers(options.target, options.draft, device, options.dtype)
    with _progress([*transcripts, *(control or [])]) as on_tokens:
        report = audit_transcripts(transcripts, target, drafts[0] if drafts else None, control, on_tokens)
    sys.stdout.writelines(f"{line}\n" for line in report_lines(report))
    if options.json:
        path = options.transcripts.with_suffix(".audit.json")
        write_json(path, report_json(report) | {"options": vars(options)})
        sys.stdout.write(f"written: {path}\n")
    return EXIT_CODES[report.finding]


@contextmanager
def _progress(transcripts: Sequence[Transcript]) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, gone at the end; gives what is told of rescored tokens."""
    from tqdm import tqdm

    total = sum(len(one.output_token_ids) for one in transcripts)
    with tqdm(total=total, desc="rescoring", unit="token", dynamic_ncols=True, leave=False, delay=1) as bar:
        yield lambda count: bar.update(count) and None


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    made = argparse.ArgumentParser(
        prog="python -m experiments.audit_transcripts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("transcripts", type=Path, help="the .jsonl file that holds what the engine wrote")
    made.add_argument("--target", required=True, help="the model whose law the engine should emit")
    made.add_argument("--control", type=Path, help="what the same engine wrote without speculation")
    made.add_argument("--draft", help="the engine's draft model: a bias toward it shows in fewer tokens")
    made.add_argument("--device", default="auto", help="auto (CUDA if there is a device), cpu, cuda, ...")
    made.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16, to rescore in")
    made.add_argument("--json", action="store_true", help="also write every number to FILE.audit.json")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    return in_one_line(lambda: run(parser().parse_args(arguments)), "stopped; nothing was judged")


if __name__ == "__main__":
    sys.exit(main())
