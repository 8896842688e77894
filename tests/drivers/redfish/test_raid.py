"""RAID over Redfish: planned before anything is sent, sent once, done when it is seen, and told when it waits."""

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, OperationError
from simulators.redfish import Drop, Effect, FaultRule, ServiceOptions
from tests.drivers.redfish.harness import SYSTEM, Bench, bench, without_waiting
from tests.drivers.redfish.test_mockups import DELL, HPE, LENOVO

STORAGE = f"{SYSTEM}/Storage/RAID1"
VOLUMES = f"{STORAGE}/Volumes"
TASKS = "/redfish/v1/TaskService/Tasks/*"
ILO6 = "hpe-dl380a-ilo6"
SLOW = ServiceOptions(task_seconds=60, volume_changes_by_task=True)
GIB = 1 << 30
RAID0 = {"controller": "RAID1", "level": "RAID0", "drives": ["Disk3", "Disk4"]}


def refusal(key: str, text: str = "", *about: str) -> dict[str, Any]:
    note = {"MessageId": f"Base.1.12.{key}", "Message": text, "RelatedProperties": list(about)}
    return {"error": {"code": note["MessageId"], "@Message.ExtendedInfo": [note]}}


def created(bmc: Bench, path: str = "*/Volumes") -> list[Any]:
    """The bodies of the requests for volumes that reached the BMC, oldest first."""
    return [entry.body for entry in bmc.bmc.journal.entries("POST", path)]


def changes(bmc: Bench) -> list[str]:
    """Every change that was sent, but for logging in."""
    sent = [entry for entry in bmc.bmc.journal.entries() if entry.method not in ("GET", "HEAD")]
    others = ("/Sessions", "ComputerSystem.Reset")
    return [
        f"{entry.method} {entry.path.rpartition('/')[2]}"
        for entry in sent
        if not any(word in entry.path for word in others)
    ]


def members(bmc: Bench, path: str = VOLUMES) -> list[str]:
    found = bmc.bmc.state.document(path) or {}
    return [member["@odata.id"].rpartition("/")[2] for member in found["Members"]]


def offer_times(bmc: Bench, *times: str, path: str = VOLUMES) -> None:
    support = {"@odata.type": "#Settings.v1_3_5.OperationApplyTimeSupport", "SupportedValues": list(times)}
    bmc.bmc.state.patch(path, {"@Redfish.OperationApplyTimeSupport": support})


def on(*numbers: int) -> dict[str, Any]:
    return {"Drives": [{"@odata.id": f"{STORAGE}/Drives/Disk{number}"} for number in numbers]}


async def restart(bmc: Bench) -> None:
    """The machine is off and on again: what waited for its start happens."""
    for action in ("off", "on"):
        await bmc("power.setPower", {"action": action})


# One volume


@without_waiting
async def test_a_volume_is_made_and_seen() -> None:
    async with bench() as bmc:
        made = await bmc("raid.createVolume", {**RAID0, "name": "data", "sizeGiB": 100})
        assert made == {
            "volume": "2",
            "task": None,
            "resetOwed": False,
            "sizeBytes": 100 * GIB,
            "drives": ["Disk3", "Disk4"],
        }
        assert created(bmc) == [{"RAIDType": "RAID0", "Links": on(3, 4), "CapacityBytes": 100 * GIB, "Name": "data"}]
        (volume,) = [v for v in (await bmc("raid.getRaid"))["volumes"] if v["id"] == "2"]
        assert (volume["name"], volume["level"], volume["drives"]) == ("data", "RAID0", ["Disk3", "Disk4"])


@pytest.mark.case("B43")
@without_waiting
async def test_b43_all_the_space_is_asked_for_by_leaving_the_size_out() -> None:
    async with bench() as bmc:
        assert (await bmc("raid.createVolume", RAID0))["sizeBytes"] == 2 * 960197124096
        assert "CapacityBytes" not in created(bmc)[0]


@without_waiting
async def test_a_drive_may_be_named_by_its_serial_number() -> None:
    async with bench() as bmc:
        drives = ["RWSSD000003", "Disk4"]
        assert (await bmc("raid.createVolume", {**RAID0, "drives": drives}))["drives"] == ["Disk3", "Disk4"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"drives": ["Disk1", "Disk9"]}, "drives: there is no Disk9"),
        ({"drives": ["Disk1", "Disk3"]}, "drives: Disk1 belongs to another volume (1)"),
        ({"level": "RAID5"}, "drives: RAID5 needs at least 3 drives"),
        ({"level": "RAID50"}, "level: RAID50 is not offered: RAID1 offers RAID0, RAID1, RAID5, RAID6, RAID10, JBOD"),
        ({"sizeGiB": 9000}, "sizeGiB: RAID0 over 2 drives offers 1789 GiB, not 9000"),
        ({"controller": "RAID2"}, "controller: there is no 'RAID2'; this machine has RAID1"),
    ],
)
@without_waiting
async def test_a_volume_that_cannot_be_is_refused_before_anything_is_sent(
    changed: dict[str, Any], words: str
) -> None:
    async with bench() as bmc:
        error = await bmc.fails("raid.createVolume", {**RAID0, **changed})
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert words in error.message
        assert changes(bmc) == []


