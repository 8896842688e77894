"""The boot override: the cases B14 to B21, and others of their kinds."""

from typing import Any

import pytest

from drivers.redfish.vendors import Facts, manners_of
from protocol.errors import ErrorCode
from simulators.redfish import Effect, FaultRule
from tests.drivers.redfish.harness import SYSTEM, Bench, bench, without_waiting
from tests.drivers.redfish.test_boot import (
    ENABLED,
    MODE,
    NORMAL,
    SETTINGS,
    TARGET,
    refusal,
    settings_own_the_override,
)

SD = f"{SYSTEM}/SD"
FUTURE = "OperationSupportedInFutureStateURI"


def boots(bmc: Bench) -> list[tuple[str, Any]]:
    return [(entry.path, entry.body["Boot"]) for entry in bmc.bmc.journal.entries("PATCH")]


def put_settings(bmc: Bench, path: str, **boot: Any) -> None:
    """A settings object that no link leads to."""
    bmc.bmc.state.put(
        path,
        {
            "@odata.id": path,
            "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
            "Id": path.rpartition("/")[2],
            "Name": "Settings",
            "Boot": {**NORMAL, **boot},
        },
    )


NAMING = {
    "in its arguments": {"MessageId": f"Ami.1.0.{FUTURE}", "Message": "Not here.", "MessageArgs": ["Boot", SD]},
    "in its text": {"MessageId": f"Ami.1.0.{FUTURE}", "Message": f"The property is updated through {SD}."},
    "in its resolution": {"MessageId": f"Ami.1.0.{FUTURE}", "Message": "No.", "Resolution": f"Use '{SD}' instead."},
}


@pytest.mark.case("B14")
@pytest.mark.parametrize("note", NAMING.values(), ids=NAMING.keys())
@without_waiting
async def test_b14_a_refusal_that_names_the_right_place_is_followed_there(note: dict[str, Any]) -> None:
    body = {"error": {"code": note["MessageId"], "@Message.ExtendedInfo": [note]}}
    async with bench(faults=[FaultRule(method="PATCH", path=SYSTEM, status=400, body=body)]) as bmc:
        put_settings(bmc, SD)
        bmc.bmc.faults.add(
            FaultRule(method="GET", path=SYSTEM, after=3, merge={"Boot": {TARGET: "Pxe", ENABLED: "Once"}})
        )
        assert (await bmc("boot.setBootDevice", {"device": "pxe"}))["target"] == "pxe"
        assert boots(bmc)[-1] == (SD, {ENABLED: "Once", TARGET: "Pxe"})
        assert len(boots(bmc)) == 2


@pytest.mark.case("B14")
@without_waiting
async def test_b14_a_refusal_that_names_a_place_elsewhere_is_not_followed() -> None:
    note = {"MessageId": f"Ami.1.0.{FUTURE}", "Message": "Not here.", "MessageArgs": ["/redfish/v1/Managers/1/SD"]}
    body = {"error": {"@Message.ExtendedInfo": [note]}}
    async with bench(faults=[FaultRule(method="PATCH", path=SYSTEM, status=400, body=body)]) as bmc:
        error = await bmc.fails("boot.setBootDevice", {"device": "pxe"})
        assert error.bmc[0].text == "Not here."
        assert {path for path, _ in boots(bmc)} == {SYSTEM}


@pytest.mark.case("B14")
@pytest.mark.parametrize("status", [404, 405])
@without_waiting
async def test_b14_a_settings_object_that_takes_no_change_leaves_the_system(status: int) -> None:
    async with bench() as bmc:
        await settings_own_the_override(bmc)
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SETTINGS, status=status))
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SYSTEM, status=200, body={}))
        bmc.bmc.faults.add(
            FaultRule(method="GET", path=SETTINGS, after=3, merge={"Boot": {TARGET: "Pxe", ENABLED: "Once"}})
        )
        assert (await bmc("boot.setBootDevice", {"device": "pxe"}))["target"] == "pxe"
        assert [path for path, _ in boots(bmc)] == [SETTINGS, SYSTEM]


