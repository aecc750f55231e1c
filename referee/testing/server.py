"""Assertion that a server keeps the target's law: started by a command, asked, judged, stopped."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from referee import inputs
from referee.audit import Finding, audit_arms, report_lines
from referee.audit.report import with_own_check
from referee.deciding import InterimEvidence, looks
from referee.engines import Engine, Unanswered, write_transcripts
from referee.prompts import PromptSource
from referee.rescoring import check_fit
from referee.servers.client import Server
from referee.servers.formats import FORMATS
from referee.servers.process import ServerProcess
from referee.testing.plugin import SESSION, Report
from referee.transcribe import FORMAT, KEY
from resispec import plugins
from resispec.errors import InvalidInput
from resispec.sampling import Sampling, filter_order_of

if TYPE_CHECKING:
    from referee.audit.report import TranscriptsReport
    from referee.rescoring import Scorer


@dataclass(frozen=True)
class ServerOptions:
    """Options of `assert_exact_server`.

    format: the server's, one of `resispec transcripts --help`. target: the model whose law the
    server should emit: a folder, hub name, or pair of conf/pair. draft: the server's draft model;
    with it a bias toward it shows in fewer tokens. control: the command that starts the same server
    without speculation, at the same address; it is started after the first one has been stopped,
    and only if that deviates from the target. address: where both answer. prompts: as
    `resispec transcripts --prompts` takes them; by default texts of the package. prompt_tokens:
    texts are cut to so many. tokens: the most that are emitted, with a control by both together.
    seconds: the time for asking and rescoring, from when the server answers; a look at the answers
    that has begun is ended, and the own check of an accusation comes after it. At half of it a
    server with a control gives way. max_new_tokens: of an answer. temperature: above 0.
    concurrency: the requests at a time. start_s: the most seconds until a server answers. device,
    dtype: of the models that rescore. seed: that of the first prompt, prompt i has seed + i; by
    default the pytest run's. folder: the path of where rows and the servers' logs are written; None
    for a new one.
    """

    format: str = ""
    target: str = ""
    draft: str | None = None
    control: str | Sequence[str] | None = None
    address: str = "http://localhost:8000"
    prompts: str = "embedded_docstrings"
    prompt_tokens: int = 48
    tokens: int = 20_000
    seconds: float = 300.0
    max_new_tokens: int = 80
    temperature: float = 1.0
    concurrency: int = 8
    start_s: float = 600.0
    device: str = "auto"
    dtype: str = "float32"
    seed: int | None = None
    folder: Path | str | None = None

    def __post_init__(self) -> None:
        for name in ("format", "target"):
            if not getattr(self, name):
                raise InvalidInput(f"a server's test needs a {name}; allowed: see ServerOptions")
        for name in ("tokens", "prompt_tokens", "max_new_tokens", "concurrency"):
            if type(value := getattr(self, name)) is not int or value < 1:
                raise InvalidInput(f"{name} is {value!r}; allowed: a whole number from 1")
        for name in ("seconds", "temperature", "start_s"):
            if not isinstance(value := getattr(self, name), int | float) or not value > 0:
                raise InvalidInput(f"{name} is {value!r}; allowed: a number above 0")
        texts = ("format", "target", "draft", "address", "prompts", "device", "dtype", "folder")
        for name in texts:
            if not isinstance(value := getattr(self, name), str | Path | None):
                raise InvalidInput(f"{name} is {value!r}; allowed: text")
        self.engine  # noqa: B018 - an unknown format is refused

    @property
    def engine(self) -> Callable[[Server], Engine]:
        """The function that makes the engine behind a server."""
        return plugins.find(FORMAT, self.format, FORMATS)

    @property
    def settings(self) -> Sampling:
        """The settings that are asked for."""
        order = filter_order_of(self.format)
        return Sampling(
            temperature=self.temperature, max_new_tokens=self.max_new_tokens, filter_order=order
        )


def assert_exact_server(command: str | Sequence[str], **options: Any) -> Report:
    """Fail unless no bias is seen in what a server writes.

    command: starts the server; a text is split into words, and no shell reads it. options: the
    fields of `ServerOptions`, of which format and target are needed.

    Returns a report of the bias that would have shown. Raises AssertionError if the server is
    biased, whose first line is the likely cause, and if there is too little to tell. Raises
    InvalidInput for a wrong option, for a server that does not start or answer, and for a control
    that drafted tokens or wrote the same rows; NoVerdict if rescoring cannot be trusted, see
    `resispec judge --help`.
    """
    __tracebackhide__ = True
    allowed = [field.name for field in fields(ServerOptions)]
    if unknown := [name for name in options if name not in allowed]:
        raise InvalidInput(f"unknown option {unknown[0]!r}; allowed: {', '.join(allowed)}")
    chosen = ServerOptions(**options)
    folder = Path(chosen.folder or mkdtemp(prefix="resispec-"))
    scorers = inputs.scorers(chosen.target, chosen.draft, chosen.device, chosen.dtype)
    prompts = _prompts(chosen)
    asked = _asked(command, "transcripts", chosen, folder, prompts, scorers)
    report = audit_arms(asked.arm)
    if chosen.control is not None and report.finding is Finding.BIASED:
        same = prompts[: len(asked.rows)]
        control = _asked(chosen.control, "control", chosen, folder, same, scorers)
        report = audit_arms(asked.arm, control.arm)
    report = with_own_check(report, asked.arm, *scorers)
    if report.finding is not Finding.NO_BIAS_SEEN:
        raise AssertionError("\n".join(_failure(report, command, folder)))
    first = report.weakest
    row = asked.rows[0]
    name = " ".join(filter(None, (row.engine, row.engine_version)))
    count = f"{first.comparison.tokens} tokens in {first.comparison.rows} rows"
    smallest = max(first.smallest_bias.values(), default=float("nan"))
    details = count, *report.summary, report.headline, *report.notes
    return Report(f"{name}: {report.verdict}", details, smallest).noted()


def _prompts(chosen: ServerOptions) -> list[tuple[int, ...]]:
    """The prompts that the tokens allow; a server with a control has half of them."""
    arms = 1 if chosen.control is None else 2
    number = max(1, chosen.tokens // (arms * chosen.max_new_tokens))
    tokenizer = partial(inputs.tokenizer_of, chosen.target, chosen.device, chosen.dtype)
    return PromptSource(chosen.prompts, chosen.prompt_tokens, tokenizer).prompts(number)


def _asked(
    command: str | Sequence[str],
    arm: str,
    chosen: ServerOptions,
    folder: Path,
    prompts: Sequence[tuple[int, ...]],
    scorers: Sequence[Scorer],
) -> InterimEvidence:
    """The last look at what a server writes: when bets decide, or a budget is spent.

    With a control bets do not end it, since a difference takes more tokens than they did.
    """
    seed = SESSION.seed if chosen.seed is None else chosen.seed
    first_seed = seed + (chosen.tokens if arm == "control" else 0)  # no seed is in both arms
    seconds = chosen.seconds / (1 if chosen.control is None else 2)
    log, out = folder / f"{arm}.log", folder / f"{arm}.jsonl"
    if out.exists():
        raise InvalidInput(f"{out} exists; allowed: a folder without rows")
    load = (chosen.concurrency,)
    with ServerProcess(command, chosen.address, log, chosen.start_s) as process:
        end = time.monotonic() + seconds
        client = Server(chosen.address, os.environ.get(KEY), timeout_s=seconds)

        def ask(number: int) -> list[Any]:
            rows = write_transcripts(
                engine, prompts[:number], chosen.settings, out, first_seed, load
            )
            check_fit(scorers, rows)
            return rows

        try:
            engine = chosen.engine(client)
            for look in looks(ask, len(prompts), scorers, load):
                is_decided = chosen.control is None and look.took is not None
                if is_decided or time.monotonic() > end:
                    break
        except Unanswered as error:
            line = f"the last line of {log} is: {process.last_line()}"
            raise InvalidInput(f"{error}; {line}") from error
    return look


def _failure(report: TranscriptsReport, command: str | Sequence[str], folder: Path) -> list[str]:
    """The lines of a failure, the likely cause first."""
    reasons = report.judgements[0].reasons
    if report.finding is Finding.BIASED:
        first = f"likely cause: {report.cause or 'not known'}"
    else:
        first = f"{report.finding}: {reasons[0] if reasons else report.summary[0]}"
    words = command if isinstance(command, str) else shlex.join(command)
    return [
        first,
        *report_lines(report),
        f"started by: {words}",
        f"rows and logs: {folder}",
    ]
