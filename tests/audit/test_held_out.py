"""The study of engines that were held out: its engines are what it says, its page is its numbers'.

Which engines are exact is found by enumeration where a step's law can be written down.
"""

from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
import torch

from referee import inputs
from resispec.audit.enumerate import emitted_law
from resispec.core import Draws
from resispec.sampling import Sampling

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published" / "embedded"
P = torch.tensor([0.45, 0.25, 0.25, 0.05], dtype=torch.float64)
Q = torch.tensor([0.2, 0.2, 0.5, 0.1], dtype=torch.float64)
"""The draft is sure of the third token, as `FewerWhereSure` counts."""


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "studies"))
    return import_module("held_out")


@pytest.fixture
def engines(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "studies"))
    return import_module("held_out_engines")


def step_law(verifier):
    """The law of the first token of a step with two rows of the same laws."""
    target, draft = P.expand(2, -1), Q.expand(2, -1)
    chances = [min(1.0, verifier.chance(0, target, draft, token)) for token in range(len(P))]
    kept = Q * torch.tensor(chances, dtype=torch.float64)
    return kept + (1 - kept.sum()) * verifier.rest(0, target, draft)


def test_steps_are_exact_or_faulty_as_they_are_called(engines):
    assert (step_law(engines.WrittenOut()) - P).abs().max() < 1e-12
    faulty = (engines.RatioOfLargest, engines.RestFallsThrough, engines.LikelyKept)
    for kind in faulty:
        assert (step_law(kind()) - P).abs().sum() / 2 > 0.02, kind
    for rule in (engines.FewerWhereSure(), engines.LastFirst()):
        for draft in (Q, P.flip(0) * 0.5 + 0.125):  # sure, and not
            law = emitted_law(rule, P, draft, 3, Draws.IID)
            assert (law - P).abs().max() < 1e-12, rule
    law = emitted_law(engines.Unscaled(), P, Q, 3, Draws.IID)
    assert (law - P).abs().sum() / 2 > 0.02


def test_noise_is_shared_and_the_targets_law_is_kept(engines):
    draws, generator = engines.SharedNoise(), torch.Generator().manual_seed(0)
    verifier, counts, equal = engines.KeptIfEqual(draws), torch.zeros(len(P)), 0
    number = 2_000
    for _ in range(number):
        drafted = draws.draw(Q[None], 1, generator)[0]
        tokens = torch.cat((torch.tensor([0]), drafted))
        tree = engines.Tree(engines.chain(1), tokens, draws)
        verdict = verifier.verify(tree, P.expand(2, -1), Q.expand(2, -1), generator)
        counts[verdict.tokens[0]] += 1
        equal += verdict.num_accepted
    deviations = (counts - number * P) / (number * P * (1 - P)).sqrt()
    assert deviations.abs().max() < 4
    assert equal / number > float(P @ Q) + 0.2  # what draws apart would keep, and more


def test_every_engine_answers_under_a_name_that_says_nothing(study, engines):
    pair = inputs.pair_of("embedded", None, "cpu", "float32")
    prompt = tuple(range(5, 29))
    for one in engines.HELD_OUT:
        settings = Sampling(max_new_tokens=8, **one.settings)
        answer = one.make("x", pair).answer(prompt, settings, 1)
        assert len(answer.tokens) == 8 or answer.finish_reason == "stop", one.name
        assert answer.seed == 1
    aliases = study.numbered(engines.HELD_OUT)
    assert len(aliases) == len(engines.HELD_OUT) == len({one.name for one in engines.HELD_OUT})
    assert sorted(aliases) != list(aliases)


def test_the_published_page_is_that_of_its_numbers(study):
    frame = pd.read_csv(PUBLISHED / "held_out.csv")
    assert study.page_of(frame) == (PUBLISHED / "held_out.md").read_text()
    assert list(frame.engine) == [one.name for one in study.HELD_OUT]
    faulty, exact = frame[~frame.is_exact], frame[frame.is_exact]
    assert len(faulty) >= 12 and len(exact) >= 6
    assert not (exact.finding == "biased").any()
