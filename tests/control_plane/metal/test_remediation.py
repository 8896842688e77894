"""Machines that went away by themselves: which are brought back, and when rather nothing is done."""

from typing import Any

import msgspec
import pytest

from control_plane.engine.start import Start, start
from control_plane.metal.bindings import Limits
from control_plane.metal.remediation import Candidate, Remediation, grounds, held_sites
from control_plane.metal.rows import find_provision, put_provision
from control_plane.metal.states import MetalVerb
from control_plane.nodes import create_node, find_node
from control_plane.store import Transaction
from protocol.errors import RequestError
from protocol.ids import new_id
from tests.control_plane.engine.rig import TENANT, power
from tests.control_plane.metal.metal_rig import MetalRig, bound, refused

LIMITS = Limits()
MINUTE = 60_000
HOUR = 60 * MINUTE


def candidate(**more: Any) -> Candidate:
    values: dict[str, Any] = {
        "node_id": "node_1",
        "tenant_id": TENANT,
        "site_id": "site_1",
        "power": "on",
        "power_since": 0,
        "agent_gone_since": None,
        "asked_off_at": None,
        "newly_asked": False,
        "last_remedy_at": None,
        "remedies": 0,
    }
    return Candidate(**(values | more))


def test_a_machine_is_brought_back_once_it_is_seen_off_for_a_while() -> None:
    off = candidate(power="off", power_since=HOUR)
    assert grounds(off, LIMITS, HOUR + LIMITS.off_ms - 1) is None
    assert grounds(off, LIMITS, HOUR + LIMITS.off_ms) == "the BMC shows it switched off by itself"


def test_a_machine_that_was_switched_off_on_purpose_stays_off_for_as_long_as_it_is() -> None:
    off = candidate(power="off", power_since=HOUR, asked_off_at=HOUR - MINUTE)
    assert grounds(off, LIMITS, 1000 * HOUR) is None
    # Switched off on purpose, on again since, and then off by itself.
    assert grounds(off._replace(power_since=5 * HOUR), LIMITS, 6 * HOUR) is not None


def test_a_machine_whose_agent_is_away_is_brought_back_only_while_it_is_seen_to_be_on() -> None:
    gone = candidate(agent_gone_since=HOUR)
    assert grounds(gone, LIMITS, HOUR + LIMITS.gone_ms - 1) is None
    assert grounds(gone, LIMITS, HOUR + LIMITS.gone_ms) == "it is switched on, and its agent is away"
    assert grounds(gone._replace(power="unknown"), LIMITS, 9 * HOUR) is None
    # It was just switched on: its system may still start.
    assert grounds(gone._replace(power_since=2 * HOUR), LIMITS, 2 * HOUR + LIMITS.gone_ms - 1) is None


def test_nothing_is_done_twice_in_a_row() -> None:
    off = candidate(power="off", last_remedy_at=HOUR)
    assert grounds(off, LIMITS, HOUR + LIMITS.pause_ms - 1) is None
    assert grounds(off, LIMITS, HOUR + LIMITS.pause_ms) is not None


def test_a_site_where_many_are_away_at_once_is_left_alone_and_a_small_one_is_not() -> None:
    away = [candidate(node_id=f"node_{n}") for n in range(4)]
    assert held_sites(away, {"site_1": 13}, LIMITS) == {"site_1"}
    assert held_sites(away, {"site_1": 14}, LIMITS) == set()
    assert held_sites(away[:3], {"site_1": 3}, LIMITS) == set()


@pytest.fixture
async def opted_in(metal: MetalRig) -> MetalRig:
    """A deployed machine whose daemon is connected, and that may be brought back."""
    await bound(metal)
    await metal.force("deployed", base="deployed", remediate=True)
    await metal.rig.machine.boot("daemon")
    metal.power, metal.boots_to = "on", lambda: "daemon"
    return metal


def remediation(metal: MetalRig, **limits: Any) -> Remediation:
    return Remediation(metal.rig.store, metal.tools, Limits(**limits))


async def seen(metal: MetalRig, state: str) -> None:
    """The site's agent tells it now."""
    metal.power = state
    await metal.rig.store.write(_observe, metal.rig.node_id, metal.rig.site.id, state)


async def test_a_machine_that_the_bmc_shows_off_by_itself_is_switched_on_again(opted_in: MetalRig) -> None:
    metal = opted_in
    await seen(metal, "off")
    await metal.rig.machine.off()
    assert await remediation(metal).sweep() == 0
    metal.rig.clock.pass_by(3 * MINUTE)
    assert await remediation(metal).sweep() == 1
    workflow_id = (await metal.provision()).workflow_id
    assert await remediation(metal).sweep() == 0
    assert await metal.state() == "deployed"
    assert (await metal.finish(workflow_id or "")).state.value == "succeeded"
    assert metal.acts == ["site: power.setPower on"]
    assert await metal.state() == "deployed"
    (event,) = await metal.rig.store.read(_remedied)
    assert event == "the BMC shows it switched off by itself"


