"""The API's verbs that move a machine, and what is shown of where it stands."""

from typing import Any

import msgspec
import pytest

from control_plane.engine.outcomes import end
from control_plane.engine.records import WorkflowError
from control_plane.engine.states import WorkflowState
from control_plane.engine.work import Work
from control_plane.metal.owner import MetalOwner
from control_plane.metal.rows import find_provision, put_provision
from control_plane.metal.states import ProvisionState
from control_plane.metal.verbs import get_workflow
from control_plane.nodes import find_node
from control_plane.store import Transaction
from tests.control_plane.api_harness import Api

IMAGE = {"url": "https://images.example/debian.raw.zst", "sha256": "ab" * 32}
STEPS: dict[str, list[dict[str, Any]]] = {
    "commission": [{"use": "metal.bootRamdisk"}],
    "deploy": [{"use": "metal.bootRamdisk"}, {"use": "metal.writeImage"}, {"use": "metal.configDrive"}],
    "release": [
        {"use": "metal.bootRamdisk"},
        {"use": "task.run", "on": "ramdisk", "with": {"script": "erase-everything"}},
    ],
    "rescue": [{"use": "metal.bootRamdisk", "with": {"keepRunning": True}}],
}


@pytest.fixture
async def machine(api: Api) -> Api:
    """The node n1 of a served site, and a profile for each verb."""
    await api.lab()
    for name, steps in STEPS.items():
        await api.ok("profiles.create", {"document": {"profile": name, "steps": steps}})
    return api


async def force(api: Api, state: str, **more: Any) -> None:
    await api.store.write(_force, state, more)


async def test_a_new_machine_is_enrolled(machine: Api) -> None:
    node = await machine.ok("nodes.get", {"nodeId": "n1"})
    assert node["state"] == "enrolled"
    assert node["provision"] == {
        "state": "enrolled",
        "since": node["createdAt"],
        "verb": None,
        "workflowId": None,
        "aborting": False,
        "error": None,
        "residue": None,
        "behindMaintenance": None,
        "maintenanceReason": None,
        "profiles": {},
        "remediate": False,
    }
    assert node["foundLabels"] == {}


@pytest.mark.parametrize(
    ("verb", "state", "moving"),
    [
        ("commission", "enrolled", "commissioning"),
        ("release", "deployed", "releasing"),
        ("rescue", "deployed", "rescuing"),
    ],
)
async def test_a_verb_starts_its_workflow_and_the_answer_names_it(
    machine: Api, verb: str, state: str, moving: str
) -> None:
    await force(machine, state, base=ProvisionState(state))
    node = await machine.ok(f"nodes.{verb}", {"nodeId": "n1"})
    assert (node["state"], node["provision"]["verb"]) == (moving, verb)
    workflow = await machine.ok(
        "workflows.get",
        {"tenantId": "acme", "nodeId": node["id"], "workflowId": node["provision"]["workflowId"]},
    )
    assert (workflow["owner"], workflow["state"]) == ("metal", "pending")
    listed = await machine.ok("nodes.list")
    assert [item["state"] for item in listed["items"]] == [moving]


async def test_a_deploy_takes_an_image_and_cloud_inits_data(machine: Api) -> None:
    await force(machine, "available", base=ProvisionState.AVAILABLE)
    request = {"nodeId": "n1", "image": IMAGE, "rootDevice": {"smallest": True}, "userData": "#cloud-config\n"}
    node = await machine.ok("nodes.deploy", request)
    assert node["state"] == "deploying"
    # It may be private: no answer shows it again.
    assert "#cloud-config" not in str(node)


async def test_every_fault_of_a_deploy_is_told_at_once(machine: Api) -> None:
    request = {"nodeId": "n1", "image": {"url": "https://x/y.raw"}, "rootDevice": {"smalest": True}, "userDat": ""}
    answer = await machine.call("nodes.deploy", request)
    assert answer.status == 400
    assert set(answer.faults) == {"image", "rootDevice.smalest", "userDat"}
    assert "has no checksum" in answer.faults["image"]


