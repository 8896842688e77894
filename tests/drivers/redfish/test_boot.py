"""The boot override, the order and Secure Boot: written where they belong, and read back."""

from typing import Any

import pytest

from drivers.redfish.boot_override import BootView, as_written, full, targets_for, wanted_override
from drivers.redfish.manners import Manners
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.boot import BootDevice, BootMode, SetBootDevice
from simulators.redfish import Drop, FaultRule
from tests.drivers.redfish.harness import SYSTEM, Bench, bench, without_waiting

ENABLED, TARGET, MODE = "BootSourceOverrideEnabled", "BootSourceOverrideTarget", "BootSourceOverrideMode"
SETTINGS = f"{SYSTEM}/Settings"
NORMAL = {ENABLED: "Disabled", TARGET: "None", MODE: "UEFI"}
LISTED = {f"{TARGET}@Redfish.AllowableValues": ["None", "Pxe", "Hdd", "Cd", "UsbCd"]}


def view(system: dict[str, Any], settings: dict[str, Any] | None = None) -> BootView:
    return BootView.of({"Boot": system}, None if settings is None else {"Boot": settings})


def written(
    arguments: SetBootDevice, boot: BootView, manners: Manners | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    manners = manners or Manners()
    target = targets_for(arguments.device, arguments.mode, boot, manners)[0]
    return as_written(wanted_override(arguments, target, boot, manners), boot)


PXE_ONCE = {ENABLED: "Once", TARGET: "Pxe"}


@pytest.mark.case("B14")
@pytest.mark.parametrize(
    ("system", "settings", "to_system", "to_settings"),
    [
        (NORMAL, None, PXE_ONCE, {}),
        (NORMAL, {"BootOrder": [], MODE: None}, PXE_ONCE, {}),
        (NORMAL, {"BootOrder": ["Boot0003"]}, PXE_ONCE, {}),
        (NORMAL, {**NORMAL, MODE: None}, {}, PXE_ONCE),
        ({"BootOrder": []}, {**NORMAL, **LISTED}, {}, PXE_ONCE),
        ({ENABLED: "Disabled"}, {TARGET: "None"}, {ENABLED: "Once"}, {TARGET: "Pxe"}),
    ],
)
def test_each_part_goes_to_the_settings_object_only_where_the_override_is_kept_there(
    system: dict[str, Any], settings: dict[str, Any] | None, to_system: dict[str, Any], to_settings: dict[str, Any]
) -> None:
    boot = view(system, settings)
    assert written(SetBootDevice(device=BootDevice.PXE), boot) == (to_system, to_settings)


@pytest.mark.case("B15")
def test_values_that_only_the_settings_object_lists_are_known() -> None:
    boot = view(NORMAL, {**NORMAL, **LISTED})
    assert boot.allowed(TARGET) == ["None", "Pxe", "Hdd", "Cd", "UsbCd"]
    assert targets_for(BootDevice.DISK, None, boot, Manners()) == ["Hdd"]
    assert view({}, None).allowed(TARGET) == []


@pytest.mark.case("B17")
def test_the_mode_is_sent_again_only_where_the_vendor_needs_it() -> None:
    boot = view(NORMAL)
    assert written(SetBootDevice(device=BootDevice.PXE), boot)[0] == PXE_ONCE
    resent = written(SetBootDevice(device=BootDevice.PXE), boot, Manners(resend_mode=True))[0]
    assert resent == {**PXE_ONCE, MODE: "UEFI"}
    assert written(SetBootDevice(device=BootDevice.PXE, mode=BootMode.UEFI), boot)[0] == PXE_ONCE
    changed = written(SetBootDevice(device=BootDevice.PXE, mode=BootMode.BIOS), boot)[0]
    assert changed == {**PXE_ONCE, MODE: "Legacy"}


@pytest.mark.case("B18")
@pytest.mark.parametrize("now", [None, "UEFI", "Legacy"])
def test_a_full_override_has_all_three_parts_and_never_null(now: str | None) -> None:
    boot = view({**NORMAL, MODE: now})
    body = written(SetBootDevice(device=BootDevice.PXE), boot, Manners(full_override=True))[0]
    assert body == {**PXE_ONCE, MODE: now or "UEFI"}
    plain = wanted_override(SetBootDevice(device=BootDevice.PXE), "Pxe", boot, Manners())
    assert full(plain, boot).mode == (now or "UEFI")


@pytest.mark.case("B19")
def test_a_virtual_cd_has_the_vendor_s_name() -> None:
    boot = view({**NORMAL, **LISTED})
    assert targets_for(BootDevice.CD, None, boot, Manners()) == ["Cd", "UsbCd"]
    assert targets_for(BootDevice.CD, None, boot, Manners(cd_targets=("UsbCd", "Cd"))) == ["UsbCd", "Cd"]


def test_a_bmc_without_a_mode_says_it_in_the_target() -> None:
    boot = view({ENABLED: "Disabled", f"{TARGET}@Redfish.AllowableValues": ["CD/DVD", "UefiCd", "Pxe"]})
    assert targets_for(BootDevice.CD, BootMode.UEFI, boot, Manners()) == ["UefiCd"]
    assert targets_for(BootDevice.CD, BootMode.BIOS, boot, Manners()) == ["CD/DVD"]
    assert targets_for(BootDevice.PXE, BootMode.UEFI, boot, Manners()) == ["Pxe"]


def test_what_a_bmc_does_not_list_is_unsupported_and_the_list_is_shown() -> None:
    with pytest.raises(OperationError, match="it lists None, Pxe, Hdd, Cd, UsbCd") as caught:
        targets_for(BootDevice.UEFI_HTTP, None, view({**NORMAL, **LISTED}), Manners())
    assert caught.value.code is ErrorCode.UNSUPPORTED


def test_a_lasting_override_that_a_bmc_lacks_holds_once_and_says_so() -> None:
    boot = view({**NORMAL, f"{ENABLED}@Redfish.AllowableValues": ["Once", "Disabled"]})
    wanted = wanted_override(SetBootDevice(device=BootDevice.PXE, persistent=True), "Pxe", boot, Manners())
    assert (wanted.enabled, wanted.persistent_supported) == ("Once", False)


async def settings_own_the_override(bmc: Bench) -> None:
    bmc.bmc.state.put(SETTINGS, {"@odata.id": SETTINGS, "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem"})
    bmc.bmc.state.patch(SETTINGS, {"Id": "Settings", "Name": "Settings", "Boot": dict(NORMAL)})
    bmc.bmc.state.patch(SYSTEM, {"@Redfish.Settings": {"SettingsObject": {"@odata.id": SETTINGS}}})


@pytest.mark.case("B14")
@without_waiting
async def test_an_override_on_the_settings_object_is_written_and_read_there() -> None:
    async with bench() as bmc:
        await settings_own_the_override(bmc)
        result = await bmc("boot.setBootDevice", {"device": "pxe", "persistent": True})
        assert (result["target"], result["enabled"]) == ("pxe", "continuous")
        assert bmc.requests("PATCH") == [SETTINGS]
        assert (await bmc("boot.getBoot"))["target"] == "pxe"


def refusal(key: str, text: str = "") -> dict[str, object]:
    return {"error": {"@Message.ExtendedInfo": [{"MessageId": f"X.1.0.{key}", "Message": text}]}}


@pytest.mark.case("B14")
@pytest.mark.parametrize(
    "body",
    [
        refusal("PropertyNotWritable"),
        refusal("OperationSupportedInFutureStateURI", f"send it to {SETTINGS}"),
        refusal("GeneralError", "The property is read-only."),
    ],
)
@without_waiting
async def test_where_the_bmc_says_that_this_is_not_the_place_the_other_is_tried_once(body: dict[str, object]) -> None:
    async with bench() as bmc:
        await settings_own_the_override(bmc)
        bmc.bmc.state.edit(SETTINGS, lambda document: document["Boot"].pop(TARGET))
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SYSTEM, status=400, body=body))
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SETTINGS, status=200, body={}))
        error = await bmc.fails("boot.setBootDevice", {"device": "pxe"}, timeout=30)
        assert error.code is ErrorCode.NOT_APPLIED
        assert bmc.requests("PATCH") == [SYSTEM, SETTINGS]


