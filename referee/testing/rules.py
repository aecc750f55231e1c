"""An assertion that a rule or verifier is exact, by audits of `resispec.audit` without a model."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Generator

from referee.testing.plugin import SESSION, Report
from referee.testing.samplers import name_of
from resispec.audit.as_sibling_rule import rule_of
from resispec.audit.battery import MOST_SIBLINGS, cases_of, is_defined, worst
from resispec.audit.estimate import Tuples, estimate
from resispec.audit.row_checks import CheckedRule
from resispec.audit.simulate import simulated, walked
from resispec.audit.simulation_cases import scenes, wide_laws
from resispec.audit.verdict import TOLERANCE, Evidence, Finding, Statistic, judge, remeasured
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.verifiers import TopDown, Verifier, as_verifier, get_verifier
from resispec.verifiers.base import interface_of
from resispec.verifiers.rehearsal import is_defined_on

VOCABULARY = 32_000
"""Vocabulary size of the laws on which a rule is estimated."""
TREES_PER_TURN = 60
"""The trees of an average scene that are verified in a turn through all scenes."""
MOST_SHOWN = 16
"""The most tokens of laws that a failure prints whole."""


def assert_exact(
    subject: Any,
    *,
    draws: str = "iid",
    chain: bool = False,
    samples: int = 600,
    seed: int | None = None,
) -> Report:
    """Fail unless a rule or a verifier is exact for one kind of draws.

    subject: a `SiblingRule`, a `Verifier`, a class of either, a function with the contract of
    `SiblingRule.law`, or a name that `resispec.verifiers.get_verifier` knows, such as
    "my_rule.py:MyRule". Its law is summed over all possible drafts at narrow vocabularies, where an
    error is a proof, and averaged over drafted siblings at a wide one. Trees are drafted and
    verified, and their verdicts and tokens are counted. `resispec.audit.verdict.judge` decides from
    all of this.

    draws: the kind of draws of the siblings or its name, see `resispec.draws`. chain: whether the
    rule takes only one sibling, as in a chain; assumed of a rule that refuses two with NotDefined.
    samples: the number of tuples of siblings at the wide vocabulary, and of trees of an average
    scene of the audit, where 6,000 are as many as in `make audit`; suspicious results are measured
    again, four times as long. seed: by default the pytest run's.

    Returns a report of the bias that would have shown. Raises AssertionError unless no bias is
    seen, and InvalidInput for an invalid subject, law or kind of draws, such as a rule whose masses
    are negative or do not sum to 1.
    """
    __tracebackhide__ = True
    if samples < 10:
        raise InvalidInput(f"samples is {samples}; allowed: at least 10")
    name, verifier = _resolved(subject)
    kind, base_seed = Draws(draws), SESSION.seed if seed is None else seed
    rule = CheckedRule(rule_of(verifier), name)
    is_chain = chain or not is_defined(rule, kind, 2)
    try:
        case = worst(cases_of(rule, verifier, kind, is_chain, base_seed))
    except FloatingPointError as error:
        raise InvalidInput(f"verifier {name!r}: {error}") from error
    generator = Generator().manual_seed(base_seed)
    laws = wide_laws(VOCABULARY, seed=base_seed)

    def variation(times: int) -> dict[str, Statistic]:
        tuples = Tuples(1 if is_chain else 2, kind, times * samples)
        return {f"V = {VOCABULARY:,}": estimate(rule, *laws, tuples, generator).total_variation}

    trees = [
        scene
        for scene in scenes(1 if is_chain else MOST_SIBLINGS)
        if is_defined_on(verifier, kind, scene.topology)
    ]
    num_turns = -(-samples // TREES_PER_TURN)
    counts = simulated(verifier, trees, kind, num_turns, generator)
    evidence = Evidence(
        case.error,
        remeasured(variation),
        counts,
        levels={"simulated": max((scene.topology.num_levels for scene in trees), default=0)},
        walked=walked(trees, num_turns),
    )
    # without a model
    judgement = judge(evidence, ("enumerated_error", "total_variations", "simulations"))
    if judgement.finding is not Finding.NO_BIAS_SEEN:
        header = f"{name} is {judgement.finding}: {kind} draws, seed={base_seed}, samples={samples}"
        lines = [header, *judgement.reasons]
        if case.error > TOLERANCE:  # the laws with the largest error, if they are short
            laws = {"p": case.target_probs, "q": case.draft_probs}
            rows = [
                f"{name} = {torch.round(law, decimals=4).tolist()}" for name, law in laws.items()
            ]
            is_short = len(case.target_probs) <= MOST_SHOWN
            pair = f"a {case.kind} pair, {case.case}"
            lines += [f"{pair}:", *rows] if is_short else [pair]
        raise AssertionError("\n  ".join(lines))
    details = f"{kind} draws: {judgement.finding}", *judgement.reasons, f"seed {base_seed}"
    return Report(name, details, evidence.smallest_seen).noted()


def _resolved(subject: Any) -> tuple[str, Verifier]:
    """The name of the subject in messages, and the subject as a verifier."""
    if isinstance(subject, str):
        return subject, get_verifier(subject)
    instance = subject() if isinstance(subject, type) else subject
    if callable(instance) and interface_of(instance) is None:
        return name_of(instance), TopDown(SimpleNamespace(law=instance))
    return type(instance).__name__, as_verifier(instance)
