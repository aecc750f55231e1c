"""Transcripts: which tokens an engine was given, which it emitted, and under which settings.

`referee.engines` makes engines write transcripts, and `referee.audit` judges them. A file of
transcripts is JSON Lines: one object a line, with the fields of `Transcript` as keys. Only the two
lists of token ids are required. Text is no substitute for ids: encoding a text again does not give
the tokens that were emitted. Importing this module does not import torch.
"""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from referee.engine_laws import (
    WINDOW,
    check_declarable,
    check_law,
    check_same_everywhere,
    check_window,
)
from referee.rollouts import LOGPROBS, OUTPUT, PROMPT, emitted_rows
from resispec.data import json_lines
from resispec.errors import InvalidInput, printable
from resispec.sampling import (
    FILTER_ORDERS,
    SETTINGS,
    Warp,
    engine_of,
    filter_order_of,
    letters_of,
)

TOKENS = (PROMPT, OUTPUT)
"""The fields that every row must have."""
TOO_LARGE = 2**31
"""The first number that is no token's id."""


class Condition(NamedTuple):
    """The condition under which an engine answered, which makes the arms of an audit.

    concurrency: the number of requests that the engine had at a time. restart: the number of its
    start, from 1. turn: the number of the user's turn in a chat, from 1. context: the number of
    tokens to which the prompt was filled up, 0 for a prompt as it is. None: not known.
    """

    concurrency: int | None = None
    restart: int | None = None
    turn: int | None = None
    context: int | None = None


_TYPES: dict[str, type] = {
    **dict.fromkeys(("seed", "sample", *Condition._fields), int),
    **dict.fromkeys(("finish_reason", "engine", "engine_version"), str),
}
TOP_LOGPROBS = "top_logprobs"
_KEYS = (*TOKENS, *SETTINGS, *_TYPES, LOGPROBS, TOP_LOGPROBS)
OTHERS = ("draft", "assistant", "spec", "judge", "reward", "teacher", "ref", "eval", "val", "test")
"""How keys begin whose settings are of another model, or of other draws, than a row's tokens."""
INDEX = "prompt_index"
"""The key of a row for the number of its prompt, from 0."""
ASKED = "num_logprobs"
"""The key of a row for the number of most probable tokens that were asked for at each place."""
LIMIT, MODEL = "max_new_tokens", "model"
"""The keys of a row for the most tokens that were asked for, and for the model's name."""
SPEC_DECODE, NUM_DRAFTED = "spec_decode", "num_draft_tokens"
"""The key of a row for its acceptance record, and that of the record for the drafted tokens."""
CHATS = ("messages", "tools", "tool_calls")
"""Keys of lists that say nothing of the request's settings, whatever is called so in them."""
MODE, MODES = "mode", ("plain", "assisted", "prompt_lookup")
"""The key of a row for how an engine in this process drafted, and its values.

Such an engine drafts nothing; with the pair's draft model; or the tokens that followed the same
tokens earlier; at most `num_drafted` tokens a step. Each engine raises InvalidInput for an unknown
mode, and if the mode needs a draft model that the pair lacks.
"""
PRECISION, WEIGHTS, DRAFT_WEIGHTS = "dtype", "weights", "draft_weights"
"""Keys of rows for the precision of the models, and for digests of their weights in it."""
STARTED_BY = "started_by"
"""The key of a row for the command that started a server."""
DRAFTING = (MODE, "draft", "num_drafted", PRECISION, WEIGHTS, DRAFT_WEIGHTS, STARTED_BY)
"""Keys of rows: how an engine in this process drafted, with what, and how a server was started."""
NOTED = (INDEX, LIMIT, MODEL, SPEC_DECODE, ASKED, WINDOW, *DRAFTING)
"""The further keys that `referee.engines` writes to rows; no law depends on them."""


