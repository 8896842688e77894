"""Server-sent events as bytes bring them: lines into events, whatever the pieces that they come in. Pure.

The form is that of the HTML standard (9.2, "Server-sent events"), which DSP0266 takes over for its event streams.
"""

from dataclasses import dataclass

__all__ = ["LARGEST_EVENT", "LONGEST_RETRY", "EventStream", "StreamedEvent"]

LARGEST_EVENT = 1024 * 1024
"""Bytes of one event; a larger one is let pass by unread."""

LONGEST_RETRY = 3600.0
"""Seconds; a BMC that wants to be left alone for longer is asked again all the same."""


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """One event: its data, the stream's last id then, and whether an event before it was too large to be read."""

    data: str
    id: str | None = None
    after_loss: bool = False


class EventStream:
    """Feed it bytes as they come. Comments, which BMCs send to keep the line open, and unknown fields are nothing."""

    def __init__(self) -> None:
        self.last_id: str | None = None
        self.retry: float | None = None
        """Seconds that the BMC wants between two connections, where it has said so."""
        self._rest = bytearray()
        self._data: list[str] = []
        self._size = 0
        self._too_large = self._lost = False
        self._begun = self._after_return = False

    def feed(self, chunk: bytes) -> list[StreamedEvent]:
        """The events that are whole now."""
        if self._after_return and chunk:
            # A line's end of two bytes, cut in the middle.
            chunk, self._after_return = chunk.removeprefix(b"\n"), False
        if chunk:
            self._after_return = chunk.endswith(b"\r")
        first, *others = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        # Put behind what is there, which is not looked through again: a long line may come in many small pieces.
        self._rest += first
        lines: list[bytes] = []
        if others:
            lines = [bytes(self._rest), *others[:-1]]
            self._rest = bytearray(others[-1])
        if len(self._rest) > LARGEST_EVENT:
            # A line without an end; what comes of it later is taken for a field that nobody knows.
            self._rest, self._too_large = bytearray(b":"), True
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, raw: bytes) -> StreamedEvent | None:
        if not self._begun:
            raw, self._begun = raw.removeprefix(b"\xef\xbb\xbf"), True
        if not raw:
            return self._end()
        field, _, value = raw.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._size += len(raw)
            if self._size > LARGEST_EVENT:
                self._too_large = True
                self._data.clear()
            else:
                self._data.append(value)
        elif field == "id" and "\0" not in value:
            self.last_id = value[:200] or None
        elif field == "retry" and value.isdecimal() and len(value) < 9:
            self.retry = min(int(value) / 1000, LONGEST_RETRY)
        return None

    def _end(self) -> StreamedEvent | None:
        data, lost = "\n".join(self._data), self._too_large
        self._data, self._size, self._too_large = [], 0, False
        if lost:
            self._lost = True
            return None
        if not data:
            return None
        event = StreamedEvent(data, self.last_id, self._lost)
        self._lost = False
        return event
