"""The contract of a kind of draws, and the known kinds by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import torch
from torch import Generator, Tensor

from resispec.errors import InvalidInput, NotDefined
from resispec.trees import MAX_NODES

_KNOWN: dict[str, Draws] = {}


class _Kinds(type):
    """Makes the class `Draws` a collection of the known kinds: `Draws("iid")`,
    `Draws.IID`, `list(Draws)`.
    """

    def __call__(cls, *fields: Any, **options: Any) -> Any:
        """The known kind with a name, or an object of a subclass:
        the known one if it takes no fields.
        """
        if cls is not Draws:
            kind = _KNOWN.get(getattr(cls, "name", ""))
            is_known = type(kind) is cls and not fields and not options
            return kind if is_known else super().__call__(*fields, **options)
        [name] = fields
        if isinstance(name, Draws):
            return name
        if not isinstance(name, str) or name not in _KNOWN:
            raise InvalidInput(f"unknown draws {name!r}; known: {', '.join(_KNOWN)}")
        return _KNOWN[name]

    def __iter__(cls) -> Iterator[Draws]:
        return iter(_KNOWN.values())

    def __getattr__(cls, name: str) -> Draws:
        if name.isupper() and name.lower() in _KNOWN:
            return _KNOWN[name.lower()]
        raise AttributeError(f"{cls.__name__} has no attribute {name!r}")


class Draws(str, metaclass=_Kinds):
    """The way in which the siblings under one parent are chosen from the draft's law q.

    A kind is a string, its name, so rows, messages and JSON can hold it. `Draws("iid")` and
    `Draws.IID` are the known kind of that name, `list(Draws)` holds all known kinds; `Draws(kind)`
    returns a kind unchanged. Raises InvalidInput for an unknown name. A kind of your own is a
    subclass with a `name`, `draw` and `laws`; everything else has safe defaults.

    are_random: whether anything is drawn; otherwise the siblings are determined by q.
    are_independent: whether siblings are independent draws from q: n tuples of B are one long draw
    of n B. are_distinct: whether no token is drawn twice, so that there are at most V siblings.
    Rules rely on this. can_be_cut: whether the first siblings of many follow the law of fewer
    siblings.
    most_siblings: the most children of a node for which the draws are defined.
    """

    name: ClassVar[str]
    are_random: ClassVar[bool] = True
    are_independent: ClassVar[bool] = False
    are_distinct: ClassVar[bool] = False
    can_be_cut: ClassVar[bool] = True
    most_siblings: ClassVar[int] = MAX_NODES

    def __new__(cls, *_: Any, **__: Any) -> Draws:
        """Make an object of a subclass; as a string it is its name."""
        return super().__new__(cls, cls.name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle and copy a known kind as itself, so that `draws is Draws.IID` holds
        in every process.
        """
        is_known = _KNOWN.get(self.name) is self
        return (type(self), ()) if is_known else super().__reduce_ex__(protocol)

    def check_siblings(self, count: int) -> None:
        """Raise NotDefined for more children of a node than these draws are defined for."""
        if count > self.most_siblings:
            raise NotDefined(
                f"{self} draws: {count} siblings; allowed: at most {self.most_siblings}"
            )

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """Draw `count` siblings from every row (..., V): (..., count) int64, in draw order."""
        raise NotImplementedError(f"draws {self} do not say how siblings are drawn")

    def laws(self, draft_probs: Tensor, siblings: Tensor) -> Iterator[Tensor]:
        """For every sibling the law (..., V) that it was drawn from, given the earlier siblings.

        draft_probs: (..., V); siblings: (..., B) int64 in draw order. Batched, no host
        synchronisation, no branch on data.
        """
        raise NotImplementedError(f"draws {self} do not say which law a sibling has")

    def weights(self, draft_probs: Tensor, siblings: Tensor) -> Tensor:
        """Probability (...) that exactly these siblings (..., B) are drawn, in this order."""
        laws, tokens = self.laws(draft_probs, siblings), siblings.split(1, dim=-1)
        chances = [law.gather(-1, token) for law, token in zip(laws, tokens, strict=True)]
        return torch.cat(chances, -1).prod(-1)

    def least_chances(self, draft_chances: Tensor) -> Tensor:
        """A lower bound of a sibling's chance under its own law,
        if q gives its token `draft_chances` (...).

        It is 0 if nothing is known; then no subtree is skipped, see `resispec.verifiers.pruning`.
        """
        return torch.zeros_like(draft_chances)

    def ceiling(self, target_probs: Tensor, draft_probs: Tensor, num_siblings: int) -> Tensor:
        """The ceiling alpha* (...) for `resispec.audit.ceiling`, which checks the laws first.

        target_probs, draft_probs: (..., V) float64; only the target's rows are sure to sum to 1.
        Raises NotDefined if the ceiling is not known.
        """
        raise NotDefined(
            f"{self} draws: the ceiling of exact rules is not known; allowed: draws with a "
            "`ceiling`"
        )


Kind = TypeVar("Kind", bound=type[Draws])


def known(kind: Kind) -> Kind:
    """A decorator that makes a kind of draws known by its name."""
    _KNOWN[kind.name] = kind()
    return kind
