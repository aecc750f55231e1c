"""Rollout files of RL trainers: rows with token ids under the trainers' own names.

Trainers log prompts, answers, masks and the engine's log-probabilities, one sample a line. The
names were read in 2026 in the code of these projects, and TABLE is the only place that knows them.
A row whose keys could mean two things is refused. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from resispec.errors import InvalidInput
from resispec.sampling import SETTINGS

PROMPT, OUTPUT, LOGPROBS = "prompt_token_ids", "output_token_ids", "logprobs"
"""The names in a transcript."""
WHOLE = "prompt and output in one"
OUTPUT_MASK = "mask of the output"
TABLE: Mapping[str, Mapping[str, str]] = {
    PROMPT: {
        PROMPT: "transcripts, NeMo Gym, SkyRL",
        "prompt_ids": "verl's agent loop, TRL, prime-rl",
        "prompts": "verl's batches",
    },
    OUTPUT: {
        OUTPUT: "transcripts",
        "response_ids": "verl's agent loop, SkyRL",
        "responses": "verl's batches",
        "completion_ids": "TRL, prime-rl",
        "completion_token_ids": "Harbor",
        "generation_token_ids": "NeMo Gym",
    },
    WHOLE: {
        "tokens": "slime, miles; with response_length",
        "token_ids": "NeMo RL; with token_loss_mask",
        "sequences": "OpenRLHF; with action_mask",
    },
    OUTPUT_MASK: {
        "response_mask": "verl, SkyRL",
        "completion_mask": "TRL, prime-rl",
        "tool_mask": "TRL",
        "loss_mask": "SkyRL, slime, miles",
        "token_loss_mask": "NeMo RL",
        "action_mask": "OpenRLHF, without the first token",
        "attention_mask": "verl, SkyRL, OpenRLHF",
    },
    LOGPROBS: {
        LOGPROBS: "transcripts, TRL's rollouts",
        "response_logprobs": "verl's agent loop",
        "rollout_log_probs": "verl's batches, slime, miles, OpenRLHF",
        "rollout_logprobs": "SkyRL",
        "completion_logprobs": "prime-rl",
        "sampling_per_token_logps": "TRL's batches",
        "generation_log_probs": "NeMo Gym",
        "generation_logprobs": "NeMo RL",
    },
}
"""For each value of a row, the keys that hold it, and who writes them."""
PROMPT_MASK, LENGTH, TEMPERATURES = "prompt_mask", "response_length", "completion_temperatures"
ATTENTION_MASK = "attention_mask"
LEFT_PADDED = {
    "responses": ATTENTION_MASK,
    "completion_ids": PROMPT_MASK,
    "sequences": ATTENTION_MASK,
}
"""The keys of an output beside which a prompt can be padded on its left, and the mask that says so.