@without_waiting
async def test_a_volume_that_a_task_makes_is_waited_for() -> None:
    async with bench(options=SLOW) as bmc:
        told: list[str] = []
        made = await bmc(
            "raid.createVolume", RAID0, progress=lambda words, percent: told.append(f"{words} {percent}")
        )
        assert (made["volume"], made["task"]) == ("2", "/redfish/v1/TaskService/Tasks/1")
        assert any("70" in words for words in told)
        assert len(created(bmc)) == 1


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("Exception", {"MessageId": "X.1.0.VolumeFailed", "Message": "The drive refused.", "Severity": "Critical"}),
        ("Completed", {"MessageId": "X.1.0.VolumeFailed", "Message": "The drive refused.", "Severity": "Critical"}),
    ],
)
@pytest.mark.case("B43")
@without_waiting
async def test_b43_a_task_that_ends_with_a_critical_message_has_failed(state: str, message: dict[str, str]) -> None:
    spoiled = {"TaskState": state, "TaskStatus": "OK", "Messages": [message]}
    async with bench(faults=[FaultRule(method="GET", path=TASKS, merge=spoiled)], options=SLOW) as bmc:
        bmc.bmc.faults.add(FaultRule(method="GET", path=TASKS, merge=spoiled))
        error = await bmc.fails("raid.createVolume", RAID0)
        assert error.code is ErrorCode.BMC_ERROR
        assert "The drive refused." in str(error)
        assert len(created(bmc)) == 1


@without_waiting
async def test_a_task_that_is_done_without_a_volume_has_applied_nothing() -> None:
    done = {"TaskState": "Completed", "TaskStatus": "OK", "Messages": []}
    body = {"@odata.id": "/redfish/v1/TaskService/Tasks/9", "@odata.type": "#Task.v1_7_4.Task", **done}
    rules = [
        FaultRule(method="POST", path=VOLUMES, status=202, body=body),
        FaultRule(method="GET", path=TASKS, status=200, body=body),
    ]
    async with bench(faults=rules) as bmc:
        error = await bmc.fails("raid.createVolume", RAID0)
        assert error.code is ErrorCode.NOT_APPLIED
        assert len(created(bmc)) == 1


@without_waiting
async def test_a_task_without_a_location_that_vanishes_is_settled_by_the_volume() -> None:
    rules = [
        FaultRule(method="POST", path=VOLUMES, remove_headers=("Location",)),
        FaultRule(method="GET", path=TASKS, after=2, status=404),
    ]
    async with bench(faults=rules, options=SLOW) as bmc:
        made = await bmc("raid.createVolume", RAID0)
        assert (made["volume"], made["task"]) == ("2", "/redfish/v1/TaskService/Tasks/1")
        assert len(created(bmc)) == 1


@pytest.mark.parametrize("seconds", [0, 30])
@without_waiting
async def test_a_volume_whose_answer_is_lost_is_found_and_not_asked_for_again(seconds: float) -> None:
    options = ServiceOptions(task_seconds=seconds, volume_changes_by_task=seconds > 0)
    async with bench(faults=[FaultRule(method="POST", path=VOLUMES, drop=Drop.AFTER)], options=options) as bmc:
        assert (await bmc("raid.createVolume", RAID0))["volume"] == "2"
        assert len(created(bmc)) == 1


@without_waiting
async def test_a_lost_answer_without_a_volume_is_unknown_and_not_asked_for_again() -> None:
    async with bench(faults=[FaultRule(method="POST", path=VOLUMES, drop=Drop.BEFORE)]) as bmc:
        error = await bmc.fails("raid.createVolume", RAID0)
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert "no new volume is seen on Disk3, Disk4" in error.message
        assert len(created(bmc)) == 1


