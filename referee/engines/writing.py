"""From an engine to a file of transcripts: several requests at a time, and none for prompts already there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event
from typing import Any

from tqdm import tqdm

from referee.engines.base import Engine
from referee.transcripts import Transcript, line_of, read_transcripts
from resispec.errors import InvalidInput
from resispec.sampling import Sampling

INDEX = "prompt_index"
"""Key of a row that says which prompt it belongs to, counted from 0."""
_START = b'{"prompt_token_ids":['  # of every line that `line_of` makes


def write_transcripts(
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    settings: Sampling,
    path: Path,
    first_seed: int = 0,
    concurrency: int = 1,
) -> list[Transcript]:
    """Ask an engine for the transcripts that a file lacks; returns all of them, in the order of the prompts.

    path: a row is appended as soon as its answer is there, so whatever stops this, the same call goes on; a
    last line that was cut off is removed first. first_seed: prompt i uses this seed + i. concurrency:
    requests at a time; 1 for an engine in this process.
    Raises InvalidInput when the engine cannot apply the settings, refuses a request or answers with no token
    ids, and when the file holds other transcripts than these; Unanswered when the engine gives no answer.
    Requests that are under way then are waited for, and their answers written.
    """
    engine.check(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {**settings.by_name(), "engine": engine.name, "engine_version": engine.version}
    stopped, failures = Event(), list[BaseException]()

    def ask(index: int) -> Transcript | None:
        if stopped.is_set():
            return None
        try:
            answer = engine.answer(prompts[index], settings, first_seed + index)
            values = {"seed": answer.seed, "finish_reason": answer.finish_reason, "place": "the answer"}
            extra = {INDEX: index, **answer.extra}
            return Transcript(prompts[index], answer.tokens, **about, **values, extra=extra)
        except InvalidInput as error:
            stopped.set()
            raise type(error)(f"prompt {index}: {error}") from error

    rows = {index: row for index, row in _written(path).items() if index < len(prompts)}
    for index, row in rows.items():
        seed = None if row.seed is None else first_seed + index  # an engine may have none for a request
        for name, value in {"prompt_token_ids": prompts[index], **about, "seed": seed}.items():
            if (written := getattr(row, name)) != value:
                raise InvalidInput(
                    f"{path}, prompt {index}: {name} is {ascii(written)[:60]}; it would be "
                    f"{ascii(value)[:60]} now; give another file, or what was given when this one was begun"
                )
    interval = 0.1 if sys.stderr.isatty() else 5.0
    counts = {"initial": len(rows), "total": len(prompts)}
    with (
        path.open("a", encoding="utf-8") as file,
        tqdm(**counts, desc=engine.name, unit="prompt", dynamic_ncols=True, mininterval=interval) as bar,
        ThreadPoolExecutor(concurrency) as pool,
    ):
        missing = [index for index in range(len(prompts)) if index not in rows]
        try:
            for future in as_completed([pool.submit(ask, index) for index in missing]):
                if error := future.exception():
                    stopped.set()
                    failures.append(error)
                elif row := future.result():
                    file.write(line_of(row))
                    file.flush()
                    rows[row.extra[INDEX]] = row
                    bar.update()
        finally:
            stopped.set()  # whatever ends this, nothing more is asked for
    if failures:
        raise failures[0]
    return [rows[index] for index in range(len(prompts))]


def _written(path: Path) -> dict[int, Transcript]:
    """The rows of a file that was written here, by their prompts; a last line without an end is cut off."""
    content = path.read_bytes() if path.exists() else b""
    length = content.rfind(b"\n") + 1
    if rest := content[length:]:
        if not rest.startswith(_START[: len(rest)]):  # somebody's file, which is left as it is
            raise InvalidInput(f"{path} ends with a line that is no transcript; give another file")
        with path.open("r+b") as file:
            file.truncate(length)
    rows: dict[int, Transcript] = {}
    for row in read_transcripts(path) if length else []:
        index: Any = row.extra.get(INDEX)
        if type(index) is not int or index < 0 or index in rows:
            raise InvalidInput(
                f"{row.place}: {INDEX} is {index!r}; allowed: a number from 0, each once; give another file"
            )
        rows[index] = row
    return rows
