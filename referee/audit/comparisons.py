"""Comparisons of an audit and their verdicts: an arm against the target, or against another arm."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from referee.audit.alternatives import ALTERNATIVES, NO_END
from referee.audit.arm import Arm, origin, paired, shown
from referee.audit.bets import Excess, Wealth, in_figures
from referee.audit.statistics import (
    PLACES,
    Sums,
    against_control,
    against_reference,
    rate_difference,
    statistics_of,
    to_student,
    z_of,
)
from referee.audit.terms import NEAR_TIE, EmittedTokens, GreedyGaps, TokenTerms
from referee.control import matching
from resispec.audit.verdict import MIN_TOKENS, Finding, Judgement, Statistic, first_with_reasons

MIN_CLUSTERS = 20
"""The fewest prompts from which a variance between prompts is estimated."""
POWER = 0.9
"""Probability of finding a bias of the size that is reported as the smallest."""
FALSE_ALARM_RATE = 1e-3
"""Upper bound of the chance that an exact engine is called biased, for dependent statistics too."""
BET_RATE = FALSE_ALARM_RATE / 2
"""The bets' part of it, split equally over comparisons; it needs no reserve, see `bets`."""
NOMINAL_RATE = FALSE_ALARM_RATE / 4
"""The z-scores' part of it, split equally over statistics (union bound).

The last quarter is a reserve, since p-values are not exact so far out in the tail: those of a
chi-square with 8 expected outcomes a cell were found 6 times too small at 2e-5, so `chi_square`
requires more a cell.
"""


UNDECLARED = "settings that the rows do not say, or tokens that are not the engine's own draws"
CAUSES = {
    "surprisal": "another temperature or filter than the rows say",
    "places": "another temperature or filter than the rows say",
    "pit": "another temperature or filter than the rows say",
    "rank": "random numbers that are used twice",
    "eos": "sequences that end too rarely or too often",
    "seen": "a penalty that the rows do not say",
    "lookup": "drafts of prompt lookup that are kept too often or too rarely",
    "overdraft": "drafted tokens that are kept too often or too rarely",
    "log(q/p)": "drafted tokens that are kept too often or too rarely",
    "serial": "random numbers of one token that are used again for the next",
    "repeats": "random numbers of one token that are used again a few tokens later",
    "first tokens": "first tokens of answers that are drawn in another way than the rest: from the "
    "logits of another position, or under other settings",
    "ruled out": UNDECLARED,
    "not greedy": "draws where the rows say temperature 0",
}
"""The likely cause of a bias, by the statistic that is least likely by chance.

A bet that has won names its own, see `alternatives.ALTERNATIVES`.
"""


@dataclass(frozen=True)
class Comparison:
    """Measurements of one arm against the target, or of the difference between two arms.

    what: the two sides in words. tokens, rows: counts of the first arm. effective: how many
    independent tokens the smaller arm is worth, at most `tokens`. groups: the statistics by name,
    for all rows and for each setting with enough tokens. impossible: a line for each event that
    happened although it cannot. open: a line for each reason not to trust the statistics; with one,
    nothing is called biased. without_eos: the same, but only if `eos` deviates by no more than
    `lost_ends` can explain. lost_ends: for the two sides, ends of sequence that may be missing, as
    shares of the tokens. sensitivity: for each kind of bias, the total variation that moves its
    statistic by one standard error. degrees: the degrees of freedom of estimated standard errors, 0
    if they are known. excused: for each of the groups with tokens at the edge of a filter, their
    share, a total variation that no statistic sees, and the largest `sensitivity` of the group.
    smallest_share: for one arm at temperature 0, the share of tokens that are not greedy that would
    have been found with probability POWER. facts: further lines for readers. details: further
    numbers. wealth: that of the bets, None if there are none. excess: for one arm, the bounds of
    the mean excess of sets of tokens, see `bets`. is_of_control: whether the one arm is a control.
    is_greedy: whether it is about rows at temperature 0.
    """

    what: str
    tokens: int
    rows: int
    effective: float
    groups: Mapping[str, Mapping[str, Statistic]]
    impossible: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    without_eos: tuple[str, ...] = ()
    lost_ends: tuple[float, float] = (0.0, 0.0)
    sensitivity: Mapping[str, float] = field(default_factory=dict)
    degrees: int = 0
    excused: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    smallest_share: float | None = None
    facts: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)
    wealth: Wealth | None = None
    excess: Mapping[str, Excess] = field(default_factory=dict)
    is_of_control: bool = False
    is_greedy: bool = False

    @property
    def least_variation(self) -> float:
        """A lower bound of the mean total variation from the target, 0 if none is known.

        The total variation is at least what any set of tokens gains or loses.
        """
        return max((0.0, *(max(one.low, -one.high) for one in self.excess.values())))