@without_waiting
async def test_another_volume_that_appears_meanwhile_is_not_taken_for_ours() -> None:
    async with bench(faults=[FaultRule(method="POST", path=VOLUMES, drop=Drop.BEFORE)]) as bmc:
        other = f"{VOLUMES}/7"
        bmc.bmc.state.put(other, {"@odata.id": other, "Id": "7", "RAIDType": "RAID0", "Links": on(1)})

        def appears(words: str, _: float | None) -> None:
            links = [{"@odata.id": f"{VOLUMES}/1"}, {"@odata.id": other}]
            bmc.bmc.state.edit(VOLUMES, lambda document: document.update(Members=links))

        with pytest.raises(OperationError, match="OUTCOME_UNKNOWN"):
            await bmc("raid.createVolume", RAID0, progress=appears)


@without_waiting
async def test_a_server_error_after_the_volume_was_made_is_no_failure() -> None:
    rule = FaultRule(method="POST", path=VOLUMES, status=500, execute=True, count=1)
    async with bench(faults=[rule]) as bmc:
        assert (await bmc("raid.createVolume", RAID0))["volume"] == "2"
        assert len(created(bmc)) == 1


@without_waiting
async def test_a_controller_that_is_not_ready_is_asked_again() -> None:
    rule = FaultRule(method="POST", path=VOLUMES, status=503, headers={"Retry-After": "5"}, count=3)
    async with bench(faults=[rule]) as bmc:
        assert (await bmc("raid.createVolume", RAID0))["volume"] == "2"
        assert len(created(bmc)) == 4


@without_waiting
async def test_a_volume_of_another_size_than_asked_is_told() -> None:
    small = FaultRule(method="GET", path=f"{VOLUMES}/2", merge={"CapacityBytes": 50 * GIB})
    async with bench(faults=[small]) as bmc:
        error = await bmc.fails("raid.createVolume", {**RAID0, "sizeGiB": 100})
        assert error.code is ErrorCode.NOT_APPLIED
        assert "the volume 2 of RAID1 was made, but has" in error.message


# What a BMC takes

LADDER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the volume type, missing": (
        refusal("PropertyMissing", "", "#/VolumeType"),
        {"RAIDType": "RAID0", "Links": on(3, 4), "Name": "data", "VolumeType": "NonRedundant"},
    ),
    "the volume type instead of the RAID type": (
        refusal("PropertyUnknown", "", "#/RAIDType"),
        {"Links": on(3, 4), "Name": "data", "VolumeType": "NonRedundant"},
    ),
    "the drives beside": (
        refusal("PropertyUnknown", "The property Links is unknown."),
        {"RAIDType": "RAID0", "Name": "data", **on(3, 4)},
    ),
    "the name as a display name": (
        refusal("PropertyNotWritable", "", "Name"),
        {"RAIDType": "RAID0", "Links": on(3, 4), "DisplayName": "data"},
    ),
    "encryption said to be off": (
        refusal("PropertyMissing", "", "/Encrypted"),
        {"RAIDType": "RAID0", "Links": on(3, 4), "Name": "data", "Encrypted": False},
    ),
}


@pytest.mark.parametrize(("body", "wanted"), LADDER.values(), ids=LADDER.keys())
@without_waiting
async def test_a_refusal_that_names_a_property_changes_that_property(
    body: dict[str, Any], wanted: dict[str, Any]
) -> None:
    async with bench(faults=[FaultRule(method="POST", path=VOLUMES, status=400, body=body, count=1)]) as bmc:
        await bmc("raid.createVolume", {**RAID0, "name": "data"})
        assert created(bmc)[1:] == [wanted]


@without_waiting
async def test_a_refusal_that_nothing_mends_ends_it_with_the_bmc_s_words() -> None:
    body = refusal("PropertyValueError", "The drives are of different speeds.", "#/Links/Drives")
    async with bench(faults=[FaultRule(method="POST", path=VOLUMES, status=400, body=body)]) as bmc:
        error = await bmc.fails("raid.createVolume", RAID0)
        assert "The drives are of different speeds." in str(error)
        assert len(created(bmc)) == 1


@without_waiting
async def test_two_forms_that_are_both_refused_end_it() -> None:
    async with bench() as bmc:
        for key in ("Name", "DisplayName"):
            body = refusal("PropertyUnknown", "", key)
            bmc.bmc.faults.add(
                FaultRule(method="POST", path=VOLUMES, match_body={key: "data"}, status=400, body=body)
            )
        error = await bmc.fails("raid.createVolume", {**RAID0, "name": "data"})
        assert (error.code, len(created(bmc))) == (ErrorCode.BMC_ERROR, 2)


