"""Conditions of rows make arms: how they are named, and which of them are compared.

A load (requests at a time) and a start are states of the engine, which continue the same prompts. A
later turn of a chat and a long context have other prompts.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from referee.engine_laws import SAMPLERS
from referee.rollouts import STOP_REASON
from referee.transcripts import (
    MODE,
    MODEL,
    MODES,
    NOTED,
    NUM_DRAFTED,
    PRECISION,
    SPEC_DECODE,
    WEIGHTS,
    Condition,
    Transcript,
    setting_meant,
)
from resispec.audit.verdict import Finding
from resispec.errors import InvalidInput, printable

SAME_RUN = 1e-6
"""The chance of so many equal rows below which a control is taken for the same run."""
VERSIONS = ("weight_version", "weight_versions", "policy_version", "model_version")
"""The keys of rows under which engines and trainers write of which weights a row is."""
STEPS = ("step", "global_step", "train_step", "training_step")
"""The keys of rows for the step of a training, after which weights may be others."""
IGNORES_END = "ignore_eos"
"""The key of a row of an engine that went on behind an end of sequence."""
CHANCE_TOKENS = 8
"""The number of equal tokens, of prompts that outputs repeat or of a filling, that is no chance."""
SHOWN = 5
"""The most lines or names of one kind that are shown."""
FILLED = 8
"""The least number of rows that end with one token twice or more for it to be a filling."""
LATER = 2
"""Turns from this one on are one arm, since they go on from the engine's own answers."""


@dataclass(frozen=True)
class ConditionKind:
    """One of the fields of `Condition`, in words.

    name: the field. value: an arm, with {} for its number. unknown: an arm without a number. words:
    arms that have other words than `value`, by their number. values, own: all its arms, and that of
    the engine, in a sentence. has_same_prompts: whether its arms continue the same prompts.
    """

    name: str
    value: str
    unknown: str
    words: dict[int, str]
    values: str
    own: str
    has_same_prompts: bool = True

    def arm(self, number: int | None) -> str:
        """An arm in words."""
        if number is None:
            return self.unknown
        return self.words.get(number, self.value.format(number))

    def sentence(self, finding: Finding) -> str:
        """The finding of the comparisons between its arms."""
        return {
            Finding.NO_BIAS_SEEN: f"between {self.values} no difference was found",
            Finding.BIASED: f"what the engine emits depends on {self.own}",
            Finding.UNDECIDED: f"whether what it emits depends on {self.own} is undecided",
        }[finding]


KINDS = (
    ConditionKind(
        "concurrency",
        "{} at a time",
        "an unknown number at a time",
        {},
        "its loads, the requests at a time,",
        "its load, the requests that it has at a time",
    ),
    ConditionKind(
        "restart", "start {}", "an unknown start", {}, "its starts", "how it has started"
    ),
    ConditionKind(
        "turn",
        "turn {}",
        "no turn",
        {LATER: "later turns"},
        "the first and later turns of chats",
        "the turn of a chat, which goes on from its own answers",
        has_same_prompts=False,
    ),
    ConditionKind(
        "context",
        "{} tokens of context",
        "an unknown context",
        {0: "prompts as they are"},
        "short and long contexts",
        "the length of the context",
        has_same_prompts=False,
    ),
)
"""The kinds of arms, in the order of the fields of `Condition`."""


def condition_of(row: Transcript) -> Condition:
    """The condition of a row as an arm of the audit has it, with all later turns as one."""
    condition = row.condition
    return condition if condition.turn is None else condition._replace(turn=min(LATER, row.turn))


def in_order(conditions: Collection[Condition]) -> list[Condition]:
    """Different conditions, the smallest numbers first, unknown ones before them."""
    return sorted(set(conditions), key=lambda one: [-1 if v is None else v for v in one])


def by_condition(rows: Iterable[Transcript]) -> dict[Condition, list[int]]:
    """The numbers of the rows of each condition, see `condition_of`, in the order of `in_order`."""
    parts: dict[Condition, list[int]] = {}
    for number, row in enumerate(rows):
        parts.setdefault(condition_of(row), []).append(number)
    return {condition: parts[condition] for condition in in_order(parts)}


