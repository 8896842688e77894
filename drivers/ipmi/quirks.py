"""How BMCs stray from the specification, as data: the hardware, what it does, and where that is known from."""

from dataclasses import dataclass
from typing import Final

from drivers.ipmi.handshake import NAME_ONLY, Privilege

__all__ = ["MAKERS", "UNKNOWN_MAKER", "Maker", "rakp_variants"]

_INTEL20_PASSWORD_LENGTH: Final = 16


@dataclass(frozen=True, slots=True)
class Maker:
    """A manufacturer by its IANA enterprise number, and what its BMCs want."""

    name: str | None
    bmc_type: str | None = None
    uefi_disk_byte: int | None = None
    """Byte 2 of the boot flags that means "hard disk" to its firmware in UEFI mode."""


UNKNOWN_MAKER: Final = Maker(None)

MAKERS: Final[dict[int, Maker]] = {
    2: Maker("IBM", "IMM"),
    11: Maker("HP", "iLO"),
    42: Maker("Sun", "ILOM"),
    343: Maker("Intel", "Intel BMC"),
    674: Maker("Dell", "iDRAC"),
    2011: Maker("Huawei", "iBMC"),
    2623: Maker("ASUS", "ASMB"),
    3902: Maker("ZTE"),
    5703: Maker("NVIDIA"),
    5771: Maker("Cisco", "CIMC"),
    6653: Maker("Tyan"),
    7244: Maker("Quanta"),
    10368: Maker("Fujitsu", "iRMC"),
    # Supermicro X10 and later boot a UEFI disk by selector 9 (0x24), not by the specification's 2
    # (Ironic's ipmitool driver treats the vendor so; it read 0xE0 0x24 off working machines).
    10876: Maker("Supermicro", "Supermicro BMC", uefi_disk_byte=0x24),
    47488: Maker("Supermicro", "Supermicro BMC", uefi_disk_byte=0x24),
    15370: Maker("GIGABYTE", "MegaRAC"),
    19046: Maker("Lenovo", "XCC"),
    20301: Maker("IBM", "IMM"),
    20974: Maker("AMI", "MegaRAC"),
    37945: Maker("Inspur"),
    47196: Maker("HPE", "iLO"),
    49622: Maker("ASRock Rack", "MegaRAC"),
    49871: Maker("YADRO", "OpenBMC"),
}


def rakp_variants(privilege: Privilege, password: bytes) -> tuple[tuple[int, bytes], ...]:
    """The ways in which BMCs are known to hash RAKP 2: each a role byte and a key, the specification's own first.

    - The privilege of the Open Session without the name-only bit: Supermicro X8, Intel S5500WBV and S2600JF, Quanta
      QSSC-S4R, Dell C5220 (FreeIPMI's `opensesspriv`).
    - Passwords cut to 16 bytes: Intel IPMI 2.0 boards such as SE7520AF2 (FreeIPMI's `intel20`).
    """
    roles = (privilege | NAME_ONLY, int(privilege))
    keys = (
        (password, password[:_INTEL20_PASSWORD_LENGTH]) if len(password) > _INTEL20_PASSWORD_LENGTH else (password,)
    )
    return tuple((role, key) for key in keys for role in roles)
