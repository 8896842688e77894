"""One console in the agent: read at the reader's pace, kept for one that is cut off, opened again when it is lost."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from agent.console import Console
from drivers.console import ConsoleEnding, gone
from protocol.console_frames import (
    INPUT_WINDOW,
    ConsoleFrame,
    EndReason,
    FrameKind,
    decode_console_frame,
)
from protocol.errors import ErrorCode, OperationError, ProtocolError
from protocol.ids import new_id
from tests.agent.rig import until

STREAM = new_id("strm")


class Port:
    """A console stream whose machine the test is."""

    def __init__(self) -> None:
        self.typed = bytearray()
        self.breaks = 0
        self.closed = False
        self.room = asyncio.Event()
        self.room.set()
        self.ending: ConsoleEnding | None = None
        self._unread: asyncio.Queue[bytes] = asyncio.Queue()

    def says(self, data: bytes) -> None:
        self._unread.put_nowait(data)

    def ends(self, reason: EndReason) -> None:
        self.ending = ConsoleEnding(reason, f"the BMC {reason} it")
        self._unread.put_nowait(b"")

    async def read(self) -> bytes:
        return await self._unread.get()

    async def write(self, data: bytes) -> None:
        await self.room.wait()
        if self.ending is not None:
            raise gone(self.ending)
        self.typed += data

    async def send_break(self) -> None:
        self.breaks += 1

    async def aclose(self) -> None:
        self.closed = True


class Bmc:
    """Opens ports one after the other; `refusals` come first."""

    def __init__(self) -> None:
        self.ports = [Port()]
        self.asked: list[bool] = []
        self.refusals: list[ErrorCode] = []

    async def open(self, *, take_over: bool) -> Port:
        self.asked.append(take_over)
        if self.refusals:
            raise OperationError(self.refusals.pop(0), "not now")
        self.ports.append(Port())
        return self.ports[-1]

    async def close(self, stream: object) -> None:
        assert isinstance(stream, Port)
        await stream.aclose()

    @property
    def port(self) -> Port:
        return self.ports[-1]


class Desk:
    """A console with its BMC, and the control plane's end."""

    def __init__(self, *, backlog: int = 65_536, linger: float = 60.0) -> None:
        self.bmc = Bmc()
        self.log = bytearray()
        self.over = asyncio.Event()
        self.woken = asyncio.Event()
        self.read = bytearray()
        self.gaps: list[tuple[int, int]] = []
        self.granted = 0
        self.ended: ConsoleFrame | None = None
        self.console = Console(
            STREAM, self.bmc.port, self.bmc, backlog=backlog, linger=linger, log=self.log.extend,
            wake=self.woken.set, over=self.over.set,
        )  # fmt: skip

    def attach(self, offset: int = 0, window: int = 1_000_000) -> None:
        self.console.receive(ConsoleFrame.counting(FrameKind.ATTACH, STREAM, offset, window))

    def type(self, data: bytes, offset: int = 0) -> None:
        self.console.receive(ConsoleFrame(FrameKind.INPUT, STREAM, offset, data))

    def take(self) -> bool:
        """All that the console has to send; whether it has ended."""
        while (message := self.console.take()) is not None:
            frame = decode_console_frame(message)
            match frame.kind:
                case FrameKind.DATA:
                    self.read += frame.data
                case FrameKind.GAP:
                    self.gaps.append((frame.offset, frame.count))
                case FrameKind.WINDOW:
                    self.granted = frame.offset
                case FrameKind.ENDED:
                    self.ended = frame
                case _:
                    raise AssertionError(frame)
        return self.ended is not None

    async def heard(self, expected: bytes) -> None:
        while expected not in self.read:
            self.woken.clear()
            self.take()
            if expected not in self.read:
                await self.woken.wait()


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr("agent.console._DELAYS", (0.001, 0.002))
    desk = Desk()
    yield desk
    await desk.console.aclose("the test is over")


async def test_what_the_machine_writes_is_read_and_logged(desk: Desk) -> None:
    desk.attach()
    desk.bmc.port.says(b"login: ")
    await desk.heard(b"login: ")
    assert bytes(desk.log) == b"login: "


async def test_what_is_typed_reaches_the_machine_in_order(desk: Desk) -> None:
    desk.attach()
    desk.take()
    assert desk.granted == INPUT_WINDOW
    desk.type(b"ls")
    desk.console.receive(ConsoleFrame(FrameKind.BREAK, STREAM, 2))
    desk.type(b"\r", 2)
    await until(lambda: bytes(desk.bmc.port.typed) == b"ls\r")
    assert desk.bmc.port.breaks == 1


async def test_a_machine_that_takes_no_input_gives_no_more_room(desk: Desk) -> None:
    desk.attach()
    desk.bmc.port.room.clear()
    desk.take()
    desk.type(bytes(INPUT_WINDOW))
    with pytest.raises(ProtocolError, match="more was typed"):
        desk.type(b"x")
    await asyncio.sleep(0)
    desk.take()
    desk.bmc.port.room.set()
    await until(lambda: len(desk.bmc.port.typed) == INPUT_WINDOW)
    await until(lambda: not desk.take() and desk.granted == 2 * INPUT_WINDOW)


