"""How an operation ends: as a value, and as a row of a table that a test holds against a peer."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drivers import GivenPassword
from protocol.errors import ErrorCode, OperationError
from protocol.secret import Secret

__all__ = ["Ends", "ended", "refuses", "shows"]


async def ended(doing: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any] | OperationError:
    """The operation's result, or the error that it ended in."""
    try:
        return await doing
    except OperationError as error:
        return error


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

    def is_met_by(self, end: Mapping[str, Any] | OperationError) -> bool:
        """Whether the operation has ended so."""
        if isinstance(end, OperationError):
            return end.code is self.code and self.words in str(end)
        return self.code is None and {key: end[key] for key in self.shows} == self.shows


def shows(arguments: dict[str, Any] | None = None, /, **known: Any) -> Ends:
    return Ends(arguments or {}, known)


def refuses(
    arguments: dict[str, Any] | None = None, /, code: ErrorCode = ErrorCode.UNSUPPORTED, words: str = ""
) -> Ends:
    return Ends(arguments or {}, {}, code, words)
