"""Chassis status, as the power, indicator and health operations read it (IPMI 2.0, 28.2)."""

from dataclasses import dataclass
from typing import Final

from drivers.driver import Call
from drivers.ipmi import commands
from drivers.ipmi.connection import IpmiConnection
from protocol.errors import ErrorCode, OperationError

__all__ = ["CHASSIS_FAULTS", "ChassisStatus", "parse_chassis_status", "read_chassis_status"]

CHASSIS_FAULTS: Final = (
    ("power overload", 0, 0x02),
    ("power fault", 0, 0x08),
    ("power control fault", 0, 0x10),
    ("drive fault", 2, 0x04),
    ("cooling fault", 2, 0x08),
    ("chassis intrusion", 2, 0x01),
)
"""A fault's name, the byte of the status that holds it, and its bit."""


@dataclass(frozen=True, slots=True)
class ChassisStatus:
    """The answer's bytes: power state, last power event, miscellaneous state."""

    raw: bytes

    @property
    def is_on(self) -> bool:
        return bool(self.raw[0] & 0x01)

    @property
    def identify(self) -> int | None:
        """0 off, 1 on for a time, 2 on until told; None where the BMC does not tell (bit 6 clear)."""
        return self.raw[2] >> 4 & 0x03 if self.raw[2] & 0x40 else None

    @property
    def faults(self) -> list[str]:
        return [name for name, index, bit in CHASSIS_FAULTS if self.raw[index] & bit]


def parse_chassis_status(data: bytes) -> ChassisStatus:
    """Raises ValueError when it is cut short."""
    if len(data) < 3:
        raise ValueError(f"a chassis status of {len(data)} bytes is cut short")
    return ChassisStatus(data[:3])


async def read_chassis_status(connection: IpmiConnection, call: Call) -> ChassisStatus:
    """One command. Raises OperationError."""
    data = await connection.run(commands.GET_CHASSIS_STATUS, call)
    try:
        return parse_chassis_status(data)
    except ValueError as error:
        raise OperationError(ErrorCode.BMC_ERROR, f"{connection.endpoint} sent {error}") from error
