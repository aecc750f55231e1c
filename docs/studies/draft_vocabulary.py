"""Cost of a drafter's own vocabulary: `python docs/studies/draft_vocabulary.py`.

Found (docs/eagle.md, results/published/embedded/bench_draft_vocabulary.md): a drafter with half of the
vocabulary costs little for one candidate (ceiling .652 against .683) and more for four (.871 against .954);
its accepted length was 3.09 against 3.19.

An EAGLE-3 drafter proposes only the tokens of its vocabulary. Beside one with the embedded pair's map stands
one without, trained alike. Their laws are compared with the target's at every position of the same text,
which the target wrote; then both decode.
"""

from argparse import Namespace
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from analysis.table import Table, plain
from experiments.auditing.evidence import decode_terms
from experiments.auditing.material import Material
from experiments.bench.frame import Measured, run_bench
from resispec.audit.ceiling import ceiling
from resispec.decode import Decoder, Sampling
from resispec.drafters import Eagle, NoDraft, Reading
from resispec.draws import Draws
from resispec.embedded import EmbeddedDataset, load_eagle_pair
from resispec.embedded.recipe import EAGLE3_RECIPE
from resispec.models import Pair, features_of
from resispec.progress import progress_bar
from resispec.trees import from_child_counts
from resispec.verifiers import get_verifier

DATASETS = ("embedded_reference", "embedded_docstrings", "embedded_code")
SIBLINGS = (1, 4)
SAMPLING = Sampling(temperature=1.0, max_new_tokens=64, max_length=192, ignore_eos=True)
TREE = from_child_counts([[4], [3, 2, 2, 1], [3, 2, 2, 1], [3], [2]])  # tree=eagle1
PROMPT_TOKENS = 64


@torch.inference_mode()
def laws_of(pair: Pair, prompts: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """The target's law of every token that it writes after the prompts, and the drafter's logits, (T, V).

    A prompt has at least two tokens; each text has a seed of its own.
    """
    writer, laws, logits = Decoder(NoDraft(), get_verifier("standard")), [], []
    for seed, prompt in enumerate(prompts):
        text = writer.generate(pair, prompt, SAMPLING, torch.Generator().manual_seed(seed))
        sequence, start = [*prompt, *text.tokens][:-1], len(prompt) - 1
        features = features_of(pair.target, sequence, len(prompt))
        drafts = pair.eagle_model().session(len(sequence))
        predicted = drafts.extend(torch.tensor(sequence[1:]), features[:-1])[start - 1 :]
        laws.append(SAMPLING.law(pair.target.head(features[start:])))
        logits.append(pair.eagle_head()(predicted))
    return torch.cat(laws), torch.cat(logits)


def decoded(pair: Pair, prompts: Sequence[list[int]]) -> tuple[float, float]:
    """The accepted length with sampled candidates on EAGLE-1's tree, and the z-score of the surprisal."""
    decoder, lengths = Decoder(Eagle(TREE, Reading.SAMPLED), get_verifier("standard")), list[int]()
    terms = decode_terms(decoder, Material(pair, SAMPLING, list(prompts), {}), 1, lengths)
    return sum(lengths) / len(lengths), terms.scores()["surprisal"].z


def table_of(pairs: Sequence[Pair], prompts: Sequence[list[int]]) -> Table:
    """A row for every drafter."""
    rows = []
    for pair in progress_bar(pairs, desc="draft vocabularies", unit="drafter"):
        laws, logits = laws_of(pair, prompts)
        draft = SAMPLING.law(logits)
        ceilings = {count: ceiling(laws, draft, count, Draws.WITHOUT_REPLACEMENT) for count in SIBLINGS}
        length, z = decoded(pair, prompts)
        rows.append(
            {
                "draft vocabulary": f"{pair.draft.num_draftable:,} of {pair.target.vocab_size:,}",
                # No exact rule accepts more, whatever drafts.
                "target's mass in it": float((laws * logits.isfinite()).double().sum(-1).mean()),
                **{f"ceiling, {count} drawn": float(most.mean()) for count, most in ceilings.items()},
                "accepted length": length,
                "z of surprisal": z,
            }
        )
    caption = "A drafter with a vocabulary of its own, and one that drafts every token."
    number = dict.fromkeys(rows[0], ".3f") | {"accepted length": ".2f", "z of surprisal": "+.1f"}
    return plain(
        "bench_draft_vocabulary", pd.DataFrame(rows), caption, specs=number | {"draft vocabulary": ""}
    )


def measure(options: Namespace) -> Measured:
    """A table with a row for every drafter."""
    pairs = [load_eagle_pair(num_draftable=size) for size in (EAGLE3_RECIPE.num_draftable, 2048)]
    documents = [document for name in DATASETS for document in EmbeddedDataset(name).prompts(options.prompts)]
    prompts = [pairs[0].tokenizer.encode(document.text)[:PROMPT_TOKENS] for document in documents]
    table = table_of(pairs, prompts)
    source = (
        f"`python docs/studies/draft_vocabulary.py`, embedded target 2m, T = 1, {len(prompts)} prompts with "
        f"{SAMPLING.max_new_tokens} new tokens each; sampled candidates on tree=eagle1, verifier=standard."
    )
    return [table], [source], table.frame


if __name__ == "__main__":
    prompts = (8, "of each of the three embedded data sets")
    run_bench("bench_draft_vocabulary", __doc__, measure, device=None, prompts=prompts)
