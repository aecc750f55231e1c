"""The evidence of an audit: what a verifier does on the material."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

from torch import Generator

from experiments.auditing.material import Material, Nodes
from experiments.configuration.build import build
from resispec.audit.battery import MOST_SIBLINGS, supported_draws, worst_of
from resispec.audit.checked import CheckedRule
from resispec.audit.estimate import Deviation, Tuples, estimate, pool
from resispec.audit.first_token import rule_of
from resispec.audit.scenes import scenes
from resispec.audit.settled import settled, simulated
from resispec.audit.verdict import Evidence, Judgement, judge
from resispec.audit.z_score import Terms, cut, join, step_terms
from resispec.decode import Decoder, Step
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput, first_line
from resispec.trees import complete
from resispec.verifiers import Draws, SiblingRule, Verifier, as_verifier

DECODED_SIBLINGS = 3  # of a node of the trees that are decoded with
NUM_TURNS = 500  # of the scenes that are simulated
STREAMS = 8  # of random numbers an audit has, at most


@dataclass(frozen=True)
class Candidate:
    """A verifier to audit: how it is called, and its node of the configuration."""

    name: str
    node: Mapping[str, Any]

    def build(self) -> Verifier:
        """Make it. Raises InvalidInput, naming it, whatever its code raises."""
        with blamed(self.name):
            return as_verifier(build(self.node))

    def supported(self) -> tuple[Draws, ...]:
        """The kinds of draws that it is defined for. Raises InvalidInput when there are none."""
        rule = rule_of(self.build())
        with blamed(self.name):
            found = supported_draws(rule) or supported_draws(rule, num_siblings=1)
        if not found:
            allowed = ", ".join(Draws)
            raise InvalidInput(
                f"verifier {self.name!r} is defined for no draws; allowed: at least one of {allowed}"
            )
        return found


@dataclass(frozen=True)
class Audit:
    """The evidence about one verifier with one kind of draws, and what it says.

    acceptance, ceiling: means over the recorded laws.
    """

    name: str
    draws: Draws
    evidence: Evidence
    judgement: Judgement
    acceptance: float
    ceiling: float


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Turn whatever a verifier's own code raises, `sys.exit` too, into one line that names it."""
    try:
        yield
    except (InvalidInput, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's code may raise anything
        raise InvalidInput(f"verifier {name!r} raised {type(error).__name__}: {first_line(error)}") from error


def audit(candidate: Candidate, draws: Draws, material: Material) -> Audit:
    """Collect the evidence about one verifier with one kind of draws, and judge it.

    Raises InvalidInput, naming the verifier, for a law that is none, and for whatever else its code raises.
    """
    verifier = candidate.build()
    with blamed(candidate.name):
        return _audit(candidate.name, verifier, draws, material)


def _audit(name: str, verifier: Verifier, draws: Draws, material: Material) -> Audit:
    rule = CheckedRule(rule_of(verifier), name)
    is_chain = not supported_draws(rule)
    max_siblings = 1 if is_chain else MOST_SIBLINGS
    estimating, simulating = (Generator().manual_seed(STREAMS * material.seed + n) for n in range(2))
    nodes = {kind: some.narrowed(max_siblings) for kind, some in material.nodes.items()}
    ceilings = {kind: some.ceilings(draws) for kind, some in nodes.items()}
    estimates = {
        kind: settled(partial(_deviations, rule, draws, nodes[kind], ceilings[kind], estimating))
        for kind in nodes
    }
    decoder = Decoder(DraftModel(complete(3, min(DECODED_SIBLINGS, max_siblings)), draws), verifier)
    evidence = Evidence(
        enumerated_error=worst_of(rule, verifier, draws, is_chain).error,
        total_variations={kind: found["total variation"] for kind, found in estimates.items()},
        simulations=simulated(verifier, scenes(max_siblings), draws, NUM_TURNS, simulating),
        z_scores=settled(lambda times: decode_terms(decoder, material, times).scores()),
        excesses={kind: found["excess"] for kind, found in estimates.items()},
    )
    highest = mean(ceilings["recorded"])
    acceptance = highest + evidence.excesses["recorded"].value
    return Audit(name, draws, evidence, judge(evidence), acceptance, highest)


def _deviations(
    rule: SiblingRule,
    draws: Draws,
    nodes: Nodes,
    ceilings: Sequence[float],
    generator: Generator,
    times: int,
) -> dict[str, Deviation]:
    """Means over nodes: the total variation, and the acceptance above its ceiling."""
    found = [
        estimate(rule, p, q, Tuples(width, draws, times * nodes.num_tuples), generator)
        for (p, q), width in zip(nodes.laws, nodes.siblings, strict=True)
    ]
    return {
        "total variation": pool([one.total_variation for one in found]),
        "excess": pool([one.excess(bound) for one, bound in zip(found, ceilings, strict=True)]),
    }


def decode_terms(decoder: Decoder, material: Material, times: int) -> Terms:
    """The z-scores' terms of every returned token of every prompt, each decoded so many times.

    Random numbers are fresh for every number of times.
    """
    observed: list[Terms] = []

    def observe(step: Step) -> None:
        observed.append(step_terms(step))

    whole: list[Terms] = []
    first = STREAMS * material.seed + times - 1  # seeds of rounds: 0 for one time, 3 to 6 for four
    for turn, (index, prompt) in product(range(first, first + times), enumerate(material.prompts)):
        observed.clear()
        generator = Generator(material.pair.target.device).manual_seed(turn * len(material.prompts) + index)
        found = decoder.generate(material.pair, prompt, material.sampling, generator, on_step=observe)
        whole.append(cut(join(observed), len(found.tokens)))
    return join(whole)