def written_by(rows: Iterable[Transcript]) -> Iterator[str]:
    """A line that names the engines of rows, if they name any."""
    names = (f"{row.engine} {row.engine_version or ''}".strip() for row in rows if row.engine)
    if engines := Counter(names):
        counts = (f"{engine} ({count} rows)" for engine, count in engines.items())
        yield f"written by {', '.join(counts)}"


def unread_keys(rows: Iterable[Transcript]) -> Iterator[str]:
    """A line that names the keys of rows that no audit reads or knows, if there are any."""
    known = {*NOTED, *VERSIONS, *STEPS, IGNORES_END, STOP_REASON, SAMPLERS}
    extra = {key for row in rows for key in row.extra}
    if keys := {key for key in extra - known if setting_meant(key) is None}:
        names = [printable(key)[:40] for key in sorted(keys)]
        others = f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)
        yield f"keys of the rows that were not read: {', '.join(names[:SHOWN])}{others}"


def check_emitted(transcripts: Sequence[Transcript], ends: Collection[int] | None = None) -> None:
    """Raise InvalidInput for outputs that hold more than what was emitted.

    Such outputs mostly begin with their own prompts, or are filled up behind their ends. ends: the
    tokens that end a sequence; None if they are not known, and then it is the token that many rows
    end with again and again.
    """
    _check_echo(transcripts)
    _check_filling(transcripts, _repeated_ends(transcripts) if ends is None else ends)


def _repeated_ends(transcripts: Sequence[Transcript]) -> list[int]:
    """The token that at least FILLED rows end with twice or more; none if there is none."""
    outputs = [row.output_token_ids for row in transcripts]
    last = Counter(output[-1] for output in outputs if output[-2:-1] == output[-1:])
    return [token for token, number in last.most_common(1) if number >= FILLED]


def _check_echo(transcripts: Sequence[Transcript]) -> None:
    """Raise InvalidInput if most outputs begin with their prompts, too long for chance."""
    echoes = [row for row in transcripts if begins(row.output_token_ids, row.prompt_token_ids)]
    num_tokens = sum(len(row.prompt_token_ids) for row in echoes)
    if len(echoes) > len(transcripts) / 2 and num_tokens >= CHANCE_TOKENS:
        raise InvalidInput(
            f"{echoes[0].place}: the outputs of {len(echoes)} of {len(transcripts)} rows begin "
            "with their own prompts, as where prompt and output are returned in one; allowed: the "
            "emitted tokens alone"
        )


def begins(output: Sequence[int], beginning: Sequence[int]) -> bool:
    """Whether tokens begin with others, or are these."""
    return output[: len(beginning)] == beginning


def _check_filling(transcripts: Sequence[Transcript], ends: Collection[int]) -> None:
    """Raise InvalidInput if all that follows first ends of sequence is one token, many times.

    An engine that ignores ends of sequence emits further tokens of its law, which differ; where
    they need not, as at a low temperature, a row can say `ignore_eos`.
    """
    tails = []
    for transcript in transcripts:
        output = transcript.output_token_ids
        first = next((place for place, token in enumerate(output) if token in ends), len(output))
        if first < len(output) - 1:
            tails.append((transcript, output[first + 1 :]))
    longest = max((len(tail) for _, tail in tails), default=0)
    tokens = {token for _, tail in tails for token in tail}
    is_said = any(_says_ignored(transcript.extra) for transcript, _ in tails)
    if len(tokens) == 1 and longest >= CHANCE_TOKENS and not is_said:
        raise InvalidInput(
            f"{tails[0][0].place}: behind an end of sequence there is nothing but token "
            f"{tokens.pop()}, here and in all {len(tails)} rows that go on; what fills rows up is "
            "not emitted, so cut it off (an engine that went on by itself is said by ignore_eos: "
            "true)"
        )


def _says_ignored(extra: Mapping[str, Any]) -> bool:
    """Whether a row's further keys, nested ones too, say that ends of sequence were ignored."""
    mappings = [extra, *(value for value in extra.values() if isinstance(value, Mapping))]
    return any(mapping.get(IGNORES_END) is True for mapping in mappings)


