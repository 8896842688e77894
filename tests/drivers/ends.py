"""How an operation ends at a peer: a row of a table that a test holds against that peer."""

from dataclasses import dataclass, field
from typing import Any

from drivers import GivenPassword
from protocol.errors import ErrorCode
from protocol.secret import Secret

__all__ = ["Ends", "refuses", "shows"]


@dataclass(frozen=True)
class Ends:
    """`code` and `words` of the error, or what is known beforehand of the result."""

    arguments: dict[str, Any] = field(default_factory=dict)
    shows: dict[str, Any] = field(default_factory=dict)
    code: ErrorCode | None = None
    words: str = ""

    @property
    def rotation(self) -> GivenPassword | None:
        """The new password, for the operation that takes one."""
        return GivenPassword(Secret("N3w-Pa55word")) if "newCredentialRef" in self.arguments else None


def shows(arguments: dict[str, Any] | None = None, /, **known: Any) -> Ends:
    return Ends(arguments or {}, known)


def refuses(
    arguments: dict[str, Any] | None = None, /, code: ErrorCode = ErrorCode.UNSUPPORTED, words: str = ""
) -> Ends:
    return Ends(arguments or {}, {}, code, words)
