"""The API's workflows: what they show, what they take, and whose they are."""

import asyncio
from typing import Any

import msgspec
import pytest

from control_plane.api.inprocess import Compute
from control_plane.api.shapes.workflows import WorkflowView
from control_plane.api.verbs import VERBS
from control_plane.engine.records import StepError, StepSpec, WorkflowError
from control_plane.engine.states import Ending, Phase, RunsOn, StepState, WorkflowState
from control_plane.store import Transaction
from protocol.commands import CommandState
from protocol.errors import BmcMessage, Failure, RequestCode, RequestError
from protocol.frames import Progress
from protocol.ids import new_id
from tests.control_plane.api_harness import Answer, Api
from tests.control_plane.workflow_rows import put_command, put_workflow, step

METHODS = ("get", "list", "abort", "retry", "pause", "resume")
OF_ONE = tuple(method for method in METHODS if method != "list")
READS = ("get", "list")
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
FAILURE = Failure("BMC_ERROR", "the BMC refused", bmc=[BmcMessage("Base.1.0.GeneralError", "no such drive")])


class Node:
    """A node of the tenant acme, and requests about its workflows."""

    def __init__(self, api: Api, node_id: str, agent_id: str) -> None:
        self.api = api
        self.id = node_id
        self.agent_id = agent_id

    async def workflow(self, *arguments: Any, **changes: Any) -> str:
        def put(tx: Transaction) -> str:
            return put_workflow(tx, self.id, *arguments, **changes)

        return await self.api.store.write(put)

    def request(self, workflow_id: str | None = None, **more: Any) -> dict[str, Any]:
        named = {} if workflow_id is None else {"workflowId": workflow_id}
        return {"tenantId": "acme", "nodeId": self.id, **named, **more}

    async def call(self, method: str, workflow_id: str | None = None, **more: Any) -> Answer:
        return await self.api.call(f"workflows.{method}", self.request(workflow_id, **more))

    async def ok(self, method: str, workflow_id: str | None = None, **more: Any) -> Any:
        return await self.api.ok(f"workflows.{method}", self.request(workflow_id, **more))


async def make_node(api: Api) -> Node:
    agent_id = await api.lab()
    return Node(api, (await api.ok("nodes.get", {"nodeId": "n1"}))["id"], agent_id)


@pytest.fixture
async def node(api: Api) -> Node:
    """On each kind of database."""
    return await make_node(api)


@pytest.fixture
async def one(sqlite_api: Api) -> Node:
    """On SQLite alone, where the database makes no difference."""
    return await make_node(sqlite_api)


# The methods


@pytest.mark.line("B01")
async def test_b01_six_post_routes_have_six_equivalents_in_the_process(one: Node) -> None:
    api = one.api
    compute = Compute(api.dispatcher)
    workflow_id = await one.workflow()
    assert {verb.path for verb in VERBS.values() if verb.group == "workflows"} == {
        f"/api/compute/workflows/{method}" for method in METHODS
    }
    over_http = await one.ok("get", workflow_id)
    inside = await compute.api.workflows.get(api.token, one.request(workflow_id))
    assert isinstance(inside, WorkflowView)
    told = msgspec.json.decode(msgspec.json.encode(inside))
    assert over_http | {"elapsedMs": 0} == told | {"elapsedMs": 0}
    assert (await compute.api.workflows.list(api.token, one.request())).items[0].id == workflow_id
    assert (await compute.api.workflows.pause(api.token, one.request(workflow_id))).state == "paused"
    assert (await compute.api.workflows.resume(api.token, one.request(workflow_id))).state == "running"
    assert (await compute.api.workflows.abort(api.token, one.request(workflow_id))).ending == "cancelling"
    with pytest.raises(RequestError) as refused:
        await compute.api.workflows.retry(api.token, one.request(workflow_id))
    assert refused.value.code is RequestCode.INVALID_STATE
    with pytest.raises(AttributeError, match="no method 'start'"):
        compute.api.workflows.start  # noqa: B018
    for method in ("GET", "PUT", "DELETE"):
        assert (await api.http(method, "/api/compute/workflows/list")).status == 405


@pytest.mark.line("B01")
async def test_b01_there_is_no_public_start(one: Node) -> None:
    assert (await one.call("start")).code == "NOT_FOUND"


