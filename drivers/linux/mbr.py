"""Partition tables of the DOS kind, the four entries of an MBR (UEFI 2.10, section 5.2.1). Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

__all__ = ["FAT12", "LINUX", "Mbr", "Slot", "encode", "parse"]

LINUX = 0x83
FAT12 = 0x01
_EXTENDED = (0x05, 0x0F, 0x85)
_PROTECTIVE = 0xEE
_TABLE = 446
_LARGEST = 0xFFFFFFFF
_BEYOND = b"\xfe\xff\xff"
"""Cylinder, head and sector of a place that they cannot name: the reader goes by the sector numbers."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One partition, in sectors."""

    number: int
    kind: int
    first: int
    sectors: int
    active: int = 0

    @property
    def last(self) -> int:
        return self.first + self.sectors - 1


@dataclass(frozen=True, slots=True)
class Mbr:
    slots: tuple[Slot, ...]
    extended: bool = False
    """It has an extended partition, whose inner ones are not followed: such a table is left as it is."""

    def free_number(self) -> int | None:
        taken = {slot.number for slot in self.slots}
        return next((number for number in range(1, 5) if number not in taken), None)

    @property
    def free_after(self) -> int:
        return max((slot.last + 1 for slot in self.slots), default=2048)

    def with_slot(self, slot: Slot) -> "Mbr":
        """Raises ValueError for a place beyond what 32 bits can name."""
        if slot.last > _LARGEST:
            raise ValueError("an MBR cannot name places beyond 2 TiB")
        others = [one for one in self.slots if one.number != slot.number]
        return replace(self, slots=tuple(sorted([*others, slot], key=lambda one: one.number)))


def parse(head: bytes) -> Mbr | None:
    """None where there is no such table, or only the one that protects a GPT."""
    if head[510:512] != b"\x55\xaa":
        return None
    slots = tuple(_slots(head))
    if not slots or any(slot.kind == _PROTECTIVE for slot in slots):
        return None
    # A boot sector of a file system ends like an MBR too; its bytes make no sensible table.
    if any(slot.active not in (0, 0x80) or not slot.first or not slot.sectors for slot in slots):
        return None
    return Mbr(slots, any(slot.kind in _EXTENDED for slot in slots))


def _slots(head: bytes) -> Iterator[Slot]:
    for number in range(1, 5):
        raw = head[_TABLE + 16 * (number - 1) : _TABLE + 16 * number]
        if raw[4]:
            first, sectors = int.from_bytes(raw[8:12], "little"), int.from_bytes(raw[12:16], "little")
            yield Slot(number, raw[4], first, sectors, raw[0])


def encode(table: Mbr, head: bytes) -> bytes:
    """`head` with the table in it; entries that did not change keep their bytes."""
    before = {slot.number: slot for slot in _slots(head)}
    result = bytearray(head)
    for slot in table.slots:
        if before.get(slot.number) == slot:
            continue
        place = _TABLE + 16 * (slot.number - 1)
        known = slot.number in before
        result[place : place + 16] = (
            bytes([slot.active])
            + (bytes(result[place + 1 : place + 4]) if known else _BEYOND)
            + bytes([slot.kind])
            + _BEYOND
            + slot.first.to_bytes(4, "little")
            + slot.sectors.to_bytes(4, "little")
        )
    return bytes(result)
