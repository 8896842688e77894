"""After a crash: the plan for each row, and what a reading of the machine can and cannot settle."""

from collections.abc import Mapping

import pytest

from agent import observing
from agent.clock import Deadline
from agent.journal import Entry
from agent.observing import observe
from agent.recovery import Step, plan
from protocol.commands import DriverInvoke, Ending, JournalState, Outcome
from protocol.errors import ErrorCode, OperationError
from protocol.operations import OPERATIONS, Repeat
from protocol.validation import check
from tests.agent.rig import FakeClock

A, S, F = JournalState.ACCEPTED, JournalState.STARTED, JournalState.FINISHED


@pytest.mark.parametrize(
    ("state", "repeat", "deadline", "step"),
    [
        (A, Repeat.ONCE, "ahead", Step.AWAIT_WORD),
        (A, Repeat.CONVERGE, "ahead", Step.AWAIT_WORD),
        (A, Repeat.ONCE, "passed", Step.EXPIRE),
        (A, Repeat.ONCE, "other boot", Step.AWAIT_WORD),
        (S, Repeat.READ, "ahead", Step.RUN_AGAIN),
        (S, Repeat.CONVERGE, "ahead", Step.RUN_AGAIN),
        (S, Repeat.CONVERGE, "passed", Step.OBSERVE),
        (S, Repeat.CONVERGE, "other boot", Step.OBSERVE),
        (S, Repeat.READ, "passed", Step.INTERRUPT),
        (S, Repeat.ONCE, "ahead", Step.OBSERVE),
        (S, Repeat.ONCE, "passed", Step.OBSERVE),
        (S, Repeat.ONCE, "other boot", Step.OBSERVE),
        (F, Repeat.ONCE, "passed", Step.REPORT),
    ],
)
def test_the_plan_for_a_row(state: JournalState, repeat: Repeat, deadline: str, step: Step, clock: FakeClock) -> None:
    at = {
        "ahead": Deadline(clock.now_ms + 1, clock.boot_id),
        "passed": Deadline(clock.now_ms - 1, clock.boot_id),
        "other boot": Deadline(clock.now_ms + 1, "before"),
    }[deadline]
    assert plan(Entry(id="c", kind="k", payload={}, state=state, deadline=at), repeat, clock) is step


def test_an_act_that_was_begun_is_never_begun_again(clock: FakeClock) -> None:
    for at in (Deadline(0, clock.boot_id), Deadline(10**12, clock.boot_id), Deadline(10**12, "other")):
        entry = Entry(id="c", kind="k", payload={}, state=S, deadline=at)
        assert plan(entry, Repeat.ONCE, clock) is not Step.RUN_AGAIN


def asked(operation: str, **args: object) -> DriverInvoke:
    concern, _, name = operation.partition(".")
    return DriverInvoke("redfish", concern, name, args, "node_1")


@pytest.mark.parametrize("updates", [True, False])
async def test_an_update_that_goes_on_by_itself_is_waited_for(updates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "_PAUSE", 0.0)
    old = {"components": [{"id": "BMC", "name": "BMC", "version": "2.0"}]}
    readings: list[Mapping[str, object] | OperationError] = [
        old,
        OperationError(ErrorCode.UNREACHABLE, "the BMC is away"),
        OperationError(ErrorCode.BUSY, "it starts"),
        old,
        {"components": [{"id": "BMC", "name": "BMC", "version": "2.1"}]},
    ]

    async def read(operation: str) -> Mapping[str, object]:
        reading = readings.pop(0)
        if isinstance(reading, OperationError):
            raise reading
        return reading

    one: dict[str, object] = {"image": "x", "targets": ["BMC"], "expectVersion": "2.1"}
    args: dict[str, object] = {"updates": [one]} if updates else one
    ending = await observe(asked("firmware.updateFirmware", **args), read, 3600)
    assert ending.outcome is Outcome.SUCCEEDED
    assert not readings


async def test_an_update_that_leaves_no_trace_and_a_refused_login_are_not_waited_for() -> None:
    reads = 0

    async def read(operation: str) -> Mapping[str, object]:
        nonlocal reads
        reads += 1
        if reads == 2:
            raise OperationError(ErrorCode.AUTH_FAILED, "no")
        return FIRMWARE

    for args in ({"image": "x"}, {"image": "x", "targets": ["BMC"], "expectVersion": "9"}):
        ending = await observe(asked("firmware.updateFirmware", **args), read, 3600)
        assert ending.error is not None
        assert ending.error.code == ErrorCode.OUTCOME_UNKNOWN
    assert reads == 2


async def settled(invoke: DriverInvoke, reading: Mapping[str, object] | OperationError) -> Ending:
    async def read(operation: str) -> Mapping[str, object]:
        if isinstance(reading, OperationError):
            raise reading
        return reading

    return await observe(invoke, read)


BOOT = {"target": "pxe", "enabled": "once", "mode": "uefi", "rawTarget": "Pxe"}
CD = {"slots": [{"id": "Cd", "inserted": True, "image": "http://a/x.iso"}]}
FIRMWARE = {"components": [{"id": "BMC", "name": "BMC", "version": "2.1"}, {"id": "BIOS", "version": "1.0"}]}
INVENTORY = "/redfish/v1/UpdateService/FirmwareInventory/"
MIRROR = {"id": "2", "controller": "C", "name": "data", "level": "RAID1", "drives": ["D1", "D2"], "sizeBytes": 9}
RAID = {
    "controllers": [{"id": "C"}],
    "drives": [{"id": "D1", "controller": "C", "serial": "S1"}, {"id": "D2", "controller": "C", "serial": "S2"}],
    "volumes": [MIRROR],
    "unread": [],
}
PAIR = {"controller": "C", "level": "RAID1", "drives": ["S2", "D1"]}


