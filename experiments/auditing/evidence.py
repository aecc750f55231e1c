"""The evidence of an audit: measurements of a verifier on the material."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from operator import or_
from typing import Any

from torch import Generator

from experiments.auditing.material import Material
from experiments.cell import build
from resispec.audit.as_sibling_rule import rule_of
from resispec.audit.battery import CHAINS, MOST_SIBLINGS, TREES, cases_of, supported_draws, worst
from resispec.audit.row_checks import CheckedRule, check_draws
from resispec.audit.simulate import NUM_TURNS, simulated, walked
from resispec.audit.simulation_cases import scenes, scenes_of_laws
from resispec.audit.verdict import Evidence, Judgement, Statistics, judge, remeasured
from resispec.audit.z_score import Terms, join, step_terms
from resispec.decode import Decoder, Step
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput, first_line
from resispec.trees import Topology, complete, parallel_chains
from resispec.verifiers import Draws, DrawsKind, Verifier, as_verifier, available
from resispec.verifiers.rehearsal import is_defined_on

DECODED_SIBLINGS = 3  # the most children of the root in the trees of decoding
STREAMS = 16  # the most streams of random numbers of an audit
WALKS = 8  # the first stream of walks; those before are of laws and of decoding
GROUPS = 3
"""The groups of scenes that are walked apart, so that two cores share one verifier."""


@dataclass(frozen=True)
class Candidate:
    """A verifier to audit: its name, and its node of the configuration."""

    name: str
    node: Mapping[str, Any]

    def build(self) -> Verifier:
        """Build the verifier. Raises InvalidInput, naming it, for whatever its code raises."""
        with blamed(self.name):
            return as_verifier(build(self.node))

    def supported(self) -> tuple[DrawsKind, ...]:
        """The kinds of draws that it is defined for. Raises InvalidInput when there are none."""
        rule = rule_of(self.build())
        with blamed(self.name):
            kinds = supported_draws(rule) or supported_draws(rule, num_siblings=1)
        if not kinds:
            allowed = f"at least one of {', '.join(Draws)}"
            raise InvalidInput(
                f"verifier {self.name!r} is defined for no draws; allowed: {allowed}"
            )
        return kinds


def candidates(config: Mapping[str, Any], choice: str | None) -> list[Candidate]:
    """The verifier that was chosen, or every registered one."""
    if choice:
        return [Candidate(config["verifier"].get("name", choice), config["verifier"])]
    target = "resispec.verifiers.get_verifier"
    return [Candidate(name, {"_target_": target, "name": name}) for name in available()]


@dataclass(frozen=True)
class JudgedVerifier:
    """The evidence about one verifier with one kind of draws, and its judgement.

    acceptance, ceiling: means over the recorded laws.
    """

    name: str
    draws: DrawsKind
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
        raise InvalidInput(
            f"verifier {name!r} raised {type(error).__name__}: {first_line(error)}"
        ) from error


class Subject:
    """A verifier with one kind of draws, under audit.

    max_siblings: MOST_SIBLINGS, or 1 for a verifier of chains alone.
    """

    def __init__(self, candidate: Candidate, draws: DrawsKind) -> None:
        check_draws(draws)
        self.draws = draws
        self.verifier = candidate.build()
        self.rule = CheckedRule(rule_of(self.verifier), candidate.name)
        self.is_chain = not supported_draws(self.rule)
        self.max_siblings = 1 if self.is_chain else MOST_SIBLINGS

    def is_defined(self, topology: Topology) -> bool:
        """Whether the verifier is defined on such trees."""
        return is_defined_on(self.verifier, self.draws, topology)


def stated(subject: Subject, material: Material) -> Evidence:
    """The verifier's stated law, enumerated on small laws and trees, and estimated on nodes."""
    generator = Generator().manual_seed(STREAMS * material.seed)
    estimates = {
        kind: nodes.estimates(subject.rule, subject.draws, subject.max_siblings, generator)
        for kind, nodes in material.nodes.items()
    }
    cases = cases_of(subject.rule, subject.verifier, subject.draws, subject.is_chain)
    trees = CHAINS if subject.is_chain else TREES
    return Evidence(
        enumerated_error=worst(cases).error,
        total_variations={kind: stats["total variation"] for kind, (stats, _) in estimates.items()},
        excesses={kind: stats["excess"] for kind, (stats, _) in estimates.items()},
        ceilings={kind: ceiling for kind, (_, ceiling) in estimates.items()},
        levels={
            "enumerated": max(tree.num_levels for tree, _ in trees if subject.is_defined(tree))
        },
    )


