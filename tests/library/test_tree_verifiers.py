"""Properties of tree verifiers: verdicts follow their law, and what is no law is not hidden."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from resispec.audit.as_sibling_rule import rule_of
from resispec.audit.battery import KINDS, shown_bias
from resispec.audit.enumerate import emitted_law
from resispec.core import Draws, Tree, Verdict
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, NoDraft
from resispec.errors import InvalidInput
from resispec.replay import replay
from resispec.trees import chain, complete, from_child_counts, parallel_chains, root_only
from resispec.verifiers import (
    Law,
    Naive,
    Outcomes,
    Standard,
    TopDown,
    Traversal,
    Verifier,
    as_verifier,
    available,
    draw_outcome,
    get_rule,
    get_verifier,
    read_verdict,
)
from resispec.verifiers.rehearsal import rehearse
from resispec.verifiers.sample_outcome import draw_from
from resispec.verifiers.top_down import applied_rule
from tests.accounts import BROKEN, Broken, assert_drawn_from, drafted, law, rng
from tests.toys import table_pair

pytestmark = pytest.mark.numerics

UNEVEN, WIDE = (
    from_child_counts([[2], [2, 1], [0, 1, 0]]),
    from_child_counts([[3], [0, 2, 1], [0, 1]]),
)
WALKS = [
    ("standard", Draws.IID, complete(3, 2)),
    ("standard", Draws.WITHOUT_REPLACEMENT, WIDE),
    ("traversal", Draws.IID, UNEVEN),
    ("traversal", Draws.WITHOUT_REPLACEMENT, WIDE),
    ("gbv", Draws.IID, parallel_chains(3, 2)),
]


@pytest.mark.parametrize(("name", "draws", "topology"), WALKS)
def test_verdicts_are_drawn_from_outcomes(name, draws, topology):
    """Walking from node to node, and with two draws from the whole law, where waits cost time.

    On deeper trees than those of test_every_verifier.py, which has all verifiers.
    """
    tree, target, draft = drafted(topology, 4, draws, seed=5)
    verifier, generator = get_verifier(name), rng(1)

    def walk():
        return verifier.verify(tree, target, draft, generator)

    def draw():
        numbers = draw_outcome(verifier, tree, target, draft, generator).tolist()
        return read_verdict(numbers, topology, target.dtype)

    for way in (walk, draw):
        assert_drawn_from(verifier.outcomes(tree, target, draft), way, 300)
        verdict = way()
        assert [topology.parents[node] for node in verdict.path] == [0, *verdict.path][:-1]
        assert tree.tokens[list(verdict.path)].tolist() == list(verdict.tokens[:-1])


@pytest.mark.parametrize("name", available())
def test_a_root_alone_emits_one_token_of_the_target(name):
    """A drafter that proposes nothing has no law, even with as many columns as tokens."""
    verifier, generator = get_verifier(name), rng(0)
    target = law(0.1, 0.2, 0.0, 0.7).float()
    for columns in (0, 4):
        tree, draft = (
            Tree(root_only(), torch.tensor([3]), Draws.IID),
            torch.full((1, columns), 0.25),
        )
        outcomes = verifier.outcomes(tree, target[None], draft)
        assert outcomes.stop.tolist() == [1.0] and torch.allclose(outcomes.final, target[None])
        assert outcomes.stop.dtype == outcomes.final.dtype == torch.float32
    assert_drawn_from(outcomes, lambda: verifier.verify(tree, target[None], draft, generator), 200)
    result = Decoder(NoDraft(), verifier).generate(table_pair(), [0], Sampling(1.0, 6, 64), rng(0))
    assert len(result.tokens) == 6 and result.num_emitted == (1,) * 6


@pytest.mark.parametrize(
    ("name", "known", "topology", "draws"),
    [
        *(("traversal", "block", chain(5), draws) for draws in Draws),
        *(("traversal", "standard", complete(2, 3), draws) for draws in Draws),
        ("gbv", "block", chain(5), Draws.IID),
    ],
)
def test_on_a_chain_they_are_block_verification_and_on_leaves_the_sibling_rule(
    name, known, topology, draws
):
    for kind in KINDS:
        given = drafted(topology, 5, draws, seed=6, kind=kind)
        joint, wanted = (
            law.stop[:, None] * law.final
            for law in (get_verifier(one).outcomes(*given) for one in (name, known))
        )
        assert torch.allclose(joint, wanted, rtol=0, atol=1e-12), kind


# Laws that are none


@pytest.mark.parametrize("verifier", [TopDown, Traversal])
@pytest.mark.parametrize(("change", "error", "message"), BROKEN)
def test_a_broken_law_raises_and_names_the_rule(verifier, change, error, message):
    """Before, a dropped residual entry or negative masses gave plausible tokens."""
    given = drafted(complete(3, 2), 4, seed=9)
    with pytest.raises(error, match=f"{message}.*$"):
        # some faults lie in the residual, which is looked at where it is drawn from
        for seed in range(200):
            verifier(Broken(change)).verify(*given, rng(seed))


@pytest.mark.parametrize("name", ["standard", "traversal", "block", "level_optimal", "gbv"])
def test_nan_raises_where_it_is_reached(name):
    """p = q everywhere, so that the walk goes down the first path."""
    tree, target, _ = drafted(chain(2) if name in ("block", "gbv") else complete(3, 2), 3, seed=9)
    for node in (0, 1):
        broken = target.clone()
        broken[node] = float("nan")
        with pytest.raises(FloatingPointError):
            get_verifier(name).verify(tree, broken, target, rng(0))


def test_outcomes_refuse_wrong_shapes_and_a_target_is_not_blamed_on_the_rule():
    given = drafted(complete(3, 2), 4)
    with pytest.raises(InvalidInput, match="^rule Broken: residual is "):
        TopDown(Broken(lambda select, residual: Law(select, residual[..., :-1]))).outcomes(*given)
    tree, target, draft = drafted(root_only(), 4)
    with pytest.raises(
        FloatingPointError, match="^target, node 0: cannot draw from a law whose mass is nan"
    ):
        TopDown(Standard()).verify(tree, target * float("nan"), draft, rng(0))


@pytest.mark.parametrize(("factor", "moved"), [(float("nan"), 0), (1, 2), (0.9, 0)])
def test_outcomes_that_are_no_law_are_not_drawn_from(factor, moved):
    tree, laws = Tree(chain(1), torch.tensor([0, 1]), Draws.IID), torch.full((2, 4), 0.25)
    outcomes = get_verifier("naive").outcomes(tree, laws, laws)
    stop = outcomes.stop * factor + torch.tensor([moved, -moved])
    numbers = draw_from(stop, lambda node: outcomes.final[node][0], tree, rng(0)).tolist()
    with pytest.raises(FloatingPointError, match="chances to stop in a verified tree sum to"):
        read_verdict(numbers, tree.topology, laws.dtype)


def test_the_root_is_never_rejected_and_a_residual_that_rounding_removed_is_no_failure(monkeypatch):
    """Laws that lack more than by rounding: the walk ends at the root or draws from the target."""
    tree, target = (
        Tree(complete(2, 2), torch.tensor([0, 0, 0]), Draws.IID),
        torch.tensor([0.0, 0.25, 0.25]),
    )
    draft = torch.tensor([1.0, 0, 0]).expand(3, 3)
    assert get_verifier("traversal").outcomes(tree, target.expand(3, 3), draft).stop.tolist() == [
        1,
        0,
        0,
    ]
    most = 1 - 2**-20  # the largest coin, and a law that lacks more than it leaves
    with monkeypatch.context() as patch:
        patch.setattr(torch, "rand", lambda *size, **_: torch.full(size, most, dtype=torch.float64))
        short = torch.tensor([0.0, 0.5, 0.49995]).expand(3, 3)
        assert get_verifier("traversal").verify(tree, short, draft, rng(0)).tokens == (2,)
    # p is below q at the drafted token only.
    tree, target = Tree(chain(1), torch.tensor([0, 0]), Draws.IID), torch.full((2, 3), 0.25)
    given, generator = (tree, target, torch.tensor([0.5, 0.25, 0.25]).expand(2, 3)), rng(0)
    outcomes = get_verifier("block").outcomes(*given)
    assert outcomes.stop.tolist() == [0.5, 0.5] and torch.allclose(
        outcomes.final, torch.tensor(1 / 3)
    )
    verdicts = [get_verifier("block").verify(*given, generator) for _ in range(40)]
    assert {(verdict.num_accepted, verdict.tokens[-1]) for verdict in verdicts} == {
        *itertools.product((0, 1), (0, 1, 2))
    }


# Rules within verifiers


class DrawFromTarget:
    """Selects nothing: all that is drafted is in the residual."""

    def law(self, target_probs, _draft_probs, siblings, _draws):
        return Law(torch.zeros(siblings.shape, dtype=target_probs.dtype), target_probs)


def test_a_residual_token_that_was_drafted_goes_on_at_its_child():
    """A rule that selects nothing and the naive rule say the same in two ways."""
    tree = Tree(complete(2, 2), torch.tensor([0, 1, 1]), Draws.IID)
    target = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    verdict = TopDown(DrawFromTarget()).verify(tree, target, target, rng(0))
    assert verdict.path == (1,) and verdict.tokens == (1, 0)
    tree, target, draft = drafted(UNEVEN, 3)
    for verifier in (TopDown, Traversal):
        outcomes, naive = (
            verifier(rule).outcomes(tree, target, draft) for rule in (DrawFromTarget(), Naive())
        )
        assert (
            torch.allclose(outcomes.stop, naive.stop, atol=1e-12) and outcomes.stop[1:].sum() > 0.1
        )
        assert torch.allclose(outcomes.final, naive.final, atol=1e-12)
        for node, children in enumerate(tree.topology.children):
            drafted_tokens = tree.tokens[list(children)]
            assert outcomes.stop[node] < 1e-9 or (outcomes.final[node, drafted_tokens] == 0).all()


def test_a_rule_or_a_verifier_makes_a_decoder():
    rule = Standard()
    assert (
        as_verifier(rule) == TopDown(rule) == as_verifier(TopDown(rule)) == get_verifier("standard")
    )
    assert Decoder(NoDraft(), rule).verifier == TopDown(rule)
    with pytest.raises(
        InvalidInput, match="^object is no verifier: it has neither `law` .* nor `verify`"
    ):
        Decoder(NoDraft(), object())
    with pytest.raises(
        InvalidInput, match="^Traversal takes a sibling rule, which has a `law`; found TopD"
    ):
        Traversal(TopDown(rule))


class KeepAll(Standard):
    """Keeps the path to the last node, whatever the laws are, and has no `outcomes`."""

    def verify(self, tree, _target_probs, _draft_probs, _generator):
        path = tree.topology.path_to(tree.topology.num_nodes - 1)
        return Verdict(path, (*tree.tokens[list(path)].tolist(), 0))


class Whole(KeepAll):
    """`KeepAll` with its law."""

    def outcomes(self, tree, target_probs, _draft_probs):
        stop = torch.eye(tree.topology.num_nodes, dtype=target_probs.dtype)[-1]
        return Outcomes(stop, target_probs)


class FromTheContract(Verifier):
    """Inherits the contract, whose `outcomes` says nothing."""

    verify = KeepAll.verify


class Last(TopDown):
    """The rule's walk, with outcomes of its own."""

    def outcomes(self, tree, target_probs, draft_probs):
        return replace(super().outcomes(tree, target_probs, draft_probs), final=draft_probs)


