"""Acceptance rules and tree verifiers by name, also of third parties, see `resispec.plugins`."""

from collections.abc import Callable
from typing import Any, TypeVar

from resispec import plugins
from resispec.errors import InvalidInput
from resispec.verifiers.base import SiblingRule, Verifier, interface_of
from resispec.verifiers.top_down import as_verifier

_REGISTERED: dict[str, Callable[..., Any]] = {}

Factory = TypeVar("Factory", bound=Callable[..., Any])


def register(name: str) -> Callable[[Factory], Factory]:
    """A decorator that names the class of a rule or verifier, or a function that makes one.

    Raises InvalidInput for a name that another one has.
    """

    def add(factory: Factory) -> Factory:
        plugins.check_free("verifier", name, factory, _REGISTERED.get(name))
        _REGISTERED[name] = factory
        return factory

    return add


def available() -> list[str]:
    """Names that `get_rule` and `get_verifier` know, our own names first."""
    return plugins.available("verifier", _REGISTERED)


def get_factory(name: str) -> Callable[..., Any]:
    """The class or function that makes the verifier of a name.

    Raises InvalidInput for an unknown name.
    """
    return plugins.find("verifier", name, _REGISTERED)


def get_rule(name: str, **options: Any) -> SiblingRule:
    """Make a sibling rule by name.

    Raises InvalidInput for an unknown name or option, or a tree verifier.
    """
    rule: SiblingRule = plugins.make("verifier", name, _REGISTERED, **options)
    if interface_of(rule) is not SiblingRule:
        raise InvalidInput(f"{name!r} is a tree verifier, not a sibling rule; use get_verifier")
    return rule


def get_verifier(name: str, **options: Any) -> Verifier:
    """Make a tree verifier by name; a sibling rule is applied from the root down (`as_verifier`).

    Raises InvalidInput as `get_rule`.
    """
    return as_verifier(plugins.make("verifier", name, _REGISTERED, **options))
