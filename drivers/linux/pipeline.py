"""Three threads that pass memory on: one reads and hashes, one decompresses, one writes.

The memory is allotted once and goes round, so that an image of any size takes the same little of it. While one thread
waits for the network or the disk, or works inside a library, the others go on.
"""

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from drivers.linux.block_device import Buffer
from drivers.linux.decoding import Decoder, decoder_for
from protocol.shapes.deploy import ImageFormat

__all__ = ["CHUNK", "Meter", "Reader", "Sink", "Transfer", "Transferred"]

CHUNK = 4 << 20
"""What is written at once."""
_PART = 1 << 20
"""What is read at once."""
_PARTS, _CHUNKS = 8, 6


class Reader(Protocol):
    def read_into(self, target: memoryview) -> int: ...
    def abort(self) -> None: ...


class Sink(Protocol):
    def begin(self, expected: int | None) -> None:
        """Told once, before the first part: what all of it becomes, in bytes, where that is known."""

    def put(self, data: memoryview) -> None:
        """The next part, `CHUNK` bytes but for the last one, in page-aligned memory that may be written to."""


@dataclass(slots=True)
class Meter:
    """How far a transfer is; written by its threads, read by whoever shows it."""

    received: int = 0
    written: int = 0
    begun: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Transferred:
    """What went through: bytes on both sides, and the digests of what came in."""

    received: int
    written: int
    digests: dict[str, str]


class _Closed(Exception):
    """Nothing more goes through the channel."""


class _Channel:
    """Memory on its way from one thread to the next. Closing it wakes both."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Buffer, int]] = deque()
        self._state = threading.Condition()
        self._ended = False
        self._closed = False

    def put(self, memory: Buffer, size: int = 0) -> None:
        with self._state:
            self._waiting.append((memory, size))
            self._state.notify()

    def end(self) -> None:
        """Nothing comes after what is in it."""
        with self._state:
            self._ended = True
            self._state.notify_all()

    def close(self) -> None:
        """Whatever is in it is not wanted any more."""
        with self._state:
            self._closed = True
            self._state.notify_all()

    def get(self) -> tuple[Buffer, int] | None:
        """None at the end. Raises _Closed."""
        with self._state:
            while not self._waiting:
                if self._closed:
                    raise _Closed
                if self._ended:
                    return None
                self._state.wait()
            if self._closed:
                raise _Closed
            return self._waiting.popleft()


class Transfer:
    """One passage of an image from a reader to a sink. Used once."""

    def __init__(self, reader: Reader, form: ImageFormat, sink: Sink, meter: Meter, digests: tuple[str, ...]) -> None:
        self._reader = reader
        self._form = form
        self._sink = sink
        self._meter = meter
        self._hashes = {name: hashlib.new(name, usedforsecurity=True) for name in digests}
        self._free_parts, self._parts = _Channel(), _Channel()
        self._free_chunks, self._chunks = _Channel(), _Channel()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    def run(self) -> Transferred:
        """Until the end, in this thread and two more. Raises what reader, decoder or sink raised first."""
        self._meter.received = self._meter.written = 0
        for _ in range(_PARTS):
            self._free_parts.put(Buffer(-1, _PART))
        for _ in range(_CHUNKS):
            self._free_chunks.put(Buffer(-1, CHUNK))
        threads = [
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            for name, work in (("image-read", self._read), ("image-decode", self._decode))
        ]
        for thread in threads:
            thread.start()
        self._guarded(self._write)
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return Transferred(
            self._meter.received,
            self._meter.written,
            {name: digest.hexdigest() for name, digest in self._hashes.items()},
        )

    def abort(self, reason: BaseException) -> None:
        """Ends it as soon as the piece in hand is done; from any thread."""
        with self._lock:
            self._failure = self._failure or reason
        for channel in (self._free_parts, self._parts, self._free_chunks, self._chunks):
            channel.close()
        self._reader.abort()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except _Closed:
            return
        except BaseException as error:
            self.abort(error)

    def _read(self) -> None:
        while (free := self._free_parts.get()) is not None:
            memory = free[0]
            with memoryview(memory) as view:
                size = self._reader.read_into(view)
                for digest in self._hashes.values():
                    digest.update(view[:size])
            self._meter.received += size
            if size:
                self._parts.put(memory, size)
            if size < _PART:
                break
        self._parts.end()

    def _decode(self) -> None:
        held: list[Buffer] = []

        def source() -> memoryview | None:
            if held:
                self._free_parts.put(held.pop())
            part = self._parts.get()
            if part is None:
                return None
            held.append(part[0])
            return memoryview(part[0])[: part[1]]

        decoder: Decoder = decoder_for(self._form, source)
        try:
            begun = False
            while (free := self._free_chunks.get()) is not None:
                memory = free[0]
                with memoryview(memory) as view:
                    size = decoder.read_into(view)
                if not begun:
                    begun = True
                    self._sink.begin(decoder.expected_size())
                if size:
                    self._chunks.put(memory, size)
                if size < CHUNK:
                    break
            self._chunks.end()
        finally:
            decoder.close()

    def _write(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            memory, size = chunk
            with memoryview(memory) as view:
                self._sink.put(view[:size])
            self._meter.written += size
            self._free_chunks.put(memory)