def test_the_more_specific_of_two_interfaces_counts():
    """A rule's subclass with its own `verify` was walked by the inherited law, and called exact."""

    class Rule(Whole):
        law = Standard.law

    class Silent(Standard):
        outcomes = Whole.outcomes

    class Both(Standard):
        law, verify = Standard.law, Whole.verify

    for verifier in (KeepAll(), Whole(), FromTheContract()):
        assert (
            as_verifier(verifier) is verifier and Decoder(NoDraft(), verifier).verifier is verifier
        )
        with pytest.raises(
            InvalidInput, match="^Traversal takes a sibling rule, which has a `law`; found "
        ):
            Traversal(verifier)
    assert as_verifier(Rule()) == TopDown(Rule()) and Traversal(Rule()).rule == Rule()
    with pytest.raises(
        InvalidInput, match="^Silent is no verifier: it has `outcomes` but no `verify`$"
    ):
        as_verifier(Silent())
    field = SimpleNamespace(law=Standard().law, verify=Whole().verify)
    for subject, name in ((Both(), "Both"), (field, "SimpleNamespace")):
        for use in (as_verifier, Traversal):
            with pytest.raises(
                InvalidInput, match=f"^{name} defines both `law` .*; allowed: one of the two$"
            ):
                use(subject)


def test_a_verifier_is_judged_by_its_own_outcomes_and_not_by_a_rule_below():
    p, q = law(0.2, 0.3, 0.5), law(0.5, 0.3, 0.2)
    for verifier in (KeepAll(), FromTheContract()):
        with pytest.raises(InvalidInput, match="has a `verify` but no `outcomes`, the law that"):
            rehearse(verifier, Draws.IID, complete(2, 2))
        with pytest.raises(InvalidInput, match="has a `verify` but no `outcomes`, the law that"):
            rule_of(verifier)
    assert torch.allclose(emitted_law(rule_of(Whole()), p, q, 1, Draws.IID), q)
    assert (
        applied_rule(TopDown(Standard())) == Standard() and applied_rule(Last(Standard())) is None
    )
    for verifier in (Whole(), Last(Standard())):
        assert f"{type(verifier).__name__} is biased with draws iid" in shown_bias(
            verifier, Draws.IID
        )