def with_target(what: str, arm: Arm) -> Iterator[Comparison]:
    """Comparisons of an arm with the target: one of sampled rows, one of rows at temperature 0."""
    if arm.terms is not None:
        yield _sampled(f"{what} against the target", arm, arm.terms)
    if arm.gaps is not None:
        yield _greedy(f"{what} at temperature 0", arm, arm.gaps)


def with_control(what: str, arm: Arm, control: Arm) -> Iterator[Comparison]:
    """Comparisons of an arm with a control arm under the same settings.

    what: the two arms in words. What both arms have cancels only at places in answers that both
    have, so rows are cut to the least limit of their prompt and of the two arms. It also cancels
    only between settings that both have as often, so rows of the others' surplus do not count.
    """
    (arm, control), facts = _within_limits(arm, control)
    (arm, control), surplus = _as_often(arm, control)
    facts += surplus
    if arm.terms is not None and control.terms is not None:
        yield _difference(what, arm, control, facts)
    if arm.gaps is not None and control.gaps is not None:
        sides = (arm, arm.gaps), (control, control.gaps)
        prompts = _prompts(*sides)
        rates = rate_difference(~arm.gaps.is_greedy, ~control.gaps.is_greedy, prompts)
        count, rows = len(arm.gaps.row), len(arm.gaps.row.unique())
        groups, facts = {"all": {"not greedy": rates}}, (*facts, _equal_answers(arm, control))
        yield Comparison(
            f"{what}, temperature 0",
            count,
            rows,
            min(_num_texts(*side) for side in sides),
            groups,
            open=_too_few_prompts(*sides),
            facts=facts,
            is_greedy=True,
        )


def _within_limits(*arms: Arm) -> tuple[list[Arm], tuple[str, ...]]:
    """Two arms, cut to the least limit of a row's prompt and of the arms, and a line if any is."""
    rows = [arm.transcripts for arm in arms]
    within = matching.within_limits(rows, min(arm.limit for arm in arms))
    if not (line := matching.cuts(rows, within)):
        return list(arms), ()
    return [arm.cut_to(part) for arm, part in zip(arms, within, strict=True)], (line,)


def _as_often(*arms: Arm) -> tuple[list[Arm], tuple[str, ...]]:
    """Two arms with their settings in the same proportions, and a line if rows were left out.

    Of each setting both keep as many rows as the arm with fewer has, first those of prompts that
    the other arm has, too. Rows at temperature 0 are compared apart, so their number is free.
    """
    counts = [Counter(row.setting for row in matching.sampled(arm.transcripts)) for arm in arms]
    totals = [one.total() for one in counts]
    if all(counts[0][name] * totals[1] == counts[1][name] * totals[0] for name in counts[0]):
        return list(arms), ()
    kept = []
    # by other orders than those of `paired`, which are drawn for the rows that are kept
    for salt, arm, other in zip(("kept", "kept control"), arms, reversed(arms), strict=True):
        strata = set(map(matching.stratum_of, other.transcripts))
        rows = arm.transcripts
        left = counts[0] & counts[1]
        numbers = [number for number, row in enumerate(rows) if row.temperature == 0]
        is_alone = [matching.stratum_of(row) not in strata for row in rows]
        for number in sorted(arm.ordered(salt), key=is_alone.__getitem__):
            if left[rows[number].setting]:
                left[rows[number].setting] -= 1
                numbers.append(number)
        kept.append(arm.of_rows(sorted(numbers)))
    count = sum(len(arm.transcripts) for arm in arms) - sum(len(arm.transcripts) for arm in kept)
    line = f"{count} rows were left out, so that both arms have as many of each setting"
    return kept, (line,)


