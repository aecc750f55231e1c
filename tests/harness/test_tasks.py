"""Tasks that measure laws, and their rows, against sums, recursions and numbers by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from experiments.configurations import ONE_TOKEN, Chosen
from experiments.grid import cells_of
from experiments.tasks.acceptance import Acceptance
from experiments.tasks.base import Workload
from experiments.tasks.bias import Bias
from experiments.tasks.bound import Bound
from experiments.tasks.decay import Decay
from experiments.tasks.decode import Decode
from experiments.tasks.kl import Kl
from experiments.tasks.laws import Laws
from experiments.tasks.prefix_laws import Prefixes, PrefixTask, prefix_laws, written
from experiments.tasks.race import Race
from experiments.tasks.residuals import Residuals
from experiments.tasks.sampled_trees import Root, part
from experiments.tasks.scaling import Scaling
from experiments.tasks.step_breakdown import Profile, ProfileRow
from experiments.tasks.text import Text, ngrams
from experiments.worker import load_workload
from referee.engines.base import Answer
from referee.engines.generate import TransformersEngine
from resispec import timing
from resispec.audit.as_sibling_rule import rule_of
from resispec.audit.ceiling import ceiling
from resispec.audit.enumerate import emitted_law, total_variation
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, DynamicTree, Eagle, NoDraft
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.models import Pair, Warp
from resispec.trees import complete, parallel_chains
from resispec.verifiers import Law, ResiSpec, Standard, TopDown, as_verifier, get_verifier
from tests.toys import TableModel, ToyTokenizer, eagle_pair, table_pair

pytestmark = pytest.mark.numerics

TEMPERATURE = 0.8


def workload(verifier="standard", prompts=1, pair=None, length=1, drafter=None):
    decoder = Decoder(drafter or NoDraft(), get_verifier(verifier))
    tokens = [[(index + place) % 3 for place in range(length)] for index in range(prompts)]
    named = [(f"p{index}", prompt) for index, prompt in enumerate(tokens)]
    return Workload(
        pair or table_pair(vocab=6, seed=3), decoder, Sampling(TEMPERATURE, 8, 64), named, seed=0
    )


def bigram_rows(pair):
    """The laws after every token, (V, V), of target and draft."""
    return tuple(
        torch.softmax(model.logits / TEMPERATURE, -1) for model in (pair.target, pair.draft)
    )


def of_laws(p, q):
    """A pair whose laws are these after every token."""
    laws = (TEMPERATURE * torch.tensor([law] * len(p), dtype=torch.float64).log() for law in (p, q))
    return Pair(*map(TableModel, laws), ToyTokenizer())


def test_prefixes_are_even_steps_up_to_the_whole_prompt():
    def lengths(num_tokens, count):
        return PrefixTask(count).prefixes(workload(length=num_tokens), 0, None).lengths

    assert lengths(64, 4) == [16, 32, 48, 64] and lengths(10, 1) == [10]
    assert lengths(2, 8) == [1, 2]


def test_every_configuration_of_a_race_decodes_at_the_same_filters(toy, monkeypatch):
    found = []

    def answer(_engine, _prompt, settings, _seed):
        found.append(settings)
        return Answer((1,), "length", None)

    monkeypatch.setattr(TransformersEngine, "answer", answer)
    [cell] = cells_of([*toy, "temperature=0.6", "sampling.top_p=0.9", "tree=chain"])
    material = load_workload(cell.config, None)
    Race(Chosen(ONE_TOKEN, {}), 2)(material, 0)
    assert [settings.warp for settings in found] == [material.sampling.warp] * 2
    assert material.sampling.by_name() == Warp(temperature=0.6, top_p=0.9).by_name()


def test_a_sibling_that_no_draft_reaches_has_no_rate():
    """Both models agree, so the first sibling is always accepted and no other is ever tested."""
    pair = table_pair(vocab=5, seed=0)
    task = Decay(2, 4, 3)
    row = task(workload(pair=Pair(pair.target, pair.target, pair.tokenizer), length=6), 0)
    assert row.tested[0] == 6 and max(row.tested[1:]) < 1e-9
    assert task.progress([replace(row, tested=[6.0, 0.0, 0.0, 0.0])]) == {
        "acceptance": "1.00 to none"
    }


@pytest.mark.parametrize("verifier", ["standard", "resispec"])
def test_kl_audits_the_law_that_is_emitted(verifier):
    setting = workload(verifier, length=8)
    row = Kl(num_prefixes=2, num_siblings=3, num_tuples=6000)(setting, 0)
    assert row.num_prefixes == 2 and row.num_prompt_tokens == 8
    target, draft = bigram_rows(setting.pair)
    # the prompt is 0 1 2 0 1 2 0 1: prefixes end at its tokens 4 and 8
    for index, last in enumerate((0, 1)):
        law = emitted_law(
            rule_of(setting.decoder.verifier), target[last], draft[last], 3, Draws.IID
        )
        true = total_variation(law, target[last])
        assert abs(row.total_variation[index] - true) < 4 * row.total_variation_error[index]
        divergence = float((law * (law / target[last]).log()).sum())
        assert (
            row.kl_at_least[index] <= divergence + 1e-6
            and row.kl_at_least[index] <= row.kl_plug_in[index]
        )
        assert (
            true < 1e-12 if verifier == "standard" else true > 0.02 and row.kl_at_least[index] > 0
        )
    # rounding, whatever the rule
    for name in ("paper_kl_resispec", "paper_kl_standard", "paper_kl_random"):
        assert all(abs(value) < 1e-6 for value in getattr(row, name))


TREE = DraftModel(complete(3, 2), Draws.IID)
P, Q = (0.5, 0.3, 0.2), (0.2, 0.4, 0.4)  # docs/exactness.md, by hand


def biases(verifier, num_tuples=2000):
    """The row of a verifier on TREE where both laws are the same after every token."""
    setting = workload(pair=of_laws(P, Q), drafter=TREE)
    setting = replace(setting, decoder=Decoder(TREE, verifier))
    return Bias(num_prefixes=4, num_tuples=num_tuples)(setting, 0)


@pytest.mark.parametrize("name", ["standard", "resispec", "relaxed"])
def test_the_bias_at_a_node_is_that_of_the_enumerated_law(name):
    rule, laws = (
        rule_of(get_verifier(name)),
        [torch.tensor(law, dtype=torch.float64) for law in (P, Q)],
    )
    true = total_variation(emitted_law(rule, *laws, 2, Draws.IID), laws[0])
    row = biases(get_verifier(name))
    assert row.num_prefixes == len(row.inner) == 4
    for values in (row.few_variation, row.variation):
        assert all(abs(value - true) < 0.03 for value in values)
    assert true < 1e-12 if name == "standard" else true > 0.05
    highest = float(ceiling(*laws, 2, Draws.IID))
    assert row.ceiling == [pytest.approx(highest, abs=1e-6)] * 4
    # 1 + the chance to go on, and the same once more below; the node that follows is a leaf
    assert 4 < sum(row.inner) < row.emitted <= 12


def test_a_dial_on_the_optimal_rule_is_off_by_its_chance_times_what_it_refuses():
    optimal, laws = (
        get_verifier("optimal", bins=0).rule,
        [torch.tensor(law, dtype=torch.float64) for law in (P, Q)],
    )
    refused = 1 - float(ceiling(*laws, 2, Draws.IID))
    row = biases(get_verifier("dial", rule=optimal, chance=0.5), 4000)
    assert row.variation == [pytest.approx(0.5 * refused, abs=0.02)] * 4
    assert row.acceptance == [pytest.approx(1 - 0.5 * refused, abs=0.02)] * 4


def test_what_decides_about_whole_trees_has_no_bias_at_a_node_but_an_excess_of_classes():
    row = biases(get_verifier("dial", rule="level_optimal", chance=1.0), 4)
    assert row.variation == row.acceptance == row.ceiling == [None] * 4
    assert row.emitted == pytest.approx(12) and sum(row.inner) == pytest.approx(8)
    halves = torch.tensor(row.excess)
    assert halves.shape[0] == 2 and float(halves.sum(0).clamp_min(0).sum()) > 0.1
    with pytest.raises(InvalidInput, match="a prefix alone leads to; allowed: a decoder with"):
        Bias(4, 4).check(Decoder(NoDraft(), get_verifier("standard")))


def test_the_siblings_of_a_deterministic_drafter_are_the_only_ones():
    """The softmax reading of EAGLE's candidates, whose law at a node is known without sampling."""
    pair = eagle_pair()
    drafter = Eagle(DynamicTree(6, 2, 2), "softmax")
    setting = replace(
        workload(pair=pair, length=4), decoder=Decoder(drafter, get_verifier("naive"))
    )
    row = Bias(num_prefixes=2, num_tuples=4)(setting, 0)
    assert row.variation == row.few_variation
    # naive accepts what p itself draws, whatever the siblings are
    assert all(value < 1e-6 for value in row.variation)
    assert all(
        found == pytest.approx(mass, abs=1e-6)
        for found, mass in zip(row.acceptance, row.ceiling, strict=True)
    )


