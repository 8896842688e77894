"""The last bytes of a stream that may be read again: for whoever joins late, or was cut off for a while. Pure."""

from collections import deque
from typing import NamedTuple

__all__ = ["Backlog", "Piece"]


class Piece(NamedTuple):
    """Bytes of a stream, and the offset of the first one."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class _Run:
    """Bytes without a hole between them."""

    __slots__ = ("data", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.data = bytearray()

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class Backlog:
    """Keeps the last `size` bytes. Offsets count from the stream's beginning, lost bytes included."""

    def __init__(self, size: int, start: int = 0) -> None:
        self.size = size
        self.end = start
        """The offset of the next byte to come."""
        self._runs: deque[_Run] = deque()
        self._kept = 0

    @property
    def start(self) -> int:
        """The offset of the oldest byte that is kept; `end` where none is."""
        return self._runs[0].offset if self._runs else self.end

    def append(self, data: bytes) -> None:
        """The next bytes of the stream; the oldest ones make room."""
        if not data:
            return
        if not self._runs or self._runs[-1].end != self.end:
            self._runs.append(_Run(self.end))
        self._runs[-1].data += data
        self.end += len(data)
        self._kept += len(data)
        while self._kept > self.size:
            self._forget(self._kept - self.size)

    def skip_to(self, offset: int) -> None:
        """The bytes before `offset` were lost on their way here; an offset that was passed already is ignored."""
        self.end = max(self.end, offset)

    def read(self, offset: int, most: int) -> Piece:
        """Up to `most` bytes from `offset` on. A piece that begins later: what is between them is gone."""
        for run in self._runs:
            if run.end > offset:
                at = max(offset, run.offset)
                return Piece(at, bytes(run.data[at - run.offset : at - run.offset + most]))
        return Piece(max(offset, self.end), b"")

    def _forget(self, count: int) -> None:
        oldest = self._runs[0]
        count = min(count, len(oldest.data))
        del oldest.data[:count]
        oldest.offset += count
        self._kept -= count
        if not oldest.data:
            self._runs.popleft()
