"""Who may do what: generated over the whole table of verbs."""

import asyncio
from typing import Any

import pytest

from control_plane.api.handlers.table import HANDLERS
from control_plane.api.verbs import VERBS, Verb
from control_plane.engine.states import StepState, WorkflowState
from protocol.ids import new_id
from tests.control_plane.api_harness import Answer, Api
from tests.control_plane.workflow_rows import put_workflow, step

EVERY_VERB = pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.id)
_SUBJECTS = {"siteId": "site", "agentId": "agent", "joinTokenId": "jtk", "tokenId": "tok", "nodeId": "node"}
_SUBJECTS |= {"commandId": "cmd", "profileId": "prof"}
PROFILE = {"profile": "thing", "steps": [{"use": "node.reboot"}]}


SOUND_FIELDS: dict[str, dict[str, Any]] = {
    "nodes.maintain": {"maintenance": "on"},
    "sites.create": {"name": "made"},
    "joinTokens.create": {"siteId": "lab"},
    "tokens.create": {"name": "made", "permissions": ["compute:nodes:read"]},
    "nodes.create": {"name": "made", "siteId": "lab", "bmc": {"address": "simulated://made"}},
    "drivers.invoke": {"operation": "power.getPower", "waitMs": 0},
    "sites.update": {"name": "renamed"},
    "nodes.update": {"labels": {"a": "b"}},
    "profiles.create": {"document": PROFILE},
    "profiles.validate": {"document": PROFILE},
    "profiles.diff": {"before": 1, "after": 1},
}


WORKFLOW_ID = "wf_" + "0" * 26
"""The workflow that `things_of` makes for the first tenant's node: it has failed."""


def sound_request(verb: Verb, subject: str = "", tenant: str = "acme") -> dict[str, Any]:
    """A request without a fault, for a thing of this id."""
    request = SOUND_FIELDS.get(verb.id, {}) | ({verb.subject: subject} if verb.subject else {})
    if verb.group == "workflows":
        request = request | {"tenantId": tenant} | ({} if verb.method == "list" else {"workflowId": WORKFLOW_ID})
    return request


def same_refusal(answer: Answer, subject: str) -> bytes:
    """The answer's bytes, without the two things that are the asker's own: the id asked for and the request's."""
    error = answer.json["error"]
    return answer.body.replace(subject.encode(), b"<id>").replace(error["requestId"].encode(), b"<request>")


def test_every_verb_has_its_handler_and_no_handler_is_left_over() -> None:
    assert set(HANDLERS) == set(VERBS)


async def things_of(api: Api, token: str) -> dict[str, str]:
    """One thing of each kind, of the tenant whose token it is; by the field that names it."""
    tenant = "acme" if token == api.token else "umbrella"
    site_id = await api.site(token=token)
    agent_id = await api.agent(site_id, tenant)
    node_id = await api.node(token=token)
    join = await api.ok("joinTokens.create", {"siteId": "lab"}, token=token)
    made = await api.ok("tokens.create", {"name": "thing", "permissions": ["*"]}, token=token)
    invoke = {"nodeId": node_id, "operation": "power.getPower", "waitMs": 0}
    command = await api.ok("drivers.invoke", invoke, token=token)
    profile = await api.ok("profiles.create", {"document": PROFILE}, token=token)
    if tenant == "acme":
        await api.store.write(_failed_workflow, node_id)
    return {
        "siteId": site_id,
        "agentId": agent_id,
        "joinTokenId": join["id"],
        "tokenId": made["id"],
        "nodeId": node_id,
        "commandId": command["id"],
        "profileId": profile["id"],
    }


async def test_another_tenants_thing_and_an_unknown_one_are_refused_with_the_same_bytes(api: Api) -> None:
    things = await things_of(api, api.token)
    for verb in VERBS.values():
        if verb.subject is None:
            continue
        foreign = things[verb.subject]
        unknown = new_id(_SUBJECTS[verb.subject])
        answers = [
            await api.call(verb.id, sound_request(verb, thing, "umbrella"), token=api.other)
            for thing in (foreign, unknown)
        ]
        assert [answer.status for answer in answers] == [404, 404], verb.id
        assert same_refusal(answers[0], foreign) == same_refusal(answers[1], unknown), verb.id
    # Nothing was changed by trying.
    assert (await api.ok("sites.get", {"siteId": things["siteId"]}))["name"] == "lab"
    assert (await api.ok("agents.get", {"agentId": things["agentId"]}))["revokedAt"] is None


