"""The console of a simulated machine: who holds it, and a login prompt that echoes what is typed."""

import asyncio

from drivers.console import ConsoleEnding, gone
from drivers.driver import Call
from drivers.simulated.machine import SimulatedConnection
from drivers.simulated.state import MachineState
from protocol.console_frames import EndReason
from protocol.errors import ErrorCode, OperationError
from protocol.ids import new_id
from protocol.shapes import Nothing
from protocol.shapes.console import (
    CloseConsole,
    ConsoleClosed,
    ConsoleKind,
    ConsoleOpened,
    ConsoleOptions,
    OpenConsole,
)

__all__ = ["SimulatedConsole", "SimulatedStream"]


class SimulatedConsole:
    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    async def get_console(self, arguments: Nothing, call: Call) -> ConsoleOptions:
        return await self._connection.read(call, lambda _: ConsoleOptions(kinds=[ConsoleKind.SOL]))

    async def open_console(self, arguments: OpenConsole, call: Call) -> ConsoleOpened:
        taken: list[str] = []

        def deed(state: MachineState) -> tuple[bool, ConsoleOpened]:
            if arguments.kind is ConsoleKind.SSH:
                raise OperationError(ErrorCode.UNSUPPORTED, "a simulated machine has no ssh console: use kind=sol")
            if state.console is not None and not arguments.take_over:
                raise OperationError(
                    ErrorCode.CONFLICT, "somebody else holds the console: close it, or give takeOver=true"
                )
            if state.console is not None:
                taken.append(state.console)
            state.console = new_id("strm")
            return True, ConsoleOpened(stream=state.console)

        opened = await self._connection.change(call, arguments, deed)
        consoles = self._connection.environment.consoles
        for identifier in taken:
            if isinstance(before := consoles.get(identifier), SimulatedStream):
                before.end(EndReason.ENDED, "somebody took it over")
        consoles.add(SimulatedStream(self._connection.target.parsed.host), opened.stream)
        return opened

    async def close_console(self, arguments: CloseConsole, call: Call) -> ConsoleClosed:
        def deed(state: MachineState) -> tuple[bool, ConsoleClosed]:
            held = state.console == arguments.stream
            if held:
                state.console = None
            return held, ConsoleClosed(stream=arguments.stream, closed=held)

        closed = await self._connection.change(call, arguments, deed)
        await self._connection.environment.consoles.close(arguments.stream)
        return closed


class SimulatedStream:
    """A serial port with a login prompt (`drivers.console.ConsoleStream`). A break shows the kernel's help."""

    def __init__(self, name: str) -> None:
        self._prompt = f"{name} login: ".encode()
        self._unread = bytearray(b"\r\n" + self._prompt)
        self._changed = asyncio.Event()
        self._ending: ConsoleEnding | None = None

    @property
    def ending(self) -> ConsoleEnding | None:
        return self._ending

    async def read(self) -> bytes:
        while not self._unread and self._ending is None:
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._unread)
        self._unread.clear()
        return data

    async def write(self, data: bytes) -> None:
        self._say(data.replace(b"\r", b"\r\n" + self._prompt))

    async def send_break(self) -> None:
        self._say(b"\r\nsysrq: HELP : loglevel(0-9) reboot(b) crash(c)\r\n")

    async def aclose(self) -> None:
        self.end(EndReason.CLOSED, "it was closed")

    def end(self, reason: EndReason, message: str) -> None:
        if self._ending is None:
            self._ending = ConsoleEnding(reason, message)
            self._changed.set()

    def _say(self, data: bytes) -> None:
        if self._ending is not None:
            raise gone(self._ending)
        self._unread += data
        self._changed.set()
