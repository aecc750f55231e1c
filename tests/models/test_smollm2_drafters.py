"""SmolLM2's drafters on a toy: the target's answers, what is learnt from them, and what drafts."""

import dataclasses
import json
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file

from recipes import __main__ as command
from recipes import cards, smollm2
from recipes.smollm2 import answers, pairs, recipe, rows
from recipes.smollm2.questions import QuestionsRecipe
from recipes.smollm2.recipe import (
    DISTILLATION,
    AnswersRecipe,
    CommittedAnswers,
    CommittedRecipe,
    LearntRecipe,
    TargetRecipe,
)
from recipes.training.recipe import DistillationRecipe, Eagle3Recipe
from resispec import kept
from resispec.errors import InvalidInput
from resispec.files import read_sealed, sealed, write_json
from resispec.kept import MANIFEST
from resispec.models import features_of, load_eagle_pair, load_pair
from tests.toys import save_tiny_pair

TEXTS = [letter * count for count in range(1, 4) for letter in "abcdefgh"]
LEARNING = {"steps": 3, "batch_size": 4, "learning_rate": 1e-2, "warmup_steps": 1}


@dataclass(frozen=True)
class ToyTarget(TargetRecipe):
    def make(self, folder):
        save_tiny_pair(folder, ("",), layers=4)
        (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}abc ")
        return {}


@dataclass(frozen=True)
class ToyQuestions(QuestionsRecipe):
    def key(self):
        return "0" * 16

    def make(self, folder):
        lines = [json.dumps({"id": text, "text": text}) + "\n" for text in TEXTS]
        (folder / "training.jsonl").write_text("".join(lines))
        return {}


TARGET = ToyTarget()
ANSWERS = AnswersRecipe(TARGET, ToyQuestions(), count=20, max_new_tokens=6, batch_size=4)


class ToyCommittedAnswers(CommittedAnswers):
    written = ANSWERS


DRAFTERS = {
    "distilled": LearntRecipe(DistillationRecipe((0, 3), 24, **LEARNING), ANSWERS),
    "committed": CommittedRecipe("committed", TARGET),
    "eagle3": LearntRecipe(Eagle3Recipe(24, depth=2, **LEARNING), ANSWERS),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def toy(cache, monkeypatch):
    monkeypatch.setenv("RESISPEC_CACHE", str(cache))
    monkeypatch.setattr(recipe, "TARGET", TARGET)
    for module in (recipe, pairs):
        monkeypatch.setattr(module, "DRAFTERS", DRAFTERS)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """The folder that a draft is published in."""
    for module in (recipe, rows, answers):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    learnt = {"committed": DRAFTERS["distilled"], "committed_eagle3": DRAFTERS["eagle3"]}
    for module in (rows, command):
        monkeypatch.setattr(module, "PUBLISHED", learnt)
    return tmp_path / "committed"


def test_answers_are_the_targets_own_and_end_where_it_ends_them():
    """The first law that is learnt is that of an answer's first token."""
    sequences, pair = answers.read_answers(ANSWERS.folder()), load_pair(str(TARGET.folder()), None)
    [end], lengths = pair.end_token_ids, set()
    for tokens, first in zip(sequences.tokens, sequences.learnt_from, strict=True):
        question, answer = tokens[: first + 1], tokens[first + 1 :]
        assert pair.tokenizer.decode(question).endswith("abc ")
        assert end not in answer[:-1] and (len(answer) == 6 or answer[-1] == end)
        lengths.add(len(answer))
    assert len(sequences.tokens) == 20 and len(lengths) > 1


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_answers_follow_the_law_at_their_temperature(temperature):
    pair = load_pair(str(TARGET.folder()), None)
    questions = [pair.tokenizer.encode_chat("a"), pair.tokenizer.encode_chat("hhhh gh")] * 400
    drawn = answers.answered(pair, questions, temperature, 1, seed=0)
    for place in (0, 1):  # beside a longer question, and without padding
        logits = pair.target.module(torch.tensor([questions[place]])).logits[0, -1]
        law = (logits / temperature).softmax(-1)
        counts = torch.bincount(torch.cat(drawn[place::2]), minlength=64)
        assert (counts / 400 - law).abs().max() < 4 * (0.25 / 400) ** 0.5


def test_answers_that_were_stopped_go_on_behind_their_last_batch(tmp_path, monkeypatch):
    whole = load_file(ANSWERS.folder() / answers.ANSWERS)
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path / "again"))
    made, asked = answers.answered, []

    def stopped_at_the_third(*arguments):
        asked.append(arguments)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return made(*arguments)

    monkeypatch.setattr(answers, "answered", stopped_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        ANSWERS.folder()
    again = load_file(ANSWERS.folder() / answers.ANSWERS)
    assert len(asked) == 3 + 3  # five batches, the third of them twice
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.items())


