"""The last bytes of a stream, read again from wherever a reader is."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.backlog import Backlog, Piece


def test_what_was_written_is_read_from_any_place() -> None:
    backlog = Backlog(100)
    backlog.append(b"hello ")
    backlog.append(b"world")
    assert backlog.read(0, 100) == Piece(0, b"hello world")
    assert backlog.read(6, 3) == Piece(6, b"wor")
    assert backlog.read(11, 10) == Piece(11, b"")


def test_the_oldest_bytes_make_room_and_a_late_reader_sees_what_is_gone() -> None:
    backlog = Backlog(4)
    backlog.append(b"abcdef")
    assert (backlog.start, backlog.end) == (2, 6)
    assert backlog.read(0, 10) == Piece(2, b"cdef")


def test_bytes_that_were_lost_on_their_way_are_a_hole() -> None:
    backlog = Backlog(100)
    backlog.append(b"ab")
    backlog.skip_to(10)
    backlog.append(b"cd")
    assert backlog.read(0, 100) == Piece(0, b"ab")
    assert backlog.read(2, 100) == Piece(10, b"cd")
    assert backlog.end == 12


def test_a_hole_at_the_end_is_seen_before_anything_follows_it() -> None:
    backlog = Backlog(100)
    backlog.append(b"ab")
    backlog.skip_to(10)
    assert backlog.read(2, 100) == Piece(10, b"")
    backlog.skip_to(3)
    assert backlog.end == 10


def test_a_stream_may_begin_anywhere() -> None:
    backlog = Backlog(100, start=1000)
    assert (backlog.start, backlog.end) == (1000, 1000)
    backlog.append(b"x")
    assert backlog.read(0, 10) == Piece(1000, b"x")


@given(st.lists(st.one_of(st.binary(max_size=40), st.integers(1, 30))), st.integers(1, 60), st.integers(1, 50))
def test_a_reader_gets_each_kept_byte_once_and_in_order(events: list[bytes | int], size: int, most: int) -> None:
    backlog, everything = Backlog(size), dict[int, int]()
    for event in events:
        if isinstance(event, int):
            backlog.skip_to(backlog.end + event)
        else:
            everything |= dict(enumerate(event, backlog.end))
            backlog.append(event)
    kept = dict(sorted(everything.items())[-size:])
    read, place = dict[int, int](), 0
    while place < backlog.end:
        piece = backlog.read(place, most)
        assert piece.offset >= place
        read |= dict(enumerate(piece.data, piece.offset))
        place = piece.end
    assert read == kept
