"""Console: the machine's serial port, as a stream of bytes."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from protocol.shapes import Arguments, Result

__all__ = [
    "CloseConsole",
    "ConsoleClosed",
    "ConsoleKind",
    "ConsoleOpened",
    "ConsoleOptions",
    "ConsolePurpose",
    "ConsoleService",
    "OpenConsole",
]


class ConsoleKind(StrEnum):
    SOL = "sol"
    """Serial over LAN (IPMI)."""
    SSH = "ssh"


class ConsolePurpose(StrEnum):
    SERIAL = "serial"
    GRAPHICAL = "graphical"
    SHELL = "shell"
    """The BMC's own command line."""


class ConsoleService(Result, frozen=True, kw_only=True):
    """One way to a console, as the BMC itself describes it; what it does not say is null."""

    purpose: ConsolePurpose
    protocol: str
    """In the BMC's word: SSH, IPMI, Telnet, KVMIP, Oem …"""
    enabled: bool | None = None
    port: int | None = None
    max_sessions: int | None = None
    entry_command: str | None = None
    """What opens the console on the BMC's command line."""
    leave_keys: str | None = None
    """How the BMC says that it is left."""


class ConsoleOptions(Result, frozen=True, kw_only=True):
    kinds: list[ConsoleKind]
    """What can be opened now."""
    services: list[ConsoleService] = []


class OpenConsole(Arguments, frozen=True, kw_only=True):
    kind: ConsoleKind | None = None
    """By which way; the driver's own where it is left out."""
    take_over: bool = False
    """End a session that somebody else holds."""
    command: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """ssh: what opens the console, where the BMC's command line is of a kind that is not known here."""


class ConsoleOpened(Result, frozen=True, kw_only=True):
    stream: str


class CloseConsole(Arguments, frozen=True, kw_only=True):
    stream: str
    """The name that console.openConsole gave it."""


class ConsoleClosed(Result, frozen=True, kw_only=True):
    stream: str
    closed: bool = True
