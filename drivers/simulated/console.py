"""The console of a simulated machine: who holds it. No bytes come out of it."""

from drivers.driver import Call
from drivers.simulated.machine import SimulatedConnection
from drivers.simulated.state import MachineState
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

__all__ = ["SimulatedConsole"]


class SimulatedConsole:
    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    async def get_console(self, arguments: Nothing, call: Call) -> ConsoleOptions:
        return await self._connection.read(call, lambda _: ConsoleOptions(kinds=[ConsoleKind.SOL]))

    async def open_console(self, arguments: OpenConsole, call: Call) -> ConsoleOpened:
        def deed(state: MachineState) -> tuple[bool, ConsoleOpened]:
            if arguments.kind is ConsoleKind.SSH:
                raise OperationError(ErrorCode.UNSUPPORTED, "a simulated machine has no ssh console: use kind=sol")
            if state.console is not None and not arguments.take_over:
                raise OperationError(
                    ErrorCode.CONFLICT, "somebody else holds the console: close it, or give takeOver=true"
                )
            state.console = new_id("strm")
            return True, ConsoleOpened(stream=state.console)

        return await self._connection.change(call, arguments, deed)

    async def close_console(self, arguments: CloseConsole, call: Call) -> ConsoleClosed:
        def deed(state: MachineState) -> tuple[bool, ConsoleClosed]:
            held = state.console == arguments.stream
            if held:
                state.console = None
            return held, ConsoleClosed(stream=arguments.stream, closed=held)

        return await self._connection.change(call, arguments, deed)
