"""BIOS, firmware and RAID: the cases B39 to B43, and others of their kinds."""

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, OperationError
from simulators.redfish import Effect, FaultRule, ServiceOptions
from tests.drivers.ends import ended
from tests.drivers.redfish.every_operation import perform, recorded
from tests.drivers.redfish.harness import Bench, bench, without_waiting

SETTINGS = "/redfish/v1/Systems/1/Bios/Settings"
BIOS = "/redfish/v1/Systems/1/Bios"
CHANGE = {"attributes": {"SrIov": "Enabled"}}
WITH_TIME: dict[str, Any] = {"@Redfish.SettingsApplyTime": {}}
TASKS = "/redfish/v1/TaskService/Tasks/*"


def note(key: str, text: str = "", *about: str) -> dict[str, Any]:
    said = {"MessageId": key, "Message": text, "RelatedProperties": list(about), "MessageArgs": list(about)}
    return {"error": {"code": key, "@Message.ExtendedInfo": [said]}}


def sent(bmc: Bench) -> list[Any]:
    return [entry.body for entry in bmc.bmc.journal.entries("PATCH", SETTINGS)]


UNKNOWN_TIME = {
    "by a pointer": note("Base.1.8.PropertyUnknown", "no such property", "#/@Redfish.SettingsApplyTime"),
    "by a pointer into it": note("Base.1.8.PropertyUnknown", "no", "#/@Redfish.SettingsApplyTime/ApplyTime"),
    "in words": note("Base.1.8.PropertyUnknown", "The property @Redfish.SettingsApplyTime is not in the list."),
    "by its inner name": note("Base.1.8.PropertyUnknown", "The property ApplyTime is unknown.", "ApplyTime"),
    "as not writable": note("Base.1.8.PropertyNotWritable", "read only", "@Redfish.SettingsApplyTime"),
    "beside it": {
        "@Redfish.SettingsApplyTime@Message.ExtendedInfo": [
            {"MessageId": "Base.1.8.PropertyUnknown", "Message": "unknown"}
        ]
    },
}


@pytest.mark.case("B39")
@pytest.mark.parametrize("body", UNKNOWN_TIME.values(), ids=UNKNOWN_TIME.keys())
@without_waiting
async def test_b39b_an_apply_time_is_left_out_however_the_bmc_says_that_it_knows_none(body: dict[str, Any]) -> None:
    rule = FaultRule(method="PATCH", path=SETTINGS, match_body=WITH_TIME, status=400, body=body)
    async with bench(recorded(None), faults=[rule]) as bmc:
        assert (await bmc("bios.setBios", CHANGE))["pending"] == {"SrIov": "Enabled"}
        assert ["@Redfish.SettingsApplyTime" in body for body in sent(bmc)] == [True, False]


COMMITTED = {
    "Dell": note("IDRAC.2.8.SYS011", "Pending configuration values are already committed"),
    "Dell, of a job": note("IDRAC.2.8.LC068", "A configuration job is already scheduled"),
    "in words": note("Base.1.8.GeneralError", "The configuration job already exists."),
    "of pending changes": note("Base.1.8.GeneralError", "There are pending attribute changes."),
}


@pytest.mark.case("B39")
@pytest.mark.parametrize("status", [400, 403, 409, 503])
@pytest.mark.parametrize("body", COMMITTED.values(), ids=COMMITTED.keys())
@without_waiting
async def test_b39c_a_job_that_stands_in_the_way_is_told_in_its_words(body: dict[str, Any], status: int) -> None:
    rule = FaultRule(method="PATCH", path=SETTINGS, status=status, body=body)
    async with bench(recorded(None), faults=[rule]) as bmc:
        error = await bmc.fails("bios.setBios", CHANGE)
        assert error.code in (ErrorCode.CONFLICT, ErrorCode.BUSY), error
        assert error.bmc[0].text == body["error"]["@Message.ExtendedInfo"][0]["Message"]


@pytest.mark.case("B39")
@pytest.mark.parametrize("status", [200, 202, 204])
@without_waiting
async def test_b39a_a_yes_that_no_reading_bears_out_is_not_applied(status: int) -> None:
    async with bench(
        recorded(None), faults=[FaultRule(method="PATCH", path=SETTINGS, status=status, body={})]
    ) as bmc:
        assert (await bmc.fails("bios.setBios", CHANGE)).code is ErrorCode.NOT_APPLIED


