"""SEL, SDR repository and FRU inventory commands (IPMI 2.0, chapters 31, 33 and 34)."""

import struct

from simulators.ipmi.commands.registry import Call, Command, CommandTable, Refused
from simulators.ipmi.constants import CompletionCode, NetFn, Privilege
from simulators.ipmi.event_log import RECORD_LENGTH, LogFull
from simulators.ipmi.sensors import SDR_VERSION

_SEL_VERSION = 0x51
_DELETE, _RESERVE, _ALLOCATION = 0x08, 0x02, 0x01
_INITIATE_ERASE, _ERASE_STATUS = 0xAA, 0x00
_ERASED = 0x01
# What fits into one answer beside the message's own bytes; a larger read is refused with 0xCA.
_LONGEST_READ = 64


def _sel_info(call: Call) -> bytes:
    log = call.bmc.sel
    free = min((log.capacity - len(log)) * RECORD_LENGTH, 0xFFFE)
    support = _DELETE | _RESERVE | _ALLOCATION | log.overflowed << 7
    return struct.pack("<BHHIIB", _SEL_VERSION, len(log), free, log.last_addition, log.last_erase, support)


def _sel_allocation(call: Call) -> bytes:
    log = call.bmc.sel
    free = log.capacity - len(log)
    return struct.pack("<HHHHB", log.capacity, RECORD_LENGTH, free, free, 1)


def _sel_reserve(call: Call) -> bytes:
    return struct.pack("<H", call.bmc.sel.reserve())


def _sel_get(call: Call) -> bytes:
    reservation, number, offset, length = struct.unpack("<HHBB", call.data)
    log = call.bmc.sel
    if (offset or reservation) and not log.holds(reservation):
        raise Refused(CompletionCode.RESERVATION_CANCELLED)
    found = log.get(number)
    if found is None:
        raise Refused(CompletionCode.NOT_PRESENT)
    following, record = found
    return struct.pack("<H", following) + _part(record, offset, length)


def _part(record: bytes, offset: int, length: int) -> bytes:
    if offset >= len(record):
        raise Refused(CompletionCode.PARAMETER_OUT_OF_RANGE)
    if length != 0xFF and offset + length > len(record):
        raise Refused(CompletionCode.PARAMETER_OUT_OF_RANGE)
    part = record[offset:] if length == 0xFF else record[offset : offset + length]
    if len(part) > _LONGEST_READ:
        raise Refused(CompletionCode.CANNOT_RETURN_THAT_MANY_BYTES)
    return part


def _sel_add(call: Call) -> bytes:
    try:
        return struct.pack("<H", call.bmc.sel.add(call.data))
    except LogFull as error:
        raise Refused(CompletionCode.OUT_OF_SPACE) from error


def _sel_delete(call: Call) -> bytes:
    reservation, number = struct.unpack("<HH", call.data)
    if not call.bmc.sel.holds(reservation):
        raise Refused(CompletionCode.RESERVATION_CANCELLED)
    deleted = call.bmc.sel.delete(number)
    if deleted is None:
        raise Refused(CompletionCode.NOT_PRESENT)
    return struct.pack("<H", deleted)


def _sel_clear(call: Call) -> bytes:
    reservation, letters, action = struct.unpack("<H3sB", call.data)
    if letters != b"CLR" or action not in (_INITIATE_ERASE, _ERASE_STATUS):
        raise Refused(CompletionCode.INVALID_DATA_FIELD)
    if action == _INITIATE_ERASE:
        if not call.bmc.sel.holds(reservation):
            raise Refused(CompletionCode.RESERVATION_CANCELLED)
        call.bmc.sel.clear()
    return bytes((_ERASED,))


def _sel_time(call: Call) -> bytes:
    return struct.pack("<I", call.bmc.sel.time)


def _set_sel_time(call: Call) -> bytes:
    (wanted,) = struct.unpack("<I", call.data)
    call.bmc.sel.offset += wanted - call.bmc.sel.time
    return b""


