"""BIOS attributes through Redfish: read with their registry; set once, all that is wrong told before; read back."""

import json
from pathlib import Path
from typing import Any

import pytest

from drivers import Drivers, Target
from protocol.errors import ErrorCode, OperationError
from simulators.redfish import Drop, Effect, FaultRule, ServiceOptions
from tests.drivers.redfish.harness import SYSTEM, Bench, bench, without_waiting

BIOS = f"{SYSTEM}/Bios"
SETTINGS = f"{BIOS}/Settings"
RESET_BIOS = f"{BIOS}/Actions/Bios.ResetBios"
TASK = "/redfish/v1/TaskService/Tasks/77"
DELL = "dell-r750-idrac9-6.00"
DELL_BIOS = "/redfish/v1/Systems/System.Embedded.1/Bios"
DELL_SETTINGS = f"{DELL_BIOS}/Settings"
DELL_CHANGE = {"AcPwrRcvry": "Off"}


def bodies(bmc: Bench, path: str = "*", method: str = "PATCH") -> list[Any]:
    return [entry.body for entry in bmc.bmc.journal.entries(method, path)]


def by_name(reading: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in reading["attributes"]}


def refusal(identifier: str, text: str, *related: str) -> dict[str, Any]:
    message = {"MessageId": identifier, "Message": text, "RelatedProperties": list(related)}
    return {"error": {"code": "Base.1.8.GeneralError", "@Message.ExtendedInfo": [message]}}


async def restart(bmc: Bench) -> None:
    await bmc("power.setPower", {"action": "reset"})


# --- reading ---


@without_waiting
async def test_attributes_are_read_with_what_the_registry_says_of_them() -> None:
    async with bench() as bmc:
        reading = await bmc("bios.getBios")
        found = by_name(reading)
        assert reading["registry"] == "BiosAttributeRegistryRW1U.v1_0_0"
        assert reading["defaultsPending"] is False
        assert found["NumaPerSocket"]["value"] == 1
        assert (found["NumaPerSocket"]["minimum"], found["NumaPerSocket"]["maximum"]) == (1, 4)
        assert found["PowerProfile"]["choices"] == ["Performance", "Balanced", "PowerSaving"]
        assert found["PowerProfile"]["displayName"] == "Power profile"
        assert found["SerialRedirection"]["kind"] == "boolean"
        assert found["TpmState"]["readOnly"] is True


@without_waiting
async def test_the_registry_is_read_once_and_later_reads_cost_two_requests() -> None:
    async with bench() as bmc:
        await bmc("bios.getBios")
        assert len(bmc.requests("GET", "/redfish/v1/Registries*")) == 3
        before = len(bmc.bmc.journal)
        await bmc("bios.getBios")
        assert bmc.requests("GET")[-2:] == [BIOS, SETTINGS]
        assert len(bmc.bmc.journal) == before + 2


@without_waiting
async def test_a_registry_of_another_name_is_read_anew() -> None:
    async with bench() as bmc:
        await bmc("bios.getBios")
        bmc.bmc.state.patch(BIOS, {"AttributeRegistry": "BiosAttributeRegistryRW1U.v1_0_1"})
        await bmc("bios.getBios")
        assert len(bmc.requests("GET", "/redfish/v1/Registries")) == 2


@pytest.mark.parametrize(
    "rule",
    [
        FaultRule(method="GET", path="/redfish/v1/Registries*", status=404),
        FaultRule(method="GET", path="/redfish/v1/Registries/Bios*", status=503),
        FaultRule(method="GET", path="/redfish/v1/Registries*", status=200, body="<html>login</html>"),
        FaultRule(method="GET", path="/redfish/v1/Registries/*/*", merge={"RegistryEntries": None}),
        FaultRule(method="GET", path=SETTINGS, status=404),
        FaultRule(method="GET", path=SETTINGS, status=503),
    ],
)
@without_waiting
async def test_attributes_are_read_where_the_registry_or_the_settings_object_cannot_be(rule: FaultRule) -> None:
    async with bench(faults=[rule]) as bmc:
        assert by_name(await bmc("bios.getBios"))["NumaPerSocket"]["value"] == 1


@without_waiting
async def test_a_registry_that_is_served_compressed_only_is_read() -> None:
    rule = FaultRule(
        method="GET", path="/redfish/v1/Registries/*/*", match_headers={"Accept-Encoding": "identity"}, status=406
    )
    async with bench(faults=[rule]) as bmc:
        assert by_name(await bmc("bios.getBios"))["NumaPerSocket"]["maximum"] == 4


