"""How many tokens a bias takes: laws are as biased as they are named, and audits bear the numbers out."""

import pandas as pd
import pytest
import torch
from toy_engine import EOS, VOCABULARY, draft, target

from experiments.transcripts.drawn import LAWS, Context, draw, exact, tempered, toward_draft
from experiments.transcripts.power import EXACT_DRAWS, exact_reports, false_alarms, needed, power, table_of
from resispec.audit.transcripts import measure

PROMPTS = [tuple(1 + (row * 7 + place * 5) % 60 for place in range(6)) for row in range(60)]


@pytest.fixture
def context():
    logits = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(0))
    drafted = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(1)).softmax(-1)
    return Context(logits, drafted, torch.tensor([[1, 2, 2]] * 4), (EOS,))


@pytest.mark.parametrize("name", LAWS)
def test_laws_are_laws_and_not_the_targets(context, name):
    law = LAWS[name](context)
    torch.testing.assert_close(law.sum(-1), torch.ones(4))
    assert law.min() >= 0 and not torch.equal(law, exact(context))


@pytest.mark.parametrize("variation", [0.1, 0.02])
def test_a_shift_to_the_draft_has_the_total_variation_that_is_asked_for(context, variation):
    shift = (toward_draft(variation)(context) - exact(context)).abs().sum(-1) / 2
    torch.testing.assert_close(shift, torch.full((4,), variation), atol=1e-5, rtol=0)
    torch.testing.assert_close(toward_draft(1.0)(context), context.draft, atol=1e-6, rtol=1e-5)


def test_drawn_rows_have_the_law_and_end_where_they_end():
    rows = draw(exact, PROMPTS, target(), draft(), seed=1, new=30)
    assert rows == draw(exact, PROMPTS, target(), draft(), seed=1, new=30)
    assert rows != draw(exact, PROMPTS, target(), draft(), seed=2, new=30)
    for row in rows:
        assert EOS not in row.output_token_ids[:-1]
        assert (row.finish_reason == "stop") == (row.output_token_ids[-1] == EOS)
        assert row.finish_reason == "stop" or len(row.output_token_ids) == 30
    assert abs(measure(rows, target()).statistics()["surprisal"].z) < 3.5


def test_audits_of_as_many_tokens_as_are_needed_find_the_bias():
    generator = torch.Generator().manual_seed(0)
    arm = measure(draw(tempered(0.6), PROMPTS * 3, target(), draft(), 0, 30), target(), draft())
    row = power("hot", arm, audits=20, generator=generator)
    assert row["by"] == row["by_without"] == "surprisal" and row["tokens"] < arm.num_tokens / 2
    assert row["audits"] == 20 and row["found"] >= 14
    exact_arm = measure(draw(exact, PROMPTS, target(), draft(), 3, 30), target(), draft())
    assert needed(exact_arm, has_draft=True) == (None, None)
    assert "audits" not in power("exact", exact_arm, 20, generator)


def test_exact_rows_raise_no_alarm_and_the_table_says_so():
    rows = [row for seed in range(EXACT_DRAWS) for row in draw(exact, PROMPTS, target(), draft(), seed, 20)]
    arm = measure(rows, target(), draft())
    generator = torch.Generator().manual_seed(0)
    found = []
    for name, is_paired in (("exact", False), ("exact, against a control", True)):
        reports = [*exact_reports(arm, len(PROMPTS), 12, is_paired, generator)]
        assert all(len(report.judgements) == (3 if is_paired else 1) for report in reports)
        found.append(false_alarms(name, arm, reports))
    assert all(row["found"] == 0 and 0.02 < row["below_0.1"] < 0.2 for row in found)
    absent = dict.fromkeys(("tokens", "by", "tokens_without", "by_without"))
    shown = table_of(pd.DataFrame([absent | row for row in found])).shown
    assert shown["audits that found it"].tolist() == ["0 of 12", "0 of 12"]