async def test_a_machine_that_is_on_and_silent_is_reset(opted_in: MetalRig) -> None:
    metal = opted_in
    await seen(metal, "on")
    await metal.rig.machine.daemon.disconnect()
    metal.rig.machine.up = None
    metal.rig.clock.pass_by(11 * MINUTE)
    assert await remediation(metal).sweep() == 1
    await metal.finish((await metal.provision()).workflow_id or "")
    assert metal.acts == ["site: power.setPower reset"]


async def test_a_machine_that_is_in_service_by_an_operators_word_is_not_reset_for_an_agent_that_was_away_before(
    opted_in: MetalRig,
) -> None:
    metal = opted_in
    await seen(metal, "on")
    await metal.rig.machine.off()
    metal.rig.clock.pass_by(HOUR)
    await metal.force("failed", verb=MetalVerb.RESCUE)
    assert await metal.recover(as_it_is=True) == "deployed"
    metal.rig.clock.pass_by(HOUR)
    assert await remediation(metal).sweep() == 0
    await metal.rig.machine.boot("daemon")
    metal.rig.clock.pass_by(MINUTE)
    await metal.rig.machine.off()
    metal.rig.clock.pass_by(11 * MINUTE)
    assert await remediation(metal).sweep() == 1


@pytest.mark.parametrize("why", ["not opted in", "in maintenance", "nobody watches", "released"])
async def test_a_machine_is_left_alone_where_that_is_wanted_or_nothing_is_known(opted_in: MetalRig, why: str) -> None:
    metal = opted_in
    await seen(metal, "off")
    if why == "not opted in":
        await metal.force("deployed", remediate=False)
    elif why == "in maintenance":
        await metal.maintenance("on")
    elif why == "nobody watches":
        await metal.rig.site.disconnect()
    else:
        await metal.force("available")
    metal.rig.clock.pass_by(HOUR)
    assert await remediation(metal).sweep() == 0


async def test_what_an_operator_has_switched_off_stays_off_even_when_the_command_is_forgotten(
    opted_in: MetalRig,
) -> None:
    metal = opted_in
    await metal.define("off", power("off"))
    workflow_id = await metal.rig.store.write(_start_plain, metal, "off")
    await metal.finish(workflow_id)
    metal.rig.clock.pass_by(30_000)
    await seen(metal, "off")
    metal.rig.clock.pass_by(HOUR)
    assert await remediation(metal).sweep() == 0
    await metal.rig.store.write(lambda tx: tx.run("DELETE FROM commands"))
    assert await remediation(metal).sweep() == 0


@pytest.mark.case("B56")
async def test_what_was_switched_on_again_and_went_off_by_itself_is_brought_back(opted_in: MetalRig) -> None:
    """As a reset through its BMC leaves it: off, and on shortly after."""
    metal = opted_in
    await metal.define("restart", power("off"), {**power("on"), "id": "again"})
    await metal.finish(await metal.rig.store.write(_start_plain, metal, "restart"))
    metal.rig.clock.pass_by(5 * MINUTE)
    await seen(metal, "off")
    metal.rig.clock.pass_by(3 * MINUTE)
    assert await remediation(metal).sweep() == 1


async def test_an_off_that_was_noted_counts_no_more_once_the_machine_was_switched_on(opted_in: MetalRig) -> None:
    metal = opted_in
    await metal.force("deployed", base="deployed", remediate=True, asked_off_at=metal.rig.clock.now)
    metal.rig.clock.pass_by(MINUTE)
    await metal.define("on", power("on"))
    await metal.finish(await metal.rig.store.write(_start_plain, metal, "on"))
    metal.rig.clock.pass_by(MINUTE)
    await seen(metal, "off")
    metal.rig.clock.pass_by(3 * MINUTE)
    assert await remediation(metal).sweep() == 1


async def test_the_end_of_a_remediation_is_not_lost_to_maintenance(opted_in: MetalRig) -> None:
    metal = opted_in
    metal.first = lambda what, row: refused("no route to host", "UNREACHABLE") if "Power on" in what else None
    await seen(metal, "off")
    await metal.rig.machine.off()
    metal.rig.clock.pass_by(HOUR)
    await remediation(metal).sweep()
    await metal.finish((await metal.provision()).workflow_id or "", take=False)
    with pytest.raises(RequestError, match="has just ended, and what came of it is not noted yet: ask again"):
        await metal.maintenance("on")
    await metal.owner.take_all()
    assert await metal.maintenance("on") == "maintenance"
    assert await metal.maintenance("off") == "failed"


