"""Tasks that measure laws, against sums and recursions of their own, and through the runner."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
from toys import save_prompts, save_tiny_pair, table_pair

from experiments import worker
from experiments.cells import expected_cells, plan
from experiments.tasks.prefixes import prefix_lengths
from experiments.tasks.kl import Decay, Kl, Scaling
from experiments.tasks.drafted import Root, expected_emitted, part
from experiments.tasks import Context
from resispec.audit.ceiling import ceiling
from resispec.audit.enumerate import emitted_law, total_variation
from resispec.audit.first_token import rule_of
from resispec.core import Draws
from resispec.decode import Decoder, Sampling
from resispec.drafters import NoDraft
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.trees import chain, complete, parallel_chains
from resispec.verifiers import get_verifier

TEMPERATURE = 0.8


def context(verifier="standard", prompts=1, pair=None, length=1):
    decoder = Decoder(NoDraft(), get_verifier(verifier))
    tokens = [[(index + place) % 3 for place in range(length)] for index in range(prompts)]
    named = [(f"p{index}", prompt) for index, prompt in enumerate(tokens)]
    return Context(pair or table_pair(vocab=6, seed=3), decoder, Sampling(TEMPERATURE, 8, 64), named, seed=0)


def bigram_rows(pair):
    """The laws after every token, (V, V), of target and draft."""
    return tuple(torch.softmax(model.logits / TEMPERATURE, -1) for model in (pair.target, pair.draft))


def residuals(p, q, count):
    """theory.md 1.3: p_1 = p and p_{i+1} = norm((p_i - q)+)."""
    for _ in range(count):
        yield p
        p = (p - q).clamp_min(0)
        p = p / p.sum()


def test_contexts_are_even_steps_up_to_the_whole_prompt():
    assert prefix_lengths(64, 4) == [16, 32, 48, 64] and prefix_lengths(10, 1) == [10]
    assert prefix_lengths(2, 8) == [1, 2]


def test_decay_of_the_standard_rule_is_its_closed_recursion():
    """alpha_i = sum_x min(p_i(x), q(x)): no sampling of coins, so 4,000 tuples come close."""
    setting = context()
    p, q = (rows[0] for rows in bigram_rows(setting.pair))
    row = Decay(contexts=1, num_siblings=4, num_tuples=4000)(setting, 0)
    measured = [above / below for above, below in zip(row.selected, row.tested, strict=True)]
    expected = [float(torch.minimum(law, q).sum()) for law in residuals(p, q, 4)]
    assert measured == pytest.approx(
        expected, abs=0.02
    )  # 4 standard errors of 4,000 values of deviation below 0.3
    assert row.tested[0] == 4000 and row.num_tuples == 4000
    highest = [0.0, *(float(ceiling(p, q, count, Draws.IID)) for count in range(1, 5))]
    assert row.ceiling_tested == pytest.approx([1 - a for a in highest[:-1]])
    assert row.ceiling_selected == pytest.approx(
        [now - before for before, now in zip(highest, highest[1:], strict=False)]
    )


@pytest.mark.parametrize("verifier", ["standard", "resispec"])
def test_kl_audits_the_law_that_is_emitted(verifier):
    setting = context(verifier, length=8)
    row = Kl(contexts=2, num_siblings=3, num_tuples=6000)(setting, 0)
    assert row.num_contexts == 2 and row.num_prompt_tokens == 8
    target, draft = bigram_rows(setting.pair)
    for index, last in enumerate((0, 1)):  # the prompt is 0 1 2 0 1 2 0 1: contexts end at its tokens 4 and 8
        law = emitted_law(rule_of(setting.decoder.verifier), target[last], draft[last], 3, Draws.IID)
        true = total_variation(law, target[last])
        assert abs(row.total_variation[index] - true) < 4 * row.total_variation_error[index]
        divergence = float((law * (law / target[last]).log()).sum())
        assert row.kl_at_least[index] <= divergence + 1e-6 and row.kl_at_least[index] <= row.kl_plug_in[index]
        assert true < 1e-12 if verifier == "standard" else true > 0.02 and row.kl_at_least[index] > 0
    for name in ("paper_kl_resispec", "paper_kl_standard", "paper_kl_random"):  # rounding, whatever the rule
        assert all(abs(value) < 1e-6 for value in getattr(row, name))


def emitted_in_closed_form(target, draft, shape, token, depth=0):
    """1 + sum over tokens of Pr(accepted as a child) times what follows: the standard rule's residual never hits a child."""
    children = shape(depth)
    if not children:
        return 1.0
    p, q = target[token], draft[token]
    total, alive = 1.0, 1.0
    for law in residuals(p, q, children):
        accepted = torch.minimum(law, q)
        for child, mass in enumerate(alive * accepted):
            total += float(mass) * emitted_in_closed_form(target, draft, shape, child, depth + 1)
        alive *= float(1 - accepted.sum())
    return total


