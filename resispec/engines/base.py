"""What an engine is asked and what it answers, in the words of a transcript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from resispec.errors import InvalidInput
from resispec.transcripts import LawSettings


class Unanswered(Exception):
    """An engine gave no answer, and one line says why; asking again later may help."""


@dataclass(frozen=True, kw_only=True)
class Settings(LawSettings):
    """How an engine is asked to sample, and how long.

    The settings of the law are always asked for, all of them, so that no default of an engine or of a model
    folder applies in silence. max_new_tokens: tokens of an answer at most.
    Raises InvalidInput for a value that is not allowed.
    """

    max_new_tokens: int = 64

    def __post_init__(self) -> None:
        self.check("settings")
        if type(self.max_new_tokens) is not int or self.max_new_tokens < 1:
            raise InvalidInput(f"settings: max_new_tokens is {self.max_new_tokens!r}; allowed: from 1")


NEUTRAL = Settings()
"""Nothing that changes the model's own law."""


@dataclass(frozen=True)
class Answer:
    """What an engine emitted.

    tokens: every token in order, an end-of-sequence token included. finish_reason: "stop" after one of those
    or a stop string, "length" at a limit. seed: the one that was applied, None where the engine has none for
    a request. extra: what else belongs into the transcript, such as {"spec_decode": ...}.
    """

    tokens: tuple[int, ...]
    finish_reason: str | None
    seed: int | None
    extra: Mapping[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """Whatever continues a prompt. name, version: what the transcripts say about where they come from."""

    @property
    def name(self) -> str:
        """For people, such as "vllm"."""

    @property
    def version(self) -> str | None:
        """None where it is not known."""

    def check(self, settings: Settings) -> None:
        """Raise InvalidInput for settings that this engine cannot apply as a transcript declares them."""

    def answer(self, prompt: Sequence[int], settings: Settings, seed: int) -> Answer:
        """Continue a prompt of at least one token.

        Called by several threads at a time if `write_transcripts` is told so. Raises InvalidInput when the
        request or what came back is wrong, Unanswered when nothing came back.
        """


def require_off(engine: str, settings: Settings, reasons: Mapping[str, str]) -> None:
    """Raise InvalidInput unless settings are off which an engine has not, or applies in another way.

    reasons: the names of those settings, and why each cannot be used.
    """
    for name, reason in reasons.items():
        value, off = getattr(settings, name), getattr(NEUTRAL, name)
        if value != off:
            raise InvalidInput(f"{engine}: {name} is {value}, and {reason}; allowed: {off:g}")


def require_fit(prompt: Sequence[int], settings: Settings, vocab_size: int, context: int) -> None:
    """Raise InvalidInput unless a model of so many tokens and positions can continue a prompt."""
    if max(prompt) >= vocab_size:
        raise InvalidInput(
            f"the prompt holds token {max(prompt)}; the model's vocabulary ends at {vocab_size - 1}"
        )
    if (needed := len(prompt) + settings.max_new_tokens) > context:
        raise InvalidInput(
            f"a prompt of {len(prompt)} tokens and {settings.max_new_tokens} new ones need {needed} "
            f"positions; the model has {context}"
        )
