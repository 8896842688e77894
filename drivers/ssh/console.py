"""Console: the serial port behind a BMC's SSH server."""

import asyncio
from typing import Final

import paramiko

from drivers.driver import Call, Environment
from drivers.ssh.dialogue import enter_console
from drivers.ssh.login import LoggedIn, log_in, place_of
from drivers.ssh.shells import STRAIGHT_PORT
from drivers.ssh.stream import SshStream
from drivers.target import Target
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.console import (
    CloseConsole,
    ConsoleClosed,
    ConsoleKind,
    ConsoleOpened,
    ConsoleOptions,
    ConsolePurpose,
    ConsoleService,
    OpenConsole,
)

__all__ = ["SshConnection", "SshConsole"]

_LEAST_SECONDS: Final = 1.0
_LONGEST_LOGIN: Final = 30.0


class SshConnection:
    """A target and its process' environment; each console makes a connection of its own."""

    def __init__(self, target: Target, environment: Environment) -> None:
        self.target = target
        self.environment = environment

    async def aclose(self) -> None:
        """The consoles are closed by whoever opened them."""


class SshConsole:
    def __init__(self, connection: SshConnection) -> None:
        self._target = connection.target
        self._environment = connection.environment

    async def get_console(self, arguments: Nothing, call: Call) -> ConsoleOptions:
        """Logs in, to know that it can, and out again."""
        logged_in = await self._log_in(call)
        logged_in.transport.close()
        port = self._target.parsed.port
        straight = port == STRAIGHT_PORT
        purpose = ConsolePurpose.SERIAL if straight else ConsolePurpose.SHELL
        service = ConsoleService(purpose=purpose, protocol="SSH", enabled=True, port=port or None)
        return ConsoleOptions(kinds=[ConsoleKind.SSH], services=[service])

    async def open_console(self, arguments: OpenConsole, call: Call) -> ConsoleOpened:
        """Raises OperationError: what `log_in` and `enter_console` raise, and UNSUPPORTED for another kind."""
        if arguments.kind not in (None, ConsoleKind.SSH):
            raise OperationError(
                ErrorCode.UNSUPPORTED,
                f"the ssh driver opens no {arguments.kind} console: for that, bind the node's console to ipmi",
            )
        logged_in = await self._log_in(call)
        try:
            stream = await self._open(logged_in, arguments, call)
        except BaseException:
            logged_in.transport.close()
            raise
        return ConsoleOpened(stream=self._environment.consoles.add(stream))

    async def close_console(self, arguments: CloseConsole, call: Call) -> ConsoleClosed:
        closed = await self._environment.consoles.close(arguments.stream)
        return ConsoleClosed(stream=arguments.stream, closed=closed)

    async def _log_in(self, call: Call) -> LoggedIn:
        seconds = max(_LEAST_SECONDS, min(_LONGEST_LOGIN, call.remaining))
        logged_in = await log_in(self._target, self._environment, seconds)
        call.observed["hostKeyFingerprint"] = logged_in.fingerprint
        return logged_in

    async def _open(self, logged_in: LoggedIn, arguments: OpenConsole, call: Call) -> SshStream:
        place, seconds = place_of(self._target), max(_LEAST_SECONDS, call.remaining)
        try:
            channel = await asyncio.to_thread(_shell, logged_in.transport, arguments.command, seconds)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise OperationError(
                ErrorCode.BMC_ERROR, f"{place} gave the login no terminal: {error or type(error).__name__}"
            ) from error
        stream = SshStream(logged_in.transport, channel, place)
        if arguments.command is not None or self._target.parsed.port == STRAIGHT_PORT:
            return stream
        try:
            async with asyncio.timeout(call.remaining):
                shell, output = await enter_console(stream, place, take_over=arguments.take_over)
        except TimeoutError:
            await stream.aclose()
            raise OperationError(ErrorCode.TIMEOUT, f"no time was left to open the console of {place}") from None
        except BaseException:
            await stream.aclose()
            raise
        stream.leave = shell.leave
        stream.put_back(output)
        return stream


def _shell(transport: paramiko.Transport, command: str | None, seconds: float) -> paramiko.Channel:
    """A terminal with the BMC's command line on it, or with the command that was asked for."""
    channel = transport.open_session(timeout=seconds)
    channel.get_pty("vt100", 80, 24)
    if command is None:
        channel.invoke_shell()
    else:
        channel.exec_command(command)
    return channel