def test_at_temperature_0_laws_are_those_of_greedy_decoding():
    """The target's is a point mass; the draft's stays whole, so that siblings differ."""
    pair, generator = table_pair(vocab=5, seed=11, gap=3.0), torch.Generator().manual_seed(1)
    setting = workload(pair=pair, drafter=DraftModel(complete(2, 2), Draws.IID), length=3)
    setting = replace(setting, sampling=Sampling(0, 8, 64))
    p, q = (
        torch.eye(5)[pair.target.logits.argmax(-1)].double(),
        torch.softmax(pair.draft.logits, -1),
    )
    for found, law in zip(
        prefix_laws(setting, Prefixes(setting.prompts[0][1], [1, 3])), (p, q), strict=True
    ):
        assert torch.allclose(found, law[[0, 2]])
    root = Root(pair, [0, 3], setting.sampling.warp)
    drafted = root.draft(DraftModel(complete(2, 2)), generator)
    assert torch.allclose(drafted.probs[0], q[3]) and torch.equal(
        root.laws(pair.target, drafted.tree)[0], p[3]
    )
    first, second = int(p[3].argmax()), int(p[int(p[3].argmax())].argmax())
    ratios = root.target_path_ratios(parallel_chains(2, 2), generator)
    assert torch.allclose(ratios[:, 1], -(q[3, first] * q[first, second]).log())
    # how often the token that is written is the draft's likeliest, the next, ...
    token, ranks = 2, [0.0] * 5
    for _ in range(8):
        by_rank, token = q[token].argsort(descending=True).tolist(), int(p[token].argmax())
        ranks[by_rank.index(token)] += 1
    assert Acceptance(5, Draws.POINT_MASS)(setting, 0).selected == ranks


