"""Chats of several turns: the ids that the user says between two answers of an engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from referee.transcripts import Transcript

TOOL_EVERY = 3
"""Before every third turn the result of a tool call is put into the conversation."""
TURN_SEEDS = 1_000_000
"""The seeds from one turn of a chat to the next, so that no two rows of an arm share one."""


@dataclass(frozen=True)
class Chat:
    """Turns of chats with an engine.

    turns: the number of the user's turns in each chat, at least 1. following: a function from the
    number of a chat, from 0, and of a turn, from 2, to the ids that are said between the answer to
    the turn before and that to this one.
    """

    turns: int
    following: Callable[[int, int], Sequence[int]]

    def prompt(self, index: int, last: Transcript) -> tuple[int, ...]:
        """The ids of the whole conversation up to the turn after `last`, a row of chat `index`.

        They begin with every id of that row, so an engine's prefix cache holds them. An end of turn
        that the answer has written itself is not said twice.
        """
        assert last.turn is not None
        said = tuple(self.following(index, last.turn + 1))
        is_ended = last.finish_reason == "stop" and said[:1] == last.output_token_ids[-1:]
        return sum(last.written, ()) + said[is_ended:]
