"""Console: serial over LAN, in a session and on a socket of its own.

Nothing else of this BMC's IPMI work passes through them, so a console that hangs holds up no reading, and a reading
no console. A BMC that restarts is seen by its silence; a console that somebody else took over, by its holder.
"""

import asyncio
import contextlib
import logging
from typing import Final

from drivers.console import ConsoleEnding, gone
from drivers.driver import Call, Environment
from drivers.ipmi import commands
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.packets import Message, PacketError
from drivers.ipmi.sol import (
    Activation,
    ActivationPlan,
    Move,
    activate_command,
    deactivate_command,
    parse_activation,
    parse_sol,
)
from drivers.ipmi.sol_link import SolLink
from drivers.target import Target
from protocol.console_frames import EndReason
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

__all__ = ["IpmiConsole", "SolStream", "open_sol"]

_log = logging.getLogger("drivers.ipmi.console")

_ENABLED: Final = commands.GET_SOL_CONFIGURATION.with_data(b"\x0e\x01\x00\x00")
_HOLDER: Final = commands.GET_PAYLOAD_INSTANCE_INFO.with_data(b"\x01\x01")
_NEVER_IDLE: Final = 1e9
_KEEPALIVE_SECONDS: Final = 10.0
"""BMCs end a session that is silent for a minute (IPMI 2.0, 6.12.15); a dead one should be seen sooner."""
_MISSED: Final = 3
"""Questions without an answer, of two seconds each, after which a BMC is taken for gone."""
_MOST_UNREAD: Final = 65_536
_MOST_UNTYPED: Final = 1_024
_STANDARD_PORT: Final = 623


class IpmiConsole:
    def __init__(self, connection: IpmiConnection) -> None:
        self._connection = connection

    async def get_console(self, arguments: Nothing, call: Call) -> ConsoleOptions:
        """By the SOL configuration; a BMC that does not tell it (it is optional to read) is taken to offer SOL."""
        answer = await self._connection.ask(_ENABLED, call)
        told = not answer.completion_code and len(answer.data) > 1
        enabled = bool(answer.data[1] & 1) if told else None
        service = ConsoleService(purpose=ConsolePurpose.SERIAL, protocol="IPMI", enabled=enabled, max_sessions=1)
        return ConsoleOptions(kinds=[] if enabled is False else [ConsoleKind.SOL], services=[service])

    async def open_console(self, arguments: OpenConsole, call: Call) -> ConsoleOpened:
        """Raises OperationError: CONFLICT (held by somebody), UNSUPPORTED (switched off, or another kind), and what a
        login raises."""
        if arguments.kind not in (None, ConsoleKind.SOL) or arguments.command is not None:
            raise OperationError(
                ErrorCode.UNSUPPORTED,
                "the ipmi driver opens serial over LAN only: for ssh, bind the node's console to the ssh driver",
            )
        connection = self._connection
        stream = await open_sol(connection.target, connection.environment, call, take_over=arguments.take_over)
        return ConsoleOpened(stream=connection.environment.consoles.add(stream))

    async def close_console(self, arguments: CloseConsole, call: Call) -> ConsoleClosed:
        closed = await self._connection.environment.consoles.close(arguments.stream)
        return ConsoleClosed(stream=arguments.stream, closed=closed)


async def open_sol(target: Target, environment: Environment, call: Call, *, take_over: bool) -> "SolStream":
    """Logs in and activates the payload; `take_over` deactivates one that somebody holds, once.

    Raises OperationError. A console that could not be opened leaves no session behind.
    """
    line = IpmiConnection(target, environment, idle_seconds=_NEVER_IDLE)
    stream = SolStream(line)
    try:
        activation = await _activate(line, call, take_over)
        _check_port(line, activation)
        await stream.begin(activation)
    except BaseException:
        await line.aclose()
        raise
    return stream


async def _activate(line: IpmiConnection, call: Call, take_over: bool) -> Activation:
    plan = ActivationPlan(line.endpoint, take_over=take_over)
    answer = await _ask_to_activate(line, call)
    while plan.answered(answer) is Move.DEACTIVATE:
        call.progress("taking the console over", None)
        # Its holder may have gone meanwhile: "deactivated already" is as good.
        await line.ask(deactivate_command(), call)
        answer = await line.ask(activate_command(), call)
    try:
        return parse_activation(answer.data)
    except PacketError as error:
        raise OperationError(
            ErrorCode.BMC_ERROR, f"{line.endpoint} opened a console and does not say how: {error}"
        ) from error


async def _ask_to_activate(line: IpmiConnection, call: Call) -> Message:
    """The answer to one Activate Payload. Where the first answer was lost, this session itself may hold the console
    by then: it is given back and asked for again."""
    try:
        return await line.ask(activate_command(), call)
    except OperationError as error:
        if error.code is not ErrorCode.OUTCOME_UNKNOWN:
            raise
    answer = await line.ask(activate_command(), call)
    if answer.completion_code and await _holder(line) in (line.session_ids or ()):
        await line.ask(deactivate_command(), call)
        answer = await line.ask(activate_command(), call)
    return answer


async def _holder(line: IpmiConnection) -> int | None:
    """The session that has the console, as the BMC numbers it; 0 for none, None where it does not say."""
    answer = await line.ask_in_present_session(_HOLDER)
    if answer is None or answer.completion_code or len(answer.data) < 4:
        return None
    return int.from_bytes(answer.data[:4], "little")


