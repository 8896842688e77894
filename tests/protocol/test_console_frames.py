"""Console frames: what is written is read again, and garbage is refused with a reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.console_frames import (
    CONSOLE_HEADER_BYTES,
    MAX_CONSOLE_BYTES,
    ConsoleEnded,
    ConsoleFrame,
    EndReason,
    FrameKind,
    decode_console_frame,
)
from protocol.errors import ProtocolError
from protocol.ids import new_id

STREAM = new_id("strm")


@given(st.sampled_from(FrameKind), st.integers(0, (1 << 64) - 1), st.binary(max_size=200))
def test_a_frame_survives_the_wire(kind: FrameKind, offset: int, data: bytes) -> None:
    frame = ConsoleFrame(kind, STREAM, offset, data)
    assert decode_console_frame(frame.encode()) == frame


def test_the_header_is_as_documented() -> None:
    message = ConsoleFrame(FrameKind.INPUT, STREAM, 258, b"ls\r").encode()
    assert message == b"\x05" + STREAM.removeprefix("strm_").encode() + b"\0\0\0\0\0\0\1\2" + b"ls\r"
    assert CONSOLE_HEADER_BYTES == 35


def test_a_gap_and_an_attach_carry_a_number() -> None:
    gap = decode_console_frame(ConsoleFrame.counting(FrameKind.GAP, STREAM, 5, 1 << 40).encode())
    assert (gap.offset, gap.count) == (5, 1 << 40)
    with pytest.raises(ProtocolError, match="8 bytes"):
        _ = ConsoleFrame(FrameKind.GAP, STREAM, 5, b"xyz").count


def test_an_end_carries_its_reason_in_words() -> None:
    ended = ConsoleEnded(EndReason.LOST, "the BMC does not answer")
    assert decode_console_frame(ConsoleFrame.ending(STREAM, 9, ended).encode()).ended == ended
    for data in (b"", b"\xff", b'{"reason": "vanished", "message": ""}', b"[" * 10_000):
        with pytest.raises(ProtocolError):
            _ = ConsoleFrame(FrameKind.ENDED, STREAM, 0, data).ended


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01" * (CONSOLE_HEADER_BYTES - 1),
        ConsoleFrame(FrameKind.DATA, STREAM).encode() + bytes(MAX_CONSOLE_BYTES + 1),
        b"\x63" + ConsoleFrame(FrameKind.DATA, STREAM).encode()[1:],
        b"\x01" + b"\xff" * 34,
        b"\x01" + b"A" * 26 + bytes(8),
    ],
    ids=["empty", "short", "too much data", "unknown kind", "no text", "no id"],
)
def test_what_is_no_frame_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_console_frame(message)


@given(st.binary(max_size=100))
def test_no_message_does_more_than_be_refused(message: bytes) -> None:
    try:
        frame = decode_console_frame(message)
    except ProtocolError:
        return
    assert frame.encode() == message
