"""qcow2 images (docs/interop/qcow2.txt of QEMU, versions 2 and 3), read as one stream of the disk's bytes.

The tables that say what lies where may follow the data, so the file must be there whole: it is read through a
function that gives any part of it.
"""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from drivers.linux import zstandard
from drivers.linux.decoding import DecodingError

__all__ = ["Header", "Qcow2", "parse_header"]

_MAGIC = b"QFI\xfb"
_HEADER = struct.Struct(">4sIQIIQIIQQIIQ")
_OFFSET = 0x00FFFFFFFFFFFE00
_COMPRESSED = 1 << 62
_ALL_ZEROS = 1
_UNSUPPORTED = {
    1 << 0: "it was not closed properly",
    1 << 1: "it is marked as corrupt",
    1 << 2: "its data lies in another file",
    1 << 4: "it has extended cluster tables",
}
_COMPRESSION_TYPE = 1 << 3
_DIRTY_IS_HARMLESS = 1 << 0
"""Dirty means that the reference counts may be wrong, and nothing here reads them."""
_LARGEST_TABLE = 32 << 20

ReadAt = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Header:
    """`size`: of the disk that it holds, in bytes. `compression`: 0 for deflate, 1 for zstd."""

    size: int
    cluster_bits: int
    l1_offset: int
    l1_size: int
    compression: int = 0

    @property
    def cluster(self) -> int:
        return 1 << self.cluster_bits

    @property
    def l2_entries(self) -> int:
        return self.cluster // 8


def parse_header(data: bytes) -> Header:
    """Raises ValueError for what is no qcow2 file, or has what cannot be written to a disk on its own."""
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise ValueError("it is no qcow2 file")
    _, version, backing, _, bits, size, encryption, l1_size, l1_offset, _, _, _, _ = _HEADER.unpack_from(data)
    if version not in (2, 3):
        raise ValueError(f"it is qcow2 of version {version}, which is not known")
    if backing:
        raise ValueError("it only holds what differs from another file: publish it in one piece (qemu-img convert)")
    if encryption:
        raise ValueError("it is encrypted")
    if not 9 <= bits <= 21 or l1_size * 8 > _LARGEST_TABLE:
        raise ValueError("its header has impossible sizes")
    compression = 0
    if version == 3:
        features = int.from_bytes(data[72:80], "big") & ~_DIRTY_IS_HARMLESS
        for bit, words in _UNSUPPORTED.items():
            if features & bit:
                raise ValueError(f"{words}: publish it anew (qemu-img convert)")
        if features & ~(_COMPRESSION_TYPE | sum(_UNSUPPORTED)):
            raise ValueError("it has features that are not known")
        compression = data[104] if features & _COMPRESSION_TYPE else 0
        if compression > 1:
            raise ValueError("it is compressed in a way that is not known")
    if l1_size * (1 << bits) * (1 << bits) // 8 < size:
        raise ValueError("its header has impossible sizes")
    return Header(size, bits, l1_offset, l1_size, compression)


class Qcow2:
    """The disk's bytes, from the first to the last. `read_into` as a pipeline's `Reader`; one cluster table is in
    memory at a time. Snapshots are not looked at."""

    def __init__(self, read: ReadAt) -> None:
        """Raises DecodingError."""
        self._read = read
        try:
            self.header = parse_header(read(0, 512))
        except ValueError as error:
            raise DecodingError(str(error)) from error
        raw = read(self.header.l1_offset, self.header.l1_size * 8)
        self._l1 = struct.unpack(f">{self.header.l1_size}Q", raw)
        self._l2: tuple[int, ...] = ()
        self._l2_index = -1
        self.position = 0

    def read_into(self, target: memoryview) -> int:
        """Fills the target; fewer bytes only at the end. Raises DecodingError."""
        done = 0
        header = self.header
        while done < len(target) and self.position < header.size:
            inside = self.position % header.cluster
            count = min(len(target) - done, header.cluster - inside, header.size - self.position)
            part = target[done : done + count]
            data = self._cluster(self.position // header.cluster, inside, count)
            part[:] = bytes(count) if data is None else data
            done += count
            self.position += count
        return done

    def abort(self) -> None:
        """Nothing that it waits for can hold it up."""

    def _cluster(self, index: int, inside: int, count: int) -> bytes | None:
        """A part of a cluster; None for zeros."""
        header = self.header
        entry = self._entry(index)
        if entry & _COMPRESSED:
            return self._inflated(entry)[inside : inside + count]
        offset = entry & _OFFSET
        if entry & _ALL_ZEROS or not offset:
            return None
        if offset % header.cluster:
            raise DecodingError("a cluster of it lies where none can lie")
        return self._read(offset + inside, count)

    def _entry(self, index: int) -> int:
        table, place = divmod(index, self.header.l2_entries)
        if table != self._l2_index:
            offset = self._l1[table] & _OFFSET
            if offset:
                raw = self._read(offset, self.header.cluster)
                self._l2 = struct.unpack(f">{self.header.l2_entries}Q", raw)
            else:
                self._l2 = ()
            self._l2_index = table
        return self._l2[place] if self._l2 else 0

    def _inflated(self, entry: int) -> bytes:
        header = self.header
        bits = 62 - (header.cluster_bits - 8)
        offset = entry & ((1 << bits) - 1)
        sectors = ((entry & (_COMPRESSED - 1)) >> bits) + 1
        data = self._read(offset, sectors * 512 - offset % 512)
        try:
            if header.compression:
                return _unpacked(data, header.cluster)
            result = zlib.decompressobj(-15).decompress(data, header.cluster)
        except (zlib.error, ValueError) as error:
            raise DecodingError(f"a cluster of it cannot be decompressed: {error}") from error
        if len(result) != header.cluster:
            raise DecodingError("a compressed cluster of it is too short")
        return result


def _unpacked(data: bytes, size: int) -> bytes:
    stream = zstandard.Decompression()
    source, result = memoryview(bytearray(data)), bytearray(size)
    try:
        with memoryview(result) as target:
            done = 0
            while done < size:
                taken, given = stream.step(source, target[done:])
                if not taken and not given:
                    raise ValueError("it is too short")
                source, done = source[taken:], done + given
    finally:
        stream.close()
    return bytes(result)