def _sampled(what: str, arm: Arm, terms: TokenTerms) -> Comparison:
    sums = against_reference(terms, arm.is_shared)
    groups = arm.groups
    shares = {name: arm.is_shared_in(name) for name in groups}
    counts = torch.bincount(terms.bucket, minlength=len(PLACES)).tolist()
    places = zip(PLACES, counts, terms.chances.sum(0).tolist(), strict=True)
    num_edge = int(terms.is_edge.sum())
    excused = {}
    for name, group in groups.items():
        if share := float(group.is_edge.double().mean()):
            sizes = _sensitivity(group, against_reference(group, shares[name]))
            excused[name] = share, max(sizes.values(), default=math.inf)
    fact = (
        f"{num_edge} tokens lie at the edge of a filter, or of a temperature near 0: it leaves "
        f"them no mass, and would if logits were {NEAR_TIE:g} off; rounding decides there, so they "
        "count neither for nor against the engine, but in the upper bounds"
    )
    return Comparison(
        what,
        len(terms.row),
        len(terms.row.unique()),
        _num_effective(groups, sums, shares),
        {name: statistics_of(group, shares[name]) for name, group in groups.items()},
        impossible=arm.ruled_out(),
        without_eos=_lines_without_eos(arm),
        lost_ends=(len(arm.without_eos) / len(terms.row), 0.0),
        sensitivity=_sensitivity(terms, sums),
        excused=excused,
        facts=(fact,) if num_edge else (),
        details={
            "places": [
                dict(zip(("places", "observed", "expected"), place, strict=True))
                for place in places
            ],
            "edge_tokens": num_edge,
            "sharing": arm.sharing,
            "is_shared": arm.is_shared,
        },
        wealth=arm.wealth,
        excess=arm.excess,
    )


def _num_effective(
    groups: Mapping[str, TokenTerms], sums: Sums, shares: Mapping[str, bool]
) -> float:
    """The tokens that count: those of the setting with the least of them, if settings share alone.

    groups: see `Arm.groups`. sums: of all tokens. shares: whether the rows of each setting, and of
    "all", share random numbers.
    """
    terms = groups["all"]
    settings = [(name, group) for name, group in groups.items() if name != "all"]
    of_all = len(terms.row) / _inflation(sums, terms)
    is_covered = sum(len(group.row) for _, group in settings) == len(terms.row)
    if not shares["all"] or not is_covered:
        return of_all
    of_settings = (
        len(group.row) / _inflation(against_reference(group, shares[name]), group)
        for name, group in settings
    )
    return max(of_all, min(of_settings))


def _difference(what: str, arm: Arm, control: Arm, facts: tuple[str, ...]) -> Comparison:
    sums, groups, sides = {}, {}, (arm.groups, control.groups)
    for name in (name for name in sides[0] if name in sides[1]):
        terms, other = (side[name] for side in sides)
        prompts = _prompts((arm, terms), (control, other))
        sums[name] = against_control(terms, other, prompts, arm.is_shared or control.is_shared)
        rates = rate_difference(~terms.is_inside, ~other.is_inside, prompts)
        groups[name] = {**sums[name].statistics(), "ruled out": rates}
    terms, other = (side["all"] for side in sides)
    return Comparison(
        what,
        len(terms.row),
        len(terms.row.unique()),
        min(len(terms.row), len(other.row)) / _inflation(sums["all"], terms, other),
        groups,
        open=_too_few_prompts((arm, terms), (control, other)),
        without_eos=_lines_without_eos(arm) + _lines_without_eos(control),
        lost_ends=(
            len(arm.without_eos) / len(terms.row),
            len(control.without_eos) / len(other.row),
        ),
        sensitivity=_sensitivity(terms, sums["all"]),
        degrees=sums["all"].degrees,
        facts=facts,
        wealth=paired(arm, control),
    )