NO_SEEDS = {"llama.cpp": (-1, 2**32 - 1), "vllm": (-1,)}
"""For engines, the seeds of requests for which they draw a seed themselves."""
MOST_LOGPROB = 1e-3
"""The largest log-probability that rounding can make of 0."""
MOST_MASS = 1.02
"""The largest mass of a law's most probable tokens, with what rounding to bfloat16 adds."""


@dataclass(frozen=True)
class Transcript(Warp):
    """One request to an engine, and every token that it emitted.

    prompt_token_ids: the tokens that the model read, special tokens included. output_token_ids:
    every emitted token, in order, with the end-of-sequence token if there was one. The settings of
    the law are those that really applied. sample: the number of this answer, from 0, if the request
    asked for several; the answers share the prompt and the seed, but not their draws. concurrency,
    restart, turn, context: see `Condition`. logprobs: what the engine says of the log-probability
    of each emitted token. top_logprobs: for each emitted token the most probable tokens at its
    place, as pairs of id and log-probability, none where it gave none. extra: the other keys of the
    row, such as an engine's acceptance records; no law depends on them. A key that is nearly a
    setting is refused, see `setting_meant`, and so is a setting within another key's value, unless
    its value is None or, within another key or behind a prefix as in "rollout_top_p", the one that
    applies. So is a setting that no transcript can declare, unless it is off, see
    `check_declarable`.

    filter_order: by default that of the engine, by its name; if that names no known one, settings
    of which engines make different laws are refused. place: where the row stands, for messages; it
    is not written. Texts are made `printable`.

    Raises InvalidInput, one line that begins with `place`, for a value that is not allowed, and for
    settings that the engine, by its name, applies in another way, see `check_law`.
    """

    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    filter_order: str = field(default="", kw_only=True)
    seed: int | None = None
    sample: int | None = None
    concurrency: int | None = None
    restart: int | None = None
    turn: int | None = None
    context: int | None = None
    finish_reason: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    place: str = field(default="a transcript", compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in TOKENS:
            tokens, place = getattr(self, name), f"{self.place}: {name}"
            if isinstance(tokens, list):
                tokens = tuple(tokens)
                object.__setattr__(self, name, tokens)
            if not isinstance(tokens, tuple) or not tokens:
                found = "empty" if isinstance(tokens, tuple) else ascii(tokens)[:60]
                raise InvalidInput(
                    f"{place} is {found}; allowed: a list of token ids, at least one"
                )
            for token in tokens:
                if not _is_id(token):
                    raise InvalidInput(
                        f"{place} holds {ascii(token)[:60]}; allowed: whole numbers from 0, below "
                        f"{TOO_LARGE}"
                    )
        engine = self.engine if isinstance(self.engine, str) else ""
        has_order = self.filter_order != ""
        if not has_order:
            object.__setattr__(self, "filter_order", filter_order_of(engine))
        self.check(self.place)
        for name, kind in _TYPES.items():
            if (value := getattr(self, name)) is not None and type(value) is not kind:
                allowed = "whole numbers" if kind is int else "text"
                raise InvalidInput(
                    f"{self.place}: {name} is {ascii(value)[:60]}; allowed: {allowed}"
                )
            if kind is str and value is not None:
                object.__setattr__(self, name, printable(value))
        self._check_logprobs()
        check_law(self, self.engine or "", f"{self.place}: ")
        if self.engine and not has_order and engine_of(self.engine) not in FILTER_ORDERS:
            line = f"{self.place}: {self.engine}"
            check_same_everywhere(self, line, "filter_order in the row or --settings")
        if self.seed in NO_SEEDS.get(engine_of(self.engine or "") or "", ()):
            object.__setattr__(self, "seed", None)
        length, places = sum(map(len, self.written)), [*_places(self.extra)]
        names = (keys[-1] for keys, _ in places)
        check_window(names, self, self.engine or "", length, f"{self.place}: ")
        for keys, value in places:
            where = f"{self.place}: {'.'.join(keys)[:60]}"
            check_declarable(keys[-1], value, self, self.engine or "", length, where)
            name = setting_meant(keys[-1])
            may_repeat = len(keys) > 1 or keys[-1].endswith(f"_{name}")
            if name and not (may_repeat and _is_same(name, value, getattr(self, name))):
                raise InvalidInput(
                    f"{self.place}: the key {'.'.join(keys)[:60]!r} is not read; did you mean "
                    f"{name}? Allowed for the settings, as keys of the row itself: "
                    f"{', '.join(SETTINGS)}"
                )

    def _check_logprobs(self) -> None:
        """Make tuples of the lists of log-probabilities, and raise InvalidInput for wrong ones."""
        count = len(self.output_token_ids)
        for name in (LOGPROBS, TOP_LOGPROBS):
            if (values := getattr(self, name)) is None:
                continue
            if not isinstance(values, list | tuple) or len(values) != count:
                found = len(values) if isinstance(values, list | tuple) else ascii(values)[:60]
                raise InvalidInput(
                    f"{self.place}: {name} is a list of {found}; allowed: one entry for each of "
                    f"the {count} emitted tokens"
                )
        if self.logprobs is not None:
            values = tuple(_logprob(value, f"{self.place}: {LOGPROBS}") for value in self.logprobs)
            object.__setattr__(self, LOGPROBS, values)
        if self.top_logprobs is not None:
            place = f"{self.place}: {TOP_LOGPROBS}"
            tops = tuple(_top_logprobs(top, place) for top in self.top_logprobs)
            object.__setattr__(self, TOP_LOGPROBS, tops)

    @property
    def written(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The prompt and the output."""
        return self.prompt_token_ids, self.output_token_ids

    def cut(self, limit: int) -> "Transcript":
        """The row as it would be if the engine had stopped it after `limit` tokens."""
        if len(self.output_token_ids) < limit:
            return self
        return replace(
            self,
            output_token_ids=self.output_token_ids[:limit],
            logprobs=self.logprobs and self.logprobs[:limit],
            top_logprobs=self.top_logprobs and self.top_logprobs[:limit],
            finish_reason="length",
        )

    @property
    def condition(self) -> Condition:
        """The condition under which the engine answered."""
        return Condition(*(getattr(self, name) for name in Condition._fields))

    @property
    def setting(self) -> str:
        """The temperature and other settings that are on, in words, equal for equal settings."""
        items = ((name, value) for name, value in self.by_name().items() if name != "filter_order")
        others = [
            f"{name}={float(value):g}"
            for name, value in [*items][1:]
            if value != getattr(Warp, name)
        ]
        if not self.is_as_in(Warp.filter_order):
            others.append(f"in the order of {self.filter_order}")
        return ", ".join([f"T={float(self.temperature):g}", *others])


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < TOO_LARGE


def _logprob(value: Any, place: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # a whole number of a JSON file can be finite and no float
    if not is_number or not -sys.float_info.max <= value <= MOST_LOGPROB:
        raise InvalidInput(f"{place} holds {ascii(value)[:60]}; allowed: finite numbers up to 0")
    return float(value)


def _top_logprobs(top: Any, place: str) -> tuple[tuple[int, float], ...]:
    """Pairs of different ids and their log-probabilities, whose masses are those of a law."""
    pairs = []
    for pair in top if isinstance(top, list | tuple) else (None,):
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not _is_id(pair[0]):
            raise InvalidInput(
                f"{place} holds {ascii(top)[:60]}; allowed: lists of [id, log-probability], ids "
                f"from 0, below {TOO_LARGE}"
            )
        pairs.append((pair[0], _logprob(pair[1], place)))
    mass = sum(math.exp(value) for _, value in pairs)
    if len(dict(pairs)) < len(pairs) or mass > MOST_MASS:
        found = f"{len(pairs)} tokens with a mass of {mass:.4g}"
        if len(pairs) > 1 and not any(value for _, value in pairs):
            found += ", all with log-probability 0, as an engine writes that does not compute them"
        raise InvalidInput(f"{place} has {found} at one place; allowed: different tokens up to 1")
    return tuple(pairs)


def setting_meant(key: str) -> str | None:
    """The setting that a key like "topp", "Temperature" or "temp" misspells or shortens, or None.

    A key like "draft_temperature" names a setting of something else, and so misspells none, but
    "rollout_temperature" is the row's own.
    """
    for name in SETTINGS:
        if key.endswith(f"_{name}"):
            return None if key.startswith(OTHERS) else name
    spellings = {letters_of(name): name for name in SETTINGS}
    word = letters_of(key)
    short = [spelling for spelling in spellings if len(word) >= 4 and spelling.startswith(word)]
    matches = short or get_close_matches(word, spellings, n=1, cutoff=0.8)
    return spellings[matches[0]] if matches else None


def _places(values: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every value in a mapping that is not None, after the keys that lead to it.

    Values of mappings within it count, too, and of lists of them, but for chats.
    """
    for key, value in values.items():
        place = (*keys, str(key))
        if value is not None:
            yield place, value
        is_list = isinstance(value, list | tuple) and key not in CHATS
        for one in value if is_list else [value]:
            if isinstance(one, Mapping):
                yield from _places(one, place)


def _is_same(name: str, value: Any, own: Any) -> bool:
    """Whether a value is the one that applies, to float32's precision; a `top_k` of -1 is off."""
    if name == "top_k" and value == -1:
        value = 0
    is_float = isinstance(value, float) and isinstance(own, float)
    return bool(value == own) or (is_float and math.isclose(value, own, rel_tol=1e-6))


def read_transcripts(
    path: Path | str, settings: Mapping[str, Any] | None = None
) -> list[Transcript]:
    """Every row of a JSON Lines file in UTF-8, in order.

    A key with the value null counts as absent; `top_k` of -1 means off, as some engines write it.
    Rows may have the keys of RL trainers, see `referee.rollouts`. settings: those that rows need
    not say themselves.

    Raises InvalidInput, one line with the file and the line in it, if the file cannot be read or is
    empty, or for the first row that is not a `Transcript`.
    """
    transcripts = [*transcripts_in(json_lines(Path(path)), path, settings)]
    if not transcripts:
        raise InvalidInput(f"transcripts {path} are empty; at least one row is needed")
    return transcripts


def transcripts_in(
    lines: Iterable[tuple[str, int, Any]],
    path: Path | str,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Transcript]:
    """The rows in some lines of a file, see `read_transcripts`.

    lines: as `json_lines` gives them. Raises InvalidInput for the first row that is not a
    `Transcript`.
    """
    for where, _, row in lines:
        place = f"{path}, {where}"
        if not isinstance(row, dict):
            raise InvalidInput(f"{place}: expected a JSON object, found {ascii(row)[:60]}")
        for emitted in emitted_rows(row, place, settings or {}):
            extra = dict(emitted.extra)
            fields = emitted.fields | {
                name: extra.pop(name)
                for name in (*_TYPES, *_lists(extra))
                if extra.get(name) is not None
            }
            extra = {name: value for name, value in extra.items() if name not in _TYPES}
            yield Transcript(**fields, extra=extra, place=emitted.place)


def _lists(row: Mapping[str, Any]) -> list[str]:
    """TOP_LOGPROBS, if a row has it as a list; as a number it is the request's parameter."""
    return [TOP_LOGPROBS] if isinstance(row.get(TOP_LOGPROBS), list) else []


def line_of(transcript: Transcript) -> str:
    """A transcript's line in a file, with its line break: a JSON object without fields of None."""
    values = {name: getattr(transcript, name) for name in _KEYS}
    row = {name: value for name, value in values.items() if value is not None}
    return json.dumps(row | dict(transcript.extra), separators=(",", ":")) + "\n"