def _check_port(line: IpmiConnection, activation: Activation) -> None:
    """A BMC behind a forwarded port still tells its own one; some swap its bytes."""
    swapped = activation.port >> 8 | (activation.port & 0xFF) << 8
    known = {0, 0xFFFF, _STANDARD_PORT, line.target.parsed.port or _STANDARD_PORT}
    if activation.port not in known and swapped not in known:
        raise OperationError(
            ErrorCode.UNSUPPORTED,
            f"{line.endpoint} has its console on another UDP port ({activation.port}): set its SOL payload port "
            f"to {_STANDARD_PORT}, or give the BMC's address as ipmi://{line.target.parsed.host}:{activation.port} "
            "where it takes logins at that port too",
        )


class SolStream:
    """A console over SOL (`drivers.console.ConsoleStream`)."""

    def __init__(self, line: IpmiConnection) -> None:
        self._line = line
        self._link = SolLink(1)
        self._clock = asyncio.get_running_loop().time
        self._unread = bytearray()
        self._changed = asyncio.Event()
        """Set when there is something to read, or room to type, or when it is over."""
        self._work = asyncio.Event()
        self._heard_at = self._clock()
        self._holder: int | None = None
        self._ending: ConsoleEnding | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        line.on_sol = self._receive

    @property
    def ending(self) -> ConsoleEnding | None:
        return self._ending

    async def begin(self, activation: Activation) -> None:
        """The payload is active: from now on characters may be typed."""
        self._link.room = activation.to_bmc
        self._holder = await _holder(self._line)
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def read(self) -> bytes:
        while not self._unread and self._ending is None:
            await self._await_change()
        data = bytes(self._unread)
        self._unread.clear()
        return data

    async def write(self, data: bytes) -> None:
        await self._await_room()
        self._send(self._link.type(data, self._clock()))

    async def send_break(self) -> None:
        await self._await_room()
        self._send(self._link.send_break(self._clock()))

    async def aclose(self) -> None:
        """Deactivates the payload and ends its session; within some seconds, whatever the BMC does."""
        if self._closed:
            return
        self._closed = True
        alive = self._ending is None
        self._end(EndReason.CLOSED, "it was closed")
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if alive:
            await self._line.ask_in_present_session(deactivate_command())
        if self._ending is not None and self._ending.reason is EndReason.LOST:
            # It would be waited for in vain.
            self._line.forget_session()
        await self._line.aclose()

    def _receive(self, payload: bytes) -> None:
        if self._ending is not None:
            return
        try:
            packet = parse_sol(payload)
        except PacketError as error:
            _log.debug("%s sent a packet that is ignored: %s", self._line.endpoint, error)
            return
        self._heard_at = self._clock()
        heard = self._link.receive(packet, _MOST_UNREAD - len(self._unread), self._heard_at)
        self._unread += heard.characters
        if heard.lost:
            _log.info("%s could not take all that its machine wrote", self._line.endpoint)
        self._send(heard.answers)
        if heard.ended:
            self._end(EndReason.ENDED, f"{self._line.endpoint} ended it: somebody took it over, or its power changed")
        self._changed.set()

    def _send(self, payloads: "tuple[bytes, ...] | list[bytes]") -> None:
        for payload in payloads:
            with contextlib.suppress(OSError):
                # A packet that cannot leave is repeated like one that was lost.
                self._line.send_sol(payload)
        self._work.set()

    async def _await_room(self) -> None:
        """Returns when little enough waits to be typed. Raises OperationError when the console is over."""
        while self._ending is None and self._link.pending > _MOST_UNTYPED:
            await self._await_change()
        if self._ending is not None:
            raise gone(self._ending)

    async def _await_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _keep(self) -> None:
        """Repeats what was not acknowledged, and asks a silent BMC whether it is still there."""
        while self._ending is None:
            now = self._clock()
            self._send_due(now)
            due = self._link.next_due()
            asked_at = self._heard_at + _KEEPALIVE_SECONDS
            if now >= asked_at:
                await self._ask()
                continue
            self._work.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(asked_at, asked_at if due is None else due) - now):
                    await self._work.wait()

    def _send_due(self, now: float) -> None:
        if self._link.is_stalled(now):
            self._end(EndReason.LOST, f"{self._line.endpoint} takes no characters any more")
        for payload in self._link.pump(now):
            with contextlib.suppress(OSError):
                self._line.send_sol(payload)

    async def _ask(self) -> None:
        """Whether the BMC still has our session, and our session the console."""
        answer = None
        for _ in range(_MISSED):
            answer = await self._line.ask_in_present_session(_HOLDER)
            if answer is not None or self._ending is not None:
                break
            self._send_due(self._clock())
        if self._ending is not None:
            return
        if answer is None:
            self._end(EndReason.LOST, f"{self._line.endpoint} does not answer any more: it may have restarted")
            return
        self._heard_at = self._clock()
        if not answer.completion_code and len(answer.data) >= 4 and self._holder is not None:
            holder = int.from_bytes(answer.data[:4], "little")
            if holder != self._holder:
                who = "nobody has it now" if not holder else "another session has it"
                self._end(EndReason.ENDED, f"{self._line.endpoint} ended it without a word: {who}")

    def _end(self, reason: EndReason, message: str) -> None:
        if self._ending is None:
            self._ending = ConsoleEnding(reason, message)
            self._changed.set()
            self._work.set()