@pytest.mark.line("B02")
@EVERY_METHOD
async def test_b02_each_method_needs_its_right_and_without_it_changes_nothing(one: Node, method: str) -> None:
    api = one.api
    state = {"retry": WorkflowState.FAILED, "resume": WorkflowState.PAUSED}.get(method, WorkflowState.RUNNING)
    workflow_id = await one.workflow(state)
    request = one.request(None if method == "list" else workflow_id)
    right, other = ("read", "manage") if method in READS else ("manage", "read")
    without = await api.make_token("acme", [f"compute:workflows:{other}", "compute:nodes:*"])
    before = await one.ok("get", workflow_id)
    answer = await api.call(f"workflows.{method}", request, token=without)
    assert (answer.status, answer.code) == (403, "FORBIDDEN")
    after = await one.ok("get", workflow_id)
    assert after | {"elapsedMs": 0} == before | {"elapsedMs": 0}
    line = (await api.ok("audit.list", {"limit": 1}))["items"][0]
    assert (line["decision"], line["action"]) == ("denied", f"compute:workflows:{right}")
    assert line["resource"] == f"compute-node/{one.id}"
    allowed = await api.make_token("acme", [f"compute:workflows:{right}"])
    assert (await api.call(f"workflows.{method}", request, token=allowed)).status == 200


@pytest.mark.line("B02")
async def test_b02_what_was_steered_is_in_the_audit_trail_of_the_node(one: Node) -> None:
    workflow_id = await one.workflow()
    await one.ok("pause", workflow_id)
    line = (await one.api.ok("audit.list", {"limit": 1}))["items"][0]
    assert (line["decision"], line["resource"]) == ("allowed", f"compute-node/{one.id}")
    assert line["detail"] == {"verb": "workflows.pause", "workflowId": workflow_id}


BAD_BODIES = ["0" * 25, "0" * 53, "i" * 26, "l" * 26, "o" * 26, "u" * 26, "A" * 26, "0" * 26 + "\n", "0" * 25 + "-"]


@pytest.mark.line("B03")
@EVERY_METHOD
async def test_b03_ids_of_26_and_52_characters_are_looked_for(one: Node, method: str) -> None:
    for length in (26, 52):
        node_id, workflow_id = f"node_{'0' * length}", f"wf_{'z' * length}"
        request = {"tenantId": "acme", "nodeId": node_id}
        request |= {} if method == "list" else {"workflowId": workflow_id}
        assert (await one.api.call(f"workflows.{method}", request)).code == "NOT_FOUND"


@pytest.mark.line("B03")
@pytest.mark.parametrize("body", BAD_BODIES)
async def test_b03_an_id_of_another_form_is_refused_before_it_is_looked_for(one: Node, body: str) -> None:
    good = one.request(new_id("wf"))
    for method in METHODS:
        base = {name: value for name, value in good.items() if method != "list" or name != "workflowId"}
        answer = await one.api.call(f"workflows.{method}", base | {"nodeId": f"node_{body}"})
        assert (answer.status, set(answer.faults)) == (400, {"nodeId"})
        if method != "list":
            assert set((await one.api.call(f"workflows.{method}", base | {"workflowId": f"wf_{body}"})).faults) == {
                "workflowId"
            }


@pytest.mark.line("B03")
@EVERY_METHOD
async def test_b03_a_name_or_another_kinds_id_is_no_node(one: Node, method: str) -> None:
    base = one.request(None if method == "list" else new_id("wf"))
    for wrong in ("n1", new_id("wf"), "", 5, None, ["node"]):
        assert set((await one.api.call(f"workflows.{method}", base | {"nodeId": wrong})).faults) == {"nodeId"}


@pytest.mark.line("B03")
@EVERY_METHOD
async def test_b03_a_tenants_id_is_required_and_has_a_form(one: Node, method: str) -> None:
    base = one.request(None if method == "list" else new_id("wf"))
    del base["tenantId"]
    assert set((await one.api.call(f"workflows.{method}", base)).faults) == {"tenantId"}
    for wrong in ("", "a" * 129, "a b", "ä", "a\n", "a/b"):
        answer = await one.api.call(f"workflows.{method}", base | {"tenantId": wrong})
        assert (answer.status, set(answer.faults)) == (400, {"tenantId"}), wrong
    for sound in ("A", "a" * 128, "._:-"):
        token = await one.api.make_token(sound, ["*"])
        assert (
            await one.api.call(f"workflows.{method}", base | {"tenantId": sound}, token=token)
        ).code == "NOT_FOUND"


@pytest.mark.line("B03")
@EVERY_METHOD
async def test_b03_an_unknown_field_is_refused_and_named(one: Node, method: str) -> None:
    base = one.request(None if method == "list" else new_id("wf"))
    answer = await one.api.call(f"workflows.{method}", base | {"force": True, "waitMs": 1})
    assert (answer.status, set(answer.faults)) == (400, {"force", "waitMs"})


