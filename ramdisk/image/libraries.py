"""Which shared libraries a program needs (ELF: System V ABI, chapter 5), and whether they are in the image."""

import struct
from collections.abc import Iterator
from pathlib import Path

__all__ = ["missing_libraries", "needed_libraries"]

_DYNAMIC, _LOAD = 2, 1
_NEEDED, _STRINGS = 1, 5


def needed_libraries(data: bytes) -> tuple[str, ...]:
    """The names that a 64-bit little-endian ELF file asks its loader for; none for any other file. Pure."""
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < 64:
        return ()
    try:
        return tuple(_needed(data))
    except (struct.error, ValueError, IndexError):
        return ()


def _needed(data: bytes) -> Iterator[str]:
    first, size, count = (
        struct.unpack_from("<Q", data, 32)[0],
        *struct.unpack_from("<HH", data, 54),
    )
    headers = [struct.unpack_from("<IIQQQQQQ", data, first + size * index) for index in range(count)]
    for kind, _, offset, _, _, length, _, _ in headers:
        if kind != _DYNAMIC:
            continue
        entries = list(struct.iter_unpack("<QQ", data[offset : offset + length // 16 * 16]))
        address = next(value for tag, value in entries if tag == _STRINGS)
        strings = next(h[2] + address - h[3] for h in headers if h[0] == _LOAD and h[3] <= address < h[3] + h[5])
        for tag, value in entries:
            if tag == _NEEDED:
                yield data[strings + value : data.index(b"\0", strings + value)].decode()


def missing_libraries(root: Path) -> dict[str, list[str]]:
    """The libraries that nothing below `root` is called like, each with the files that need it."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() or path.is_symlink()]
    names = {path.name for path in files}
    missing: dict[str, list[str]] = {}
    for path in files:
        if path.is_symlink() or path.suffix in (".py", ".pyc", ".ko"):
            continue
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        for library in needed_libraries(path.read_bytes()):
            if library not in names:
                missing.setdefault(library, []).append(str(path.relative_to(root)))
    return missing