def check_arms(
    transcripts: Sequence[Transcript],
    control: Sequence[Transcript] | None = None,
    chance_of: Callable[[int], float] | None = None,
) -> list[str]:
    """Raise InvalidInput unless a control compares with the transcripts; lines about the models.

    It compares if it is another run, without drafts, under the same settings, and if rows of one
    side name one model. Without a control the transcripts alone are checked. chance_of: see
    `_check_other_run`.
    """
    arms = [transcripts] if control is None else [transcripts, control]
    if control is not None:
        _check_other_run(transcripts, control, chance_of)
        _check_without_drafts(control)
    _check_settings(arms)
    return _models_lines(arms)


def _check_other_run(
    transcripts: Sequence[Transcript],
    control: Sequence[Transcript],
    chance_of: Callable[[int], float] | None,
) -> None:
    """Raise InvalidInput for a control that is no other run.

    It is no other run if most sampled rows of the smaller arm, and most of its tokens, are rows of
    the other, in whatever order: short answers are often the same by chance. One seed in both arms
    explains equal tokens, unless the rows are equal in every key; different seeds explain nothing.
    At temperature 0 an exact engine writes the same rows twice. chance_of: the chance that so many
    sampled rows are the same in two runs, if the law is known; from SAME_RUN on they are no reason.
    """
    arms = [[row for row in rows if row.temperature > 0] for rows in (transcripts, control)]
    sides = [Counter((row.written, row.setting) for row in rows) for rows in arms]
    same = (sides[0] & sides[1]) - _explained(arms)
    smaller = min(sides, key=Counter.total)
    is_most = same.total() > smaller.total() / 2 and _num_tokens(same) > _num_tokens(smaller) / 2
    if is_most and chance_of is not None:
        is_most = chance_of(same.total()) < SAME_RUN
    if is_most:
        raise InvalidInput(
            f"{same.total()} of the {len(arms[1])} sampled rows of the control are the same rows "
            "as the transcripts have, so it can show nothing; allowed: rows of another run, "
            "without speculation, most of which differ, or whose seeds are those of the "
            "transcripts, which says why they do not"
        )


def _explained(arms: Sequence[Sequence[Transcript]]) -> Counter[Any]:
    """The number of pairs of rows with one seed that are equal, but not in every key.

    They are counted by what the rows have written and their setting.
    """
    seeded = [[row for row in rows if row.seed is not None] for rows in arms]
    pairs: Counter[Any] = Counter()
    sides = [
        Counter((row.written, row.setting, row.seed, row.sample) for row in rows) for rows in seeded
    ]
    for (written, setting, *_), number in (sides[0] & sides[1]).items():
        pairs[written, setting] += number
    wholes = [Counter((row.written, row.setting, repr(row)) for row in rows) for rows in seeded]
    for (written, setting, _), number in (wholes[0] & wholes[1]).items():
        pairs[written, setting] -= number
    return pairs


def _check_without_drafts(control: Iterable[Transcript]) -> None:
    """Raise InvalidInput if a row of a control says that tokens were drafted."""
    for row in control:
        # without a precision beside it, the word need not be ours: trainers write "rollout"
        is_ours = row.extra.get(MODE) in MODES or PRECISION in row.extra
        if is_ours and (mode := row.extra.get(MODE)) not in (None, MODES[0]):
            raise InvalidInput(
                f"{row.place}: this row of the control says mode {mode}; allowed: {MODES[0]}, a "
                "control that was written without speculation"
            )
        record = row.extra.get(SPEC_DECODE)
        number = record.get(NUM_DRAFTED) if isinstance(record, Mapping) else None
        if isinstance(number, int) and number > 0:
            raise InvalidInput(
                f"{row.place}: this row of the control says that {number} tokens were drafted "
                f"({SPEC_DECODE}); allowed: a control that was written without speculation"
            )


def _num_tokens(rows: Counter[tuple[Any, ...]]) -> int:
    return sum(number * len(key[0][1]) for key, number in rows.items())