async def test_a_name_is_looked_for_in_ones_own_tenant_only(api: Api) -> None:
    await api.lab()
    assert (await api.call("nodes.get", {"nodeId": "n1"}, token=api.other)).code == "NOT_FOUND"
    assert (await api.call("sites.get", {"siteId": "lab"}, token=api.other)).code == "NOT_FOUND"
    await api.site(token=api.other)
    assert await api.node(token=api.other)
    assert len((await api.ok("nodes.list", token=api.other))["items"]) == 1


async def test_a_list_shows_ones_own_tenants_things_only(api: Api) -> None:
    await things_of(api, api.token)
    for verb in VERBS.values():
        if verb.method not in ("list", "matrix") or verb.subject is not None:
            continue
        own = await api.ok(verb.id)
        others = await api.ok(verb.id, token=api.other)
        assert not {item.get("id") for item in others["items"]} & {
            item["id"] for item in own["items"] if "id" in item
        }
        assert all(item.get("tenantId", "umbrella") == "umbrella" for item in others["items"]), verb.id
    assert (await api.ok("drivers.matrix", token=api.other))["items"] == []


@EVERY_VERB
async def test_a_verb_is_done_with_its_right_and_refused_without(sqlite_api: Api, verb: Verb) -> None:
    api = sqlite_api
    things = await things_of(api, api.token)
    request = sound_request(verb, things.get(verb.subject or "", ""))
    every_other = [other.action for other in VERBS.values() if other.action != verb.action]
    without = await api.make_token("acme", sorted(set(every_other)))
    refused = await api.call(verb.id, request, token=without)
    assert (refused.status, refused.code) == (403, "FORBIDDEN")
    assert verb.action in refused.message
    newest = (await api.ok("audit.list", {"limit": 1}))["items"][0]
    assert (newest["decision"], newest["action"], newest["detail"]["verb"]) == ("denied", verb.action, verb.id)

    granted = [verb.action, "compute:nodes:read"]
    allowed = await api.make_token("acme", granted)
    assert (await api.call(verb.id, request, token=allowed)).status in (200, 409)


@EVERY_VERB
async def test_a_denial_is_the_same_whether_the_thing_exists_or_not(sqlite_api: Api, verb: Verb) -> None:
    api = sqlite_api
    nothing = await api.make_token("acme", ["compute:nothing:read"])
    things = await things_of(api, api.token)
    answers = []
    for thing in (things.get(verb.subject or "", ""), new_id(_SUBJECTS.get(verb.subject or "", "node"))):
        answer = await api.call(verb.id, sound_request(verb, thing), token=nothing)
        answers.append(same_refusal(answer, thing or "<nothing>"))
    assert answers[0] == answers[1]


@EVERY_VERB
async def test_a_verb_without_a_token_says_how_to_send_one(sqlite_api: Api, verb: Verb) -> None:
    path = verb.path
    answer = await sqlite_api.http("POST", path, b"{}", headers={"authorization": ""})
    assert (answer.status, answer.code) == (401, "UNAUTHENTICATED")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "Authorization: Bearer" in answer.message


async def test_a_token_for_another_tenant_is_refused_before_anything_is_read(api: Api) -> None:
    await things_of(api, api.other)
    for verb in VERBS.values():
        if verb.id == "drivers.operations":
            continue
        request = sound_request(verb, new_id(_SUBJECTS.get(verb.subject or "", "node"))) | {"tenantId": "umbrella"}
        answer = await api.call(verb.id, request)
        assert (answer.status, answer.code) == (403, "FORBIDDEN"), verb.id
        assert "another tenant" in answer.message


async def test_a_token_for_every_tenant_names_the_one_it_means(api: Api) -> None:
    everywhere = await api.make_token("*", ["*"])
    answer = await api.call("nodes.list", token=everywhere)
    assert answer.faults == {"tenantId": "is required: this token is good for every tenant"}
    assert (await api.ok("sites.create", {"name": "lab", "tenantId": "acme"}, token=everywhere))["tenantId"] == "acme"
    events = await api.ok("audit.list", token=everywhere)
    assert [item["tenantId"] for item in events["items"]] == ["acme"]


