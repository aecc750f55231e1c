"""The target's own answers to the training questions, which its drafters learn from.

Half of them are drawn at temperature 1 and half at 0.6, since drafts are verified at both.
"""

import lzma
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from recipes import cards
from recipes.smollm2.questions import TRAINING
from recipes.smollm2.recipe import ROOT, AnswersRecipe, CommittedAnswers
from recipes.training.drafters import Sequences
from resispec import kept
from resispec.data import JsonlDataset
from resispec.files import read_sealed, replacing
from resispec.kept import CHECKPOINT, MANIFEST
from resispec.models import Pair, load_pair
from resispec.models.causal import left_padded
from resispec.progress import progress_bar

ANSWERS = "answers.safetensors"
PACKED = ANSWERS + ".xz"
PARAGRAPHS = (
    "Answers of SmolLM2-135M-Instruct to training questions, as ids of tokens, each behind its "
    "question. They are xz-compressed safetensors; ids take sixteen bits.",
    "Made for resispec by `python -m recipes smollm2 {name} --publish` at commit {commit}, in "
    "{seconds:g} seconds on two cores: {answers} answers of {tokens} tokens, with {recipe}.",
    "The questions are about the language reference and the standard library of Python (PSF-2.0), "
    "numpy and pandas (BSD-3-Clause). SmolLM2 is Apache-2.0.",
)
"""The card of answers in the repository, below its title."""


def make_answers(recipe: AnswersRecipe, folder: Path) -> dict[str, Any]:
    """Write the answers; return facts for the manifest.

    A run that was stopped goes on after its last complete batch; the checkpoint keeps all answers
    so far.
    """
    pair = load_pair(str(recipe.target.folder()), None, dtype=recipe.dtype)
    path = recipe.questions.folder() / f"{TRAINING}.jsonl"
    texts = [prompt.text for prompt in JsonlDataset(str(path)).prompts(recipe.count)]
    tokenizer: Any = pair.tokenizer
    # Questions of similar lengths share a batch, since a batch is as wide as its longest question.
    questions = sorted((tokenizer.encode_chat(text) for text in texts), key=len)
    checkpoint = folder / CHECKPOINT
    answers: list[Tensor] = torch.load(checkpoint, weights_only=True) if checkpoint.exists() else []
    options = {"desc": "SmolLM2's answers", "unit": "answer"}
    with progress_bar(total=len(questions), initial=len(answers), **options) as bar:
        for first in range(len(answers), len(questions), recipe.batch_size):
            batch = questions[first : first + recipe.batch_size]
            temperature = recipe.temperatures[first // recipe.batch_size % len(recipe.temperatures)]
            answers += answered(
                pair, batch, temperature, recipe.max_new_tokens, recipe.seed + first
            )
            with replacing(checkpoint) as partial:
                torch.save(answers, partial)
            bar.update(len(batch))
    pairs = zip(questions, answers, strict=True)
    tokens = [torch.tensor(question + answer.tolist()) for question, answer in pairs]
    content = {
        "tokens": torch.cat(tokens).int(),
        "lengths": torch.tensor(list(map(len, tokens))),
        "questions": torch.tensor(list(map(len, questions))),
    }
    save_file(content, folder / ANSWERS)
    return {"answers": len(answers), "tokens": sum(map(len, answers))}


@torch.inference_mode()
def answered(
    pair: Pair, questions: list[list[int]], temperature: float, max_new_tokens: int, seed: int
) -> list[Tensor]:
    """The target's answer (n,) int64 to each question, unfiltered; the limit may cut it off."""
    model: Any = pair.target
    [end, *_] = pair.end_token_ids
    tokens, mask = left_padded(questions, end)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        outputs = model.module.generate(
            input_ids=tokens,
            attention_mask=mask,
            do_sample=True,
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(pair.end_token_ids),
            pad_token_id=end,
        )[:, tokens.shape[1] :]
    ends = torch.isin(outputs, torch.tensor(list(pair.end_token_ids)))
    lengths = [int(row.nonzero()[0]) + 1 if row.any() else len(row) for row in ends]
    return [row[:length].clone() for row, length in zip(outputs, lengths, strict=True)]


def publish_answers(recipe: CommittedAnswers) -> None:
    """Replace the repository's answers by their recipe's, written first if the cache lacks them."""
    source, folder = recipe.written.folder(), ROOT / recipe.name
    content = load_file(source / ANSWERS)
    content["tokens"] = content["tokens"].to(torch.uint16)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / PACKED).write_bytes(lzma.compress(save(content)))
    facts = read_sealed(source / MANIFEST)
    cards.write(folder, recipe.written, facts, PARAGRAPHS, name=recipe.name)


def unpack_answers(recipe: CommittedAnswers, folder: Path) -> dict[str, Any]:
    """Write answers of the repository as `make_answers` does; return facts for the manifest.

    Raises InvalidInput when the committed file is damaged.
    """
    source = kept.whole(ROOT / recipe.name, "the repository")
    content = load(lzma.decompress((source / PACKED).read_bytes()))
    save_file({**content, "tokens": content["tokens"].int()}, folder / ANSWERS)
    return {"answers": len(content["lengths"])}


def read_answers(folder: Path) -> Sequences:
    """Questions with answers, of equal weights; only laws of the answers' tokens are learnt."""
    content = load_file(folder / ANSWERS)
    tokens = [part.tolist() for part in content["tokens"].long().split(content["lengths"].tolist())]
    return Sequences(
        tokens, torch.ones(len(tokens)), [count - 1 for count in content["questions"].tolist()]
    )
