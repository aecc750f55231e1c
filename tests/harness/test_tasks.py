"""Tasks that measure laws, against sums and recursions of their own, and their rows."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
from toys import TableModel, ToyTokenizer, table_pair

from experiments.store import parse
from experiments.tasks.acceptance import Acceptance
from experiments.tasks.base import Workload
from experiments.tasks.bound import Bound
from experiments.tasks.decay import Decay
from experiments.tasks.decode import Decode
from experiments.tasks.kl import Kl
from experiments.tasks.prefix_laws import prefix_lengths
from experiments.tasks.residuals import Residuals
from experiments.tasks.sampled_trees import Root, part
from experiments.tasks.scaling import Scaling
from experiments.tasks.shapes import Shapes
from experiments.tasks.step_breakdown import Profile
from resispec.audit.as_sibling_rule import rule_of
from resispec.audit.ceiling import ceiling
from resispec.audit.enumerate import emitted_law, total_variation
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, NoDraft
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.models import Pair, Warp
from resispec.trees import complete, parallel_chains
from resispec.verifiers import get_verifier

TEMPERATURE = 0.8


def workload(verifier="standard", prompts=1, pair=None, length=1):
    decoder = Decoder(NoDraft(), get_verifier(verifier))
    tokens = [[(index + place) % 3 for place in range(length)] for index in range(prompts)]
    named = [(f"p{index}", prompt) for index, prompt in enumerate(tokens)]
    return Workload(pair or table_pair(vocab=6, seed=3), decoder, Sampling(TEMPERATURE, 8, 64), named, seed=0)


def bigram_rows(pair):
    """The laws after every token, (V, V), of target and draft."""
    return tuple(torch.softmax(model.logits / TEMPERATURE, -1) for model in (pair.target, pair.draft))


def residuals(p, q, count):
    """theory.md 1.3: p_1 = p and p_{i+1} = norm((p_i - q)+)."""
    for _ in range(count):
        yield p
        p = (p - q).clamp_min(0)
        p = p / p.sum()


def test_prefixes_are_even_steps_up_to_the_whole_prompt():
    assert prefix_lengths(64, 4) == [16, 32, 48, 64] and prefix_lengths(10, 1) == [10]
    assert prefix_lengths(2, 8) == [1, 2]


def test_decay_of_the_standard_rule_is_its_closed_recursion():
    """alpha_i = sum_x min(p_i(x), q(x)): no sampling of coins, so 4,000 tuples come close."""
    setting = workload()
    p, q = (rows[0] for rows in bigram_rows(setting.pair))
    row = Decay(num_prefixes=1, num_siblings=4, num_tuples=4000)(setting, 0)
    measured = [above / below for above, below in zip(row.selected, row.tested, strict=True)]
    expected = [float(torch.minimum(law, q).sum()) for law in residuals(p, q, 4)]
    # 4 standard errors of 4,000 values of deviation below 0.3
    assert measured == pytest.approx(expected, abs=0.02)
    assert row.tested[0] == 4000 and row.num_tuples == 4000
    highest = [0.0, *(float(ceiling(p, q, count, Draws.IID)) for count in range(1, 5))]
    assert row.ceiling_tested == pytest.approx([1 - a for a in highest[:-1]])
    assert row.ceiling_selected == pytest.approx(
        [now - before for before, now in zip(highest, highest[1:], strict=False)]
    )


@pytest.mark.parametrize("verifier", ["standard", "resispec"])
def test_kl_audits_the_law_that_is_emitted(verifier):
    setting = workload(verifier, length=8)
    row = Kl(num_prefixes=2, num_siblings=3, num_tuples=6000)(setting, 0)
    assert row.num_prefixes == 2 and row.num_prompt_tokens == 8
    target, draft = bigram_rows(setting.pair)
    for index, last in enumerate((0, 1)):  # the prompt is 0 1 2 0 1 2 0 1: prefixes end at its tokens 4 and 8
        law = emitted_law(rule_of(setting.decoder.verifier), target[last], draft[last], 3, Draws.IID)
        true = total_variation(law, target[last])
        assert abs(row.total_variation[index] - true) < 4 * row.total_variation_error[index]
        divergence = float((law * (law / target[last]).log()).sum())
        assert row.kl_at_least[index] <= divergence + 1e-6 and row.kl_at_least[index] <= row.kl_plug_in[index]
        assert true < 1e-12 if verifier == "standard" else true > 0.02 and row.kl_at_least[index] > 0
    for name in ("paper_kl_resispec", "paper_kl_standard", "paper_kl_random"):  # rounding, whatever the rule
        assert all(abs(value) < 1e-6 for value in getattr(row, name))


def test_a_pair_without_a_draft_is_refused():
    pair = table_pair()
    for task in (Kl(1, 2, 8), Decay(1, 2, 8)):
        with pytest.raises(InvalidInput, match="the pair has none; give pair.draft"):
            task(workload(pair=Pair(pair.target, None, pair.tokenizer)), 0)


TASKS = [
    Decode(),
    Decode(audit=True),
    Kl(2, 2, 8),
    Decay(2, 4, 2),
    Scaling(2, [1, 2], 3, 1),
    Acceptance(3, "without_replacement"),
    Bound(2, 1),
    Shapes(2, [[-1, 0, 0], [-1, 0, 1]]),
    Profile(),
]


@pytest.mark.parametrize("verifier", ["standard", "resispec"])
@pytest.mark.parametrize(
    "task", TASKS, ids=[f"{type(task).__name__}{place}" for place, task in enumerate(TASKS)]
)
def test_every_task_makes_a_row_and_a_progress_text(task, verifier):
    pair = table_pair(vocab=5, gap=3.0)
    setting = workload(verifier, prompts=2, pair=pair, length=6)
    setting = replace(setting, decoder=Decoder(DraftModel(complete(3, 2), Draws.IID), get_verifier(verifier)))
    rows = [task(setting, index) for index in range(2)]
    for row in rows:
        assert type(row) is task.row
        assert parse(json.dumps(asdict(row), allow_nan=False), task.row) == row
    for count in (1, 2):
        texts = task.progress(rows[:count])
        assert texts and all(isinstance(text, str) for text in texts.values())


def test_a_sibling_that_no_draft_reaches_has_no_rate():
    """Both models agree, so the first sibling is always accepted and no other one is ever tested."""
    pair = table_pair(vocab=5, seed=0)
    same = workload(pair=Pair(pair.target, pair.target, pair.tokenizer), length=6)
    task = Decay(2, 4, 3)
    row = task(same, 0)
    assert row.tested[0] == 6 and max(row.tested[1:]) < 1e-9
    cut = replace(row, tested=[6.0, 0.0, 0.0, 0.0])
    assert task.progress([cut]) == {"acceptance": "1.00 to none"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Kl(0, 2, 8), "task.num_prefixes is 0; allowed: from 1"),
        (lambda: Decay(1, 0, 8), "task.num_siblings is 0"),
        (lambda: Scaling(1, [], 3, 1), "task.num_candidates is 0"),
        (lambda: Scaling(1, [1, -2], 3, 1), "task.num_candidates is -2"),
        (lambda: Scaling(1, [1], 1, 1), "task.num_levels is 1; allowed: from 2"),
        (lambda: Bound(1, 0), "task.rollouts is 0"),
        (lambda: Acceptance(0, "iid"), "task.num_siblings is 0"),
        (lambda: Residuals(1, 3, 12, 8, 40), "task.num_tuples is 12; allowed: multiples of 8"),
        (lambda: Residuals(1, 3, 8, 0, 40), "task.num_tokens is 0; allowed: from 1"),
    ],
)
def test_parameters_out_of_range_are_refused_when_a_task_is_made(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_positions_follow_the_prompt_and_laws_belong_to_what_was_written():
    """The target counts up, the draft is right after odd tokens only: every other first child is accepted."""
    vocab = 6
    target = torch.full((vocab, vocab), -1e9)
    target[torch.arange(vocab), (torch.arange(vocab) + 1) % vocab] = 0.0
    draft = target.clone()
    draft[::2] = draft[::2].roll(1, dims=1)
    workload = Workload(
        Pair(TableModel(target), TableModel(draft), ToyTokenizer()),
        Decoder(NoDraft(), get_verifier("standard")),
        Sampling(1.0, 9, 64),
        [("p0", [3, 4, 5])],
        seed=0,
    )
    row = Acceptance(1, "without_replacement")(workload, 0)
    # After 5, 1, 3, 5, 1 of 5, 0, 1, 2, 3, 4, 5, 0, 1.
    assert row.num_prefixes == 9 and row.selected == [5.0]


# Drafted trees.

WARP = Warp(temperature=TEMPERATURE)


def test_laws_at_nodes_and_parts_of_a_tree():
    """Both models are bigrams, so every node's law is the row of its token; leaves have the uniform law."""
    pair, generator = table_pair(vocab=5, seed=4), torch.Generator().manual_seed(1)
    root = Root(pair, [0, 3], WARP)
    whole = root.draft(complete(3, 3), generator)
    target, _ = bigram_rows(pair)
    laws = root.laws(pair.target, whole.tree)
    assert torch.allclose(laws[:4], target[whole.tree.tokens[:4]])
    assert torch.allclose(laws[4:], torch.tensor(0.2).double())
    # of nodes 0; 1 2 3; 4 to 12: 0; 1 2; first children 4 and 7
    drafted, rows = part(whole, laws, parallel_chains(2, 2))
    assert drafted.tree.tokens.tolist() == whole.tree.tokens[[0, 1, 2, 4, 7]].tolist()
    assert torch.equal(rows, laws[[0, 1, 2, 4, 7]])
    with pytest.raises(IndexError):
        part(whole, laws, complete(2, 4))


def test_a_bound_needs_independent_siblings():
    for drafter in (DraftModel(complete(3, 2), Draws.WITHOUT_REPLACEMENT), NoDraft()):
        setting = replace(workload(), decoder=Decoder(drafter, get_verifier("standard")))
        with pytest.raises(InvalidInput, match="allowed: decoder=specinfer"):
            Bound(num_prefixes=1, rollouts=1)(setting, 0)


def test_trees_are_the_same_for_every_verifier_and_repeatable():
    task = Scaling(num_prefixes=2, num_candidates=[1, 2], num_levels=3, rollouts=2)
    one, two, again = (task(workload(name, length=6), 0) for name in ("standard", "resispec", "standard"))
    assert (
        one == again
        and one.tree_log_ratios == two.tree_log_ratios
        and one.rollout_log_ratios == two.rollout_log_ratios
    )
    assert two.emitted[1] > one.emitted[1]
    assert [
        len(level) for level in (one.tree_log_ratios, one.tree_log_ratios[0], one.rollout_log_ratios)
    ] == [4, 2, 4]