def decoded(subject: Subject, material: Material) -> Evidence:
    """The tokens of real decoding, on bushy trees and on a few paths of nine levels."""
    z_scores, lengths = dict[str, Statistics](), [1]
    width = min(DECODED_SIBLINGS, subject.max_siblings)
    for topology in filter(subject.is_defined, (complete(3, width), parallel_chains(width, 8))):
        decoder = Decoder(DraftModel(topology, subject.draws), subject.verifier)
        z_scores[f"{topology.num_levels} levels"] = remeasured(
            lambda times, decoder=decoder: decode_terms(decoder, material, times, lengths).scores()
        )
    return Evidence(z_scores=z_scores, levels={"decoded": max(lengths)})


def walks(subject: Subject, material: Material, group: int) -> Evidence:
    """Walks by `verify` in one of GROUPS groups of scenes, each with chains and other trees."""
    every = scenes(subject.max_siblings)
    for setting, laws in material.walked_laws.items():
        every += scenes_of_laws(setting, *laws, subject.max_siblings)
    every = [scene for scene in every if subject.is_defined(scene.topology)]
    chosen = every[group::GROUPS]
    generator = Generator().manual_seed(STREAMS * material.seed + WALKS + group)
    return Evidence(
        simulations=simulated(subject.verifier, chosen, subject.draws, NUM_TURNS, generator),
        levels={"simulated": max((scene.topology.num_levels for scene in chosen), default=0)},
        walked=walked(every, NUM_TURNS),
    )


Part = Callable[[Subject, Material], Evidence]
PARTS: tuple[Part, ...] = (
    stated,
    *(partial(walks, group=group) for group in range(GROUPS)),
    decoded,
)
"""The parts of an audit. The first one checks the laws that a rule returns."""


def measure(part: Part, candidate: Candidate, draws: DrawsKind, material: Material) -> Evidence:
    """One part of the evidence about a verifier with one kind of draws.

    Raises InvalidInput, naming the verifier, for an invalid law, and for whatever else its code
    raises.
    """
    with blamed(candidate.name):
        return part(Subject(candidate, draws), material)


def judged(candidate: Candidate, draws: DrawsKind, parts: Sequence[Evidence]) -> JudgedVerifier:
    """The judgement about a verifier with one kind of draws, by the evidence of all parts."""
    evidence = reduce(or_, parts)
    ceiling = evidence.ceilings["recorded"]
    acceptance = ceiling + evidence.excesses["recorded"].value
    return JudgedVerifier(candidate.name, draws, evidence, judge(evidence), acceptance, ceiling)


def decode_terms(decoder: Decoder, material: Material, times: int, lengths: list[int]) -> Terms:
    """The z-scores' terms of every returned token of every prompt, each decoded `times` times.

    Each value of `times` has random numbers of its own. lengths: the tokens of every step are
    appended to it.
    """
    terms = list[Terms]()
    first = STREAMS * material.seed + times - 1  # seeds of rounds: 0 for one time, 3 to 6 for four
    for turn, (index, prompt) in product(range(first, first + times), enumerate(material.prompts)):
        steps = list[Terms]()
        generator = Generator(material.pair.target.device).manual_seed(
            turn * len(material.prompts) + index
        )

        def record(step: Step, steps: list[Terms] = steps) -> None:
            steps.append(step_terms(step))

        result = decoder.generate(
            material.pair, prompt, material.sampling, generator, on_step=record, is_checked=True
        )
        lengths += result.num_emitted
        terms.append(join(steps, len(result.tokens)))
    return join(terms)