@pytest.mark.line("B04")
@pytest.mark.parametrize(
    ("limit", "taken"),
    [(1, True), (100, True), (0, False), (101, False), (-1, False), (1.5, False), ("5", False), (True, False)],
)
async def test_b04_a_page_has_one_to_a_hundred_workflows(one: Node, limit: object, taken: bool) -> None:
    await one.workflow()
    answer = await one.call("list", limit=limit)
    assert (answer.status == 200) is taken
    if not taken:
        assert set(answer.faults) == {"limit"}


@pytest.mark.line("B04")
async def test_b04_a_page_has_twenty_workflows_where_nothing_is_said(node: Node) -> None:
    for _ in range(21):
        await node.workflow(WorkflowState.SUCCEEDED)
    page = await node.ok("list")
    assert (len(page["items"]), page["cursor"] is not None) == (20, True)
    assert len((await node.ok("list", limit=100))["items"]) == 21
    assert len((await node.ok("list", limit=1))["items"]) == 1


@pytest.mark.line("B05")
async def test_b05_pages_show_each_workflow_once_newest_first_while_new_ones_arrive(node: Node) -> None:
    old = [await node.workflow(WorkflowState.SUCCEEDED) for _ in range(17)]
    seen: list[str] = []
    cursor: str | None = None
    first = True
    while first or cursor is not None:
        more = {} if cursor is None else {"cursor": cursor}
        page = await node.ok("list", limit=5, **more)
        seen += [item["id"] for item in page["items"]]
        cursor, first = page["cursor"], False
        for _ in range(3):
            await node.workflow(WorkflowState.CANCELLED)
    assert seen == old[::-1]
    assert len((await node.ok("list", limit=100))["items"]) == 17 + 3 * 4


@pytest.mark.line("B05")
async def test_b05_a_cursor_that_is_not_the_lists_own_is_refused(one: Node) -> None:
    for cursor in ("?", "AAAA", "x" * 257, "bm9kZV8", "", 5):
        answer = await one.call("list", cursor=cursor)
        assert (answer.status, set(answer.faults)) == (400, {"cursor"}), cursor
    assert set((await one.call("list", cursor="x" * 256)).faults) == {"cursor"}


@pytest.mark.line("B05")
async def test_b05_workflows_of_a_node_that_is_gone_can_still_be_read(node: Node) -> None:
    await node.workflow(WorkflowState.SUCCEEDED)
    await node.api.ok("nodes.delete", {"nodeId": node.id})
    assert len((await node.ok("list"))["items"]) == 1


async def test_a_node_with_an_active_workflow_is_not_forgotten(node: Node) -> None:
    workflow_id = await node.workflow(WorkflowState.PAUSED)
    answer = await node.api.call("nodes.delete", {"nodeId": node.id})
    assert (answer.status, answer.code) == (409, "INVALID_STATE")
    assert workflow_id in answer.message


def deploy() -> list[Any]:
    """A workflow in the middle: one step done, one with its command out, one to come, and clean-up."""
    return [
        step(0, state=StepState.SUCCEEDED, result={"state": "on"}, started_at=1_000, finished_at=3_500),
        step(
            1,
            id="write",
            action="deploy.writeImage",
            runs_on=RunsOn.RAMDISK,
            spec=StepSpec(kind="operation", timeout_ms=1, retries=2),
            state=StepState.WAITING,
            attempt=2,
            command_id="cmd_" + "0" * 26,
            deadline=1_900_000_000_000,
            started_at=4_000,
            error=StepError(code="COMMAND_FAILED", message="BMC_ERROR: the BMC refused", details=FAILURE),
        ),
        step(2, id="rescue.on-failure", phase=Phase.ON_FAILURE, runs_on=RunsOn.CONTROL_PLANE),
        step(3, id="eject", phase=Phase.CLEANUP),
    ]