def test_verifiers_refuse_draws_and_trees_that_they_are_not_exact_for():
    plain = Traversal(get_rule("standard"))
    assert get_verifier("traversal") == get_verifier("traversal", weights="standard") == plain
    with pytest.raises(InvalidInput, match="unknown verifier 'nope'; known: standard"):
        get_verifier("traversal", weights="nope")
    given = drafted(complete(2, 2), 3, Draws.WITHOUT_REPLACEMENT)
    for verifier, message in (
        (
            get_verifier("traversal", weights="kseq"),
            "kseq is not exact for draws 'without_replacement'",
        ),
        (
            get_verifier("level_optimal"),
            "level_optimal is not exact for draws 'without_replacement'",
        ),
        (get_verifier("block"), "a node of 2 children; allowed: chains"),
    ):
        for use in (
            verifier.outcomes,
            lambda *given, verifier=verifier: verifier.verify(*given, rng(0)),
        ):
            with pytest.raises(InvalidInput, match=message):
                use(*given)


def test_a_walk_shapes_a_residual_where_a_sibling_was_refused_and_by_the_rule_s_own_law():
    """The first sibling is refused with chance .25; the others are looked at no more often."""

    class Counting(Standard):
        shaped = 0

        def reshape(self, target, draft, rejected):
            Counting.shaped += 1
            return super().reshape(target, draft, rejected)

    class Own(Counting):
        def law(self, target_probs, _draft_probs, siblings, _draws):
            return Law(torch.zeros_like(siblings, dtype=target_probs.dtype), target_probs)

    class Narrow(Standard):
        def reshape(self, target, _draft, _rejected):
            return target[:-1]

    topology, generator = from_child_counts([[3]]), rng(0)
    target = torch.tensor([[0.3, 0.3, 0.4]]).expand(4, -1)
    draft = torch.tensor([[0.4, 0.3, 0.3]]).expand(4, -1)
    tree = Tree(topology, torch.tensor([0, 0, 0, 0]), Draws.IID)
    walk = TopDown(Counting())
    tokens = [walk.verify(tree, target, draft, generator).tokens[0] for _ in range(400)]
    assert 400 * 0.1 < Counting.shaped < 400 * 3 * 0.3 and tokens.count(2) == pytest.approx(
        100, abs=60
    )
    Counting.shaped = 0
    assert TopDown(Own()).verify(tree, target, draft, generator) and Counting.shaped == 0
    with pytest.raises(InvalidInput, match="rule Narrow: `reshape` returns"):
        TopDown(Narrow()).outcomes(tree, target, draft)


