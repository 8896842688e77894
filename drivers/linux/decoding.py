"""From the bytes of an image as it is published to those of the disk: raw, zstd, gzip. Pure but for memory."""

import zlib
from collections.abc import Callable
from typing import Protocol

from drivers.linux import zstandard
from protocol.shapes.deploy import Image, ImageFormat

__all__ = ["Decoder", "DecodingError", "decoder_for", "format_of"]

_GZIP = 31
"""zlib's window bits for a gzip wrapper."""
_ENDINGS = {
    ".raw": ImageFormat.RAW,
    ".img": ImageFormat.RAW,
    ".zst": ImageFormat.RAW_ZST,
    ".gz": ImageFormat.RAW_GZ,
    ".qcow2": ImageFormat.QCOW2,
}


class DecodingError(ValueError):
    """The stream is not what its format says: damaged on the way, or published so."""


Source = Callable[[], memoryview | None]
"""The next part of the stream, in writable memory that stays valid until the next call; None at its end."""


class Decoder(Protocol):
    def read_into(self, target: memoryview) -> int:
        """Fills the target; fewer bytes only at the end. Raises DecodingError."""

    def expected_size(self) -> int | None:
        """What the whole becomes, where the beginning tells; asked after the first `read_into`."""

    def close(self) -> None: ...


def format_of(image: Image) -> ImageFormat:
    """As it is named, or by the address's ending. Raises ValueError that lists the endings."""
    if image.format is not None:
        return image.format
    path = image.url.partition("?")[0].partition("#")[0].lower()
    for ending, form in _ENDINGS.items():
        if path.endswith(ending):
            return form
    raise ValueError(
        f"the address does not end in {', '.join(_ENDINGS)}: give the image's format "
        f"({', '.join(form.value for form in ImageFormat)})"
    )


def decoder_for(form: ImageFormat, source: Source) -> Decoder:
    """A qcow2 file is taken as it is: it can only be read once it is whole."""
    match form:
        case ImageFormat.RAW_ZST:
            return _Zstd(source)
        case ImageFormat.RAW_GZ:
            return _Gzip(source)
        case _:
            return _Raw(source)


class _Raw:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._part = memoryview(b"")

    def read_into(self, target: memoryview) -> int:
        done = 0
        while done < len(target):
            if not self._part:
                part = self._source()
                if part is None:
                    break
                self._part = part
            count = min(len(self._part), len(target) - done)
            target[done : done + count] = self._part[:count]
            self._part = self._part[count:]
            done += count
        return done

    def expected_size(self) -> int | None:
        return None

    def close(self) -> None:
        self._part = memoryview(b"")


class _Zstd:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._part = memoryview(bytearray())
        self._stream = zstandard.Decompression()
        self._size: int | None = None
        self._begun = False

    def read_into(self, target: memoryview) -> int:
        done = 0
        more = True
        while done < len(target):
            if not self._part and more:
                more = self._take()
            try:
                taken, given = self._stream.step(self._part, target[done:])
            except ValueError as error:
                raise DecodingError(f"it cannot be decompressed: {error}") from error
            self._part = self._part[taken:]
            done += given
            if not more and not given:
                if not self._stream.at_frame_end:
                    raise DecodingError("it ends in the middle of a zstd frame")
                break
        return done

    def _take(self) -> bool:
        part = self._source()
        if part is None:
            return False
        if not self._begun:
            self._begun = True
            self._size = zstandard.frame_size(part[: min(len(part), 18)])
        self._part = part
        return True

    def expected_size(self) -> int | None:
        return self._size

    def close(self) -> None:
        self._part = memoryview(b"")
        self._stream.close()


class _Gzip:
    """Also several members one after the other, as `pigz` and `cat` make them."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stream = zlib.decompressobj(_GZIP)
        self._rest: bytes = b""
        self._begun = False
        self._ended = False

    def read_into(self, target: memoryview) -> int:
        done = 0
        while done < len(target) and not self._ended:
            if not self._rest:
                part = self._source()
                if part is None:
                    done += self._end(target[done:])
                    break
                self._rest = bytes(part)
            if self._stream.eof:
                # Zeros after the last member are padding (tapes, and some image builders).
                self._rest = self._rest.lstrip(b"\0")
                if not self._rest:
                    continue
                self._stream = zlib.decompressobj(_GZIP)
            try:
                data = self._stream.decompress(self._rest, len(target) - done)
            except zlib.error as error:
                raise DecodingError(f"it cannot be decompressed: {error}") from error
            self._begun = True
            self._rest = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            target[done : done + len(data)] = data
            done += len(data)
        return done

    def _end(self, target: memoryview) -> int:
        """What is still inside the decompressor after the last byte has gone in."""
        if self._stream.eof:
            self._ended = True
            return 0
        data = self._stream.decompress(b"", len(target))
        target[: len(data)] = data
        if not self._stream.eof and len(data) < len(target):
            raise DecodingError("it ends in the middle of a gzip member" if self._begun else "it is empty")
        return len(data)

    def expected_size(self) -> int | None:
        return None

    def close(self) -> None:
        self._rest = b""
