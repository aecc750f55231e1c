"""Writing of transcripts to a file: several requests at a time,
and none for prompts already there.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event
from typing import Any

from referee.engines.base import Answer, Engine
from referee.transcripts import (
    ASKED,
    INDEX,
    LOGPROBS,
    TOP_LOGPROBS,
    Transcript,
    line_of,
    read_transcripts,
)
from resispec.errors import InvalidInput
from resispec.files import locked
from resispec.progress import progress_bar
from resispec.sampling import Sampling

_START = b'{"prompt_token_ids":['  # the start of every line that `line_of` makes


def write_transcripts(
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    settings: Sampling,
    path: Path,
    first_seed: int = 0,
    concurrency: Sequence[int] = (),
) -> list[Transcript]:
    """Ask an engine for the transcripts that a file lacks; returns all,
    by load and in the order of prompts.

    path: a row is appended as soon as its answer is there, so after a stop the same call goes on; a
    last line that was cut off is removed first. first_seed: prompt i uses this seed + i.
    concurrency: numbers of requests at a time; every prompt is asked for under each of them, and
    its row says which. Empty for an engine in this process that takes one request at a time.
    Raises InvalidInput if the engine cannot apply the settings, refuses a request or answers
    without token ids, and if the file holds other transcripts than these; Unanswered if the engine
    gives no answer. Before that, the requests under way are waited for and their answers written.
    Raises TimeoutError if another process writes to the file.
    """
    engine.check(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    setup = {**settings.by_name(), "engine": engine.name, "engine_version": engine.version}
    run = {"max_new_tokens": settings.max_new_tokens} | (
        {"model": engine.model} if engine.model else {}
    )
    run |= {ASKED: engine.num_logprobs} if engine.num_logprobs else {}
    stopped = Event()

    def ask(load: int | None, indices: Sequence[int]) -> list[Transcript]:
        if stopped.is_set():
            return []
        try:
            seeds = [first_seed + index for index in indices]
            answers = engine.answers([prompts[index] for index in indices], settings, seeds)
            return [row_of(load, *pair) for pair in zip(indices, answers, strict=True)]
        except InvalidInput as error:
            stopped.set()
            raise type(error)(f"prompt {indices[0]}: {error}") from error

    def row_of(load: int | None, index: int, answer: Answer) -> Transcript:
        values = {"seed": answer.seed, "concurrency": load, "finish_reason": answer.finish_reason}
        values |= {name: getattr(answer, name) for name in (LOGPROBS, TOP_LOGPROBS)}
        extra = {INDEX: index, **run, **answer.extra}
        return Transcript(
            prompts[index], answer.tokens, **setup, **values, extra=extra, place="the answer"
        )

    loads = tuple(concurrency) or (None,)
    with locked(path.with_name(f".{path.name}.lock")):
        rows = {key: row for key, row in _written(path).items() if key[1] < len(prompts)}
        for (load, index), row in rows.items():
            # an engine may have none for a request
            seed = None if row.seed is None else first_seed + index
            row_load = load if load and loads[0] else loads[0]  # a file may have other loads, too
            values = {
                "prompt_token_ids": prompts[index],
                **setup,
                "seed": seed,
                "concurrency": row_load,
            }
            told = {**run, ASKED: 0, **row.extra, **vars(row)}
            for name, value in (values | run | {ASKED: engine.num_logprobs}).items():
                if (row_value := told[name]) != value:
                    raise InvalidInput(
                        f"{path}, prompt {index}: {name} is {ascii(row_value)[:60]}; it would be "
                        f"{ascii(value)[:60]} now; give another file, or what this one was begun "
                        "with"
                    )
        keys = [(load, index) for load in loads for index in range(len(prompts))]
        missing = [key for key in keys if key not in rows]
        counts = {"initial": len(keys) - len(missing), "total": len(keys)}
        with (
            path.open("a", encoding="utf-8") as file,
            progress_bar(**counts, desc=engine.name, unit="prompt") as bar,
        ):
            for load in loads:
                size = load if load and engine.takes_batches else 1
                indices = [index for of_load, index in missing if of_load == load]
                with ThreadPoolExecutor((load or 1) // size) as pool:
                    try:
                        starts = range(0, len(indices), size)
                        futures = [
                            pool.submit(ask, load, indices[start : start + size])
                            for start in starts
                        ]
                        for future in as_completed(futures):
                            if future.exception():
                                stopped.set()
                                continue
                            for row in future.result():
                                file.write(line_of(row))
                                file.flush()
                                rows[row.concurrency, row.extra[INDEX]] = row
                                bar.update()
                    except BaseException:
                        stopped.set()  # nothing more is asked for, whatever the error
                        engine.stop()
                        raise
                for future in futures:
                    future.result()  # the first failure is raised when all answers are written
        return [rows[key] for key in keys]


def _written(path: Path) -> dict[tuple[int | None, int], Transcript]:
    """The rows of a file that was written here, by load and prompt;
    an unfinished last line is cut off.
    """
    content = path.read_bytes() if path.exists() else b""
    length = content.rfind(b"\n") + 1
    if tail := content[length:]:
        if not tail.startswith(_START[: len(tail)]):  # somebody's file, which is left as it is
            raise InvalidInput(f"{path} ends with a line that is no transcript; give another file")
        with path.open("r+b") as file:
            file.truncate(length)
    rows: dict[tuple[int | None, int], Transcript] = {}
    for row in read_transcripts(path) if length else []:
        index: Any = row.extra.get(INDEX)
        if type(index) is not int or index < 0 or (row.concurrency, index) in rows:
            raise InvalidInput(
                f"{row.place}: {INDEX} is {index!r}; allowed: a number from 0, each once; give "
                "another file"
            )
        rows[row.concurrency, index] = row
    return rows
