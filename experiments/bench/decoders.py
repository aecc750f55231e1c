"""Speed, as ratios within one run: `python -m experiments.bench.decoders [--results FOLDER] [--prompts N]`.

Our autoregressive loop and our chain decoder against `generate` and `generate(assistant_model=...)` of transformers, on the same
pair, prompts, temperature and number of tokens; every prompt is decoded by all of them in turn, so that a busy machine slows
all alike. Then the split of a d5b3 step: what is not a forward of one of the two models is our own cost.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from experiments.provenance import device_name
from resispec.core import Draws
from resispec.decode import Decoder, Generation, Sampling, Step
from resispec.drafters import DraftModel, NoDraft
from resispec.embedded import EmbeddedDataset, load_pair
from resispec.models import Model, Pair, Session
from resispec.record import write_atomically
from resispec.timing import now
from resispec.trees import chain, complete
from resispec.verifiers import get_verifier

NUM_DRAFTED = 4
NEW_TOKENS = 64
PROMPT_TOKENS = 64
SAMPLING = Sampling(temperature=1.0, max_new_tokens=NEW_TOKENS, max_length=256, ignore_eos=True)


@dataclass
class Timed:
    """Seconds of one contestant, prompt by prompt."""

    name: str
    decode: Callable[[list[int], int], Any]
    seconds: list[float] = field(default_factory=list)


class TimedModel:
    """A model whose forwards and head add to `seconds`."""

    def __init__(self, inner: Model) -> None:
        self.inner, self.seconds = inner, 0.0
        self.vocab_size, self.context, self.device = inner.vocab_size, inner.context, inner.device

    def session(self, capacity: int) -> Session:
        """A session of the inner model whose forwards are timed."""
        session = self.inner.session(capacity)
        session.forward = self._timed(session.forward)  # type: ignore[method-assign]
        return session

    def head(self, features: Tensor) -> Tensor:
        """The inner model's head, timed."""
        return self._timed(self.inner.head)(features)

    def _timed(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def timed(*arguments: Tensor) -> Tensor:
            started = now(self.device)
            result = function(*arguments)
            self.seconds += now(self.device) - started
            return result

        return timed


def ours(pair: Pair, decoder: Decoder) -> Callable[[list[int], int], Generation]:
    """Our loop as a contestant."""
    device = pair.target.device
    return lambda prompt, seed: decoder.generate(
        pair, prompt, SAMPLING, torch.Generator(device).manual_seed(seed)
    )


def theirs(pair: Pair, **options: Any) -> Callable[[list[int], int], Tensor]:
    """`generate` of transformers, with every default switched off that would change the law or the length."""
    target: Any = pair.target
    target.module.generation_config.update(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )

    def decode(prompt: list[int], seed: int) -> Tensor:
        torch.manual_seed(seed)
        ids = torch.tensor([prompt], device=target.device)
        tokens = target.module.generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert tokens.shape[1] == len(prompt) + NEW_TOKENS
        return tokens

    return decode


def contest(contestants: list[Timed], prompts: list[list[int]], device: torch.device) -> None:
    """Every prompt by every contestant in turn; the first prompt once more beforehand, to warm up."""
    for index, prompt in enumerate(tqdm([prompts[0], *prompts], desc="bench", unit="prompt")):
        for contestant in contestants:
            started = now(device)
            contestant.decode(prompt, index)
            if index:
                contestant.seconds.append(now(device) - started)


def step_split(pair: Pair, prompts: list[list[int]]) -> dict[str, float]:
    """Milliseconds of a d5b3 step: whole, in forwards of the target, in forwards of the draft."""
    assert pair.draft is not None
    target, draft = TimedModel(pair.target), TimedModel(pair.draft)
    decoder = Decoder(DraftModel(complete(5, 3), Draws.IID), get_verifier("standard"))
    spent = torch.zeros(4, dtype=torch.float64)
    for index, prompt in enumerate(tqdm([prompts[0], *prompts], desc="step split", unit="prompt")):
        marks: list[tuple[float, ...]] = []

        def mark(_step: Step, marks: list[tuple[float, ...]] = marks) -> None:
            marks.append((1.0, now(target.device), target.seconds, draft.seconds))

        generator = torch.Generator(target.device).manual_seed(index)
        decoder.generate(Pair(target, draft, pair.tokenizer), prompt, SAMPLING, generator, on_step=mark)
        if index:  # the first prompt warms up; the first step of each is left out, so that the prompt's forwards are too
            spent += torch.tensor(marks[-1]) - torch.tensor(marks[0])
            spent[0] += len(marks) - 1
    steps, whole, in_target, in_draft = spent.tolist()
    return {
        "step_ms": 1e3 * whole / steps,
        "target_ms": 1e3 * in_target / steps,
        "draft_ms": 1e3 * in_draft / steps,
    }


def report(contestants: list[Timed], split: dict[str, float], device: torch.device) -> str:
    """The figures as a Markdown page."""
    rates = {timed.name: NEW_TOKENS / statistics.median(timed.seconds) for timed in contestants}
    ours_ar, their_ar, ours_chain, their_chain = rates.values()
    outside = split["step_ms"] - split["target_ms"] - split["draft_ms"]
    lines = [
        "# Speed, as ratios within one run",
        "",
        f"`make bench` on {device_name(device)}, {torch.get_num_threads()} thread, embedded pair, T=1, {NEW_TOKENS} new tokens",
        f"a prompt, {len(contestants[0].seconds)} prompts decoded by all four in turn; medians over prompts, the prompt's",
        "forward included.",
        "",
        "| decoder | tokens/s | ratio |",
        "|---|---:|---:|",
        f"| transformers `generate` | {their_ar:.0f} | 1.00 |",
        f"| ours, autoregressive | {ours_ar:.0f} | {ours_ar / their_ar:.2f} |",
        f"| transformers `generate(assistant_model=...)`, {NUM_DRAFTED} drafted | {their_chain:.0f} | 1.00 |",
        f"| ours, chain of {NUM_DRAFTED} drafted | {ours_chain:.0f} | {ours_chain / their_chain:.2f} |",
        "",
        "| part of a d5b3 step, `standard` | ms | share |",
        "|---|---:|---:|",
        *(
            f"| {name} | {value:.2f} | {value / split['step_ms']:.1%} |"
            for name, value in (
                ("forward of the target", split["target_ms"]),
                ("forwards of the draft", split["draft_ms"]),
                ("everything else: sampling, verification, commit", outside),
            )
        ),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write results/embedded/bench.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", default="results", help="folder of the results")
    parser.add_argument("--prompts", type=int, default=20, help="number of prompts")
    options = parser.parse_args()
    torch.set_num_threads(1)  # small matrices: see conf/profile/embedded.yaml
    pair = load_pair()
    texts = EmbeddedDataset("embedded_reference").prompts(options.prompts)
    prompts = [pair.tokenizer.encode(prompt.text)[:PROMPT_TOKENS] for prompt in texts]
    draft: Any = pair.draft
    draft.module.generation_config.update(
        num_assistant_tokens=NUM_DRAFTED,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    standard = get_verifier("standard")
    contestants = [
        Timed("ours", ours(pair, Decoder(NoDraft(), standard))),
        Timed("theirs", theirs(pair)),
        Timed("our chain", ours(pair, Decoder(DraftModel(chain(NUM_DRAFTED)), standard))),
        Timed("their chain", theirs(pair, assistant_model=draft.module)),
    ]
    contest(contestants, prompts, pair.target.device)
    page = report(contestants, step_split(pair, prompts), pair.target.device)
    folder = Path(options.results) / "embedded"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "bench.md", page)
    sys.stdout.write(f"{page}\nwritten: {folder / 'bench.md'}\n")


if __name__ == "__main__":
    main()
