"""Conditions of rows make arms: how they are named, and which of them are compared.

A load (requests at a time) and a start are states of the engine, which continue the same prompts. A
later turn of a chat and a long context have other prompts.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from referee.transcripts import (
    MODEL,
    NUM_DRAFTED,
    SPEC_DECODE,
    Condition,
    Transcript,
)
from resispec.audit.verdict import Finding
from resispec.errors import InvalidInput

SAME_RUN = 1e-6
"""The chance of so many equal rows below which a control is taken for the same run."""
VERSIONS = ("weight_version", "weight_versions", "policy_version", "model_version")
"""The keys of rows under which engines and trainers write of which weights a row is."""
STEPS = ("step", "global_step", "train_step", "training_step")
"""The keys of rows for the step of a training, after which weights may be others."""
LATER = 2
"""Turns from this one on are one arm: they go on from the engine's own answers, and the first does
not.
"""


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


def check_other_run(
    transcripts: Sequence[Transcript],
    control: Sequence[Transcript],
    chance_of: Callable[[int], float] | None = None,
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
    """The number of pairs of rows that are equal but not in every key, and name the same seed, by
    what they have written and their setting.
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


def check_without_drafts(control: Iterable[Transcript]) -> None:
    """Raise InvalidInput if a row of a control says that tokens were drafted."""
    for row in control:
        record = row.extra.get(SPEC_DECODE)
        number = record.get(NUM_DRAFTED) if isinstance(record, Mapping) else None
        if isinstance(number, int) and number > 0:
            raise InvalidInput(
                f"{row.place}: this row of the control says that {number} tokens were drafted "
                f"({SPEC_DECODE}); allowed: a control that was written without speculation"
            )


def _num_tokens(rows: Counter[tuple[Any, ...]]) -> int:
    return sum(number * len(key[0][1]) for key, number in rows.items())


def models_lines(sides: Sequence[Sequence[Transcript]]) -> list[str]:
    """Lines about the weights that rows name: if the transcripts and the control name different
    models, and if rows are of several training steps.

    One model can be served under two names, and weights need not change at each step, so these
    alone are no reason to refuse. Raises InvalidInput if rows of one side name several models, or
    several versions of the weights.
    """
    names = []
    lines = []
    for rows in sides:
        for key in (MODEL, *VERSIONS):
            _check_one(key, _values(key, rows))
        names += _values(MODEL, rows)
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


def _values(key: str, rows: Iterable[Transcript]) -> dict[str, Transcript]:
    """The values that rows have for a key, in words, each with the last row that has it; those in a
    list count each.
    """
    found = {}
    for row in rows:
        value = row.extra.get(key)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str | int):
                found[ascii(one)[:60]] = row
    return found


def _check_one(key: str, values: Mapping[str, Transcript]) -> None:
    if len(values) > 1:
        raise InvalidInput(
            f"{[*values.values()][1].place}: rows name {len(values)} values of {key}, as "
            f"{' and '.join([*values][:2])}; allowed: rows of one in a file, since each has a law "
            "of its own"
        )


def check_settings(sides: Iterable[Sequence[Transcript]]) -> None:
    """Raise InvalidInput unless every condition has the same settings, in transcripts and in a
    control if there is one.
    """
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
    """The condition of the control's rows with which an arm is compared: its own, else the first
    with prompts of its kind.

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
