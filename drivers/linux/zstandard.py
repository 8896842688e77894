"""Decompression by the system's libzstd, straight from and into memory that is there.

The library lies in every Debian (dpkg itself needs it), so that the ramdisk carries nothing more; a call lets
Python's other threads run meanwhile.
"""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from functools import cache
from typing import Any

from protocol.errors import ErrorCode, OperationError

__all__ = ["LARGEST_WINDOW_LOG", "Decompression", "frame_size"]

LARGEST_WINDOW_LOG = 25
"""Frames that need more memory than 32 MiB to be read are refused: the whole write has to stay below 128 MiB.
`zstd -19` needs 8 MiB, `--long=25` 32 MiB."""
_PARAMETER_WINDOW_LOG_MAX = 100
_UNKNOWN_SIZE = (1 << 64) - 1
_INVALID = (1 << 64) - 2
_LIBRARY = "libzstd.so.1"


class _Part(ctypes.Structure):
    """ZSTD_inBuffer and ZSTD_outBuffer have one form (zstd.h)."""

    _fields_ = (("place", c_void_p), ("size", c_size_t), ("position", c_size_t))


@cache
def _library() -> Any:
    """Raises OperationError UNSUPPORTED where it is not installed."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise OperationError(
            ErrorCode.UNSUPPORTED,
            f"{_LIBRARY} is not installed here: install libzstd1, or publish the image as raw.gz",
        ) from None
    library.ZSTD_createDCtx.restype = c_void_p
    library.ZSTD_freeDCtx.argtypes = [c_void_p]
    library.ZSTD_DCtx_setParameter.argtypes = [c_void_p, c_int, c_int]
    library.ZSTD_DCtx_setParameter.restype = c_size_t
    library.ZSTD_decompressStream.argtypes = [c_void_p, POINTER(_Part), POINTER(_Part)]
    library.ZSTD_decompressStream.restype = c_size_t
    library.ZSTD_isError.argtypes = [c_size_t]
    library.ZSTD_isError.restype = c_uint
    library.ZSTD_getErrorName.argtypes = [c_size_t]
    library.ZSTD_getErrorName.restype = c_char_p
    library.ZSTD_getFrameContentSize.argtypes = [c_void_p, c_size_t]
    library.ZSTD_getFrameContentSize.restype = c_ulonglong
    return library


def _place(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if len(view) else 0


class Decompression:
    """One stream of frames. Used by one thread at a time; `close` gives its memory back."""

    def __init__(self) -> None:
        self._library = _library()
        self._context = c_void_p(self._library.ZSTD_createDCtx())
        self._library.ZSTD_DCtx_setParameter(self._context, _PARAMETER_WINDOW_LOG_MAX, LARGEST_WINDOW_LOG)
        self.at_frame_end = True
        """Whether the stream may end here."""

    def step(self, source: memoryview, target: memoryview) -> tuple[int, int]:
        """Bytes taken and bytes given. Both memories must be writable. Raises ValueError with the library's words."""
        taken, given = _Part(_place(source), len(source), 0), _Part(_place(target), len(target), 0)
        left = self._library.ZSTD_decompressStream(self._context, byref(given), byref(taken))
        if self._library.ZSTD_isError(left):
            words = self._library.ZSTD_getErrorName(left).decode(errors="replace")
            if "too much memory" in words:
                words = (
                    f"it needs more than {1 << LARGEST_WINDOW_LOG >> 20} MiB to be read: compress it with at most "
                    + (f"--long={LARGEST_WINDOW_LOG}")
                )
            raise ValueError(words)
        if taken.position or given.position:
            self.at_frame_end = left == 0
        return int(taken.position), int(given.position)

    def close(self) -> None:
        if self._context:
            self._library.ZSTD_freeDCtx(self._context)
            self._context = c_void_p(None)


def frame_size(head: memoryview) -> int | None:
    """What the first frame becomes, in bytes, where its header tells."""
    size = int(_library().ZSTD_getFrameContentSize(_place(head), len(head)))
    return None if size in (_UNKNOWN_SIZE, _INVALID) else size