@without_waiting
async def test_what_waits_for_a_reset_is_shown_beside_what_is_in_force() -> None:
    async with bench() as bmc:
        await bmc("bios.setBios", {"attributes": {"NumaPerSocket": 2}})
        found = by_name(await bmc("bios.getBios"))
        assert (found["NumaPerSocket"]["value"], found["NumaPerSocket"]["pending"]) == (1, 2)
        assert found["SrIov"]["pending"] is None
        waiting = await bmc("bios.getBios", {"pending": True})
        assert [one["name"] for one in waiting["attributes"]] == ["NumaPerSocket"]
        await restart(bmc)
        found = by_name(await bmc("bios.getBios"))
        assert (found["NumaPerSocket"]["value"], found["NumaPerSocket"]["pending"]) == (2, None)


@without_waiting
async def test_a_password_is_never_shown() -> None:
    secret = "Planted-B1os-Secret"
    async with bench() as bmc:
        bmc.bmc.state.edit(BIOS, lambda document: document["Attributes"].update(AdminPassword=secret))
        bmc.bmc.state.edit(SETTINGS, lambda document: document["Attributes"].update(AdminPassword=f"{secret}2"))
        reading = await bmc("bios.getBios")
        assert by_name(reading)["AdminPassword"]["kind"] == "password"
        assert secret not in json.dumps(reading)
        assert secret not in json.dumps(await bmc("bios.setBios", {"attributes": {"SrIov": "Enabled"}}))
        error = await bmc.fails("bios.setBios", {"attributes": {"AdminPassword": f"{secret}3"}})
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert secret not in f"{error} {error.details}"


@pytest.mark.parametrize("hole", [{"Bios": None}, {"Bios": {}}])
@without_waiting
async def test_a_bmc_without_a_bios_says_so(hole: dict[str, Any]) -> None:
    async with bench(faults=[FaultRule(method="GET", path=SYSTEM, set={"/Bios": hole["Bios"]})]) as bmc:
        for operation, arguments in (("getBios", {}), ("setBios", {"attributes": {"A": 1}}), ("resetBios", {})):
            error = await bmc.fails(f"bios.{operation}", arguments)
            assert error.code is ErrorCode.UNSUPPORTED
            assert "no BIOS" in error.message


@pytest.mark.parametrize("driver", ["ipmi", "ssh"])
@without_waiting
async def test_other_drivers_say_that_they_have_no_bios(driver: str) -> None:
    async with Drivers() as drivers:
        target = Target(address=f"{driver}://127.0.0.1", username="admin", password="x")
        with pytest.raises(OperationError) as caught:
            await drivers.invoke(target, "bios.getBios")
        assert caught.value.code is ErrorCode.UNSUPPORTED
        assert f"the {driver} driver has no bios.getBios" in caught.value.message


# --- setting ---


@without_waiting
async def test_only_what_differs_is_sent_and_it_waits_for_a_reset() -> None:
    async with bench() as bmc:
        result = await bmc(
            "bios.setBios", {"attributes": {"SrIov": "Enabled", "QuietBoot": True, "NumaPerSocket": 2}}
        )
        changed = {"SrIov": "Enabled", "NumaPerSocket": 2}
        assert result == {"changed": changed, "pending": changed, "task": None}
        sent = {"Attributes": changed, "@Redfish.SettingsApplyTime": {"ApplyTime": "OnReset"}}
        assert bodies(bmc) == [sent]
        assert bmc.requests("PATCH") == [SETTINGS]


@pytest.mark.case("B39")
@without_waiting
async def test_b39e_values_in_force_and_values_that_wait_are_no_change() -> None:
    async with bench() as bmc:
        assert (await bmc("bios.setBios", {"attributes": {"SrIov": "Disabled"}}))["changed"] == {}
        await bmc("bios.setBios", {"attributes": {"SrIov": "Enabled"}})
        again = await bmc("bios.setBios", {"attributes": {"SrIov": "Enabled"}})
        assert again == {"changed": {}, "pending": {"SrIov": "Enabled"}, "task": None}
        assert len(bmc.requests("PATCH")) == 1


@without_waiting
async def test_a_waiting_value_is_taken_back_by_asking_for_the_one_in_force() -> None:
    async with bench() as bmc:
        await bmc("bios.setBios", {"attributes": {"SrIov": "Enabled"}})
        back = await bmc("bios.setBios", {"attributes": {"SrIov": "Disabled"}})
        assert back["changed"] == {"SrIov": "Disabled"}
        await restart(bmc)
        assert by_name(await bmc("bios.getBios"))["SrIov"]["value"] == "Disabled"


@without_waiting
async def test_every_fault_is_told_at_once_and_nothing_is_sent() -> None:
    wrong = {
        "Nonsens": 1,
        "PowerProfile": "Ludicrous",
        "TpmState": "Disabled",
        "NumaPerSocket": 9,
        "QuietBoot": "yes",
    }
    async with bench() as bmc:
        error = await bmc.fails(
            "bios.setBios", {"attributes": {**wrong, "SrIov": "Enabled"}, "applyTime": "immediate"}
        )
        assert error.code is ErrorCode.INVALID_ARGUMENT
        paths = [issue["path"] for issue in error.details["issues"]]  # type: ignore[attr-defined]
        assert paths == [*(f"attributes.{name}" for name in wrong), "applyTime"]
        assert "Performance, Balanced, PowerSaving" in error.message
        assert "from 1 to 4" in error.message
        assert bmc.requests("PATCH") == []