class Mixing(Standard):
    """Mixes the draft into the target in place, and then judges by that."""

    def law(self, target_probs, draft_probs, *given):
        target_probs.mul_(0.7).add_(draft_probs, alpha=0.3)
        return super().law(target_probs, draft_probs, *given)


class Writing(TopDown):
    """Exact, and leaves something else in its inputs; its outcomes are those of the rule."""

    outcomes = TopDown.outcomes

    def verify(self, tree, target_probs, draft_probs, generator):
        verdict = super().verify(tree, target_probs, draft_probs, generator)
        target_probs.copy_(draft_probs)
        return verdict


class Ranks(TopDown):
    """Names accepted nodes by their places among siblings."""

    def verify(self, tree, *given):
        verdict = super().verify(tree, *given)
        nodes = zip((0, *verdict.path), verdict.path, strict=False)
        ranks = (tree.topology.children[parent].index(node) for parent, node in nodes)
        return replace(verdict, path=tuple(ranks))


def decoded(verifier, **options):
    """Decode with it on a bushy tree."""
    given = table_pair(), [0], Sampling(1.0, 40, 128)
    return Decoder(DraftModel(complete(3, 2)), verifier).generate(*given, rng(0), **options)


def test_inputs_that_are_changed_in_place_are_refused_in_rehearsals_and_audits():
    """Defect: tokens were judged by the law that the rule had left, and no bias was seen."""
    with pytest.raises(InvalidInput, match="^verifier Mixing changed its input target_probs in p"):
        rehearse(TopDown(Mixing()), Draws.IID, complete(2, 2))
    for verifier, name in ((Mixing(), "Mixing"), (Writing(Standard()), "Standard")):
        message = f"verifier {name} changed its input target_probs in place"
        with pytest.raises(InvalidInput, match=message):
            decoded(verifier, is_checked=True)
        step = []
        decoded(Standard(), on_step=step.append)
        with torch.inference_mode(), pytest.raises(InvalidInput, match=message):
            replay(step[0], as_verifier(verifier), rng(0))
    assert decoded(Standard(), is_checked=True).tokens == decoded(Standard()).tokens


