"""What a service leaves out, or cannot show just now, does not keep the rest from working (case B37)."""

from typing import Any

import pytest

from drivers.redfish.service import choose_system, managers_for
from simulators.redfish import Effect, FaultRule
from tests.drivers.redfish.harness import SYSTEM, bench, without_waiting

pytestmark = pytest.mark.case("B37")
MANAGER = "/redfish/v1/Managers/1"

FAULTS: dict[str, FaultRule] = {
    "no member counts": FaultRule(method="GET", merge={"Members@odata.count": None}),
    "wrong member counts": FaultRule(method="GET", path="/redfish/v1/Systems", set={"/Members@odata.count": 0}),
    "Links is empty": FaultRule(method="GET", path=SYSTEM, set={"/Links": {}}),
    "Links is null": FaultRule(method="GET", path=SYSTEM, set={"/Links": None}),
    "ManagedBy is an empty list": FaultRule(method="GET", path=SYSTEM, merge={"Links": {"ManagedBy": []}}),
    "the first reading has no ManagedBy": FaultRule(
        method="GET", path=SYSTEM, sequence=(Effect(merge={"Links": {"ManagedBy": None}}), Effect())
    ),
    "UUID is empty": FaultRule(method="GET", path=SYSTEM, merge={"UUID": ""}),
    "times are zeros": FaultRule(
        method="GET", path="/redfish/v1/*", merge={"LastResetTime": "0000-00-00T00:00:00+00:00"}
    ),
    "Members of the managers is null": FaultRule(method="GET", path="/redfish/v1/Managers", set={"/Members": None}),
    "the manager answers 503": FaultRule(method="GET", path=MANAGER, status=503, headers={"Retry-After": "30"}),
    "the manager answers 404": FaultRule(method="GET", path=MANAGER, status=404),
    "the chassis answers 503": FaultRule(method="GET", path="/redfish/v1/Chassis/*", status=503),
    "the chassis collection answers 500": FaultRule(method="GET", path="/redfish/v1/Chassis", status=500),
    "a sensor answers 404": FaultRule(method="GET", path="*/Sensors/*", status=404),
    "a media slot answers 503": FaultRule(method="GET", path="*/VirtualMedia/*", count=1, status=503),
    "the root names no systems": FaultRule(method="GET", path="/redfish/v1", merge={"Systems": None}),
    "names are null": FaultRule(method="GET", path="/redfish/v1/*", set={"/Name": None, "/Id": None}),
    "Status is missing": FaultRule(method="GET", path="/redfish/v1/*", merge={"Status": None}),
    "Actions is null": FaultRule(method="GET", path=MANAGER, set={"/Actions": None}),
    "Boot is null": FaultRule(method="GET", path=SYSTEM, set={"/Boot": None}),
}
READS = [
    "power.getPower",
    "management.getInfo",
    "management.getHealth",
    "management.qualify",
    "boot.getBoot",
    "virtual-media.listMedia",
]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
@without_waiting
async def test_reads_and_power_work_in_spite_of(fault: FaultRule) -> None:
    async with bench(faults=[fault]) as bmc:
        for operation in READS:
            await bmc(operation)
        assert (await bmc("power.setPower", {"action": "off"}))["state"] == "off"
        assert (await bmc("power.setPower", {"action": "on"}))["state"] == "on"


@without_waiting
async def test_a_slot_that_cannot_be_read_is_left_out_and_the_others_are_shown() -> None:
    async with bench() as bmc:
        everything = (await bmc("virtual-media.listMedia"))["slots"]
        bmc.bmc.faults.add(FaultRule(method="GET", path=everything[0]["location"], status=503))
        assert (await bmc("virtual-media.listMedia"))["slots"] == everything[1:]


@without_waiting
async def test_a_system_whose_address_changed_is_found_again() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        document = dict(bmc.bmc.state.document(SYSTEM) or {})
        document["@odata.id"] = "/redfish/v1/Systems/other"
        bmc.bmc.state.put("/redfish/v1/Systems/other", document)
        bmc.bmc.state.edit(
            "/redfish/v1/Systems", lambda c: c.update(Members=[{"@odata.id": "/redfish/v1/Systems/other"}])
        )
        bmc.bmc.state.remove(SYSTEM)
        assert (await bmc("power.getPower"))["state"] == "on"
        assert bmc.requests()[-1] == "/redfish/v1/Systems/other"


def system(**extra: Any) -> dict[str, Any]:
    return {"PowerState": "On", **extra}


def test_the_host_is_chosen_among_several_systems() -> None:
    host = system(Actions={"#ComputerSystem.Reset": {"target": "/x"}}, Boot={"BootOrder": []})
    assert choose_system({"/Systems/HGX_Baseboard_0": system(), "/Systems/DGX": host}) == "/Systems/DGX"
    assert choose_system({"/Systems/DGX": host, "/Systems/HGX_Baseboard_0": {**host}}) == "/Systems/DGX"
    assert choose_system({"/Systems/a": system(), "/Systems/b": system()}) == "/Systems/a"


def test_the_manager_is_the_one_that_names_the_system() -> None:
    managers: dict[str, dict[str, Any]] = {
        "/Managers/Mcu": {"ManagerType": "AuxiliaryController"},
        "/Managers/Other": {"ManagerType": "BMC", "Links": {"ManagerForServers": [{"@odata.id": "/Systems/2"}]}},
        "/Managers/Own": {"Links": {"ManagerForServers": [{"@odata.id": "/systems/1/"}]}},
    }
    assert managers_for("/Systems/1", managers) == ["/Managers/Own"]
    del managers["/Managers/Own"]
    assert managers_for("/Systems/1", managers) == ["/Managers/Other"]