async def test_an_unknown_node_is_not_found_and_neither_is_another_tenants(machine: Api) -> None:
    for token, node in ((machine.token, "n2"), (machine.other, "n1")):
        for verb in ("commission", "deploy", "release", "rescue", "abort", "recover"):
            answer = await machine.call(f"nodes.{verb}", {"nodeId": node}, token=token)
            assert (answer.status, answer.code) == (404, "NOT_FOUND"), verb
        request = {"nodeId": node, "maintenance": "on"}
        assert (await machine.call("nodes.maintain", request, token=token)).code == "NOT_FOUND"


async def test_what_the_state_does_not_allow_is_a_conflict_of_state(machine: Api) -> None:
    answer = await machine.call("nodes.deploy", {"nodeId": "n1", "image": IMAGE})
    assert (answer.status, answer.code) == (409, "INVALID_STATE")
    assert answer.message == "node 'n1' cannot deploy: it is enrolled: commission it first"


async def test_whoever_may_only_read_moves_nothing(machine: Api) -> None:
    reader = await machine.make_token("acme", ["compute:*:read"])
    for verb in ("commission", "abort", "recover"):
        answer = await machine.call(f"nodes.{verb}", {"nodeId": "n1"}, token=reader)
        assert answer.code == "FORBIDDEN"
    assert (await machine.ok("nodes.get", {"nodeId": "n1"}))["state"] == "enrolled"


async def test_an_aborted_machine_is_as_before_where_nothing_was_begun(machine: Api) -> None:
    await machine.ok("nodes.commission", {"nodeId": "n1"})
    node = await machine.ok("nodes.abort", {"nodeId": "n1", "reason": "the wrong one"})
    assert (node["state"], node["provision"]["aborting"]) == ("commissioning", True)
    await MetalOwner(machine.store, machine.services.metal).take_all()
    assert (await machine.ok("nodes.get", {"nodeId": "n1"}))["state"] == "enrolled"


async def test_a_failed_machine_shows_its_cause_and_recovers(machine: Api) -> None:
    cause = WorkflowError(code="DRIVER_ERROR", message="boot (metal.bootRamdisk): the slot is empty")
    await force(machine, "failed", cause=cause)
    node = await machine.ok("nodes.get", {"nodeId": "n1"})
    assert node["provision"]["error"] == {"code": cause.code, "message": cause.message}
    assert (await machine.ok("nodes.recover", {"nodeId": "n1"}))["state"] == "enrolled"
    assert (await machine.ok("nodes.get", {"nodeId": "n1"}))["provision"]["error"] is None


async def test_a_machine_in_service_that_shows_nothing_recovers_by_its_operators_word_alone(machine: Api) -> None:
    cause = WorkflowError(code="DRIVER_ERROR", message="boot (metal.bootRamdisk): the slot is empty")
    await force(machine, "failed", base=ProvisionState.DEPLOYED, cause=cause)
    answer = await machine.call("nodes.recover", {"nodeId": "n1"})
    assert (answer.status, answer.code) == (409, "INVALID_STATE")
    assert "recover it once its agent is back" in answer.message
    assert (await machine.ok("nodes.recover", {"nodeId": "n1", "asItIs": True}))["state"] == "deployed"
    (told,) = (await machine.ok("events.list", {"nodeId": "n1", "kind": "node.asserted"}))["items"]
    assert told["data"]["name"] == "n1"


async def test_maintenance_shows_what_it_stands_in_for_and_why(machine: Api) -> None:
    node = await machine.ok("nodes.maintain", {"nodeId": "n1", "maintenance": "on", "reason": "a new fan"})
    provision = node["provision"]
    assert (node["state"], provision["behindMaintenance"], provision["maintenanceReason"]) == (
        "maintenance",
        "enrolled",
        "a new fan",
    )
    assert (await machine.call("nodes.commission", {"nodeId": "n1"})).code == "INVALID_STATE"
    assert (await machine.ok("nodes.maintain", {"nodeId": "n1", "maintenance": "off"}))["state"] == "enrolled"


async def test_a_node_has_profiles_of_its_own_and_opts_in_to_remediation(machine: Api) -> None:
    request = {"nodeId": "n1", "profiles": {"commission": "rescue"}, "remediate": "on"}
    provision = (await machine.ok("nodes.update", request))["provision"]
    assert (provision["profiles"], provision["remediate"]) == ({"commission": "rescue"}, True)
    provision = (await machine.ok("nodes.update", {"nodeId": "n1", "remediate": "off"}))["provision"]
    assert (provision["profiles"], provision["remediate"]) == ({"commission": "rescue"}, False)
    node = await machine.ok("nodes.commission", {"nodeId": "n1"})
    workflow = await machine.ok(
        "workflows.get",
        {"tenantId": "acme", "nodeId": node["id"], "workflowId": node["provision"]["workflowId"]},
    )
    rescue = await machine.ok("profiles.get", {"profileId": "rescue"})
    assert workflow["profileId"] == rescue["id"]
    answer = await machine.call("nodes.update", {"nodeId": "n1", "profiles": {"comission": "x"}})
    assert "profiles.comission" in answer.faults