@pytest.mark.case("B43")
@without_waiting
async def test_b43_ilo_6_gets_the_drives_in_links_and_neither_volume_type_nor_encrypted(shared: Path) -> None:
    async with bench(shared / "mockups" / ILO6) as bmc:
        made = await bmc(
            "raid.createVolume",
            {"controller": "DE00A000", "level": "RAID5", "name": "data", "drives": ["2", "3", "4"]},
        )
        assert made["drives"] == ["2", "3", "4"]
        path = "/redfish/v1/Chassis/DE00A000/Drives"
        links = {"Drives": [{"@odata.id": f"{path}/{number}"} for number in (2, 3, 4)]}
        assert created(bmc) == [{"RAIDType": "RAID5", "Links": links, "DisplayName": "data"}]


@without_waiting
async def test_a_name_that_the_capabilities_rule_out_is_refused_before_anything_is_sent(shared: Path) -> None:
    async with bench(shared / "mockups" / ILO6) as bmc:
        wanted = {"controller": "DE00A000", "level": "RAID0", "name": "a name of many letters", "drives": ["2"]}
        error = await bmc.fails("raid.createVolume", wanted)
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert "must match ^.{0,15}$" in error.message
        assert changes(bmc) == []


@pytest.mark.parametrize(
    ("offered", "sent"),
    [((), None), (("OnReset", "Immediate"), "Immediate"), (("AtMaintenanceWindowStart",), None)],
)
@without_waiting
async def test_a_time_is_named_only_where_the_collection_offers_it(
    offered: tuple[str, ...], sent: str | None
) -> None:
    async with bench() as bmc:
        if offered:
            offer_times(bmc, *offered)
        await bmc("raid.createVolume", RAID0)
        assert created(bmc)[0].get("@Redfish.OperationApplyTime") == sent


@without_waiting
async def test_a_time_that_is_offered_and_refused_all_the_same_is_left_out() -> None:
    body = refusal("SYS402", "OperationApplyTime is not supported for this operation.")
    named = {"@Redfish.OperationApplyTime": "Immediate"}
    async with bench(faults=[FaultRule(method="POST", path=VOLUMES, match_body=named, status=400, body=body)]) as bmc:
        offer_times(bmc, "Immediate")
        assert (await bmc("raid.createVolume", RAID0))["volume"] == "2"
        assert ["@Redfish.OperationApplyTime" in sent for sent in created(bmc)] == [True, False]


# Waiting for a reset


@pytest.mark.case("B43")
@without_waiting
async def test_b43_a_volume_that_waits_for_a_reset_is_told_and_not_waited_for() -> None:
    async with bench() as bmc:
        offer_times(bmc, "OnReset")
        made = await bmc("raid.createVolume", RAID0)
        assert (made["volume"], made["resetOwed"]) == (None, True)
        assert created(bmc)[0]["@Redfish.OperationApplyTime"] == "OnReset"
        again = await bmc.fails("raid.createVolume", RAID0)
        assert again.code is ErrorCode.CONFLICT
        assert "Ask again after the reset" in again.message
        assert len(created(bmc)) == 1
        await restart(bmc)
        assert "2" in members(bmc)


# Deleting


@without_waiting
async def test_a_volume_is_deleted_by_its_id_or_name() -> None:
    async with bench() as bmc:
        assert await bmc("raid.deleteVolume", {"controller": "RAID1", "volume": "System"}) == {
            "task": None,
            "resetOwed": False,
            "deleted": ["1"],
            "waiting": [],
        }
        assert members(bmc) == []
        error = await bmc.fails("raid.deleteVolume", {"controller": "RAID1", "volume": "1"})
        assert (error.code, "there is none" in error.message) == (ErrorCode.INVALID_ARGUMENT, True)
        assert changes(bmc) == ["DELETE 1"]


DELETION = {"controller": "RAID1", "volume": "1"}


@pytest.mark.case("B43")
@without_waiting
async def test_b43_a_deletion_names_no_time() -> None:
    async with bench(behaviour="dell-idrac", options=SLOW) as bmc:
        offer_times(bmc, "Immediate", "OnReset")
        deleted = await bmc("raid.deleteVolume", DELETION)
        assert (deleted["deleted"], deleted["task"]) == (["1"], "/redfish/v1/TaskService/Tasks/1")
        (sent,) = bmc.bmc.journal.entries("DELETE", f"{VOLUMES}/*")
        assert sent.body is None


@without_waiting
async def test_a_deletion_names_a_time_where_the_bmc_misses_it() -> None:
    missing = refusal("PropertyMissing", "", "@Redfish.OperationApplyTime")
    async with bench(
        faults=[FaultRule(method="DELETE", path=VOLUMES + "/*", status=400, body=missing, count=1)]
    ) as bmc:
        offer_times(bmc, "Immediate", "OnReset")
        await bmc("raid.deleteVolume", DELETION)
        assert [entry.body for entry in bmc.bmc.journal.entries("DELETE", f"{VOLUMES}/*")] == [
            None,
            {"@Redfish.OperationApplyTime": "Immediate"},
        ]


