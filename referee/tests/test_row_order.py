"""The order in which rows count: many short answers to one prompt, of which most are equal."""

import itertools
import math
import operator
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch

from referee.audit import joined, measure
from referee.audit.arm import paired
from referee.audit.comparisons import BET_RATE, _as_often
from referee.audit.own_check import own_check
from referee.tests.toy_engine import drawing, target, write
from referee.transcripts import Transcript

NUM_ANSWERS = 3
"""The answers of one token that the settings leave to a prompt."""
NUM_ARMS = 50


@cache
def prompts():
    return [row.prompt_token_ids for row in write(rows=40, new=1)]


def every_answer(prompts):
    """An arm with a row for each answer to some prompts, and their masses (prompts, answers)."""
    with torch.no_grad():
        logits = target().module(torch.tensor(prompts)).logits[:, -1]
    likeliest = logits.topk(NUM_ANSWERS).indices.tolist()
    rows = [
        Transcript(prompt, (token,), top_k=NUM_ANSWERS, finish_reason="length")
        for prompt, tokens in zip(prompts, likeliest, strict=True)
        for token in tokens
    ]
    arm = measure(rows, target())
    return arm, arm.terms.mass.view(-1, NUM_ANSWERS)


def of_an_even_law():
    """All answers to the prompt whose likeliest answer is least likely."""
    _, masses = every_answer(prompts())
    return every_answer([prompts()[int(masses.amax(-1).argmin())]])


def samples(answers, count, seed, is_numbered=False):
    """An arm of so many exact answers to each prompt. answers: those of `every_answer`."""
    arm, masses = answers
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.multinomial(masses, count, True, generator=generator)
    firsts = NUM_ANSWERS * torch.arange(len(masses))[:, None]
    numbers = (firsts + drawn).flatten().tolist()
    part = arm.of_rows(numbers)
    if not is_numbered:
        return part
    rows = [
        replace(row, extra={"prompt_index": number // NUM_ANSWERS})
        for row, number in zip(part.transcripts, numbers, strict=True)
    ]
    return replace(part, transcripts=rows)


def outputs_of(arm, order):
    return [arm.transcripts[row].output_token_ids for row in order]


@pytest.mark.parametrize(
    ("num_prompts", "count", "is_numbered"), [(1, 300, False), (40, 12, False), (40, 12, True)]
)
def test_an_exact_engine_is_accused_as_rarely_as_ville_allows(num_prompts, count, is_numbered):
    """Defect: equal rows stood in a block, and bets on their token won all along it."""
    firsts = range(0, min(40, 10 * num_prompts), num_prompts)
    sets = [every_answer(prompts()[first : first + num_prompts]) for first in firsts]
    arms = [
        samples(sets[number % len(sets)], count, number, is_numbered) for number in range(NUM_ARMS)
    ]
    logs = [arm.wealth.largest_log for arm in arms]
    for e_value in (4, 20, 100, 1 / BET_RATE):
        share = sum(log >= math.log(e_value) for log in logs) / NUM_ARMS
        assert share <= 1 / e_value + 3 * math.sqrt(1 / e_value / NUM_ARMS), e_value
    pairs = zip(arms[: -len(sets)], arms[len(sets) :], strict=True)  # of the same prompts
    largest = max(paired(one, other).largest_log for one, other in pairs)
    assert largest < math.log(1 / BET_RATE)


def test_the_order_of_equal_rows_is_that_of_no_file_and_tells_nothing_of_the_next():
    arm = samples(of_an_even_law(), 300, seed=0)
    outputs = outputs_of(arm, arm.order)
    changes = sum(one != other for one, other in itertools.pairwise(outputs))
    assert changes > 100  # of 299; three blocks have two
    mixed = torch.randperm(300, generator=torch.Generator().manual_seed(1)).tolist()
    again = arm.of_rows(mixed)
    assert outputs_of(again, again.order) == outputs


def test_equal_rows_of_two_arms_meet_as_often_as_chance_has_it():
    """Defect: both arms had one order, so that equal rows met, and the surplus of an arm came last.

    Then a bet's wealth has the sign of the surplus, and no pair of unlike rows takes from it.
    """
    arm = samples(of_an_even_law(), 300, seed=0)
    other = arm.of_rows([*reversed(range(300))])
    firsts, seconds = outputs_of(arm, arm.order), outputs_of(other, other.ordered("control"))
    share = sum(map(operator.eq, firsts, seconds)) / 300
    expected = sum((count / 300) ** 2 for count in Counter(firsts).values())
    assert abs(share - expected) < 0.15 < 1 - expected
    assert float(paired(arm, other).path.abs().max()) > 1e-3


def test_the_rows_that_a_comparison_keeps_are_drawn_whatever_their_answers_are():
    """Defect: all rows of one answer were kept before any of the next."""
    answers, masses = of_an_even_law()
    others = [replace(row, temperature=0.9) for row in write(rows=30, new=1)]
    arms = [
        joined([samples((answers, masses), count, count), measure(others[:size], target())])
        for count, size in ((300, 10), (100, 30))
    ]
    (kept, _), _ = _as_often(*arms)
    counts = Counter(row.output_token_ids for row in kept.transcripts if row.top_k == NUM_ANSWERS)
    assert counts.total() == 100
    for row, mass in zip(answers.transcripts, masses[0].tolist(), strict=True):
        assert abs(counts[row.output_token_ids] / 100 - mass) < 0.2


def test_the_own_check_passes_with_answers_of_one_token_to_one_prompt():
    """Defect: its tokens, too, stood in blocks, so that it failed, and nothing was judged."""
    rows = write(drawing(top_k=NUM_ANSWERS), rows=1, new=1, top_k=NUM_ANSWERS)
    [note] = own_check(rows, target(), None)
    assert "of 1000 tokens that the target drew itself, in float32: no bias seen" in note