def test_scaling_of_the_standard_rule_is_its_closed_recursion():
    pair = table_pair(vocab=4, seed=1)
    setting = context(prompts=100, pair=pair)
    task = Scaling(contexts=1, num_candidates=[1, 3], num_levels=3, rollouts=1)
    rows = [task(setting, index) for index in range(100)]
    assert rows[0].reading == ["complete", "complete", "chains", "chains"] and rows[0].num_candidates == [
        1,
        3,
        1,
        3,
    ]
    assert rows[0].num_nodes == [3, 13, 3, 7]
    assert all(row.emitted[0] == row.emitted[2] for row in rows)  # one candidate is a chain in both readings
    target, draft = bigram_rows(pair)
    shapes = [
        lambda depth: (1, 1, 0)[depth],
        lambda depth: (3, 3, 0)[depth],
        None,
        lambda depth: (3, 1, 0)[depth],
    ]
    for place, shape in ((0, shapes[0]), (1, shapes[1]), (3, shapes[3])):
        expected = [emitted_in_closed_form(target, draft, shape, index % 3) for index in range(100)]
        differences = torch.tensor([row.emitted[place] for row in rows]) - torch.tensor(expected)
        assert abs(float(differences.mean())) < 4 * float(differences.std()) / 100**0.5


def test_scaling_of_a_tree_is_what_the_decoder_emits():
    """Expected tokens given a drafted tree against 2,000 verdicts on that tree, for a rule whose residual does hit children."""
    pair, generator = table_pair(vocab=4, seed=2), torch.Generator().manual_seed(0)
    verifier = get_verifier("resispec")
    root = Root(pair, [1, 2], TEMPERATURE, 64)
    draft = root.draft(complete(3, 2), generator)
    laws = root.read(pair.target).laws(draft.tree)
    emitted = [verifier.verify(draft.tree, laws, draft.probs, generator).num_emitted for _ in range(2000)]
    assert expected_emitted(verifier, draft, laws) == pytest.approx(
        sum(emitted) / 2000, abs=4 * 0.8 / 2000**0.5
    )


def test_laws_at_nodes_and_parts_of_a_tree():
    """Both models are bigrams here, so every node's law is the row of its token; leaves have the uniform law."""
    pair, generator = table_pair(vocab=5, seed=4), torch.Generator().manual_seed(1)
    root = Root(pair, [0, 3], TEMPERATURE, 64)
    whole = root.draft(complete(3, 3), generator)
    target, _ = bigram_rows(pair)
    laws = root.read(pair.target).laws(whole.tree)
    assert torch.allclose(laws[:4], target[whole.tree.tokens[:4]]) and torch.allclose(
        laws[4:], torch.tensor(0.2).double()
    )
    drafted, rows = part(
        whole, laws, parallel_chains(2, 2)
    )  # of nodes 0; 1 2 3; 4 to 12: 0; 1 2; first children 4 and 7
    assert drafted.tree.tokens.tolist() == whole.tree.tokens[[0, 1, 2, 4, 7]].tolist()
    assert torch.equal(rows, laws[[0, 1, 2, 4, 7]])
    with pytest.raises(IndexError):
        part(whole, laws, complete(2, 4))


def test_target_paths_have_the_ratios_of_their_tokens():
    """With p = q every path ratio is 1; else the mean of q / p over paths drawn by p is 1 at every level (importance weights)."""
    pair, generator = table_pair(vocab=4, seed=5, gap=0.5), torch.Generator().manual_seed(2)
    same = Root(Pair(pair.target, pair.target, pair.tokenizer), [1], TEMPERATURE, 64)
    assert torch.allclose(
        same.target_path_ratios(parallel_chains(3, 2), generator), torch.zeros(3, 2).double()
    )
    ratios = Root(pair, [1], TEMPERATURE, 4000).target_path_ratios(parallel_chains(1500, 2), generator)
    weights = (-ratios).exp()
    assert ratios.shape == (1500, 2)
    assert bool(((weights.mean(0) - 1).abs() < 4 * weights.std(0) / 1500**0.5).all())


