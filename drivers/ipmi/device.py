"""What a BMC says it is: device id, GUID (IPMI 2.0, 20.1 and 22.14)."""

import uuid
from dataclasses import dataclass
from typing import Final

from drivers.driver import Call
from drivers.ipmi import commands
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.quirks import MAKERS, UNKNOWN_MAKER, Maker
from protocol.errors import ErrorCode, OperationError

__all__ = ["DeviceId", "parse_device_id", "read_device_id", "read_guid", "uuid_of"]

_FACT: Final = "device-id"


@dataclass(frozen=True, slots=True)
class DeviceId:
    """The answer to Get Device ID."""

    firmware: str
    ipmi_version: str
    manufacturer: int
    product: int
    updating: bool
    provides_device_sdrs: bool
    support: int

    @property
    def maker(self) -> Maker:
        return MAKERS.get(self.manufacturer, UNKNOWN_MAKER)

    @property
    def has_sdr_repository(self) -> bool:
        return bool(self.support & 0x02)

    @property
    def has_sel(self) -> bool:
        return bool(self.support & 0x04)

    @property
    def has_fru(self) -> bool:
        return bool(self.support & 0x08)

    @property
    def has_chassis(self) -> bool:
        return bool(self.support & 0x80)


def parse_device_id(data: bytes) -> DeviceId:
    """Raises ValueError when it is cut short."""
    if len(data) < 11:
        raise ValueError(f"a device id of {len(data)} bytes is cut short")
    # Minor revision and IPMI version are BCD; the version's digits are swapped (0x51 is 1.5).
    firmware = f"{data[2] & 0x7F}.{data[3]:02x}"
    return DeviceId(
        firmware=firmware,
        ipmi_version=f"{data[4] & 0xF}.{data[4] >> 4}",
        manufacturer=int.from_bytes(data[6:9], "little") & 0xFFFFF,
        product=int.from_bytes(data[9:11], "little"),
        updating=bool(data[2] & 0x80),
        provides_device_sdrs=bool(data[1] & 0x80),
        support=data[5],
    )


async def read_device_id(connection: IpmiConnection, call: Call, *, fresh: bool = False) -> DeviceId:
    """The device id, asked for once per connection unless `fresh`. Raises OperationError."""
    known = connection.facts.get(_FACT)
    if isinstance(known, DeviceId) and not fresh:
        return known
    data = await connection.run(commands.GET_DEVICE_ID, call)
    try:
        device = parse_device_id(data)
    except ValueError as error:
        raise OperationError(ErrorCode.BMC_ERROR, f"{connection.endpoint} sent {error}") from error
    connection.facts[_FACT] = device
    return device


async def read_guid(connection: IpmiConnection, call: Call) -> str | None:
    """The system's GUID, else the BMC's own. Raises OperationError where the BMC does not answer."""
    for command in (commands.GET_SYSTEM_GUID, commands.GET_DEVICE_GUID):
        answer = await connection.ask(command, call)
        if not answer.completion_code and (found := uuid_of(answer.data[:16])):
            return found
    return None


def uuid_of(guid: bytes) -> str | None:
    """A GUID as text, or None where it is no GUID (all zero, all ones, cut short).

    The specification sends it least significant byte first; many BMCs send SMBIOS' order (first three fields
    swapped), others that of RFC 4122 (ipmitool guesses likewise). The first order is taken in which version and
    variant are those of a real GUID; SMBIOS' order where none is.
    """
    if len(guid) != 16 or guid in (bytes(16), b"\xff" * 16):
        return None
    smbios = uuid.UUID(bytes_le=guid)
    for candidate in (uuid.UUID(bytes=guid[::-1]), smbios, uuid.UUID(bytes=guid)):
        if candidate.variant == uuid.RFC_4122 and candidate.version in (1, 2, 3, 4, 5):
            return str(candidate)
    return str(smbios)
