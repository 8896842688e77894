"""Several workers take in the ends of many workflows at once: each end once, on a database that many write to."""

import asyncio

import msgspec

from control_plane.engine.outcomes import end
from control_plane.engine.states import WorkflowState
from control_plane.engine.work import Work
from control_plane.metal.owner import MetalOwner
from control_plane.metal.rows import lock_provision
from control_plane.metal.states import MetalVerb
from control_plane.metal.verbs import Wish, begin, get_workflow
from control_plane.nodes import create_node, find_node
from control_plane.store import Store, Transaction, open_store
from protocol.ids import new_id
from tests.control_plane.engine.rig import TENANT, work
from tests.control_plane.metal.metal_rig import MetalRig

MACHINES = 40


async def test_three_workers_take_each_end_in_once(metal: MetalRig, store_url: str) -> None:
    await metal.define("commission", work("think"))
    for _ in range(MACHINES):
        await metal.rig.store.write(_end_one, metal)
    # SQLite has one process: there, three owners in it.
    several = store_url.startswith("postgresql")
    others: list[Store] = [open_store(store_url, clock=metal.rig.clock) for _ in range(2 * several)]
    try:
        stores = [metal.rig.store, *(others or [metal.rig.store] * 2)]
        owners = [MetalOwner(store, metal.tools) for store in stores]
        taken = await asyncio.gather(*(owner.take_all() for owner in owners))
    finally:
        for store in others:
            await store.close()
    assert sum(taken) == MACHINES
    assert await metal.rig.store.read(_count, "node.state") == 2 * MACHINES
    assert await metal.rig.owner_queue() == []


async def test_a_hint_is_enough_and_a_lost_hint_is_made_up_for_by_the_sweep(sqlite_metal: MetalRig) -> None:
    metal = sqlite_metal
    await metal.define("commission", work("think"))
    for sweep_seconds, hinted in ((3600.0, True), (0.05, False)):
        owner = MetalOwner(metal.rig.store, metal.tools, sweep_seconds=sweep_seconds)
        if not hinted:
            owner._hint = lambda kind: None  # type: ignore[method-assign]
        task = asyncio.create_task(owner.run())
        try:
            await asyncio.sleep(0.05)
            await metal.rig.store.write(_end_one, metal)
            async with asyncio.timeout(20):
                while await metal.rig.owner_queue():
                    await asyncio.sleep(0.01)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _end_one(tx: Transaction, metal: MetalRig) -> None:
    """One more machine whose commissioning has succeeded, of which metal has not heard."""
    node = find_node(tx, TENANT, metal.rig.node_id)
    twin = create_node(tx, msgspec.structs.replace(node, id=new_id("node"), name=new_id("node")))
    _, row = lock_provision(tx, TENANT, twin.id)
    moving = begin(tx, metal.tools, twin, row, Wish(MetalVerb.COMMISSION, "test"))
    workflow = get_workflow(tx, moving.workflow_id)
    assert workflow is not None
    under_way = Work(tx)
    end(under_way, msgspec.structs.replace(workflow, state=WorkflowState.SUCCEEDED))
    under_way.flush()


def _count(tx: Transaction, kind: str) -> int:
    row = tx.one("SELECT COUNT(*) FROM events WHERE type = :kind", {"kind": kind})
    return 0 if row is None else int(row[0])
