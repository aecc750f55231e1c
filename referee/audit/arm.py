"""An arm of an audit: the transcripts of one engine, rescored by the target."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from itertools import accumulate, islice
from typing import TypeVar

import torch

from referee.audit.alternatives import LARGEST_MASS
from referee.audit.bets import (
    CONFIDENCE,
    Excess,
    Wealth,
    excess_of,
    paired_wealth,
    wealth_of,
)
from referee.audit.statistics import sharing, statistics_of
from referee.audit.terms import (
    NEAR_TIE,
    EmittedTokens,
    GreedyGaps,
    TokenTerms,
    as_judged,
    gaps_of,
    lookups,
    terms_of,
    with_rows,
)
from referee.conditions import SHOWN, begins, by_condition
from referee.rescoring import Scorer, check_fit, rescore
from referee.transcripts import INDEX, LIMIT, Condition, Transcript
from resispec.audit.verdict import MIN_TOKENS, Statistic
from resispec.progress import progress_bar

COPY_RATE = 1e-6
"""Upper bound of the chance that an exact engine's rows are taken for copies."""
Tokens = TypeVar("Tokens", bound=EmittedTokens)
"""Measurements of emitted tokens, of any kind."""
token_bar = partial(progress_bar, unit="token", leave=False, delay=1)
"""A progress bar that counts tokens."""


