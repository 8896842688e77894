"""LAN and SOL configuration parameters (IPMI 2.0, tables 23-4 and 26-5): numbered byte strings of fixed length."""

import ipaddress
from collections.abc import Collection, Mapping
from typing import Final

from simulators.ipmi.ciphers import SUITES
from simulators.ipmi.constants import RMCP_PORT

CIPHER_SUITE_ENTRIES: Final = 23
LAN_PORT: Final = 8
COMMUNITY_STRING: Final = 16
SOL_ENABLE: Final = 1
SOL_AUTHENTICATION: Final = 2
SOL_RETRY: Final = 4
SOL_CHANNEL: Final = 7
SOL_PORT: Final = 8
_READ_ONLY_LAN: Final = frozenset({1, 9, 22, 23})
_READ_ONLY_SOL: Final = frozenset({SOL_CHANNEL})
_SOL_INTERVAL: Final = 0.01


class ParameterMissing(LookupError):
    """The parameter does not exist here (completion code 0x80)."""


class ParameterReadOnly(RuntimeError):
    """The parameter cannot be written (completion code 0x82)."""


class ParameterBusy(RuntimeError):
    """Another party's set is in progress (completion code 0x81)."""


class Parameters:
    """A set of parameters; number 0 is "set in progress"."""

    def __init__(self, values: Mapping[int, bytes], read_only: Collection[int]) -> None:
        self._values = dict(values)
        self._read_only = frozenset(read_only)

    def read(self, number: int) -> bytes:
        """The bytes of a parameter. Raises ParameterMissing."""
        if number not in self._values:
            raise ParameterMissing(f"parameter {number}")
        return self._values[number]

    def write(self, number: int, data: bytes) -> None:
        """Set a parameter. Raises ParameterMissing, ParameterReadOnly, ParameterBusy, ValueError for the length."""
        present = self.read(number)
        if number in self._read_only:
            raise ParameterReadOnly(f"parameter {number}")
        if len(data) != len(present):
            raise ValueError(f"parameter {number} takes {len(present)} bytes, not {len(data)}")
        if number == 0 and data[0] & 3 == 1 and present[0] & 3 == 1:
            raise ParameterBusy("set in progress already")
        self._values[number] = b"\x00" if number == 0 and data[0] & 3 == 2 else data


def lan_parameters(address: str, mac: bytes, suites: Collection[int]) -> Parameters:
    """The LAN configuration of a BMC with a static IPv4 address."""
    ip = ipaddress.IPv4Address(address)
    gateway = ipaddress.IPv4Address(int(ip) & 0xFFFF_FF00 | 0xFE)
    listed = sorted(suites)
    values = {
        0: b"\x00",
        1: b"\x00",
        2: bytes(5),
        3: ip.packed,
        4: b"\x01",
        5: mac,
        6: bytes((255, 255, 255, 0)),
        7: bytes((0x40, 0x40, 0x10)),
        LAN_PORT: RMCP_PORT.to_bytes(2, "little"),
        10: b"\x02",
        11: b"\x00",
        12: gateway.packed,
        13: bytes(6),
        14: bytes(4),
        15: bytes(6),
        COMMUNITY_STRING: b"public".ljust(18, b"\0"),
        17: b"\x00",
        20: bytes(2),
        21: b"\x00",
        22: bytes((len(SUITES),)),
        CIPHER_SUITE_ENTRIES: bytes((0, *listed)),
        24: bytes((0,)) + b"\x44" * 8,
        26: bytes(6),
    }
    return Parameters(values, _READ_ONLY_LAN)


def sol_parameters() -> Parameters:
    """The SOL configuration: enabled, protected, 115200 baud, 7 retries half a second apart."""
    values = {
        0: b"\x00",
        SOL_ENABLE: b"\x01",
        SOL_AUTHENTICATION: b"\xc2",
        3: bytes((10, 96)),
        SOL_RETRY: bytes((7, 50)),
        5: b"\x0a",
        6: b"\x0a",
        SOL_CHANNEL: b"\x01",
        SOL_PORT: RMCP_PORT.to_bytes(2, "little"),
    }
    return Parameters(values, _READ_ONLY_SOL)


def sol_retry(parameters: Parameters) -> tuple[int, float]:
    """How often SOL packets are repeated, and how many seconds apart."""
    count, interval = parameters.read(SOL_RETRY)
    return count & 0x7, max(interval, 1) * _SOL_INTERVAL