@pytest.mark.parametrize(
    ("kind", "drafter"),
    [
        ("model", DraftModel(complete(2, 2), "iid")),
        ("model", DraftModel(complete(2, 2), "without_replacement")),
        ("model", DraftModel(complete(2, 2), "point_mass")),
        ("model", DraftModel(complete(2, 2), recycled=0.5)),
        ("eagle", DraftModel(complete(2, 2), "iid")),
        ("eagle", DraftModel(complete(2, 2), recycled=0.5)),
    ],
)
def test_searches_measure_a_draft_as_it_drafts(kind, drafter):
    """Trees after a prefix, and laws after every token of the target's text, are as in decoding."""
    pair = table_pair(vocab=64, seed=3)
    if kind == "eagle":
        pair = eagle_pair()
    setting, rule = workload(pair=pair, length=5), rule_of(workload().decoder.verifier)
    tokens, one = written(setting, 0, setting.generator(0)), Sampling(TEMPERATURE, 1, 64)
    # all tokens are siblings, which do not vary then
    selected = torch.zeros(64, dtype=torch.float64)
    for length in range(len(tokens)):
        prefix, steps = [*setting.prompts[0][1], *tokens[:length]], []
        root = Root(pair, prefix, setting.sampling.warp)
        drafted = root.draft(drafter, torch.Generator().manual_seed(1))
        decoder = Decoder(drafter, setting.decoder.verifier)
        decoder.generate(pair, prefix, one, torch.Generator().manual_seed(1), steps.append)
        assert drafted.tree.draws == drafter.draws
        assert torch.equal(drafted.tree.tokens, steps[0].draft.tree.tokens)
        assert torch.allclose(drafted.probs[0], steps[0].draft.probs[0], atol=1e-6)
        p, q = root.laws(pair.target, drafted.tree)[:1], drafted.probs[:1]
        selected += rule.law(p, q, q.topk(64).indices, Draws.POINT_MASS).select[0].double()
    found = Acceptance(64, Draws.POINT_MASS)(setting, 0).selected
    if not drafter.recycled:  # which a search does not ask for by places
        assert torch.allclose(torch.tensor(found, dtype=torch.float64), selected, atol=1e-4)


