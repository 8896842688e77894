"""The power of the machine: orders in, states out. What happens to QEMU happens here, one thing after the other."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeVar

from simulators.machine.process import Ending, MachineFault, Running

log = logging.getLogger(__name__)

CYCLE_SECONDS = 1.0
Result = TypeVar("Result")


class HostState(StrEnum):
    """The power of the host, as its BMC shows it."""

    OFF = "off"
    STARTING = "starting"
    ON = "on"
    STOPPING = "stopping"


class Order(StrEnum):
    """What a BMC, or a hand, does to the host."""

    START = "start"
    STOP = "stop"
    RESET = "reset"
    CYCLE = "cycle"
    PRESS_BUTTON = "press-button"
    GRACEFUL_RESTART = "graceful-restart"
    INTERRUPT = "interrupt"


class Cause(StrEnum):
    """Why the power changed."""

    ORDER = "order"
    RESET = "reset"
    GUEST = "guest"
    GUEST_RESET = "guest-reset"
    HAND = "hand"
    FAULT = "fault"
    RESTORED = "restored"


# The state that an order leads to as soon as it is taken. An order that is absent is refused in that state; one that
# leads to the same state changes no power (it may still restart the host, or press its button).
TRANSITIONS: dict[tuple[HostState, Order], HostState] = {
    (HostState.OFF, Order.START): HostState.STARTING,
    (HostState.OFF, Order.STOP): HostState.OFF,
    (HostState.OFF, Order.PRESS_BUTTON): HostState.STARTING,
    (HostState.STARTING, Order.START): HostState.STARTING,
    (HostState.STARTING, Order.STOP): HostState.STOPPING,
    (HostState.STARTING, Order.RESET): HostState.STARTING,
    (HostState.STARTING, Order.CYCLE): HostState.STOPPING,
    (HostState.STARTING, Order.PRESS_BUTTON): HostState.STARTING,
    (HostState.STARTING, Order.GRACEFUL_RESTART): HostState.STARTING,
    (HostState.STARTING, Order.INTERRUPT): HostState.STARTING,
    (HostState.ON, Order.START): HostState.ON,
    (HostState.ON, Order.STOP): HostState.STOPPING,
    (HostState.ON, Order.RESET): HostState.ON,
    (HostState.ON, Order.CYCLE): HostState.STOPPING,
    (HostState.ON, Order.PRESS_BUTTON): HostState.ON,
    (HostState.ON, Order.GRACEFUL_RESTART): HostState.ON,
    (HostState.ON, Order.INTERRUPT): HostState.ON,
    (HostState.STOPPING, Order.START): HostState.STARTING,
    (HostState.STOPPING, Order.STOP): HostState.STOPPING,
    (HostState.STOPPING, Order.PRESS_BUTTON): HostState.STARTING,
}


class OrderRefused(RuntimeError):
    """The host cannot take the order in its present state."""


class Launch(Protocol):
    """Starts the machine, with what its BMC has put in; `on_end` tells of an end that nobody here ordered."""

    async def __call__(self, cause: Cause, on_end: Callable[[Ending, str], None]) -> Running: ...


StateListener = Callable[[HostState, Cause], None]
FaultListener = Callable[[str], None]


class Host:
    """One host. `order` is taken at once and carried out in turn; listeners hear each change of the state.

    A context manager: inside it orders are carried out, and after it nothing runs any more.
    """

    def __init__(self, launch: Launch, *, cycle_seconds: float = CYCLE_SECONDS) -> None:
        self._launch = launch
        self._cycle_seconds = cycle_seconds
        self.state = HostState.OFF
        self.running: Running | None = None
        self.on_state: list[StateListener] = []
        self.on_fault: list[FaultListener] = []
        self._work: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._restart_when_off = False

    async def __aenter__(self) -> "Host":
        self._worker = asyncio.get_running_loop().create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        if self.running is not None:
            await self.running.end()
            self.running = None

    def order(self, order: Order, cause: Cause = Cause.ORDER) -> None:
        """Takes an order. Raises OrderRefused where the present state has no room for it."""
        following = TRANSITIONS.get((self.state, order))
        if following is None:
            raise OrderRefused(f"{order} of a host that is {self.state}")
        if order not in (Order.START, Order.INTERRUPT):
            self._restart_when_off = order is Order.GRACEFUL_RESTART
        before = self.state
        self._show(following, cause)
        self._work.put_nowait(partial(self._carry_out, order, before, cause))

    async def between(self, work: Callable[[Running | None], Awaitable[Result]]) -> Result:
        """Does some work in its turn between orders, on the machine as it is then; gives its result, or raises."""
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        async def in_turn() -> None:
            try:
                result = await work(self.running)
            except Exception as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        self._work.put_nowait(in_turn)
        return await done

    async def settled(self) -> None:
        """Waits until every order that was taken before is carried out."""

        async def nothing(_running: Running | None) -> None:
            return None

        await self.between(nothing)

    async def _serve(self) -> None:
        while True:
            work = await self._work.get()
            try:
                await work()
            except (MachineFault, OSError) as fault:
                self._fail(str(fault))
            except Exception as error:
                # Whatever it is, the next order must find somebody who carries it out.
                log.exception("an order was not carried out")
                self._fail(f"the simulator failed: {error!r}")

    async def _carry_out(self, order: Order, before: HostState, cause: Cause) -> None:
        log.debug("%s, taken while %s", order, before)
        match order:
            case Order.START:
                await self._start(cause)
            case Order.STOP:
                await self._stop(cause)
            case Order.RESET:
                await self._reset(Cause.RESET)
            case Order.CYCLE:
                await self._stop(cause)
                await asyncio.sleep(self._cycle_seconds)
                await self._start(cause)
            case Order.PRESS_BUTTON if before in (HostState.OFF, HostState.STOPPING):
                await self._start(cause)
            case Order.PRESS_BUTTON:
                await self._tell("system_powerdown")
            case Order.GRACEFUL_RESTART:
                await self._tell("system_powerdown")
            case Order.INTERRUPT:
                await self._tell("inject-nmi")

    async def _start(self, cause: Cause) -> None:
        if self.running is None:
            self._show(HostState.STARTING, cause)
            await self._run(cause)
        self._show(HostState.ON, cause)

    async def _run(self, cause: Cause) -> None:
        started: list[Running] = []

        def ended(ending: Ending, text: str) -> None:
            self._work.put_nowait(lambda: self._ended(started, ending, text))

        started.append(await self._launch(cause, ended))
        self.running = started[0]

    async def _stop(self, cause: Cause) -> None:
        if self.running is not None:
            self._show(HostState.STOPPING, cause)
            await self._end_running()
        self._show(HostState.OFF, cause)

    async def _reset(self, cause: Cause) -> None:
        """A new QEMU in the place of the old one; the power never shows anything but on."""
        if self.running is None:
            return
        await self._end_running()
        await self._run(cause)
        self._show(HostState.ON, cause, again=True)

    async def _end_running(self) -> None:
        running, self.running = self.running, None
        if running is not None:
            await running.end()

    async def _ended(self, started: list[Running], ending: Ending, text: str) -> None:
        """The guest switched itself off or restarts, or QEMU is gone. Nothing where an order came first."""
        if not started or self.running is not started[0]:
            return
        restarts, self._restart_when_off = self._restart_when_off and ending is Ending.GUEST_OFF, False
        if ending is Ending.GUEST_RESET:
            await self._reset(Cause.GUEST_RESET)
            return
        await self._stop(Cause.GUEST if ending is Ending.GUEST_OFF else Cause.FAULT)
        if ending is Ending.CRASHED:
            self._tell_fault(text)
        if restarts:
            await self._start(Cause.ORDER)

    async def _tell(self, command: str) -> None:
        if self.running is not None:
            await self.running.execute(command)

    def _fail(self, text: str) -> None:
        self._tell_fault(text)
        alive = self.running is not None
        self._show(HostState.ON if alive else HostState.OFF, Cause.FAULT)

    def _tell_fault(self, text: str) -> None:
        log.error("%s", text)
        for listener in self.on_fault:
            listener(text)

    def _show(self, state: HostState, cause: Cause, *, again: bool = False) -> None:
        if state is self.state and not again:
            return
        self.state = state
        for listener in self.on_state:
            listener(state, cause)
