"""A BMC between two states, or one that lies: busy is not absent, taken is not done, and nothing is done twice."""

import asyncio
import json
from typing import Any

import pytest

from drivers.redfish.reset_types import is_after
from drivers.redfish.service import is_surely_host
from drivers.redfish.task_view import Stage, TaskView
from protocol.errors import ErrorCode
from simulators.redfish import Drop, Effect, FaultRule, ServiceOptions
from simulators.redfish import PowerState as Simulated
from tests.drivers.redfish.harness import RESET, SYSTEM, bench, without_waiting
from tests.drivers.redfish.raw_bmc import HOST, Asked, http, raw_bench
from tests.drivers.redfish.test_power import error_body

MANAGER_RESET = "*/Actions/Manager.Reset"
BUSY_ONCE = (Effect(status=503), Effect(status=503))


def busy_at(path: str, *, always: bool = False) -> FaultRule:
    """The resource is busy for two requests, or for good."""
    return FaultRule(method="GET", path=path, status=503) if always else FaultRule(path=path, sequence=BUSY_ONCE)


# --- busy is not absent (the kind of B37) ---

READS: dict[str, tuple[str, dict[str, Any]]] = {
    "*/VirtualMedia": ("virtual-media.listMedia", {}),
    "*/VirtualMedia/*": ("virtual-media.insertMedia", {"image": "http://192.0.2.1/a.iso"}),
    "*/LogServices": ("management.getEventLog", {}),
    "*/LogServices/SEL": ("management.clearEventLog", {}),
    "/redfish/v1/Chassis/*": ("management.getSensors", {}),
    "/redfish/v1/Systems": ("power.getPower", {}),
    SYSTEM: ("power.setPower", {"action": "off"}),
}


@pytest.mark.parametrize("path", READS)
@without_waiting
async def test_a_resource_that_is_busy_for_a_moment_is_not_taken_for_absent(path: str) -> None:
    operation, arguments = READS[path]
    async with bench() as plain:
        right = await plain(operation, arguments)
    async with bench(faults=[busy_at(path)]) as bmc:
        assert await bmc(operation, arguments) == right


@pytest.mark.parametrize("operation", ["virtual-media.listMedia", "virtual-media.ejectMedia"])
@without_waiting
async def test_slots_that_stay_busy_are_busy_and_not_missing_or_empty(operation: str) -> None:
    async with bench(faults=[busy_at("*/VirtualMedia/*", always=True)]) as bmc:
        error = await bmc.fails(operation, timeout=300)
        assert error.code is ErrorCode.BUSY
        assert error.code.retryable


@without_waiting
async def test_a_filled_slot_that_is_busy_when_looked_at_is_ejected_all_the_same() -> None:
    async with bench() as bmc:
        await bmc("virtual-media.insertMedia", {"image": "http://192.0.2.1/a.iso"})
        bmc.bmc.faults.add(busy_at("*/VirtualMedia/*"))
        assert (await bmc("virtual-media.ejectMedia"))["ejected"] != []


@without_waiting
async def test_managers_that_were_busy_once_are_looked_for_again() -> None:
    manager: dict[str, Any] = {"Links": {"ManagedBy": []}}
    async with bench(faults=[FaultRule(path=SYSTEM, merge=manager)]) as bmc:
        name = bmc.bmc.faults.add(busy_at("/redfish/v1/Managers", always=True))
        await bmc.fails("management.getInfo", timeout=200)
        bmc.bmc.faults.remove(name)
        assert (await bmc("management.getInfo"))["bmcVersion"] is not None


# --- the host among several systems ---