async def test_the_end_of_a_remediation_that_nobody_queued_is_found_by_the_sweep(opted_in: MetalRig) -> None:
    metal = opted_in
    metal.first = lambda what, row: refused("no route to host", "UNREACHABLE") if "Power on" in what else None
    await seen(metal, "off")
    await metal.rig.machine.off()
    metal.rig.clock.pass_by(HOUR)
    await remediation(metal).sweep()
    await metal.finish((await metal.provision()).workflow_id or "", take=False)
    await metal.rig.store.write(lambda tx: tx.run("DELETE FROM owner_queue"))
    metal.rig.clock.pass_by(2 * MINUTE)
    await metal.owner.settle_forgotten()
    assert await metal.state() == "failed"
    # What was settled, and taken back to service, is not settled once more.
    await metal.rig.machine.boot("daemon")
    assert await metal.recover() == "deployed"
    metal.rig.clock.pass_by(2 * MINUTE)
    await metal.owner.settle_forgotten()
    assert await metal.state() == "deployed"
    assert await metal.maintenance("on") == "maintenance"


async def test_a_machine_that_keeps_going_away_has_failed_and_says_how_often(opted_in: MetalRig) -> None:
    metal = opted_in
    for _ in range(3):
        await seen(metal, "off")
        await metal.rig.machine.off()
        metal.rig.clock.pass_by(HOUR)
        assert await remediation(metal).sweep() == 1
        await metal.finish((await metal.provision()).workflow_id or "")
    await seen(metal, "on")
    await seen(metal, "off")
    metal.rig.clock.pass_by(HOUR)
    assert await remediation(metal).sweep() == 0
    row = await metal.provision()
    assert row.state.value == "failed"
    assert row.cause is not None
    assert row.cause.code == "REMEDIATION_SPENT"
    assert "after it was brought back 3 times within a day" in row.cause.message
    # Its disks were not touched: with its agent back, it is in service.
    await metal.rig.machine.boot("daemon")
    assert await metal.recover() == "deployed"


async def test_a_remediation_that_fails_fails_the_node(opted_in: MetalRig) -> None:
    metal = opted_in
    metal.first = lambda what, row: refused("no route to host", "UNREACHABLE") if "Power on" in what else None
    await seen(metal, "off")
    await metal.rig.machine.off()
    metal.rig.clock.pass_by(HOUR)
    await remediation(metal).sweep()
    await metal.finish((await metal.provision()).workflow_id or "")
    row = await metal.provision()
    assert row.state.value == "failed"
    assert row.cause is not None
    assert "no route to host" in row.cause.message


async def test_a_site_is_given_only_so_many_at_a_time(opted_in: MetalRig) -> None:
    metal = opted_in
    others = await metal.rig.store.write(_twins, metal.rig.node_id, 2)
    for node_id in (metal.rig.node_id, *others):
        await metal.rig.store.write(_observe, node_id, metal.rig.site.id, "off")
    metal.rig.clock.pass_by(HOUR)
    assert await remediation(metal, at_once=2).sweep() == 2
    assert await remediation(metal, at_once=2).sweep() == 0
    assert await remediation(metal, at_once=3).sweep() == 1


async def test_an_outage_of_the_site_starts_nothing(opted_in: MetalRig) -> None:
    metal = opted_in
    others = await metal.rig.store.write(_twins, metal.rig.node_id, 4)
    for node_id in (metal.rig.node_id, *others):
        await metal.rig.store.write(_observe, node_id, metal.rig.site.id, "off")
    metal.rig.clock.pass_by(HOUR)
    assert await remediation(metal).sweep() == 0


def _observe(tx: Transaction, node_id: str, agent_id: str, state: str) -> None:
    tx.run(
        "INSERT INTO node_observations (node_id, power, health, raw, trouble, how, agent_id, seen_at) "
        "VALUES (:node, :power, 'ok', NULL, NULL, 'poll', :agent, :now) "
        "ON CONFLICT (node_id) DO UPDATE SET power = excluded.power, seen_at = excluded.seen_at",
        {"node": node_id, "power": state, "agent": agent_id, "now": tx.now()},
    )


def _remedied(tx: Transaction) -> list[str]:
    rows = tx.all("SELECT data FROM events WHERE type = 'node.remedied'")
    return [str(msgspec.json.decode(row[0])["reason"]) for row in rows]


def _start_plain(tx: Transaction, metal: MetalRig, profile: str) -> str:
    wanted = Start(tenant_id=TENANT, profile_id=profile, node_id=metal.rig.node_id)
    return start(tx, metal.rig.registry, metal.rig.timing, wanted).id


def _twins(tx: Transaction, node_id: str, count: int) -> list[str]:
    """More machines of the same site, deployed and opted in."""
    node = find_node(tx, TENANT, node_id)
    made = []
    for _ in range(count):
        twin = create_node(tx, msgspec.structs.replace(node, id=new_id("node"), name=new_id("node")))
        row = msgspec.structs.replace(find_provision(tx, node), node_id=twin.id, workflow_id=None)
        put_provision(tx, row)
        made.append(twin.id)
    return made