@pytest.mark.case("B14")
@without_waiting
async def test_a_settings_object_that_refuses_sends_the_override_to_the_system() -> None:
    async with bench() as bmc:
        await settings_own_the_override(bmc)
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SETTINGS, status=400, body=refusal("PropertyNotWritable")))
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SYSTEM, status=200, body={}))
        bmc.bmc.faults.add(
            FaultRule(method="GET", path=SETTINGS, after=3, merge={"Boot": {TARGET: "Pxe", ENABLED: "Once"}})
        )
        assert (await bmc("boot.setBootDevice", {"device": "pxe"}))["target"] == "pxe"
        assert bmc.requests("PATCH") == [SETTINGS, SYSTEM]


@pytest.mark.case("B18")
@without_waiting
async def test_a_bmc_that_refuses_a_part_gets_the_whole_override() -> None:
    async with bench() as bmc:
        whole = {"Boot": {ENABLED: "Once", TARGET: "Pxe", MODE: "UEFI"}}
        bmc.bmc.faults.add(
            FaultRule(method="PATCH", path=SYSTEM, count=1, status=400, body=refusal("PropertyMissing"))
        )
        assert (await bmc("boot.setBootDevice", {"device": "pxe"}))["target"] == "pxe"
        assert bmc.bmc.journal.entries("PATCH")[-1].body == whole


