"""The variables of UEFI firmware, read and written in OVMF's file while the machine is off.

So the BMC of this machine does what the BMCs of servers do: it leaves the firmware a boot option and `BootNext`
(UEFI Specification 2.10, 3.1.2 and 3.1.3), or asks it to stop in its setup (`OsIndications`, 8.5.4). The layout is
that of EDK II's authenticated variable store (MdeModulePkg/Include/Guid/VariableFormat.h) in a firmware volume
(Platform Initialization Specification, volume 3, 3.2.1).
"""

import struct
import uuid
from dataclasses import dataclass

from simulators.machine.boot_plan import BootPlan, BootTarget

GLOBAL = uuid.UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c")
# A number that firmware, which counts from 0, will not come to.
HTTP_OPTION = 0x5257
HTTP_OPTION_NAME = f"Boot{HTTP_OPTION:04X}"

_STORE = uuid.UUID("aaf32c78-947b-439a-a180-2e144ec37792")
_VOLUME_SIGNATURE = b"_FVH"
_VOLUME_LENGTH = struct.Struct("<H")  # at 48: how long the volume's own header is
_STORE_HEADER = struct.Struct("<16sIBB6x")
# Start, state, reserved, attributes, monotonic count, time stamp, key, sizes of name and data, vendor.
_RECORD = struct.Struct("<HBxIQ16xIII16s")
_START = 0x55AA
_ADDED = 0x3F
_DELETED_BIT = 0x02
_FORMATTED, _HEALTHY = 0x5A, 0xFE
_NON_VOLATILE, _BOOT, _RUNTIME = 0x1, 0x2, 0x4
_ATTRIBUTES = _NON_VOLATILE | _BOOT | _RUNTIME
_ERASED = b"\xff"
_ACTIVE_OPTION = 0x1
_BOOT_TO_SETUP = 0x1
# Device path nodes: messaging type, URI; and the end of the whole path.
_URI_NODE = (0x03, 0x18)
_END_NODE = b"\x7f\xff\x04\x00"


class NvramError(ValueError):
    """The file is no variable store of OVMF, or has no room left."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable that is in force."""

    name: str
    vendor: uuid.UUID
    data: bytes
    offset: int


class VariableStore:
    """The variables of one file. `encode` gives the bytes to write back. Raises NvramError."""

    def __init__(self, content: bytes) -> None:
        self._bytes = bytearray(content)
        self._first, self._end = find_store(content)

    def encode(self) -> bytes:
        return bytes(self._bytes)

    def variables(self) -> list[Variable]:
        """All variables in force, in the order of the file."""
        return self._walk()[0]

    def get(self, name: str, vendor: uuid.UUID = GLOBAL) -> bytes | None:
        found = [variable for variable in self.variables() if (variable.name, variable.vendor) == (name, vendor)]
        return found[-1].data if found else None

    def delete(self, name: str, vendor: uuid.UUID = GLOBAL) -> None:
        """Marks a variable as deleted, as the firmware does; one that is not there is left so."""
        for variable in self.variables():
            if (variable.name, variable.vendor) == (name, vendor):
                self._bytes[variable.offset + 2] &= ~_DELETED_BIT & 0xFF

    def set(self, name: str, data: bytes, vendor: uuid.UUID = GLOBAL) -> None:
        """Writes a variable that is non-volatile and accessible at boot and at run time."""
        if self.get(name, vendor) == data:
            return
        self.delete(name, vendor)
        text = (name + "\0").encode("utf-16-le")
        record = _RECORD.pack(_START, _ADDED, _ATTRIBUTES, 0, 0, len(text), len(data), vendor.bytes_le) + text + data
        free = self._walk()[1]
        if free + len(record) > self._end:
            raise NvramError(f"the firmware's variable store has no room for {name}: make a new one")
        if self._bytes[free : free + len(record)].strip(_ERASED):
            raise NvramError("the free space of the firmware's variable store is not erased: make a new one")
        self._bytes[free : free + len(record)] = record

    def _walk(self) -> tuple[list[Variable], int]:
        """The variables in force, and where the free space begins."""
        found: list[Variable] = []
        at = self._first
        while at + _RECORD.size <= self._end:
            start, state, _, _, _, name_size, data_size, vendor = _RECORD.unpack_from(self._bytes, at)
            if start != _START:
                break
            name_at = at + _RECORD.size
            data_at = name_at + name_size
            if data_at + data_size > self._end:
                raise NvramError(f"a variable at {at} reaches over the end of the store")
            if state == _ADDED:
                name = bytes(self._bytes[name_at:data_at]).decode("utf-16-le", "replace").rstrip("\0")
                data = bytes(self._bytes[data_at : data_at + data_size])
                found.append(Variable(name, uuid.UUID(bytes_le=vendor), data, at))
            at = -(-(data_at + data_size) // 4) * 4
        return found, at


def find_store(content: bytes) -> tuple[int, int]:
    """Where the records begin, and where the store ends."""
    if content[40:44] != _VOLUME_SIGNATURE:
        raise NvramError("this is not a firmware volume")
    at: int = _VOLUME_LENGTH.unpack_from(content, 48)[0]
    signature, size, volume_format, state = _STORE_HEADER.unpack_from(content, at)
    if uuid.UUID(bytes_le=signature) != _STORE or (volume_format, state) != (_FORMATTED, _HEALTHY):
        raise NvramError("this is not a store of authenticated variables: use the OVMF_VARS file of the same package")
    return at + _STORE_HEADER.size, at + size


def with_plan(content: bytes, plan: BootPlan) -> bytes:
    """The variables for one start: what an earlier plan left is gone, and what this one needs is there."""
    store = VariableStore(content)
    next_option = store.get("BootNext")
    if next_option == struct.pack("<H", HTTP_OPTION):
        store.delete("BootNext")
    if plan.target is BootTarget.HTTP and plan.uri is not None:
        store.set(HTTP_OPTION_NAME, http_option(plan.uri))
        store.set("BootNext", struct.pack("<H", HTTP_OPTION))
    else:
        store.delete(HTTP_OPTION_NAME)
    if plan.target is BootTarget.SETUP:
        wanted = struct.unpack("<Q", store.get("OsIndications") or bytes(8))[0] | _BOOT_TO_SETUP
        store.set("OsIndications", struct.pack("<Q", wanted))
    return store.encode()


def http_option(uri: str) -> bytes:
    """A load option whose device path is nothing but a URI: each network port may fetch it (UEFI 2.10, 3.1.2)."""
    encoded = uri.encode()
    path = struct.pack("<BBH", *_URI_NODE, 4 + len(encoded)) + encoded + _END_NODE
    return struct.pack("<IH", _ACTIVE_OPTION, len(path)) + "HTTP boot by the BMC\0".encode("utf-16-le") + path
