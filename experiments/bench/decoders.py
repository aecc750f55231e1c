"""Speed, as ratios within one run: `python -m experiments.bench.decoders [--prompts N]`.

Our autoregressive loop and our chain decoder against `generate` and `generate(assistant_model=...)` of
transformers, on the same pair, prompts, temperature and number of tokens; every prompt is decoded by all of
them in turn, so that a busy machine slows all alike. Then, on a processor, the split of a d5b3 step with a
clock around every part: what is not a forward of one of the two models is our own cost. On a GPU forwards are
parts of captured units, where no clock can be; the split of a step there is that of `step_time`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from analysis.report import Table, markdown, plain
from experiments.bench.contest import Timed, contest
from experiments.bench.options import Options, count, stem_of, write_page
from experiments.provenance import device_name
from resispec.decode import Decoder, Generation, Sampling, Step
from resispec.drafters import DraftModel, NoDraft
from resispec.draws import Draws
from resispec.embedded import EmbeddedDataset, load_pair
from resispec.models import Model, Pair, Session
from resispec.timing import OuterStopwatch, now
from resispec.trees import chain, complete
from resispec.verifiers import get_verifier

NUM_DRAFTED = 4
NEW_TOKENS = 64
PROMPT_TOKENS = 64
SAMPLING = Sampling(temperature=1.0, max_new_tokens=NEW_TOKENS, max_length=256, ignore_eos=True)


class TimedModel:
    """A model whose forwards and head add to `seconds`."""

    def __init__(self, inner: Model) -> None:
        self.inner, self.seconds = inner, 0.0
        self.vocab_size, self.context, self.device = inner.vocab_size, inner.context, inner.device

    def session(self, capacity: int, drafted: int = 0) -> Session:
        """A session of the inner model whose forwards are timed."""
        session = self.inner.session(capacity, drafted)
        session.extend = self._timed(session.extend)  # type: ignore[method-assign]
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


def assisted(pair: Pair) -> Callable[[list[int], int], Tensor]:
    """`generate` of transformers with the pair's draft, which drafts `NUM_DRAFTED` tokens a step."""
    draft: Any = pair.draft
    draft.module.generation_config.update(
        num_assistant_tokens=NUM_DRAFTED,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    return theirs(pair, assistant_model=draft.module)


def embedded_prompts(pair: Pair, count: int) -> list[list[int]]:
    """The first tokens of so many embedded documents."""
    texts = EmbeddedDataset("embedded_reference").prompts(count)
    return [pair.tokenizer.encode(prompt.text)[:PROMPT_TOKENS] for prompt in texts]


def step_split(pair: Pair, prompts: list[list[int]]) -> dict[str, float]:
    """Milliseconds of a d5b3 step: whole, its parts, and of these what forwards of the two models take."""
    assert pair.draft is not None
    target, draft = TimedModel(pair.target), TimedModel(pair.draft)
    watched = Pair(target, draft, pair.tokenizer)
    decoder = Decoder(DraftModel(complete(5, 3), Draws.IID), get_verifier("standard"))
    spent: Counter[str] = Counter()
    for index, prompt in enumerate(tqdm([prompts[0], *prompts], desc="step split", unit="prompt")):
        marks: list[Counter[str]] = []
        watch = OuterStopwatch(target.device)

        def mark(_step: Step, marks: list[Counter[str]] = marks, watch: OuterStopwatch = watch) -> None:
            forwards = {"target forward": target.seconds, "draft forward": draft.seconds}
            marks.append(Counter({"step": now(target.device), "steps": 1.0} | watch.seconds | forwards))

        generator = torch.Generator(target.device).manual_seed(index)
        decoder.generate(watched, prompt, SAMPLING, generator, watch, mark)
        if index:  # the first prompt warms up; a first step, with its prompt's forwards, is left out
            for name in marks[-1]:
                spent[name] += marks[-1][name] - marks[0][name]
            spent["steps"] += len(marks) - 1
    return {name: 1e3 * seconds / spent["steps"] for name, seconds in spent.items() if name != "steps"}


def speeds(contestants: Sequence[Timed]) -> Table:
    """Tokens a second of each decoder, and the ratio to that of transformers: pairs of ours and theirs."""
    rates = [1e3 * NEW_TOKENS / timed.milliseconds for timed in contestants]
    ratios = [rate / rates[place - place % 2 + 1] for place, rate in enumerate(rates)]
    names = [timed.labels[0] for timed in contestants]
    frame = pd.DataFrame({"decoder": names, "tokens/s": rates, "ratio": ratios})
    return plain("bench", frame, "Speed, as ratios within one run.", specs={"tokens/s": ".0f"})


def parts(split: Mapping[str, float]) -> Table:
    """Where the time of a d5b3 step goes; see `step_split`."""
    named = sum(split[name] for name in ("draft", "target", "verify", "commit"))
    values = {
        "forward of the target": split["target forward"],
        "forwards of the draft": split["draft forward"],
        "drawing siblings": split["draft"] - split["draft forward"],
        "the target's laws": split["target"] - split["target forward"],
        "verification": split["verify"],
        "commit": split["commit"],
        "the loop": split["step"] - named,
    }
    values["all but the forwards"] = split["step"] - split["target forward"] - split["draft forward"]
    shares = [value / split["step"] for value in values.values()]
    frame = pd.DataFrame({"part": list(values), "ms": list(values.values()), "share": shares})
    return plain("bench_step", frame, "Parts of a d5b3 step, `standard`.", specs={"share": ".1%"})


def page(contestants: Sequence[Timed], split: Mapping[str, float] | None, device: torch.device) -> str:
    """The figures for people. split: see `step_split`; None where it was not measured."""
    source = (
        f"`make bench` on {device_name(device)}, {torch.get_num_threads()} thread, embedded pair, T=1, "
        f"{NEW_TOKENS} new tokens a prompt, {len(contestants[0].seconds)} prompts decoded by all four in "
        "turn; medians over prompts, the prompt's forward included."
    )
    tables = [speeds(contestants), *([parts(split)] if split else [])]
    return "\n".join([*map(markdown, tables), source, ""])


def entrants(pair: Pair, prompts: Sequence[list[int]]) -> list[Timed]:
    """Our loops, each followed by that of transformers; a round decodes the prompt of its number."""
    standard = get_verifier("standard")
    decoders = {
        "ours, autoregressive": ours(pair, Decoder(NoDraft(), standard)),
        "transformers `generate`": theirs(pair),
        f"ours, chain of {NUM_DRAFTED} drafted": ours(
            pair, Decoder(DraftModel(chain(NUM_DRAFTED)), standard)
        ),
        f"transformers `generate(assistant_model=...)`, {NUM_DRAFTED} drafted": assisted(pair),
    }

    def timed(name: str, decode: Callable[[list[int], int], object]) -> Timed:
        return Timed((name,), [lambda turn: decode(prompts[turn], turn + 1)])

    return [timed(name, decode) for name, decode in decoders.items()]


def main() -> None:
    """Measure, print, and write results/embedded/bench.md.

    On CUDA the file is results/timing/bench_DEVICE.md.
    """
    parser = Options(__doc__, "cpu")
    parser.add_argument("--prompts", type=count, default=20, help="number of prompts")
    options = parser.parse_args()
    torch.set_num_threads(1)  # small matrices: see conf/profile/embedded.yaml
    pair = load_pair(device=options.device)
    prompts = embedded_prompts(pair, options.prompts)
    contestants = entrants(pair, prompts)
    contest("bench", contestants, len(prompts), pair.target.device)
    split = step_split(pair, prompts) if pair.target.device.type == "cpu" else None
    text = page(contestants, split, pair.target.device)
    write_page(stem_of("bench", options.results, pair.target.device), text)


if __name__ == "__main__":
    main()