@without_waiting
async def test_a_wish_without_attributes_is_a_fault() -> None:
    async with bench() as bmc:
        assert (await bmc.fails("bios.setBios", {"attributes": {}})).code is ErrorCode.INVALID_ARGUMENT


@without_waiting
async def test_an_apply_time_that_is_not_offered_is_refused_with_what_is() -> None:
    async with bench() as bmc:
        error = await bmc.fails("bios.setBios", {"attributes": {"SrIov": "Enabled"}, "applyTime": "immediate"})
        assert error.code is ErrorCode.UNSUPPORTED
        assert "it offers OnReset" in error.message
        assert bmc.requests("PATCH") == []


@without_waiting
async def test_a_change_that_applies_at_once_is_over_when_the_value_is_in_force() -> None:
    async with bench(options=ServiceOptions(task_seconds=120)) as bmc:
        bmc.bmc.state.patch(BIOS, {"@Redfish.Settings": {"SupportedApplyTimes": ["OnReset", "Immediate"]}})
        progress: list[float | None] = []
        result = await bmc(
            "bios.setBios",
            {"attributes": {"SrIov": "Enabled"}, "applyTime": "immediate"},
            progress=lambda _text, percent: progress.append(percent),
        )
        assert result["changed"] == {"SrIov": "Enabled"}
        assert result["pending"] == {}
        assert result["task"].startswith("/redfish/v1/TaskService/Tasks/")
        assert progress[-1] == 100
        assert by_name(await bmc("bios.getBios"))["SrIov"]["value"] == "Enabled"


@without_waiting
async def test_a_refusal_that_rests_on_a_kept_registry_is_looked_at_again() -> None:
    place = "/redfish/v1/Registries/BiosAttributeRegistryRW1U/BiosAttributeRegistryRW1U"

    def allow(document: dict[str, Any]) -> None:
        for entry in document["RegistryEntries"]["Attributes"]:
            entry["ReadOnly"] = False

    async with bench() as bmc:
        change = {"attributes": {"TpmState": "Disabled"}}
        await bmc.fails("bios.setBios", change)
        bmc.bmc.state.edit(place, allow)
        assert (await bmc("bios.setBios", change))["changed"] == {"TpmState": "Disabled"}
        assert len(bmc.requests("GET", place)) == 2


# --- apply times, jobs and tasks (B39, B42) ---


@pytest.mark.case("B39")
@without_waiting
async def test_b39a_a_bmc_that_schedules_nothing_without_an_apply_time_is_given_one(shared: Path) -> None:
    async with bench(shared / "mockups" / DELL) as bmc:
        result = await bmc("bios.setBios", {"attributes": DELL_CHANGE})
        assert result["changed"] == result["pending"] == DELL_CHANGE
        assert result["task"] is not None
        assert bodies(bmc) == [{"Attributes": DELL_CHANGE, "@Redfish.SettingsApplyTime": {"ApplyTime": "OnReset"}}]
        await restart(bmc)
        assert by_name(await bmc("bios.getBios"))["AcPwrRcvry"]["value"] == "Off"


@pytest.mark.case("B39")
@without_waiting
async def test_b39a_settings_that_nothing_will_apply_are_told_as_that(shared: Path) -> None:
    async with bench(shared / "mockups" / DELL) as bmc:
        bmc.bmc.state.edit(DELL_BIOS, lambda document: document["@Redfish.Settings"].pop("SupportedApplyTimes"))
        error = await bmc.fails("bios.setBios", {"attributes": DELL_CHANGE})
        assert error.code is ErrorCode.NOT_APPLIED
        assert "lists no apply time" in error.message
        assert bodies(bmc) == [{"Attributes": DELL_CHANGE}]


@pytest.mark.case("B39")
@without_waiting
async def test_b39b_a_vendor_that_refuses_apply_times_is_sent_none(shared: Path) -> None:
    async with bench(shared / "mockups" / "lenovo-sr670v2-xcc") as bmc:
        change = {"SystemRecovery_POSTWatchdogTimer": "Enabled"}
        result = await bmc("bios.setBios", {"attributes": change})
        assert result == {"changed": change, "pending": change, "task": None}
        assert bodies(bmc) == [{"Attributes": change}]
        assert bmc.requests("PATCH") == ["/redfish/v1/Systems/1/Bios/Pending"]


