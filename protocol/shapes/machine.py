"""What the agent on a machine itself is asked to do to it beside the drivers' operations: the payloads of its kinds
of commands, and their results."""

from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from protocol.shapes import Result
from protocol.shapes.deploy import RootDeviceHints

__all__ = [
    "BootKexec",
    "BootKexecResult",
    "DaemonPackage",
    "DaemonUpgrade",
    "DaemonUpgradeResult",
    "NodeReboot",
    "TaskExit",
    "TaskOutcome",
    "TaskRun",
    "TaskRunResult",
    "task_exit",
]

_LONGEST_SCRIPT = 512 << 10


class _Payload(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    target_node_id: str | None = None


class NodeReboot(_Payload, frozen=True, kw_only=True):
    """`node.reboot`."""

    force: bool = False
    """At once: without waiting for what is under way on the machine, and without stopping its services first."""


class BootKexec(_Payload, frozen=True, kw_only=True):
    """`boot.kexec`: the installed system is started without the firmware."""

    root_device: RootDeviceHints | None = None
    """Null takes the disk to which an image was written since the machine was started."""
    entry: str | None = None
    """A title or id of the boot loader's menu; null takes the one that it would start."""
    append: Annotated[str, Meta(max_length=2048, pattern=r"^[^\n\r\0]*$")] = ""
    """Words for the end of the kernel's command line."""


class BootKexecResult(Result, frozen=True, kw_only=True):
    """What was loaded. It is reported before the machine jumps, so it does not say that the system has started."""

    disk: str
    loader: Literal["grub", "systemd-boot", "bls"]
    title: str
    kernel: str
    initrds: list[str]
    command_line: str
    method: Literal["kexec_file_load", "kexec_load"]
    boot_entry: str | None = None
    """The firmware's entry that is first now, so that a later start comes from the disk as well."""
    notes: list[str] = []


class TaskRun(_Payload, frozen=True, kw_only=True):
    """`task.run`: a script on the machine, as root."""

    script: Annotated[str, Meta(min_length=1, max_length=_LONGEST_SCRIPT)]
    interpreter: Annotated[str, Meta(pattern=r"^/[^\0]+$")] | None = None
    """An absolute path; null takes the script's `#!` line, else /bin/sh."""
    arguments: Annotated[list[str], Meta(max_length=256)] = []
    environment: dict[Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = {}
    """In addition to PATH, HOME, LANG, RACKWRIGHT_COMMAND and RACKWRIGHT_NODE. It is stored with the command, so it
    is no place for secrets."""
    timeout: str | int | None = None
    """Such as 90s or 15m; a plain number is milliseconds. Null: as long as the command has."""


class TaskOutcome(StrEnum):
    COMPLETE = "complete"
    STOP = "stop"
    """Done, and nothing more is wanted of this machine now."""
    INCOMPLETE = "incomplete"
    """To be run again."""


class TaskExit(NamedTuple):
    outcome: TaskOutcome
    then: Literal["reboot", "poweroff"] | None


def task_exit(code: int) -> TaskExit | None:
    """What a script asks for by its exit code; None where it has failed.

    0 done, 16 stop, 32 power off, 64 reboot, 128 incomplete, and 128 together with one of the others. (Digital
    Rebar's codes, behaviour.md 3.8; 144, incomplete and stop, follows from the same bits.)
    """
    outcome = TaskOutcome.INCOMPLETE if code & 128 else TaskOutcome.COMPLETE
    match code & ~128:
        case 0:
            return TaskExit(outcome, None)
        case 16:
            return TaskExit(outcome if code & 128 else TaskOutcome.STOP, None)
        case 32:
            return TaskExit(outcome, "poweroff")
        case 64:
            return TaskExit(outcome, "reboot")
        case _:
            return None


class TaskRunResult(Result, frozen=True, kw_only=True):
    exit_code: int
    outcome: TaskOutcome
    then: Literal["reboot", "poweroff"] | None = None
    """What the machine does once this is reported."""
    seconds: float
    output: str
    """Both of its streams as they came: the beginning and the end of much."""
    omitted_bytes: int = 0
    """Of the output, from its middle."""


class DaemonPackage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    url: Annotated[str, Meta(pattern=r"^https?://[^\s]+$", max_length=4096)]
    """Of a Debian package."""
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$")]


class DaemonUpgrade(_Payload, frozen=True, kw_only=True):
    """`daemon.upgrade`: the installed system's agent is replaced by another version of itself."""

    url: Annotated[str, Meta(pattern=r"^https?://[^\s]+$", max_length=4096)]
    """Of the Debian package."""
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$")]
    also: list[DaemonPackage] = []
    """Those of the same version that are installed with it, such as rackwright-daemon beside rackwright."""
    version: str | None = None
    """The packages must have this version; null takes any."""

    @property
    def packages(self) -> list[DaemonPackage]:
        return [DaemonPackage(url=self.url, sha256=self.sha256), *self.also]


class DaemonUpgradeResult(Result, frozen=True, kw_only=True):
    before: str
    after: str
    changed: bool