def _too_few_prompts(*sides: tuple[Arm, EmittedTokens]) -> tuple[str, ...]:
    """A line if the smaller of two arms has fewer than MIN_CLUSTERS prompts."""
    number = min(
        len({origin(arm.transcripts[row]) for row in tokens.row.unique().tolist()})
        for arm, tokens in sides
    )
    if number >= MIN_CLUSTERS:
        return ()
    return (f"an arm has {number} prompts; at least {MIN_CLUSTERS} are needed to compare the two",)


def missing_ends(arm: Arm) -> str:
    """A sentence if rows ended without a limit and without an end-of-sequence token, else ""."""
    if not (rows := arm.without_eos):
        return ""
    return (
        f"{len(rows)} rows did not end by a limit and have no end-of-sequence token (the first: "
        f"{rows[0].place}): it was left out of the transcripts, they ended at a stop string, or it "
        "is not emitted"
    )


def _lines_without_eos(arm: Arm) -> tuple[str, ...]:
    """The sentence of `missing_ends`, if any, as the reason of an open verdict."""
    if not (sentence := missing_ends(arm)):
        return ()
    return (f"{sentence}; without it no statistic can be trusted, so log every token",)


def _greedy(what: str, arm: Arm, gaps: GreedyGaps) -> Comparison:
    divergent = gaps.where(~gaps.is_greedy)
    _, first = np.unique(divergent.row, return_index=True)  # the first such token of each row
    columns = (divergent.row, divergent.position, divergent.best, divergent.gap)
    divergences = [
        {
            "place": arm.transcripts[row].place,
            "position": position + 1,
            "token": arm.transcripts[row].output_token_ids[position],
            "best": best,
            "gap": gap,
        }
        for row, position, best, gap in zip(
            *(column[first].tolist() for column in columns), strict=True
        )
    ]
    lines = (
        f"{entry['place']}: output token {entry['position']} is {entry['token']}, whose logit is "
        f"{entry['gap']:.3g} below that of {entry['best']}; allowed: {NEAR_TIE:g}"
        for entry in divergences
    )
    count, best, greedy = len(gaps.gap), int((gaps.gap == 0).sum()), int(gaps.is_greedy.sum())
    fact = (
        f"greedy equality: {best} tokens are the best, {greedy - best} as good (logits within "
        f"{NEAR_TIE}), {count - greedy} are neither"
    )
    counts = {"best": best, "near_ties": greedy - best, "not_greedy": count - greedy}
    num_texts = _num_texts(arm, gaps)
    repeats = f"{count - num_texts} tokens repeat those of another row behind the same text"
    return Comparison(
        what,
        count,
        len(gaps.row.unique()),
        num_texts,
        {},
        shown(lines, len(divergences), "rows that diverge"),
        smallest_share=-math.log(1 - POWER) / num_texts,
        is_greedy=True,
        facts=(fact, f"{repeats}, so they count once") if num_texts < count else (fact,),
        details={"near_tie": NEAR_TIE, **counts, "first_divergences": divergences},
    )


def _num_texts(arm: Arm, gaps: GreedyGaps) -> int:
    """The number of different texts that end in a token of these.

    A greedy engine that is asked the same again answers the same.
    """
    texts = set()
    rows, counts = gaps.row.unique(return_counts=True)
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
        transcript = arm.transcripts[row]
        text = hash((transcript.prompt_token_ids, transcript.setting))
        for token in transcript.output_token_ids[:count]:
            text = hash((text, token))
            texts.add(text)
    return len(texts)


