"""Scripts of simulated machines: latency, failures and first states, as data."""

import asyncio
import json
from pathlib import Path

import pytest

from drivers import Drivers, Target, ainvoke, simulated
from drivers.simulated import Fault, Moment, Script
from protocol.errors import BmcMessage, ErrorCode, OperationError

MACHINE = Target(address="simulated://rack-1-u3")


async def code_of(operation: str, arguments: dict[str, object] | None = None, **options: float) -> ErrorCode | None:
    try:
        await ainvoke(MACHINE, operation, arguments or {}, **options)
    except OperationError as error:
        return error.code
    return None


async def test_a_fault_strikes_after_some_calls_and_for_a_count() -> None:
    simulated.script("rack-1-*", faults=[{"operation": "power.getPower", "code": "BUSY", "after": 1, "count": 2}])
    codes = [await code_of("power.getPower") for _ in range(5)]
    assert codes == [None, ErrorCode.BUSY, ErrorCode.BUSY, None, None]


async def test_a_fault_counts_the_calls_of_its_operations_only_and_per_machine() -> None:
    simulated.script("rack-1-*", faults=[{"operation": "power.*", "code": "BUSY", "count": 1}])
    assert await code_of("boot.getBoot") is None
    other = Target(address="simulated://rack-1-u4")
    with pytest.raises(OperationError):
        await ainvoke(other, "power.getPower")
    assert await code_of("power.getPower") is ErrorCode.BUSY


async def test_a_failure_keeps_the_bmcs_own_words() -> None:
    words = BmcMessage("Base.1.0.GeneralError", "the machine says no")
    simulated.script("rack-1-*", Script(faults=[Fault(code=ErrorCode.BMC_ERROR, message="it failed", bmc=[words])]))
    with pytest.raises(OperationError) as caught:
        await ainvoke(MACHINE, "power.getPower")
    assert (caught.value.message, caught.value.bmc) == ("it failed", [words])


async def test_a_fault_before_the_act_leaves_the_machine_as_it_was() -> None:
    simulated.script("rack-1-*", faults=[{"operation": "power.setPower", "code": "UNREACHABLE"}])
    assert await code_of("power.setPower", {"action": "off"}) is ErrorCode.UNREACHABLE
    assert simulated.state("rack-1-u3").power == "on"
    assert simulated.act_counts("rack-1-u3") == {}


async def test_a_fault_after_the_act_loses_only_the_answer() -> None:
    simulated.script("rack-1-*", Script(faults=[Fault(code=ErrorCode.UNREACHABLE, moment=Moment.AFTER, count=1)]))
    assert await code_of("power.setPower", {"action": "off"}) is ErrorCode.UNREACHABLE
    assert simulated.state("rack-1-u3").power == "off"
    assert simulated.act_counts("rack-1-u3") == {"power.setPower": 1}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [({"action": "reset"}, ErrorCode.OUTCOME_UNKNOWN), ({"action": "off"}, ErrorCode.TIMEOUT)],
)
async def test_a_machine_that_acts_and_never_answers_holds_the_call_until_its_deadline(
    arguments: dict[str, object], code: ErrorCode
) -> None:
    simulated.script("rack-1-*", faults=[{"operation": "power.setPower", "hang": True, "moment": "after"}])
    assert await code_of("power.setPower", arguments, timeout=0.05) is code
    assert simulated.act_counts("rack-1-u3") == {"power.setPower": 1}


async def test_a_hanging_call_can_be_cancelled() -> None:
    simulated.script("rack-1-*", faults=[{"operation": "power.setPower", "hang": True, "moment": "after"}])
    task = asyncio.create_task(ainvoke(MACHINE, "power.setPower", {"action": "reset"}))
    while not simulated.act_counts("rack-1-u3"):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_late_answer_is_an_answer() -> None:
    simulated.script("rack-1-*", faults=[{"delay": "20ms", "moment": "after"}])
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert (await ainvoke(MACHINE, "power.setPower", {"action": "off"}))["state"] == "off"
    assert loop.time() - begun >= 0.02


async def test_latency_goes_by_operation_and_a_call_that_has_no_time_for_it_times_out() -> None:
    simulated.script("rack-1-*", latencies={"power.*": "1h"})
    assert await code_of("boot.getBoot") is None
    assert await code_of("power.getPower", timeout=0.01) is ErrorCode.TIMEOUT
    assert await code_of("power.setPower", {"action": "reset"}, timeout=0.01) is ErrorCode.OUTCOME_UNKNOWN
    assert simulated.act_counts("rack-1-u3") == {}


