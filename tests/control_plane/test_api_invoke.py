"""`drivers.invoke` and what becomes of its command, as an operator sees it."""

import asyncio
from typing import Any

import msgspec
import pytest

from control_plane.commands import advance, settle
from control_plane.records import CommandRow
from control_plane.sessions import close_session
from control_plane.store import Transaction
from protocol.commands import CommandState, Ending, Outcome
from protocol.errors import BmcMessage, Failure
from protocol.frames import Progress
from protocol.ids import new_id
from protocol.operations import OPERATIONS
from tests.control_plane.api_harness import Api

READ = {"nodeId": "n1", "operation": "power.getPower"}
DONE = Ending(Outcome.SUCCEEDED, result={"state": "on", "raw": "On"})


async def answering(api: Api, ending: Ending) -> None:
    """The agent's part, once: takes the next command that is sent, and reports this ending."""
    async with asyncio.timeout(10):
        while not api.links.sent:
            await asyncio.sleep(0.005)
    row = api.links.sent.pop(0)
    await api.store.write(settle, row.agent_id, row.id, ending)


async def invoke(api: Api, request: dict[str, Any], ending: Ending = DONE) -> Any:
    answer, _ = await asyncio.gather(api.ok("drivers.invoke", request), answering(api, ending))
    return answer


async def test_an_operation_is_sent_to_the_sites_agent_and_its_result_comes_back(api: Api) -> None:
    agent_id = await api.lab()
    sent: list[CommandRow] = api.links.sent
    answering_task = asyncio.create_task(api.ok("drivers.invoke", READ))
    async with asyncio.timeout(10):
        while not sent:
            await asyncio.sleep(0.005)
    row = sent.pop()
    assert row.payload == {
        "driver": "simulated",
        "concern": "power",
        "operation": "getPower",
        "args": {},
        "targetNodeId": row.node_id,
        "target": {"address": "simulated://n1", "credentialRef": None, "tls": "first-use"},
    }
    assert (row.agent_id, row.sent_session) == (agent_id, api.links.sessions[agent_id].id)
    await api.store.write(settle, agent_id, row.id, DONE)
    command = await answering_task
    assert (command["state"], command["result"], command["error"]) == ("succeeded", DONE.result, None)
    assert await api.ok("commands.get", {"commandId": row.id}) == command


async def test_a_failure_keeps_the_bmcs_own_words(api: Api) -> None:
    await api.lab()
    failure = Failure("BMC_ERROR", "the BMC refused", bmc=[BmcMessage("Base.1.8.GeneralError", "no")])
    command = await invoke(api, READ, Ending(Outcome.FAILED, error=failure))
    assert command["state"] == "failed"
    assert msgspec.convert(command["error"], Failure) == failure


async def test_commands_are_counted_by_the_state_that_they_reached(sqlite_api: Api) -> None:
    await sqlite_api.lab()
    await invoke(sqlite_api, READ)
    metrics = (await sqlite_api.http("GET", "/metrics")).body.decode()
    assert 'rackwright_commands_total{state="queued"} 1.0' in metrics
    assert 'rackwright_commands_total{state="succeeded"} 1.0' in metrics


async def test_it_is_marked_as_sent_before_it_is_sent(api: Api) -> None:
    await api.lab()
    marked = []

    async def deliver(row: CommandRow, now: int | None = None) -> None:
        stored = await api.ok("commands.get", {"commandId": row.id})
        marked.append((stored["state"], row.sent_session, row.sent_journal))

    api.links.deliver = deliver  # type: ignore[method-assign]
    await api.ok("drivers.invoke", {**READ, "waitMs": 0})
    session = next(iter(api.links.sessions.values()))
    assert marked == [("queued", session.id, "jrn_1")]


async def test_a_connection_that_was_superseded_elsewhere_gets_nothing(api: Api) -> None:
    agent_id = await api.lab()
    old = api.links.sessions[agent_id]
    await api.connect(agent_id, "jrn_2")
    api.links.sessions[agent_id] = old
    command = await api.ok("drivers.invoke", {**READ, "waitMs": 0})
    assert api.links.sent == []
    assert command["state"] == "queued"


async def test_an_agent_that_is_away_is_waited_for(api: Api) -> None:
    site_id = await api.site()
    await api.agent(site_id, online=False)
    await api.node()
    command = await api.ok("drivers.invoke", {**READ, "waitMs": 20})
    assert (command["state"], command["result"], api.links.sent) == ("queued", None, [])


async def test_a_site_without_an_agent_is_told_how_to_get_one(api: Api) -> None:
    await api.site()
    await api.node()
    answer = await api.call("drivers.invoke", READ)
    assert (answer.status, answer.code) == (409, "INVALID_STATE")
    assert answer.message.startswith("site 'lab' has no agent: make a join token for it")


async def test_the_same_key_gives_the_same_command_and_its_end(api: Api) -> None:
    await api.lab()
    request = {**READ, "key": "nightly/7"}
    first = await invoke(api, request)
    second = await api.ok("drivers.invoke", request)
    assert second == first
    assert api.links.sent == []