@pytest.mark.case("B41")
@pytest.mark.parametrize("operation", ["firmware.updateFirmware", "management.resetBmc"])
@pytest.mark.parametrize("seconds", [30, 240])
@without_waiting
async def test_b41_a_bmc_that_flaps_after_its_restart_is_not_believed_at_once(
    operation: str, seconds: int, tmp_path: Path
) -> None:
    image = tmp_path / "bmc-2.14.0.bin"
    image.write_bytes(b"firmware")
    flaps = (*(Effect(status=status) for status in (503, 404, 500, 401)), Effect(body="<html>", status=200))
    async with bench(recorded(None), options=ServiceOptions(manager_reset_seconds=seconds)) as bmc:
        bmc.bmc.faults.add(FaultRule(method="GET", path="/redfish/v1/Managers/1", after=2, sequence=flaps))
        assert not isinstance(await ended(perform(operation, bmc, image=image)), OperationError)


@pytest.mark.case("B42")
@pytest.mark.parametrize(
    "answer",
    [
        {"@odata.id": "/redfish/v1/TaskService/Tasks/1", "@odata.type": "#Task.v1_7_0.Task", "TaskState": "New"},
        {"@odata.id": "/redfish/v1/TaskService/Tasks/1", "TaskState": "Running"},
        {"TaskMonitor": "/redfish/v1/TaskService/Tasks/1/Monitor"},
        note("Base.1.8.Success", "The task /redfish/v1/TaskService/Tasks/1 was created."),
        {},
        "accepted",
    ],
    ids=["a task", "a nameless task", "a monitor", "a message", "nothing", "a word"],
)
@without_waiting
async def test_b42_a_yes_without_a_location_is_proven_by_the_volume(answer: Any) -> None:
    options = ServiceOptions(volume_changes_by_task=True, task_seconds=20)
    async with bench(recorded(None), options=options) as bmc:
        bmc.bmc.faults.add(
            FaultRule(
                method="POST", path="*/Volumes", status=202, execute=True, body=answer, remove_headers=("Location",)
            )
        )
        made = await bmc("raid.createVolume", {"controller": "RAID1", "level": "RAID0", "drives": ["Disk3", "Disk4"]})
        assert made["volume"] == "2"
        assert len(bmc.requests("POST", "*/Volumes")) == 1


@pytest.mark.case("B43")
@pytest.mark.parametrize("word", ["Critical", "critical", "CRITICAL"])
@pytest.mark.parametrize("where", ["Severity", "MessageSeverity"])
@pytest.mark.parametrize("operation", ["raid.createVolume", "raid.deleteVolume"])
@without_waiting
async def test_b43_a_task_that_completes_with_a_critical_message_has_failed(
    operation: str, where: str, word: str, tmp_path: Path
) -> None:
    failed = {"Messages": [{"MessageId": "X.1.0.DriveFault", "Message": "A drive has failed.", where: word}]}
    options = ServiceOptions(volume_changes_by_task=True, task_seconds=5)
    async with bench(recorded(None), options=options) as bmc:
        bmc.bmc.faults.add(FaultRule(method="GET", path=TASKS, merge={**failed, "TaskState": "Completed"}))
        end = await ended(perform(operation, bmc, image=tmp_path))
        assert isinstance(end, OperationError), end
        assert "A drive has failed." in str(end)


@pytest.mark.case("B43")
@pytest.mark.parametrize("refused", ["Encrypted", "VolumeType", "Drives", "Name", "CapacityBytes"])
@without_waiting
async def test_b43_a_volume_is_asked_for_with_no_more_than_was_wanted(refused: str) -> None:
    options = ServiceOptions(volume_properties_refused=(refused,))
    async with bench(recorded(None), options=options) as bmc:
        made = await bmc("raid.createVolume", {"controller": "RAID1", "level": "RAID0", "drives": ["Disk3", "Disk4"]})
        assert made["volume"] == "2"


@pytest.mark.case("B43")
@pytest.mark.parametrize("status", [404, 500, 503])
@without_waiting
async def test_b43_a_storage_member_that_cannot_be_read_hides_no_other(status: int, shared: Path) -> None:
    tree = recorded(shared / "mockups" / "hpe-dl385-ilo5")
    async with bench(tree) as bmc:
        whole = await bmc("raid.getRaid")
        controllers = [controller["id"] for controller in whole["controllers"]]
        gone = f"/redfish/v1/Systems/1/Storage/{controllers[0]}"
        bmc.bmc.faults.add(FaultRule(method="GET", path=gone, status=status))
        left = await bmc("raid.getRaid")
        assert [controller["id"] for controller in left["controllers"]] == controllers[1:]
        # A member that is listed and not there is nothing that could not be read (NVIDIA BlueField-3).
        assert any(controllers[0] in line for line in left["unread"]) is (status != 404)