@pytest.mark.parametrize(
    "rule",
    [
        FaultRule(method="DELETE", drop=Drop.AFTER, path=VOLUMES + "/*"),
        FaultRule(method="DELETE", status=500, execute=True, path=VOLUMES + "/*"),
        FaultRule(method="DELETE", status=404, execute=True, path=VOLUMES + "/*"),
    ],
    ids=["dropped", "server error", "gone"],
)
@without_waiting
async def test_a_volume_that_is_gone_was_deleted_whatever_the_answer(rule: FaultRule) -> None:
    async with bench(faults=[rule]) as bmc:
        assert (await bmc("raid.deleteVolume", DELETION))["deleted"] == ["1"]
        assert changes(bmc) == ["DELETE 1"]


@without_waiting
async def test_a_deletion_without_an_answer_or_an_effect_is_unknown_and_sent_once() -> None:
    async with bench(faults=[FaultRule(method="DELETE", drop=Drop.BEFORE, path=VOLUMES + "/*")]) as bmc:
        error = await bmc.fails("raid.deleteVolume", DELETION)
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert changes(bmc) == ["DELETE 1"]


@without_waiting
async def test_a_deletion_that_is_refused_ends_with_the_bmc_s_words() -> None:
    body = refusal("VolumeLocked", "The volume is locked.")
    async with bench(faults=[FaultRule(method="DELETE", path=VOLUMES + "/*", status=400, body=body)]) as bmc:
        assert "The volume is locked." in str(await bmc.fails("raid.deleteVolume", DELETION))
        assert changes(bmc) == ["DELETE 1"]


@without_waiting
async def test_a_drive_as_it_is_cannot_be_deleted(shared: Path) -> None:
    async with bench(shared / "mockups" / DELL) as bmc:
        volume = "Disk.Bay.6:Enclosure.Internal.0-1"
        error = await bmc.fails("raid.deleteVolume", {"controller": "CPU.1", "volume": volume})
        assert "is a drive as it is" in error.message
        assert changes(bmc) == []


# Converging

WANTED = {
    "volumes": [
        {"level": "RAID1", "name": "System", "drives": ["Disk1", "Disk2"]},
        {"level": "RAID0", "name": "data", "drives": {"count": 2, "media": "ssd"}},
    ]
}
MIRRORS = {
    "deleteOthers": True,
    "volumes": [
        {"level": "RAID1", "name": "a", "drives": ["Disk1", "Disk3"]},
        {"level": "RAID1", "name": "b", "drives": {"count": 2}},
    ],
}


def acts(result: dict[str, Any], key: str = "plan") -> list[tuple[str, str]]:
    return [(step["act"], step["volume"]) for step in result[key]]


@without_waiting
async def test_what_is_there_is_kept_and_what_is_missing_is_made() -> None:
    async with bench() as bmc:
        result = await bmc("raid.applyRaid", WANTED)
        assert acts(result) == [("keep", "1"), ("create", "data")]
        assert [volume["id"] for volume in result["kept"]] == ["1"]
        assert [(volume["name"], volume["drives"]) for volume in result["made"]] == [("data", ["Disk3", "Disk4"])]
        assert (result["resetOwed"], result["deleted"], result["waiting"]) == (False, [], [])
        again = await bmc("raid.applyRaid", WANTED)
        assert acts(again) == [("keep", "1"), ("keep", "2")]
        assert len(created(bmc)) == 1


@without_waiting
async def test_a_dry_run_shows_the_plan_and_sends_nothing() -> None:
    async with bench() as bmc:
        result = await bmc("raid.applyRaid", {**MIRRORS, "dryRun": True})
        assert acts(result) == [("delete", "1"), ("create", "a"), ("create", "b")]
        assert (result["made"], changes(bmc)) == ([], [])


@without_waiting
async def test_others_are_deleted_first_and_each_step_is_waited_for() -> None:
    async with bench(options=SLOW, behaviour="dell-idrac") as bmc:
        result = await bmc("raid.applyRaid", MIRRORS)
        assert [volume["drives"] for volume in result["made"]] == [["Disk1", "Disk3"], ["Disk2", "Disk4"]]
        assert result["deleted"] == ["1"]
        assert len(result["tasks"]) == 3
        # This BMC refuses a second job of a controller: none was sent before the one before had ended.
        assert changes(bmc) == ["DELETE 1", "POST Volumes", "POST Volumes"]


