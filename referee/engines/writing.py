"""Writing of transcripts to a file: several requests at a time, none for prompts already there."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

from referee.engines.base import Answer, Engine
from referee.engines.chat import TURN_SEEDS, Chat
from referee.transcripts import (
    ASKED,
    INDEX,
    LOGPROBS,
    MODE,
    MODEL,
    TOP_LOGPROBS,
    Condition,
    Transcript,
    line_of,
    transcripts_in,
)
from resispec.data import json_lines
from resispec.errors import InvalidInput
from resispec.files import locked
from resispec.progress import progress_bar
from resispec.sampling import Sampling

_START = b'{"prompt_token_ids":['  # the start of every line that `line_of` makes
Key = tuple[Condition, int]
"""The condition of a row, and the number of its prompt."""


def write_transcripts(  # noqa: PLR0913 - the last three are None unless arms are asked for
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    settings: Sampling,
    path: Path,
    first_seed: int = 0,
    concurrency: Sequence[int] = (),
    *,
    restart: int | None = None,
    context: int | None = None,
    chat: Chat | None = None,
) -> list[Transcript]:
    """Ask an engine for the transcripts that a file lacks; returns all, by load and prompt.

    path: a row is appended as soon as its answer is there, so after a stop the same call goes on; a
    last line that was cut off is removed first. first_seed: prompt i uses this seed + i, and in
    later turns TURN_SEEDS more for each. concurrency: numbers of requests at a time; every prompt
    is asked for under each of them, and its row says which. Empty for an engine in this process
    that takes one request at a time. restart, context: written to the rows, see `Condition`; the
    file may hold rows of other starts and contexts. chat: if given, every prompt begins a chat,
    whose requests are sent in order; several chats are under way at a time.

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
    run |= engine.drafting
    stopped = Event()
    answered: SimpleQueue[list[Transcript] | None] = SimpleQueue()
    loads: tuple[int | None, ...] = tuple(concurrency) or (None,)
    turns: tuple[int | None, ...] = (None,) if chat is None else tuple(range(1, chat.turns + 1))
    keys = keys_of(len(prompts), concurrency, restart, context, chat and chat.turns)
    asked = Condition(loads[0], restart, turns[0], context)

    def prompt_of(condition: Condition, index: int) -> tuple[int, ...]:
        """The prompt of a row, which in a later turn holds the row of the turn before."""
        turn = condition.turn
        if chat is None or turn is None or turn == 1:
            return prompts[index]
        last = rows.get((condition._replace(turn=turn - 1), index))
        if last is None:
            raise InvalidInput(
                f"{path}, prompt {index}: turn {turn} is there and the turn before it is "
                "not; give another file"
            )
        return chat.prompt(index, last)

    def seed_of(condition: Condition, index: int) -> int:
        return first_seed + index + TURN_SEEDS * ((condition.turn or 1) - 1)

    def check_row(condition: Condition, index: int, row: Transcript) -> None:
        """Raise InvalidInput for a written row that this call would not have written."""
        # a file may have rows of other loads, starts, turns and contexts, too
        pairs = zip(condition, asked, strict=True)
        allowed = Condition(*(new if None in (own, new) else own for own, new in pairs))
        # an engine may have no seed for a request
        seed = None if row.seed is None else seed_of(condition, index)
        values = {**setup, "seed": seed, **allowed._asdict(), **run}
        is_of_these = condition.context == context and (condition.turn or 1) <= (turns[-1] or 1)
        if allowed == condition and is_of_these:
            values = {"prompt_token_ids": prompt_of(condition, index), **values}
        told = {**run, ASKED: 0, **row.extra, **vars(row)}
        if MODE not in row.extra and "draft" in run:  # an earlier version named both in `model`
            told[MODEL] = told[MODEL].removesuffix(f", {run['draft']}")
        for name, value in (values | {ASKED: engine.num_logprobs}).items():
            if (row_value := told[name]) != value:
                raise InvalidInput(
                    f"{path}, prompt {index}: {name} is {ascii(row_value)[:60]}; it would be "
                    f"{ascii(value)[:60]} now; give another file, or what this one was begun with"
                )

    def row_of(condition: Condition, index: int, answer: Answer) -> Transcript:
        values = {"seed": answer.seed, "finish_reason": answer.finish_reason}
        values |= {name: getattr(answer, name) for name in (LOGPROBS, TOP_LOGPROBS)}
        extra = {INDEX: index, **run, **answer.extra}
        prompt, place = prompt_of(condition, index), "the answer"
        if (number := len(answer.tokens)) > settings.max_new_tokens:
            has_prompt = answer.tokens[: len(prompt)] == prompt
            raise InvalidInput(
                f"{place} has {number} tokens{', the prompt first' * has_prompt}; allowed: up to "
                f"{settings.max_new_tokens}, the max_new_tokens that were asked for, emitted ones "
                "alone"
            )
        return Transcript(
            prompt,
            answer.tokens,
            **setup,
            **values,
            **condition._asdict(),
            extra=extra,
            place=place,
        )

    def converse(load: int | None, indices: Sequence[int]) -> None:
        """Ask for the rows of some prompts that are missing, turn by turn."""
        try:
            for turn in turns:
                condition = asked._replace(concurrency=load, turn=turn)
                due = [index for index in indices if (condition, index) not in rows]
                if due and not stopped.is_set():
                    parts = [prompt_of(condition, index) for index in due]
                    seeds = [seed_of(condition, index) for index in due]
                    answers = engine.answers(parts, settings, seeds)
                    new = [row_of(condition, *pair) for pair in zip(due, answers, strict=True)]
                    rows.update({(condition, row.extra[INDEX]): row for row in new})
                    answered.put(new)
        except InvalidInput as error:
            stopped.set()
            later = f", turn {turn}" if turn and turn > 1 else ""
            raise type(error)(f"prompt {indices[0]}{later}: {error}") from error
        except BaseException:
            stopped.set()
            raise
        finally:
            answered.put(None)

    with locked(path.with_name(f".{path.name}.lock")):
        rows = {key: row for key, row in _written(path).items() if key[1] < len(prompts)}
        for (condition, index), row in rows.items():
            check_row(condition, index, row)
        missing = [key for key in keys if key not in rows]
        counts = {"initial": len(keys) - len(missing), "total": len(keys)}
        _end_last_line(path)
        with (
            path.open("a", encoding="utf-8") as file,
            progress_bar(**counts, desc=engine.name, unit="prompt") as bar,
        ):
            for load in loads:
                size = load if load and engine.takes_batches else 1
                indices = list(
                    dict.fromkeys(index for key, index in missing if key.concurrency == load)
                )
                with ThreadPoolExecutor((load or 1) // size) as pool:
                    try:
                        futures = [
                            pool.submit(converse, load, indices[start : start + size])
                            for start in range(0, len(indices), size)
                        ]
                        under_way = len(futures)
                        while under_way:
                            if (new := answered.get()) is None:
                                under_way -= 1
                                continue
                            for row in new:
                                file.write(line_of(row))
                                file.flush()
                                bar.update()
                    except BaseException:
                        stopped.set()  # nothing more is asked for, whatever the error
                        engine.stop()
                        raise
                for future in futures:
                    future.result()  # the first failure is raised when all answers are written
        return [rows[key] for key in keys]


def keys_of(
    number: int,
    concurrency: Sequence[int] = (),
    restart: int | None = None,
    context: int | None = None,
    turns: int | None = None,
) -> list[Key]:
    """The keys of all rows of the first `number` prompts, see `write_transcripts`.

    By load and prompt.
    """
    return [
        (Condition(load, restart, turn, context), index)
        for load in concurrency or (None,)
        for index in range(number)
        for turn in ((None,) if turns is None else range(1, turns + 1))
    ]


def rows_of(path: Path, keys: Sequence[Key]) -> list[Transcript] | None:
    """The rows with these keys if the file has them all, else None.

    They are not checked against what is asked for now: `write_transcripts` does so, for all rows of
    a file. Raises InvalidInput as it does for a file of something else.
    """
    rows = _written(path)
    return [rows[key] for key in keys] if rows.keys() >= set(keys) else None


def _whole_lines(path: Path) -> bytes:
    """The lines of a file, without a last one that was cut off; the last may lack its line break.

    Raises InvalidInput if the last line is neither JSON nor the beginning of a transcript.
    """
    content = path.read_bytes() if path.exists() else b""
    length = content.rfind(b"\n") + 1
    tail = content[length:]
    if not tail or _is_json(tail):
        return content
    if not tail.startswith(_START[: len(tail)]):  # somebody's file, which is left as it is
        raise InvalidInput(f"{path} ends with a line that is no transcript; give another file")
    return content[:length]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _end_last_line(path: Path) -> None:
    """Remove a last line that was cut off, and end a whole one that has no line break."""
    whole = _whole_lines(path)
    with path.open("ab") as file:
        if file.tell() > len(whole):  # a file that is whole is not touched
            file.truncate(len(whole))
        if whole and not whole.endswith(b"\n"):
            file.write(b"\n")


def _written(path: Path) -> dict[Key, Transcript]:
    """The rows of a file written here, by condition and prompt, without a line that was cut off.

    The file stays as it is: until all of its rows are known, it may be somebody's.
    """
    whole = _whole_lines(path)
    count = whole.count(b"\n") + (not whole.endswith(b"\n"))
    rows: dict[Key, Transcript] = {}
    for row in transcripts_in(islice(json_lines(path), count), path) if whole else ():
        index: Any = row.extra.get(INDEX)
        if type(index) is not int or index < 0 or (row.condition, index) in rows:
            raise InvalidInput(
                f"{row.place}: {INDEX} is {index!r}; allowed: a number from 0, each once; give "
                "another file"
            )
        rows[row.condition, index] = row
    return rows
