"""BIOS settings of single vendors: jobs, apply times, display names, and the order for the defaults."""

from pathlib import Path
from typing import Any

import pytest

from simulators.redfish import ServiceOptions
from tests.simulators.conftest import SYSTEM, FakeClock, Start

BIOS = f"{SYSTEM}/Bios"
APPLY = "@Redfish.SettingsApplyTime"
ON_RESET = {APPLY: {"ApplyTime": "OnReset"}}
CHANGE: dict[str, Any] = {"Attributes": {"SrIov": "Enabled"}}


async def test_a_job_waits_for_the_next_start_and_refuses_a_second_change(start: Start, clock: FakeClock) -> None:
    bmc = await start(behaviour="dell-idrac", options=ServiceOptions(task_seconds=60), clock=clock)

    taken = await bmc.patch(f"{BIOS}/Settings", {**CHANGE, **ON_RESET})
    task = taken.data["@odata.id"]
    waiting = (await bmc.get(task)).data
    second = await bmc.patch(f"{BIOS}/Settings", {"Attributes": {"QuietBoot": False}, **ON_RESET})
    await bmc.reset("ForceRestart")
    clock.move(30)
    running = (await bmc.get(task)).data["TaskState"]
    early = (await bmc.get(BIOS)).data["Attributes"]["SrIov"]
    clock.move(31)

    assert taken.status == 202
    assert waiting["Messages"][0]["MessageId"].endswith("JCP001")
    assert second.status == 400
    assert second.message_ids == ["SYS011"]
    assert (running, early) == ("Running", "Disabled")
    assert (await bmc.get(task)).data["TaskState"] == "Completed"
    assert (await bmc.get(BIOS)).data["Attributes"]["SrIov"] == "Enabled"


async def test_settings_that_no_job_applies_stay_pending_for_ever(start: Start) -> None:
    bmc = await start(behaviour="dell-idrac")

    taken = await bmc.patch(f"{BIOS}/Settings", CHANGE)
    await bmc.reset("ForceRestart")

    assert taken.status == 200
    assert (await bmc.get(BIOS)).data["Attributes"]["SrIov"] == "Disabled"
    assert (await bmc.get(f"{BIOS}/Settings")).data["Attributes"] == {"SrIov": "Enabled"}


@pytest.mark.parametrize(
    ("behaviour", "apply_time", "message"),
    [("generic", "Immediate", "PropertyValueNotInList"), ("lenovo-xcc", "OnReset", "PropertyUnknown")],
)
async def test_an_apply_time_that_this_bios_does_not_take_is_refused(
    start: Start, behaviour: str, apply_time: str, message: str
) -> None:
    bmc = await start(behaviour=behaviour)

    etag = (await bmc.get(f"{BIOS}/Settings")).headers["ETag"]
    body = {**CHANGE, APPLY: {"ApplyTime": apply_time}}
    reply = await bmc.patch(f"{BIOS}/Settings", body, headers={"If-Match": etag})

    assert reply.status == 400
    assert reply.message_ids == [message]


async def test_the_order_for_the_defaults_shows_until_the_host_starts(start: Start) -> None:
    bmc = await start()

    await bmc.post(f"{BIOS}/Actions/Bios.ResetBios", {})
    before = (await bmc.get(BIOS)).data["ResetBiosToDefaultsPending"]
    await bmc.reset("ForceRestart")

    assert before is True
    assert (await bmc.get(BIOS)).data["ResetBiosToDefaultsPending"] is False


async def test_a_parameter_that_the_action_info_asks_for_must_be_given(start: Start, shared: Path) -> None:
    bmc = await start(shared / "mockups" / "gigabyte-h262-megarac")
    reset = "/redfish/v1/Systems/Self/Bios/Actions/Bios.ResetBios"

    assert (await bmc.post(reset, {})).message_ids == ["ActionParameterMissing"]
    assert (await bmc.post(reset, {"ResetType": "Reset"})).status == 204


async def test_values_are_named_as_the_bios_itself_names_them(start: Start, shared: Path) -> None:
    bmc = await start(shared / "mockups" / "supermicro-821ge")
    settings = "/redfish/v1/Systems/1/Bios/SD"

    assert (await bmc.patch(settings, {"Attributes": {"OptionROMMessages_002E": "Keep Current"}})).status == 200
    assert (await bmc.patch(settings, {"Attributes": {"OptionROMMessages_002E": "0"}})).status == 400