@dataclass(frozen=True)
class Arm:
    """Transcripts, rescored by a target.

    terms: of the tokens of sampled rows. gaps: of the tokens of rows at temperature 0. Each is None
    if there are no such rows. num_arms: the number of arms whose bounds are to hold together.
    """

    transcripts: Sequence[Transcript]
    target: Scorer
    terms: TokenTerms | None
    gaps: GreedyGaps | None
    num_arms: int = 1

    @property
    def num_tokens(self) -> int:
        """The number of sampled tokens."""
        return 0 if self.terms is None else len(self.terms.row)

    def statistics(self, num_tokens: int | None = None) -> dict[str, Statistic]:
        """All statistics by name, over all sampled tokens or over the first `num_tokens`."""
        if self.terms is None:
            return {}
        terms = self.terms.where(torch.arange(self.num_tokens)[:num_tokens])
        return dict(statistics_of(terms, self.is_shared))

    def of_rows(self, rows: Sequence[int]) -> Arm:
        """An arm of the given rows, at least one, in the given order."""
        parts = [
            None if tokens is None else tokens.of_rows(rows) for tokens in (self.terms, self.gaps)
        ]
        terms, gaps = (part if part is not None and len(part.row) else None for part in parts)
        return Arm([self.transcripts[row] for row in rows], self.target, terms, gaps)

    @property
    def limit(self) -> int:
        """The most tokens that a row could have had.

        It is the largest `max_new_tokens`, or the length of the longest row if that is more or rows
        do not say it.
        """
        lengths = [len(row.output_token_ids) for row in self.transcripts]
        known = [row.extra.get(LIMIT) for row in self.transcripts]
        return max([*lengths, *(limit for limit in known if type(limit) is int)])

    def cut_to(self, rows: Sequence[Transcript]) -> Arm:
        """An arm of the beginnings of its rows. rows: those, in the arm's order."""
        lengths = torch.tensor([len(row.output_token_ids) for row in rows])
        terms = self.terms and self.terms.where(self.terms.position < lengths[self.terms.row])
        gaps = self.gaps and self.gaps.where(self.gaps.position < lengths[self.gaps.row])
        return Arm(rows, self.target, terms, gaps)

    @property
    def by_condition(self) -> dict[Condition, Arm]:
        """An arm for each condition of rows, see `conditions.by_condition`.

        Loads and starts repeat prompts and may repeat seeds, so no statistic mixes conditions.
        """
        parts = by_condition(self.transcripts)
        if len(parts) == 1:
            return dict.fromkeys(parts, self)
        return {
            one: replace(self.of_rows(rows), num_arms=len(parts)) for one, rows in parts.items()
        }

    @cached_property
    def sharing(self) -> Statistic | None:
        """The test whether sampled rows share random numbers; None without tokens.

        See `statistics.sharing`. First tokens do not count: an engine may draw those of all rows in
        another way, as after a prefill.
        """
        later = None if self.terms is None else self.terms.where(self.terms.position > 0)
        return sharing(later) if later is not None and len(later.row) else None

    @property
    def is_shared(self) -> bool:
        """Whether sampled rows share random numbers, by what they say or by `sharing`.

        Rows with one seed do, unless they are several samples of one request.
        """
        rows = [row for row in self.transcripts if row.temperature > 0 and row.seed is not None]
        samples = {(row.seed, row.sample) for row in rows}
        requests = {(row.seed, row.prompt_token_ids, row.setting) for row in rows}
        is_said = len(samples) < len(rows) or len(requests) > len({row.seed for row in rows})
        return self.goes_together or is_said

    @property
    def goes_together(self) -> bool:
        """Whether the draws of sampled rows rise and fall together, by `sharing`."""
        return self.sharing is not None and self.sharing.p_value < 1e-4

    @property
    def wealth(self) -> Wealth | None:
        """The wealth of bets along the sampled tokens; None if rows share random numbers.

        See `bets`. Rows count in their `order`. If they share random numbers, a token's law given
        the tokens of all rows before is not known.
        """
        if self.terms is None or self.is_shared:
            return None
        place = torch.empty(len(self.transcripts), dtype=torch.int64)
        place[self.order] = torch.arange(len(place))
        # tokens of a row are in order, and a stable sort leaves them so
        tokens = place[self.terms.row].argsort(stable=True)
        return wealth_of(self.terms.alternatives, self.terms.ratios[tokens])

    @property
    def order(self) -> list[int]:
        """The order of the rows in which their tokens count, see `ordered`."""
        return self.ordered()

    def ordered(self, salt: str = "") -> list[int]:
        """The rows in an order that does not depend on the tokens of rows still to come.

        Bets need such an order. That of a file depends on them: answers arrive in the order of
        their lengths, and trainers sort by length or reward.

        Rows count by the numbers of their prompts, if all have one, and by turns. The rest is by
        the length of the prompt, so that a row which goes on from another one's answer comes after
        it, and then by a hash of the tokens. That is an order drawn at random, the same for the
        same rows wherever they stand in a file. Equal rows are numbered, and the number is hashed,
        too: with one hash they would stand in a block, whose length is known at its first row.

        salt: orders with different ones have nothing to do with each other.
        """
        numbers = [row.extra.get(INDEX) for row in self.transcripts]
        if not all(map(is_number, numbers)):
            numbers = [0] * len(numbers)
        equal = Counter[tuple[object, ...]]()
        places = []
        for number, row in zip(numbers, self.transcripts, strict=True):
            place = number, row.turn or 0, len(row.prompt_token_ids)
            content = (*place, row.written, row.setting)
            key = sha256(repr((salt, content, equal[content])).encode()).digest()
            equal[content] += 1
            places.append((*place, key))
        return sorted(range(len(places)), key=places.__getitem__)

    @property
    def excess(self) -> dict[str, Excess]:
        """The bounds of the mean excess of every set, see `bets`, which hold together.

        They do so with probability CONFIDENCE, with those of the other arms. Tokens that a filter
        leaves out by rounding do not count in the lower bounds, and are in every set for the upper
        ones. Empty without tokens or if rows share random numbers.
        """
        if self.terms is None or self.is_shared:
            return {}
        confidence = 1 - (1 - CONFIDENCE) / (len(self.terms.sets) * self.num_arms)
        is_edge, bounds = self.terms.is_edge, {}
        for name, terms in zip(self.terms.sets, self.terms.excesses.T, strict=True):
            bounds[name] = excess_of(terms[~is_edge], LARGEST_MASS[name], confidence)
            if bool(is_edge.any()):
                most = excess_of(terms.where(~is_edge, 1.0), LARGEST_MASS[name], confidence)
                bounds[name] = Excess(bounds[name].low, most.high)
        return bounds

    @property
    def groups(self) -> dict[str, TokenTerms]:
        """The terms of all sampled tokens, and of settings with MIN_TOKENS of them but not all."""
        if self.terms is None:
            return {}
        groups, settings = {"all": self.terms}, [row.setting for row in self.transcripts]
        for setting in dict.fromkeys(settings):
            part = self.terms.where(
                torch.tensor([other == setting for other in settings])[self.terms.row]
            )
            if MIN_TOKENS <= len(part.row) < self.num_tokens:
                groups[setting] = part
        return groups

    def is_shared_in(self, setting: str) -> bool:
        """Whether the rows of a setting, or of "all", share random numbers among each other."""
        rows = [
            number for number, row in enumerate(self.transcripts) if setting in ("all", row.setting)
        ]
        return self.is_shared if setting == "all" else self.of_rows(rows).is_shared

    @property
    def without_eos(self) -> list[Transcript]:
        """The sampled rows that ended without a limit and have no end-of-sequence token."""
        ids, longest = set(self.target.eos_token_ids), self.limit

        def has_ended(row: Transcript) -> bool:
            limit = row.extra.get(LIMIT)
            length = len(row.output_token_ids)
            is_below = length < (limit if is_number(limit) and limit > 0 else longest)
            return row.finish_reason == "stop" or (row.finish_reason != "length" and is_below)

        return [
            row
            for row in self.transcripts
            if ids and row.temperature > 0 and has_ended(row)
            if not ids.intersection(row.output_token_ids)
        ]

    def ruled_out(self) -> tuple[str, ...]:
        """Lines about the first tokens that their settings rule out by more than rounding."""
        if self.terms is None:
            return ()
        terms = self.terms.where(~self.terms.is_possible)
        rows = (self.transcripts[row] for row in terms.row.tolist())
        lines = (
            f"{row.place}: output token {position + 1} is {row.output_token_ids[position]}, which "
            f"{row.setting} rules out; allowed: what could be kept if logits were {NEAR_TIE:g} off"
            for row, position in zip(rows, terms.position.tolist(), strict=True)
        )
        return shown(lines, len(terms.row), "tokens like these")