def _models_lines(sides: Sequence[Sequence[Transcript]]) -> list[str]:
    """Lines about the weights that rows name.

    They say that the transcripts and the control name different models, or that rows are of several
    training steps. One model can be served under two names, and weights need not change at each
    step, so these alone are no reason to refuse.

    Raises InvalidInput if rows of one side name several models, several versions of the weights or
    several precisions, or if the sides name different weights or precisions.
    """
    names = []
    lines = []
    for rows in sides:
        for key in (MODEL, *VERSIONS):
            _check_one(key, _values(key, rows))
        names += _values(MODEL, rows)
    for key in (PRECISION, WEIGHTS):
        values = [_values(key, filter(names_weights, rows)) for rows in sides]
        for found in values:
            _check_one(key, found)
        if all(values) and len({*chain(*values)}) > 1:
            (first, row), (second, _) = (next(iter(one.items())) for one in values[::-1])
            raise InvalidInput(
                f"{row.place}: {key} is {first} in the control and {second} in the transcripts, "
                "which is another law; allowed: the same in both"
            )
    for key in STEPS:
        number = len(_values(key, chain(*sides)))
        if number > 1:
            lines.append(
                f"rows name {number} values of {key}; if the weights changed between them, rows of "
                "other weights than the target's deviate"
            )
    if len(set(names)) > 1:
        lines.append(
            f"the transcripts name the model {names[0]} and the control {names[1]}; if these are "
            "not two names of one model, a difference is theirs"
        )
    return lines


def names_weights(row: Transcript) -> bool:
    """Whether a row names weights in a precision, as ours do; others' `weights` may be a loss's."""
    return all(isinstance(row.extra.get(key), str) for key in (PRECISION, WEIGHTS))


def _values(key: str, rows: Iterable[Transcript]) -> dict[str, Transcript]:
    """The values of a key, those in lists too, in words, each with the last row that has it."""
    found = {}
    for row in rows:
        value = row.extra.get(key)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str | int):
                found[ascii(one)] = row
    return found


def _check_one(key: str, values: Mapping[str, Transcript]) -> None:
    if len(values) > 1:
        raise InvalidInput(
            f"{[*values.values()][1].place}: rows name {len(values)} values of {key}, as "
            f"{' and '.join(value[:200] for value in [*values][:2])}; allowed: rows of one in a "
            "file, since each has a law of its own"
        )


def _check_settings(sides: Iterable[Sequence[Transcript]]) -> None:
    """Raise InvalidInput unless all conditions, of the control too, have the same settings."""
    settings = [
        {rows[number].setting for number in numbers}
        for rows in sides
        for numbers in by_condition(rows).values()
    ]
    lists = dict.fromkeys("; ".join(sorted(names)) for names in settings)
    if len(lists) > 1:
        raise InvalidInput(
            "the transcripts and the control, in every arm, have the settings "
            f"{' and '.join(lists)}; allowed: the same in all"
        )


def in_words(condition: Condition, conditions: Collection[Condition], name: str = "") -> str:
    """A name and a condition, by the kinds that differ between some conditions.

    The name alone if none differs.
    """
    parts = [
        kind.arm(value)
        for kind, value, values in zip(KINDS, condition, zip(*conditions, strict=True), strict=True)
        if len(set(values)) > 1
    ]
    return ", ".join([name] * bool(name) + parts)


def between(
    conditions: Sequence[Condition], has_control: bool
) -> Iterator[tuple[ConditionKind, Condition, Condition]]:
    """The pairs of arms that differ in one kind alone, the second with its smallest number.

    conditions: see `in_order`. has_control: then arms with other prompts are compared with the
    control alone, where whatever the engine does otherwise than the target cancels; it need not
    between different prompts.
    """
    for kind in KINDS:
        if has_control and not kind.has_same_prompts:
            continue
        for condition in conditions:
            alike = (one for one in conditions if _without(one, kind) == _without(condition, kind))
            base = next(alike)
            if base != condition:
                yield kind, condition, base


def _without(condition: Condition, kind: ConditionKind) -> Condition:
    return condition._replace(**{kind.name: None})


def control_for(condition: Condition, controls: Sequence[Condition]) -> Condition:
    """The condition of the control for an arm: its own, else the first with prompts of its kind.

    Raises InvalidInput if there is none.
    """

    def prompts(one: Condition) -> tuple[int, int]:
        return one.turn or 1, one.context or 0  # rows that do not say it are as others of turn 1

    alike = [one for one in controls if prompts(one) == prompts(condition)]
    if not alike:
        turn, context = prompts(condition)
        of_turn = "later turns" if turn == LATER else "turn 1"
        raise InvalidInput(
            f"the control has no rows of {of_turn} with a context of {context}, as the transcripts "
            "have; allowed: a control written with the same turns and contexts"
        )
    return condition if condition in alike else alike[0]
