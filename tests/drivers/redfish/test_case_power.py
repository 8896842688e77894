"""Power, logins, tags and half-broken services: the cases B23 to B37, and others of their kinds."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from drivers.redfish import etag
from protocol.errors import ErrorCode, OperationError
from simulators.redfish import Effect, FaultRule, ServiceOptions
from simulators.redfish import PowerState as Simulated
from tests.drivers.ends import ended
from tests.drivers.redfish.every_operation import CHANGES, READS, perform, recorded
from tests.drivers.redfish.harness import RESET, SESSIONS, SYSTEM, Bench, bench, without_waiting
from tests.drivers.redfish.test_every_request import NOT_HERE
from tests.drivers.redfish.test_tolerance import FAULTS

SYS518 = {
    "error": {
        "code": "Base.1.12.GeneralError",
        "@Message.ExtendedInfo": [
            {
                "MessageId": "IDRAC.2.8.SYS518",
                "Message": "iDRAC is currently unable to display any information: data sources are unavailable.",
            }
        ],
    }
}


def note(key: str, text: str = "", *args: str) -> dict[str, Any]:
    return {"error": {"@Message.ExtendedInfo": [{"MessageId": key, "Message": text, "MessageArgs": list(args)}]}}


def orders(bmc: Bench) -> list[str]:
    return [str(reset.reset_type) for reset in bmc.bmc.state.resets]


# Power


@pytest.mark.case("B23")
@pytest.mark.parametrize("first", [None, "Reset", "Unknown", "PoweringOn", "", "on ", "ON"])
@pytest.mark.parametrize("second", [None, "PoweringOn", "Reset"])
@without_waiting
async def test_b23_a_machine_between_two_states_is_never_told_as_off(first: object, second: object) -> None:
    words = tuple(Effect(set={"/PowerState": word}) for word in (first, second))
    async with bench(faults=[FaultRule(method="GET", path=SYSTEM, sequence=words)]) as bmc:
        seen = [(await bmc("power.getPower"))["state"] for _ in range(3)]
        assert "off" not in seen
        assert seen[1] != "on"
        assert seen[2] == "on"


@pytest.mark.case("B24")
@pytest.mark.parametrize("status", [400, 409, 500, 503])
@without_waiting
async def test_b24_on_is_asked_for_again_for_three_quarters_of_a_minute(status: int) -> None:
    clock = asyncio.get_running_loop().time
    async with bench() as bmc:
        await bmc("power.setPower", {"action": "off"})
        opened = clock() + 45
        bmc.bmc.faults.add(FaultRule(name="no", method="POST", path=RESET, status=status, body=SYS518))
        running = asyncio.create_task(bmc("power.setPower", {"action": "on"}))
        await asyncio.sleep(opened - clock())
        bmc.bmc.faults.remove("no")
        assert (await running)["state"] == "on"
        assert orders(bmc) == ["ForceOff", "On"]


@pytest.mark.case("B24")
@without_waiting
async def test_b24_on_is_not_asked_for_again_once_somebody_else_did_it() -> None:
    async with bench() as bmc:
        bmc.bmc.state.set_power(Simulated.OFF)
        bmc.bmc.faults.add(FaultRule(method="POST", path=RESET, status=409, body=note("Base.1.8.ResourceInUse")))
        running = asyncio.create_task(bmc("power.setPower", {"action": "on"}))
        await asyncio.sleep(10)
        bmc.bmc.state.set_power(Simulated.ON)
        assert (await running) == {"state": "on", "changed": False, "verbUsed": "On", "forced": False}
        assert orders(bmc) == []


@pytest.mark.case("B24", "B37")
@pytest.mark.parametrize("status", [500, 503])
@pytest.mark.parametrize("operation", ["power.getPower", "power.setPower", "boot.getBoot", "boot.setBootDevice"])
@without_waiting
async def test_b24_data_sources_that_are_unavailable_for_a_while_are_waited_for(
    operation: str, status: int, tmp_path: Path
) -> None:
    async with bench(faults=[FaultRule(path="/redfish/v1/Systems*", count=5, status=status, body=SYS518)]) as bmc:
        assert await perform(operation, bmc, image=tmp_path)


@pytest.mark.case("B25")
@pytest.mark.parametrize("action", ["on", "off", "softOff"])
@pytest.mark.parametrize("status", [400, 409, 500])
@pytest.mark.parametrize(
    "body",
    [
        note("Base.1.8.GeneralError", "The system is already in the requested state."),
        note("iLO.2.14.InvalidOperationForSystemState"),
        {"error": {"message": "Host is already powered"}},
        "already in this state",
        {},
    ],
)
@without_waiting
async def test_b25_a_refusal_of_what_is_so_by_now_is_success(action: str, status: int, body: Any) -> None:
    now, stale = (Simulated.ON, "Off") if action == "on" else (Simulated.OFF, "On")
    async with bench() as bmc:
        bmc.bmc.state.set_power(now)
        bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, count=1, set={"/PowerState": stale}))
        bmc.bmc.faults.add(FaultRule(method="POST", path=RESET, status=status, body=body))
        result = await bmc("power.setPower", {"action": action})
        assert result["state"] == ("on" if action == "on" else "off")
        assert len(bmc.requests("POST", RESET)) == 1


@pytest.mark.case("B26")
@pytest.mark.parametrize(
    ("listed", "action", "sent"),
    [
        (["On", "ForceOff", "GracefulShutdown"], "softOff", ["GracefulShutdown"]),
        (["On", "ForceOff", "PushPowerButton"], "softOff", ["PushPowerButton"]),
        (["On", "ForceOff"], "softOff", ["ForceOff"]),
        (["On", "ForceOff"], "cycle", ["ForceOff", "On"]),
        (["On", "ForceOff", "GracefulRestart"], "reset", ["ForceOff", "On"]),
        (["On", "ForceOff", "ForceRestart"], "cycle", ["ForceRestart"]),
        (["On", "ForceOff", "PowerCycle"], "reset", ["PowerCycle"]),
    ],
)
@without_waiting
async def test_b26_only_what_is_listed_is_sent(listed: list[str], action: str, sent: list[str]) -> None:
    async with bench() as bmc:
        values = {"ResetType@Redfish.AllowableValues": listed}
        bmc.bmc.state.patch(SYSTEM, {"Actions": {"#ComputerSystem.Reset": values}})
        await bmc("power.setPower", {"action": action})
        assert orders(bmc) == sent


@pytest.mark.case("B26")
@without_waiting
async def test_b26_a_restart_that_the_host_ignores_is_told_as_the_order_that_was_given() -> None:
    async with bench(options=ServiceOptions(ignores_restart=True)) as bmc:
        result = await bmc("power.setPower", {"action": "reset"})
        assert (result["verbUsed"], result["changed"]) == ("ForceRestart", True)
        assert len(bmc.requests("POST", RESET)) == 1


# Tags


@pytest.mark.case("B29")
@pytest.mark.parametrize("operation", [o for o in CHANGES if o not in NOT_HERE])
@without_waiting
async def test_b29_no_order_carries_a_tag(operation: str, tmp_path: Path) -> None:
    image = tmp_path / "bmc-2.14.0.bin"
    image.write_bytes(b"firmware")
    with_tag = FaultRule(method="POST,DELETE", match_headers={"If-Match": "*"}, status=412)
    async with bench(recorded(None), faults=[with_tag]) as bmc:
        await perform(operation, bmc, image=image)
        assert not any("If-Match" in entry.headers for entry in bmc.bmc.journal if entry.method != "PATCH")


@pytest.mark.case("B30")
@pytest.mark.parametrize(
    ("sent", "normal"),
    [
        ('W/"1"', 'W/"1"'),
        ('w/"1"', 'W/"1"'),
        ("W/1", 'W/"1"'),
        ("1", '"1"'),
        ('""1""', '"1"'),
        ('W/""1""', 'W/"1"'),
        ('"1-gzip"', '"1"'),
        ('W/"1-gzip"', 'W/"1"'),
        ('"1--gzip"', '"1"'),
        ('"a-b"', '"a-b"'),
        ('"a,b"', '"a,b"'),
        ('"', None),
        ('""', None),
        ('W/""', None),
        ("", None),
        (" ", None),
    ],
)
def test_b30_a_tag_has_one_form_however_it_was_sent(sent: str, normal: str | None) -> None:
    assert etag.normal(sent) == normal


@pytest.mark.case("B30")
@without_waiting
async def test_b30_a_tag_of_one_resource_goes_to_no_other() -> None:
    async with bench(options=ServiceOptions(require_etag=True)) as bmc:
        await bmc("boot.setBootDevice", {"device": "pxe"})
        await bmc("boot.setSecureBoot", {"enabled": True})
        await bmc("management.setIndicator", {"state": "on"})
        await bmc("power.setPower", {"action": "off"})
        tags: dict[str, set[str]] = {}
        for entry in bmc.bmc.journal:
            if "If-Match" in entry.headers:
                tags.setdefault(entry.path, set()).add(entry.headers["If-Match"])
            assert entry.method == "PATCH" or "If-Match" not in entry.headers
        assert len(tags) >= 2
        assert not set.intersection(*tags.values())


# Logins


@pytest.mark.case("B32")
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
@without_waiting
async def test_b32_a_login_that_meets_a_bmc_that_starts_is_tried_again_or_told(status: int) -> None:
    async with bench(faults=[FaultRule(method="POST", path=SESSIONS, count=1, status=status)]) as bmc:
        if status == 500:
            # It may have looked at the password, so that a further try counts.
            assert (await bmc.fails("power.getPower")).code is ErrorCode.BMC_ERROR
        assert (await bmc("power.getPower"))["state"] == "on"
        assert {entry.login for entry in bmc.bmc.journal.entries("GET", SYSTEM)} == {"session"}


@pytest.mark.case("B32")
@pytest.mark.parametrize("status", [401, 403, 404, 500])
@without_waiting
async def test_b32_a_logout_that_is_refused_is_let_be(status: int) -> None:
    async with bench(faults=[FaultRule(method="DELETE", path=f"{SESSIONS}/*", status=status)]) as bmc:
        await bmc("power.getPower")
        await bmc.drivers.aclose()
        assert len(bmc.requests("DELETE")) == 1


LICENCES = {
    "Supermicro, by its id": note("SMC.1.0.OemLicenseNotPassed", "Not licensed to perform this request.", "DCMS"),
    "Supermicro, in words": note("", "Not licensed to perform this request. The following licenses DCMS were needed"),
    "Supermicro, by its product key": note("Base.1.8.GeneralError", "License SFT-OOB-LIC is not activated"),
    "Supermicro, single": note("Base.1.8.GeneralError", "The SFT-DCMS-SINGLE license was not found"),
    "HPE": note("iLO.2.14.LicenseKeyRequired", "x"),
    "Dell": note("IDRAC.2.8.LIC501", "A required license is missing or expired."),
    "Lenovo": note("ExtendedError.1.1.FeatureNotLicensed", "x"),
    "in the error itself": {"error": {"code": "SMC.1.0.OemLicenseNotPassed", "message": "No."}},
}


@pytest.mark.case("B35")
@pytest.mark.parametrize("status", [400, 401, 403, 405])
@pytest.mark.parametrize("body", LICENCES.values(), ids=LICENCES.keys())
@without_waiting
async def test_b35_a_missing_licence_is_no_login_fault_and_is_not_asked_for_again(
    body: dict[str, Any], status: int
) -> None:
    path = f"{SYSTEM}/SecureBoot"
    async with bench(faults=[FaultRule(path=path, status=status, body=body)]) as bmc:
        for _ in range(3):
            error = await bmc.fails("boot.getSecureBoot")
            assert error.code is ErrorCode.LICENSE_REQUIRED, error
            assert error.bmc
        assert len(bmc.requests("GET", path)) == 1
        assert bmc.bmc.state.sessions_created == 1


@pytest.mark.case("B35")
@pytest.mark.parametrize(
    ("operation", "method", "path"),
    [
        ("virtual-media.insertMedia", "POST", "*InsertMedia"),
        ("boot.setBootDevice", "PATCH", SYSTEM),
        ("bios.setBios", "PATCH", "*/Bios/Settings"),
        ("firmware.updateFirmware", "POST", "/redfish/v1/UpdateService/*"),
        ("raid.createVolume", "POST", "*/Volumes"),
        ("config.setConfig", "PATCH", "*/NetworkProtocol"),
    ],
)
@without_waiting
async def test_b35_a_change_that_needs_a_licence_says_so(
    operation: str, method: str, path: str, tmp_path: Path
) -> None:
    image = tmp_path / "bmc-2.14.0.bin"
    image.write_bytes(b"firmware")
    rule = FaultRule(method=method, path=path, status=403, body=LICENCES["Supermicro, by its id"])
    async with bench(faults=[rule]) as bmc:
        with pytest.raises(OperationError) as caught:
            await perform(operation, bmc, image=image)
        assert caught.value.code is ErrorCode.LICENSE_REQUIRED
        assert len(bmc.requests(method, path)) <= 2


# A service that is half broken


@pytest.mark.case("B37")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
@without_waiting
async def test_b37_every_reading_lives_with(fault: FaultRule, tmp_path: Path) -> None:
    async with bench(recorded(None), faults=[fault]) as bmc:
        for operation in READS:
            end = await ended(perform(operation, bmc, image=tmp_path))
            if isinstance(end, OperationError):
                assert "failed in the driver" not in end.message
                assert end.code in (ErrorCode.UNSUPPORTED, ErrorCode.BUSY, ErrorCode.BMC_ERROR), (operation, end)