def origin(row: Transcript) -> tuple[int, ...]:
    """The prompt that a row continues; of a row of a chat, the chat's number if it is known."""
    number = row.extra.get(INDEX)  # beside -1, which is no token of a prompt
    return (-1, number) if row.turn is not None and is_number(number) else row.prompt_token_ids


def is_number(value: object) -> bool:
    """Whether a value of a row is a whole number."""
    return type(value) is int


def joined(arms: Sequence[Arm]) -> Arm:
    """One arm of the rows of several, at least one, in their order and by the same target."""
    firsts = list(accumulate((len(arm.transcripts) for arm in arms), initial=0))

    def of_all(parts: Sequence[Tokens | None]) -> Tokens | None:
        moved = [
            replace(part, row=part.row + first)
            for part, first in zip(parts, firsts, strict=False)
            if part is not None
        ]
        return moved[0].join(moved) if moved else None

    rows = [row for arm in arms for row in arm.transcripts]
    terms, gaps = of_all([arm.terms for arm in arms]), of_all([arm.gaps for arm in arms])
    return Arm(rows, arms[0].target, terms, gaps)


def paired(arm: Arm, control: Arm) -> Wealth | None:
    """The wealth of bets on the difference of two arms, pair by pair; see `bets`.

    A pair is two sampled rows, one of each arm, that continue one prompt under one setting. Rows
    without a partner do not count. Rows of one prompt must have one limit in both arms: the mean
    of a pair's factors is 1 if both end by the same rule. None if there is no pair, or if rows of
    an arm share random numbers.
    """
    if arm.terms is None or control.terms is None or arm.is_shared or control.is_shared:
        return None
    partners: dict[tuple[tuple[int, ...], str], list[int]] = {}
    # in an order of its own: in the same one equal rows would meet, and a surplus come last
    for row in reversed(control.ordered("control")):
        transcript = control.transcripts[row]
        partners.setdefault((transcript.prompt_token_ids, transcript.setting), []).append(row)
    pairs = []
    for row in arm.order:
        transcript = arm.transcripts[row]
        if transcript.temperature > 0 and (
            others := partners.get((transcript.prompt_token_ids, transcript.setting))
        ):
            pairs.append((row, others.pop()))
    if not pairs:
        return None
    sides = []
    for terms, rows in zip((arm.terms, control.terms), zip(*pairs, strict=True), strict=True):
        part = terms.of_rows(rows)
        sides.append((part.ratios, part.row))
    return paired_wealth(arm.terms.alternatives, sides)


def log_masses(arm: Arm) -> list[float]:
    """The log of each row's probability, of the tokens that its settings do not rule out."""
    if arm.terms is None:
        return [0.0] * len(arm.transcripts)
    logs = arm.terms.mass.where(arm.terms.is_inside, 1.0).log()
    return logs.new_zeros(len(arm.transcripts)).index_add_(0, arm.terms.row, logs).tolist()


def chance_of_repeats(arm: Arm, rows: Sequence[Transcript], number: int) -> float:
    """Upper bound of the chance that so many of these sampled rows are rows of an arm.

    Rows are compared by prompt, setting and output. Both sides are taken to be drawn by the
    target's law and apart from each other. Given the arm, each row repeats one with the mass of the
    arm's outputs of its prompt, so that Chernoff's bound holds.
    """
    masses: dict[object, dict[tuple[int, ...], float]] = {}
    for row, log in zip(arm.transcripts, log_masses(arm), strict=True):
        of_prompt = masses.setdefault((row.prompt_token_ids, row.setting), {})
        of_prompt[row.output_token_ids] = math.exp(min(0.0, log))
    shares = [
        min(1.0, sum(masses.get((row.prompt_token_ids, row.setting), {}).values()))
        for row in rows
        if row.temperature > 0
    ]
    tilts = [step / 4 for step in range(81)]  # that of 0 gives a bound of 1
    logs = (sum(math.log1p(share * math.expm1(tilt)) for share in shares) for tilt in tilts)
    bounds = (log - tilt * number for log, tilt in zip(logs, tilts, strict=True))
    return math.exp(min(bounds))