async def test_a_new_node_may_opt_in_at_once(machine: Api) -> None:
    await machine.node("n2", remediate="on", profiles={"deploy": "raid"})
    provision = (await machine.ok("nodes.get", {"nodeId": "n2"}))["provision"]
    assert (provision["state"], provision["remediate"], provision["profiles"]) == (
        "enrolled",
        True,
        {"deploy": "raid"},
    )


async def test_each_verb_is_in_the_audit_trail_with_the_workflow(machine: Api) -> None:
    node = await machine.ok("nodes.commission", {"nodeId": "n1"})
    (line,) = [
        item for item in (await machine.ok("audit.list"))["items"] if item["detail"].get("verb") == "nodes.commission"
    ]
    assert line["resource"] == f"compute-node/{node['id']}"
    assert line["detail"]["workflowId"] == node["provision"]["workflowId"]


async def test_a_workflow_that_its_node_has_left_behind_is_not_retried_behind_its_back(machine: Api) -> None:
    node = await machine.ok("nodes.commission", {"nodeId": "n1"})
    workflow_id = node["provision"]["workflowId"]
    await machine.store.write(_fail, workflow_id)
    await MetalOwner(machine.store, machine.services.metal).take_all()
    request = {"tenantId": "acme", "nodeId": node["id"], "workflowId": workflow_id}
    await machine.ok("nodes.recover", {"nodeId": "n1"})
    answer = await machine.call("workflows.retry", request)
    assert answer.code == "INVALID_STATE"
    assert "was moved on since this workflow failed, and is enrolled" in answer.message


async def test_the_workflows_retry_takes_a_failed_node_along(machine: Api) -> None:
    node = await machine.ok("nodes.commission", {"nodeId": "n1"})
    workflow_id = node["provision"]["workflowId"]
    await machine.store.write(_fail, workflow_id)
    await MetalOwner(machine.store, machine.services.metal).take_all()
    assert (await machine.ok("nodes.get", {"nodeId": "n1"}))["state"] == "failed"
    await machine.ok("workflows.retry", {"tenantId": "acme", "nodeId": node["id"], "workflowId": workflow_id})
    assert (await machine.ok("nodes.get", {"nodeId": "n1"}))["state"] == "commissioning"


async def test_a_node_that_is_forgotten_leaves_nothing_of_metal(machine: Api) -> None:
    await machine.ok("nodes.update", {"nodeId": "n1", "remediate": "on"})
    await machine.ok("nodes.delete", {"nodeId": "n1"})
    assert await machine.store.read(lambda tx: tx.all("SELECT node_id FROM provisions")) == []


def _force(tx: Transaction, state: str, more: dict[str, Any]) -> None:
    node = find_node(tx, "acme", "n1")
    row = msgspec.structs.replace(find_provision(tx, node), state=ProvisionState(state), **more)
    put_provision(tx, row)


def _fail(tx: Transaction, workflow_id: str) -> None:
    """The workflow fails in its first step, as the engine would have it."""
    workflow = get_workflow(tx, workflow_id)
    assert workflow is not None
    tx.run("UPDATE workflow_steps SET state = 'failed' WHERE workflow_id = :id AND seq = 1", {"id": workflow_id})
    work = Work(tx)
    end(work, msgspec.structs.replace(workflow, state=WorkflowState.FAILED, started_at=tx.now()))
    work.flush()


async def test_an_image_s_address_with_a_password_is_refused(machine: Api) -> None:
    image = IMAGE | {"url": "https://reader:Pa55word@images.example/debian.raw.zst"}
    answer = await machine.call("nodes.deploy", {"nodeId": "n1", "image": image})
    assert answer.status == 400
    assert "image.url" in answer.body.decode()
    assert "Pa55word" not in answer.body.decode()
