"""A target and its draft: an independent model, a drafter on the target's features, or none."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from resispec.errors import InvalidInput
from resispec.models.base import Model
from resispec.models.eagle import EagleModel
from resispec.models.module_state import ModuleState
from resispec.models.tokenizer import TransformersTokenizer


@dataclass(frozen=True)
class Pair:
    """A target, its draft (or None) and the tokenizer that they share (None if unknown)."""

    target: Model
    draft: Model | EagleModel | None
    tokenizer: TransformersTokenizer | None

    def __post_init__(self) -> None:
        if self.draft is not None and self.draft.vocab_size != self.target.vocab_size:
            raise InvalidInput(
                "target and draft must share one vocabulary; "
                f"found {self.target.vocab_size} and {self.draft.vocab_size} tokens"
            )

    def commits(self) -> dict[str, str | None]:
        """The hub commits of target and draft, by role; None for a model from elsewhere."""
        return {role: getattr(getattr(self, role), "commit", None) for role in ("target", "draft")}

    def ways(self) -> dict[str, Any]:
        """The way of each model's forwards, by role, see `TransformersModel.ways`.

        It is None for a model that has but one.
        """
        models = {role: getattr(self, role) for role in ("target", "draft")}
        return {
            role: model.ways() if hasattr(model, "ways") else None for role, model in models.items()
        }

    def modules(self) -> tuple[Any, ...]:
        """The modules of torch behind target and draft; None for a model that has none."""
        models: tuple[Any, ...] = self.target, self.draft
        return tuple(getattr(model, "module", None) for model in models)

    def states(self) -> tuple[ModuleState | None, ...]:
        """The states of the modules of target and draft, see `TransformersModel.state`.

        A state is None for a model that has none.
        """
        models: tuple[Any, ...] = self.target, self.draft
        return tuple(model.state() if hasattr(model, "state") else None for model in models)

    @property
    def end_token_ids(self) -> frozenset[int]:
        """The tokens that end a sequence, by the target's files or else by the tokenizer."""
        ids = getattr(self.target, "end_token_ids", ())
        return frozenset(ids) or frozenset({getattr(self.tokenizer, "eos_token_id", None)} - {None})

    def draft_model(self) -> Model:
        """The independent draft model. Raises InvalidInput when the pair has none."""
        if self.draft is None:
            raise InvalidInput("a draft model is needed and the pair has none; give pair.draft")
        if isinstance(self.draft, EagleModel):
            raise InvalidInput(
                "a draft model is needed and this pair's draft is an EAGLE drafter; choose another "
                "pair"
            )
        return self.draft

    def eagle_model(self) -> EagleModel:
        """The drafter on the target's features. Raises InvalidInput when the pair has none."""
        if not isinstance(self.draft, EagleModel):
            kind = "no draft" if self.draft is None else "an independent draft model"
            raise InvalidInput(
                f"an EAGLE drafter is needed and this pair has {kind}; "
                "choose a pair with one, like embedded_eagle"
            )
        return self.draft

    def eagle_head(self) -> Callable[[Tensor], Tensor]:
        """The head from EAGLE features (K, H) to logits (K, V): the drafter's own, or the target's.

        Raises InvalidInput as `eagle_model`.
        """
        return self.eagle_model().head or self.target.head