Without it a prompt is taken if it does not begin with one token twice. verl's batches are always
padded, so that they need their mask.
"""
STOP_REASON = "stop_reason"
_READ = {PROMPT_MASK, TEMPERATURES}.union(*TABLE.values())


class Emitted(NamedTuple):
    """Tokens emitted in one go: the fields of a transcript, its other keys, its place."""

    fields: dict[str, Any]
    extra: dict[str, Any]
    place: str


def emitted_rows(
    row: Mapping[str, Any], place: str, settings: Mapping[str, Any]
) -> Iterator[Emitted]:
    """The transcripts in a row of a file, under their own names.

    Tokens whose masks are 0 are cut off behind the last one, as padding; in the middle, as the
    results of tools, they are context of what follows, so a row of several turns gives several.
    settings: those that rows need not say. Raises InvalidInput, one line that begins with `place`,
    if the row lacks tokens or is ambiguous.
    """
    prompt_key, output_key = (_key(row, name, place) for name in (PROMPT, OUTPUT))
    whole_key = None if output_key else _key(row, WHOLE, place)
    if whole_key is not None and prompt_key is not None:
        _check_beside(row, whole_key, prompt_key, place)
    is_own = output_key == OUTPUT
    if whole_key is not None:
        prompt, output, logprobs, mask = _of_whole(row, whole_key, place)
    elif prompt_key is None or output_key is None:
        missing = PROMPT if prompt_key is None else OUTPUT
        raise InvalidInput(
            f"{place}: {missing} is missing; the ids that the engine used are needed, since "
            "encoding text again does not give them back"
        )
    elif not isinstance(row[prompt_key], list) or not isinstance(row[output_key], list):
        prompt, output, logprobs, mask = row[prompt_key], row[output_key], None, None
    else:
        prompt, output = row[prompt_key], row[output_key]
        mask = _mask(row, len(prompt), len(output), place)
        logprobs = _logprobs(row, len(prompt), len(output), place)
        prompt = _without_padding(prompt, len(output), row, place, output_key)
    values = _settings(row, settings, place, is_own)
    extra = {
        name: value
        for name, value in row.items()
        if name not in (PROMPT, OUTPUT, *SETTINGS)
        and not (name in _READ and isinstance(value, list))
    }
    reason = row.get(STOP_REASON)
    if reason in ("stop", "length") and row.get("finish_reason") is None:
        extra["finish_reason"] = reason
    if mask is None:
        fields = values | {PROMPT: prompt, OUTPUT: output}
        yield Emitted(fields | _given(LOGPROBS, logprobs), extra, place)
        return
    if not any(mask):
        raise InvalidInput(
            f"{place}: the masks leave no token; a trainer masks whole answers out, as too long "
            "ones, and rows that are left out by what was drawn bias an audit: log the real ones"
        )
    turns = _turns(mask)
    for number, (first, end) in enumerate(turns, 1):
        fields = values | {PROMPT: [*prompt, *output[:first]], OUTPUT: output[first:end]}
        part = None if logprobs is None else logprobs[first:end]
        where = place if len(turns) == 1 else f"{place}, turn {number}"
        others = extra if number == len(turns) else {**extra, "finish_reason": None}
        yield Emitted(fields | _given(LOGPROBS, part), others, where)


def _turns(mask: Sequence[bool]) -> list[tuple[int, int]]:
    """The first place and the place behind the last of each stretch that is true."""
    turns = []
    for is_emitted, places in groupby(range(len(mask)), key=mask.__getitem__):
        stretch = list(places)
        if is_emitted:
            turns.append((stretch[0], stretch[-1] + 1))
    return turns


def _given(name: str, value: Any) -> dict[str, Any]:
    return {} if value is None else {name: value}


def _check_beside(row: Mapping[str, Any], name: str, prompt_key: str, place: str) -> None:
    """Raise InvalidInput if prompt and output in one have a prompt beside them and do not begin so.

    Then they may be the output alone. A list of texts is no such prompt.
    """
    prompt = row[prompt_key]
    if isinstance(prompt, list):
        is_text = all(isinstance(one, str) for one in prompt)
        if is_text or row[name][: len(prompt)] == prompt:
            return
    raise InvalidInput(
        f"{place}: {name} beside {prompt_key}, with which it does not begin: it can be the output, "
        f"or prompt and output in one; allowed: the output as {OUTPUT}, or no {prompt_key}"
    )


def _key(row: Mapping[str, Any], what: str, place: str) -> str | None:
    """The key of a row that holds a list of this, or None.

    Texts under such a name do not count, except under a transcript's own.
    """
    keys = [
        name
        for name in TABLE[what]
        if isinstance(row.get(name), list) or (name in (PROMPT, OUTPUT) and name in row)
    ]
    keys = [name for name in keys if row[name] is not None]
    if any(row[name] != row[keys[0]] for name in keys[1:]):
        raise InvalidInput(
            f"{place}: {' and '.join(keys)} differ, and each can be the {what}; leave one of them"
        )
    return keys[0] if keys else None


def _mask(row: Mapping[str, Any], prompt: int, output: int, place: str) -> list[bool] | None:
    """Whether each token of the output was emitted, by all masks of the row; None without one."""
    masks = []
    for name in TABLE[OUTPUT_MASK]:
        if not isinstance(values := row.get(name), list):
            continue
        if any(value not in (0, 1) for value in values):
            raise InvalidInput(f"{place}: {name} has other values than 0 and 1")
        if name == ATTENTION_MASK and len(values) == prompt == output and not all(values):
            raise InvalidInput(
                f"{place}: {name} has {len(values)} values, as many as the prompt has tokens and "
                "the output, so which of them it masks is not known; allowed: one value for each "
                "token of both"
            )
        if len(values) == prompt + output:
            values = values[prompt:]
        if len(values) != output:
            raise InvalidInput(
                f"{place}: {name} has {len(values)} values; allowed: one for each of the {output} "
                f"tokens of the output, or of these and the {prompt} of the prompt"
            )
        masks.append(values)
    return [all(values) for values in zip(*masks, strict=True)] if masks else None


def _logprobs(row: Mapping[str, Any], prompt: int, output: int, place: str) -> list[Any] | None:
    """The engine's log-probability of each token of the output, or None."""
    if (name := _key(row, LOGPROBS, place)) is None:
        return None
    values = row[name]
    if len(values) == prompt + output:
        values = values[prompt:]
    if len(values) != output:
        raise InvalidInput(
            f"{place}: {name} has {len(values)} values; allowed: one for each of the {output} "
            "tokens of the output"
        )
    return list(values)