@pytest.mark.case("B39")
@without_waiting
async def test_b39b_an_apply_time_that_turns_out_unknown_is_left_out() -> None:
    no = refusal("Base.1.8.PropertyUnknown", "no such property", "#/@Redfish.SettingsApplyTime")
    rule = FaultRule(
        method="PATCH", path=SETTINGS, match_body={"@Redfish.SettingsApplyTime": {}}, status=400, body=no
    )
    async with bench(faults=[rule]) as bmc:
        assert (await bmc("bios.setBios", {"attributes": {"SrIov": "Enabled"}}))["pending"] == {"SrIov": "Enabled"}
        assert ["@Redfish.SettingsApplyTime" in body for body in bodies(bmc)] == [True, False]


@pytest.mark.case("B39")
@without_waiting
async def test_b39c_a_waiting_job_that_refuses_a_second_change_is_a_conflict_with_its_words(shared: Path) -> None:
    async with bench(shared / "mockups" / DELL) as bmc:
        await bmc("bios.setBios", {"attributes": DELL_CHANGE})
        error = await bmc.fails("bios.setBios", {"attributes": {"NumLock": "Off"}})
        assert error.code is ErrorCode.CONFLICT
        assert error.bmc[0].id == "IDRAC.2.8.SYS011"
        assert "already committed" in error.bmc[0].text
        assert "restart the host" in error.message
        assert len(bmc.requests("PATCH")) == 2
        assert bmc.requests("POST", "*Jobs*") == []
        await restart(bmc)
        assert (await bmc("bios.setBios", {"attributes": {"NumLock": "Off"}}))["pending"] == {"NumLock": "Off"}


@pytest.mark.case("B39")
@without_waiting
async def test_b39d_a_value_that_shows_while_its_job_is_scheduled_still_waits(shared: Path) -> None:
    async with bench(shared / "mockups" / DELL) as bmc:
        early = {"Attributes": DELL_CHANGE}
        bmc.bmc.faults.add(FaultRule(name="early", method="GET", path=DELL_BIOS, after=1, merge=early))
        assert (await bmc("bios.setBios", {"attributes": DELL_CHANGE}))["pending"] == DELL_CHANGE
        again = await bmc("bios.setBios", {"attributes": DELL_CHANGE})
        assert (again["changed"], again["pending"]) == ({}, DELL_CHANGE)
        assert by_name(await bmc("bios.getBios", {"pending": True}))["AcPwrRcvry"]["pending"] == "Off"
        assert len(bmc.requests("PATCH")) == 1


@pytest.mark.case("B39")
@without_waiting
async def test_b39e_a_yes_without_a_job_is_settled_by_reading(shared: Path) -> None:
    async with bench(shared / "mockups" / DELL) as bmc:
        rule = FaultRule(
            method="PATCH", path=DELL_SETTINGS, status=200, execute=True, body={}, remove_headers=("Location",)
        )
        bmc.bmc.faults.add(rule)
        result = await bmc("bios.setBios", {"attributes": DELL_CHANGE})
        assert (result["pending"], result["task"]) == (DELL_CHANGE, None)


@pytest.mark.case("B39")
@without_waiting
async def test_b39f_an_attribute_that_is_missing_until_the_bmc_restarts_is_told_as_that() -> None:
    async with bench() as bmc:
        bmc.bmc.state.edit(BIOS, lambda document: document["Attributes"].pop("SrIov"))
        error = await bmc.fails("bios.setBios", {"attributes": {"SrIov": "Enabled"}})
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert "the BIOS does not show it now" in error.message
        assert "management.resetBmc" in error.message
        assert bmc.requests("PATCH") == []


@pytest.mark.case("B39")
@without_waiting
async def test_b39f_an_attribute_that_goes_missing_with_the_change_is_told_as_that() -> None:
    async with bench() as bmc:
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SETTINGS, status=204))
        bmc.bmc.faults.add(FaultRule(method="GET", path=BIOS, after=1, merge={"Attributes": {"SrIov": None}}))
        error = await bmc.fails("bios.setBios", {"attributes": {"SrIov": "Enabled"}})
        assert error.code is ErrorCode.NOT_APPLIED
        assert "SrIov is not shown any more" in error.message
        assert "management.resetBmc" in error.message


def accepts(task: str = TASK, execute: bool = True) -> FaultRule:
    return FaultRule(
        method="PATCH",
        path=SETTINGS,
        status=202,
        execute=execute,
        body={"@odata.id": task},
        headers={"Location": task},
    )


@pytest.mark.case("B42")
@without_waiting
async def test_b42_a_task_that_ends_well_is_no_proof_without_the_value() -> None:
    async with bench(faults=[accepts(execute=False)]) as bmc:
        bmc.bmc.state.put(TASK, {"@odata.id": TASK, "TaskState": "Completed"})
        error = await bmc.fails("bios.setBios", {"attributes": {"SrIov": "Enabled"}})
        assert error.code is ErrorCode.NOT_APPLIED
        assert "SrIov reads 'Disabled'" in error.message
        assert error.details["missing"] == ["SrIov"]
        assert len(bmc.requests("PATCH")) == 1