def test_a_text_is_read_under_the_law_that_it_was_sampled_from_and_at_temperature_1():
    """Of bigrams: every token has the law after the one before it; the prompt's are not read."""
    setting = workload(length=3)
    row = Text()(setting, 0)
    logits = setting.pair.target.logits.double()
    before = [setting.prompts[0][1][-1], *row.tokens[:-1]]
    for temperature, found in ((TEMPERATURE, row.surprisal), (1.0, row.surprisal_unwarped)):
        log_probs = (logits / temperature).log_softmax(-1)
        assert found == pytest.approx(-float(log_probs[before, row.tokens].sum()), rel=1e-5)
    assert row.num_outside == 0 and row.num_returned == 8


def test_a_token_outside_of_the_sampled_law_is_no_part_of_its_surprisal(monkeypatch):
    """A biased verifier can write one where a filter is on; here another decoding did."""
    setting = workload(length=3)
    greedy = replace(setting, sampling=replace(setting.sampling, top_k=1))
    decoded = Decode()(setting, 0)
    monkeypatch.setattr(Decode, "__call__", lambda *_: decoded)
    likeliest = setting.pair.target.logits.argmax(-1)
    before = [setting.prompts[0][1][-1], *decoded.tokens[:-1]]
    others = sum(likeliest[one] != token for one, token in zip(before, decoded.tokens, strict=True))
    row = Text()(greedy, 0)
    assert others > 0 and (row.num_outside, row.surprisal) == (others, 0)


def test_ngrams_are_counted_with_those_that_overlap():
    assert ngrams([1, 1, 1, 2]) == ([4, 3, 2, 1], [2, 2, 2, 1])
    assert ngrams([5]) == ([1, 0, 0, 0], [1, 0, 0, 0])


def test_what_cannot_be_measured_is_refused():
    refused = {
        "task.num_prefixes is 0; allowed: whole numbers from 1": lambda: Kl(0, 2, 8),
        "task.num_prefixes is 2.5; allowed: whole numbers from 1": lambda: Kl(2.5, 2, 8),
        "task.in_answer is 'no'; allowed: true, false": lambda: Kl(1, 2, 8, in_answer="no"),
        "branching -2": lambda: Scaling(1, [1, -2], 3, 1).check(
            workload(drafter=DraftModel(complete(3, 2))).decoder
        ),
        "task.num_tuples is 12; allowed: multiples of 8": lambda: Residuals(1, 3, 12, 8, 40),
        "the pair has none; give pair.draft": lambda: Kl(1, 2, 8)(
            workload(pair=Pair(table_pair().target, None, None)), 0
        ),
        "trees are measured .* allowed: decoder=specinfer": lambda: Bound(1, 1)(workload(), 0),
        "from the draft's own laws; allowed: recycled=0": lambda: Bound(1, 1)(
            workload(drafter=DraftModel(complete(3, 2), recycled=0.5)), 0
        ),
    }
    bushy = complete(3, 2)
    refused |= {
        f"acceptance is measured {message}": lambda drafter=drafter: Acceptance(2, Draws.IID).check(
            workload(drafter=drafter).decoder
        )
        for message, drafter in {
            "from the draft's own laws": DraftModel(bushy, recycled=0.5),
            "with draws iid, and the decoder's are greedy": DraftModel(bushy, Draws.GREEDY),
        }.items()
    }

    class Own(DraftModel):
        """A user's drafter, whose laws a task would not ask for."""

    eagle = Eagle(DynamicTree(6, 2, 2), "softmax")
    refused |= {
        "for i.i.d. siblings of the draft's law; found draws greedy": lambda: Scaling(
            1, [2], 3, 1
        ).check(workload(drafter=DraftModel(bushy, Draws.GREEDY)).decoder),
        "draft's own laws; found Own, allowed: DraftModel": lambda: Decay(1, 2, 8).check(
            workload(drafter=Own(bushy)).decoder
        ),
        "says how siblings were drawn; found the likeliest tokens, told as draws": lambda: Laws(
            "laws"
        ).check(workload(drafter=eagle).decoder),
    }
    for message, make in refused.items():
        with pytest.raises(InvalidInput, match=message):
            make()


