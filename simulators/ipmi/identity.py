"""Who a simulated BMC says that it is."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

SYSTEM_FIRMWARE_VERSION: Final = 1
SYSTEM_NAME: Final = 2
OPERATING_SYSTEM_NAME: Final = 4

_FLEET: Final = uuid.UUID("6b0e4a52-7d0c-4b56-9a51-3c1f0b7e2d11")
_SYSTEM_INFO: Final[Mapping[int, str]] = MappingProxyType(
    {SYSTEM_FIRMWARE_VERSION: "RW-BIOS 2.4.1", SYSTEM_NAME: "rackwright-sim", OPERATING_SYSTEM_NAME: "none"}
)


@dataclass(frozen=True, slots=True)
class Identity:
    """The answers of Get Device ID, Get GUID and Get System Info.

    `manufacturer` is an IANA enterprise number; 0 is "unspecified", so that no client applies a vendor's quirks.
    `guid` are the 16 bytes as sent on the wire, last byte of the UUID first (IPMI 2.0, 20.8).
    """

    manufacturer: int = 0
    product: int = 0x0001
    firmware_major: int = 2
    firmware_minor: int = 14
    guid: bytes = field(default_factory=lambda: uuid.uuid4().bytes[::-1])
    serial: str = "RWSIM000001"
    mac: bytes = b"\x02\x00\x00\x00\x00\x01"
    system_info: Mapping[int, str] = field(default_factory=lambda: _SYSTEM_INFO)

    @classmethod
    def numbered(cls, number: int) -> Self:
        """BMC `number` of a fleet: a serial number, MAC address and GUID of its own, the same in each run."""
        return cls(
            guid=uuid.uuid5(_FLEET, str(number)).bytes[::-1],
            serial=f"RWSIM{number:06d}",
            mac=b"\x02\x00" + number.to_bytes(4, "big"),
        )
