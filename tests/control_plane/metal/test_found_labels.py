"""What an inventory finds is known to the next step of the same workflow, and the operator's word stands over it."""

from typing import Any

from control_plane.found_labels import found_labels, note_inventory
from control_plane.nodes import delete_node, find_node, labels_of
from protocol.commands import Ending
from tests.control_plane.engine.rig import TENANT, operation, work
from tests.control_plane.metal.metal_rig import MetalRig, done

INSPECT = operation("inspect.getInventory", "ramdisk", id="inspect")


def inventory(model: str = "NVIDIA H100 PCIe", **more: Any) -> dict[str, Any]:
    gpu = {"socket": "Slot 1", "kind": "gpu", "vendor": "NVIDIA", "model": model}
    return {"system": {"vendor": "Dell Inc.", "memoryMib": 65536}, "processors": [gpu], **more}


def inspected(result: dict[str, Any]) -> Any:
    def first(what: str, row: Any) -> Ending | None:
        return done(**result) if "getInventory" in what else None

    return first


async def test_a_step_that_asks_for_what_an_earlier_one_has_found_runs(metal: MetalRig) -> None:
    await metal.define(
        "commission",
        INSPECT,
        work("for-h100", when="gpu.model=H100 && mig.capable"),
        work("other", when="!gpu.count"),
    )
    metal.first = inspected(inventory())
    workflow = await metal.do("commission")
    states = (await metal.rig.look(workflow.id)).states
    assert (states["for-h100"], states["other"]) == ("succeeded", "skipped")


async def test_the_operators_own_label_stands_over_what_was_found(metal: MetalRig) -> None:
    await metal.rig.label(gpu__model="none-of-your-business")
    await metal.rig.store.write(note_inventory, metal.rig.node_id, inventory())
    labels = await metal.rig.store.read(labels_of, metal.rig.node_id)
    assert (labels["gpu.model"], labels["memory.gib"]) == ("none-of-your-business", "64")


async def test_a_result_that_is_no_inventory_changes_nothing_and_fails_nothing(sqlite_metal: MetalRig) -> None:
    metal = sqlite_metal
    await metal.rig.store.write(note_inventory, metal.rig.node_id, inventory())
    await metal.define("commission", INSPECT)
    metal.first = inspected({"system": "a text"})
    assert (await metal.do("commission")).state.value == "succeeded"
    assert (await metal.rig.store.read(labels_of, metal.rig.node_id))["gpu.model"] == "H100"


async def test_with_the_node_its_labels_are_forgotten(sqlite_metal: MetalRig) -> None:
    store, node_id = sqlite_metal.rig.store, sqlite_metal.rig.node_id
    await store.write(note_inventory, node_id, inventory())
    await store.write(lambda tx: delete_node(tx, find_node(tx, TENANT, node_id)))
    assert await store.read(found_labels, [node_id]) == {}