def _sel_utc_offset(call: Call) -> bytes:
    return struct.pack("<h", 0)


def _sdr_info(call: Call) -> bytes:
    count = len(call.bmc.sdr.records)
    return struct.pack("<BHHIIB", SDR_VERSION, count, 0xFFFF, 0, 0, _RESERVE | _ALLOCATION)


def _sdr_allocation(call: Call) -> bytes:
    return struct.pack("<HHHHB", 0, 0, 0, 0, 0)


def _sdr_reserve(call: Call) -> bytes:
    return struct.pack("<H", call.bmc.sdr.reserve())


def _sdr_get(call: Call) -> bytes:
    reservation, number, offset, length = struct.unpack("<HHBB", call.data)
    if (offset or reservation) and reservation != call.bmc.sdr.reservation:
        raise Refused(CompletionCode.RESERVATION_CANCELLED)
    found = call.bmc.sdr.find(number)
    if found is None:
        raise Refused(CompletionCode.NOT_PRESENT)
    following, record = found
    return struct.pack("<H", following) + _part(record, offset, length)


def _inventory(call: Call) -> bytearray:
    inventory = call.bmc.fru(call.data[0])
    if inventory is None:
        raise Refused(CompletionCode.NOT_PRESENT)
    return inventory


def _fru_info(call: Call) -> bytes:
    return struct.pack("<HB", len(_inventory(call)), 0)


def _fru_read(call: Call) -> bytes:
    inventory = _inventory(call)
    offset, count = struct.unpack("<HB", call.data[1:])
    if offset >= len(inventory):
        raise Refused(CompletionCode.PARAMETER_OUT_OF_RANGE)
    if count > _LONGEST_READ:
        raise Refused(CompletionCode.CANNOT_RETURN_THAT_MANY_BYTES)
    part = bytes(inventory[offset : offset + count])
    return bytes((len(part),)) + part


def _fru_write(call: Call) -> bytes:
    inventory = _inventory(call)
    offset = int.from_bytes(call.data[1:3], "little")
    part = call.data[3:]
    if offset + len(part) > len(inventory):
        raise Refused(CompletionCode.PARAMETER_OUT_OF_RANGE)
    inventory[offset : offset + len(part)] = part
    return bytes((len(part),))


COMMANDS: CommandTable = {
    (NetFn.STORAGE, 0x10): Command(_fru_info, Privilege.USER, 1),
    (NetFn.STORAGE, 0x11): Command(_fru_read, Privilege.USER, 4),
    (NetFn.STORAGE, 0x12): Command(_fru_write, Privilege.OPERATOR, 4, 255),
    (NetFn.STORAGE, 0x20): Command(_sdr_info),
    (NetFn.STORAGE, 0x21): Command(_sdr_allocation),
    (NetFn.STORAGE, 0x22): Command(_sdr_reserve),
    (NetFn.STORAGE, 0x23): Command(_sdr_get, Privilege.USER, 6),
    (NetFn.STORAGE, 0x28): Command(_sel_time),
    (NetFn.STORAGE, 0x40): Command(_sel_info),
    (NetFn.STORAGE, 0x41): Command(_sel_allocation),
    (NetFn.STORAGE, 0x42): Command(_sel_reserve),
    (NetFn.STORAGE, 0x43): Command(_sel_get, Privilege.USER, 6),
    (NetFn.STORAGE, 0x44): Command(_sel_add, Privilege.OPERATOR, RECORD_LENGTH),
    (NetFn.STORAGE, 0x46): Command(_sel_delete, Privilege.OPERATOR, 4),
    (NetFn.STORAGE, 0x47): Command(_sel_clear, Privilege.OPERATOR, 6),
    (NetFn.STORAGE, 0x48): Command(_sel_time),
    (NetFn.STORAGE, 0x49): Command(_set_sel_time, Privilege.OPERATOR, 4),
    (NetFn.STORAGE, 0x5C): Command(_sel_utc_offset),
}