# Drafted trees.


class Twice(Standard):
    """Selects every sibling by itself, so that the chances of two may sum to more than 1."""

    def law(self, target_probs, draft_probs, siblings, _draws):
        ratios = (target_probs / draft_probs).gather(-1, siblings)
        return Law(ratios.clamp_max(1), target_probs.clone())


class Halved(TopDown):
    """Outcomes half of which are lost: the chances to stop, or the final tokens' masses."""

    lost = "stop"

    def outcomes(self, *given):
        outcomes = super().outcomes(*given)
        return replace(outcomes, **{self.lost: getattr(outcomes, self.lost) / 2})


class HalvedFinal(Halved):
    lost = "final"


ILLEGAL = [
    (task, Twice(), InvalidInput, "^rule 'Twice': row .*: entries of select sum to")
    for task in (Decay(2, 2, 8), Kl(2, 2, 8), Residuals(2, 2, 8, 2, 2), Acceptance(2, Draws.IID))
]
ILLEGAL += [
    (Bias(2, 8), Twice(), FloatingPointError, "^the chances to stop in a verified tree sum to"),
    (Bias(2, 8), Halved(Standard()), FloatingPointError, "^the chances to stop in .* sum to 0.5,"),
    (Bias(2, 8), HalvedFinal(Standard()), FloatingPointError, "^the masses of a final token"),
    (Scaling(2, [2], 2, 1), Halved(Standard()), FloatingPointError, "^the chances to stop"),
]


@pytest.mark.parametrize(("task", "verifier", "error", "message"), ILLEGAL)
def test_what_is_no_law_is_not_measured(task, verifier, error, message):
    """Defect: rates above 1 came out of it, and trees were searched for by them."""
    setting = workload(pair=of_laws(P, Q), length=3)
    with pytest.raises(error, match=message):
        task(replace(setting, decoder=Decoder(TREE, as_verifier(verifier))), 0)


class Sure(TopDown):
    """It stops at leaves only where the target is sure of the next token."""

    def outcomes(self, tree, target_probs, draft_probs):
        outcomes = super().outcomes(tree, target_probs, draft_probs)
        leaves = [not below for below in tree.topology.children]
        is_lost = torch.tensor(leaves) & (target_probs.amax(-1) < 0.9)
        stop = outcomes.stop.masked_fill(is_lost, 0.0)
        stop[0] += outcomes.stop.sum() - stop.sum()
        return replace(outcomes, stop=stop)


class Lazy(TopDown):
    def verify(self, *given):
        return super().verify(*given)


@pytest.mark.parametrize("task", [Bias(2, 8), Bound(2, 1), Scaling(2, [2], 2, 1)])
def test_what_reads_laws_that_are_not_measured_is_refused(task):
    """Defect: leaves had a uniform law, and trees were searched for by it."""
    plain = workload(drafter=DraftModel(complete(3, 2))).decoder
    with pytest.raises(InvalidInput, match="Standard decides by the target's laws at leaves"):
        task.check(Decoder(plain.drafter, Sure(Standard())))
    for name in ("standard", "traversal_optimal", "level_optimal", "resispec"):
        task.check(Decoder(plain.drafter, get_verifier(name)))


@pytest.mark.parametrize("task", [Bias(2, 8), Scaling(2, [2], 2, 1), Acceptance(2, Draws.IID)])
def test_a_verify_of_one_s_own_needs_its_own_outcomes_where_laws_are_measured(task):
    """Defect: the numbers were those of the class that it inherits from."""
    setting = workload(pair=of_laws(P, Q), length=3)
    with pytest.raises(InvalidInput, match="^Lazy has a `verify` of its own and inherits"):
        task(replace(setting, decoder=Decoder(TREE, Lazy(Standard()))), 0)


def test_laws_at_nodes_and_parts_of_a_tree():
    """Both models are bigrams: a node's law is the row of its token; that of leaves is uniform."""
    pair, generator = table_pair(vocab=5, seed=4), torch.Generator().manual_seed(1)
    root = Root(pair, [0, 3], Warp(temperature=TEMPERATURE))
    whole = root.draft(DraftModel(complete(3, 3)), generator)
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


