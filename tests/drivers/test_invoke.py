"""The contract of invoke: lanes, deadlines, typed failures, and one connection per credential."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import import_module

import pytest

from drivers import Call, Drivers, Environment, Reply, Target, ainvoke, invoke, load
from protocol.errors import ErrorCode, OperationError
from protocol.operations import Concern
from protocol.shapes import Nothing
from protocol.shapes.power import PowerReading, PowerState, SetPower, SetPowerResult

BMC = Target(address="ipmi://192.0.2.10", username="admin", password="first")
# The package hands out the function of the same name.
INVOKE = import_module("drivers.invoke")
ON = {"action": "on"}
RESET = {"action": "reset"}


@dataclass
class _Connection:
    target: Target
    closed: bool = False

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class _Driver:
    """A driver whose power operations do what a test says."""

    name: str = "ipmi"
    on_read: Callable[[Call], Awaitable[None]] | None = None
    on_change: Callable[[SetPower, Call], Awaitable[None]] | None = None
    connections: list[_Connection] = field(default_factory=list)

    @property
    def concerns(self) -> dict[Concern, Callable[[_Connection], object]]:
        driver = self

        class Power:
            def __init__(self, connection: _Connection) -> None:
                self.connection = connection

            async def get_power(self, arguments: Nothing, call: Call) -> PowerReading:
                if driver.on_read is not None:
                    await driver.on_read(call)
                return PowerReading(state=PowerState.ON)

            async def set_power(self, arguments: SetPower, call: Call) -> SetPowerResult:
                if driver.on_change is not None:
                    await driver.on_change(arguments, call)
                return SetPowerResult(state=PowerState.ON, changed=True)

        return {Concern.POWER: Power}

    def connect(self, target: Target, environment: Environment) -> _Connection:
        self.connections.append(_Connection(target))
        return self.connections[-1]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    made = _Driver()
    monkeypatch.setattr(INVOKE, "load", lambda _name: made)
    return made


async def _code(running: Awaitable[object]) -> OperationError:
    with pytest.raises(OperationError) as caught:
        await running
    return caught.value


async def test_changes_of_one_machine_go_one_at_a_time_in_the_order_they_were_asked(driver: _Driver) -> None:
    under_way, order = 0, []

    async def change(arguments: SetPower, call: Call) -> None:
        nonlocal under_way
        under_way += 1
        assert under_way == 1
        await asyncio.sleep(0)
        order.append(arguments.soft_timeout)
        under_way -= 1

    driver.on_change = change
    async with Drivers() as kept:
        asked = [float(number) for number in range(1, 9)]
        await asyncio.gather(
            *(kept.invoke(BMC, "power.setPower", {"action": "softOff", "softTimeout": number}) for number in asked)
        )
    assert order == asked


async def test_changes_of_two_addresses_that_share_a_lane_go_one_at_a_time(driver: _Driver) -> None:
    going = asyncio.Event()
    done: list[str] = []

    async def change(arguments: SetPower, call: Call) -> None:
        done.append("begun")
        await going.wait()
        done.append("ended")

    driver.on_change = change
    first = Target(address="ipmi://192.0.2.10", lane="node-1")
    second = Target(address="ipmi://192.0.2.11", lane="node-1")
    async with Drivers() as kept:
        tasks = [asyncio.create_task(kept.invoke(target, "power.setPower", ON)) for target in (first, second)]
        while not done:
            await asyncio.sleep(0)
        going.set()
        await asyncio.gather(*tasks)
    assert done == ["begun", "ended", "begun", "ended"]


async def test_machines_do_not_wait_for_each_other(driver: _Driver) -> None:
    both = asyncio.Barrier(2)

    async def change(arguments: SetPower, call: Call) -> None:
        await both.wait()

    driver.on_change = change
    async with Drivers() as kept:
        await asyncio.gather(
            kept.invoke(BMC, "power.setPower", ON),
            kept.invoke(Target(address="ipmi://192.0.2.11"), "power.setPower", ON),
        )


async def test_a_read_passes_a_change_under_way(driver: _Driver) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def change(arguments: SetPower, call: Call) -> None:
        begun.set()
        await end.wait()

    driver.on_change = change
    async with Drivers() as kept:
        changing = asyncio.create_task(kept.invoke(BMC, "power.setPower", RESET))
        await begun.wait()
        assert (await kept.invoke(BMC, "power.getPower"))["state"] == "on"
        assert not changing.done()
        end.set()
        await changing


async def test_only_a_few_reads_of_one_machine_run_at_once(driver: _Driver) -> None:
    running = most = 0

    async def read(call: Call) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    driver.on_read = read
    async with Drivers() as kept:
        await asyncio.gather(*(kept.invoke(BMC, "power.getPower") for _ in range(20)))
    assert most == 4


async def test_a_call_that_gets_no_turn_in_time_is_busy_and_was_not_sent(driver: _Driver) -> None:
    begun, end, sent = asyncio.Event(), asyncio.Event(), 0

    async def change(arguments: SetPower, call: Call) -> None:
        nonlocal sent
        sent += 1
        begun.set()
        await end.wait()

    driver.on_change = change
    async with Drivers() as kept:
        first = asyncio.create_task(kept.invoke(BMC, "power.setPower", RESET))
        await begun.wait()
        error = await _code(kept.invoke(BMC, "power.setPower", RESET, timeout=0.01))
        end.set()
        await first
    assert (error.code, sent) == (ErrorCode.BUSY, 1)
    assert "nothing was sent" in error.message


async def test_a_lane_is_free_again_after_a_failure_and_after_a_cancelled_call(driver: _Driver) -> None:
    async def never(arguments: SetPower, call: Call) -> None:
        if arguments.action == "reset":
            raise OperationError(ErrorCode.BUSY, "not now")
        await asyncio.get_running_loop().create_future()

    driver.on_change = never
    async with Drivers() as kept:
        assert (await _code(kept.invoke(BMC, "power.setPower", RESET))).code is ErrorCode.BUSY
        task = asyncio.create_task(kept.invoke(BMC, "power.setPower", ON))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        driver.on_change = None
        await kept.invoke(BMC, "power.setPower", ON)


async def test_every_fault_of_the_arguments_is_told_at_once_and_nothing_is_sent(driver: _Driver) -> None:
    error = await _code(ainvoke(BMC, "power.setPower", {"actoin": "on", "wait": "maybe", "softTimeout": -1}))
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert all(word in error.message for word in ("actoin", "did you mean 'action'", "wait", "softTimeout"))
    assert len(error.details["issues"]) == 4  # type: ignore[arg-type]
    assert driver.connections == []


async def test_arguments_of_an_unexpected_kind_are_a_fault_too(driver: _Driver) -> None:
    error = await _code(ainvoke(BMC, "power.setPower", {"action": ["reset"]}))
    assert error.code is ErrorCode.INVALID_ARGUMENT


async def test_an_unknown_operation_names_close_ones(driver: _Driver) -> None:
    error = await _code(ainvoke(BMC, "power.getPowr"))
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert "power.getPower" in error.message


async def test_an_operation_that_the_driver_lacks_is_unsupported(driver: _Driver) -> None:
    error = await _code(ainvoke(BMC, "raid.getRaid"))
    assert error.code is ErrorCode.UNSUPPORTED
    assert "ipmi" in error.message


@pytest.mark.parametrize(
    ("operation", "arguments", "code"),
    [
        ("power.getPower", {}, ErrorCode.TIMEOUT),
        ("power.setPower", ON, ErrorCode.TIMEOUT),
        ("power.setPower", RESET, ErrorCode.OUTCOME_UNKNOWN),
    ],
)
async def test_what_does_not_end_is_cut_off_and_typed_by_what_repeating_it_would_mean(
    driver: _Driver, monkeypatch: pytest.MonkeyPatch, operation: str, arguments: dict[str, object], code: ErrorCode
) -> None:
    monkeypatch.setattr(INVOKE, "_GRACE", 0.0)

    async def never(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    driver.on_read = driver.on_change = never
    assert (await _code(ainvoke(BMC, operation, arguments, timeout=0.01))).code is code


async def test_a_timeout_inside_a_driver_is_not_taken_for_the_deadline(driver: _Driver) -> None:
    async def read(call: Call) -> None:
        raise TimeoutError("a socket of the driver's own")

    driver.on_read = read
    error = await _code(ainvoke(BMC, "power.getPower"))
    assert error.code is ErrorCode.BMC_ERROR
    assert "a socket of the driver's own" in error.message


async def test_an_unexpected_exception_is_typed_and_keeps_its_cause(
    driver: _Driver, caplog: pytest.LogCaptureFixture
) -> None:
    async def read(call: Call) -> None:
        raise KeyError("PowerState")

    driver.on_read = read
    with caplog.at_level(logging.ERROR):
        error = await _code(ainvoke(BMC, "power.getPower"))
    assert error.code is ErrorCode.BMC_ERROR
    assert "KeyError: 'PowerState'" in error.message
    assert isinstance(error.__cause__, KeyError)
    assert "first" not in caplog.text


async def test_a_failed_detection_is_typed_too(driver: _Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    async def detect(_target: Target) -> str:
        raise OSError("the network is down")

    monkeypatch.setattr(INVOKE, "detect", detect)
    error = await _code(ainvoke(Target(address="192.0.2.10"), "power.getPower"))
    assert error.code is ErrorCode.BMC_ERROR
    assert "the network is down" in error.message


async def test_a_bare_host_is_asked_once_which_protocol_it_speaks(
    driver: _Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def detect(target: Target) -> str:
        asked.append(target.address)
        return "ipmi"

    monkeypatch.setattr(INVOKE, "detect", detect)
    async with Drivers() as kept:
        await kept.invoke(Target(address="192.0.2.10"), "power.getPower")
        await kept.invoke(Target(address="192.0.2.10"), "power.getPower")
    assert asked == ["192.0.2.10"]


async def test_a_connection_serves_many_calls_and_is_closed_at_the_end(driver: _Driver) -> None:
    async with Drivers() as kept:
        await kept.invoke(BMC, "power.getPower")
        await kept.invoke(BMC, "power.getPower")
        assert [connection.closed for connection in driver.connections] == [False]
    assert [connection.closed for connection in driver.connections] == [True]


async def test_ainvoke_closes_its_connection_when_the_operation_fails(driver: _Driver) -> None:
    async def read(call: Call) -> None:
        raise OperationError(ErrorCode.UNREACHABLE, "gone")

    driver.on_read = read
    await _code(ainvoke(BMC, "power.getPower"))
    assert [connection.closed for connection in driver.connections] == [True]


@pytest.mark.parametrize(
    "changed",
    [
        Target(address="ipmi://192.0.2.10", username="admin", password="second"),
        Target(address="ipmi://192.0.2.10", username="operator", password="first"),
        Target(address="ipmi://192.0.2.10", username="admin", password="first", verify="sha256:" + "ab" * 32),
    ],
)
async def test_a_changed_credential_or_trust_makes_a_new_connection_and_closes_the_old(
    driver: _Driver, changed: Target
) -> None:
    async with Drivers() as kept:
        await kept.invoke(BMC, "power.getPower")
        await kept.invoke(changed, "power.getPower")
        await asyncio.sleep(0)
        assert [connection.closed for connection in driver.connections] == [True, False]


async def test_a_replaced_connection_stays_open_until_the_operation_that_uses_it_has_ended(driver: _Driver) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def read(_call: Call) -> None:
        begun.set()
        await go_on.wait()

    driver.on_read = read
    changed = Target(address="ipmi://192.0.2.10", username="admin", password="second")
    async with Drivers() as kept:
        old = asyncio.create_task(kept.invoke(BMC, "power.getPower"))
        await begun.wait()
        new = asyncio.create_task(kept.invoke(changed, "power.getPower"))
        await asyncio.sleep(0.01)
        assert [connection.closed for connection in driver.connections] == [False, False]
        go_on.set()
        await asyncio.gather(old, new)
        await asyncio.sleep(0)
        assert [connection.closed for connection in driver.connections] == [True, False]


async def test_the_end_closes_a_replaced_connection_too_that_is_in_use_still(driver: _Driver) -> None:
    begun = asyncio.Event()

    async def read(_call: Call) -> None:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()

    driver.on_read = read
    changed = Target(address="ipmi://192.0.2.10", username="admin", password="second")
    async with Drivers() as kept:
        old = asyncio.create_task(kept.invoke(BMC, "power.getPower"))
        await begun.wait()
        await kept.invoke(changed, "power.getPower")
    assert [connection.closed for connection in driver.connections] == [True, True]
    old.cancel()
    with pytest.raises(asyncio.CancelledError):
        await old


async def test_pinning_the_certificate_that_was_taken_on_first_use_keeps_the_connection(driver: _Driver) -> None:
    seen = "ab" * 32
    first = Target(address="ipmi://192.0.2.10", username="admin", password="first", verify="first-use")
    pinned = Target(address="ipmi://192.0.2.10", username="admin", password="first", verify=f"sha256:{seen}")
    async with Drivers() as kept:
        await kept.invoke(first, "power.getPower")
        kept.environment.pins[first.endpoint] = seen
        await kept.invoke(pinned, "power.getPower")
        assert len(driver.connections) == 1


async def test_what_a_driver_observed_is_given_beside_the_result(driver: _Driver) -> None:
    async def read(call: Call) -> None:
        call.observed["tlsFingerprint"] = "ab"

    driver.on_read = read
    async with Drivers() as kept, kept.turn(BMC, "power.getPower", {}) as turn:
        assert await turn.run({}) == Reply({"state": "on", "raw": None}, {"tlsFingerprint": "ab"})


def test_the_synchronous_face_does_one_operation(driver: _Driver) -> None:
    assert invoke(BMC, "power.getPower") == {"state": "on", "raw": None}
    assert driver.connections[0].closed


async def test_the_synchronous_face_is_refused_inside_a_running_loop(driver: _Driver) -> None:
    with pytest.raises(RuntimeError, match=r"await drivers\.ainvoke"):
        invoke(BMC, "power.getPower")
    assert driver.connections == []


def test_a_driver_that_is_not_installed_is_unsupported() -> None:
    with pytest.raises(OperationError, match="no tape driver") as caught:
        load("tape")
    assert caught.value.code is ErrorCode.UNSUPPORTED


def test_a_driver_whose_parts_are_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_module: str) -> None:
        raise ModuleNotFoundError("No module named 'aiohttp'", name="aiohttp")

    monkeypatch.setattr("drivers.registry.import_module", missing)
    load.cache_clear()
    with pytest.raises(OperationError, match=r"aiohttp.*pip install") as caught:
        load("redfish")
    assert caught.value.code is ErrorCode.UNSUPPORTED