def _sensitivity(terms: TokenTerms, sums: Sums) -> dict[str, float]:
    """For each kind of bias, the total variation that moves its statistic by one standard error.

    A change of temperature turns p into p (1 + e (s - H)), with s the surprisal and H its mean: the
    mean of s moves by e times the variance of s, and the total variation is e E|s - H| / 2. A shift
    to the draft turns p into p + l (q - p): the total variation is the probability that the event
    q > p gains.
    """
    per_token = float(terms.surprisal_variance.mean())
    share = float(terms.spread.mean()) / per_token if per_token > 0 else 0.0
    kinds = {"another temperature": math.sqrt(sums.variance_of("surprisal")) * share}
    if "overdraft" in terms.names:
        kinds["a shift to the draft"] = math.sqrt(sums.variance_of("overdraft"))
    return {kind: size for kind, size in kinds.items() if size > 0}


def _prompts(*sides: tuple[Arm, EmittedTokens]) -> Tensor:
    """The number of the prompt that each token of two arms continues, (N + M,) int64."""
    known: dict[tuple[int, ...], int] = {}
    numbers = []
    for arm, tokens in sides:
        rows = [known.setdefault(origin(row), len(known)) for row in arm.transcripts]
        numbers.append(torch.tensor(rows)[tokens.row])
    return torch.cat(numbers)


def _equal_answers(arm: Arm, control: Arm) -> str:
    """A line that says how many greedy rows have the same tokens as the control's."""
    answers = {
        (row.prompt_token_ids, row.setting): row.output_token_ids for row in control.transcripts
    }
    rows = [row for row in arm.transcripts if row.temperature == 0]
    others = [answers.get((row.prompt_token_ids, row.setting)) for row in rows]
    count = sum(row.output_token_ids == other for row, other in zip(rows, others, strict=True))
    return f"{count} of {len(others) - others.count(None)} rows have the control's tokens"


def _inflation(sums: Sums, *arms: TokenTerms) -> float:
    """The variance of the mean surprisal over that of as many independent tokens, at least 1."""
    variance = sum(float(terms.surprisal_variance.sum()) / len(terms.row) ** 2 for terms in arms)
    return max(1.0, sums.variance_of("surprisal") / variance) if variance > 0 else 1.0


@dataclass(frozen=True)
class JudgedComparison(Judgement):
    """A comparison with its finding and one line per reason.

    smallest_bias: for each kind of bias, the total variation that would have been found with
    probability POWER; at temperature 0, the share of tokens that are not greedy. took: the number
    of tokens after which the e-value first was as large as allowed; None if it never was. cause:
    the likely cause of a bias, "" if none was found.
    """

    comparison: Comparison
    smallest_bias: Mapping[str, float]
    took: int | None
    cause: str

    @property
    def verdict(self) -> str:
        """The finding in words.

        If no bias was seen, it names the kinds of bias and the size above which they would show.
        """
        least = self.comparison.least_variation
        if self.finding is Finding.BIASED and least > 0:
            return f"{self.finding}, total variation at least {least:.2g}"
        if self.finding is not Finding.NO_BIAS_SEEN or not self.smallest_bias:
            return self.finding
        size = f"above {max(self.smallest_bias.values()):.2g} would have shown"
        if self.comparison.smallest_share is not None:
            return f"{self.finding} (a share of tokens that are not greedy {size})"
        # other kinds of bias can need more tokens, whatever their size
        kinds = " or ".join(self.smallest_bias)
        return f"{self.finding} ({kinds} with a total variation {size})"

    @property
    def more_tokens(self) -> int:
        """The number of further tokens (in each arm) that would find half of the smallest bias.

        A total variation shrinks with the root of the number of tokens, a share of tokens with the
        number.
        """
        return self.comparison.tokens * (3 if self.comparison.smallest_share is None else 1)


def limits_of(comparisons: Collection[Comparison]) -> tuple[float, float]:
    """The least p-value that a statistic may have, and the e-value that makes an engine biased.

    Each statistic has its share of NOMINAL_RATE (Bonferroni), and each bet its share of BET_RATE.
    """
    num_statistics = sum(
        len(part) for comparison in comparisons for part in comparison.groups.values()
    )
    num_bets = sum(one.wealth is not None for one in comparisons)
    return NOMINAL_RATE / max(1, num_statistics), max(1, num_bets) / BET_RATE