def test_answers_of_the_repository_are_those_that_were_written(published, tmp_path, monkeypatch):
    packed = ToyCommittedAnswers("committed", TARGET)
    answers.publish_answers(packed)
    with monkeypatch.context() as elsewhere:  # where they were never written, nothing writes them
        elsewhere.setenv("RESISPEC_CACHE", str(tmp_path / "cache"))
        elsewhere.setattr(answers, "make_answers", None)
        assert (packed.folder() / answers.ANSWERS).is_file()
    learnt, written = (answers.read_answers(one.folder()) for one in (packed, ANSWERS))
    assert learnt.tokens == written.tokens and learnt.learnt_from == written.learnt_from
    assert "20 answers of" in (published / "README.md").read_text()
    assert packed.dtype == ANSWERS.dtype
    first = packed.key()
    with (published / answers.PACKED).open("r+b") as file:
        file.write(b"0")
    with pytest.raises(InvalidInput, match="a part of the repository, is damaged: answers.safe"):
        answers.unpack_answers(packed, published)
    write_json(published / MANIFEST, sealed({"files": {}}))
    assert packed.key() != first


def test_drafters_are_trained_at_first_use_and_draft_their_tokens_alone():
    eagle, pair, alone = (
        smollm2.load_eagle_pair(),
        smollm2.load_pair("distilled"),
        smollm2.load_pair(),
    )
    assert eagle.eagle_model().num_draftable == 24
    assert pair.target.vocab_size == 64 and alone.draft is None
    known = load_file(DRAFTERS["distilled"].folder() / "token_ids.safetensors")[
        "token_ids"
    ].tolist()
    [logits] = pair.draft.head(features_of(pair.draft, [4]))
    assert len(known) == 24 and logits.isfinite().nonzero().flatten().tolist() == sorted(known)


def test_a_distilled_draft_is_a_model_of_transformers_with_the_targets_rows_where_it_has_none():
    folder = DRAFTERS["distilled"].folder()
    whole, target = (
        load_pair(str(place), None).target.module for place in (folder, TARGET.folder())
    )
    ids = load_file(folder / "token_ids.safetensors")["token_ids"]
    others = torch.ones(64, dtype=torch.bool).index_fill(0, ids, False)
    rows, own = whole.lm_head.weight, target.lm_head.weight
    assert whole.config.num_hidden_layers == 2
    assert (
        torch.equal(rows[others], own[others])
        and not torch.isclose(rows[ids], own[ids]).all(-1).any()
    )
    assert torch.equal(whole.model.embed_tokens.weight, target.model.embed_tokens.weight)


def test_what_comes_with_the_repository_is_of_its_recipe_and_whole():
    """A recipe that is edited without training anew would be told beside another draft."""
    written = recipe.ANSWERS_6144.written
    for name, made in {recipe.ANSWERS_6144.name: written, **recipe.PUBLISHED}.items():
        told = read_sealed(recipe.ROOT / name / MANIFEST)
        assert told["recipe"] == cards.settings(made)
        if name in recipe.PUBLISHED:
            assert told["answers"] == cards.settings(made.answers)
        assert kept.damage(recipe.ROOT / name) is None
    names = {recipe.ANSWERS_6144.name, *recipe.PUBLISHED}
    assert {path.name for path in recipe.ROOT.iterdir()} == names
    sizes = [path.stat().st_size for path in recipe.ROOT.rglob("*")]
    assert sum(sizes) <= 25e6


