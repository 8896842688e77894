"""The machine's own description of itself: the SMBIOS tables (DMTF DSP0134), read from the kernel as bytes. Pure.

Makers leave strings out, number them wrongly and end tables early; what cannot be read counts as not told.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from drivers.linux.words import real
from protocol.shapes.inspect import (
    ChassisIdentity,
    FirmwareVersion,
    MemoryModule,
    PowerSupply,
    Processor,
    SystemIdentity,
    TrustedModule,
)

__all__ = ["Structure", "Tables", "parse_tables"]

_END = 127
_CHASSIS = {
    1: "Other",
    3: "Desktop",
    4: "LowProfileDesktop",
    6: "MiniTower",
    7: "Tower",
    17: "MainServerChassis",
    23: "RackMount",
    25: "MultiSystem",
    28: "Blade",
    29: "BladeEnclosure",
}
_PROCESSORS = {3: "cpu", 5: "dsp", 6: "gpu"}
_MEMORY = {
    0x12: "DDR",
    0x13: "DDR2",
    0x18: "DDR3",
    0x1A: "DDR4",
    0x1B: "LPDDR",
    0x1C: "LPDDR2",
    0x1D: "LPDDR3",
    0x1E: "LPDDR4",
    0x1F: "NVDIMM",
    0x20: "HBM",
    0x21: "HBM2",
    0x22: "DDR5",
    0x23: "LPDDR5",
    0x24: "HBM3",
}


@dataclass(frozen=True, slots=True)
class Structure:
    """One entry: its fixed part, from the type on, and its strings."""

    kind: int
    handle: int
    data: bytes
    strings: tuple[str, ...]

    def byte(self, place: int) -> int | None:
        return self.data[place] if place < len(self.data) else None

    def number(self, place: int, size: int) -> int | None:
        """A little-endian number; None where the entry ends before it."""
        end = place + size
        return int.from_bytes(self.data[place:end], "little") if end <= len(self.data) else None

    def text(self, place: int) -> str | None:
        """The string whose number is there; None for none, a placeholder, and a number that leads nowhere."""
        index = self.byte(place) or 0
        return real(self.strings[index - 1]) if 0 < index <= len(self.strings) else None


def _structures(data: bytes) -> Iterator[Structure]:
    place = 0
    while place + 4 <= len(data):
        kind, length = data[place], data[place + 1]
        if length < 4 or place + length > len(data):
            return
        end = data.find(b"\0\0", place + length)
        if end < 0:
            end = len(data)
        raw = data[place + length : end]
        strings = tuple(part.decode("utf-8", errors="replace") for part in raw.split(b"\0")) if raw else ()
        fixed = data[place : place + length]
        yield Structure(kind, int.from_bytes(fixed[2:4], "little"), fixed, strings)
        if kind == _END:
            return
        place = end + 2


@dataclass(frozen=True, slots=True)
class Tables:
    """What the inventory takes from them."""

    structures: tuple[Structure, ...]

    def of(self, kind: int) -> list[Structure]:
        return [structure for structure in self.structures if structure.kind == kind]

    def system(self) -> SystemIdentity:
        """The machine, by its own entry; where that only has placeholders, as boards without a maker's label do, the
        board's."""
        own, board, chassis = self._first(1), self._first(2), self._first(3)
        return SystemIdentity(
            vendor=own.text(4) or board.text(4),
            model=own.text(5) or board.text(5),
            serial=own.text(7) or chassis.text(7) or board.text(7),
            sku=own.text(0x19),
            uuid=_uuid(own),
            part_number=board.text(5) if own.text(5) else None,
            asset_tag=chassis.text(8) or board.text(8),
        )

    def chassis(self) -> list[ChassisIdentity]:
        return [
            ChassisIdentity(
                name=f"Chassis {number}" if number > 1 else "Chassis",
                kind=_CHASSIS.get((entry.byte(5) or 0) & 0x7F),
                vendor=entry.text(4),
                serial=entry.text(7),
                asset_tag=entry.text(8),
            )
            for number, entry in enumerate(self.of(3), 1)
        ]

    def processors(self, architecture: str | None) -> list[Processor]:
        return [_processor(entry, architecture) for entry in self.of(4) if (entry.byte(0x18) or 0) & 0x40]

    def memory(self) -> list[MemoryModule]:
        """The modules; empty slots are none."""
        return [module for entry in self.of(17) if (module := _module(entry)) is not None]

    def trusted_modules(self) -> list[TrustedModule]:
        return [
            TrustedModule(kind=_tpm_kind(entry), firmware=_tpm_firmware(entry), state="Enabled")
            for entry in self.of(43)
        ]

    def power_supplies(self) -> list[PowerSupply]:
        return [
            PowerSupply(
                name=entry.text(5) or entry.text(6) or f"PSU {number}",
                vendor=entry.text(7),
                model=entry.text(6),
                serial=entry.text(8),
                part_number=entry.text(0x0A),
                firmware=entry.text(0x0B),
                watts=watts if (watts := entry.number(0x0C, 2)) not in (None, 0, 0x8000) else None,
            )
            for number, entry in enumerate(self.of(39), 1)
            if (entry.number(0x0E, 2) or 0) & 2
        ]

    def firmware(self) -> list[FirmwareVersion]:
        version = self._first(0).text(5)
        return [] if version is None else [FirmwareVersion(name="BIOS", version=version)]

    def _first(self, kind: int) -> Structure:
        return next(iter(self.of(kind)), Structure(kind, 0, b"", ()))