@pytest.mark.case("B43")
@without_waiting
async def test_b43_one_step_of_a_controller_waits_for_each_reset() -> None:
    async with bench(behaviour="dell-idrac") as bmc:
        offer_times(bmc, "OnReset")
        first = await bmc("raid.applyRaid", MIRRORS)
        assert (first["resetOwed"], first["deleted"], first["made"]) == (True, ["1"], [])
        assert acts(first, "waiting") == [("create", "a"), ("create", "b")]
        again = await bmc("raid.applyRaid", MIRRORS)
        assert (again["resetOwed"], acts(again, "waiting")) == (True, acts(first))
        assert changes(bmc) == ["DELETE 1"]
        await restart(bmc)
        second = await bmc("raid.applyRaid", MIRRORS)
        assert (second["resetOwed"], acts(second, "waiting")) == (True, [("create", "b")])
        await restart(bmc)
        third = await bmc("raid.applyRaid", MIRRORS)
        assert (acts(third), third["resetOwed"], third["waiting"]) == ([("keep", "1"), ("create", "b")], True, [])
        await restart(bmc)
        last = await bmc("raid.applyRaid", MIRRORS)
        assert (acts(last), last["resetOwed"]) == ([("keep", "1"), ("keep", "2")], False)


@without_waiting
async def test_a_change_that_is_still_under_way_is_waited_for_and_the_plan_made_anew() -> None:
    options = ServiceOptions(task_seconds=600, volume_changes_by_task=True)
    async with bench(options=options) as bmc:
        volumes = {"volumes": [{"level": "RAID0", "drives": ["Disk3", "Disk4"]}]}
        with pytest.raises(OperationError, match="TIMEOUT"):
            await bmc("raid.applyRaid", volumes, timeout=60)
        result = await bmc("raid.applyRaid", volumes)
        assert acts(result) == [("keep", "2")]
        assert len(created(bmc)) == 1


@without_waiting
async def test_a_step_that_fails_ends_it_and_says_how_far_it_went() -> None:
    body = refusal("InsufficientResources", "No more arrays.")
    rule = FaultRule(method="POST", path=VOLUMES, after=1, status=400, body=body)
    async with bench(faults=[rule]) as bmc:
        error = await bmc.fails("raid.applyRaid", MIRRORS)
        assert "No more arrays." in str(error)
        assert "; done: delete 1 (" in error.message
        assert "; not done: create b (" in error.message
        done, left = error.details["done"], error.details["notDone"]
        assert isinstance(done, list)
        assert isinstance(left, list)
        assert ([step["act"] for step in done], [step["volume"] for step in left]) == (["delete", "create"], ["b"])


@without_waiting
async def test_every_fault_of_a_request_is_told_before_anything_is_sent() -> None:
    async with bench() as bmc:
        wanted = [
            {"level": "RAID5", "drives": ["Disk3", "Disk9"]},
            {"level": "RAID1", "drives": ["Disk1", "Disk4"]},
        ]
        error = await bmc.fails("raid.applyRaid", {"volumes": wanted})
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert len(error.details["issues"]) == 3  # type: ignore[arg-type]
        assert changes(bmc) == []


@without_waiting
async def test_nothing_is_changed_while_a_part_cannot_be_read() -> None:
    rules = [
        FaultRule(method="GET", path=f"{VOLUMES}/1", status=500),
        FaultRule(method="GET", path="*expand*", status=501),
    ]
    async with bench(faults=rules) as bmc:
        bmc.bmc.state.edit("/redfish/v1", lambda root: root.pop("ProtocolFeaturesSupported"))
        error = await bmc.fails("raid.applyRaid", {"volumes": [], "deleteOthers": True})
        assert (error.code, error.code.retryable) == (ErrorCode.BUSY, True)
        assert "Volumes/1" in error.message
        assert changes(bmc) == []


@pytest.mark.case("B43")
@without_waiting
async def test_b43_a_controller_in_hba_mode_makes_no_volumes() -> None:
    async with bench() as bmc:
        bmc.bmc.state.patch(STORAGE, {"Oem": {"Dell": {"DellController": {"CurrentControllerMode": "HBA"}}}})
        error = await bmc.fails("raid.applyRaid", {"volumes": [{"level": "RAID0", "drives": ["Disk3"]}]})
        assert error.code is ErrorCode.UNSUPPORTED
        assert "it is in HBA mode" in error.message
        assert "set it to RAID mode" in error.message
        assert changes(bmc) == []