# Residuals.


def measured(verifier, num_siblings, pair, num_tuples=2048):
    task = Residuals(1, num_siblings, num_tuples, num_tokens=8, num_next=1)
    return task(workload(verifier, pair=pair), 0)


def of_tokens(row, law):
    """Numbers of the first prefix in the vocabulary's order; every token has its own entry."""
    known = {token: value for token, value in zip(row.tokens[0], law, strict=True) if token >= 0}
    return [known[token] for token in sorted(known)]


def test_residuals_by_hand():
    """ResiSpec rejects token 2 with chance .1, token 3 with .2; the page has both residuals.

    Models that agree leave nothing to reject.
    """
    row = measured("resispec", 1, of_laws(P, Q))
    residual = [(0.1 * 0.5 + 0.2 * 0.4706) / 0.3, 0.2 * 0.5294 / 0.3, 0.1 * 0.5 / 0.3]
    assert row.rejected[0] == pytest.approx([1, 0.3], abs=2e-3)
    assert of_tokens(row, row.residual[0][1]) == pytest.approx(residual, abs=5e-3)
    assert row.overdraft[0] == pytest.approx([0.5, residual[1] + residual[2]], abs=5e-3)
    assert of_tokens(row, row.emitted[0]) == pytest.approx([0.3441, 0.4059, 0.25], abs=2e-3)
    assert row.excess[0] == pytest.approx(0.4059 + 0.25 - 0.5, abs=2e-3)
    # (.5, 0, .5) and (.4706, .5294, 0) meet q in .6 each, whichever token was rejected
    assert row.overlap[0][1] == pytest.approx(0.6, abs=2e-3)
    row = measured("resispec", 3, of_laws(P, P))
    assert row.rejected[0] == pytest.approx([1, 0, 0, 0], abs=1e-9)
    assert row.excess == pytest.approx([0]) and row.overdraft[0] == pytest.approx([0] * 4)
    assert row.overlap[0] == pytest.approx([1] * 4)


@pytest.mark.parametrize("verifier", ["standard", "optimal", "resispec"])
def test_the_emitted_law_is_that_of_an_enumeration_within_its_errors(verifier):
    pair = table_pair(vocab=6, seed=3)
    p, q = (rows[0] for rows in bigram_rows(pair))
    true = emitted_law(rule_of(get_verifier(verifier)), p, q, 3, Draws.IID)
    row = measured(verifier, 3, pair, num_tuples=512)
    found, errors = (
        torch.tensor(of_tokens(row, law)) for law in (row.emitted[0], row.emitted_error[0])
    )
    assert bool(((found - true).abs() < 5 * errors).all()) and float(errors.max()) < 0.02
    # what 512 tuples cannot resolve
    assert min(row.excess_error[0], float(errors.min())) >= 1 / 512
    excess = float((true - p)[q > p].sum())
    assert abs(row.excess[0] - excess) < 5 * row.excess_error[0]
    assert (abs(excess) > 0.01) == (verifier == "resispec")


def test_residuals_of_an_answer_are_after_its_beginnings_and_quote_it_alone():
    """8 tokens are written: prefixes end at a third and at two thirds, and never at the end."""
    setting = workload(length=5)
    answer = written(setting, 0, setting.generator(0))
    row = Residuals(2, 1, 8, num_tokens=2, num_next=1, in_answer=True)(setting, 0)
    decode = setting.pair.tokenizer.decode
    assert len(answer) == 8 and row.context == [decode(answer[:2]), decode(answer[:5])]
    assert row.num_prompt_tokens == 5 and row.num_prefixes == 2
    target, _ = bigram_rows(setting.pair)
    for prefix, last in enumerate((answer[1], answer[4])):
        assert row.target[prefix][0] == pytest.approx(float(target[last][row.tokens[prefix][0]]))


def test_tasks_may_measure_within_the_answer_and_not_within_the_question():
    """The target always writes a 5; the draft agrees with it after every token but a 5."""
    target = torch.full((6, 6), -1e4, dtype=torch.float64)
    target[:, 5] = 0
    draft = target.clone()
    draft[5] = draft[5].flip(0)
    setting = workload(pair=Pair(TableModel(target), TableModel(draft), ToyTokenizer()), length=5)
    for in_answer, accepted in ((False, 2), (True, 0)):
        decay = Decay(2, 1, 4, in_answer=in_answer)(setting, 0)
        assert decay.num_prefixes == 2 and decay.selected == pytest.approx([4 * accepted])
        scaling = Scaling(2, [1], 2, 1, in_answer=in_answer)(setting, 0)
        assert scaling.emitted == pytest.approx([2 + accepted] * 2)