async def test_a_wrong_an_expired_and_a_revoked_token_each_say_so(api: Api) -> None:
    wrong = await api.call("nodes.list", token=api.token[: len("rwt__") + 26] + "x" * 43)
    assert wrong.message == "this token is not known here: log in with another one"
    expired = await api.make_token("acme", ["*"], ttl_ms=-1)
    assert (await api.call("nodes.list", token=expired)).message == "this token has expired: ask for a new one"
    assert "begins with rwt_" in (await api.call("nodes.list", token="hunter2")).message
    made = await api.ok("tokens.create", {"name": "short", "permissions": ["*"]})
    await api.ok("nodes.list", token=made["token"])
    await api.ok("tokens.revoke", {"tokenId": made["id"]})
    assert (await api.call("nodes.list", token=made["token"])).message == "this token was revoked: ask for a new one"


async def test_a_token_hands_on_only_what_it_may_do_itself(api: Api) -> None:
    narrow = await api.make_token("acme", ["compute:tokens:*", "compute:nodes:read"])
    request = {"name": "child", "permissions": ["compute:nodes:*", "compute:nodes:read", "*"]}
    answer = await api.call("tokens.create", request, token=narrow)
    assert answer.code == "FORBIDDEN"
    assert [issue["message"] for issue in answer.json["error"]["issues"]] == [
        "the asking token has not compute:nodes:*",
        "the asking token has not *",
    ]
    assert await api.ok("tokens.create", {"name": "child", "permissions": ["compute:nodes:read"]}, token=narrow)
    elsewhere = {"name": "child2", "permissions": ["compute:nodes:read"], "forTenant": "*"}
    assert (await api.call("tokens.create", elsewhere, token=narrow)).code == "FORBIDDEN"


async def test_every_mutation_has_its_line_in_the_audit_trail_and_no_read_has(api: Api) -> None:
    things = await things_of(api, api.token)
    before = {line["id"] for line in (await api.ok("audit.list", {"limit": 100}))["items"]}
    assert len(before) == 6
    # What removes comes last, so that everything else finds its thing.
    for verb in sorted(VERBS.values(), key=lambda verb: (verb.method == "delete", verb.method == "revoke")):
        subject = things.get(verb.subject or "", "")
        if verb.id == "nodes.delete":
            for command in (await api.ok("commands.list", {"open": True}))["items"]:
                await api.store.write(_end_all, command["id"])
        answer = await api.call(verb.id, sound_request(verb, subject))
        lines = (await api.ok("audit.list", {"limit": 100}))["items"]
        fresh = [line for line in lines if line["id"] not in before]
        before |= {line["id"] for line in lines}
        expected = 1 if verb.mutation and answer.status == 200 else 0
        assert len(fresh) == expected, (verb.id, answer.body)
        for line in fresh:
            assert line["decision"] == "allowed"
            assert line["action"] == verb.action
            assert line["resource"].startswith(f"{verb.resource}/")
            assert line["requestId"] == answer.headers["x-request-id"]


async def test_a_mutation_that_fails_leaves_no_line_and_no_change(api: Api) -> None:
    await api.site()
    before = (await api.ok("audit.list"))["items"]
    assert (await api.call("sites.create", {"name": "lab"})).code == "CONFLICT"
    assert (await api.ok("audit.list"))["items"] == before


async def test_two_requests_for_one_name_at_once_make_one_thing(api: Api) -> None:
    answers = await asyncio.gather(*(api.call("sites.create", {"name": "same"}) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 7
    assert len((await api.ok("sites.list"))["items"]) == 1


def _failed_workflow(tx: Any, node_id: str) -> None:
    put_workflow(tx, node_id, WorkflowState.FAILED, [step(0, state=StepState.FAILED)], id=WORKFLOW_ID)


def _end_all(tx: Any, command_id: str) -> None:
    tx.run("UPDATE commands SET state = 'cancelled' WHERE id = :id", {"id": command_id})
