"""How a firmware update ends: its effect is seen before success is said, and nothing is sent twice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from simulators.redfish import Drop, Effect, FaultRule, Outage, ServiceOptions, UpdateManners
from tests.drivers.redfish.harness import SYSTEM, bench, without_waiting
from tests.drivers.redfish.test_firmware import (
    BMC_UPDATE,
    GET,
    IMAGE,
    INVENTORY,
    SERVICE,
    SIMPLE,
    TASKS,
    UPDATE,
    orders,
    refusal,
    version,
)


@pytest.mark.case("B41")
@pytest.mark.parametrize("outage", [Outage.REFUSED, Outage.UNAVAILABLE])
@without_waiting
async def test_b41_a_bmc_that_restarts_itself_and_flaps_is_waited_for(outage: Outage) -> None:
    options = ServiceOptions(
        task_seconds=60,
        task_kept_seconds=0,
        manager_reset_outage=outage,
        update=UpdateManners(restart_seconds=240, flaps=7),
    )
    async with bench(options=options) as bmc:
        bmc.bmc.state.patch(f"{INVENTORY}/BMC", {"RelatedItem": [{"@odata.id": "/redfish/v1/Managers/1"}]})
        result = await bmc(UPDATE, BMC_UPDATE)
        assert result["after"] == {"BMC": "2.14.0"}
        assert len(orders(bmc)) == 1
        assert bmc.bmc.journal.count("GET", "/redfish/v1/Managers/1") >= 3
        assert len(bmc.bmc.state.open_sessions) == 1


@pytest.mark.case("B41")
@without_waiting
async def test_b41_a_machine_is_known_to_be_changing_while_its_firmware_is_replaced() -> None:
    async with bench(options=ServiceOptions(task_seconds=60)) as bmc:
        seen: list[bool] = []
        await bmc(UPDATE, BMC_UPDATE, progress=lambda *_: seen.append(bmc.drivers.is_changing(bmc.target)))
        assert seen
        assert all(seen)
        assert not bmc.drivers.is_changing(bmc.target)


@without_waiting
async def test_a_bmc_that_shows_no_system_while_it_starts_is_waited_for() -> None:
    options = ServiceOptions(task_seconds=30, task_kept_seconds=0, update=UpdateManners(restart_seconds=60))
    empty = FaultRule(method="GET", path="/redfish/v1/Systems", merge={"Members": []}, after=1, count=3)
    gone = FaultRule(method="GET", path=SYSTEM, status=404, after=1, count=4)
    async with bench(options=options, faults=[empty, gone]) as bmc:
        assert (await bmc(UPDATE, BMC_UPDATE))["after"] == {"BMC": "2.14.0"}


@without_waiting
async def test_a_bmc_of_no_computer_is_updated_too() -> None:
    async with bench(options=ServiceOptions(task_seconds=30)) as bmc:
        bmc.bmc.state.edit("/redfish/v1/Systems", lambda document: document.update(Members=[]))
        assert (await bmc(UPDATE, BMC_UPDATE))["after"] == {"BMC": "2.14.0"}


@without_waiting
async def test_a_bmc_that_does_not_come_back_is_a_timeout_that_says_so() -> None:
    options = ServiceOptions(task_seconds=10, update=UpdateManners(restart_seconds=100_000))
    async with bench(options=options) as bmc:
        error = await bmc.fails(UPDATE, BMC_UPDATE, timeout=900)
        assert error.code is ErrorCode.TIMEOUT
        assert len(orders(bmc)) == 1


@pytest.mark.case("B42")
@pytest.mark.parametrize("words", ["the apply time", "the BMC's own will"])
@without_waiting
async def test_b42_a_staged_update_owes_a_reset_and_is_not_waited_for(words: str) -> None:
    options = ServiceOptions(update=UpdateManners(staged=words != "the apply time"))
    async with bench(options=options) as bmc:
        if words == "the apply time":
            support = {"SupportedValues": ["Immediate", "OnReset"]}
            bmc.bmc.state.patch(
                SERVICE,
                {"Actions": {"#UpdateService.SimpleUpdate": {"@Redfish.OperationApplyTimeSupport": support}}},
            )
        extra = {"applyTime": "onReset"} if words == "the apply time" else {}
        result = await bmc(UPDATE, {**BMC_UPDATE, **extra})
        assert (result["resetOwed"], result["after"]) == (True, {"BMC": "2.13.0"})
        await bmc("power.setPower", {"action": "reset"})
        assert version(bmc) == "2.14.0"


@pytest.mark.case("B42")
@without_waiting
async def test_b42_a_task_that_is_purged_is_verified_by_the_inventory() -> None:
    async with bench(options=ServiceOptions(task_seconds=30, task_kept_seconds=0)) as bmc:
        assert (await bmc(UPDATE, BMC_UPDATE))["after"] == {"BMC": "2.14.0"}


@pytest.mark.case("B42")
@without_waiting
async def test_b42_a_purged_task_whose_job_waits_for_a_reset_owes_one(shared: Path) -> None:
    options = ServiceOptions(task_seconds=20, task_kept_seconds=0, update=UpdateManners(staged=True))
    async with bench(shared / "mockups" / "dell-r750-idrac9-7.10", options=options) as bmc:
        jobs = "/redfish/v1/Managers/iDRAC.Embedded.1/Oem/Dell/Jobs"
        for number in range(1, 30):
            job = {"@odata.id": f"{jobs}/{number}", "Id": f"{number}", "JobState": "Scheduled"}
            bmc.bmc.state.put(f"{jobs}/{number}", {"@odata.type": "#DellJob.v1_0_0.DellJob", **job})
        bios = "Installed-159-1.13.2__BIOS.Setup.1-1"
        result = await bmc(UPDATE, {"image": "http://192.0.2.1/BIOS-1.14.0.EXE", "targets": [bios]})
        assert (result["resetOwed"], result["after"]) == (True, {bios: "1.13.2"})


@pytest.mark.case("B42")
@without_waiting
async def test_b42_a_task_that_says_done_while_the_version_stays_is_not_applied() -> None:
    async with bench(options=ServiceOptions(task_seconds=20, update=UpdateManners(silent=True))) as bmc:
        error = await bmc.fails(UPDATE, BMC_UPDATE)
        assert error.code is ErrorCode.NOT_APPLIED
        assert "what runs is BMC 2.13.0, not 2.14.0" in error.message
        assert [said.id for said in error.bmc] == ["Base.1.18.Success"]
        assert error.details["before"] == {"BMC": "2.13.0"}
        assert len(orders(bmc)) == 1


@pytest.mark.case("B42")
@without_waiting
async def test_b42_accepted_without_a_location_the_task_is_that_of_the_body() -> None:
    faults = [FaultRule(method="POST", path=SIMPLE, remove_headers=("Location",))]
    async with bench(faults=faults, options=ServiceOptions(task_seconds=60)) as bmc:
        assert (await bmc(UPDATE, BMC_UPDATE))["task"].startswith(TASKS)


@pytest.mark.case("B42")
@without_waiting
async def test_b42_an_answer_without_a_task_is_proven_by_the_version() -> None:
    faults = [FaultRule(method="POST", path=SIMPLE, status=200, execute=True, body={}, remove_headers=("Location",))]
    async with bench(faults=faults, options=ServiceOptions(task_seconds=400)) as bmc:
        result = await bmc(UPDATE, BMC_UPDATE)
        assert (result["task"], result["after"]) == (None, {"BMC": "2.14.0"})


@without_waiting
async def test_a_task_that_fails_tells_the_bmcs_words() -> None:
    failed = {
        "TaskState": "Exception",
        "Messages": [{"MessageId": "Update.1.0.VerificationFailed", "Message": "bad"}],
    }
    async with bench(faults=[FaultRule(method="GET", path=f"{TASKS}/*", merge=failed)]) as bmc:
        error = await bmc.fails(UPDATE, {**BMC_UPDATE, "expectVersion": "9"})
        assert error.code is ErrorCode.BMC_ERROR
        assert [said.id for said in error.bmc] == ["Update.1.0.VerificationFailed"]
        assert error.details["task"] == f"{TASKS}/1"


# A lost answer


@without_waiting
async def test_an_update_whose_answer_is_lost_is_found_again_and_never_resent() -> None:
    lost = FaultRule(method="POST", path=SIMPLE, drop=Drop.AFTER)
    async with bench(faults=[lost], options=ServiceOptions(task_seconds=90)) as bmc:
        result = await bmc(UPDATE, BMC_UPDATE)
        assert (result["after"], result["task"]) == ({"BMC": "2.14.0"}, f"{TASKS}/1")
        assert len(orders(bmc)) == 1


@without_waiting
async def test_a_lost_answer_without_a_task_is_settled_by_the_version() -> None:
    lost = FaultRule(method="POST", path=SIMPLE, drop=Drop.AFTER)
    async with bench(faults=[lost], options=ServiceOptions(task_seconds=300)) as bmc:
        bmc.bmc.state.remove("/redfish/v1/TaskService")
        assert (await bmc(UPDATE, BMC_UPDATE))["after"] == {"BMC": "2.14.0"}
        assert len(orders(bmc)) == 1


@pytest.mark.parametrize("how", [Effect(drop=Drop.BEFORE), Effect(status=502), Effect(answer_late=7000)])
@without_waiting
async def test_what_no_reading_can_tell_is_unknown_and_sent_once(how: Effect) -> None:
    async with bench(faults=[FaultRule(method="POST", path=SIMPLE, sequence=(how,))]) as bmc:
        silent = FaultRule(path=f"{INVENTORY}/BMC", set={"/Version": "2.13.0"})
        bmc.bmc.faults.add(silent)
        bmc.bmc.faults.add(FaultRule(path="*/TaskService*", status=404))
        error = await bmc.fails(UPDATE, BMC_UPDATE)
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert "sent once" in error.message
        assert len(orders(bmc)) == 1


@without_waiting
async def test_a_session_that_ended_is_renewed_and_the_update_sent_then() -> None:
    async with bench() as bmc:
        await bmc(GET)
        bmc.bmc.state.end_sessions()
        assert (await bmc(UPDATE, BMC_UPDATE))["after"] == {"BMC": "2.14.0"}
        assert bmc.bmc.journal.count("POST", SIMPLE, executed_only=True) == 1


# Several


@without_waiting
async def test_a_list_of_updates_is_done_in_order() -> None:
    updates = [
        {"image": "http://192.0.2.1/bios-1.9.0.bin", "targets": ["BIOS"], "expectVersion": "1.9.0"},
        {"image": IMAGE, "targets": ["BMC"], "expectVersion": "2.13.0"},
        {"image": "http://192.0.2.1/nic-23.1.0.bin", "targets": ["NIC1"]},
    ]
    async with bench(options=ServiceOptions(task_seconds=30)) as bmc:
        result = await bmc(UPDATE, {"updates": updates})
        assert [outcome["changed"] for outcome in result["updates"]] == [True, False, True]
        assert result["after"] == {"BIOS": "1.9.0", "BMC": "2.13.0", "NIC1": "23.1.0"}
        assert [body["ImageURI"] for body in orders(bmc)] == [updates[0]["image"], updates[2]["image"]]


@without_waiting
async def test_a_list_stops_at_the_first_failure_and_says_what_was_not_done() -> None:
    refused = FaultRule(method="POST", path=SIMPLE, status=400, body=refusal("GeneralError", "no room"), after=1)
    updates = [
        {"image": "http://192.0.2.1/bios-1.9.0.bin", "targets": ["BIOS"]},
        {"image": IMAGE, "targets": ["BMC"]},
        {"image": "http://192.0.2.1/nic-23.1.0.bin?sig=abc", "targets": ["NIC1"]},
    ]
    async with bench(faults=[refused]) as bmc:
        error = await bmc.fails(UPDATE, {"updates": updates})
        assert error.code is ErrorCode.BMC_ERROR
        assert "update 2 of 3 failed" in error.message
        assert "Done before: http://192.0.2.1/bios-1.9.0.bin" in error.message
        assert "Not done: http://192.0.2.1/nic-23.1.0.bin" in error.message
        assert error.details["notDone"] == ["http://192.0.2.1/nic-23.1.0.bin"]
        done: Any = error.details["done"]
        assert [outcome["after"] for outcome in done] == [{"BIOS": "1.9.0"}]
        assert len(orders(bmc)) == 2


@without_waiting
async def test_a_bmc_that_is_well_is_looked_at_gently_while_its_new_version_is_waited_for() -> None:
    faults = [FaultRule(method="POST", path=SIMPLE, status=200, execute=True, body={}, remove_headers=("Location",))]
    async with bench(faults=faults, options=ServiceOptions(update=UpdateManners(silent=True))) as bmc:
        begun = asyncio.get_running_loop().time()
        await bmc.fails(UPDATE, BMC_UPDATE)
        seconds = asyncio.get_running_loop().time() - begun
        looks = bmc.bmc.journal.count("GET", "/redfish/v1/Managers/1")
        assert seconds > 600
        assert looks < 20 + seconds / 10
