"""Images for the tests: partition tables and contents, made here and not by what is tested."""

import binascii
import ctypes
import random
import struct
import uuid

__all__ = ["LINUX_ROOT", "SYSTEM", "compressible", "gpt_image", "zstd"]

LINUX_ROOT = uuid.UUID("4f68bce3-e8cd-4db1-96e7-fbcaf984b709")
SYSTEM = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
DISK = uuid.UUID("11111111-2222-3333-4444-555555555555")


def compressible(size: int, seed: int = 1) -> bytes:
    """Bytes as images have them: text-like parts, noise, and runs of zeros."""
    chance = random.Random(seed)
    parts, left = [], size
    while left > 0:
        kind, count = chance.random(), min(left, chance.randrange(4096, 600_000))
        if kind < 0.3:
            parts.append(bytes(count))
        elif kind < 0.6:
            parts.append(chance.randbytes(count))
        else:
            parts.append((f"line {chance.random()}\n" * (count // 10))[:count].encode().ljust(count, b"."))
        left -= count
    return b"".join(parts)[:size]


def gpt_image(size: int, parts: list[tuple[int, uuid.UUID, int, int]], sector: int = 512, fill: bool = True) -> bytes:
    """A disk of `size` bytes with a GPT of these partitions (number, type, first and last sector)."""
    image = bytearray(compressible(size) if fill else bytes(size))
    entries = bytearray(128 * 128)
    for number, kind, first, last in parts:
        unique = uuid.uuid5(DISK, str(number))
        name = f"part{number}".encode("utf-16-le")
        place = (number - 1) * 128
        entries[place : place + 128] = struct.pack(
            "<16s16sQQQ72s", kind.bytes_le, unique.bytes_le, first, last, 0, name
        )
    span = -(-len(entries) // sector)
    total = size // sector

    def header(own: int, other: int, table: int) -> bytes:
        fields = (b"EFI PART", 0x10000, 92, 0, 0, own, other, 2 + span, total - span - 2, DISK.bytes_le)
        packed = struct.pack("<8sIIIIQQQQ16sQIII", *fields, table, 128, 128, binascii.crc32(entries))
        return packed[:16] + struct.pack("<I", binascii.crc32(packed)) + packed[20:]

    image[: 2 * sector + span * sector] = bytes(2 * sector + span * sector)
    image[446 + 4] = 0xEE
    image[446 + 8 : 446 + 16] = struct.pack("<II", 1, total - 1)
    image[510:512] = b"\x55\xaa"
    image[sector : sector + 92] = header(1, total - 1, 2)
    image[2 * sector : 2 * sector + len(entries)] = entries
    tail = (total - span - 1) * sector
    image[tail:] = bytes(size - tail)
    image[tail : tail + len(entries)] = entries
    image[(total - 1) * sector : (total - 1) * sector + 92] = header(total - 1, 1, total - span - 1)
    return bytes(image)


def zstd(data: bytes, *, checksum: bool = False, window_log: int = 0) -> bytes:
    """One frame that tells its size, by the library itself."""
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_createCCtx.restype = ctypes.c_void_p
    library.ZSTD_compress2.restype = ctypes.c_size_t
    library.ZSTD_compressBound.restype = ctypes.c_size_t
    context = ctypes.c_void_p(library.ZSTD_createCCtx())
    for parameter, value in ((201, int(checksum)), (101, window_log), (160, int(window_log > 0))):
        library.ZSTD_CCtx_setParameter(context, parameter, value)
    room = library.ZSTD_compressBound(ctypes.c_size_t(len(data)))
    result = ctypes.create_string_buffer(room)
    size = library.ZSTD_compress2(context, result, ctypes.c_size_t(room), data, ctypes.c_size_t(len(data)))
    library.ZSTD_freeCCtx(context)
    return result.raw[:size]