def test_jitter_is_bounded_and_the_same_for_the_same_seed() -> None:
    delays = [Script(latency="100ms", jitter="50ms", seed=7).delay_ms("power.getPower", "a", n) for n in range(200)]
    again = [Script(latency="100ms", jitter="50ms", seed=7).delay_ms("power.getPower", "a", n) for n in range(200)]
    other = [Script(latency="100ms", jitter="50ms", seed=8).delay_ms("power.getPower", "a", n) for n in range(200)]
    assert delays == again
    assert delays != other
    assert min(delays) >= 100
    assert max(delays) <= 150
    assert len(set(delays)) > 20


async def test_long_operations_report_their_progress() -> None:
    seen: list[tuple[str, float | None]] = []
    image = {"image": {"url": "https://images.example/a.raw"}}
    async with Drivers() as drivers:
        await drivers.invoke(MACHINE, "deploy.writeImage", image, progress=lambda *step: seen.append(step))
    assert [message for message, _ in seen] == ["fetching", "writing", "reading back"]


async def test_a_machine_begins_in_the_state_that_its_script_gives() -> None:
    simulated.script("rack-1-*", state={"power": "off", "boot": {"target": "pxe", "enabled": "continuous"}})
    assert (await ainvoke(MACHINE, "power.getPower"))["state"] == "off"
    assert (await ainvoke(MACHINE, "boot.getBoot"))["target"] == "pxe"


async def test_a_wrong_password_is_tried_once_until_the_credential_changes() -> None:
    simulated.script("rack-1-*", password="right")
    async with Drivers() as drivers:

        async def power_with(password: str) -> ErrorCode | None:
            target = Target(address=MACHINE.address, username="admin", password=password)
            try:
                await drivers.invoke(target, "power.getPower")
            except OperationError as error:
                return error.code
            return None

        assert await power_with("wrong") is ErrorCode.AUTH_FAILED
        assert await power_with("wrong") is ErrorCode.AUTH_BLOCKED
        assert await power_with("right") is None


async def test_the_last_pattern_that_matches_counts() -> None:
    simulated.script("*", faults=[{"code": "BUSY"}])
    simulated.script("rack-1-*")
    assert await code_of("power.getPower") is None
    assert await code_of("power.getPower") is None
    simulated.script("*", faults=[{"code": "BUSY"}])
    assert await code_of("power.getPower") is ErrorCode.BUSY


async def test_observed_facts_are_reported_beside_the_result() -> None:
    simulated.script("rack-1-*", observed={"tlsFingerprint": "ab" * 32})
    async with Drivers() as drivers, drivers.turn(MACHINE, "power.getPower", {}) as turn:
        assert (await turn.run({})).observed == {"tlsFingerprint": "ab" * 32}


@pytest.mark.parametrize("form", ["toml", "json"])
async def test_a_script_file_is_read_and_read_again_when_it_changes(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"machines.{form}"
    monkeypatch.setenv(simulated.SCRIPT_VARIABLE, str(file))

    def write(code: str) -> None:
        fault = {"operation": "power.*", "code": code}
        file.write_text(
            json.dumps({"machines": {"rack-1-*": {"faults": [fault]}}})
            if form == "json"
            else f'[machines."rack-1-*"]\nfaults = [{{operation = "power.*", code = "{code}"}}]\n'
        )

    write("BUSY")
    assert await code_of("power.getPower") is ErrorCode.BUSY
    write("LICENSE_REQUIRED")
    assert await code_of("power.getPower") is ErrorCode.LICENSE_REQUIRED


async def test_every_fault_of_a_script_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "machines.json"
    file.write_text('{"machines": {"a": {"latncy": "1s", "faults": [{"code": "BUSSY"}]}}}')
    monkeypatch.setenv(simulated.SCRIPT_VARIABLE, str(file))
    with pytest.raises(OperationError) as caught:
        await ainvoke(MACHINE, "power.getPower")
    assert all(word in caught.value.message for word in (str(file), "latncy", "did you mean 'latency'", "'BUSY'"))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"latency": "fast"}, "not a duration"),
        ({"state": {"powr": "on"}}, "powr"),
        ({"faults": [{"operation": "power.*"}]}, "needs code, hang or delay"),
        ({"faults": [{"hang": True, "code": "BUSY"}]}, "leave one"),
    ],
)
def test_a_script_that_makes_no_sense_is_refused_when_it_is_set(fields: dict[str, object], word: str) -> None:
    with pytest.raises(OperationError) as caught:
        simulated.script("*", **fields)
    assert word in caught.value.message


def test_a_script_does_not_show_its_password() -> None:
    assert "hunter2" not in repr(Script(password="hunter2", latency="1s"))
