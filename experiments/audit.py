"""Is a verifier exact? `python -m experiments.audit [--verifier NAME|FILE.py:CLASS] [--results FOLDER]`.

For every registered verifier (or the one that is named) and each kind of draws that it is defined for: the worst error of its
enumerated law, its estimated total variation at V = 32,000 and on laws recorded from the embedded pair, two z-scores of real
decoding, its acceptance against the ceiling of exact rules, and the verdict that follows from these numbers. The exit code is
not 0 when a baseline is not found exact.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import pandas as pd
import torch
from torch import Generator, Tensor
from tqdm import tqdm

from experiments.provenance import device_name
from resispec.audit.battery import CHAINS, TREES, supported_draws, worst_error, worst_tree_error
from resispec.audit.ceiling import ceiling
from resispec.audit.checked import CheckedRule
from resispec.audit.estimate import Estimate, Plan, estimate, pool
from resispec.audit.first_token import rule_of
from resispec.audit.verdict import Deviation, Evidence, Finding, Judgement, judge
from resispec.audit.z_score import Terms, cut, join, step_terms
from resispec.decode import Decoder, Sampling, Step
from resispec.distributions import probabilities
from resispec.drafters import DraftModel
from resispec.embedded import NAMES, EmbeddedDataset, ensure_pair, load_pair
from resispec.errors import InvalidInput
from resispec.models import Pair, extend
from resispec.record import write_atomically
from resispec.trees import complete
from resispec.verifiers import BASELINES, Draws, TopDown, available, get_verifier

NUM_SIBLINGS = 3
VOCABULARY = 32_000
SYNTHETIC_TUPLES = 600
RECORDED_TUPLES = 200
CONTEXTS = (40,)  # positions of a prompt whose laws are recorded
PROMPTS_PER_DATASET = 6
SAMPLING = Sampling(temperature=1.0, max_new_tokens=64, max_length=256, ignore_eos=True)
PROMPT_TOKENS = 64


@dataclass(frozen=True)
class Material:
    """What every verifier is audited on: pairs of laws (V,) by name, and prompts for decoding."""

    pair: Pair
    prompts: list[list[int]]
    laws: dict[str, list[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class Audit:
    """The evidence about one verifier with one kind of draws, and what it says. Acceptances are means over recorded laws."""

    name: str
    draws: Draws
    evidence: Evidence
    judgement: Judgement
    acceptance: float
    ceiling: float


def gather_material() -> Material:
    """Synthetic laws at V = 32,000, and laws and prompts of the embedded pair (trained first if it is absent)."""
    pair = load_pair()
    texts = [prompt.text for name in NAMES for prompt in EmbeddedDataset(name).prompts(PROMPTS_PER_DATASET)]
    prompts = [pair.tokenizer.encode(text)[:PROMPT_TOKENS] for text in texts]
    recorded = [laws for prompt in prompts for laws in recorded_laws(pair, prompt)]
    return Material(
        pair, prompts, {"synthetic": [synthetic_laws(Generator().manual_seed(0))], "recorded": recorded}
    )


def synthetic_laws(generator: Generator) -> tuple[Tensor, Tensor]:
    """A Zipf-like target over V = 32,000 tokens and a draft whose logits differ from it by normal noise; float32."""
    logits = -1.2 * torch.arange(1, VOCABULARY + 1, dtype=torch.float32).log()
    target = logits + 0.5 * torch.randn(VOCABULARY, generator=generator)
    return probabilities(target, 1.0), probabilities(
        target + torch.randn(VOCABULARY, generator=generator), 1.0
    )


def recorded_laws(pair: Pair, prompt: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Both models' laws of the next token at some positions of a prompt, T = 1."""
    assert pair.draft is not None
    target, draft = (
        probabilities(
            model.head(extend(model.session(len(prompt)), prompt, model.device)), SAMPLING.temperature
        )
        for model in (pair.target, pair.draft)
    )
    yield from ((target[position], draft[position]) for position in CONTEXTS)


def audit(name: str, draws: Draws, material: Material) -> Audit:
    """Collect the evidence about one verifier with one kind of draws, and judge it."""
    verifier = get_verifier(name)
    rule = CheckedRule(rule_of(verifier), name)
    num_siblings, trees = (NUM_SIBLINGS, TREES) if supported_draws(rule) else (1, CHAINS)
    worst = (
        worst_error(rule, draws)
        if isinstance(verifier, TopDown)
        else worst_tree_error(verifier, draws, trees=trees)
    )
    generator = Generator().manual_seed(1)
    tuples = {"synthetic": SYNTHETIC_TUPLES, "recorded": RECORDED_TUPLES}
    estimates: dict[str, list[Estimate]] = {}
    for kind, laws in material.laws.items():
        plan = Plan(num_siblings, draws, tuples[kind])
        estimates[kind] = [estimate(rule, p, q, plan, generator) for p, q in laws]
    ceilings = [
        float(ceiling(p.double() / p.double().sum(), q.double() / q.double().sum(), num_siblings, draws))
        for p, q in material.laws["recorded"]
    ]
    decoder = Decoder(DraftModel(complete(3, num_siblings), draws), verifier)
    scores = decode_terms(decoder, material).scores()
    pooled = {kind: pool(found) for kind, found in estimates.items()}
    evidence = Evidence(
        enumerated_error=worst.error,
        total_variations={kind: Deviation(found.total_variation, found.z) for kind, found in pooled.items()},
        z_scores=scores,
        excesses={"recorded": excess(estimates["recorded"], ceilings)},
    )
    acceptance = mean(found.acceptance for found in estimates["recorded"])
    return Audit(name, draws, evidence, judge(evidence), acceptance, mean(ceilings))