@pytest.mark.case("B42")
@without_waiting
async def test_b42_a_task_that_fails_fails_the_change_in_its_words() -> None:
    async with bench(faults=[accepts()]) as bmc:
        said = [{"MessageId": "BIOS.1.0.7", "Message": "the firmware refuses it", "Severity": "Critical"}]
        bmc.bmc.state.put(TASK, {"@odata.id": TASK, "TaskState": "Completed", "Messages": said})
        error = await bmc.fails("bios.setBios", {"attributes": {"SrIov": "Enabled"}})
        assert error.code is ErrorCode.NOT_APPLIED
        assert [word.text for word in error.bmc] == ["the firmware refuses it"]


@pytest.mark.case("B42")
@without_waiting
async def test_b42_a_task_that_is_purged_is_settled_by_reading() -> None:
    async with bench(faults=[accepts()]) as bmc:
        bmc.bmc.state.put(TASK, {"@odata.id": TASK, "TaskState": "New"})
        bmc.bmc.faults.add(FaultRule(method="GET", path=TASK, after=1, status=404))
        result = await bmc("bios.setBios", {"attributes": {"SrIov": "Enabled"}})
        assert (result["pending"], result["task"]) == ({"SrIov": "Enabled"}, TASK)


@without_waiting
async def test_a_part_that_the_bmc_left_out_is_named_with_its_words() -> None:
    words = {"MessageId": "X.1.0.Locked", "Message": "NumaPerSocket is locked", "Severity": "Warning"}
    async with bench() as bmc:
        rule = FaultRule(
            method="PATCH", path=SETTINGS, status=200, body={"Attributes": {}, "@Message.ExtendedInfo": [words]}
        )
        bmc.bmc.faults.add(rule)
        bmc.bmc.state.edit(SETTINGS, lambda document: document["Attributes"].update(QuietBoot=False))
        error = await bmc.fails("bios.setBios", {"attributes": {"NumaPerSocket": 2}})
        assert error.code is ErrorCode.NOT_APPLIED
        assert "NumaPerSocket is locked" in str(error)


@without_waiting
async def test_a_value_that_shows_late_is_waited_for() -> None:
    async with bench() as bmc:
        late = tuple(Effect(set={"/Attributes": {}}) for _ in range(8))
        bmc.bmc.faults.add(FaultRule(method="GET", path=SETTINGS, after=2, sequence=late))
        assert (await bmc("bios.setBios", {"attributes": {"SrIov": "Enabled"}}))["pending"] == {"SrIov": "Enabled"}


@pytest.mark.case("B28")
@pytest.mark.parametrize(("drop", "code"), [(Drop.AFTER, None), (Drop.BEFORE, ErrorCode.OUTCOME_UNKNOWN)])
@without_waiting
async def test_a_change_whose_answer_is_lost_is_settled_by_reading_and_never_sent_again(
    drop: Drop, code: ErrorCode | None
) -> None:
    async with bench(faults=[FaultRule(method="PATCH", path=SETTINGS, drop=drop)]) as bmc:
        change = {"attributes": {"SrIov": "Enabled"}}
        if code is None:
            assert (await bmc("bios.setBios", change))["pending"] == {"SrIov": "Enabled"}
        else:
            assert (await bmc.fails("bios.setBios", change)).code is code
        assert len(bmc.requests("PATCH")) == 1


@pytest.mark.case("B21")
@without_waiting
async def test_b21_a_change_during_the_self_test_is_asked_again() -> None:
    busy = FaultRule(
        method="PATCH",
        path=SETTINGS,
        count=5,
        status=400,
        body=refusal("iLO.2.14.UnableToModifyDuringSystemPOST", "the server is in POST"),
    )
    async with bench(faults=[busy]) as bmc:
        assert (await bmc("bios.setBios", {"attributes": {"SrIov": "Enabled"}}))["changed"] == {"SrIov": "Enabled"}


@pytest.mark.case("B35")
@without_waiting
async def test_b35_a_missing_licence_is_told_as_that() -> None:
    no = refusal("SMC.1.0.OemLicenseNotPassed", "Not licensed to perform this request: SFT-OOB-LIC")
    async with bench(faults=[FaultRule(method="PATCH", path=SETTINGS, status=403, body=no)]) as bmc:
        error = await bmc.fails("bios.setBios", {"attributes": {"SrIov": "Enabled"}})
        assert error.code is ErrorCode.LICENSE_REQUIRED
        assert "SFT-OOB-LIC" in str(error)


@without_waiting
async def test_settings_are_not_compared_with_a_settings_object_that_is_only_busy() -> None:
    async with bench() as bmc:
        await bmc("bios.setBios", {"attributes": {"SrIov": "Enabled"}})
        bmc.bmc.faults.add(FaultRule(method="GET", path=SETTINGS, count=3, status=503))
        assert (await bmc("bios.setBios", {"attributes": {"SrIov": "Enabled"}}))["changed"] == {}
        assert len(bmc.requests("PATCH")) == 1