def copies_in(arm: Arm) -> dict[int, int]:
    """Sampled rows that repeat others where chance does not, each with the row that it repeats.

    The output of such a row is that of another one of its prompt, setting and condition, or the
    beginning of it, as a log has it that lost the end or has a partial row beside the final one.

    Given one of two rows, the other one follows it as far as to a beginning of some probability
    with that probability. So one of many pairs of rows shares a beginning with a probability below
    COPY_RATE over their number with probability COPY_RATE at most. Rows with the same seed say
    themselves that they share it. Tokens that the settings rule out do not count.
    """
    row_logs = log_masses(arm)
    groups: dict[object, list[int]] = {}
    for number, row in enumerate(arm.transcripts):
        if row.temperature > 0:
            key = (row.prompt_token_ids, row.setting, row.condition)
            groups.setdefault(key, []).append(number)
    pairs = sum(len(group) * (len(group) - 1) // 2 for group in groups.values())
    least = math.log(COPY_RATE / max(1, pairs))
    return {
        second: first
        for group in groups.values()
        for first, second in _continued(arm.transcripts, group)
        if row_logs[first] < least
    }


def about_copies(arm: Arm, copies: Mapping[int, int]) -> str:
    """A line about rows that repeat others, at least one. copies: see `copies_in`."""
    second, first = (arm.transcripts[number].place for number in min(copies.items()))
    return (
        f"{len(copies)} sampled rows have the prompt and the output of another, or go on from it "
        f"(the first: {second} repeats {first}), too improbable for chance: copies, cached or "
        "partial answers, or one seed for several requests, which are no new evidence; or an "
        "engine that takes the likeliest token, or is colder than the rows say"
    )


def _continued(rows: Sequence[Transcript], numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each row with one whose output is the same or the beginning of its own, that one first.

    numbers: of rows that continue one prompt. Two rows that name one seed and sample are no pair.
    """
    beginnings: list[int] = []
    for number in sorted(numbers, key=lambda number: (rows[number].output_token_ids, number)):
        output = rows[number].output_token_ids
        while beginnings and not begins(output, rows[beginnings[-1]].output_token_ids):
            beginnings.pop()
        for first in reversed(beginnings):
            seeds = {(rows[place].seed, rows[place].sample) for place in (first, number)}
            if len(seeds) > 1 or rows[number].seed is None:
                yield first, number
                break
        beginnings.append(number)


def shown(lines: Iterable[str], count: int, kind: str) -> tuple[str, ...]:
    """The first SHOWN of `count` lines, and a line with the number of the others of this kind."""
    tail = [f"and {count - SHOWN} more {kind}"] if count > SHOWN else []
    return (*islice(lines, SHOWN), *tail)


def measure(
    transcripts: Sequence[Transcript],
    target: Scorer,
    draft: Scorer | None = None,
    on_tokens: Callable[[int], object] = bool,
    seed: int = 0,
) -> Arm:
    """Rescore transcripts; those of the arm are `as_judged`.

    on_tokens: called with the number of output tokens rescored since its last call. seed: that of
    the random shares of `TokenTerms`; arms that are `joined` have different ones.

    Raises InvalidInput like `check_fit`, and NoVerdict like `rescore`.
    """
    scorers = [target] if draft is None else [target, draft]
    check_fit(scorers, transcripts)
    transcripts = [*map(as_judged, transcripts)]
    generator = torch.Generator().manual_seed(seed)
    terms, gaps = [], []
    suggestions = [lookups(row) if row.temperature > 0 else torch.empty(0) for row in transcripts]
    for stretch, *drafts in rescore(scorers, transcripts):
        row = transcripts[stretch.row]
        if row.temperature > 0:
            inputs = row, target.eos_token_ids, suggestions[stretch.row], generator
            terms.append(terms_of(stretch, drafts[0] if drafts else None, *inputs))
        else:
            gaps.append(gaps_of(stretch, row))
        on_tokens(len(stretch.logits))
    sampled = with_rows(TokenTerms.join(terms)) if terms else None
    return Arm(transcripts, target, sampled, GreedyGaps.join(gaps) if gaps else None)