def test_a_draft_out_of_its_rows_drafts_as_the_trained_one_but_for_rounding(published):
    rows.publish("committed")
    assert smollm2.pair_fingerprint("committed").startswith(TARGET.key())
    drafts = [smollm2.load_pair(name).draft for name in ("distilled", "committed")]
    logits = [draft.head(features_of(draft, [4, 7, 9])) for draft in drafts]
    is_known = logits[0].isfinite()
    assert torch.equal(is_known, logits[1].isfinite()) and is_known[0].sum() == 24
    assert 0 < (logits[1] - logits[0])[is_known].abs().max() < 0.1
    embeddings = [draft.module.get_input_embeddings().weight for draft in drafts]
    assert torch.equal(*embeddings)
    card = " ".join((published / "README.md").read_text().split())
    assert "python -m recipes smollm2 committed --publish" in card and "count = 20" in card


def test_an_eagle_drafter_out_of_its_rows_is_the_trained_one_but_for_rounding(published):
    rows.publish("committed_eagle3")
    folders = DRAFTERS["eagle3"].folder(), CommittedRecipe("committed_eagle3", TARGET).folder()
    trained, again = (
        load_eagle_pair(str(TARGET.folder()), str(folder)).eagle_model().module.state_dict()
        for folder in folders
    )
    matrices = [name for name, tensor in trained.items() if tensor.ndim == 2]
    for name, tensor in trained.items():
        is_rounded = name in matrices and name != "embed_tokens.weight"
        assert torch.equal(again[name], tensor) != is_rounded, name
        assert (again[name].float() - tensor.float()).abs().max() < 0.01
    card = (published.parent / "committed_eagle3" / "README.md").read_text()
    assert "An EAGLE-3 drafter of SmolLM2" in card


def test_rows_that_are_damaged_are_refused_and_others_are_another_draft(published):
    rows.publish("committed")
    first = smollm2.pair_fingerprint("committed")
    told = (published / MANIFEST).read_text()
    with (published / rows.ROWS).open("r+b") as file:
        file.write(b"0")
    recipe_of_rows = CommittedRecipe("committed", dataclasses.replace(TARGET))
    with pytest.raises(InvalidInput, match="a part of the repository, is damaged: rows.safetens"):
        rows.make_draft(recipe_of_rows, published)
    write_json(published / MANIFEST, sealed({"files": {}, "seconds": 2}))
    assert (published / MANIFEST).read_text() != told
    assert smollm2.pair_fingerprint("committed") != first


def test_more_late_steps_than_steps_are_refused():
    with pytest.raises(InvalidInput, match="overlap_steps is 3; allowed: at most the 2 steps"):
        dataclasses.replace(DISTILLATION, steps=2, overlap_steps=3)


def test_another_pair_than_was_planned_and_unknown_drafts_are_refused():
    with pytest.raises(
        InvalidInput, match="unknown SmolLM2 draft 'eagle3'; allowed: distilled, committed, or none"
    ):
        smollm2.load_pair("eagle3")
    with pytest.raises(InvalidInput, match="the SmolLM2 models abc were asked for"):
        smollm2.load_pair("distilled", fingerprint="abc")


def test_the_command_makes_what_is_named_and_says_what_it_gave(monkeypatch, capsys, published):
    toys = {"target": TARGET, "answers": ANSWERS, **DRAFTERS}
    monkeypatch.setattr(command, "FAMILIES", {"smollm2": toys})
    assert command.main(["smollm2", "distilled"]) == 0
    line = capsys.readouterr().out
    assert (
        line.startswith(f"distilled: {DRAFTERS['distilled'].folder()} (") and "overlap 0." in line
    )
    assert "seconds " in line
    assert command.main(["smollm2", "committed", "--publish"]) == 0
    assert capsys.readouterr().out.startswith("committed: ") and published.is_dir()
    assert command.main(["smollm2"]) == 0
    assert [row.partition(":")[0] for row in capsys.readouterr().out.splitlines()] == list(toys)
    assert command.main(["smollm2", "distilled", "--publish"]) == 1
    assert (
        "--publish has distilled; allowed: answers_6144, committed, committed_eagle3"
        in capsys.readouterr().err
    )
    assert command.main(["smollm2", "tiny"]) == 1
    assert "unknown part of smollm2 'tiny'; allowed: target, answers" in capsys.readouterr().err
    assert command.main(["smollm2", "--publish"]) == 1
