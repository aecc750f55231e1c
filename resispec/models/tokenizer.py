"""Tokenizers of transformers, and chats written with the tokenizer's own template."""

from collections.abc import Sequence
from datetime import date
from itertools import cycle
from typing import Any

from resispec.data import CHAT, Prompt, check_turns
from resispec.errors import InvalidInput, first_line

DAY = date(2024, 7, 26)
"""The date that templates get as today's; Llama 3's names it if it cannot ask for the date."""

_ANSWER = "(the answer)"  # stands for an answer where only what follows it is wanted
# A macro that replaces transformers' own strftime_now when it is put before a template.
_ON_THAT_DAY = "".join([
    "{% macro strftime_now(format) %}{{ format",
    *(f"|replace('%{code}', '{DAY.strftime('%' + code)}')" for code in "aAbBcdHIjmMpSuUwWxXyY"),
    " }}{% endmacro %}\n",
])  # fmt: skip


class TransformersTokenizer:
    """Text to token ids and back, by a tokenizer of transformers."""

    def __init__(self, tokenizer: Any) -> None:
        self.inner = tokenizer
        self.eos_token_id: int | None = tokenizer.eos_token_id

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the model expects.

        A text that begins with the BOS token, as chat templates write it, gets no second one.
        """
        token_ids = list(self.inner.encode(text, verbose=False))
        bos = self.inner.bos_token
        if bos and text.startswith(bos) and token_ids[:2] == 2 * [self.inner.bos_token_id]:
            # A text of two such tokens keeps both: only the added one goes.
            return token_ids[1:]
        return token_ids

    def encode_prompt(self, prompt: Prompt, num_tokens: int, template: str | None) -> list[int]:
        """Token ids of a document's first tokens in a template; only the document is ever cut.

        template: a text with {text} in the document's place, to which the tokenizer adds the
        special tokens that the model expects; CHAT for the tokenizer's own chat template; None for
        the document alone. Raises InvalidInput as `check_turns` and `encode_chat`.
        """
        check_turns([prompt], template)
        if template is None:
            return self.encode(prompt.text)[:num_tokens]
        beginning = self.beginning(prompt.text, num_tokens)
        if template == CHAT:
            return self.encode_chat(beginning, prompt.earlier)
        return self.encode(template.replace("{text}", beginning))

    def encode_chat(self, text: str, earlier: Sequence[str] = ()) -> list[int]:
        """Token ids of a chat where the user says `text`; the template writes the special tokens.

        earlier: the turns of user and assistant before `text`. Templates that write today's date
        get DAY, so that a prompt is the same every day. Raises InvalidInput when the tokenizer has
        no template, or a template that cannot be used.
        """
        turns = zip(cycle(("user", "assistant")), (*earlier, text), strict=False)
        chat = self._chat([{"role": role, "content": turn} for role, turn in turns])
        return self._pieces(chat)

    def encode_turn(
        self, text: str, num_tokens: int, template: str | None, tool_result: str | None = None
    ) -> list[int]:
        """Token ids that go between two answers: the first tokens of a document, in a template.

        With CHAT they are what the tokenizer's template writes between answers, the end of the
        answer included; the other templates are as in `encode_prompt`, after a line break.
        tool_result: what a tool returned, before the document. It has the role "tool", or is a part
        of the document if the chat template has no such role. Raises InvalidInput as `encode_chat`.
        """
        beginning = self.beginning(text, num_tokens)
        if template != CHAT:
            said = beginning if template is None else template.replace("{text}", beginning)
            parts = [said] if tool_result is None else [tool_result, said]
            return self._pieces("".join(f"\n{part}" for part in parts))
        answered = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _ANSWER}]
        question = {"role": "user", "content": beginning}
        if tool_result is not None:
            tool = {"role": "tool", "content": tool_result}
            try:
                _, _, said = self._chat([*answered, tool, question]).partition(_ANSWER)
            except InvalidInput:
                said = ""
            if tool_result in said:
                return self._pieces(said)
            question = {"role": "user", "content": f"{tool_result}\n{beginning}"}
        _, _, said = self._chat([*answered, question]).partition(_ANSWER)
        if not said:
            raise InvalidInput(
                f"the chat template of the tokenizer {self.inner.name_or_path} leaves out an "
                "earlier answer, so it cannot go on from one; allowed: other models, or one turn"
            )
        return self._pieces(said)

    def _pieces(self, text: str) -> list[int]:
        """Token ids of a text that has its special tokens."""
        return list(self.inner.encode(text, add_special_tokens=False, verbose=False))

    def _chat(self, messages: Sequence[dict[str, str]]) -> str:
        """The text of a chat in the tokenizer's template, up to the answer.

        Raises InvalidInput as `encode_chat`.
        """
        name = f"the tokenizer {self.inner.name_or_path}"
        if not self.inner.chat_template:
            raise InvalidInput(
                f"{name} has no chat template; give prompt_template='a text with {{text}} in it', "
                "or prompt_template=null for bare documents"
            )
        try:
            return str(
                self.inner.apply_chat_template(
                    messages,
                    chat_template=_ON_THAT_DAY + self.inner.get_chat_template(),
                    add_generation_prompt=True,
                    tokenize=False,
                )
            )
        except Exception as error:  # a template may raise anything
            raise InvalidInput(
                f"the chat template of {name} cannot be used: {first_line(error)}"
            ) from error

    def decode(self, token_ids: list[int]) -> str:
        """Text of token ids."""
        return str(self.inner.decode(token_ids))

    def beginning(self, text: str, count: int) -> str:
        """The text of the first `count` tokens of a text, without special tokens.

        A character that the cut splits is left out.
        """
        token_ids = self.inner.encode(text, add_special_tokens=False, verbose=False)[:count]
        return str(self.inner.decode(token_ids, clean_up_tokenization_spaces=False)).rstrip(
            "\ufffd"
        )