def _is_explained(comparison: Comparison, allowed_z: float) -> bool:
    """Whether `eos` would be in its limits if some of the ends that may be missing were there."""
    eos = comparison.groups["all"].get("eos")
    if eos is None or not eos.error:
        return True  # too few ends to be judged
    own, others = comparison.lost_ends
    allowed = allowed_z * eos.error
    return eos.value - others <= allowed and eos.value + own >= -allowed


def judge_comparison(comparison: Comparison, limit: float, e_limit: float) -> JudgedComparison:
    """Judge a comparison; the finding is the first of these that applies.

    undecided: the statistics are doubtful (see `open` and `without_eos`, which counts where ends
    that are missing can explain `eos` or the winning bet). biased: something impossible happened, a
    statistic has a p-value below `limit`, or an e-value was at least `e_limit` after any token.
    undecided: there are fewer than MIN_TOKENS effective tokens, or the share of excused tokens, of
    all or of a setting, is above the bias that would have shown there. no bias seen: otherwise.
    """
    statistics = [
        (group, *item) for group, part in comparison.groups.items() for item in part.items()
    ]
    outliers = [entry for entry in statistics if entry[2].p_value < limit]
    lines = (
        f"{name}{'' if group == 'all' else f' ({group})'} z = {statistic.z:.1f} over {statistic.n} "
        f"tokens, by chance {statistic.p_value:.1g}; allowed: chances from {limit:.1g}"
        for group, name, statistic in outliers
    )
    took, bets = None, []
    if (wealth := comparison.wealth) is not None:
        took = wealth.took(e_limit)
        if took is not None:
            bets.append(
                f"e-value {in_figures(wealth.largest_log)}, by the bet on {wealth.winner}; "
                f"{e_limit:,.0f} was reached after {took:,} tokens; allowed: e-values below it"
            )
    deviations = (*comparison.impossible, *bets, *lines)
    is_of_eos = bool(bets) and wealth is not None and wealth.winner == NO_END
    if any(name == "eos" for _, name, _ in outliers):
        is_of_eos = is_of_eos or _is_explained(comparison, z_of(limit))
    doubts = comparison.open + (comparison.without_eos if is_of_eos else ())
    errors = to_student(z_of(limit), comparison.degrees) + z_of(2 * (1 - POWER))
    biases = {kind: min(1.0, errors * size) for kind, size in comparison.sensitivity.items()}
    if comparison.smallest_share is not None:
        biases["tokens that are not greedy"] = comparison.smallest_share
    shortage = f"{comparison.effective:.0f} tokens that count; at least {MIN_TOKENS} are needed"
    edge_reasons = [
        f"{share:.2g} of the tokens{'' if group == 'all' else f' of {group}'} lie at the edge of a "
        f"filter, where a total variation above {errors * size:.2g} is to be seen: other "
        "arithmetic, or filters or an order that the rows do not say"
        for group, (share, size) in comparison.excused.items()
        if share > errors * size
    ]
    no_deviation = f"no deviation ({comparison.tokens} tokens)"
    if statistics:
        largest = max(abs(statistic.z) for *_, statistic in statistics)
        no_deviation = (
            f"no deviation in {len(statistics)} statistics ({comparison.tokens} tokens): the "
            f"largest |z| is {largest:.1f}, allowed are about {z_of(limit):.1f}"
        )
    judgement = first_with_reasons(
        (Finding.UNDECIDED, (*doubts, *deviations) if doubts else ()),
        (Finding.BIASED, deviations),
        (Finding.UNDECIDED, (shortage,) if round(comparison.effective) < MIN_TOKENS else ()),
        (Finding.UNDECIDED, edge_reasons),
        (Finding.NO_BIAS_SEEN, (no_deviation,)),
    )
    if bets:
        cause = ALTERNATIVES[wealth.winner].cause
    elif outliers:
        cause = CAUSES[min(outliers, key=lambda entry: entry[2].p_value)[1]]
    else:
        cause = UNDECLARED if comparison.impossible else ""
    is_biased = judgement.finding is Finding.BIASED
    return JudgedComparison(
        judgement.finding, judgement.reasons, comparison, biases, took, cause if is_biased else ""
    )
