"""NVMe's administrative commands as the erasure needs them (NVM Express Base Specification 2.0): what a controller
can do, and the bytes of commands and answers. Pure but for `submit`."""

import ctypes
import fcntl
import mmap
import os
from dataclasses import dataclass
from enum import Enum

from protocol.errors import ErrorCode, OperationError

__all__ = [
    "Abilities",
    "Act",
    "AdminCommand",
    "SanitizeState",
    "acts",
    "format_command",
    "identify_controller",
    "identify_namespace",
    "lba_format",
    "parse_controller",
    "parse_sanitize",
    "sanitize_command",
    "sanitize_log",
    "submit",
]

_ADMIN_IOCTL = 0xC0484E41
_IDENTIFY, _GET_LOG, _FORMAT, _SANITIZE = 0x06, 0x02, 0x80, 0x84
_SANITIZE_LOG = 0x81
_FORMAT_SUPPORTED = 1 << 1
_ALL_NAMESPACES = 0xFFFFFFFF
_PATIENCE_MS = 6 * 3600 * 1000


class Act(Enum):
    """A way in which a drive erases itself, the most thorough first."""

    SANITIZE_BLOCK = "NVMe sanitize (block erase)"
    SANITIZE_CRYPTO = "NVMe sanitize (crypto erase)"
    FORMAT_CRYPTO = "NVMe format (crypto erase)"
    FORMAT_DATA = "NVMe format (user data erase)"

    @property
    def of_all_namespaces(self) -> bool:
        return self in (Act.SANITIZE_BLOCK, Act.SANITIZE_CRYPTO)


@dataclass(frozen=True, slots=True)
class Abilities:
    """What Identify Controller tells (figure 275): `format_of_all`: a format erases every namespace, whichever is
    named."""

    sanitize_block: bool
    sanitize_crypto: bool
    format: bool
    format_crypto: bool
    format_of_all: bool
    namespaces: int


class SanitizeState(Enum):
    NEVER = 0
    DONE = 1
    UNDER_WAY = 2
    FAILED = 3
    DONE_UNWRITTEN = 4

    @property
    def is_done(self) -> bool:
        return self in (SanitizeState.DONE, SanitizeState.DONE_UNWRITTEN)


@dataclass(frozen=True, slots=True)
class AdminCommand:
    """One command; `size`: bytes that the drive answers with."""

    opcode: int
    namespace: int = 0
    cdw10: int = 0
    cdw11: int = 0
    size: int = 0
    timeout_ms: int = 60_000


class _Passthrough(ctypes.Structure):
    """struct nvme_passthru_cmd (linux/nvme_ioctl.h)."""

    _fields_ = (
        ("opcode", ctypes.c_uint8),
        ("flags", ctypes.c_uint8),
        ("rsvd1", ctypes.c_uint16),
        ("nsid", ctypes.c_uint32),
        ("cdw2", ctypes.c_uint32),
        ("cdw3", ctypes.c_uint32),
        ("metadata", ctypes.c_uint64),
        ("addr", ctypes.c_uint64),
        ("metadata_len", ctypes.c_uint32),
        ("data_len", ctypes.c_uint32),
        ("cdw10", ctypes.c_uint32),
        ("cdw11", ctypes.c_uint32),
        ("cdw12", ctypes.c_uint32),
        ("cdw13", ctypes.c_uint32),
        ("cdw14", ctypes.c_uint32),
        ("cdw15", ctypes.c_uint32),
        ("timeout_ms", ctypes.c_uint32),
        ("result", ctypes.c_uint32),
    )