@pytest.mark.parametrize(
    "other", [{"operation": "boot.getBoot"}, {"operation": "power.setPower", "args": {"action": "off"}}]
)
async def test_a_key_that_stands_for_another_request_is_a_conflict_and_not_its_success(
    api: Api, other: dict[str, object]
) -> None:
    await api.lab()
    request = {**READ, "key": "nightly/7"}
    first = await invoke(api, request)
    answer = await api.call("drivers.invoke", {**request, **other})
    assert (answer.status, answer.code) == (409, "CONFLICT")
    assert first["id"] in answer.message


async def test_many_requests_of_one_key_at_once_are_one_command(api: Api) -> None:
    await api.lab()
    request = {**READ, "key": "once", "waitMs": 0}
    answers = await asyncio.gather(*(api.ok("drivers.invoke", request) for _ in range(8)))
    assert len({answer["id"] for answer in answers}) == 1
    assert len(api.links.sent) == 1


@pytest.mark.parametrize(
    ("node_drivers", "asked", "chosen"),
    [({}, None, "simulated"), ({"power": "ipmi"}, None, "ipmi"), ({"power": "ipmi"}, "redfish", "redfish")],
)
async def test_the_driver_is_the_asked_one_else_the_concerns_else_the_bmcs(
    sqlite_api: Api, node_drivers: dict[str, str], asked: str | None, chosen: str
) -> None:
    api = sqlite_api
    await api.agent(await api.site())
    await api.node(drivers=node_drivers)
    command = await api.ok("drivers.invoke", {**READ, "waitMs": 0} | ({"driver": asked} if asked else {}))
    assert command["driver"] == chosen


async def test_an_in_band_driver_needs_an_agent_on_the_machine(sqlite_api: Api) -> None:
    await sqlite_api.lab()
    answer = await sqlite_api.call("drivers.invoke", {**READ, "driver": "linux"})
    assert (answer.code, "only steps of a profile reach" in answer.message) == ("INVALID_STATE", True)


async def test_a_command_lasts_as_long_as_its_operation_or_as_long_as_asked(sqlite_api: Api) -> None:
    await sqlite_api.lab()
    for more, seconds in (
        ({}, OPERATIONS["power.getPower"].timeout),
        ({"timeout": "5m"}, 300),
        ({"timeout": 1500}, 1.5),
    ):
        await sqlite_api.ok("drivers.invoke", {**READ, **more, "waitMs": 0})
        row = sqlite_api.links.sent.pop()
        assert row.not_after - row.created_at == seconds * 1000


async def test_what_repeating_means_follows_the_arguments(sqlite_api: Api) -> None:
    await sqlite_api.lab()
    for action, repeat in (("on", "converge"), ("reset", "once")):
        request = {"nodeId": "n1", "operation": "power.setPower", "args": {"action": action}, "waitMs": 0}
        assert (await sqlite_api.ok("drivers.invoke", request))["repeat"] == repeat


async def test_a_long_poll_answers_at_the_end_and_not_before(api: Api) -> None:
    await api.lab()
    command = await api.ok("drivers.invoke", {**READ, "waitMs": 0})
    request = {"commandId": command["id"], "waitMs": 10_000}
    waiting = asyncio.create_task(api.ok("commands.get", request))
    await api.store.write(advance, command["agentId"], command["id"], CommandState.RUNNING)
    assert not waiting.done()
    await api.store.write(settle, command["agentId"], command["id"], DONE)
    assert (await waiting)["state"] == "succeeded"
    assert (await api.ok("commands.get", request))["state"] == "succeeded"


async def test_a_long_poll_answers_when_the_process_stops(api: Api) -> None:
    await api.lab()
    waiting = asyncio.create_task(api.ok("drivers.invoke", {**READ, "waitMs": 60_000}))
    async with asyncio.timeout(10):
        while not api.links.sent:
            await asyncio.sleep(0.005)
    await api.waiters.stop()
    assert (await waiting)["state"] == "queued"
    assert (await api.ok("drivers.invoke", {**READ, "waitMs": 60_000}))["state"] == "queued"