async def test_no_more_is_sent_than_the_window_takes(desk: Desk) -> None:
    desk.attach(window=10)
    desk.bmc.port.says(bytes(25))
    await until(lambda: len(desk.log) == 25)
    desk.take()
    assert len(desk.read) == 10
    desk.console.receive(ConsoleFrame(FrameKind.WINDOW, STREAM, 25))
    desk.take()
    assert (len(desk.read), desk.gaps) == (25, [])


async def test_a_reader_that_is_too_slow_is_told_how_much_it_missed() -> None:
    desk = Desk(backlog=100)
    desk.attach(window=10)
    for number in range(30):
        desk.bmc.port.says(b"%010d" % number)
    await until(lambda: len(desk.log) == 300)
    desk.take()
    desk.console.receive(ConsoleFrame(FrameKind.WINDOW, STREAM, 1_000))
    desk.take()
    # Nothing was taken before the backlog was full, so what it had forgotten by then is the gap.
    assert desk.gaps == [(0, 200)]
    assert bytes(desk.read) == bytes(desk.log[200:])
    await desk.console.aclose("")


async def test_a_reader_that_was_cut_off_goes_on_where_it_was(desk: Desk) -> None:
    desk.attach()
    desk.bmc.port.says(b"before ")
    await desk.heard(b"before ")
    desk.console.detach()
    desk.bmc.port.says(b"meanwhile ")
    await until(lambda: b"meanwhile" in desk.log)
    assert desk.console.take() is None
    desk.attach(offset=7)
    await desk.heard(b"before meanwhile ")
    assert desk.gaps == []


async def test_one_that_begins_gets_what_is_left_and_hears_of_no_gap() -> None:
    desk = Desk(backlog=10)
    desk.bmc.port.says(b"0123456789abc")
    await until(lambda: len(desk.log) == 13)
    desk.attach()
    desk.take()
    assert (bytes(desk.read), desk.gaps) == (b"3456789abc", [])
    await desk.console.aclose("")


async def test_a_lost_console_is_opened_again_and_taken_over(desk: Desk) -> None:
    desk.attach()
    desk.bmc.refusals = [ErrorCode.UNREACHABLE, ErrorCode.BUSY, ErrorCode.TIMEOUT]
    desk.bmc.port.says(b"going down\r\n")
    desk.bmc.port.ends(EndReason.LOST)
    await desk.heard(b"connected again")
    desk.bmc.port.says(b"up again")
    await desk.heard(b"up again")
    assert desk.bmc.asked == [True] * 4
    assert desk.bmc.ports[0].closed
    assert b"[rackwright: the BMC lost it; trying to connect again" in desk.read
    assert b"connected again" in desk.log


async def test_a_console_that_the_bmc_ended_is_not_taken_from_whoever_has_it(desk: Desk) -> None:
    desk.attach()
    desk.bmc.refusals = [ErrorCode.CONFLICT]
    desk.bmc.port.ends(EndReason.ENDED)
    await until(desk.take)
    assert desk.ended is not None
    assert (desk.ended.ended.reason, desk.ended.ended.code) == (EndReason.ENDED, "CONFLICT")
    assert desk.bmc.asked == [False]
    assert desk.over.is_set()


async def test_a_changed_password_ends_it_with_the_cause(desk: Desk) -> None:
    desk.attach()
    desk.bmc.refusals = [ErrorCode.AUTH_FAILED]
    desk.bmc.port.ends(EndReason.LOST)
    await until(desk.take)
    assert desk.ended is not None
    assert desk.ended.ended.code == "AUTH_FAILED"


async def test_keys_that_were_pressed_while_it_was_lost_are_not_obeyed_later(desk: Desk) -> None:
    desk.attach()
    desk.take()
    desk.bmc.port.room.clear()
    desk.type(b"reboot\r")
    desk.bmc.port.ends(EndReason.LOST)
    desk.bmc.ports[0].room.set()
    await desk.heard(b"connected again")
    desk.type(b"x", 7)
    await until(lambda: bytes(desk.bmc.port.typed) == b"x")


async def test_a_console_that_nobody_reads_is_given_back_after_a_while() -> None:
    desk = Desk(linger=0.02)
    await desk.over.wait()
    await until(lambda: desk.bmc.port.closed)
    assert desk.console.is_closed


async def test_a_reader_keeps_it_open_and_its_leaving_lets_it_go() -> None:
    desk = Desk(linger=0.05)
    desk.attach()
    await asyncio.sleep(0.1)
    assert not desk.over.is_set()
    desk.console.receive(ConsoleFrame(FrameKind.DETACH, STREAM))
    await desk.over.wait()
    await until(lambda: desk.bmc.port.closed)


async def test_closing_tells_the_reader_after_the_last_bytes(desk: Desk) -> None:
    desk.attach()
    desk.bmc.port.says(b"bye")
    await until(lambda: bool(desk.log))
    await desk.console.aclose("the agent stops")
    desk.take()
    assert bytes(desk.read) == b"bye"
    assert desk.ended is not None
    assert desk.ended.ended.message == "the agent stops"
    assert desk.bmc.port.closed


async def test_frames_that_only_an_agent_sends_are_refused(desk: Desk) -> None:
    with pytest.raises(ProtocolError, match="takes no DATA"):
        desk.console.receive(ConsoleFrame(FrameKind.DATA, STREAM, 0, b"x"))
    with pytest.raises(ProtocolError, match="8 bytes"):
        desk.console.receive(ConsoleFrame(FrameKind.ATTACH, STREAM, 0, b"x"))
    desk.type(b"nobody is attached")
