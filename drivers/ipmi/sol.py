"""Serial over LAN: its packets, and how its activation is answered to. Pure.

Source: IPMI 2.0 revision 1.1, 15.9 (packets), 24.1 and 24.2 (activate, deactivate), table 15-3.
"""

import struct
from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import Final

from drivers.ipmi import commands
from drivers.ipmi.commands import Command
from drivers.ipmi.packets import Message, PacketError
from protocol.errors import BmcMessage, ErrorCode, OperationError

__all__ = [
    "Activation",
    "ActivationPlan",
    "Move",
    "SolFlag",
    "SolPacket",
    "SolStatus",
    "activate_command",
    "deactivate_command",
    "parse_activation",
    "parse_sol",
    "sol_payload",
]

_LARGEST: Final = 255
"""Characters in a SOL packet: the accepted count is one byte."""
_HEADER: Final = 4
_SOL_PAYLOAD: Final = 0x01
_ENCRYPTED_AND_AUTHENTICATED: Final = 0xC0
_ALREADY_ACTIVE: Final = 0x80
_DISABLED: Final = 0x81


class SolStatus(IntFlag):
    """The status byte of a packet from the BMC."""

    NACK = 0x40
    TRANSFER_UNAVAILABLE = 0x20
    DEACTIVATING = 0x10
    TRANSMIT_OVERRUN = 0x08
    BREAK = 0x04


class SolFlag(IntFlag):
    """The operation byte of a packet to the BMC."""

    NACK = 0x40
    RING = 0x20
    BREAK = 0x10
    DROP_CTS = 0x08
    DROP_DCD = 0x04
    FLUSH_INBOUND = 0x02
    FLUSH_OUTBOUND = 0x01


@dataclass(frozen=True, slots=True)
class SolPacket:
    """A SOL payload. `sequence` 0: it carries no characters and wants no acknowledgement."""

    sequence: int
    acknowledged: int
    accepted: int
    flags: int
    characters: bytes = b""


def sol_payload(packet: SolPacket) -> bytes:
    """Raises ValueError for numbers over 15 and for more than 255 characters."""
    if not 0 <= packet.sequence <= 15 or not 0 <= packet.acknowledged <= 15:
        raise ValueError("SOL sequence numbers are 0 to 15")
    if len(packet.characters) > _LARGEST:
        raise ValueError(f"a SOL packet carries at most {_LARGEST} characters, not {len(packet.characters)}")
    return bytes((packet.sequence, packet.acknowledged, packet.accepted, packet.flags)) + packet.characters


def parse_sol(payload: bytes) -> SolPacket:
    """A SOL payload from a BMC. Raises PacketError when it is cut short."""
    if len(payload) < _HEADER:
        raise PacketError(f"a SOL payload of {len(payload)} bytes is cut short")
    sequence, acknowledged, accepted, status = payload[:_HEADER]
    return SolPacket(sequence & 0xF, acknowledged & 0xF, accepted, status, payload[_HEADER:])


@dataclass(frozen=True, slots=True)
class Activation:
    """What a BMC grants: how many characters a packet may carry each way, and its port where it names another one."""

    to_bmc: int
    from_bmc: int
    port: int


def activate_command(instance: int = 1) -> Command:
    """Encrypted and authenticated; serial alerts are deferred."""
    data = bytes((_SOL_PAYLOAD, instance, _ENCRYPTED_AND_AUTHENTICATED, 0, 0, 0))
    return commands.ACTIVATE_PAYLOAD.with_data(data)


def deactivate_command(instance: int = 1) -> Command:
    return commands.DEACTIVATE_PAYLOAD.with_data(bytes((_SOL_PAYLOAD, instance, 0, 0, 0, 0)))


def parse_activation(data: bytes) -> Activation:
    """The answer to Activate Payload. Raises PacketError when it is cut short.

    Sizes count the packet's four header bytes, and are made sane: some BMCs swap their bytes (0x0001 or 0xFF00 for
    256 and 255: FreeIPMI's `solpayloadsize` and `intel20`), others tell sizes that no count byte can acknowledge.
    """
    if len(data) < 12:
        raise PacketError(f"an answer to Activate Payload of {len(data)} bytes is cut short")
    inbound, outbound, port = struct.unpack_from("<HHH", data, 4)
    return Activation(_sane_size(inbound), _sane_size(outbound), port)


def _sane_size(told: int) -> int:
    """Characters per packet, 1 to 255, from a size as the BMC tells it."""
    if told <= _HEADER or told > 0x0400:
        told = told >> 8 | (told & 0xFF) << 8
    if told <= _HEADER:
        told = _LARGEST + _HEADER
    return min(told - _HEADER, _LARGEST)


class Move(Enum):
    """What to do after an answer to Activate Payload."""

    DONE = "done"
    DEACTIVATE = "deactivate, then activate again"


class ActivationPlan:
    """Takes a console over at most once (Ironic's stop-sol note; openbmc#2197).

    A BMC has one SOL payload. A session that died keeps it, so a caller that may `take_over` deactivates it once;
    when it is active again at once, a living client holds it, and that is an error.
    """

    def __init__(self, endpoint: str, *, take_over: bool) -> None:
        self._endpoint = endpoint
        self._may_deactivate = take_over

    def answered(self, answer: Message) -> Move:
        """Raises OperationError: CONFLICT (held by somebody), UNSUPPORTED (switched off), or the BMC's refusal."""
        code = answer.completion_code
        if not code:
            return Move.DONE
        command = activate_command()
        if code == _ALREADY_ACTIVE and self._may_deactivate:
            self._may_deactivate = False
            return Move.DEACTIVATE
        text = commands.completion_text(command, code)
        if code == _ALREADY_ACTIVE:
            raise OperationError(
                ErrorCode.CONFLICT,
                f"another session holds the serial console of {self._endpoint}: close it there, or take it over "
                "(takeOver, --take-over); a site agent keeps one for a minute after its last reader",
                bmc=[BmcMessage(f"{code:#04x}", text)],
            )
        if code == _DISABLED:
            raise OperationError(
                ErrorCode.UNSUPPORTED,
                f"Serial over LAN is switched off at {self._endpoint}: enable it in the BMC's settings",
                bmc=[BmcMessage(f"{code:#04x}", text)],
            )
        raise commands.refusal(command, answer, self._endpoint)
