"""Power and false alarms of the audits: planted bugs are caught, exact verifiers are not accused."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from toys import TableModel, table_pair

from resispec.audit.battery import worst_error, worst_tree_error
from resispec.audit.ceiling import ceiling
from resispec.audit.estimate import Tuples, estimate
from resispec.audit.verdict import Evidence, Finding, judge
from resispec.audit.z_score import join, step_terms
from resispec.core import Draws
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.models import Pair
from resispec.trees import chain, complete
from resispec.verifiers import Law, Standard, get_rule, get_verifier
from resispec.verifiers.recursive import Recursive

DECODERS = {
    "chain": DraftModel(chain(2)),
    "d3b2": DraftModel(complete(3, 2)),
    "without replacement": DraftModel(complete(3, 2), Draws.WITHOUT_REPLACEMENT),
}


def audited(verifier, drafter, seed, tokens=1010, gap=0.2, temperature=1.0, pair=None):
    """z-scores of at least `tokens` tokens of a toy pair, 50 at a time; prompt i uses seed + i, as always."""
    pair, terms, count = pair or table_pair(vocab=8, seed=seed, gap=gap), [], 0
    while count < tokens:
        generator = torch.Generator().manual_seed(1000 * seed + len(terms))
        steps = []
        decoder = Decoder(drafter, verifier)
        decoder.generate(
            pair,
            [count % 8],
            Sampling(temperature, 50, 64),
            generator,
            on_step=lambda step, to=steps: to.append(step_terms(step)),
        )
        terms.append(join(steps))
        count += len(terms[-1].surprisal)
    return join(terms).scores()


def verdict_of_decoding(verifier, drafter, seed=0, **options):
    return judge(Evidence(z_scores=audited(verifier, drafter, seed, **options)), required=("z_scores",))


def verdict_of_rule(rule, draws):
    return judge(Evidence(worst_error(rule, draws, repeats=1).error), required=("enumerated_error",))


# False alarms


def test_an_exact_verifier_is_not_accused_in_21_seeds():
    """The z's look normal: all |z| < 4, their mean square within 4 standard errors of 1.

    Fresh seeds fail the former in 63 * 6.3e-5 = 0.4 % of runs.
    """
    found = [
        audited(get_verifier("standard"), DECODERS[name], seed) for seed in range(7) for name in DECODERS
    ]
    for statistic in ("surprisal", "overdraft", "rank"):
        z = torch.tensor([scores[statistic].z for scores in found])
        assert len(z) == 21 and z.abs().max() < 4 and abs(float(z.mean())) < 4 / math.sqrt(21)
        assert abs(float(z.square().mean()) - 1) < 4 * math.sqrt(2 / 21)
    judged = [judge(Evidence(z_scores=scores), required=("z_scores",)).finding for scores in found]
    assert judged == [Finding.EXACT] * 21


def test_few_tokens_decide_nothing():
    assert (
        verdict_of_decoding(get_verifier("standard"), DECODERS["chain"], tokens=300).finding
        is Finding.UNDECIDED
    )


# Planted bugs in rules


@dataclass(frozen=True)
class NotRenormalised:
    """Goes on from p - q without dividing by its mass; `last` alone leaves only the final residual so."""

    last: bool

    def law(self, target_probs, draft_probs, siblings, draws):  # noqa: ARG002 - the contract's
        target, alive, select = target_probs, torch.ones_like(target_probs[..., :1]), []
        for token in siblings.split(1, -1):
            accept = (target.gather(-1, token) / draft_probs.gather(-1, token)).clamp_max(1)
            select.append(alive * accept)
            alive, mass = alive * (1 - accept), (target - draft_probs).clamp_min(0)
            target = mass / mass.sum(-1, keepdim=True).clamp_min(1e-300) if self.last else mass
        return Law(
            torch.cat(select, -1), mass if self.last else mass / mass.sum(-1, keepdim=True).clamp_min(1e-300)
        )


class NoRelu(Recursive):
    """Renormalises the absolute difference |p - q| instead of (p - q)+."""

    def reshape(self, target, draft, rejected):  # noqa: ARG002 - the contract's
        return (target - draft).abs()


class DraftNotUpdated:
    """Treats draws without replacement as independent ones: q keeps the token that was refused."""

    def law(self, target_probs, draft_probs, siblings, draws):  # noqa: ARG002 - the bug
        return Standard().law(target_probs, draft_probs, siblings, Draws.IID)


@pytest.mark.parametrize(
    ("rule", "draws"),
    [
        (NotRenormalised(last=True), Draws.IID),
        (NotRenormalised(last=False), Draws.IID),
        (NoRelu(), Draws.IID),
        (NoRelu(), Draws.WITHOUT_REPLACEMENT),
        (DraftNotUpdated(), Draws.WITHOUT_REPLACEMENT),
        (get_rule("resispec"), Draws.IID),
        (get_rule("resispec"), Draws.WITHOUT_REPLACEMENT),
        (get_rule("resispec", spread="water_fill"), Draws.IID),
        (get_rule("resispec", budget="capacity"), Draws.IID),
    ],
)
def test_a_biased_rule_is_caught_by_enumeration(rule, draws):
    judgement = verdict_of_rule(rule, draws)
    assert judgement.finding is Finding.BIASED and "enumerated total variation" in judgement.reasons[0]


def test_the_same_code_without_the_bug_is_not_caught():
    assert verdict_of_rule(DraftNotUpdated(), Draws.IID).finding is Finding.EXACT
    assert verdict_of_rule(get_rule("standard"), Draws.WITHOUT_REPLACEMENT).finding is Finding.EXACT


# Planted bugs in verifiers and loops, which only decoding shows


@dataclass(frozen=True)
class FinalToken:
    """The standard verifier with another final token: `temperature` at a leaf, or the argmax everywhere."""

    temperature: float = 1.0
    argmax: bool = False

    def verify(self, tree, target_probs, draft_probs, generator):
        verdict = get_verifier("standard").verify(tree, target_probs, draft_probs, generator)
        node = verdict.path[-1] if verdict.path else 0
        if tree.topology.children[node] and not self.argmax:
            return verdict
        law = target_probs[node] ** (1 / self.temperature)
        last = int(law.argmax()) if self.argmax else int(torch.multinomial(law, 1, generator=generator))
        return replace(verdict, tokens=(*verdict.tokens[:-1], last))


class ReusedUniforms:
    """Seeds its generator anew at every step, so that every step drafts and decides with the same numbers."""

    def verify(self, tree, target_probs, draft_probs, generator):
        generator.manual_seed(0)
        return get_verifier("standard").verify(tree, target_probs, draft_probs, generator)


class DraftsUniforms:
    """Rewinds the generator to where drafting began: a sibling is drawn and tested with the same number."""

    def __init__(self):
        self.state = None

    def verify(self, tree, target_probs, draft_probs, generator):
        if self.state is not None:
            generator.set_state(self.state)
        verdict = get_verifier("standard").verify(tree, target_probs, draft_probs, generator)
        self.state = generator.get_state()
        return verdict


BUGS = {
    "bonus token hotter": (lambda: FinalToken(temperature=3.0), "surprisal", 2000),
    "bonus token colder": (lambda: FinalToken(temperature=0.5), "surprisal", 2000),
    "argmax": (lambda: FinalToken(argmax=True), "surprisal", 1100),
    "reused uniforms": (ReusedUniforms, "rank", 1100),
    "draft's uniforms": (DraftsUniforms, "rank", 2500),
}


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("seed", range(2))
def test_a_biased_loop_is_caught_by_a_z_score(bug, seed):
    verifier, statistic, tokens = BUGS[bug]
    judgement = verdict_of_decoding(verifier(), DECODERS["chain"], seed, tokens=tokens, gap=0.5)
    assert judgement.finding is Finding.BIASED, judgement.reasons
    assert any(reason.startswith(statistic) for reason in judgement.reasons)


def test_a_hot_bonus_token_in_the_outcomes_is_caught_by_enumeration():
    class Hot(FinalToken):
        def outcomes(self, tree, target_probs, draft_probs):
            found = get_verifier("standard").outcomes(tree, target_probs, draft_probs)
            leaves = [node for node in range(tree.topology.num_nodes) if not tree.topology.children[node]]
            final = found.final.clone()
            final[leaves] = torch.softmax(final[leaves].log() / 2, -1)
            return replace(found, final=final)

    worst = worst_tree_error(Hot(), Draws.IID)
    assert judge(Evidence(worst.error)).finding is Finding.BIASED


# ResiSpec, by every means


@pytest.mark.parametrize("draws", [Draws.IID, Draws.WITHOUT_REPLACEMENT])
def test_resispec_is_caught_by_estimation_at_a_real_vocabulary(draws):
    """V = 32,000, Zipf-like, float32, 400 tuples: by total variation, and by acceptance above the ceiling."""
    generator = torch.Generator().manual_seed(0)
    zipf = -1.2 * torch.arange(1, 32001).log()
    logits = zipf + torch.randn(32000, generator=generator)
    p, q = torch.softmax(logits, -1), torch.softmax(logits + 2 * torch.randn(32000, generator=generator), -1)
    highest = float(ceiling(p, q, 3, draws))
    for name, finding in (("standard", Finding.EXACT), ("resispec", Finding.BIASED)):
        found = estimate(get_rule(name), p, q, Tuples(3, draws, 400), generator)
        variations = {"zipf": found.total_variation}
        excesses = {"zipf": found.excess(highest)}
        assert judge(Evidence(total_variations=variations), required=("total_variations",)).finding is finding
        assert judge(Evidence(excesses=excesses), required=("excesses",)).finding is finding


@pytest.mark.parametrize("decoder", ["d3b2", "without replacement"])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_resispec_is_caught_by_both_z_scores(decoder, temperature):
    """The draft is flatter than the target, as small models are: a bias toward it raises surprisal, too."""
    sharp = table_pair(vocab=8, seed=5)
    target = TableModel(2 * sharp.target.logits)
    pair = Pair(target, TableModel(sharp.draft.logits), sharp.tokenizer)
    scores = audited(get_verifier("resispec"), DECODERS[decoder], 5, temperature=temperature, pair=pair)
    assert scores["overdraft"].z > 4 and scores["surprisal"].z > 4
    assert judge(Evidence(z_scores=scores)).finding is Finding.BIASED
