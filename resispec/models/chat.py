"""Chat prompts, by the template that a tokenizer of transformers brings."""

from __future__ import annotations

from datetime import date
from typing import Any

from resispec.errors import InvalidInput, first_line

DAY = date(2024, 7, 26)
"""Today, to templates that ask for it: the day that Llama 3's names where it cannot ask."""

# Put before a template, it takes the place of transformers' own strftime_now.
_ON_THAT_DAY = "".join([
    "{% macro strftime_now(format) %}{{ format",
    *(f"|replace('%{code}', '{DAY.strftime('%' + code)}')" for code in "aAbBcdHIjmMpSuUwWxXyY"),
    " }}{% endmacro %}\n",
])  # fmt: skip


def chat_tokens(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a chat in which the user says `text` and the answer is to follow.

    tokenizer: of transformers. Its template writes the special tokens. Templates that write today's date get
    DAY, so that a prompt is the same every day. Raises InvalidInput when the tokenizer has no template, or
    one that cannot be used.
    """
    name = f"the tokenizer {tokenizer.name_or_path}"
    if not tokenizer.chat_template:
        raise InvalidInput(
            f"{name} has no chat template; give prompt_template='a text with {{text}} in it', "
            "or prompt_template=null for bare documents"
        )
    try:
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            chat_template=_ON_THAT_DAY + tokenizer.get_chat_template(),
            add_generation_prompt=True,
            tokenize=False,
        )
    except Exception as error:  # a template may raise anything
        raise InvalidInput(f"the chat template of {name} cannot be used: {first_line(error)}") from error
    return list(tokenizer.encode(chat, add_special_tokens=False, verbose=False))
