"""QEMU's monitor protocol (QEMU Machine Protocol specification): one command at a time, and events as they come."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Any

import msgspec

log = logging.getLogger(__name__)

ANSWER_SECONDS = 30.0
EventListener = Callable[[str, dict[str, Any]], None]


class QmpError(RuntimeError):
    """QEMU refused a command; the text is QEMU's own."""


class QmpClosed(ConnectionError):
    """The monitor is gone, and QEMU most likely with it. Whether the last command was obeyed is not known."""


class Qmp:
    """A monitor session over a stream. `on_event` is called with the name and the data of each event."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_event: EventListener) -> None:
        self._reader = reader
        self._writer = writer
        self._on_event = on_event
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._listener: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Takes the greeting and negotiates. Raises QmpClosed where QEMU ends before, TimeoutError where it hangs."""
        async with asyncio.timeout(ANSWER_SECONDS):
            greeting = await self._reader.readline()
        if b'"QMP"' not in greeting:
            raise QmpClosed("QEMU ended before its monitor answered")
        self._listener = asyncio.get_running_loop().create_task(self._listen())
        await self.execute("qmp_capabilities")

    async def execute(self, command: str, **arguments: Any) -> Any:
        """Gives one command, and its result. An underscore in the name of an argument stands for a hyphen.

        Raises QmpError where QEMU refuses it, QmpClosed where the monitor is gone, TimeoutError.
        """
        if self._listener is None or self._listener.done():
            raise QmpClosed("the monitor is closed")
        number = next(self._numbers)
        order: dict[str, Any] = {"execute": command, "id": number}
        if arguments:
            order["arguments"] = {name.replace("_", "-"): value for name, value in arguments.items()}
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(msgspec.json.encode(order) + b"\n")
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """Ends the session. Idempotent."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _listen(self) -> None:
        try:
            while line := await self._reader.readline():
                self._take(line)
        except ConnectionError as error:
            log.debug("the monitor broke: %s", error)
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(QmpClosed("QEMU ended before it answered"))

    def _take(self, line: bytes) -> None:
        try:
            message: Any = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            log.warning("QEMU's monitor sent a line that is not JSON: %s", error)
            return
        if "event" in message:
            self._on_event(str(message["event"]), message.get("data") or {})
            return
        answer = self._waiting.get(message.get("id"))
        if answer is None or answer.done():
            return
        if "error" in message:
            answer.set_exception(QmpError(str(message["error"].get("desc", message["error"]))))
        else:
            answer.set_result(message.get("return"))