@without_waiting
async def test_the_drive_that_the_boot_order_leads_to_is_not_chosen() -> None:
    async with bench() as bmc:
        order = (bmc.bmc.state.document(SYSTEM) or {})["Boot"]["BootOrder"]
        option = f"{SYSTEM}/BootOptions/{order[0]}"
        bmc.bmc.state.patch(option, {"RelatedItem": [{"@odata.id": f"{STORAGE}/Drives/Disk3"}]})
        wanted = {"volumes": [{"level": "RAID0", "drives": {"count": 1}}], "dryRun": True}
        (step,) = (await bmc("raid.applyRaid", wanted))["plan"]
        assert "on Disk4" in step["detail"]


@without_waiting
async def test_spares_are_set_aside_and_seen() -> None:
    async with bench() as bmc:
        wanted = {
            "volumes": [{"level": "RAID1", "drives": ["Disk1", "Disk2"], "spares": {"count": 1}}],
            "hotSpares": ["Disk4"],
        }
        result = await bmc("raid.applyRaid", wanted)
        assert acts(result) == [("keep", "1"), ("spare", "1"), ("spare", "all volumes")]
        drives = {drive["id"]: drive["spare"] for drive in (await bmc("raid.getRaid"))["drives"]}
        assert drives == {"Disk1": None, "Disk2": None, "Disk3": "dedicated", "Disk4": "global"}
        assert acts(await bmc("raid.applyRaid", wanted)) == [("keep", "1")]


@pytest.mark.parametrize(
    ("tree", "controller", "count"),
    [
        (HPE, "DE081000", 2),
        (ILO6, "DE00A000", 4),
        (ILO6, "DE00B000", 2),
        (LENOVO, "M.2", 2),
        ("dmtf-tower", "RAIDIntegrated", 2),
        ("dmtf-tower", "NVMeSWRAID", 2),
    ],
)
@without_waiting
async def test_a_mirror_is_made_kept_deleted_and_cleared_on_recorded_trees(
    tree: str, controller: str, count: int, shared: Path
) -> None:
    async with bench(shared / "mockups" / tree, options=SLOW) as bmc:
        drives = {"count": 2}
        wanted = {"controller": controller, "volumes": [{"level": "RAID1", "drives": drives}], "deleteOthers": True}
        first = await bmc("raid.applyRaid", wanted)
        volume = (first["made"] + first["kept"])[0]
        assert (volume["level"], len(volume["drives"]), volume["controller"]) == ("RAID1", 2, controller)
        again = await bmc("raid.applyRaid", wanted)
        assert acts(again) == [("keep", volume["id"])]
        deleted = await bmc("raid.deleteVolume", {"controller": controller, "volume": volume["id"]})
        assert deleted["deleted"] == [volume["id"]]
        reading = await bmc("raid.getRaid")
        assert not [one for one in reading["volumes"] if one["controller"] == controller]
        free = [one["id"] for one in reading["drives"] if one["controller"] == controller and not one["volumes"]]
        assert len(free) >= count
        made = await bmc("raid.createVolume", {"controller": controller, "level": "RAID1", "drives": free[:2]})
        assert (made["drives"], made["resetOwed"]) == (free[:2], False)
        assert (await bmc("raid.clearRaid", {"controller": controller}))["deleted"] == [made["volume"]]


@without_waiting
async def test_a_tree_of_hpe_is_converged(shared: Path) -> None:
    async with bench(shared / "mockups" / HPE) as bmc:
        wanted = {"volumes": [{"level": "RAID0", "drives": {"count": 2}}], "deleteOthers": True}
        result = await bmc("raid.applyRaid", wanted)
        assert acts(result) == [("delete", "1"), ("create", "new RAID0")]
        assert acts(await bmc("raid.applyRaid", wanted)) == [("keep", result["made"][0]["id"])]


@without_waiting
async def test_a_tree_of_lenovo_is_converged_and_direct_drives_are_left_alone(shared: Path) -> None:
    async with bench(shared / "mockups" / LENOVO) as bmc:
        result = await bmc("raid.applyRaid", {"volumes": [{"level": "RAID1", "drives": {"count": 2}}]})
        assert [volume["controller"] for volume in result["made"]] == ["M.2"]
        assert result["made"][0]["drives"] == ["Drive.M.2_Bay_0", "Drive.M.2_Bay_1"]


# Clearing


@without_waiting
async def test_a_controller_is_cleared_by_its_own_action(shared: Path) -> None:
    async with bench(shared / "mockups" / HPE) as bmc:
        cleared = await bmc("raid.clearRaid", {"controller": "DE081000"})
        assert cleared["deleted"] == ["1"]
        (sent,) = bmc.bmc.journal.entries("POST", "*/Storage.ResetToDefaults")
        assert sent.body == {"ResetType": "ResetAll"}
        assert (await bmc("raid.getRaid"))["volumes"] == []
        assert (await bmc("raid.clearRaid", {"controller": "DE081000"}))["deleted"] == []
        assert len(bmc.requests("POST", "*/Storage.ResetToDefaults")) == 1


