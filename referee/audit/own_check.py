"""Own check of an audit: the target's own tokens must pass before an engine is called biased.

These tokens are drawn one by one, with a forward and a cache for each, and rescored like an
engine's: by the same models in the same precision, in whole padded sequences. If they deviate, the
rescoring is wrong, and nothing that it says about an engine counts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle

import torch
from torch import Generator, Tensor

from referee.audit.arm import measure, token_bar
from referee.audit.comparisons import judge_comparison, limits_of, with_target
from referee.rescoring import MAX_POSITIONS, Scorer, Stretch, check_numbers, penalised
from referee.transcripts import Transcript
from resispec.audit.verdict import MIN_TOKENS, Finding
from resispec.distributions import invert
from resispec.errors import NoVerdict

COPIES = 8
"""The most continuations of a prompt that are drawn together; a greedy row has one."""
NEW_TOKENS = 32
"""The most tokens of a sampled continuation, which never has more than its row."""
LawOfLogits = Callable[[Sequence[Tensor], Tensor], Tensor]
"""A function from models' logits (R, V) and emitted tokens (R, T) int64 to the next law (R, V)."""


def own_check(
    transcripts: Sequence[Transcript], target: Scorer, draft: Scorer | None
) -> Iterator[str]:
    """Notes that no bias was seen in the target's own continuations, sampled and greedy.

    The target continues the prompts of random rows under their settings, by MIN_TOKENS tokens or a
    few more for either kind, or fewer where greedy rows have few texts. Raises NoVerdict if a bias
    is seen, or in sampled rows nothing can be told.
    """
    rows: list[Transcript] = []
    for is_sampled in (True, False):
        if group := [row for row in transcripts if (row.temperature > 0) is is_sampled]:
            with token_bar(desc="own check", total=MIN_TOKENS) as bar:
                rows += _own_rows(group, target, bar.update)
    comparisons = [*with_target("own check", measure(rows, target, draft))]
    limits = limits_of(comparisons)
    for comparison in comparisons:
        judgement = judge_comparison(comparison, *limits)
        tokens = f"{comparison.tokens} tokens that the target drew itself, in {target.precision}"
        has_few_texts = (
            judgement.finding is Finding.UNDECIDED and comparison.smallest_share is not None
        )
        if has_few_texts:
            yield (
                f"the audit's own check, of {tokens}: all of them are greedy, but they are too few "
                "to show a rare error of the rescoring; more prompts would"
            )
            continue
        if judgement.finding is not Finding.NO_BIAS_SEEN:
            raise NoVerdict(
                f"the audit's own check, of {tokens}, finds them {judgement.finding}: "
                f"{judgement.reasons[0]}; rescoring that fails it can accuse no engine, so take "
                "another dtype or device"
            )
        yield (
            f"the audit's own check, of {tokens}: {judgement.verdict}; that the rescoring itself "
            "is wrong by less is not ruled out"
        )


def _own_rows(
    transcripts: Sequence[Transcript], target: Scorer, on_tokens: Callable[[int], object]
) -> Iterator[Transcript]:
    generator, num_tokens = torch.Generator().manual_seed(0), 0
    for row in _to_continue(transcripts, generator):
        length = len(row.output_token_ids)
        copies = 1
        if row.temperature > 0:
            length = min(NEW_TOKENS, length)
            copies = min(COPIES, max(1, MAX_POSITIONS // sum(map(len, row.written))))
        prompts = [row.prompt_token_ids] * copies
        answers = draw(partial(_law, row), prompts, [target], length, generator)
        for tokens, reason in answers:
            yield replace(
                row,
                output_token_ids=tokens,
                finish_reason=reason,
                seed=None,
                # these are of the engine's tokens
                logprobs=None,
                top_logprobs=None,
            )
        count = sum(len(tokens) for tokens, _ in answers)
        num_tokens += count
        on_tokens(count)
        if num_tokens >= MIN_TOKENS:
            return


def _to_continue(transcripts: Sequence[Transcript], generator: Generator) -> Iterator[Transcript]:
    """Rows in a random order, to be continued: sampled ones again and again, greedy ones once.

    Of greedy rows, the longest of each prompt and setting is taken, since the same again has the
    same answer.
    """
    is_sampled = transcripts[0].temperature > 0
    rows = [*transcripts]
    if not is_sampled:
        rows.sort(key=lambda row: len(row.output_token_ids))
        rows = [*{(row.prompt_token_ids, row.setting): row for row in rows}.values()]
    order = [rows[place] for place in torch.randperm(len(rows), generator=generator).tolist()]
    return cycle(order) if is_sampled else iter(order)


def _law(transcript: Transcript, logits: Sequence[Tensor], emitted: Tensor) -> Tensor:
    """The law (R, V) under a row's settings, see `LawOfLogits`."""
    prompt = torch.tensor(transcript.prompt_token_ids, device=emitted.device)
    rows = zip(emitted, logits[0][:, None], strict=True)
    stretches = [Stretch(0, prompt, outputs, len(outputs), scores) for outputs, scores in rows]
    return transcript.law(torch.cat([penalised(stretch, transcript) for stretch in stretches]))


@torch.inference_mode()
def draw(
    law: LawOfLogits,
    prompts: Sequence[Sequence[int]],
    scorers: Sequence[Scorer],
    new: int,
    generator: Generator,
) -> list[tuple[tuple[int, ...], str]]:
    """Draw the tokens after each prompt, with the reason why they end: "stop" or "length".

    They end at the target's first end of sequence, or when there are `new`. prompts: all of one
    length. scorers: the target's, then those of other models whose logits the law takes. generator:
    on the CPU; its one number a token picks the token by the law's cumulative sums. Raises
    NoVerdict if logits are not numbers, see `check_numbers`.
    """
    inputs = torch.tensor(prompts, device=scorers[0].device)
    emitted, caches = inputs[:, :0], [None] * len(scorers)
    for _ in range(new):
        steps = [scorer.after(inputs, cache) for scorer, cache in zip(scorers, caches, strict=True)]
        logits, caches = [scores for scores, _ in steps], [cache for _, cache in steps]
        check_numbers(logits, scorers, "drawing")
        shares = torch.rand(len(inputs), 1, generator=generator, dtype=torch.float64).to(
            inputs.device
        )
        inputs = invert(law(logits, emitted), shares)
        emitted = torch.cat((emitted, inputs), 1)
    answers = []
    for tokens in emitted.tolist():
        ends = [place for place, token in enumerate(tokens, 1) if token in scorers[0].eos_token_ids]
        answers.append((tuple(tokens[: ends[0]]), "stop") if ends else (tuple(tokens), "length"))
    return answers