@pytest.mark.parametrize(
    ("invoke", "reading"),
    [
        (asked("power.setPower", action="on"), {"state": "on"}),
        (asked("power.setPower", action="softOff"), {"state": "off"}),
        (asked("boot.setBootDevice", device="pxe"), BOOT),
        (asked("boot.setBootDevice", device="pxe", mode="uefi"), BOOT),
        (asked("boot.setBootDevice", device="none"), {"target": "none", "enabled": "disabled"}),
        (asked("virtual-media.insertMedia", image="http://a/x.iso"), CD),
        (asked("virtual-media.ejectMedia"), {"slots": [{"id": "Cd", "inserted": False}]}),
        (
            asked("firmware.updateFirmware", image="x", targets=[INVENTORY + "BMC"], expectVersion="2.1"),
            FIRMWARE,
        ),
        (asked("firmware.updateFirmware", image="x", targets=["bmc"], expectVersion="2.1"), FIRMWARE),
        (asked("firmware.updateFirmware", image="x", expectVersion="2.1"), FIRMWARE),
        (
            asked(
                "firmware.updateFirmware",
                updates=[
                    {"image": "x", "targets": ["BMC"], "expectVersion": "2.1"},
                    {"image": "y", "targets": ["BIOS"], "expectVersion": "1.0"},
                ],
            ),
            FIRMWARE,
        ),
        (asked("raid.createVolume", **PAIR), RAID),
        (asked("raid.createVolume", **PAIR, name="data"), RAID),
        (asked("raid.deleteVolume", controller="C", volume="1"), RAID),
    ],
)
async def test_a_machine_that_is_as_asked_settles_the_command_with_a_sound_result(
    invoke: DriverInvoke, reading: dict[str, object]
) -> None:
    ending = await settled(invoke, reading)
    assert ending.outcome is Outcome.SUCCEEDED
    assert "after the agent was restarted" in ending.observed["settledBy"]
    assert check(OPERATIONS[invoke.operation_id].result, ending.result)[1] == []


@pytest.mark.parametrize(
    ("invoke", "reading", "known"),
    [
        (asked("power.setPower", action="reset"), {"state": "on"}, "power is on now"),
        (asked("power.setPower", action="cycle"), {"state": "off"}, "power is off now"),
        (asked("power.setPower", action="nmi"), {"state": "on"}, "power is on now"),
        (asked("power.setPower", action="off"), {"state": "unknown"}, "power is unknown now"),
        (asked("boot.setBootDevice", device="cd"), BOOT, "pxe, once"),
        (asked("boot.setBootDevice", device="pxe", persistent=True), BOOT, "pxe, once"),
        (asked("boot.setBootDevice", device="pxe", mode="bios"), BOOT, "pxe, once"),
        (asked("virtual-media.insertMedia", image="http://a/y.iso"), CD, "http://a/x.iso"),
        (asked("virtual-media.ejectMedia"), CD, "http://a/x.iso"),
        (asked("virtual-media.ejectMedia", device="cd"), {"slots": []}, "nothing"),
        (asked("firmware.updateFirmware", image="x"), FIRMWARE, "2 firmware versions"),
        (
            asked("firmware.updateFirmware", image="x", targets=[INVENTORY + "BIOS"], expectVersion="2.1"),
            FIRMWARE,
            "",
        ),
        (asked("management.resetBmc"), {}, "no reading can tell"),
        (asked("raid.clearRaid"), {}, "no reading can tell"),
        (asked("raid.createVolume", **{**PAIR, "level": "RAID0"}), RAID, "volumes: 2"),
        (asked("raid.createVolume", **{**PAIR, "drives": ["D1"]}), RAID, "volumes: 2"),
        (asked("raid.createVolume", **PAIR, name="other"), RAID, "volumes: 2"),
        (asked("raid.createVolume", **PAIR), {**RAID, "volumes": []}, "volumes: none"),
        (asked("raid.deleteVolume", controller="C", volume="data"), RAID, "volumes: 2"),
        (asked("raid.deleteVolume", controller="C", volume="1"), {**RAID, "unread": ["x"]}, "volumes: 2"),
        (asked("raid.deleteVolume", controller="C", volume="1"), {**RAID, "controllers": []}, "volumes: 2"),
        (asked("power.setPower", action="reset"), OperationError(ErrorCode.UNREACHABLE, "no route"), "no route"),
    ],
)
async def test_what_a_reading_cannot_prove_is_unknown_with_what_is_known_and_what_to_do(
    invoke: DriverInvoke, reading: dict[str, object] | OperationError, known: str
) -> None:
    ending = await settled(invoke, reading)
    assert ending.outcome is Outcome.FAILED
    assert ending.error is not None
    assert ending.error.code == ErrorCode.OUTCOME_UNKNOWN
    assert not ending.error.retryable
    assert known in ending.error.message
    assert "look at the machine" in ending.error.message
    assert ending.error.details["mayHaveHappened"] is True


async def test_an_update_that_is_settled_names_its_image_without_its_login() -> None:
    image = "http://reader:Planted-Pa55word@h/images/bmc.bin?sig=c2lnbmF0dXJl"
    invoke = asked("firmware.updateFirmware", updates=[{"image": image, "targets": ["BMC"], "expectVersion": "2.1"}])
    ending = await settled(invoke, FIRMWARE)
    assert ending.outcome is Outcome.SUCCEEDED
    assert "http://h/images/bmc.bin" in str(ending)
    assert "Planted-Pa55word" not in str(ending)
    assert "c2lnbmF0dXJl" not in str(ending)