@pytest.mark.case("B19")
@without_waiting
async def test_a_target_that_is_listed_and_refused_gives_way_to_the_next() -> None:
    async with bench() as bmc:
        bmc.bmc.state.patch(SYSTEM, {"Boot": {f"{TARGET}@Redfish.AllowableValues": ["None", "Cd", "UsbCd"]}})
        bmc.bmc.faults.add(
            FaultRule(
                method="PATCH",
                path=SYSTEM,
                match_body={"Boot": {TARGET: "Cd"}},
                status=400,
                body=refusal("PropertyValueNotInList"),
            )
        )
        assert (await bmc("boot.setBootDevice", {"device": "cd"}))["rawTarget"] == "UsbCd"


@pytest.mark.case("B21")
@without_waiting
async def test_a_change_during_the_self_test_is_asked_again_and_one_that_is_unsupported_is_not() -> None:
    async with bench() as bmc:
        post = refusal("UnableToModifyDuringSystemPOST")
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SYSTEM, count=5, status=400, body=post))
        assert (await bmc("boot.setBootDevice", {"device": "pxe"}))["target"] == "pxe"
        before = len(bmc.requests("PATCH"))
        bmc.bmc.faults.add(
            FaultRule(method="PATCH", path=SYSTEM, status=400, body=refusal("UnsupportedOperation", "not here"))
        )
        error = await bmc.fails("boot.setBootDevice", {"device": "disk"})
        assert error.code is ErrorCode.UNSUPPORTED
        assert error.bmc[0].text == "not here"
        assert len(bmc.requests("PATCH")) <= before + 2


@without_waiting
async def test_a_yes_that_no_reading_shows_is_not_applied() -> None:
    async with bench(faults=[FaultRule(method="PATCH", path=SYSTEM, status=200, body={})]) as bmc:
        error = await bmc.fails("boot.setBootDevice", {"device": "pxe"})
        assert error.code is ErrorCode.NOT_APPLIED
        assert "reads None (disabled)" in error.message
        assert (await bmc.fails("boot.setBootOrder", {"order": ["Boot0002"]})).code is ErrorCode.NOT_APPLIED