def test_trees_are_the_same_for_every_verifier_and_repeatable():
    task = Scaling(contexts=2, num_candidates=[1, 2], num_levels=3, rollouts=2)
    one, two, again = (task(context(name, length=6), 0) for name in ("standard", "resispec", "standard"))
    assert (
        one == again
        and one.tree_log_ratios == two.tree_log_ratios
        and one.rollout_log_ratios == two.rollout_log_ratios
    )
    assert two.emitted[1] > one.emitted[1]
    assert [
        len(level) for level in (one.tree_log_ratios, one.tree_log_ratios[0], one.rollout_log_ratios)
    ] == [4, 2, 4]


def test_a_pair_without_a_draft_is_refused():
    pair = table_pair()
    for task in (Kl(1, 2, 8), Decay(1, 2, 8)):
        with pytest.raises(InvalidInput, match="the pair has none; give pair.draft"):
            task(context(pair=Pair(pair.target, None, pair.tokenizer)), 0)


def test_rows_and_progress_of_every_task_are_json():
    setting = context(length=6)
    for task in (Kl(2, 2, 8), Decay(2, 2, 8), Scaling(2, [1, 2], 3, 1)):
        row = asdict(task(setting, 0))
        assert json.loads(json.dumps(row, allow_nan=False)) == row
        assert all(isinstance(value, str) for value in task.progress([row]).values())


def test_parallel_chains():
    #      0
    #   1  2  3
    #   4  5  6
    assert parallel_chains(3, 2).parents == (-1, 0, 0, 0, 1, 2, 3)
    assert parallel_chains(1, 3) == chain(3) and parallel_chains(8, 3).num_nodes == 25
    for bad in ((0, 2), (2, 0)):
        with pytest.raises(InvalidInput, match=f"found {bad[0]} chains of {bad[1]} tokens"):
            parallel_chains(*bad)


@pytest.mark.parametrize(
    ("profile", "dataset", "pairs"), [("embedded", "embedded_reference", 1), ("paper", "cnn_dm", 2)]
)
def test_what_the_paper_reports_for_one_data_set_or_two_pairs(profile, dataset, pairs):
    cells = expected_cells("table5", profile)
    assert {cell.labels["dataset"] for cell in cells} == {dataset} and len(cells) == 2
    assert (
        len(
            expected_cells(
                "figure1",
                profile,
                ["temperature=1.0", "dataset=jsonl", "dataset.path=x", "verifier=standard"],
            )
        )
        == pairs
    )


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Overrides that make any cell a toy: tiny models and prompts from local folders."""
    folder = tmp_path_factory.mktemp("pair")
    save_tiny_pair(folder)
    save_prompts(folder, 3)
    return [
        "pair=llama2_7b__jf68m", f"pair.target={folder}/target", f"pair.draft={folder}/draft", "device=cpu", "dtype=float32",
        "dataset=jsonl", f"dataset.path={folder}/prompts.jsonl", "num_prompts=3", "prompt_tokens=12", "num_threads=1",
        "sampling.max_length=40", f"results={folder}/results",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "smaller"),
    [("kl", "task.num_tuples=16"), ("decay", "task.num_tuples=4"), ("scaling", "task.num_candidates=[1,2]")],
)
@pytest.mark.parametrize("verifier", ["standard", "resispec"])
def test_every_task_runs_as_a_cell(task, smaller, verifier, toy):
    [cell] = plan(
        [f"task={task}", smaller, "task.contexts=2", f"verifier={verifier}", "warmup_prompts=0", *toy]
    )
    cell.folder.mkdir(parents=True)
    (cell.folder / "cell.json").write_text(
        json.dumps({"title": str(cell), "labels": cell.labels, "config": cell.config})
    )
    worker.run(cell.folder)
    rows = [json.loads(line) for line in (cell.folder / "rows.jsonl").read_text().splitlines()]
    assert [(row["prompt_index"], row["seed"]) for row in rows] == [(0, 0), (1, 1), (2, 2)]
