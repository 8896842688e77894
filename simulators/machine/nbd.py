"""An image as a network block device, for QEMU to read while the machine runs (the NBD protocol, proto.md).

Fixed newstyle handshake with `NBD_OPT_GO`, simple replies, read only. An image that cannot be read is an input/output
error for the machine, as with a real virtual drive.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

from simulators.machine.image import Image, ImageFault

log = logging.getLogger(__name__)

_GREETING = b"NBDMAGIC"
_OPTION_MAGIC = b"IHAVEOPT"
_OPTION = struct.Struct(">8sII")
_OPTION_REPLY_MAGIC = 0x3E889045565A9
_OPTION_REPLY = struct.Struct(">QIII")
_EXPORT_INFO = struct.Struct(">HQH")
_REQUEST = struct.Struct(">IHHQQI")
_REQUEST_MAGIC = 0x25609513
_REPLY = struct.Struct(">IIQ")
_REPLY_MAGIC = 0x67446698
_FIXED_NEWSTYLE, _NO_ZEROES = 0x1, 0x2
_HAS_FLAGS, _READ_ONLY = 0x1, 0x2
_FLAGS = _HAS_FLAGS | _READ_ONLY
_INFO_EXPORT = 0
_SECTOR = 512
_LARGEST_OPTION = 4096
_LARGEST_READ = 32 << 20


class Option(IntEnum):
    EXPORT_NAME = 1
    ABORT = 2
    INFO = 6
    GO = 7


class OptionReply(IntEnum):
    ACK = 1
    INFO = 3
    UNSUPPORTED = 1 << 31 | 1


class Command(IntEnum):
    READ = 0
    WRITE = 1
    DISCONNECT = 2
    FLUSH = 3


class Error(IntEnum):
    NONE = 0
    NOT_PERMITTED = 1
    INPUT_OUTPUT = 5
    INVALID = 22


class Export:
    """One image on a Unix socket in a folder, filled up to whole sectors. `on_fault` hears why a read failed."""

    def __init__(self, image: Image, folder: Path, name: str, on_fault: Callable[[str], None]) -> None:
        self.image = image
        # QEMU 7.2 waits for ever at the end of an export that is not of whole sectors.
        self.size = -(-image.size // _SECTOR) * _SECTOR
        self.name = name
        self._folder = folder
        self._on_fault = on_fault
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    @property
    def path(self) -> Path:
        return self._folder / self.name

    async def start(self) -> None:
        """Begins to listen, in the place of whatever an earlier run left there. Raises OSError."""
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        try:
            # A socket's path is at most 107 bytes long, a folder's may be longer.
            listener.bind(f"/proc/self/fd/{folder}/{self.name}")
            self.path.chmod(0o600)
        except BaseException:
            listener.close()
            raise
        finally:
            os.close(folder)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener)

    async def stop(self) -> None:
        """Cuts off whoever reads, and lets go of the image. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        self.path.unlink(missing_ok=True)
        await self.image.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._clients.add(task)
        try:
            if await self._shake_hands(reader, writer):
                await self._transmit(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            log.debug("the reader of %s has left", self.name)
        except asyncio.CancelledError:
            log.debug("the reader of %s is cut off", self.name)
        finally:
            self._clients.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """The options that the client haggles over; False where it leaves."""
        writer.write(_GREETING + _OPTION_MAGIC + struct.pack(">H", _FIXED_NEWSTYLE | _NO_ZEROES))
        (theirs,) = struct.unpack(">I", await reader.readexactly(4))
        while True:
            magic, option, length = _OPTION.unpack(await reader.readexactly(_OPTION.size))
            if magic != _OPTION_MAGIC or length > _LARGEST_OPTION:
                return False
            await reader.readexactly(length)
            if option == Option.EXPORT_NAME:
                zeroes = b"" if theirs & _NO_ZEROES else bytes(124)
                writer.write(struct.pack(">QH", self.size, _FLAGS) + zeroes)
                return True
            if option in (Option.INFO, Option.GO):
                info = _EXPORT_INFO.pack(_INFO_EXPORT, self.size, _FLAGS)
                writer.write(option_reply(option, OptionReply.INFO, info) + option_reply(option, OptionReply.ACK))
                if option == Option.GO:
                    return True
            elif option == Option.ABORT:
                writer.write(option_reply(option, OptionReply.ACK))
                return False
            else:
                writer.write(option_reply(option, OptionReply.UNSUPPORTED))
            await writer.drain()

    async def _transmit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            magic, _, kind, cookie, offset, length = _REQUEST.unpack(await reader.readexactly(_REQUEST.size))
            if magic != _REQUEST_MAGIC or kind == Command.DISCONNECT:
                return
            data, error = b"", Error.NONE
            if kind == Command.READ:
                data, error = await self._read(offset, length)
            elif kind == Command.WRITE:
                await discard(reader, length)
                error = Error.NOT_PERMITTED
            elif kind != Command.FLUSH:
                error = Error.INVALID
            writer.write(_REPLY.pack(_REPLY_MAGIC, error, cookie) + data)
            await writer.drain()

    async def _read(self, offset: int, length: int) -> tuple[bytes, Error]:
        if length > _LARGEST_READ or offset + length > self.size:
            return b"", Error.INVALID
        try:
            data = await self.image.read(offset, max(0, min(length, self.image.size - offset)))
            return data.ljust(length, b"\0"), Error.NONE
        except ImageFault as fault:
            self._on_fault(str(fault))
            return b"", Error.INPUT_OUTPUT


def option_reply(option: int, reply: OptionReply, data: bytes = b"") -> bytes:
    return _OPTION_REPLY.pack(_OPTION_REPLY_MAGIC, option, reply, len(data)) + data


async def discard(reader: asyncio.StreamReader, length: int) -> None:
    """Takes what belongs to a refused write off the stream."""
    while length > 0:
        length -= len(await reader.readexactly(min(length, 1 << 16)))