def parse_tables(data: bytes) -> Tables:
    """`/sys/firmware/dmi/tables/DMI`; damaged ones give what stands before the damage."""
    return Tables(tuple(_structures(data)))


def _uuid(entry: Structure) -> str | None:
    """Since version 2.6 the first three fields are little-endian; all zeros and all ones stand for none."""
    raw = entry.data[8:24]
    if len(raw) < 16 or raw in (bytes(16), b"\xff" * 16):
        return None
    return str(uuid.UUID(bytes_le=raw))


def _processor(entry: Structure, architecture: str | None) -> Processor:
    return Processor(
        socket=entry.text(4) or f"CPU {entry.handle}",
        kind=_PROCESSORS.get(entry.byte(5) or 3, "cpu"),
        vendor=entry.text(7),
        model=entry.text(0x10),
        architecture=architecture,
        cores=_count(entry, 0x23, 0x2A),
        threads=_count(entry, 0x25, 0x2E),
        max_mhz=entry.number(0x14, 2) or None,
        serial=entry.text(0x20),
    )


def _count(entry: Structure, place: int, wide: int) -> int | None:
    """One byte; 255 stands for "see the two bytes that later versions have"."""
    count = entry.byte(place)
    return (entry.number(wide, 2) or None) if count == 0xFF else count or None


def _module(entry: Structure) -> MemoryModule | None:
    size = entry.number(0x0C, 2)
    if not size:
        return None
    if size == 0x7FFF:
        mib = (entry.number(0x1C, 4) or 0) & 0x7FFFFFFF
    else:
        mib = (size & 0x7FFF) // 1024 if size & 0x8000 else size
    bank, locator = entry.text(0x11), entry.text(0x10)
    speed = entry.number(0x20, 2) or entry.number(0x15, 2)
    return MemoryModule(
        slot=locator or bank or f"DIMM {entry.handle}",
        size_mib=None if size == 0xFFFF else mib or None,
        kind=_MEMORY.get(entry.byte(0x12) or 0),
        speed_mts=speed if speed not in (None, 0, 0xFFFF) else None,
        vendor=entry.text(0x17),
        part_number=entry.text(0x1A),
        serial=entry.text(0x18),
    )


def _tpm_kind(entry: Structure) -> str | None:
    major, minor = entry.byte(8), entry.byte(9)
    return None if not major else f"TPM{major}_{minor or 0}"


def _tpm_firmware(entry: Structure) -> str | None:
    """TPM 2.0 splits the first word in two (DSP0134, 7.44); TPM 1.2 has it in the word's bytes."""
    version = entry.number(0x0A, 4)
    if version is None:
        return None
    if entry.byte(8) == 2:
        return f"{version >> 16}.{version & 0xFFFF}"
    raw = version.to_bytes(4, "little")
    return f"{raw[2]}.{raw[3]}"
