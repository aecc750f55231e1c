"""The contract of a kind of draws, and the known kinds by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import torch
from torch import Generator, Tensor

from resispec.errors import InvalidInput, NotDefined
from resispec.plugins import check_free
from resispec.trees import MAX_NODES

_CLAIMS = ("weights", "least_chances", "ceiling", "can_be_cut")
_FACTS = ("are_random", "are_independent", "are_distinct", "most_siblings")
"""Attributes that follow from how siblings are drawn: the optional ones, and the required ones."""


def _place(kind: type, name: str) -> int:
    """The place of the class that gives an attribute among a class and those it inherits from."""
    return next(place for place, one in enumerate(kind.__mro__) if name in vars(one))


def _is_same(one: object, other: object) -> bool:
    """Whether two fields of kinds of draws are the same, as far as plain values tell."""
    is_plain = isinstance(one, bool | int | float | str | tuple)
    return one is other or (is_plain and type(one) is type(other) and one == other)


class DrawsKind(str):
    """The way in which the siblings under one parent are chosen from the draft's law q.

    A kind is a string, its name, so rows, messages and JSON can hold it. `Draws` holds the known
    kinds. A kind of your own is a subclass with a `name`, `draw` and `laws`; everything else has
    safe defaults. A subclass of a known kind that sets no name says by the inherited one that its
    siblings have the law of that kind: rules believe it, and audits find out. One with a name and
    with a `draw` or `laws` of its own has the default methods again, and cannot be cut, as what
    another kind says of its siblings does not hold for them. Facts unlike the default, such as
    `are_independent`, it must say itself, or InvalidInput is raised.

    are_random: whether anything is drawn; otherwise the siblings are determined by q.
    are_independent: whether siblings are independent draws from q: n tuples of B are one long draw
    of n B. are_distinct: whether no token is drawn twice, so that there are at most V siblings.
    Rules rely on this. can_be_cut: whether the first siblings of many follow the law of fewer
    siblings, as those of independent ones do; if not, a level's nodes must have equal numbers of
    children.
    most_siblings: the most children of a node for which the draws are defined.
    """

    name: ClassVar[str]
    are_random: ClassVar[bool] = True
    are_independent: ClassVar[bool] = False
    are_distinct: ClassVar[bool] = False
    can_be_cut: ClassVar[bool] = False
    most_siblings: ClassVar[int] = MAX_NODES

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        drawn = min(_place(cls, "draw"), _place(cls, "laws"))
        for name in (*_CLAIMS, *_FACTS):
            kind: Any = cls.__mro__[_place(cls, name)]
            if kind is DrawsKind or kind.name == cls.name or _place(cls, name) <= drawn:
                continue
            if name in _CLAIMS:
                setattr(cls, name, vars(DrawsKind)[name])
            elif vars(kind)[name] != vars(DrawsKind)[name]:
                raise InvalidInput(
                    f"draws {cls.name} have a draw of their own, and {name} of {kind.name}; "
                    f"allowed: a {name} in their class"
                )
        if cls.are_independent:
            cls.can_be_cut = True

    def __new__(cls, *fields: Any, **options: Any) -> DrawsKind:
        """The known kind of this class; a new object where there is none, and with fields."""
        kind = Draws.named.get(cls.name)
        if kind is not None and type(kind) is cls and not fields and not options:
            return kind
        return super().__new__(cls, cls.name)

    def __eq__(self, other: object) -> bool:
        """Whether the siblings are drawn alike: kinds of one class and name with the same fields.

        A plain text is a name.
        """
        if not isinstance(other, DrawsKind):
            return str.__eq__(self, other)
        return (
            type(self) is type(other)
            and str.__eq__(self, other)
            and vars(self).keys() == vars(other).keys()
            and all(_is_same(value, vars(other)[name]) for name, value in vars(self).items())
        )

    def __ne__(self, other: object) -> bool:  # that of a text would compare names alone
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> Any:
        """Pickle and copy a known kind as itself: `draws is Draws.IID` holds in every process."""
        return (type(self), ()) if Draws.named.get(self.name) is self else super().__reduce__()

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
        """Probability (...) that exactly these siblings (..., B) are drawn, in this order.

        If nothing is random, it is 1 for the tuple that `draw` gives, else 0.
        """
        if not self.are_random:
            drawn = self.draw(draft_probs, siblings.shape[-1], Generator(draft_probs.device))
            return (siblings == drawn).all(-1).to(draft_probs.dtype)
        laws, tokens = self.laws(draft_probs, siblings), siblings.split(1, dim=-1)
        chances = [law.gather(-1, token) for law, token in zip(laws, tokens, strict=True)]
        return torch.cat(chances, -1).prod(-1)

    def least_chances(self, draft_chances: Tensor) -> Tensor:
        """A lower bound of a sibling's chance under its own law, given its chance (...) under q.

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


class KnownDraws:
    """The known kinds of draws: `Draws("iid")` and `Draws.IID` are the one of that name.

    `list(Draws)` and `len(Draws)` tell of all of them.
    """

    def __init__(self) -> None:
        self.named: dict[str, DrawsKind] = {}

    def __call__(self, name: object) -> DrawsKind:
        """The known kind of a name; a kind stays as it is.

        Raises InvalidInput for an unknown name.
        """
        if isinstance(name, DrawsKind):
            return name
        if not isinstance(name, str) or name not in self.named:
            raise InvalidInput(f"unknown draws {name!r}; known: {', '.join(self.named)}")
        return self.named[name]

    def __iter__(self) -> Iterator[DrawsKind]:
        return iter(self.named.values())

    def __len__(self) -> int:
        return len(self.named)

    def __getattr__(self, name: str) -> DrawsKind:
        if name.isupper() and name.lower() in self.named:
            return self.named[name.lower()]
        raise AttributeError(f"Draws has no attribute {name!r}")

    def __mro_entries__(self, _: tuple[Any, ...]) -> tuple[type[DrawsKind]]:
        """`class Own(Draws)`, as files of users have it, is a subclass of DrawsKind."""
        return (DrawsKind,)


Draws = KnownDraws()
KindClass = TypeVar("KindClass", bound=type[DrawsKind])


def known(kind: KindClass) -> KindClass:
    """A decorator that makes a kind of draws known by its name.

    Raises InvalidInput for a name that another one has, such as an inherited one.
    """
    if kind.name in Draws.named:
        check_free("kind of draws", kind.name, kind, type(Draws.named[kind.name]))
    Draws.named[kind.name] = kind()
    return kind
