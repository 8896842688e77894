"""QEMU's monitor: commands, refusals, events, and a QEMU that ends in the middle."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from simulators.machine.qmp import Qmp, QmpClosed, QmpError

GREETING: dict[str, Any] = {"QMP": {"version": {}, "capabilities": []}}


class Monitor:
    """QEMU's end of a monitor, and ours."""

    def __init__(self, qmp: Qmp, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.qmp = qmp
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._reader = reader
        self.writer = writer

    def say(self, *messages: Any) -> None:
        self.writer.write(b"".join(msgspec.json.encode(message) + b"\r\n" for message in messages))

    async def hear(self) -> Any:
        return msgspec.json.decode(await self._reader.readline())

    async def open(self) -> None:
        self.say(GREETING)
        opening = asyncio.ensure_future(self.qmp.open())
        asked = await self.hear()
        assert asked["execute"] == "qmp_capabilities"
        self.say({"return": {}, "id": asked["id"]})
        await opening


@pytest.fixture
async def monitor() -> AsyncIterator[Monitor]:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    their_reader, their_writer = await asyncio.open_connection(sock=theirs)
    seen: list[tuple[str, dict[str, Any]]] = []
    monitor = Monitor(Qmp(reader, writer, lambda name, data: seen.append((name, data))), their_reader, their_writer)
    monitor.events = seen
    yield monitor
    await monitor.qmp.close()
    their_writer.close()
    await their_writer.wait_closed()


async def test_a_command_gets_its_own_answer_among_events(monitor: Monitor) -> None:
    await monitor.open()
    asking = asyncio.ensure_future(monitor.qmp.execute("blockdev-insert-medium", id="cd", node_name="n1"))
    asked = await monitor.hear()
    assert asked["arguments"] == {"id": "cd", "node-name": "n1"}

    monitor.say({"event": "SHUTDOWN", "data": {"reason": "guest-reset"}}, {"return": {"x": 1}, "id": asked["id"]})

    assert await asking == {"x": 1}
    assert monitor.events == [("SHUTDOWN", {"reason": "guest-reset"})]


async def test_a_refusal_has_qemus_words(monitor: Monitor) -> None:
    await monitor.open()
    asking = asyncio.ensure_future(monitor.qmp.execute("eject"))
    asked = await monitor.hear()
    monitor.say({"error": {"class": "GenericError", "desc": "Device 'cd' is locked"}, "id": asked["id"]})

    with pytest.raises(QmpError, match="Device 'cd' is locked"):
        await asking


async def test_a_qemu_that_ends_ends_the_command_that_waits(monitor: Monitor) -> None:
    await monitor.open()
    asking = asyncio.ensure_future(monitor.qmp.execute("quit"))
    await monitor.hear()
    monitor.writer.close()

    with pytest.raises(QmpClosed):
        await asking
    with pytest.raises(QmpClosed):
        await monitor.qmp.execute("query-status")


async def test_a_qemu_that_never_greets_is_told(monitor: Monitor) -> None:
    monitor.writer.close()

    with pytest.raises(QmpClosed, match="ended before"):
        await monitor.qmp.open()


async def test_a_line_that_is_not_json_does_not_end_the_session(monitor: Monitor) -> None:
    await monitor.open()
    asking = asyncio.ensure_future(monitor.qmp.execute("query-status"))
    asked = await monitor.hear()
    monitor.writer.write(b"{broken\n")
    monitor.say({"return": {}, "id": asked["id"]})

    assert await asking == {}
