"""A whole deploy by metal's own steps, its worker killed at every transaction boundary and command frame."""

import sys
from collections import Counter
from typing import Any

import pytest

from control_plane.metal.owner import MetalOwner
from control_plane.store import Store, migrate, open_store
from control_plane.store.crash import Crash
from tests.control_plane.engine.rig import make_rig
from tests.control_plane.engine.test_every_crash import Killer
from tests.control_plane.ledger import Clock
from tests.control_plane.metal.metal_rig import BOOT, ERASE, IMAGE, MetalRig, refused

DEPLOY: list[dict[str, Any]] = [
    {"id": "boot", **BOOT},
    ERASE,
    {"id": "write", "use": "metal.writeImage", "with": {"image": IMAGE}, "retries": 1},
    {"id": "drive", "use": "metal.configDrive", "with": {"daemon": True}},
    {"id": "start", "use": "metal.bootInstalled"},
]


async def tell(store: Store, clock: Clock, killer: Killer) -> dict[str, Any]:
    rig = await make_rig(store, clock)
    metal = MetalRig(rig)
    broken = iter([True])

    def first_write_fails(what: str, row: Any) -> Any:
        return refused("the disk is busy") if "writeImage" in what and next(broken, False) else None

    metal.first, metal.power = first_write_fails, "on"
    await metal.define(f"deploy-{rig.node_id}", *DEPLOY)
    await metal.force("available", base="available")
    workflow_id = await metal.begin("deploy", profile=f"deploy-{rig.node_id}")
    rig.store, rig.frame = killer.store, killer.frame
    metal.owner = MetalOwner(killer.store, metal.tools)
    try:
        await metal.finish(workflow_id)
    except Crash:
        rig.store, rig.frame = store, lambda: None
        metal.owner = MetalOwner(store, metal.tools)
        await rig.restart("engine-2")
        await metal.finish(workflow_id)
    rig.store = store
    commands = await rig.commands(workflow_id)
    steps = (await rig.look(workflow_id)).steps.values()
    return {
        "state": await metal.state(),
        "moves": await metal.moves(),
        "acts": metal.acts,
        "steps": [(step.id, step.state.value, step.attempt) for step in sorted(steps, key=lambda step: step.seq)],
        "executed": Counter({row.key.split(":", 2)[2]: rig.executed[row.id] for row in commands}),
        "medium": metal.medium,
        "power": metal.power,
    }


@pytest.mark.timeout(600)
async def test_a_machine_is_deployed_the_same_wherever_the_worker_is_killed(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    store = open_store(store_url, clock=clock)
    try:
        await migrate(store)
        counting = Killer(store)
        expected = await tell(store, clock, counting)
        assert (expected["state"], expected["medium"], expected["power"]) == ("deployed", None, "on")
        assert set(expected["executed"].values()) == {1}
        assert [act for act in expected["acts"] if "deploy." in act] == [
            "ramdisk: deploy.eraseDisks metadata",
            f"ramdisk: deploy.writeImage {IMAGE['url']}",
            f"ramdisk: deploy.writeImage {IMAGE['url']}",
            "ramdisk: deploy.writeConfigDrive",
        ]
        points: list[dict[str, int]] = [{"boundary": n} for n in range(counting.store.boundaries)]
        points += [{"frame": n} for n in range(counting.frames)]
        if store.dialect == "postgresql":
            # The same transitions: what may differ is how a commit is lost.
            points = points[::5]
        for point in points:
            assert await tell(store, clock, Killer(store, **point)) == expected, point
        with capsys.disabled():
            sys.stdout.write(f"\n{store.dialect}: {len(points)} crash points in a deploy by metal, one end\n")
    finally:
        await store.close()
