"""The evidence of an audit: what a verifier does on the material."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from statistics import mean
from typing import Any

from torch import Generator, Tensor

from experiments.auditing.material import Material
from experiments.configuration.build import build
from resispec.audit.battery import (
    CHAINS,
    MOST_SIBLINGS,
    TREES,
    supported_draws,
    worst_error,
    worst_tree_error,
)
from resispec.audit.ceiling import ceiling
from resispec.audit.checked import CheckedRule
from resispec.audit.chi_square import ChiSquare
from resispec.audit.estimate import Tuples, estimate, pool
from resispec.audit.first_token import rule_of
from resispec.audit.scenes import scenes
from resispec.audit.simulate import simulate
from resispec.audit.verdict import LEAST_P, LIMIT, Evidence, Judgement, judge
from resispec.audit.z_score import Terms, ZScore, cut, join, step_terms
from resispec.decode import Decoder, Step
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput, first_line
from resispec.trees import complete
from resispec.verifiers import Draws, TopDown, Verifier, as_verifier

DECODED_SIBLINGS = 3  # of a node of the trees that are decoded with
NUM_STEPS = 1500  # of every scene that is simulated
SUSPICIOUS_P = 0.01  # what is less likely is measured again, with fresh random numbers
AGAIN = 4  # and this many times as long
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
    max_siblings, trees = (MOST_SIBLINGS, TREES) if supported_draws(rule) else (1, CHAINS)
    is_rule = isinstance(verifier, TopDown)
    worst = worst_error(rule, draws) if is_rule else worst_tree_error(verifier, draws, trees=trees)
    generator = Generator().manual_seed(STREAMS * material.seed)
    variations, excesses, acceptances, bounds = {}, {}, [], []
    for kind, nodes in material.nodes.items():
        counts = [min(count, max_siblings) for count in nodes.siblings]
        found = [
            estimate(rule, p, q, Tuples(count, draws, nodes.num_tuples[not is_rule]), generator)
            for (p, q), count in zip(nodes.laws, counts, strict=True)
        ]
        variations[kind] = pool([one.total_variation for one in found])
        if kind == "recorded":
            bounds = [_ceiling(p, q, count, draws) for (p, q), count in zip(nodes.laws, counts, strict=True)]
            excesses[kind] = pool([one.excess(bound) for one, bound in zip(found, bounds, strict=True)])
            acceptances = [one.acceptance for one in found]
    decoder = Decoder(DraftModel(complete(3, min(DECODED_SIBLINGS, max_siblings)), draws), verifier)
    evidence = Evidence(
        enumerated_error=worst.error,
        total_variations=variations,
        simulations=_simulations(verifier, draws, max_siblings, material.seed),
        z_scores=_z_scores(decoder, material),
        excesses=excesses,
    )
    return Audit(name, draws, evidence, judge(evidence), mean(acceptances), mean(bounds))


def _ceiling(p: Tensor, q: Tensor, num_siblings: int, draws: Draws) -> float:
    return float(ceiling(p.double() / p.double().sum(), q.double() / q.double().sum(), num_siblings, draws))


def _simulations(verifier: Verifier, draws: Draws, max_siblings: int, seed: int) -> dict[str, ChiSquare]:
    """Counts of what `verify` draws, made anew and for longer where they look suspicious."""
    generator = Generator().manual_seed(STREAMS * seed + 1)
    found = simulate(verifier, scenes(max_siblings), draws, NUM_STEPS, generator)
    if not LEAST_P <= min(one.p_value for one in found.values()) < SUSPICIOUS_P:
        return found
    return simulate(verifier, scenes(max_siblings), draws, AGAIN * NUM_STEPS, generator)


def _z_scores(decoder: Decoder, material: Material) -> dict[str, ZScore]:
    """z-scores of decoding, made anew and for longer where they look suspicious."""
    found = decode_terms(decoder, material, range(1)).scores()
    if not any(one.p_value < SUSPICIOUS_P and abs(one.z) <= LIMIT for one in found.values()):
        return found
    return decode_terms(decoder, material, range(1, 1 + AGAIN)).scores()


def decode_terms(decoder: Decoder, material: Material, rounds: range) -> Terms:
    """The z-scores' terms of every returned token of every prompt, in each of the rounds."""
    observed: list[Terms] = []

    def observe(step: Step) -> None:
        observed.append(step_terms(step))

    whole: list[Terms] = []
    for turn, (index, prompt) in product(rounds, enumerate(material.prompts)):
        observed.clear()
        seed = (STREAMS * material.seed + turn) * len(material.prompts) + index
        generator = Generator(material.pair.target.device).manual_seed(seed)
        found = decoder.generate(material.pair, prompt, material.sampling, generator, on_step=observe)
        whole.append(cut(join(observed), len(found.tokens)))
    return join(whole)
