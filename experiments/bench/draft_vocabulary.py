"""What a drafter's own vocabulary costs: `python -m experiments.bench.draft_vocabulary`.

An EAGLE-3 drafter proposes only the tokens of its vocabulary. Beside one with the embedded pair's map stands
one without, trained alike. Their laws are compared with the target's at every position of the same text,
which the target wrote; then both decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from analysis.report import Table, markdown, plain
from experiments.bench.options import Options, count, stem_of, write_page
from resispec.audit.ceiling import ceiling
from resispec.audit.z_score import Terms, cut, join, step_terms
from resispec.decode import Decoder, Sampling
from resispec.distributions import probabilities
from resispec.drafters import Eagle, NoDraft, Reading
from resispec.draws import Draws
from resispec.embedded import EAGLE3_RECIPE, EmbeddedDataset, load_eagle_pair
from resispec.models import Pair, features_of
from resispec.trees import from_child_counts
from resispec.verifiers import get_verifier

DATASETS = ("embedded_reference", "embedded_docstrings", "embedded_code")
SIBLINGS = (1, 4)
SAMPLING = Sampling(temperature=1.0, max_new_tokens=64, max_length=192, ignore_eos=True)
TREE = from_child_counts([[4], [3, 2, 2, 1], [3, 2, 2, 1], [3], [2]])  # tree=eagle1
PROMPT_TOKENS = 64


@dataclass(frozen=True)
class Laws:
    """Of every token of texts that the target wrote: its law, and the drafter's logits, both (T, V)."""

    target: Tensor
    draft_logits: Tensor

    def covered(self) -> float:
        """The target's mass on what can be drafted: no exact rule accepts more, whatever drafts."""
        return float((self.target * self.draft_logits.isfinite()).double().sum(-1).mean())

    def ceiling(self, num_siblings: int) -> float:
        """The highest acceptance of an exact rule, siblings drawn without replacement from the drafter."""
        draft = probabilities(self.draft_logits, SAMPLING.temperature)
        return float(ceiling(self.target, draft, num_siblings, Draws.WITHOUT_REPLACEMENT).mean())


@torch.inference_mode()
def laws_after(pair: Pair, prompt: list[int], tokens: Sequence[int]) -> Laws:
    """The laws of the T tokens that the target wrote after a prompt of at least two."""
    sequence, start = [*prompt, *tokens][:-1], len(prompt) - 1
    features = features_of(pair.target, sequence)
    drafts = pair.eagle_model().session(len(sequence))
    predicted = drafts.extend(torch.tensor(sequence[1:]), features[:-1])[start - 1 :]
    target = probabilities(pair.target.head(features[start:]), SAMPLING.temperature)
    return Laws(target, pair.eagle_head()(predicted))


def laws_of(pair: Pair, prompts: Sequence[list[int]]) -> Laws:
    """The laws of all texts that the target writes after the prompts, each with a seed of its own."""
    writer, found = Decoder(NoDraft(), get_verifier("standard")), []
    for seed, prompt in enumerate(prompts):
        text = writer.generate(pair, prompt, SAMPLING, torch.Generator().manual_seed(seed))
        found.append(laws_after(pair, prompt, text.tokens))
    target, draft_logits = zip(*((laws.target, laws.draft_logits) for laws in found), strict=True)
    return Laws(torch.cat(target), torch.cat(draft_logits))


def decoded(pair: Pair, prompts: Sequence[list[int]]) -> tuple[float, float]:
    """The accepted length with sampled candidates on EAGLE-1's tree, and the z-score of the surprisal."""
    decoder = Decoder(Eagle(TREE, Reading.SAMPLED), get_verifier("standard"))
    emitted: list[int] = []
    terms: list[Terms] = []
    for seed, prompt in enumerate(prompts):
        steps: list[Terms] = []
        found = decoder.generate(
            pair,
            prompt,
            SAMPLING,
            torch.Generator().manual_seed(seed),
            on_step=lambda step, kept=steps: kept.append(step_terms(step)),
        )
        emitted += found.num_emitted
        terms.append(cut(join(steps), len(found.tokens)))
    return sum(emitted) / len(emitted), join(terms).scores()["surprisal"].z


def table_of(pairs: Sequence[Pair], prompts: Sequence[list[int]]) -> Table:
    """A row for every drafter."""
    rows = []
    for pair in tqdm(pairs, desc="draft vocabularies", unit="drafter"):
        laws = laws_of(pair, prompts)
        length, z = decoded(pair, prompts)
        rows.append(
            {
                "draft vocabulary": f"{pair.num_draftable:,} of {pair.target.vocab_size:,}",
                "target's mass in it": laws.covered(),
                **{f"ceiling, {siblings} drawn": laws.ceiling(siblings) for siblings in SIBLINGS},
                "accepted length": length,
                "z of surprisal": z,
            }
        )
    caption = "A drafter with a vocabulary of its own, and one that drafts every token."
    number = dict.fromkeys(rows[0], ".3f") | {"accepted length": ".2f", "z of surprisal": "+.1f"}
    return plain(
        "bench_draft_vocabulary", pd.DataFrame(rows), caption, specs=number | {"draft vocabulary": ""}
    )


def main() -> None:
    """Measure, print, and write results/embedded/bench_draft_vocabulary.{md,csv}."""
    parser = Options(__doc__, None)
    parser.add_argument("--prompts", type=count, default=8, help="of each of the three embedded data sets")
    options = parser.parse_args()
    torch.set_num_threads(1)  # small matrices: see conf/profile/embedded.yaml
    pairs = [load_eagle_pair(num_draftable=size) for size in (EAGLE3_RECIPE.num_draftable, 2048)]
    documents = [document for name in DATASETS for document in EmbeddedDataset(name).prompts(options.prompts)]
    prompts = [pairs[0].tokenizer.encode(document.text)[:PROMPT_TOKENS] for document in documents]
    table = table_of(pairs, prompts)
    text = (
        f"{markdown(table)}\n`python -m experiments.bench.draft_vocabulary`, embedded target 2m, T = 1, "
        f"{len(prompts)} prompts with {SAMPLING.max_new_tokens} new tokens each; sampled candidates on "
        "tree=eagle1, verifier=standard.\n"
    )
    stem = stem_of("bench_draft_vocabulary", options.results, torch.device("cpu"))
    write_page(stem, text, table.frame)


if __name__ == "__main__":
    main()
