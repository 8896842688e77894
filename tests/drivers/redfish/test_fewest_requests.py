"""What each operation costs a BMC: at most 1.2 times the least, which the benchmark `bmc.requests` works out."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.bmc_requests import LEAST, TREES, other_value, table
from drivers.driver import operations_of
from drivers.registry import load
from protocol.operations import OPERATIONS, Repeat
from simulators.redfish import FaultRule
from tests.drivers.redfish.harness import SYSTEM, Bench, bench, without_waiting

OWN = operations_of(load("redfish"))
LOGS = f"{SYSTEM}/LogServices"
MEDIA = "/redfish/v1/Managers/1/VirtualMedia"
INVENTORY = "/redfish/v1/UpdateService/FirmwareInventory"


async def cost(bmc: Bench, operation: str, arguments: dict[str, Any] | None = None) -> list[str]:
    """What the operation asks for: methods and paths, with their queries."""
    before = bmc.bmc.journal.total
    await bmc(operation, arguments)
    return [
        f"{entry.method} {entry.path}{'?' if entry.query else ''}{entry.query}"
        for entry in bmc.bmc.journal
        if entry.number > before
    ]


@pytest.mark.parametrize("vendor", TREES)
@without_waiting
async def test_no_operation_asks_much_more_than_it_must(vendor: str, shared: Path) -> None:
    async with bench(shared / "mockups" / TREES[vendor]) as bmc:
        order = (await bmc("boot.getBoot"))["order"]
        attribute = await other_value(bmc.drivers, bmc.target)
        seen = set()
        for name, operation, arguments in table(order, attribute):
            if operation not in OWN:
                continue
            if OPERATIONS[operation].repeat is Repeat.READ:
                await bmc(operation, arguments)
            asked = await cost(bmc, operation, arguments)
            assert len(asked) <= 1.2 * LEAST[name][vendor], (name, asked)
            seen.add(name)
        assert seen == {name for name in LEAST if name in OWN or name.startswith("power.setPower")}


# A collection in one request


@without_waiting
async def test_a_collection_is_read_in_one_request_where_the_bmc_offers_it() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        asked = await cost(bmc, "firmware.getFirmware")
        assert asked == ["GET /redfish/v1/UpdateService", f"GET {INVENTORY}?$expand=.($levels=1)"]


REFUSALS = {
    "not supported": {"status": 501},
    "a server error": {"status": 500},
    "a web page": {"status": 200, "body": "<html>"},
    "nothing at all": {"merge": {"Members": []}},
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
@without_waiting
async def test_a_bmc_that_does_not_expand_what_it_says_it_does_is_asked_one_by_one(refusal: dict[str, Any]) -> None:
    async with bench() as plain:
        right = await plain("firmware.getFirmware")
    async with bench(faults=[FaultRule(path=INVENTORY, count=1, **refusal)]) as bmc:
        assert await bmc("firmware.getFirmware") == right


@without_waiting
async def test_links_that_come_in_spite_of_the_query_are_followed_at_once() -> None:
    async with bench() as bmc:
        right = await bmc("firmware.getFirmware")
        links = [{"@odata.id": item["path"]} for item in right["components"]]
        bmc.bmc.faults.add(FaultRule(path=INVENTORY, merge={"Members": links}))
        asked = await cost(bmc, "firmware.getFirmware")
        assert len(asked) == 2 + len(links)


@without_waiting
async def test_a_member_that_could_not_be_expanded_is_asked_for_by_itself() -> None:
    async with bench() as plain:
        right = await plain("management.getSensors")
    async with bench(faults=[FaultRule(path="/redfish/v1/Chassis/1", count=1, status=503)]) as bmc:
        assert await bmc("management.getSensors") == right


@without_waiting
async def test_a_later_page_of_a_collection_belongs_to_it() -> None:
    async with bench() as bmc:
        members = (bmc.bmc.state.document(INVENTORY) or {})["Members"]
        rest = f"{INVENTORY}/rest"
        whole = await bmc("firmware.getFirmware")
        bmc.bmc.state.put(rest, {"@odata.id": rest, "Members": members[1:]})
        bmc.bmc.state.edit(
            INVENTORY, lambda document: document.update({"Members": members[:1], "Members@odata.nextLink": rest})
        )
        assert await bmc("firmware.getFirmware") == whole


# Event logs


@without_waiting
async def test_the_search_for_the_event_log_ends_with_one_that_surely_is_it() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        asked = await cost(bmc, "management.getEventLog")
        assert not [path for path in asked if "/Managers" in path or "/Chassis" in path]
        name = bmc.bmc.faults.add(
            FaultRule(path=f"{LOGS}/*", set={"/Id": "Log1", "/Name": "Event Log", "/LogEntryType": "Event"})
        )
        asked = await cost(bmc, "management.getEventLog")
        assert any("/Managers" in path for path in asked)
        bmc.bmc.faults.remove(name)


# Virtual media


@without_waiting
async def test_slots_of_a_collection_that_only_mirrors_another_are_not_read() -> None:
    async with bench() as bmc:
        bmc.bmc.state.patch("/redfish/v1/", {"ProtocolFeaturesSupported": {"ExpandQuery": None}})
        own = f"{SYSTEM}/VirtualMedia"
        slots = [f"{own}/{name}" for name in ("Cd", "USB")]
        for path in slots:
            slot = bmc.bmc.state.document(f"{MEDIA}/{path.rpartition('/')[2]}") or {}
            bmc.bmc.state.put(path, {**slot, "@odata.id": path})
        bmc.bmc.state.put(own, {"@odata.id": own, "Members": [{"@odata.id": path} for path in slots]})
        bmc.bmc.state.patch(SYSTEM, {"VirtualMedia": {"@odata.id": own}})
        asked = await cost(bmc, "virtual-media.listMedia")
        assert f"GET {MEDIA}" in asked
        assert not [path for path in asked if path.startswith(f"GET {MEDIA}/")]


@without_waiting
async def test_a_slot_without_an_action_is_read_by_itself_before_it_is_said_how_it_takes_an_image() -> None:
    async with bench() as bmc:
        bmc.bmc.state.edit(f"{MEDIA}/Cd", lambda document: document.pop("Actions"))
        asked = await cost(bmc, "virtual-media.listMedia")
        assert asked.count(f"GET {MEDIA}/Cd") == 1
        assert f"GET {MEDIA}/USB" not in asked


# Changes


@without_waiting
async def test_the_tag_of_the_reading_on_which_a_change_was_decided_goes_with_it() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        tag = bmc.bmc.service.store.find(SYSTEM)
        assert tag is not None
        sent = tag.etag
        asked = await cost(bmc, "management.setIndicator", {"state": "on"})
        assert asked == [f"GET {SYSTEM}", f"PATCH {SYSTEM}", f"GET {SYSTEM}"]
        (patch,) = bmc.bmc.journal.entries("PATCH")
        assert patch.headers["If-Match"] == sent


@without_waiting
async def test_a_change_that_somebody_made_since_the_reading_is_not_overwritten_unseen() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SYSTEM, count=1, status=412))
        asked = await cost(bmc, "management.setIndicator", {"state": "on"})
        assert asked == [f"GET {SYSTEM}", f"PATCH {SYSTEM}", f"GET {SYSTEM}", f"PATCH {SYSTEM}", f"GET {SYSTEM}"]


@without_waiting
async def test_the_reading_that_shows_the_power_is_the_proof() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        asked = await cost(bmc, "power.setPower", {"action": "off"})
        assert [line.split()[0] for line in asked] == ["GET", "POST", "GET"]


@without_waiting
async def test_a_bmc_of_another_firmware_is_looked_for_anew_where_its_manager_is_gone() -> None:
    async with bench() as bmc:
        before = await bmc("config.getConfig")
        manager = bmc.bmc.state.document("/redfish/v1/Managers/1") or {}
        bmc.bmc.state.put("/redfish/v1/Managers/new", {**manager, "@odata.id": "/redfish/v1/Managers/new"})
        bmc.bmc.state.patch(SYSTEM, {"Links": {"ManagedBy": [{"@odata.id": "/redfish/v1/Managers/new"}]}})
        bmc.bmc.faults.add(FaultRule(path="/redfish/v1/Managers/1", status=404))
        assert (await bmc("config.getConfig"))["protocols"] == before["protocols"]