@pytest.mark.case("B14")
@pytest.mark.parametrize("key", [FUTURE, "PropertyNotWritable", "PropertyUnknown"])
@without_waiting
async def test_b14_the_boot_order_goes_where_it_is_taken_too(key: str) -> None:
    note = {"MessageId": f"Ami.1.0.{key}", "Message": "Not here.", "MessageArgs": [SD]}
    body = {"error": {"@Message.ExtendedInfo": [note]}}
    async with bench(faults=[FaultRule(method="PATCH", path=SYSTEM, status=400, body=body)]) as bmc:
        order = (bmc.bmc.state.document(SYSTEM) or {})["Boot"]["BootOrder"]
        put_settings(bmc, SD, BootOrder=order)
        if key != FUTURE:
            bmc.bmc.state.patch(SYSTEM, {"@Redfish.Settings": {"SettingsObject": {"@odata.id": SD}}})
        bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, after=3, merge={"Boot": {"BootOrder": order[::-1]}}))
        assert (await bmc("boot.setBootOrder", {"order": order[::-1]}))["order"] == order[::-1]
        assert boots(bmc)[-1] == (SD, {"BootOrder": order[::-1]})


@pytest.mark.case("B15")
@pytest.mark.parametrize("gone", [None, {}, "Boot"])
@without_waiting
async def test_b15_a_system_whose_boot_says_nothing_has_that_of_its_settings(gone: Any) -> None:
    listed = {f"{TARGET}@Redfish.AllowableValues": ["None", "Pxe", "Cd"]}
    async with bench() as bmc:
        await settings_own_the_override(bmc)
        bmc.bmc.state.patch(SETTINGS, {"Boot": listed})
        if gone == "Boot":
            bmc.bmc.state.edit(SYSTEM, lambda document: document.pop("Boot"))
        else:
            bmc.bmc.state.edit(SYSTEM, lambda document: document.update(Boot=gone))
        assert (await bmc("boot.getBoot"))["allowedTargets"] == ["None", "Pxe", "Cd"]
        assert (await bmc("boot.setBootDevice", {"device": "cd"}))["rawTarget"] == "Cd"


@pytest.mark.case("B17")
@without_waiting
async def test_b17_a_mode_that_an_override_turned_to_legacy_is_set_back() -> None:
    async with bench() as bmc:
        turned = FaultRule(
            name="turns",
            method="GET",
            path=SYSTEM,
            after=1,
            count=1,
            merge={"Boot": {MODE: "Legacy", TARGET: "Pxe", ENABLED: "Once"}},
        )
        bmc.bmc.faults.add(turned)
        assert (await bmc("boot.setBootDevice", {"device": "pxe"}))["mode"] == "uefi"
        assert boots(bmc)[-1][1] == {ENABLED: "Once", TARGET: "Pxe", MODE: "UEFI"}


@pytest.mark.case("B17")
@pytest.mark.parametrize("persistent", [False, True])
@without_waiting
async def test_b17_every_override_says_whether_it_lasts(persistent: bool) -> None:
    async with bench() as bmc:
        for device in ("pxe", "cd"):
            await bmc("boot.setBootDevice", {"device": device, "persistent": persistent})
        assert {boot[ENABLED] for _, boot in boots(bmc)} == {"Continuous" if persistent else "Once"}


@pytest.mark.case("B18")
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"error": {"code": "Base.1.5.GeneralError", "message": "A general error has occurred."}},
        {"Boot": {f"{MODE}@Message.ExtendedInfo": [{"MessageId": "Base.1.12.PropertyMissing", "Message": "!"}]}},
        "Bad Request",
    ],
)
@pytest.mark.parametrize("now", ["UEFI", None])
@without_waiting
async def test_b18_whatever_a_bmc_says_to_a_part_it_gets_the_whole(body: Any, now: str | None) -> None:
    async with bench() as bmc:
        bmc.bmc.state.edit(SYSTEM, lambda document: document["Boot"].update({MODE: now}))
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SYSTEM, count=1, status=400, body=body))
        assert (await bmc("boot.setBootDevice", {"device": "pxe"}))["target"] == "pxe"
        assert boots(bmc)[-1][1] == {ENABLED: "Once", TARGET: "Pxe", MODE: "UEFI"}
        assert all(None not in boot.values() for _, boot in boots(bmc))