def test_laws_are_told_by_side_and_the_likeliest_come_first():
    p = (0.30, 0.10, 0.05, 0.25, 0.10, 0.08, 0.02, 0.10)
    q = (0.10, 0.20, 0.15, 0.05, 0.04, 0.30, 0.07, 0.09)
    row = Residuals(1, 1, 8, num_tokens=2, num_next=1)(workload(pair=of_laws(p, q)), 0)
    # q > p: 5, 1, 2, 6; the rest: 0, 3, 4 and 7
    assert row.tokens == [[5, 1, -1, -1, 0, 3, -1, -1]]
    assert row.texts == [["5", "1", "next 1", "all others", "0", "3", "next 1", "all others"]]
    assert row.target[0] == pytest.approx([0.08, 0.10, 0.05, 0.02, 0.30, 0.25, 0.10, 0.10])
    assert row.draft[0] == pytest.approx([0.30, 0.20, 0.15, 0.07, 0.10, 0.05, 0.04, 0.09])
    # 5, 1, 2, 0, 7, 6 hold .91 of q and 3 more than .95, so 4 is outside of the draft's support
    assert row.outside[0][0] == pytest.approx(0.10) and row.overdraft[0][0] == pytest.approx(0.25)


# Profiles.

NAP = 1000.0


class Clock:
    """A clock that moves by one when read, and by sleeping: no machine is too busy for it."""

    instant = 0.0
    naps = 0

    @classmethod
    def read(cls):
        cls.instant += 1.0
        return cls.instant

    @classmethod
    def nap(cls):
        cls.instant += NAP
        cls.naps += 1


class LateBudget(ResiSpec):
    """Sleeps over its budget."""

    def _budget(self, target, draft, rejected):
        Clock.nap()
        return super()._budget(target, draft, rejected)


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=Clock.read))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("verifier", ["standard", "resispec", "traversal_optimal"])
def test_a_profile_decodes_the_same_tokens_and_its_parts_add_up(verifier):
    """The whole is timed apart from its parts; between these lie only readings of the clock."""
    setting = workload(verifier, prompts=2, pair=table_pair(vocab=8), length=3, drafter=TREE)
    for index in range(2):
        row, plain = Profile()(setting, index), Decode()(setting, index)
        assert type(row) is ProfileRow and row.tokens_sha256 == plain.tokens_sha256
        assert (row.num_emitted, row.num_steps) == (plain.num_emitted, plain.num_steps)
        assert row.num_timed >= 4 * row.num_steps and row.clock_s == 2 * row.num_timed + 1
        assert min(row.draft_s, row.target_s, row.verify_s, row.commit_s) > 0
        parts = row.draft_s + row.target_s + row.verify_s + row.commit_s
        assert row.profiled_s - parts == 4 * row.num_steps + 1  # from an end to the next start
        inside = row.budget_s + row.redistribution_s + row.proxy_s
        names = {"standard": 1, "resispec": 3, "traversal_optimal": 0}[verifier]
        assert (row.budget_s > 0) == (row.redistribution_s > 0) == (names == 3)
        assert (row.shaping_s > 0) == (names > 0)
        if names:
            rejections = inside / names  # each name is read once a rejection
            assert row.shaping_s - inside == (names + 1) * rejections
        assert Profile().progress([row])["shaping"].endswith("%")


@pytest.mark.usefixtures("clock")
def test_time_lands_in_the_part_in_which_it_is_spent():
    before = Clock.naps
    setting = replace(
        workload(pair=table_pair(vocab=8), length=3), decoder=Decoder(TREE, LateBudget())
    )
    row, slept = Profile()(setting, 0), NAP * (Clock.naps - before)
    assert slept > 0 and all(slept <= spent < slept + NAP for spent in (row.budget_s, row.verify_s))
    others = row.draft_s + row.target_s + row.commit_s + (row.verify_s - row.shaping_s)
    assert others + row.redistribution_s + row.proxy_s < NAP