def submit(path: str, command: AdminCommand) -> bytes:
    """Sends one command through a controller's or namespace's device and waits. Raises OperationError NOT_APPLIED
    with the drive's status. Blocking."""
    memory = mmap.mmap(-1, max(command.size, 4096))
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    packed = _Passthrough(
        opcode=command.opcode,
        nsid=command.namespace,
        addr=place if command.size else 0,
        data_len=command.size,
        cdw10=command.cdw10,
        cdw11=command.cdw11,
        timeout_ms=command.timeout_ms,
    )
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = fcntl.ioctl(handle, _ADMIN_IOCTL, bytearray(bytes(packed)), True)
        finally:
            os.close(handle)
    except OSError as error:
        raise OperationError(
            ErrorCode.NOT_APPLIED, f"{path} did not take an NVMe command (0x{command.opcode:02x}): {error.strerror}"
        ) from error
    if status:
        raise OperationError(
            ErrorCode.NOT_APPLIED,
            f"{path} refused an NVMe command (0x{command.opcode:02x}) with status 0x{status:04x}",
            details={"status": status},
        )
    return bytes(memory[: command.size])


def identify_controller() -> AdminCommand:
    return AdminCommand(_IDENTIFY, cdw10=1, size=4096)


def identify_namespace(namespace: int) -> AdminCommand:
    return AdminCommand(_IDENTIFY, namespace, size=4096)


def sanitize_log() -> AdminCommand:
    """The Sanitize Status log page (figure 217): 20 bytes."""
    return AdminCommand(_GET_LOG, _ALL_NAMESPACES, cdw10=_SANITIZE_LOG | (512 // 4 - 1) << 16, size=512)


def sanitize_command(act: Act) -> AdminCommand:
    """Begins it; the drive goes on by itself, also over a power cycle. Failure does not lock the drive up (AUSE)."""
    action = 2 if act is Act.SANITIZE_BLOCK else 4
    return AdminCommand(_SANITIZE, cdw10=action | 1 << 3)


def format_command(act: Act, namespace: int, flbas: int, protection: int) -> AdminCommand:
    """Erases and keeps the format that the namespace has: `flbas` and `protection` (DPS) out of Identify Namespace.
    The answer comes when it is done."""
    secure = 2 if act is Act.FORMAT_CRYPTO else 1
    upper, lower = flbas >> 5 & 3, flbas & 0xF
    bits = (
        lower | (flbas >> 4 & 1) << 4 | (protection & 7) << 5 | (protection >> 3 & 1) << 8 | secure << 9 | upper << 12
    )
    return AdminCommand(_FORMAT, namespace, cdw10=bits, timeout_ms=_PATIENCE_MS)


def parse_controller(data: bytes) -> Abilities:
    """Raises ValueError for an answer that is too short."""
    if len(data) < 4096:
        raise ValueError("the drive's description is too short")
    sanitize = int.from_bytes(data[328:332], "little")
    commands = int.from_bytes(data[256:258], "little")
    formats = data[524]
    return Abilities(
        sanitize_block=bool(sanitize & 2),
        sanitize_crypto=bool(sanitize & 1),
        format=bool(commands & _FORMAT_SUPPORTED),
        format_crypto=bool(formats & 4),
        format_of_all=bool(formats & 2),
        namespaces=int.from_bytes(data[516:520], "little"),
    )


def lba_format(data: bytes) -> tuple[int, int]:
    """FLBAS and DPS out of Identify Namespace (figure 97 of the NVM command set)."""
    return data[26], data[29]


def parse_sanitize(log: bytes) -> tuple[SanitizeState, float]:
    """How far a sanitize is, and as a share of 1."""
    state = int.from_bytes(log[2:4], "little") & 7
    known = SanitizeState(state) if state <= SanitizeState.DONE_UNWRITTEN.value else SanitizeState.FAILED
    return known, (int.from_bytes(log[0:2], "little") + 1) / 65536


def acts(abilities: Abilities, *, alone: bool) -> list[Act]:
    """What may be tried, in this order. `alone`: the controller has this one namespace, so that what erases all of
    them destroys nothing that was not named."""
    found = []
    if alone and abilities.sanitize_block:
        found.append(Act.SANITIZE_BLOCK)
    if alone and abilities.sanitize_crypto:
        found.append(Act.SANITIZE_CRYPTO)
    if abilities.format and (alone or not abilities.format_of_all):
        found += [Act.FORMAT_CRYPTO] if abilities.format_crypto else []
        found.append(Act.FORMAT_DATA)
    return found
