"""Tells the kernel which partitions a disk has now: by its own calls, so that a disk in use need not be read anew."""

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence

from drivers.linux.block_device import BlockDevice
from drivers.linux.partitioning import Span
from protocol.errors import ErrorCode, OperationError

__all__ = ["forget_partitions", "show_partitions"]

_BLKPG = 0x1269
_ADD, _DELETE = 1, 2


class _Partition(ctypes.Structure):
    """struct blkpg_partition (linux/blkpg.h)."""

    _fields_ = (
        ("start", ctypes.c_longlong),
        ("length", ctypes.c_longlong),
        ("pno", ctypes.c_int),
        ("devname", ctypes.c_char * 64),
        ("volname", ctypes.c_char * 64),
    )


class _Argument(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_int),
        ("flags", ctypes.c_int),
        ("datalen", ctypes.c_int),
        ("data", ctypes.POINTER(_Partition)),
    )


def show_partitions(device: BlockDevice, spans: Sequence[Span], known: Sequence[int] = ()) -> None:
    """From now on the disk has exactly these partitions. `known`: the numbers that the kernel shows now.

    Raises OperationError CONFLICT where one of them is in use.
    """
    if not device.is_block:
        return
    forget_partitions(device, known)
    for span in spans:
        # Another program (udev) may have had the kernel read the table meanwhile: then it is there already.
        with _unless(errno.EBUSY):
            _call(device, _ADD, span.number, span.start, span.size)


def forget_partitions(device: BlockDevice, known: Sequence[int]) -> None:
    """Raises OperationError CONFLICT where one of them is in use."""
    if not device.is_block:
        return
    for number in known:
        try:
            with _unless(errno.ENXIO):
                _call(device, _DELETE, number, 0, 0)
        except OSError as error:
            raise OperationError(
                ErrorCode.CONFLICT, f"partition {number} of {device.path} is in use: {os.strerror(error.errno or 0)}"
            ) from error


def _call(device: BlockDevice, act: int, number: int, start: int, length: int) -> None:
    partition = _Partition(start, length, number, b"", b"")
    argument = _Argument(act, 0, ctypes.sizeof(partition), ctypes.pointer(partition))
    fcntl.ioctl(device.handle, _BLKPG, bytes(argument))


@contextlib.contextmanager
def _unless(expected: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != expected:
            raise
