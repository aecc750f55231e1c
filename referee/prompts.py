"""Prompts of token ids for every arm: bare, of later turns of chats, and behind a long context."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from referee.engines.chat import TOOL_EVERY, Chat
from referee.inputs import documents, with_tokens
from resispec.data import Prompt
from resispec.errors import InvalidInput

if TYPE_CHECKING:  # imports torch
    from resispec.models import TransformersTokenizer

MORE = 32
"""The number of documents that are read at a time for long contexts."""


class PromptSource:
    """Prompts of a data set or file, as token ids.

    source: see `inputs.documents`. length: the number of tokens to which a text is cut. tokenizer:
    gives the tokenizer of the engine's model and its prompt template; it is called if there is a
    text to encode, and may raise InvalidInput.
    """

    def __init__(
        self,
        source: str,
        length: int,
        tokenizer: Callable[[], tuple[TransformersTokenizer, str | None]],
    ) -> None:
        self.source, self.length, self.tokenizer = source, length, tokenizer
        self._documents: list[tuple[str, Prompt | tuple[int, ...]]] = []

    def prompts(self, number: int, context: int = 0) -> list[tuple[int, ...]]:
        """The first `number` prompts, filled up in front to `context` tokens.

        The documents that follow each in the source fill it up; a longer prompt stays as it is.
        What stands before a prompt depends on the source alone, not on `number`. Raises
        InvalidInput as `inputs.documents`, and if too few documents follow the last prompt.
        """
        self._fetch(number)
        return [
            (*self._before(index, context, len(ids)), *ids)
            for index, ids in enumerate(self._ids(one, self.length) for one in range(number))
        ]

    def chat(self, turns: int, number: int) -> Chat:
        """Chats of some turns that begin with the first `number` prompts.

        In turn t of chat i the user says document i + t - 1, and before every turn that TOOL_EVERY
        divides the result of a tool call is said. Raises InvalidInput if there are too few
        documents.
        """
        self._fetch(number + turns - 1, f"{turns} turns of chats take")
        return Chat(turns, self._turn)

    def _turn(self, index: int, turn: int) -> Sequence[int]:
        _, document = self._documents[index + turn - 1]
        result = tool_result(index, turn) if turn % TOOL_EVERY == 0 else None
        if isinstance(document, Prompt):
            tokenizer, template = self.tokenizer()
            return tokenizer.encode_turn(document.text, self.length, template, result)
        if result is None:
            return document
        tokenizer, _ = self.tokenizer()
        return [*tokenizer.encode_turn(result, len(result), None), *document]

    def _before(self, index: int, context: int, length: int) -> Iterator[int]:
        """The ids that fill a prompt up: the documents that follow it, each in the template."""
        while length < context:
            index += 1
            if index == len(self._documents):
                self._fetch_more(f"a context of {context} tokens takes")
            ids = self._ids(index, context - length)[: context - length]
            length += len(ids)
            yield from ids

    def _ids(self, index: int, length: int) -> tuple[int, ...]:
        """The ids of a document, a text cut to its first `length` tokens."""
        place, document = self._documents[index]
        if not isinstance(document, Prompt):
            return document
        tokenizer, template = self.tokenizer()
        return with_tokens(tokenizer.encode_prompt(document, length, template), place)

    def _fetch_more(self, purpose: str) -> None:
        """Read MORE further documents, or one if there are fewer."""
        number = len(self._documents)
        try:
            self._fetch(number + MORE)
        except InvalidInput:
            self._fetch(number + 1, purpose)

    def _fetch(self, number: int, purpose: str = "") -> None:
        """Read the source up to a number of documents."""
        if number <= len(self._documents):
            return
        try:
            self._documents = documents(self.source, number)
        except InvalidInput as error:
            if not purpose:
                raise
            raise InvalidInput(f"{purpose} further documents: {error}") from error


def tool_result(index: int, turn: int) -> str:
    """The JSON text that a tool returns in a turn of a chat."""
    number = 100 * index + turn
    found = {"id": number, "found": True, "values": [number % 7, number % 11, number % 13]}
    return json.dumps({"name": "lookup", "content": found})