def two_systems(board: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [("/redfish/v1/Systems/HGX_Baseboard_0", {"@odata.id": "/redfish/v1/Systems/HGX_Baseboard_0", **board})]


@pytest.mark.parametrize("status", [503, 500, 404])
@without_waiting
async def test_an_order_never_goes_to_a_board_because_the_host_could_not_be_read(status: int) -> None:
    board = {"Actions": {"#ComputerSystem.Reset": {"target": "/redfish/v1/Systems/HGX/Reset"}}, "PowerState": "On"}
    listed = [{"@odata.id": SYSTEM}, {"@odata.id": "/redfish/v1/Systems/HGX_Baseboard_0"}]
    async with bench() as bmc:
        for path, document in two_systems(board):
            bmc.bmc.state.put(path, document)
        bmc.bmc.state.patch("/redfish/v1/Systems", {"Members": listed})
        name = bmc.bmc.faults.add(FaultRule(path=SYSTEM, status=status))
        await bmc.fails("power.setPower", {"action": "reset"}, timeout=300)
        assert [path for path in bmc.requests("POST") if "Reset" in path] == []
        bmc.bmc.faults.remove(name)
        await bmc("power.setPower", {"action": "reset"})
        assert [path for path in bmc.requests("POST") if "HGX" in path] == []


def test_a_host_is_what_can_be_switched_and_booted() -> None:
    host = {"Actions": {"#ComputerSystem.Reset": {"target": "/x"}}, "Boot": {"BootOrder": []}}
    assert is_surely_host("/redfish/v1/Systems/1", host)
    assert not is_surely_host("/redfish/v1/Systems/HGX_Baseboard_0", host)
    assert not is_surely_host("/redfish/v1/Systems/1", {"Boot": {"BootOrder": []}})


@without_waiting
async def test_a_system_that_is_listed_and_missing_for_a_while_is_waited_for() -> None:
    gone = FaultRule(path=SYSTEM, sequence=(Effect(status=404),) * 3)
    async with bench(faults=[gone]) as bmc:
        assert (await bmc("power.getPower"))["state"] == "on"


@without_waiting
async def test_a_system_that_stays_missing_may_come_back_so_that_trying_again_can_help() -> None:
    async with bench(faults=[FaultRule(path=SYSTEM, status=404)]) as bmc:
        error = await bmc.fails("power.getPower")
        assert error.code is ErrorCode.BUSY
        assert SYSTEM in error.message


# --- taken is not done (the kind of B26 and B42) ---


@pytest.mark.parametrize(
    "task",
    [
        {"TaskState": "Exception", "Messages": [{"MessageId": "X.1.0.Locked", "Message": "the host is locked"}]},
        {"TaskState": "Killed", "TaskStatus": "Critical", "Messages": [{"Message": "the host is locked"}]},
        {"TaskState": "Completed", "Messages": [{"Severity": "Critical", "Message": "the host is locked"}]},
    ],
)
@pytest.mark.parametrize("action", ["reset", "cycle", "off"])
@without_waiting
async def test_a_power_order_whose_task_fails_has_not_happened_and_says_why(
    action: str, task: dict[str, Any]
) -> None:
    path = "/redfish/v1/TaskService/Tasks/77"
    order = FaultRule(method="POST", path=RESET, status=202, body={"@odata.id": path, "TaskState": "New"})
    async with bench(faults=[order]) as bmc:
        bmc.bmc.state.put(path, {"@odata.id": path, **task})
        error = await bmc.fails("power.setPower", {"action": action}, timeout=400)
        assert error.code is ErrorCode.NOT_APPLIED
        assert [said.text for said in error.bmc] == ["the host is locked"]
        assert len(bmc.requests("POST", RESET)) == 1


@pytest.mark.parametrize("state", ["New", "Running", "Interrupted", "Suspended", "Scheduled", "Service"])
def test_a_task_that_is_not_over_has_not_failed(state: str) -> None:
    assert TaskView.of({"TaskState": state}).stage not in (Stage.FAILED, Stage.DONE)


@pytest.mark.parametrize(
    ("operation", "arguments", "method"),
    [
        ("power.setPower", {"action": "off"}, "POST"),
        ("boot.setBootDevice", {"device": "pxe"}, "PATCH"),
        ("management.setIndicator", {"state": "on"}, "PATCH"),
        ("virtual-media.insertMedia", {"image": "http://192.0.2.1/a.iso"}, "POST"),
    ],
)
@without_waiting
async def test_a_yes_that_holds_a_no_is_told_in_the_bmc_s_words(
    operation: str, arguments: dict[str, Any], method: str
) -> None:
    no = {"error": {"@Message.ExtendedInfo": [{"MessageId": "X.1.0.Policy", "Message": "forbidden by policy"}]}}
    rule = FaultRule(method=method, path=f"{SYSTEM}*", status=200, body=no)
    other = FaultRule(method=method, path="/redfish/v1/[MC]*", status=200, body=no)
    async with bench(faults=[rule, other]) as bmc:
        error = await bmc.fails(operation, arguments, timeout=400)
        assert error.code is ErrorCode.NOT_APPLIED
        assert [said.text for said in error.bmc] == ["forbidden by policy"]


# --- nothing twice (the kind of B28) ---


@pytest.mark.parametrize("status", [500, 502, 503, 504])
@without_waiting
async def test_a_bmc_that_restarts_under_the_order_and_says_so_badly_has_restarted(status: int) -> None:
    """The web server outlives the service behind it by a moment; the order must not look as if it were not given."""
    order = FaultRule(method="POST", path=MANAGER_RESET, status=status, execute=True)
    async with bench(faults=[order], options=ServiceOptions()) as bmc:
        result = await bmc("management.resetBmc")
        assert result["secondsAway"] >= 0
        assert len(bmc.requests("POST", MANAGER_RESET)) == 1


@pytest.mark.parametrize("status", [500, 503])
@without_waiting
async def test_a_bmc_restart_that_ends_in_a_server_error_and_is_never_seen_is_unknown(status: int) -> None:
    body = error_body("X.1.0.Internal", "the watchdog bit")
    body = body if status == 500 else {}
    async with bench(faults=[FaultRule(method="POST", path=MANAGER_RESET, status=status, body=body)]) as bmc:
        error = await bmc.fails("management.resetBmc")
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert str(status) in error.message
        assert len(bmc.requests("POST", MANAGER_RESET)) == 1


BUTTON_ONLY = {"#ComputerSystem.Reset": {"ResetType@Redfish.AllowableValues": ["PushPowerButton"]}}


@pytest.mark.parametrize("effect", [Effect(status=503, execute=True), Effect(status=500, execute=True)])
@without_waiting
async def test_a_power_button_that_may_have_been_pressed_is_not_pressed_again(effect: Effect) -> None:
    press = FaultRule(method="POST", path=RESET, sequence=(effect,))
    async with bench(
        faults=[FaultRule(path=SYSTEM, merge={"Actions": BUTTON_ONLY}), press],
        options=ServiceOptions(graceful_off_seconds=60, power_off_seconds=60),
    ) as bmc:
        await bmc("power.setPower", {"action": "softOff", "softTimeout": 120}, timeout=500)
        assert len(bmc.requests("POST", RESET)) == 1


@without_waiting
async def test_a_button_that_was_refused_is_not_pressed_once_somebody_else_has_switched_off() -> None:
    refused = FaultRule(
        method="POST", path=RESET, status=409, body=error_body("X.1.0.ResourceInUse", "busy"), count=1
    )
    async with bench(faults=[FaultRule(path=SYSTEM, merge={"Actions": BUTTON_ONLY}), refused]) as bmc:
        soft = asyncio.create_task(bmc("power.setPower", {"action": "softOff"}, timeout=500))
        while not bmc.requests("POST", RESET):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        bmc.bmc.state.set_power(Simulated.OFF)
        assert (await soft)["state"] == "off"
        assert len(bmc.requests("POST", RESET)) == 1


ON = {"PowerState": "On"}
STAMP = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (ON, {**ON, "LastResetTime": STAMP}),
        (ON, {**ON, "BootProgress": {"LastState": "OSBootStarted"}}),
        ({**ON, "LastResetTime": STAMP}, ON),
        ({**ON, "BootProgress": {"LastState": "OSRunning"}}, ON),
        ({**ON, "BootProgress": None}, {**ON, "BootProgress": {"LastState": "None"}}),
        (ON, {**ON, "Oem": {"Hpe": {"PostState": "InPostDiscoveryComplete"}}}),
    ],
)
def test_a_property_that_was_left_out_in_one_reading_proves_no_restart(
    before: dict[str, Any], now: dict[str, Any]
) -> None:
    assert not is_after(before, now)