def _of_whole(
    row: Mapping[str, Any], name: str, place: str
) -> tuple[list[Any], list[Any], list[Any] | None, list[bool] | None]:
    """Prompt, output, log-probabilities and mask of a row that has the two in one list."""
    tokens, length = row[name], row.get(LENGTH)
    if type(length) is int and 0 < length < len(tokens):
        prompt = len(tokens) - length
        logprobs = _logprobs(row, prompt, length, place)
        return tokens[:prompt], tokens[prompt:], logprobs, _mask(row, prompt, length, place)
    # OpenRLHF's masks and log-probabilities begin at the second token
    values = {
        key: [0, *row[key]]
        for key in (*TABLE[OUTPUT_MASK], *TABLE[LOGPROBS])
        if isinstance(row.get(key), list) and len(row[key]) == len(tokens) - 1
    }
    filled = {**row, **values}
    mask = _mask(filled, 0, len(tokens), place)
    is_split = any(isinstance(row.get(key), list) for key in ("token_loss_mask", "action_mask"))
    if mask is None or not is_split or not any(mask) or mask[0]:
        raise InvalidInput(
            f"{place}: {name} is prompt and output in one, and nothing says where the output "
            f"begins; allowed: {LENGTH}, token_loss_mask or action_mask, which begin with a prompt"
        )
    first = mask.index(True)
    logprobs = _logprobs(filled, 0, len(tokens), place)
    return (
        _without_padding(tokens[:first], len(tokens) - first, row, place, name),
        tokens[first:],
        None if logprobs is None else logprobs[first:],
        mask[first:],
    )


def _without_padding(
    prompt: list[Any], output: int, row: Mapping[str, Any], place: str, output_key: str
) -> list[Any]:
    """A prompt without the padding on its left.

    output: the number of tokens behind it in `attention_mask`. A `prompt_mask` of zeros alone says
    that nothing there is trained on, as prime-rl writes it. output_key: the key of the output, see
    LEFT_PADDED. Raises InvalidInput if no mask says where a prompt begins that may be padded.
    """
    masks = {}
    if isinstance(mask := row.get(PROMPT_MASK), list):
        masks[PROMPT_MASK] = mask if any(mask) else [1] * len(prompt)
    attention = row.get(ATTENTION_MASK)
    if isinstance(attention, list) and len(attention) == len(prompt) + output:
        masks[ATTENTION_MASK] = attention[: len(prompt)]
    is_doubtful = output_key == "responses" or prompt[:1] == prompt[1:2]
    if not masks and is_doubtful and (needed := LEFT_PADDED.get(output_key)):
        raise InvalidInput(
            f"{place}: a prompt beside {output_key} can begin with padding, and no mask says "
            f"where this one begins; allowed: {needed}, with a 0 for each token of padding, or "
            f"the ids without padding as {PROMPT} and {OUTPUT}"
        )
    most = 0
    for name, mask in masks.items():
        padding = next((number for number, value in enumerate(mask) if value), 0)
        if len(mask) != len(prompt) or not all(mask[padding:]):
            raise InvalidInput(
                f"{place}: {name} is not one 0 or 1 for each token of the prompt, the 0 of "
                "padding first; what it says is not known"
            )
        most = max(most, padding)
    return prompt[most:]


def _settings(
    row: Mapping[str, Any], settings: Mapping[str, Any], place: str, is_own: bool
) -> dict[str, Any]:
    """The settings of a row, with those that it does not say.

    is_own: whether the row is a transcript, for which absent settings are off.
    """
    values = {name: row[name] for name in SETTINGS if row.get(name) is not None}
    if values.get("top_k") == -1:
        values["top_k"] = 0
    if temperatures := row.get(TEMPERATURES):
        if not isinstance(temperatures, list) or len({*map(str, temperatures)}) > 1:
            raise InvalidInput(
                f"{place}: {TEMPERATURES} differ within the row; allowed: one temperature a row"
            )
        if values.setdefault("temperature", temperatures[0]) != temperatures[0]:
            raise InvalidInput(f"{place}: temperature and {TEMPERATURES} differ; leave one of them")
    for name, value in settings.items():
        if values.setdefault(name, value) != value:
            raise InvalidInput(
                f"{place}: {name} is {ascii(values[name])[:60]} and the settings given say "
                f"{value!r}; leave it out there, since rows say their own"
            )
    if not is_own and "temperature" not in values:
        raise InvalidInput(
            f"{place}: the row does not say its temperature, as a trainer's does not; give "
            "--settings temperature=1, with every other setting of the rollouts"
        )
    return values
