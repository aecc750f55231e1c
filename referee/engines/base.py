"""An engine, and the request and answer of one prompt, in the words of a transcript."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from referee.engine_laws import check_law, check_off
from referee.transcripts import MODES
from resispec.errors import InvalidInput
from resispec.sampling import Sampling

ENGINES = {
    "transformers": "referee.engines.generate:TransformersEngine",
    "llama_cpp": "referee.engines.llama_cpp:LlamaCppEngine",
    "openvino_genai": "referee.engines.openvino_genai:OpenVinoEngine",
}
"""Engines in this process, as names for `pkgutil.resolve_name`.

Imports take seconds and need the package. All but the first need the extra `engines` and a folder
for models.
"""


class Unanswered(InvalidInput):
    """An engine gave no answer, and one line says why; asking again later may help."""


class TimedOut(Unanswered):
    """An engine gave no answer in time; one line as in `Unanswered`."""


def drawn_again(problem: str) -> InvalidInput:
    """The error of a request without a seed that was begun and has no answer.

    Requests whose answers take long fail more often. If they were drawn anew, now or by the same
    command, until an answer is short enough, the answers that are kept would be too short.

    problem: a line about what happened.
    """
    return InvalidInput(
        f"{problem}, and it uses no seeds, so that another try would draw another answer, and long "
        "ones would be left out; allowed: a server with seeds (SGLang's "
        "--enable-deterministic-inference), longer limits of time, here (--timeout) and on the "
        "way, or fewer new tokens or requests at a time, with another --out"
    )


@dataclass(frozen=True)
class Answer:
    """An engine's answer to a prompt.

    tokens: every token in order, an end-of-sequence token included. finish_reason: "stop" after
    such a token or a stop string, "length" at a limit. seed: the seed that was applied, None if the
    engine has no seed for single requests. extra: further keys of the transcript, such as
    {"spec_decode": ...}. logprobs, top_logprobs: those of a transcript, if they were asked for.
    """

    tokens: tuple[int, ...]
    finish_reason: str | None
    seed: int | None
    extra: Mapping[str, Any] = field(default_factory=dict)
    logprobs: Sequence[float] | None = None
    top_logprobs: Sequence[Sequence[tuple[int, float]]] | None = None


class Engine:
    """A program that continues prompts; subclasses define `answer`, or `answers` for batches.

    name, version, model: the origin that transcripts name; version and model are None if unknown.
    apart: for each setting that the engine lacks, the reason why it must be off; those that it
    applies in another way are in `referee.engine_laws`, by its name. orders: the keys of
    FILTER_ORDERS whose orders it can apply. takes_batches: whether several requests at a time are
    one call of `answers`, and not several of `answer`. serves_logprobs: whether it can return
    log-probabilities of the most probable tokens; num_logprobs: how many of them it is asked for at
    each place. drafting: what rows say of how it drafts, by the keys DRAFTING; empty if that is not
    known.
    """

    name: str
    version: str | None
    model: str | None = None
    apart: Mapping[str, str] = {}
    orders: Collection[str]
    takes_batches: bool = False
    serves_logprobs: bool = False
    num_logprobs: int = 0
    drafting: Mapping[str, Any] = {}

    def stop(self) -> None:
        """End the requests under way, if they can be ended before their answers."""

    def ask_logprobs(self, number: int) -> None:
        """Ask for the log-probabilities of this many most probable tokens with every answer.

        Raises InvalidInput if the engine cannot return them.
        """
        if number and not self.serves_logprobs:
            raise InvalidInput(
                f"{self.name} returns no log-probabilities that a transcript could have; leave out "
                "--logprobs"
            )
        self.num_logprobs = number

    def check(self, settings: Sampling) -> None:
        """Raise InvalidInput for settings that this engine cannot apply as they are declared."""
        check_off(settings, self.name, self.apart)
        check_law(settings, self.name)
        if not any(map(settings.is_as_in, self.orders)):
            raise InvalidInput(
                f"{self.name}: filter_order is {settings.filter_order}, which is another law "
                f"there; allowed: {', '.join(self.orders)}"
            )

    def answers(
        self, prompts: Sequence[Sequence[int]], settings: Sampling, seeds: Sequence[int]
    ) -> list[Answer]:
        """Continue several prompts. Raises like `answer`."""
        return [
            self.answer(prompt, settings, seed) for prompt, seed in zip(prompts, seeds, strict=True)
        ]

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """Continue a prompt of at least one token, up to `max_new_tokens` or an end of sequence.

        All settings of the law are applied, so that no default of an engine or a model folder
        applies in silence. Several threads at a time call this if `write_transcripts` is told so.
        Raises InvalidInput if the request or the reply is wrong, Unanswered if there is no reply.
        """
        [answer] = self.answers([prompt], settings, [seed])
        return answer


def require_mode(mode: str) -> None:
    """Raise InvalidInput for a mode that is not in MODES."""
    if mode not in MODES:
        raise InvalidInput(f"unknown mode {mode!r}; allowed: {', '.join(MODES)}")


def require_fit(
    prompts: Sequence[Sequence[int]], settings: Sampling, vocab_size: int, context: int
) -> None:
    """Raise InvalidInput unless a model of this vocabulary and context can continue all prompts."""
    for prompt in prompts:
        if max(prompt) >= vocab_size:
            raise InvalidInput(
                f"the prompt holds token {max(prompt)}; the model's vocabulary ends at "
                f"{vocab_size - 1}"
            )
        if (length := len(prompt) + settings.max_new_tokens) > context:
            raise InvalidInput(
                f"a prompt of {len(prompt)} tokens and {settings.max_new_tokens} new ones need "
                f"{length} positions; the model has {context}"
            )


def acceptance(
    engine: str,
    histogram: Sequence[int] | None,
    num_draft_tokens: int | None,
    num_accepted: int | None = None,
    **told: Any,
) -> dict[str, Any]:
    """A transcript's key for one request's acceptance; empty if numbers are missing or disagree.

    The fields and their meaning are those of `SpecDecodeAcceptanceRecord` in ai-dynamo/aiperf,
    src/aiperf/common/models/spec_decode_models.py (commit 0786f0ca7116427792e7feb5b97834bd1f0b0243,
    2026). It counts draft tokens without the bonus token that every verified step adds.

    engine: its name in AIPerf. histogram: entry j counts the verified steps that accepted j draft
    tokens. num_draft_tokens: the number of proposed tokens. num_accepted: the number of accepted
    ones, of an engine without a histogram. told: further fields, None if the engine does not tell.
    """
    length = by_number = steps = None
    if histogram is not None:
        steps = sum(histogram)
        num_accepted = sum(number * count for number, count in enumerate(histogram))
        length = 1 + num_accepted / max(1, steps)
        # JSON's keys are text; a count of no steps is left out
        by_number = {str(number): count for number, count in enumerate(histogram) if count}
    if num_accepted is None or num_draft_tokens is None or num_accepted > num_draft_tokens:
        return {}
    record = {
        "engine": engine,
        "mean_acceptance_length": length,
        "draft_acceptance_rate": num_accepted / max(1, num_draft_tokens),
        "acceptance_histogram": by_number,
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_draft_tokens,
        "num_spec_steps": steps,
        **told,
    }
    return {"spec_decode": {name: value for name, value in record.items() if value is not None}}
