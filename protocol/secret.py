"""A value that must never be shown: no log, error, row, command line or repr may hold it."""

from typing import Final

__all__ = ["Secret"]


class Secret:
    """Holds a password or token. Only `reveal()` gives it out; text, repr, format and pickling do not.

    Equality compares the values, so that a changed credential is noticed; the hash is of no use to a reader,
    so a Secret cannot be a dictionary key.
    """

    __slots__ = ("_value",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: str) -> None:
        self._value: Final = value

    def reveal(self) -> str:
        """The value itself: call it only where it goes onto the wire."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"

    def __format__(self, _spec: str) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __reduce__(self) -> str:
        raise TypeError("a Secret cannot be pickled: hand over a credential reference instead")
