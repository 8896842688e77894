"""The boot override: set, shown, used up by the start that it is for, and owned by one resource."""

from pathlib import Path

import pytest

from tests.simulators.conftest import CD, SYSTEM, Start

CD_ONCE = {"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Cd"}}


async def test_an_override_that_holds_once_is_used_up_by_one_start(start: Start) -> None:
    bmc = await start()

    reply = await bmc.patch(SYSTEM, CD_ONCE)
    assert reply.status == 200
    assert reply.data["Boot"]["BootSourceOverrideTarget"] == "Cd"
    await bmc.reset("ForceRestart")
    await bmc.reset("ForceRestart")

    assert [boot.target for boot in bmc.server.state.boots] == ["Cd", "None"]
    boot = (await bmc.get(SYSTEM)).data["Boot"]
    assert (boot["BootSourceOverrideEnabled"], boot["BootSourceOverrideTarget"]) == ("Disabled", "None")


async def test_a_continuous_override_holds_for_every_start(start: Start) -> None:
    bmc = await start()
    await bmc.patch(SYSTEM, {"Boot": {"BootSourceOverrideEnabled": "Continuous", "BootSourceOverrideTarget": "Pxe"}})

    await bmc.reset("PowerCycle")
    await bmc.reset("PowerCycle")

    assert [boot.target for boot in bmc.server.state.boots] == ["Pxe", "Pxe"]


async def test_switching_the_machine_off_does_not_use_up_the_override(start: Start) -> None:
    bmc = await start()
    await bmc.patch(SYSTEM, CD_ONCE)

    await bmc.reset("ForceOff")

    assert bmc.server.state.boot_override()["BootSourceOverrideTarget"] == "Cd"


async def test_a_disabled_override_has_no_target(start: Start) -> None:
    bmc = await start()
    await bmc.patch(SYSTEM, CD_ONCE)

    reply = await bmc.patch(SYSTEM, {"Boot": {"BootSourceOverrideEnabled": "Disabled"}})

    assert reply.data["Boot"]["BootSourceOverrideTarget"] == "None"


@pytest.mark.case("B59")
async def test_b59_insert_and_eject_do_not_touch_the_override(start: Start) -> None:
    bmc = await start()
    await bmc.patch(SYSTEM, CD_ONCE)

    await bmc.post(f"{CD}/Actions/VirtualMedia.InsertMedia", {"Image": "http://images.example/a.iso"})
    await bmc.post(f"{CD}/Actions/VirtualMedia.EjectMedia", {})

    assert (await bmc.get(SYSTEM)).data["Boot"]["BootSourceOverrideTarget"] == "Cd"


@pytest.mark.case("B59")
async def test_b59_insert_and_eject_by_patch_do_not_touch_the_override_either(start: Start) -> None:
    bmc = await start()
    bmc.server.state.edit(CD, lambda document: document.pop("Actions"))
    await bmc.patch(SYSTEM, CD_ONCE)

    await bmc.patch(CD, {"Image": "http://images.example/a.iso", "Inserted": True})
    await bmc.patch(CD, {"Image": None, "Inserted": False})

    boot = (await bmc.get(SYSTEM)).data["Boot"]
    assert (boot["BootSourceOverrideTarget"], boot["BootSourceOverrideEnabled"]) == ("Cd", "Once")


async def test_all_wrong_values_are_named_at_once_and_nothing_changes(start: Start) -> None:
    bmc = await start()
    wrong = {"BootSourceOverrideTarget": "Tape", "BootSourceOverrideEnabled": "Often", "BootSourceOverrideMode": None}

    reply = await bmc.patch(SYSTEM, {"Boot": wrong})

    assert reply.status == 400
    assert sorted(reply.message_ids) == ["PropertyValueNotInList", "PropertyValueNotInList", "PropertyValueTypeError"]
    assert bmc.server.state.boot_override()["BootSourceOverrideTarget"] == "None"


async def test_the_boot_order_takes_known_entries_only(start: Start) -> None:
    bmc = await start()

    good = await bmc.patch(SYSTEM, {"Boot": {"BootOrder": ["Boot0003", "Boot0001"]}})
    bad = await bmc.patch(SYSTEM, {"Boot": {"BootOrder": ["Boot0042"]}})

    assert good.status == 200
    assert bad.status == 400
    assert (await bmc.get(SYSTEM)).data["Boot"]["BootOrder"] == ["Boot0003", "Boot0001"]


@pytest.mark.case("B14")
@pytest.mark.parametrize(
    ("tree", "system", "settings"),
    [
        ("nvidia-dgx-h100-ami", "/redfish/v1/Systems/DGX", "/redfish/v1/Systems/DGX/SD"),
        ("nvidia-gh200-openbmc", "/redfish/v1/Systems/System_0", "/redfish/v1/Systems/System_0/Settings"),
        ("nvidia-bluefield3", "/redfish/v1/Systems/Bluefield", "/redfish/v1/Systems/Bluefield/Settings"),
    ],
)
async def test_an_override_owned_by_the_settings_object_is_refused_on_the_system(
    start: Start, shared: Path, tree: str, system: str, settings: str
) -> None:
    bmc = await start(shared / "mockups" / tree)
    pxe = {"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}}

    refused = await bmc.patch(system, pxe)
    accepted = await bmc.patch(settings, pxe)
    await bmc.reset("ForceRestart", bmc.server.state.document(system)["Actions"]["#ComputerSystem.Reset"]["target"])  # type: ignore[index]

    assert refused.status == 400
    assert set(refused.message_ids) == {"PropertyNotWritable"}
    assert settings in refused.body.decode()
    assert accepted.status == 200
    assert [boot.target for boot in bmc.server.state.boots] == ["Pxe"]
    assert bmc.server.state.boot_override(system)["BootSourceOverrideEnabled"] == "Disabled"


@pytest.mark.case("B14")
async def test_an_override_is_refused_on_a_settings_object_that_lacks_its_keys(start: Start, shared: Path) -> None:
    bmc = await start(shared / "mockups" / "dell-r750-idrac9-7.10")
    system = "/redfish/v1/Systems/System.Embedded.1"

    refused = await bmc.patch(f"{system}/Settings", CD_ONCE)
    accepted = await bmc.patch(system, CD_ONCE)

    assert refused.status == 400
    assert set(refused.message_ids) == {"PropertyNotWritable"}
    assert accepted.status == 200
    assert bmc.server.state.boot_override()["BootSourceOverrideTarget"] == "Cd"