def test_a_verdict_that_is_no_path_of_the_tree_is_refused():
    """Defect: the caches kept other nodes than those of the tokens."""
    with pytest.raises(
        InvalidInput, match=r"^verifier Standard accepted the nodes \(.*\); .*, and 0 is no child"
    ):
        decoded(Ranks(Standard()))


class Altered(TopDown):
    """Returns another verdict than its rule's, by `alter(path, tokens)`."""

    outcomes = TopDown.outcomes  # so that a replay takes it

    def __init__(self, alter):
        super().__init__(Standard())
        self.alter = alter

    def verify(self, *given):
        verdict = super().verify(*given)
        return Verdict(*self.alter(verdict.path, verdict.tokens))


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda path, tokens: (path, tokens[:-1]), "for the nodes .*; allowed: their tokens"),
        (lambda _, tokens: ((), (*tokens, 0)), r"for the nodes \(\); allowed: their tokens \[\],"),
        (lambda path, tokens: (path, (*tokens[:-1], 3)), "then one token from 0 to 2"),
        (lambda path, tokens: (path, (*tokens[:-1], -1)), "then one token from 0 to 2"),
        (lambda path, tokens: (path, tuple(torch.tensor(tokens))), "returned .*tensor.*; allowed"),
        (lambda path, tokens: (tuple(map(torch.tensor, path)), tokens), "returned .*tensor"),
    ],
)
def test_a_verdict_whose_tokens_are_not_those_of_its_path_is_refused(alter, message):
    """Defect: the text went on from another context, and tensors met no end of a sequence."""
    with pytest.raises(InvalidInput, match=f"^verifier Standard .*{message}"):
        decoded(Altered(alter))
    with torch.inference_mode(), pytest.raises(InvalidInput, match="^verifier Standard "):
        step = []
        decoded(Standard(), on_step=step.append)
        for one in step:
            replay(one, Altered(alter), rng(0))


def test_a_verdict_may_hold_numpy_s_numbers():
    whole = Altered(lambda *given: (tuple(map(np.int64, numbers)) for numbers in given))
    assert decoded(whole).tokens == decoded(Standard()).tokens