@without_waiting
async def test_a_lost_reset_is_not_proven_by_a_reading_that_had_left_something_out() -> None:
    first = FaultRule(path=SYSTEM, method="GET", merge={"LastResetTime": None}, count=2)
    lost = FaultRule(method="POST", path=RESET, drop=Drop.BEFORE)
    async with bench(faults=[first, lost]) as bmc:
        bmc.bmc.state.patch(SYSTEM, {"LastResetTime": STAMP})
        error = await bmc.fails("power.setPower", {"action": "reset"}, timeout=300)
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert bmc.bmc.state.resets == []


# --- virtual media: every slot counts, every image once ---


@without_waiting
async def test_an_image_that_comes_late_after_a_server_error_is_not_inserted_again() -> None:
    slow = FaultRule(method="POST", path="*InsertMedia", status=500, execute=True)
    async with bench(faults=[slow]) as bmc:
        slots = (await bmc("virtual-media.listMedia"))["slots"]
        look = {"Inserted": False, "Image": None}
        name = bmc.bmc.faults.add(
            FaultRule(
                method="GET",
                path="*/VirtualMedia/*",
                set={f"/{key}": look[key] for key in look},
                count=len(slots) + 1,
            )
        )
        result = await bmc("virtual-media.insertMedia", {"image": "http://192.0.2.1/a.iso"})
        assert result["image"] == "http://192.0.2.1/a.iso"
        assert len(bmc.requests("POST", "*InsertMedia")) == 1
        bmc.bmc.faults.remove(name)


