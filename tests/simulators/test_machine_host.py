"""The power of the virtual machine's host: each order once, in turn, and each end seen with its cause."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from simulators.machine.host import Cause, Host, HostState, Order, OrderRefused
from simulators.machine.process import Ending, MachineFault

States = list[tuple[HostState, Cause]]


class FakeQemu:
    """A machine that does nothing but remember what it was told."""

    def __init__(self, pid: int, on_end: Callable[[Ending, str], None]) -> None:
        self.pid = pid
        self.told: list[str] = []
        self.ended = False
        self.on_end = on_end

    async def execute(self, command: str, **arguments: Any) -> Any:
        self.told.append(command)

    async def end(self) -> None:
        self.ended = True


class Bench:
    """A host whose machines are fakes, and what was seen of it."""

    def __init__(self) -> None:
        self.machines: list[FakeQemu] = []
        self.causes: list[Cause] = []
        self.fault = ""
        self.host = Host(self._launch, cycle_seconds=0)
        self.states: States = []
        self.faults: list[str] = []
        self.host.on_state.append(lambda state, cause: self.states.append((state, cause)))
        self.host.on_fault.append(self.faults.append)

    async def _launch(self, cause: Cause, on_end: Callable[[Ending, str], None]) -> FakeQemu:
        await asyncio.sleep(0)
        if self.fault:
            raise MachineFault(self.fault)
        self.causes.append(cause)
        self.machines.append(FakeQemu(len(self.machines) + 1, on_end))
        return self.machines[-1]

    @property
    def newest(self) -> FakeQemu:
        return self.machines[-1]

    async def give(self, *orders: Order) -> None:
        for order in orders:
            self.host.order(order)
        await self.host.settled()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    async with bench.host:
        yield bench


async def test_an_order_shows_at_once_and_is_carried_out_in_turn(bench: Bench) -> None:
    bench.host.order(Order.START)
    assert bench.states == [(HostState.STARTING, Cause.ORDER)]
    assert bench.machines == []

    await bench.host.settled()
    assert bench.states == [(HostState.STARTING, Cause.ORDER), (HostState.ON, Cause.ORDER)]


async def test_a_start_that_is_repeated_starts_once(bench: Bench) -> None:
    await bench.give(Order.START, Order.START, Order.START)

    assert len(bench.machines) == 1


async def test_a_stop_ends_the_machine(bench: Bench) -> None:
    await bench.give(Order.START, Order.STOP)

    assert bench.newest.ended
    assert bench.host.state is HostState.OFF
    assert bench.host.running is None


async def test_a_reset_is_a_new_machine_and_the_power_stays_on(bench: Bench) -> None:
    await bench.give(Order.START)
    bench.states.clear()
    await bench.give(Order.RESET)

    assert [machine.ended for machine in bench.machines] == [True, False]
    assert [state for state, _ in bench.states] == [HostState.ON]
    assert bench.causes == [Cause.ORDER, Cause.RESET]


async def test_a_cycle_passes_through_off(bench: Bench) -> None:
    await bench.give(Order.START)
    bench.states.clear()
    await bench.give(Order.CYCLE)

    assert [state for state, _ in bench.states] == [
        HostState.STOPPING,
        HostState.OFF,
        HostState.STARTING,
        HostState.ON,
    ]


@pytest.mark.parametrize("order", [Order.RESET, Order.CYCLE, Order.INTERRUPT, Order.GRACEFUL_RESTART])
async def test_a_host_that_is_off_refuses_what_needs_power(bench: Bench, order: Order) -> None:
    with pytest.raises(OrderRefused, match=r"of a host that is off"):
        bench.host.order(order)


async def test_the_button_starts_a_host_that_is_off_and_asks_one_that_is_on(bench: Bench) -> None:
    await bench.give(Order.PRESS_BUTTON)
    assert bench.host.state is HostState.ON
    await bench.give(Order.PRESS_BUTTON)

    assert bench.newest.told == ["system_powerdown"]
    assert bench.host.state is HostState.ON


async def test_an_interrupt_reaches_the_machine(bench: Bench) -> None:
    await bench.give(Order.START, Order.INTERRUPT)

    assert bench.newest.told == ["inject-nmi"]


async def test_a_guest_that_switches_itself_off_leaves_the_host_off(bench: Bench) -> None:
    await bench.give(Order.START)
    bench.newest.on_end(Ending.GUEST_OFF, "guest-shutdown")
    await bench.host.settled()

    assert bench.states[-1] == (HostState.OFF, Cause.GUEST)
    assert bench.newest.ended
    assert bench.faults == []


async def test_a_guest_that_restarts_gets_a_new_machine(bench: Bench) -> None:
    await bench.give(Order.START)
    bench.newest.on_end(Ending.GUEST_RESET, "guest-reset")
    await bench.host.settled()

    assert len(bench.machines) == 2
    assert bench.causes[-1] is Cause.GUEST_RESET


async def test_a_graceful_restart_starts_again_once_the_guest_is_off(bench: Bench) -> None:
    await bench.give(Order.START, Order.GRACEFUL_RESTART)
    assert bench.newest.told == ["system_powerdown"]

    bench.newest.on_end(Ending.GUEST_OFF, "guest-shutdown")
    await bench.host.settled()

    assert len(bench.machines) == 2
    assert bench.host.state is HostState.ON


async def test_a_shutdown_after_a_graceful_restart_stays_off(bench: Bench) -> None:
    await bench.give(Order.START, Order.GRACEFUL_RESTART, Order.PRESS_BUTTON)
    bench.newest.on_end(Ending.GUEST_OFF, "guest-shutdown")
    await bench.host.settled()

    assert bench.host.state is HostState.OFF


async def test_a_qemu_that_dies_leaves_the_host_off_with_its_cause(bench: Bench) -> None:
    await bench.give(Order.START)
    bench.newest.on_end(Ending.CRASHED, "QEMU ended by itself (signal 9)")
    await bench.host.settled()

    assert bench.states[-1] == (HostState.OFF, Cause.FAULT)
    assert bench.faults == ["QEMU ended by itself (signal 9)"]


async def test_the_end_of_a_machine_that_was_replaced_is_no_news(bench: Bench) -> None:
    await bench.give(Order.START)
    old = bench.newest
    await bench.give(Order.RESET)
    old.on_end(Ending.CRASHED, "late")
    await bench.host.settled()

    assert bench.host.state is HostState.ON
    assert bench.faults == []


async def test_a_start_that_fails_leaves_the_host_off_with_the_cause_and_the_next_one_is_tried(bench: Bench) -> None:
    bench.fault = "QEMU did not start: disk is locked"
    await bench.give(Order.START)
    assert bench.states[-1] == (HostState.OFF, Cause.FAULT)
    assert bench.faults == ["QEMU did not start: disk is locked"]

    bench.fault = ""
    await bench.give(Order.START)
    assert bench.states[-1] == (HostState.ON, Cause.ORDER)


async def test_work_between_orders_sees_the_machine_and_gives_its_result_or_its_fault(bench: Bench) -> None:
    async def fail(_running: object) -> None:
        raise MachineFault("no medium")

    async def pid(running: Any) -> int:
        return int(running.pid)

    await bench.give(Order.START)
    assert await bench.host.between(pid) == 1
    with pytest.raises(MachineFault, match="no medium"):
        await bench.host.between(fail)


async def test_after_the_host_nothing_runs() -> None:
    bench = Bench()
    async with bench.host:
        await bench.give(Order.START)

    assert bench.newest.ended