@pytest.mark.parametrize(("allow", "code"), [("GET, HEAD, PATCH", None), ("GET, HEAD", ErrorCode.UNSUPPORTED)])
@without_waiting
async def test_without_a_settings_object_the_bios_itself_is_written_where_it_allows_that(
    allow: str, code: ErrorCode | None
) -> None:
    async with bench(faults=[FaultRule(method="GET", path=BIOS, headers={"Allow": allow})]) as bmc:
        bmc.bmc.state.edit(BIOS, lambda document: document.pop("@Redfish.Settings"))
        change = {"attributes": {"SrIov": "Enabled"}}
        if code is None:
            result = await bmc("bios.setBios", change)
            assert result["changed"] == result["pending"] == {"SrIov": "Enabled"}
            assert bmc.requests("PATCH") == [BIOS]
        else:
            error = await bmc.fails("bios.setBios", change)
            assert error.code is code
            assert bmc.requests("PATCH") == []


@without_waiting
async def test_a_change_costs_the_least_requests_once_the_bios_is_known() -> None:
    async with bench() as bmc:
        await bmc("bios.getBios")
        before = len(bmc.bmc.journal)
        await bmc("bios.setBios", {"attributes": {"SrIov": "Enabled"}})
        methods = [(entry.method, entry.path) for entry in bmc.bmc.journal.entries()][before:]
        # The tag is known from the first look, and what waits for a reset is proven by the settings object alone.
        assert methods == [("GET", BIOS), ("GET", SETTINGS), ("PATCH", SETTINGS), ("GET", SETTINGS)]


# --- the defaults ---


@without_waiting
async def test_the_defaults_are_ordered_once_with_an_empty_body_and_wait_for_a_start() -> None:
    async with bench() as bmc:
        await bmc("bios.setBios", {"attributes": {"SrIov": "Enabled"}})
        await restart(bmc)
        assert await bmc("bios.resetBios") == {"task": None, "pending": True}
        assert bodies(bmc, RESET_BIOS, "POST") == [{}]
        assert (await bmc("bios.getBios"))["defaultsPending"] is True
        await restart(bmc)
        reading = await bmc("bios.getBios")
        assert reading["defaultsPending"] is False
        assert by_name(reading)["SrIov"]["value"] == "Disabled"


@pytest.mark.case("B28")
@pytest.mark.parametrize(("drop", "code"), [(Drop.AFTER, None), (Drop.BEFORE, ErrorCode.OUTCOME_UNKNOWN)])
@without_waiting
async def test_an_order_for_the_defaults_whose_answer_is_lost_is_looked_after_and_never_sent_again(
    drop: Drop, code: ErrorCode | None
) -> None:
    async with bench(faults=[FaultRule(method="POST", path=RESET_BIOS, drop=drop)]) as bmc:
        if code is None:
            assert (await bmc("bios.resetBios"))["pending"] is True
        else:
            assert (await bmc.fails("bios.resetBios")).code is code
        assert len(bmc.requests("POST", RESET_BIOS)) == 1


@pytest.mark.parametrize(("execute", "code"), [(True, None), (False, ErrorCode.OUTCOME_UNKNOWN)])
@without_waiting
async def test_a_server_error_to_the_order_is_looked_into(execute: bool, code: ErrorCode | None) -> None:
    rule = FaultRule(method="POST", path=RESET_BIOS, status=500, execute=execute)
    async with bench(faults=[rule]) as bmc:
        if code is None:
            assert (await bmc("bios.resetBios"))["pending"] is True
        else:
            assert (await bmc.fails("bios.resetBios")).code is code
        assert len(bmc.requests("POST", RESET_BIOS)) == 1


@without_waiting
async def test_a_yes_to_the_order_that_no_reading_shows_is_not_applied() -> None:
    async with bench(faults=[FaultRule(method="POST", path=RESET_BIOS, status=204)]) as bmc:
        error = await bmc.fails("bios.resetBios")
        assert error.code is ErrorCode.NOT_APPLIED
        assert "ResetBiosToDefaultsPending still reads false" in error.message


@without_waiting
async def test_a_refusal_of_the_order_is_told_and_never_repeated() -> None:
    no = refusal("IDRAC.2.8.SYS011", "Pending configuration values are already committed.")
    async with bench(faults=[FaultRule(method="POST", path=RESET_BIOS, status=400, body=no)]) as bmc:
        error = await bmc.fails("bios.resetBios")
        assert error.code is ErrorCode.CONFLICT
        assert "already committed" in str(error)
        assert len(bmc.requests("POST", RESET_BIOS)) == 1