@pytest.mark.line("B06")
async def test_b06_get_and_list_show_every_step_with_all_that_there_is_to_know(node: Node) -> None:
    workflow_id = await node.workflow(WorkflowState.RUNNING, deploy(), step_seq=1, step_id="write")
    shown = await node.ok("get", workflow_id)
    assert (shown["state"], shown["stepId"], shown["ending"], shown["error"]) == ("running", "write", None, None)
    facts = [[each[name] for name in ("phase", "id", "runsOn", "state", "attempt")] for each in shown["steps"]]
    assert facts == [
        ["main", "step-0", "site", "succeeded", 1],
        ["main", "write", "ramdisk", "waiting", 2],
        ["on-failure", "rescue.on-failure", "control-plane", "pending", 1],
        ["cleanup", "eject", "site", "pending", 1],
    ]
    done, write = shown["steps"][:2]
    assert (done["result"], done["elapsedMs"], done["error"]) == ({"state": "on"}, 2_500, None)
    assert (write["action"], write["commandId"], write["attempts"]) == ("deploy.writeImage", "cmd_" + "0" * 26, 3)
    assert write["deadline"] == "2030-03-17T17:46:40Z"
    assert write["error"]["details"]["bmc"] == [{"id": "Base.1.0.GeneralError", "text": "no such drive"}]
    listed = (await node.ok("list"))["items"][0]
    assert _without_times(listed) == _without_times(shown)


@pytest.mark.line("B06")
async def test_b06_while_clean_up_runs_the_marker_says_how_it_will_end(node: Node) -> None:
    error = WorkflowError(code="STEP_TIMEOUT", message="write (deploy.writeImage): late", rescue=True)
    workflow_id = await node.workflow(WorkflowState.RUNNING, ending=Ending.FAILING, error=error)
    shown = await node.ok("get", workflow_id)
    assert (shown["state"], shown["ending"]) == ("running", "failing")
    assert shown["error"] == {"code": "STEP_TIMEOUT", "message": "write (deploy.writeImage): late", "rescue": True}


@pytest.mark.line("B06")
async def test_b06_the_step_in_flight_shows_the_progress_of_its_command(node: Node) -> None:
    workflow_id = await node.workflow(WorkflowState.RUNNING, deploy(), step_seq=1, step_id="write")

    def command(tx: Transaction) -> str:
        return put_command(tx, node.id, node.agent_id, workflow_id, state=CommandState.RUNNING).id

    command_id = await node.api.store.write(command)
    node.api.links.progress[command_id] = Progress(id=command_id, message="writing", percent=42.0)
    shown = await node.ok("get", workflow_id)
    assert [each["progress"] for each in shown["steps"]] == [
        None,
        {"message": "writing", "percent": 42.0},
        None,
        None,
    ]


@pytest.mark.line("B07")
@pytest.mark.parametrize("method", OF_ONE)
async def test_b07_another_tenants_or_nodes_workflow_is_refused_as_an_unknown_one_is(node: Node, method: str) -> None:
    api = node.api
    await api.site(token=api.other)
    theirs = await api.node("n1", token=api.other)
    beside = await api.node("n2")
    state = {"retry": WorkflowState.FAILED, "resume": WorkflowState.PAUSED}.get(method, WorkflowState.RUNNING)

    def put(tx: Transaction) -> tuple[str, str]:
        return put_workflow(tx, theirs, state, tenant="umbrella"), put_workflow(tx, beside, state)

    foreign, other_nodes = await api.store.write(put)
    answers = []
    for workflow_id in (foreign, other_nodes, new_id("wf")):
        answer = await node.call(method, workflow_id)
        assert (answer.status, answer.code) == (404, "NOT_FOUND")
        answers.append(_anonymous(answer, workflow_id, node.id))
    # Also where the node is named to which it belongs.
    answer = await api.call(f"workflows.{method}", node.request(foreign) | {"nodeId": theirs})
    answers.append(_anonymous(answer, foreign, theirs))
    assert len(set(answers)) == 1
    for owner, node_id, workflow_id in ((api.other, theirs, foreign), (api.token, beside, other_nodes)):
        tenant = "umbrella" if owner is api.other else "acme"
        request = {"tenantId": tenant, "nodeId": node_id, "workflowId": workflow_id}
        assert (await api.ok("workflows.get", request, token=owner))["state"] == state.value


@pytest.mark.line("B07")
async def test_b07_a_list_of_another_tenants_node_is_refused_as_of_an_unknown_one(node: Node) -> None:
    await node.workflow()
    answers = []
    for node_id in (node.id, new_id("node")):
        request = {"tenantId": "umbrella", "nodeId": node_id}
        answer = await node.api.call("workflows.list", request, token=node.api.other)
        assert answer.code == "NOT_FOUND"
        answers.append(_anonymous(answer, node_id, node_id))
    assert len(set(answers)) == 1


@pytest.mark.line("B07")
@EVERY_METHOD
async def test_b07_a_token_of_another_tenant_is_refused_before_anything_is_read(one: Node, method: str) -> None:
    workflow_id = await one.workflow()
    request = one.request(None if method == "list" else workflow_id)
    answer = await one.api.call(f"workflows.{method}", request, token=one.api.other)
    assert (answer.status, answer.code) == (403, "FORBIDDEN")