@pytest.mark.case("B19")
@pytest.mark.parametrize(
    "manufacturer",
    ["Supermicro", "SUPERMICRO", "Super Micro Computer, Inc.", "Super Micro Computer", "Supermicro Inc"],
)
def test_b19_a_supermicro_is_known_by_each_of_its_names(manufacturer: str) -> None:
    assert manners_of(Facts(manufacturer=manufacturer.lower(), model="sys-821ge-tnhr")).cd_targets[0] == "UsbCd"
    assert manners_of(Facts(manufacturer=manufacturer.lower(), model="ars-111gl-nhr")).cd_targets[0] == "Cd"


@pytest.mark.case("B19")
@without_waiting
async def test_b19_a_target_that_the_bmc_takes_and_does_not_show_gives_way_to_the_next() -> None:
    async with bench() as bmc:
        bmc.bmc.state.patch(SYSTEM, {"Manufacturer": "Supermicro"})
        bmc.bmc.state.patch(SYSTEM, {"Boot": {f"{TARGET}@Redfish.AllowableValues": ["None", "Cd", "UsbCd"]}})
        bmc.bmc.faults.add(
            FaultRule(method="PATCH", path=SYSTEM, match_body={"Boot": {TARGET: "UsbCd"}}, status=200, body={})
        )
        assert (await bmc("boot.setBootDevice", {"device": "cd"}))["rawTarget"] == "Cd"


@pytest.mark.case("B21")
@pytest.mark.parametrize("status", [400, 409, 500, 503])
@without_waiting
async def test_b21_a_change_during_the_self_test_waits_whatever_the_status(status: int) -> None:
    async with bench() as bmc:
        post = refusal("UnableToModifyDuringSystemPOST")
        bmc.bmc.faults.add(FaultRule(method="PATCH", path="*", count=5, status=status, body=post))
        assert (await bmc("boot.setBootDevice", {"device": "pxe"}))["target"] == "pxe"
        bmc.bmc.faults.add(FaultRule(method="PATCH", path="*", count=5, status=status, body=post))
        assert (await bmc("boot.setSecureBoot", {"enabled": True}))["pending"] is True


@pytest.mark.case("B21")
@pytest.mark.parametrize("status", [400, 404, 405, 409, 501])
@without_waiting
async def test_b21_what_is_never_supported_is_told_at_once(status: int) -> None:
    body = {"error": {"@Message.ExtendedInfo": [{"MessageId": "iLO.2.14.UnsupportedOperation", "Message": "Never."}]}}
    async with bench(faults=[FaultRule(method="PATCH", path=SYSTEM, status=status, body=body)]) as bmc:
        error = await bmc.fails("boot.setBootDevice", {"device": "pxe"})
        assert error.code is ErrorCode.UNSUPPORTED
        assert error.bmc[0].text == "Never."
        assert len(boots(bmc)) <= 2


@pytest.mark.case("B21")
@without_waiting
async def test_b21_a_self_test_that_does_not_end_is_told_with_its_words() -> None:
    post = {"error": {"@Message.ExtendedInfo": [{"MessageId": "iLO.2.14.UnableToModifyDuringSystemPOST"}]}}
    async with bench(
        faults=[FaultRule(method="PATCH", path=SYSTEM, sequence=(Effect(status=400, body=post),), count=999)]
    ) as bmc:
        error = await bmc.fails("boot.setBootDevice", {"device": "pxe"})
        assert error.code is ErrorCode.CONFLICT
        assert error.bmc[0].id == "iLO.2.14.UnableToModifyDuringSystemPOST"