def audit_all(rows: list[tuple[str, Draws]]) -> list[Audit]:
    """Audit every verifier and kind of draws, two at a time in processes of their own."""
    ensure_pair()  # train it once, with its own progress bar
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.audit"])
    with ProcessPoolExecutor(2, context, _prepare) as pool:
        return list(
            tqdm(pool.map(_audit_row, rows), desc="audit", unit="row", total=len(rows), dynamic_ncols=True)
        )


_MATERIAL: list[Material] = []


def _prepare() -> None:
    torch.set_num_threads(1)
    _MATERIAL.append(gather_material())


@torch.inference_mode()
def _audit_row(row: tuple[str, Draws]) -> Audit:
    return audit(*row, _MATERIAL[0])


def excess(estimates: list[Estimate], ceilings: list[float]) -> Deviation:
    """Mean acceptance above the ceiling, and the same in standard errors: independent estimates, so z's add up over root n."""
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
        generation = decoder.generate(
            material.pair, prompt, SAMPLING, Generator().manual_seed(index), on_step=observe
        )
        whole.append(cut(join(observed), len(generation.tokens)))
    return join(whole)


def frame_of(audits: list[Audit]) -> pd.DataFrame:
    """One tidy row per verifier and kind of draws."""
    rows = []
    for found in audits:
        evidence, scores = found.evidence, found.evidence.z_scores
        rows.append(
            {
                "verifier": found.name,
                "draws": str(found.draws),
                "enumerated_error": evidence.enumerated_error,
                **{f"tv_{kind}": item.value for kind, item in evidence.total_variations.items()},
                **{f"tv_{kind}_z": item.z for kind, item in evidence.total_variations.items()},
                **{f"z_{name}": score.z for name, score in scores.items()},
                "num_tokens": max(score.n for score in scores.values()),
                "acceptance": found.acceptance,
                "ceiling": found.ceiling,
                "verdict": str(found.judgement.finding),
                "reasons": "; ".join(found.judgement.reasons),
                "false_alarm_rate": found.judgement.false_alarm_rate,
            }
        )
    return pd.DataFrame(rows)


def page_of(frame: pd.DataFrame) -> str:
    """The table for people."""
    columns = (
        "enumerated error",
        "TV, V = 32,000 (z)",
        "TV, embedded pair (z)",
        "z surprisal",
        "z overdraft",
        "tokens",
    )
    header = ("verifier", "draws", *columns, "acceptance", "ceiling", "verdict")
    lines = [
        "# Audit: which verifiers are exact?",
        "",
        f"| {' | '.join(header)} |",
        "|---|---|" + "---:|" * 8 + "---|",
    ]
    for row in frame.to_dict("records"):
        lines.append(
            f"| {row['verifier']} | {row['draws']} | {row['enumerated_error']:.1e} "
            f"| {row['tv_synthetic']:.4f} ({row['tv_synthetic_z']:.1f}) | {row['tv_recorded']:.4f} ({row['tv_recorded_z']:.1f}) "
            f"| {row['z_surprisal']:.1f} | {row['z_overdraft']:.1f} | {row['num_tokens']} "
            f"| {row['acceptance']:.3f} | {row['ceiling']:.3f} | **{row['verdict']}** |"
        )
    notes = (
        f"`make audit` on {device_name(torch.device('cpu'))}. {NUM_SIBLINGS} siblings a node, one for verifiers of chains.",
        "Enumerated error: worst total variation over a battery of small laws, float64; exact rules stay below 1e-9. TV:",
        "cross-fitted total variation between the emitted law and the target's, in brackets in standard errors; 0 in the mean",
        "for an exact rule. z: of real decoding on the embedded pair at T = 1, trees of three levels. Acceptance: probability",
        "that the emitted token is a drafted sibling, over laws recorded from the pair, beside the highest that an exact rule",
        "can have with these draws. An exact verifier is called biased with probability below",
        f"{frame.false_alarm_rate.max():.1e} a row.",
    )
    return "\n".join([*lines, "", *notes, ""])


def main() -> int:
    """Audit, print, write results/embedded/audit.{csv,md}; 1 when a baseline is not found exact or the input is invalid."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--verifier",
        default="",
        help="a registered name or path/to/file.py:Class; every registered one by default",
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="the folder of the results")
    chosen = parser.parse_args()
    try:
        names = [chosen.verifier] if chosen.verifier else available()
        rows = [(name, draws) for name in names for draws in _draws(name)]
        audits = audit_all(rows)
    except InvalidInput as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    frame = frame_of(audits)
    page = page_of(frame)
    sys.stdout.write(page)
    if not chosen.verifier:
        folder = chosen.results / "embedded"
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "audit.csv", frame.to_csv(index=False))
        write_atomically(folder / "audit.md", page)
    for found in audits:
        sys.stdout.write(
            f"{found.name}, {found.draws}: {found.judgement.finding}: {'; '.join(found.judgement.reasons)}\n"
        )
    failed = [
        found for found in audits if found.name in BASELINES and found.judgement.finding is not Finding.EXACT
    ]
    for found in failed:
        sys.stderr.write(
            f"error: the baseline {found.name} with {found.draws} draws is {found.judgement.finding}\n"
        )
    return 1 if failed else 0


def _draws(name: str) -> tuple[Draws, ...]:
    rule = rule_of(get_verifier(name))
    found = supported_draws(rule) or supported_draws(rule, num_siblings=1)
    if not found:
        raise InvalidInput(
            f"verifier {name!r} is defined for no kind of draws; allowed: at least one of {', '.join(Draws)}"
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
