"""The evidence of an audit: laws and prompts of a pair, and what a verifier does on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Generator, Tensor

from experiments.configuration.build import build
from experiments.worker import encode
from resispec.audit.battery import CHAINS, TREES, supported_draws, worst_error, worst_tree_error
from resispec.audit.ceiling import ceiling
from resispec.audit.checked import CheckedRule
from resispec.audit.estimate import Estimate, Tuples, estimate, pool
from resispec.audit.first_token import rule_of
from resispec.audit.verdict import Deviation, Evidence, Judgement, judge
from resispec.audit.z_score import Terms, cut, join, step_terms
from resispec.decode import Decoder, Sampling, Step
from resispec.distributions import probabilities
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput, first_line
from resispec.models import Pair, extend
from resispec.trees import complete
from resispec.verifiers import Draws, TopDown, Verifier, as_verifier

NUM_SIBLINGS = 3
VOCABULARY = 32_000
NUM_TUPLES = {"synthetic": 600, "recorded": 200}
POSITION = 40  # of a prompt whose next token's laws are recorded; the last one of a shorter prompt


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
class Material:
    """What every verifier is audited on: pairs of laws (V,) by name, on the CPU, and prompts for decoding."""

    pair: Pair
    sampling: Sampling
    prompts: list[list[int]]
    laws: dict[str, list[tuple[Tensor, Tensor]]]


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


@torch.inference_mode()
def gather(config: Mapping[str, Any], texts: Sequence[str]) -> Material:
    """Synthetic laws at V = 32,000, and laws and prompts of a configuration's pair."""
    pair: Pair = build(config["pair"])
    sampling = Sampling(temperature=config["temperature"], **config["sampling"])
    length, template = config["prompt_tokens"], config["prompt_template"]
    prompts = [encode(pair.tokenizer, text, length, template) for text in texts]
    recorded = [recorded_laws(pair, prompt, sampling.temperature) for prompt in prompts]
    synthetic = [synthetic_laws(Generator().manual_seed(0))]
    return Material(pair, sampling, prompts, {"synthetic": synthetic, "recorded": recorded})


def synthetic_laws(generator: Generator) -> tuple[Tensor, Tensor]:
    """A Zipf-like target over VOCABULARY tokens and a draft with normal noise on its logits; float32."""
    logits = -1.2 * torch.arange(1, VOCABULARY + 1, dtype=torch.float32).log()
    target = logits + 0.5 * torch.randn(VOCABULARY, generator=generator)
    draft = target + torch.randn(VOCABULARY, generator=generator)
    return probabilities(target, 1.0), probabilities(draft, 1.0)


def recorded_laws(pair: Pair, prompt: list[int], temperature: float) -> tuple[Tensor, Tensor]:
    """Both models' laws (V,) of the token after POSITION, on the CPU.

    Raises InvalidInput when the pair has no draft model.
    """
    place = min(POSITION, len(prompt) - 1)
    target, draft = (
        probabilities(model.head(extend(model.session(len(prompt)), prompt, model.device)), temperature)[
            place
        ].cpu()
        for model in (pair.target, pair.draft_model())
    )
    return target, draft


def audit(candidate: Candidate, draws: Draws, material: Material) -> Audit:
    """Collect the evidence about one verifier with one kind of draws, and judge it.

    Raises InvalidInput, naming the verifier, for a law that is none, and for whatever else its code raises.
    """
    verifier = candidate.build()
    with blamed(candidate.name):
        return _audit(candidate.name, verifier, draws, material)


def _audit(name: str, verifier: Verifier, draws: Draws, material: Material) -> Audit:
    rule = CheckedRule(rule_of(verifier), name)
    num_siblings, trees = (NUM_SIBLINGS, TREES) if supported_draws(rule) else (1, CHAINS)
    is_rule = isinstance(verifier, TopDown)
    worst = worst_error(rule, draws) if is_rule else worst_tree_error(verifier, draws, trees=trees)
    generator = Generator().manual_seed(1)
    estimates: dict[str, list[Estimate]] = {}
    for kind, laws in material.laws.items():
        tuples = Tuples(num_siblings, draws, NUM_TUPLES[kind])
        estimates[kind] = [estimate(rule, p, q, tuples, generator) for p, q in laws]
    ceilings = [
        float(ceiling(p.double() / p.double().sum(), q.double() / q.double().sum(), num_siblings, draws))
        for p, q in material.laws["recorded"]
    ]
    scores = decode_terms(Decoder(DraftModel(complete(3, num_siblings), draws), verifier), material).scores()
    pooled = {kind: pool(found) for kind, found in estimates.items()}
    evidence = Evidence(
        enumerated_error=worst.error,
        total_variations={kind: Deviation(found.total_variation, found.z) for kind, found in pooled.items()},
        z_scores=scores,
        excesses={"recorded": excess(estimates["recorded"], ceilings)},
    )
    acceptance = mean(found.acceptance for found in estimates["recorded"])
    return Audit(name, draws, evidence, judge(evidence), acceptance, mean(ceilings))


def excess(estimates: Sequence[Estimate], ceilings: Sequence[float]) -> Deviation:
    """Mean acceptance above the ceiling, and the same in standard errors.

    The estimates are independent, so that n z-scores are added up and divided by the root of n.
    """
    values = [found.acceptance - bound for found, bound in zip(estimates, ceilings, strict=True)]
    scores = [found.excess(bound) for found, bound in zip(estimates, ceilings, strict=True)]
    return Deviation(mean(values), sum(scores) / len(scores) ** 0.5)


def decode_terms(decoder: Decoder, material: Material) -> Terms:
    """The z-scores' terms of every returned token of every prompt."""
    observed: list[Terms] = []

    def observe(step: Step) -> None:
        observed.append(step_terms(step))

    whole: list[Terms] = []
    for index, prompt in enumerate(material.prompts):
        observed.clear()
        generator = Generator(material.pair.target.device).manual_seed(index)
        found = decoder.generate(material.pair, prompt, material.sampling, generator, on_step=observe)
        whole.append(cut(join(observed), len(found.tokens)))
    return join(whole)