@without_waiting
async def test_an_image_s_login_that_a_bmc_shows_is_not_shown_on() -> None:
    shown = {"/Image": "https://reader:S3cret-of-image@192.0.2.1/a.iso", "/Inserted": True}
    async with bench(faults=[FaultRule(method="GET", path="*/VirtualMedia/*", set=shown)]) as bmc:
        listed = await bmc("virtual-media.listMedia")
        assert "S3cret" not in str(listed)
        assert listed["slots"][0]["image"] == "https://192.0.2.1/a.iso"


@pytest.mark.parametrize(
    "image", ["http://[::1/a.iso", "http://h:99999/a.iso", "http://h/a b.iso", "http://h/a\n.iso"]
)
@without_waiting
async def test_an_image_address_that_is_none_says_what_one_looks_like(image: str) -> None:
    async with bench() as bmc:
        error = await bmc.fails("virtual-media.insertMedia", {"image": image})
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert "http://" in error.message


@pytest.mark.parametrize("image", ["http://[::1/a.iso", "²", "file:///\u0000", "\\\\host\\share\\a.iso"])
@without_waiting
async def test_a_slot_that_shows_nonsense_is_replaced(image: str) -> None:
    async with bench() as bmc:
        await bmc("virtual-media.insertMedia", {"image": "http://192.0.2.1/old.iso"})
        name = bmc.bmc.faults.add(
            FaultRule(method="GET", path="*/VirtualMedia/*", set={"/Image": image, "/Id": "²"}, count=4)
        )
        result = await bmc("virtual-media.insertMedia", {"image": "http://192.0.2.1/new.iso"})
        assert result["image"] == "http://192.0.2.1/new.iso"
        bmc.bmc.faults.remove(name)


# --- boot: what was not asked for stays (the kind of B17) ---


@pytest.mark.case("B17")
@pytest.mark.parametrize("legacy", ["Legacy", "BIOS"])
@pytest.mark.parametrize("device", ["pxe", "disk", "usb"])
@without_waiting
async def test_an_override_without_a_mode_does_not_end_in_another_mode(device: str, legacy: str) -> None:
    """Whoever made the BMC: the mode is read back, and set back once."""
    boot: dict[str, Any] = {
        "BootSourceOverrideEnabled": "Disabled",
        "BootSourceOverrideTarget": "None",
        "BootSourceOverrideMode": "UEFI",
        "BootSourceOverrideTarget@Redfish.AllowableValues": ["None", "Pxe", "Hdd", "Usb"],
    }

    def write(asked: Asked) -> bytes:
        boot.update({"BootSourceOverrideMode": legacy, **json.loads(asked.body)["Boot"]})
        return http(status="204 No Content")

    async with raw_bench({f"GET {SYSTEM}": lambda _: http({**HOST, "Boot": boot}), f"PATCH {SYSTEM}": write}) as bmc:
        result = await bmc("boot.setBootDevice", device=device)
        assert (result["target"], result["mode"], boot["BootSourceOverrideMode"]) == (device, "uefi", "UEFI")
        assert len(bmc.bmc.paths("PATCH")) == 2


@pytest.mark.case("B17")
@without_waiting
async def test_a_bmc_that_cannot_keep_the_mode_is_told_on_and_not_written_to_for_ever() -> None:
    boot: dict[str, Any] = {"BootSourceOverrideTarget": "None", "BootSourceOverrideMode": "UEFI"}

    def write(asked: Asked) -> bytes:
        boot.update({**json.loads(asked.body)["Boot"], "BootSourceOverrideMode": "Legacy"})
        return http(status="204 No Content")

    async with raw_bench({f"GET {SYSTEM}": lambda _: http({**HOST, "Boot": boot}), f"PATCH {SYSTEM}": write}) as bmc:
        error = await bmc.fails("boot.setBootDevice", timeout=300, device="pxe")
        assert error.code is ErrorCode.NOT_APPLIED
        assert len(bmc.bmc.paths("PATCH")) == 2
