"""One console with many readers: the ring, the one writer, slow readers, lost links and agents that start anew."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from control_plane.console_reader import Ended, Gap, Heard, Output, Reader, Ready, WriterChanged
from control_plane.node_console import NodeConsole, Opened
from protocol.console_frames import (
    OUTPUT_WINDOW,
    ConsoleEnded,
    ConsoleFrame,
    EndReason,
    FrameKind,
    decode_console_frame,
)
from protocol.errors import ErrorCode, OperationError, ProtocolError, RequestCode, RequestError
from protocol.ids import new_id


class Link:
    """The agent's link: what was sent over it, and the agent's end of the stream."""

    def __init__(self, desk: "Desk") -> None:
        self.sent: list[ConsoleFrame] = []
        self.offset = 0
        self._desk = desk

    def post(self, frame: bytes) -> None:
        self.sent.append(decode_console_frame(frame))
        self._desk.moved.set()

    def says(self, data: bytes) -> None:
        stream = self._desk.console.stream or ""
        self._desk.console.receive(ConsoleFrame(FrameKind.DATA, stream, self.offset, data))
        self.offset += len(data)

    def loses(self, count: int) -> None:
        stream = self._desk.console.stream or ""
        self._desk.console.receive(ConsoleFrame.counting(FrameKind.GAP, stream, self.offset, count))
        self.offset += count

    def takes(self, offset: int) -> None:
        self._desk.console.receive(ConsoleFrame(FrameKind.WINDOW, self._desk.console.stream or "", offset))

    def ends(self, reason: EndReason, message: str = "so it is", code: str | None = None) -> None:
        ended = ConsoleEnded(reason, message, code)
        self._desk.console.receive(ConsoleFrame.ending(self._desk.console.stream or "", self.offset, ended))

    def of(self, kind: FrameKind) -> list[ConsoleFrame]:
        return [frame for frame in self.sent if frame.kind is kind]


class Desk:
    """A console between an agent and readers that the test is."""

    def __init__(self, *, ring_bytes: int = 65_536, linger: float = 60.0, take_over: bool = False) -> None:
        self.moved = asyncio.Event()
        self.link: Link | None = Link(self)
        self.elsewhere: Ended | None = None
        self.asked: list[bool] = []
        self.refusals: list[Exception] = []
        self.over = asyncio.Event()
        self._found = asyncio.Event()
        self.console = NodeConsole(
            ring_bytes=ring_bytes, linger=linger, open_stream=self._open, find=self._find, take_over=take_over,
            over=self.over.set,
        )  # fmt: skip

    async def _open(self, take_over: bool) -> Opened:
        self.asked.append(take_over)
        if self.refusals:
            raise self.refusals.pop(0)
        return Opened(new_id("strm"), "agent_1")

    async def _find(self, agent_id: str) -> Link | Ended | None:
        assert agent_id == "agent_1"
        if self.elsewhere is not None:
            return self.elsewhere
        if self.link is None:
            await asyncio.sleep(0.001)
        return self.link

    def join(self, name: str = "one", *, write: bool = True, replay: int | None = None) -> Reader:
        return self.console.join(name, wishes_to_write=write, replay=replay)

    async def attached(self) -> Link:
        """Until the agent has been asked to send; its link."""
        await until(lambda: self.link is not None and bool(self.link.of(FrameKind.ATTACH)))
        assert self.link is not None
        return self.link

    def cut(self) -> None:
        lost, self.link = self.link, None
        assert lost is not None
        self.console.link_lost(lost)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def news_of(reader: Reader) -> Heard:
    """What comes next, but that the console is open."""
    while isinstance(news := await reader.next(), Ready):
        continue
    return news


async def heard(reader: Reader, expected: bytes) -> None:
    """Reads output until this has come; nothing else may come before it."""
    read = b""
    while expected not in read:
        news = await news_of(reader)
        assert isinstance(news, Output), (news, read)
        read += news.data


async def waits(reader: Reader) -> bool:
    """Whether nothing is there to be read."""
    try:
        async with asyncio.timeout(0.01):
            await news_of(reader)
    except TimeoutError:
        return True
    return False


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr("control_plane.node_console._DELAYS", (0.001,))
    desk = Desk()
    yield desk
    desk.console.close()


async def test_every_reader_gets_every_byte(desk: Desk) -> None:
    readers = [desk.join(str(number)) for number in range(5)]
    link = await desk.attached()
    link.says(b"login: ")
    for reader in readers:
        await heard(reader, b"login: ")
    assert desk.asked == [False]


async def test_whoever_joins_late_gets_the_ring_first(desk: Desk) -> None:
    desk.join()
    link = await desk.attached()
    link.says(b"booting...")
    await heard(desk.join("late"), b"booting...")
    assert await desk.join("later", replay=3).next() == Output(b"...")
    assert await waits(desk.join("latest", replay=0))


async def test_a_reader_that_is_too_slow_finds_a_gap_and_holds_up_nobody() -> None:
    desk = Desk(ring_bytes=100)
    slow, quick = desk.join("slow"), desk.join("quick")
    link = await desk.attached()
    for number in range(30):
        link.says(b"%010d" % number)
        await heard(quick, b"%010d" % number)
    assert await news_of(slow) == Gap(200)
    assert await news_of(slow) == Output(b"".join(b"%010d" % number for number in range(20, 30)))
    desk.console.close()


async def test_what_the_agent_had_to_drop_is_a_gap_for_everybody(desk: Desk) -> None:
    reader = desk.join()
    link = await desk.attached()
    link.says(b"a")
    link.loses(1_000)
    link.says(b"b")
    assert [await news_of(reader) for _ in range(3)] == [Output(b"a"), Gap(1_000), Output(b"b")]


async def test_a_reader_is_told_once_that_keys_are_taken() -> None:
    desk = Desk()
    early = desk.join()
    assert not early.is_ready
    assert await early.next() == Ready()
    late = desk.join()
    assert late.is_ready
    assert await waits(late)
    desk.console.close()


async def test_the_agent_is_always_given_room(desk: Desk) -> None:
    desk.join()
    link = await desk.attached()
    for _ in range(20):
        link.says(bytes(16_000))
        granted = max(frame.offset for frame in link.of(FrameKind.WINDOW) or [ConsoleFrame(FrameKind.WINDOW, "")])
        assert max(granted, OUTPUT_WINDOW) >= link.offset + OUTPUT_WINDOW // 2


async def test_the_first_who_wishes_to_is_the_writer(desk: Desk) -> None:
    watcher, first, second = desk.join("watcher", write=False), desk.join("first"), desk.join("second")
    assert [reader.is_writer for reader in (watcher, first, second)] == [False, True, False]
    assert second.holder == "first"
    link = await desk.attached()
    link.takes(100)
    await first.type(b"mine")
    await second.type(b"ignored")
    second.send_break()
    assert [frame.data for frame in link.of(FrameKind.INPUT)] == [b"mine"]
    assert link.of(FrameKind.BREAK) == []


async def test_taking_the_writers_role_tells_the_other(desk: Desk) -> None:
    first, second = desk.join("first"), desk.join("second")
    second.take_writer()
    assert await news_of(first) == WriterChanged(mine=False, holder="second")
    assert await news_of(second) == WriterChanged(mine=True, holder="second")
    second.leave()
    assert not first.is_writer, "who gave way does not get the role back unasked"


async def test_the_role_goes_to_the_next_who_wishes_when_the_writer_leaves(desk: Desk) -> None:
    first, watcher, third = desk.join("first"), desk.join("watcher", write=False), desk.join("third")
    first.leave()
    assert await news_of(third) == WriterChanged(mine=True, holder="third")
    assert not watcher.is_writer


async def test_a_paste_goes_as_fast_as_the_machine_takes_it(desk: Desk) -> None:
    reader = desk.join()
    link = await desk.attached()
    link.takes(4)
    typing = asyncio.create_task(reader.type(b"0123456789"))
    await until(lambda: len(link.of(FrameKind.INPUT)) == 1)
    assert link.of(FrameKind.INPUT)[0].data == b"0123"
    link.takes(8)
    await until(lambda: len(link.of(FrameKind.INPUT)) == 2)
    link.takes(100)
    await typing
    assert b"".join(frame.data for frame in link.of(FrameKind.INPUT)) == b"0123456789"
    assert [frame.offset for frame in link.of(FrameKind.INPUT)] == [0, 4, 8]


async def test_a_paste_stops_where_the_role_is_taken(desk: Desk) -> None:
    first, second = desk.join("first"), desk.join("second")
    link = await desk.attached()
    typing = asyncio.create_task(first.type(b"rm -rf /\r"))
    await asyncio.sleep(0)
    second.take_writer()
    await typing
    link.takes(100)
    assert link.of(FrameKind.INPUT) == []


async def test_a_break_goes_to_the_machine(desk: Desk) -> None:
    reader = desk.join()
    link = await desk.attached()
    reader.send_break()
    assert len(link.of(FrameKind.BREAK)) == 1


async def test_a_lost_link_is_told_and_nothing_is_read_twice(desk: Desk) -> None:
    reader = desk.join()
    (await desk.attached()).says(b"before ")
    await heard(reader, b"before ")
    desk.cut()
    await heard(reader, b"cut off")
    await reader.type(b"reboot\r")
    again = Link(desk)
    again.offset = 7
    desk.link = again
    await heard(reader, b"is back")
    (attach,) = again.of(FrameKind.ATTACH)
    assert attach.offset == 7
    again.says(b"after")
    await heard(reader, b"after")
    assert again.of(FrameKind.INPUT) == [], "keys that nobody could take are not obeyed later"
    assert desk.asked == [False]


async def test_an_agent_that_was_started_anew_is_asked_again_and_takes_its_own_session_over(desk: Desk) -> None:
    reader = desk.join()
    (await desk.attached()).says(b"before")
    desk.cut()
    desk.refusals = [
        OperationError(ErrorCode.OUTCOME_UNKNOWN, "the agent stopped"),
        OperationError(ErrorCode.BUSY, "no session is free"),
    ]
    desk.link = Link(desk)
    (await desk.attached()).ends(EndReason.UNKNOWN)
    await until(lambda: len(desk.asked) == 4)
    await until(lambda: desk.link is not None and len(desk.link.of(FrameKind.ATTACH)) == 2)
    assert desk.asked == [False, True, True, True]
    assert desk.link is not None
    assert desk.link.of(FrameKind.ATTACH)[-1].offset == 0
    desk.link.says(b"after")
    await heard(reader, b"after")


async def test_an_agent_that_cannot_open_it_again_ends_it_with_the_cause(desk: Desk) -> None:
    reader = desk.join()
    await desk.attached()
    desk.refusals = [OperationError(ErrorCode.AUTH_FAILED, "another password")]
    assert desk.link is not None
    desk.link.ends(EndReason.UNKNOWN)
    assert await _end(reader) == Ended("failed", "another password", "AUTH_FAILED")


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (
            OperationError(ErrorCode.CONFLICT, "held", bmc=[]),
            Ended("failed", "held", "CONFLICT"),
        ),
        (
            OperationError(ErrorCode.UNREACHABLE, "gone"),
            Ended("failed", "gone", "UNREACHABLE"),
        ),
        (RequestError(RequestCode.INVALID_STATE, "no agent"), Ended("failed", "no agent", "INVALID_STATE")),
    ],
)
async def test_a_console_that_cannot_be_opened_ends_at_once(error: Exception, ended: Ended) -> None:
    desk = Desk()
    desk.refusals = [error]
    reader = desk.join()
    assert await news_of(reader) == ended
    assert desk.over.is_set()


async def test_a_fault_of_ours_is_no_silence() -> None:
    desk = Desk()
    desk.refusals = [ZeroDivisionError("a bug")]
    reader = desk.join()
    news = await news_of(reader)
    assert isinstance(news, Ended)
    assert news.code == "INTERNAL"


async def test_an_agent_that_went_to_another_worker_ends_it_there(desk: Desk) -> None:
    reader = desk.join()
    await desk.attached()
    desk.elsewhere = Ended("moved", "ask worker w2", "INVALID_STATE")
    desk.cut()
    await heard(reader, b"cut off")
    assert await news_of(reader) == desk.elsewhere


async def test_the_end_comes_after_the_last_bytes(desk: Desk) -> None:
    reader = desk.join()
    link = await desk.attached()
    link.says(b"bye")
    link.ends(EndReason.ENDED, "somebody took it over", "CONFLICT")
    assert await news_of(reader) == Output(b"bye")
    assert await news_of(reader) == Ended("ended", "somebody took it over", "CONFLICT")
    await reader.type(b"nothing happens")


async def test_the_agent_is_let_go_some_time_after_the_last_reader() -> None:
    desk = Desk(linger=0.02)
    reader = desk.join()
    link = await desk.attached()
    reader.leave()
    reader.leave()
    back = desk.join()
    await asyncio.sleep(0.05)
    assert not desk.over.is_set()
    back.leave()
    await desk.over.wait()
    assert len(link.of(FrameKind.DETACH)) == 1


async def test_the_process_that_stops_sends_its_readers_away(desk: Desk) -> None:
    reader = desk.join()
    await desk.attached()
    desk.console.end(Ended("away", "stopping"))
    assert await news_of(reader) == Ended("away", "stopping")


async def test_a_taken_over_console_is_asked_for_so() -> None:
    desk = Desk(take_over=True)
    desk.join()
    await desk.attached()
    assert desk.asked == [True]
    desk.console.close()


async def test_frames_that_only_a_control_plane_sends_are_refused(desk: Desk) -> None:
    desk.join()
    await desk.attached()
    with pytest.raises(ProtocolError, match="takes no INPUT"):
        desk.console.receive(ConsoleFrame(FrameKind.INPUT, desk.console.stream or ""))


async def _end(reader: Reader) -> Ended:
    while not isinstance(news := await news_of(reader), Ended):
        pass
    return news