@pytest.mark.line("B08")
async def test_b08_a_reason_has_512_characters_at_the_most(node: Node) -> None:
    workflow_id = await node.workflow()
    for wrong in ("r" * 513, "a\x00b", 5):
        assert set((await node.call("abort", workflow_id, reason=wrong)).faults) == {"reason"}
    assert (await node.ok("get", workflow_id))["ending"] is None
    reason = "two\nlines ä" + "r" * 501
    shown = await node.ok("abort", workflow_id, reason=reason)
    assert shown["error"] == {"code": "ABORTED", "message": reason}


@pytest.mark.line("B08")
async def test_b08_a_step_to_retry_from_has_256_characters_at_the_most(node: Node) -> None:
    name = "s" * 256
    workflow_id = await node.workflow(WorkflowState.FAILED, [step(0, id=name, state=StepState.FAILED)])
    assert set((await node.call("retry", workflow_id, fromStep="s" * 257)).faults) == {"fromStep"}
    assert (await node.ok("retry", workflow_id, fromStep=name))["steps"][0]["attempt"] == 2


ALLOWED = {
    "abort": {"pending", "running", "paused", "failed", "cancelled"},
    "retry": {"failed"},
    "pause": {"running"},
    "resume": {"paused"},
}


@pytest.mark.line("B09")
@pytest.mark.parametrize("state", list(WorkflowState))
@pytest.mark.parametrize("method", list(ALLOWED))
async def test_b09_a_verb_is_done_in_its_states_and_refused_in_every_other(
    node: Node, method: str, state: WorkflowState
) -> None:
    failed = step(0, state=StepState.FAILED if state is WorkflowState.FAILED else StepState.PENDING)
    workflow_id = await node.workflow(state, [failed])
    answer = await node.call(method, workflow_id)
    if state.value in ALLOWED[method]:
        assert answer.status == 200, answer.body
        assert answer.json["id"] == workflow_id
        assert answer.json["steps"][0]["id"] == "step-0"
    else:
        assert (answer.status, answer.code) == (409, "INVALID_STATE")
        assert (await node.ok("get", workflow_id))["state"] == state.value


@pytest.mark.line("B09")
@pytest.mark.parametrize("ending", list(Ending))
async def test_b09_clean_up_after_a_failure_or_an_abort_cannot_be_paused(node: Node, ending: Ending) -> None:
    workflow_id = await node.workflow(WorkflowState.RUNNING, ending=ending)
    assert (await node.call("pause", workflow_id)).code == "INVALID_STATE"


@pytest.mark.line("B09")
async def test_b09_a_retry_from_what_is_no_main_step_or_of_nothing_undone_is_invalid_input(node: Node) -> None:
    rows = [step(0, state=StepState.FAILED), step(1, id="eject", phase=Phase.CLEANUP, state=StepState.SUCCEEDED)]
    workflow_id = await node.workflow(WorkflowState.FAILED, rows)
    for wrong in ("eject", "nothing", ""):
        answer = await node.call("retry", workflow_id, fromStep=wrong)
        assert (answer.status, answer.code) == (400, "INVALID_INPUT"), wrong
    done = await node.workflow(WorkflowState.FAILED, [step(0, state=StepState.SUCCEEDED)])
    assert (await node.call("retry", done)).code == "INVALID_INPUT"


@pytest.mark.line("B09")
async def test_b09_a_retry_beside_another_active_workflow_is_a_conflict(node: Node) -> None:
    failed = await node.workflow(WorkflowState.FAILED, [step(0, state=StepState.FAILED)])
    active = await node.workflow(WorkflowState.RUNNING)
    answer = await node.call("retry", failed)
    assert (answer.status, answer.code) == (409, "CONFLICT")
    assert active in answer.message


@pytest.mark.line("B09")
async def test_b09_two_pauses_at_once_pause_once(node: Node) -> None:
    workflow_id = await node.workflow()
    answers = await asyncio.gather(*(node.call("pause", workflow_id) for _ in range(4)))
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]


def _without_times(workflow: dict[str, Any]) -> dict[str, Any]:
    steps = [each | {"elapsedMs": 0} for each in workflow["steps"]]
    return workflow | {"elapsedMs": 0, "steps": steps}


def _anonymous(answer: Answer, workflow_id: str, node_id: str) -> bytes:
    """The answer without what the asker said itself."""
    body = answer.body.replace(workflow_id.encode(), b"<workflow>").replace(node_id.encode(), b"<node>")
    return body.replace(answer.json["error"]["requestId"].encode(), b"<request>")
