"""Tokenizers of transformers, and chats written with the tokenizer's own template."""

from collections.abc import Sequence
from datetime import date
from itertools import cycle
from typing import Any

from resispec.data import CHAT, Prompt, check_turns
from resispec.errors import InvalidInput, first_line

DAY = date(2024, 7, 26)
"""The date that templates get as today's: Llama 3's template names it
where it cannot ask for the date.
"""

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
        """Token ids of a document's first tokens, in a template;
        template and earlier turns are never cut.

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
        """Token ids of a chat in which the user says `text`;
        the template writes the special tokens.

        earlier: the turns of user and assistant before `text`. Templates that write today's date
        get DAY, so that a prompt is the same every day. Raises InvalidInput when the tokenizer has
        no template, or a template that cannot be used.
        """
        name = f"the tokenizer {self.inner.name_or_path}"
        if not self.inner.chat_template:
            raise InvalidInput(
                f"{name} has no chat template; give prompt_template='a text with {{text}} in it', "
                "or prompt_template=null for bare documents"
            )
        try:
            chat = self.inner.apply_chat_template(
                [
                    {"role": role, "content": turn}
                    for role, turn in zip(
                        cycle(("user", "assistant")), (*earlier, text), strict=False
                    )
                ],
                chat_template=_ON_THAT_DAY + self.inner.get_chat_template(),
                add_generation_prompt=True,
                tokenize=False,
            )
        except Exception as error:  # a template may raise anything
            raise InvalidInput(
                f"the chat template of {name} cannot be used: {first_line(error)}"
            ) from error
        return list(self.inner.encode(chat, add_special_tokens=False, verbose=False))

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
