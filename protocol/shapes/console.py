"""Console: the machine's serial port, as a stream of bytes."""

from enum import StrEnum

from protocol.shapes import Arguments, Result

__all__ = ["CloseConsole", "ConsoleClosed", "ConsoleKind", "ConsoleOpened", "ConsoleOptions", "OpenConsole"]


class ConsoleKind(StrEnum):
    SOL = "sol"
    SSH = "ssh"


class ConsoleOptions(Result, frozen=True, kw_only=True):
    kinds: list[ConsoleKind]


class OpenConsole(Arguments, frozen=True, kw_only=True):
    kind: ConsoleKind | None = None
    take_over: bool = False
    """End a session that somebody else holds."""


class ConsoleOpened(Result, frozen=True, kw_only=True):
    stream: str


class CloseConsole(Arguments, frozen=True, kw_only=True):
    stream: str


class ConsoleClosed(Result, frozen=True, kw_only=True):
    stream: str
    closed: bool = True
