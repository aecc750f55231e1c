"""Assertions for the tests of other repositories: is this rule, verifier or kernel exact?

assert_exact: tests a rule, a verifier or a registered name, by the audits of `resispec.audit`.
assert_exact_sampler: tests any function that verifies drafted tokens, by the tokens that it emits.
assert_exact_server: tests a server that a command starts, by what it writes.

Installed beside pytest, `referee.testing.plugin` adds two options, a fixture and a summary; pytest
loads it in every run, so importing this package does not import torch until a name is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from referee.testing.plugin import Report
    from referee.testing.rules import assert_exact
    from referee.testing.samplers import assert_exact_sampler
    from referee.testing.server import assert_exact_server

__all__ = ["Report", "assert_exact", "assert_exact_sampler", "assert_exact_server"]

_HOME = {
    "Report": "plugin",
    "assert_exact": "rules",
    "assert_exact_sampler": "samplers",
    "assert_exact_server": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
