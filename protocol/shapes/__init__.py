"""Typed arguments and results of every operation, one module per concern; camelCase as JSON.

Arguments refuse unknown fields: a typo must not be ignored before something destructive. Results ignore them, so
that a newer agent's answer is still readable.
"""

import msgspec

__all__ = ["Arguments", "Nothing", "Result"]


class Arguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The base of every operation's arguments."""


class Result(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of every operation's result."""


class Nothing(Arguments, frozen=True, kw_only=True):
    """An operation that takes no arguments."""
