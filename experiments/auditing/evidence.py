"""The evidence of an audit: measurements of a verifier on the material."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from torch import Generator

from experiments.auditing.material import Material
from experiments.cell import build
from resispec.audit.as_sibling_rule import rule_of
from resispec.audit.battery import CHAINS, MOST_SIBLINGS, TREES, cases_of, supported_draws, worst
from resispec.audit.row_checks import CheckedRule
from resispec.audit.simulate import NUM_TURNS, simulated, walked
from resispec.audit.simulation_cases import scenes, scenes_of_laws
from resispec.audit.verdict import Evidence, Judgement, Statistics, judge, remeasured
from resispec.audit.z_score import Terms, join, step_terms
from resispec.decode import Decoder, Step
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput, first_line
from resispec.trees import complete, parallel_chains
from resispec.verifiers import Draws, Verifier, as_verifier, available
from resispec.verifiers.rehearsal import is_defined_on

DECODED_SIBLINGS = 3  # the most children of the root in the trees of decoding
STREAMS = 8  # the most streams of random numbers of an audit


@dataclass(frozen=True)
class Candidate:
    """A verifier to audit: its name, and its node of the configuration."""

    name: str
    node: Mapping[str, Any]

    def build(self) -> Verifier:
        """Build the verifier. Raises InvalidInput, naming it, for whatever its code raises."""
        with blamed(self.name):
            return as_verifier(build(self.node))

    def supported(self) -> tuple[Draws, ...]:
        """The kinds of draws that it is defined for. Raises InvalidInput when there are none."""
        rule = rule_of(self.build())
        with blamed(self.name):
            kinds = supported_draws(rule) or supported_draws(rule, num_siblings=1)
        if not kinds:
            allowed = f"at least one of {', '.join(Draws)}"
            raise InvalidInput(f"verifier {self.name!r} is defined for no draws; allowed: {allowed}")
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


def audit(candidate: Candidate, draws: Draws, material: Material) -> JudgedVerifier:
    """Collect the evidence about one verifier with one kind of draws, and judge it.

    Raises InvalidInput, naming the verifier, for an invalid law, and for whatever else its code raises.
    """
    with blamed(candidate.name):
        verifier = candidate.build()
        rule = CheckedRule(rule_of(verifier), candidate.name)
        is_defined = partial(is_defined_on, verifier, draws)
        is_chain = not supported_draws(rule)
        max_siblings, trees = (1, CHAINS) if is_chain else (MOST_SIBLINGS, TREES)
        estimating, simulating = (Generator().manual_seed(STREAMS * material.seed + n) for n in range(2))
        estimates = {
            kind: nodes.estimates(rule, draws, max_siblings, estimating)
            for kind, nodes in material.nodes.items()
        }
        z_scores, lengths = dict[str, Statistics](), [1]
        width = min(DECODED_SIBLINGS, max_siblings)
        topologies = complete(3, width), parallel_chains(width, 8)  # bushy; a few paths of nine levels
        for topology in filter(is_defined, topologies):
            decoder = Decoder(DraftModel(topology, draws), verifier)
            z_scores[f"{topology.num_levels} levels"] = remeasured(
                lambda times, decoder=decoder: decode_terms(decoder, material, times, lengths).scores()
            )
        walks = scenes(max_siblings)
        for setting, laws in material.walked_laws.items():
            walks += scenes_of_laws(setting, *laws, max_siblings)
        walks = [scene for scene in walks if is_defined(scene.topology)]
        evidence = Evidence(
            enumerated_error=worst(cases_of(rule, verifier, draws, is_chain)).error,
            total_variations={kind: stats["total variation"] for kind, (stats, _) in estimates.items()},
            simulations=simulated(verifier, walks, draws, NUM_TURNS, simulating),
            z_scores=z_scores,
            excesses={kind: stats["excess"] for kind, (stats, _) in estimates.items()},
            levels={
                "enumerated": max(topology.num_levels for topology, _ in trees if is_defined(topology)),
                "simulated": max(scene.topology.num_levels for scene in walks),
                "decoded": max(lengths),
            },
            walked=walked(walks, NUM_TURNS),
        )
    excess, ceiling = evidence.excesses["recorded"].value, estimates["recorded"][1]
    return JudgedVerifier(candidate.name, draws, evidence, judge(evidence), ceiling + excess, ceiling)


def decode_terms(decoder: Decoder, material: Material, times: int, lengths: list[int]) -> Terms:
    """The z-scores' terms of every returned token of every prompt, each decoded `times` times.

    Each value of `times` has random numbers of its own. lengths: the tokens of every step are appended to it.
    """
    terms = list[Terms]()
    first = STREAMS * material.seed + times - 1  # seeds of rounds: 0 for one time, 3 to 6 for four
    for turn, (index, prompt) in product(range(first, first + times), enumerate(material.prompts)):
        steps = list[Terms]()
        generator = Generator(material.pair.target.device).manual_seed(turn * len(material.prompts) + index)

        def record(step: Step, steps: list[Terms] = steps) -> None:
            steps.append(step_terms(step))

        result = decoder.generate(material.pair, prompt, material.sampling, generator, on_step=record)
        lengths += result.num_emitted
        terms.append(join(steps, len(result.tokens)))
    return join(terms)
