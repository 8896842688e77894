"""What is known of the vendors' command lines, as data: how each is recognised, how its console is opened and left.

Nothing here asks which vendor a machine is of: the prompt tells.
"""

import re
from dataclasses import dataclass, field
from typing import Final

__all__ = ["SHELLS", "STRAIGHT_PORT", "Shell", "last_line", "shell_at"]

STRAIGHT_PORT: Final = 2200
"""OpenBMC: whoever logs in at this port is on the console (openbmc/docs, console.md; also BlueField and GH200)."""


@dataclass(frozen=True, slots=True)
class Shell:
    """One kind of command line. Patterns are searched in what it writes, without regard to case."""

    who: str
    prompt: str
    """How its prompt looks, at the end of what it has written."""
    enter: tuple[str, ...]
    """The commands that open the console."""
    started: str | None
    """What it writes once the console is open; the machine's own output follows. None: it writes nothing."""
    held: str = r"(?!)"
    """What it writes where another session has the console."""
    release: tuple[str, ...] = ()
    """The commands that end another session."""
    other_enter: tuple[str, ...] = ()
    """The same commands as newer firmware wants them, where it does not take `enter`."""
    other_release: tuple[str, ...] = ()
    unknown: str = r"(?!)"
    """What it writes where it does not know a command."""
    leave: bytes = b""
    """The keys that end the console."""
    source: str = field(default="", kw_only=True)


SHELLS: Final[tuple[Shell, ...]] = (
    Shell(
        "HPE iLO",
        prompt=r"hpiLO->\s*$",
        enter=("vsp",),
        started=r"press 'esc \(' to return to the cli[^\r\n]*\r?\n?",
        held=r"virtual serial port is (currently )?in use",
        release=("stop /system1/oemhp_vsp1",),
        leave=b"\x1b(",
        source="HPE iLO scripting and CLI guide, VSP; transcripts of iLO 3 and 4",
    ),
    Shell(
        "Dell iDRAC",
        prompt=r"(/admin1->|racadm>>)\s*$",
        enter=("console com2",),
        started=r"to end type: \^\\[^\r\n]*\r?\n?",
        held=r"(serial (device|port)|console)[^\r\n]*(already )?in use",
        unknown=r"(invalid|unknown) command|not recognized",
        other_enter=("connect com2",),
        leave=b"\x1c",
        source="iDRAC user's guide, SSH serial redirection; transcripts of iDRAC 7 to 9; NVIDIA NICo's ssh-console",
    ),
    Shell(
        "Lenovo XCC",
        prompt=r"system>\s*$",
        enter=("console 1",),
        started=None,
        held=r"(sol|session|console)[^\r\n]*(already|in use|active|conflict)",
        release=("console kill 1",),
        unknown=r"extraneous arguments|invalid (command|syntax|option)",
        other_enter=("console start",),
        other_release=("console kill",),
        leave=b"\x1b(",
        source="XCC user's guide, console; NVIDIA NICo's ssh-console for newer ones, which take no channel number",
    ),
    Shell(
        "Supermicro SMASH",
        prompt=r"(^|[\r\n])->\s*$",
        enter=("cd system1/sol1", "start"),
        started=r"terminate session[^\r\n]*(\r?\n\([^\r\n]*\))?\r?\n?",
        held=r"(sol|session)[^\r\n]*(already|in use|active)",
        leave=b"\r\x1bT",
        source="recorded tree supermicro-821ge, SerialConsole.SSH; transcript of Insyde's SMASH-CLP",
    ),
    Shell(
        "OpenBMC",
        prompt=r"[#$]\s*$",
        enter=("obmc-console-client",),
        started=None,
        unknown=r"not found|no such file",
        leave=b"\r~.",
        source="openbmc/obmc-console, its README",
    ),
)
"""In the order in which a prompt is held against them: `->` alone is also the end of others' prompts."""


def shell_at(text: str) -> Shell | None:
    """The kind of command line whose prompt ends this text."""
    plain = _ESCAPES.sub("", text)
    return next((shell for shell in SHELLS if re.search(shell.prompt, plain, re.IGNORECASE)), None)


def last_line(text: str) -> str:
    """The end of this text, behind its last line feed: the prompt, where one is shown."""
    return re.split(r"[\r\n]", _ESCAPES.sub("", text))[-1].strip()


_ESCAPES: Final = re.compile(r"\x1b(\[[0-9;?]{0,40}[A-Za-z]|\][^\x07\x1b]{0,400}\x07|[=>])")
"""Colours and titles that shells put around their prompts (ECMA-48, 5.4)."""