async def test_the_end_is_seen_by_polling_alone_when_every_hint_is_lost(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.lab()
    monkeypatch.setattr(api.waiters, "_hint", lambda _: None)
    api.waiters._stop_listening()
    assert (await invoke(api, READ))["state"] == "succeeded"


async def test_the_last_news_of_a_running_command_is_shown(api: Api) -> None:
    await api.lab()
    command = await api.ok("drivers.invoke", {**READ, "waitMs": 0})
    api.links.progress[command["id"]] = Progress(id=command["id"], message="half way", percent=50.0)
    shown = await api.ok("commands.get", {"commandId": command["id"]})
    assert shown["progress"] == {"message": "half way", "percent": 50.0}
    (listed,) = (await api.ok("commands.list", {"open": True}))["items"]
    assert listed["progress"] == shown["progress"]


async def test_who_is_to_do_a_command_is_shown_until_it_has_ended(api: Api) -> None:
    agent_id = await api.lab()
    session = api.links.sessions[agent_id]
    command = await api.ok("drivers.invoke", {**READ, "waitMs": 0})
    shown = await api.ok("commands.get", {"commandId": command["id"]})
    assert shown["agent"]["connected"] is True
    assert (shown["agent"]["site"], bool(shown["agent"]["since"])) == ("lab", True)

    await api.store.write(close_session, session.id, "cut")
    gone = (await api.ok("commands.get", {"commandId": command["id"]}))["agent"]
    assert (gone["connected"], gone["since"] >= shown["agent"]["since"]) == (False, True)

    await api.store.write(settle, agent_id, command["id"], DONE)
    assert (await api.ok("commands.get", {"commandId": command["id"]}))["agent"] is None


async def test_an_agent_that_has_never_connected_has_no_since(api: Api) -> None:
    await api.agent(await api.site(), online=False)
    await api.node()
    command = await api.ok("drivers.invoke", {**READ, "waitMs": 0})
    standing = (await api.ok("commands.get", {"commandId": command["id"]}))["agent"]
    assert (standing["connected"], standing["since"]) == (False, None)


async def test_a_command_is_cancelled_at_once_or_by_its_agent(api: Api) -> None:
    site_id = await api.site()
    agent_id = await api.agent(site_id, online=False)
    await api.node()
    unsent = await api.ok("drivers.invoke", {**READ, "waitMs": 0})
    assert (await api.ok("commands.cancel", {"commandId": unsent["id"]}))["state"] == "cancelled"
    await api.connect(agent_id)
    sent = await api.ok("drivers.invoke", {**READ, "waitMs": 0})
    asked = await api.ok("commands.cancel", {"commandId": sent["id"], "reason": "mistake"})
    assert (asked["state"], asked["cancelReason"]) == ("queued", "mistake")
    open_now = (await api.ok("commands.list", {"open": True}))["items"]
    assert [item["id"] for item in open_now] == [sent["id"]]


async def test_an_ending_that_came_late_is_shown_beside(api: Api) -> None:
    await api.lab()
    command = await api.ok("drivers.invoke", {**READ, "waitMs": 0})
    given_up = Ending(Outcome.FAILED, error=Failure("OUTCOME_UNKNOWN", "gone"))
    await api.store.write(settle, command["agentId"], command["id"], given_up)
    await api.store.write(settle, command["agentId"], command["id"], DONE)
    shown = await api.ok("commands.get", {"commandId": command["id"]})
    assert (shown["state"], shown["error"]["code"]) == ("failed", "OUTCOME_UNKNOWN")
    assert shown["lateEnding"]["result"] == DONE.result


async def test_an_invocation_is_in_the_audit_trail_by_the_node_and_who_asked(api: Api) -> None:
    await api.lab()
    command = await api.ok("drivers.invoke", {**READ, "waitMs": 0})
    line = (await api.ok("audit.list", {"limit": 1}))["items"][0]
    assert line["resource"] == f"compute-node/{command['nodeId']}"
    assert line["actor"] == command["createdBy"]
    assert line["detail"] == {"commandId": command["id"], "operation": "power.getPower"}


async def test_a_node_of_another_tenant_is_never_driven(api: Api) -> None:
    await api.lab()
    answer = await api.call("drivers.invoke", READ, token=api.other)
    assert answer.code == "NOT_FOUND"
    assert await api.store.read(_count) == 0


async def test_the_commands_of_one_node(api: Api) -> None:
    await api.lab()
    await api.node("n2")
    for node in ("n1", "n2"):
        await api.ok("drivers.invoke", {**READ, "nodeId": node, "waitMs": 0})
    items = (await api.ok("commands.list", {"nodeId": "n2"}))["items"]
    assert [item["operation"] for item in items] == ["power.getPower"]
    assert (await api.call("commands.list", {"nodeId": new_id("node")})).code == "NOT_FOUND"


def _count(tx: Transaction) -> int:
    row = tx.one("SELECT COUNT(*) FROM commands")
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize(
    ("operation", "args", "path"),
    [
        ("virtual-media.insertMedia", {"image": "https://reader:Pa55word@files.example/a.iso"}, "args.image"),
        (
            "firmware.updateFirmware",
            {"updates": [{"image": "https://h/a"}, {"image": "ftp://reader:Pa55word@files.example/b"}]},
            "args.updates[1].image",
        ),
    ],
)
async def test_an_address_with_a_password_is_refused_and_where_it_belongs_is_told(
    api: Api, operation: str, args: dict[str, Any], path: str
) -> None:
    await api.lab()
    answer = await api.call("drivers.invoke", {"nodeId": "n1", "operation": operation, "args": args})
    assert answer.status == 400
    assert path in answer.body.decode()
    assert "rackwright agent credentials set images/HOST" in answer.body.decode()
    assert "Pa55word" not in answer.body.decode()
    assert api.links.sent == []