@without_waiting
async def test_a_dell_controller_is_cleared_by_dell_s_service_and_foreign_drives_with_it(shared: Path) -> None:
    async with bench(shared / "mockups" / DELL) as bmc:
        storage = "/redfish/v1/Systems/System.Embedded.1/Storage/CPU.1"
        volume = f"{storage}/Volumes/Disk.Virtual.0"
        drive = f"{storage}/Drives/Disk.Bay.6:Enclosure.Internal.0-1"
        made = {
            "@odata.id": volume,
            "@odata.type": "#Volume.v1_9_0.Volume",
            "Id": "Disk.Virtual.0",
            "RAIDType": "RAID0",
            "Links": {"Drives": []},
        }
        bmc.bmc.service.store.add_member(f"{storage}/Volumes", made)
        foreign = {"Oem": {"Dell": {"DellPhysicalDisk": {"RaidStatus": "Foreign"}}}}
        bmc.bmc.state.patch(drive, foreign)
        assert (await bmc("raid.getRaid"))["foreign"] == ["Disk.Bay.6:Enclosure.Internal.0-1"]
        cleared = await bmc("raid.clearRaid", {"controller": "CPU.1"})
        assert cleared["deleted"] == ["Disk.Virtual.0"]
        assert changes(bmc) == ["POST DellRaidService.ClearForeignConfig", "POST DellRaidService.ResetConfig"]
        assert [entry.body for entry in bmc.bmc.journal.entries("POST", "*/DellRaidService.*")] == [
            {"TargetFQDD": "CPU.1"}
        ] * 2
        after = await bmc("raid.getRaid")
        assert (after["foreign"], [volume["raw"] for volume in after["volumes"]]) == ([], [True, True])


@without_waiting
async def test_a_controller_without_such_an_action_is_cleared_volume_by_volume() -> None:
    async with bench() as bmc:
        await bmc("raid.createVolume", RAID0)
        assert (await bmc("raid.clearRaid", {"controller": "RAID1"}))["deleted"] == ["1", "2"]
        assert changes(bmc) == ["POST Volumes", "DELETE 1", "DELETE 2"]


@without_waiting
async def test_what_waits_for_a_reset_keeps_the_rest_of_a_clearing_waiting() -> None:
    async with bench() as bmc:
        await bmc("raid.createVolume", RAID0)
        offer_times(bmc, "OnReset")
        first = await bmc("raid.clearRaid", {"controller": "RAID1"})
        assert (first["deleted"], first["waiting"], first["resetOwed"]) == (["1"], ["2"], True)
        await restart(bmc)
        second = await bmc("raid.clearRaid", {"controller": "RAID1"})
        assert (second["deleted"], second["waiting"]) == (["2"], [])
        await restart(bmc)
        assert members(bmc) == []


@without_waiting
async def test_a_clearing_whose_answer_is_lost_is_seen_and_not_ordered_again(shared: Path) -> None:
    rule = FaultRule(method="POST", path="*/Storage.ResetToDefaults", drop=Drop.AFTER)
    async with bench(shared / "mockups" / HPE, faults=[rule]) as bmc:
        assert (await bmc("raid.clearRaid", {"controller": "DE081000"}))["deleted"] == ["1"]
        assert len(bmc.requests("POST", "*/Storage.ResetToDefaults")) == 1


@pytest.mark.parametrize("done", [True, False])
@without_waiting
async def test_a_clearing_that_is_answered_with_a_server_error_is_looked_at(shared: Path, done: bool) -> None:
    rule = FaultRule(method="POST", path="*/Storage.ResetToDefaults", status=502, execute=done)
    async with bench(shared / "mockups" / HPE, faults=[rule]) as bmc:
        if done:
            assert (await bmc("raid.clearRaid", {"controller": "DE081000"}))["deleted"] == ["1"]
        else:
            error = await bmc.fails("raid.clearRaid", {"controller": "DE081000"})
            assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert len(bmc.requests("POST", "*/Storage.ResetToDefaults")) == 1


@without_waiting
async def test_a_session_that_ended_costs_no_volume_and_makes_none_twice() -> None:
    gone = FaultRule(method="POST", path=VOLUMES, sequence=(Effect(status=401),))
    async with bench(faults=[gone]) as bmc:
        assert (await bmc("raid.createVolume", RAID0))["volume"] == "2"
        assert [entry.executed for entry in bmc.bmc.journal.entries("POST", VOLUMES)] == [False, True]