@without_waiting
async def test_a_change_that_shows_late_is_waited_for() -> None:
    async with bench() as bmc:
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SYSTEM, count=1, status=202, body={}))
        bmc.bmc.faults.add(
            FaultRule(method="GET", path=SYSTEM, after=5, merge={"Boot": {TARGET: "Pxe", ENABLED: "Once"}})
        )
        assert (await bmc("boot.setBootDevice", {"device": "pxe"}))["target"] == "pxe"


@pytest.mark.case("B28")
@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("boot.setBootDevice", {"device": "pxe"}),
        ("boot.setBootOrder", {"order": ["Boot0003"]}),
    ],
)
@without_waiting
async def test_a_change_whose_answer_is_lost_is_settled_by_reading(
    operation: str, arguments: dict[str, object]
) -> None:
    async with bench(faults=[FaultRule(method="PATCH", path=SYSTEM, drop=Drop.AFTER)]) as bmc:
        await bmc(operation, arguments)
        assert len(bmc.requests("PATCH")) == 1
    async with bench(faults=[FaultRule(method="PATCH", path=SYSTEM, drop=Drop.BEFORE)]) as bmc:
        assert (await bmc.fails(operation, arguments)).code is ErrorCode.OUTCOME_UNKNOWN
        assert len(bmc.requests("PATCH")) == 1


@without_waiting
async def test_a_bmc_that_shows_once_as_continuous_is_believed() -> None:
    async with bench() as bmc:
        bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, after=1, merge={"Boot": {ENABLED: "Continuous"}}))
        result = await bmc("boot.setBootDevice", {"device": "pxe"})
        assert result["enabled"] == "continuous"


@without_waiting
async def test_an_override_can_be_taken_away() -> None:
    async with bench() as bmc:
        await bmc("boot.setBootDevice", {"device": "cd", "persistent": True})
        result = await bmc("boot.setBootDevice", {"device": "none"})
        assert (result["target"], result["enabled"]) == ("none", "disabled")


@without_waiting
async def test_an_http_boot_address_goes_with_http_boot_only() -> None:
    async with bench() as bmc:
        uri = "http://192.0.2.1/boot.efi"
        result = await bmc("boot.setBootDevice", {"device": "uefiHttp", "httpBootUri": uri})
        assert (result["target"], result["httpBootUri"]) == ("uefiHttp", uri)
        error = await bmc.fails("boot.setBootDevice", {"device": "pxe", "httpBootUri": uri})
        assert error.code is ErrorCode.INVALID_ARGUMENT


@without_waiting
async def test_the_named_entries_come_first_and_none_is_lost() -> None:
    async with bench() as bmc:
        known = (await bmc("boot.getBoot"))["order"]
        result = await bmc("boot.setBootOrder", {"order": [known[-1]]})
        assert result == {"order": [known[-1], *known[:-1]], "pending": False}
        assert (await bmc("boot.getBoot"))["order"] == result["order"]


@without_waiting
async def test_an_entry_can_be_named_as_people_name_it() -> None:
    async with bench() as bmc:
        options = [
            bmc.bmc.state.document(path) or {} for path in bmc.bmc.service.store.members(f"{SYSTEM}/BootOptions")
        ]
        last = options[-1]
        result = await bmc("boot.setBootOrder", {"order": [last["DisplayName"]]})
        assert result["order"][0] == last["BootOptionReference"]


@without_waiting
async def test_an_entry_that_the_bmc_does_not_know_is_named_with_those_it_has() -> None:
    async with bench() as bmc:
        error = await bmc.fails("boot.setBootOrder", {"order": ["Boot9999"]})
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert "Boot9999" in error.message
        assert "Boot0001" in error.message
        assert bmc.requests("PATCH") == []


@without_waiting
async def test_secure_boot_is_pending_until_the_next_start() -> None:
    async with bench() as bmc:
        assert await bmc("boot.setSecureBoot", {"enabled": True}) == {"enabled": False, "pending": True}
        assert await bmc("boot.getSecureBoot") == {"enabled": False, "pending": True}
        before = len(bmc.requests("PATCH"))
        await bmc("boot.setSecureBoot", {"enabled": True})
        assert len(bmc.requests("PATCH")) == before