@pytest.mark.parametrize(
    ("last", "pending", "code"),
    [
        ({"TaskState": "Scheduled"}, True, None),
        ({"TaskState": "Completed"}, False, None),
        ({"TaskState": "Exception"}, None, ErrorCode.NOT_APPLIED),
    ],
)
@without_waiting
async def test_an_order_that_is_a_task_is_followed(
    last: dict[str, Any], pending: bool | None, code: ErrorCode | None
) -> None:
    rule = FaultRule(method="POST", path=RESET_BIOS, status=202, body={"@odata.id": TASK}, headers={"Location": TASK})
    async with bench(faults=[rule]) as bmc:
        bmc.bmc.state.put(TASK, {"@odata.id": TASK, **last})
        if code is None:
            assert await bmc("bios.resetBios") == {"task": TASK, "pending": pending}
        else:
            assert (await bmc.fails("bios.resetBios")).code is code
        assert len(bmc.requests("POST", RESET_BIOS)) == 1


@without_waiting
async def test_a_session_that_had_ended_does_not_cost_the_order() -> None:
    async with bench() as bmc:
        await bmc("bios.getBios")
        bmc.bmc.faults.add(FaultRule(method="POST", path=RESET_BIOS, count=1, status=401))
        assert (await bmc("bios.resetBios"))["pending"] is True


# --- recorded trees ---


def bios_of(tree: Path) -> tuple[Path, dict[str, Any]] | None:
    """The host's BIOS by a plain look at the files: the one whose system has a BIOS, and its attributes."""
    for file in sorted(tree.rglob("index.json")):
        try:
            document = json.loads(file.read_text())
        except ValueError:
            continue
        kind = document.get("@odata.type", "") if isinstance(document, dict) else ""
        if kind.startswith("#Bios.") and file.parent.name.lower() == "bios" and document.get("Attributes"):
            return file, document
    return None


def registry_of(tree: Path) -> dict[str, dict[str, Any]]:
    for file in tree.rglob("index.json"):
        document = json.loads(file.read_text()) if "egistr" in str(file) else {}
        if isinstance(document, dict) and document.get("@odata.type", "").startswith("#AttributeRegistry."):
            return {one["AttributeName"]: one for one in document["RegistryEntries"]["Attributes"]}
    return {}


TREES = [
    "cray-ex235a", DELL, "dell-r750-idrac9-7.10", "dmtf-catfish", "dmtf-rackmount1", "dmtf-tower",
    "gigabyte-h262-megarac", "hpe-dl380a-ilo6", "hpe-dl385-ilo5", "intel-s2600bpb", "lenovo-sr670v2-xcc",
    "nvidia-bluefield3", "nvidia-dgx-h100-ami", "nvidia-gh200-openbmc", "openbmc-stock", "supermicro-821ge",
    "supermicro-x10",
]  # fmt: skip


@pytest.mark.parametrize("tree", TREES)
@without_waiting
async def test_every_tree_shows_the_attributes_that_it_holds(tree: str, shared: Path) -> None:
    recorded = bios_of(shared / "mockups" / tree)
    async with bench(shared / "mockups" / tree) as bmc:
        if recorded is None:
            assert (await bmc.fails("bios.getBios")).code is ErrorCode.UNSUPPORTED
            return
        reading = await bmc("bios.getBios")
        _, document = recorded
        found = by_name(reading)
        assert list(found) == list(document["Attributes"])
        for name, value in document["Attributes"].items():
            shown = value.get("current_value") if isinstance(value, dict) else value
            assert found[name]["value"] == (None if found[name]["kind"] == "password" else shown)
        if document.get("AttributeRegistry"):
            assert reading["registry"] == document["AttributeRegistry"]
        assert reading["defaultsPending"] == document.get("ResetBiosToDefaultsPending")
        for name, entry in registry_of(shared / "mockups" / tree).items():
            one = found.get(name)
            if one is None or one["kind"] == "password":
                continue
            assert one["kind"] == entry["Type"].lower()
            assert one["displayName"] == (entry["DisplayName"].strip() or None)
            if entry["Type"] == "Integer":
                assert one["minimum"] == entry["LowerBound"]
            if entry["Type"] == "Enumeration" and one["choices"] and tree != "supermicro-821ge":
                assert set(one["choices"]) <= {choice["ValueName"] for choice in entry["Value"]}


@pytest.mark.parametrize("tree", TREES)
@without_waiting
async def test_reading_a_tree_costs_no_request_too_many(tree: str, shared: Path) -> None:
    """The least: root, login, systems and the system; the BIOS, its settings object; the registries, the entry and
    the registry where the tree has one. More systems than one are each looked at."""
    async with bench(shared / "mockups" / tree) as bmc:
        if bios_of(shared / "mockups" / tree) is None:
            return
        await bmc("bios.getBios")
        asked = [*bmc.requests("GET"), *bmc.requests("POST")]
        assert len(asked) == len(set(asked))
        assert len(bmc.requests("GET", "/redfish/v1/Systems/*")) <= 4
        assert len(asked) <= 10


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    DELL: (DELL_CHANGE, DELL_SETTINGS),
    "dell-r750-idrac9-7.10": ({"DimmSlot00": "Disabled"}, DELL_SETTINGS),
    "hpe-dl380a-ilo6": ({"AcpiHpet": "Disabled"}, "/redfish/v1/systems/1/bios/settings/"),
    "hpe-dl385-ilo5": ({"AcpiHpet": "Disabled"}, "/redfish/v1/systems/1/bios/settings/"),
    "lenovo-sr670v2-xcc": ({"SystemRecovery_POSTWatchdogTimerValue": 9}, "/redfish/v1/Systems/1/Bios/Pending"),
    "supermicro-821ge": ({"QuietBoot_002D": False, "OptionROMMessages_002E": "Keep Current"},
                         "/redfish/v1/Systems/1/Bios/SD"),
    "gigabyte-h262-megarac": ({"TER00A": False}, "/redfish/v1/Systems/Self/Bios"),
    "nvidia-dgx-h100-ami": ({"ARIEnable": "Disable"}, "/redfish/v1/Systems/DGX/Bios/SD"),
    "nvidia-gh200-openbmc": ({"EGM": True, "EGMHypervisorReservedMemory": 128},
                             "/redfish/v1/Systems/System_0/Bios/Settings"),
    "nvidia-bluefield3": ({"EnableSMMU": False}, "/redfish/v1/Systems/Bluefield/Bios/Settings"),
    "dmtf-rackmount1": ({"NicBoot1": "Disabled"}, "/redfish/v1/Systems/437XR1138R2/Bios/Settings"),
}  # fmt: skip


@pytest.mark.parametrize("tree", CHANGES)
@without_waiting
async def test_each_vendor_s_own_settings_object_takes_the_change_once(tree: str, shared: Path) -> None:
    change, place = CHANGES[tree]
    async with bench(shared / "mockups" / tree) as bmc:
        before = by_name(await bmc("bios.getBios"))
        assert all(before[name]["value"] != value for name, value in change.items())
        result = await bmc("bios.setBios", {"attributes": change})
        assert result["changed"] == change
        assert change.items() <= result["pending"].items()
        assert bmc.requests("PATCH") == [place]
        again = await bmc("bios.setBios", {"attributes": change})
        assert again["changed"] == {}
        await restart(bmc)
        after = by_name(await bmc("bios.getBios"))
        assert {name: after[name]["value"] for name in change} == change
        assert all(after[name]["pending"] is None for name in change)


RESETS = {
    DELL: {},
    "dell-r750-idrac9-7.10": {},
    "hpe-dl380a-ilo6": {},
    "hpe-dl385-ilo5": {},
    "lenovo-sr670v2-xcc": {},
    "supermicro-821ge": {},
    "gigabyte-h262-megarac": {"ResetType": "Reset"},
    "nvidia-dgx-h100-ami": {"ResetType": "Reset"},
    "nvidia-gh200-openbmc": {},
    "nvidia-bluefield3": {},
    "cray-ex235a": {},
    "openbmc-stock": {},
}


@pytest.mark.parametrize(("tree", "body"), RESETS.items())
@without_waiting
async def test_each_vendor_takes_the_order_for_the_defaults_once(
    tree: str, body: dict[str, Any], shared: Path
) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        assert (await bmc("bios.resetBios"))["pending"] is True
        assert bodies(bmc, "*Bios.ResetBios*", "POST") == [body]


@without_waiting
async def test_attributes_in_a_maker_s_own_form_are_read_and_not_written(shared: Path) -> None:
    async with bench(shared / "mockups" / "cray-ex235a") as bmc:
        numa = by_name(await bmc("bios.getBios"))["NUMA"]
        assert (numa["value"], numa["choices"]) == ("NPS4", ["NPS0", "NPS1", "NPS2", "NPS4", "Auto"])
        error = await bmc.fails("bios.setBios", {"attributes": {"NUMA": "NPS1"}})
        assert error.code is ErrorCode.UNSUPPORTED
        assert bmc.requests("PATCH") == []


@without_waiting
async def test_a_profile_that_was_read_from_a_machine_fits_it(shared: Path) -> None:
    async with bench(shared / "mockups" / "hpe-dl385-ilo5") as bmc:
        reading = await bmc("bios.getBios")
        profile = {one["name"]: one["value"] for one in reading["attributes"] if one["kind"] != "password"}
        assert (await bmc("bios.setBios", {"attributes": profile}))["changed"] == {}
        assert bmc.requests("PATCH") == []


@without_waiting
async def test_what_a_dependency_forbids_is_told_with_its_reason(shared: Path) -> None:
    async with bench(shared / "mockups" / "hpe-dl380a-ilo6") as bmc:
        found = by_name(await bmc("bios.getBios"))
        locked = [one for one in found.values() if one["readOnly"] and one["note"] and len(one["choices"]) > 1]
        assert locked
        other = next(choice for choice in locked[0]["choices"] if choice != locked[0]["value"])
        error = await bmc.fails("bios.setBios", {"attributes": {locked[0]["name"]: other}})
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert locked[0]["note"] in error.message
