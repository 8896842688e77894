"""Fault rules: what they select, what they do to an answer or a connection, and how long they hold."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from simulators.redfish import Drop, Effect, FaultFileError, FaultRule, PowerState, RawAnswer, load_faults
from simulators.redfish.accounts import LoginKind
from simulators.redfish.faults import merge_patch
from tests.simulators.conftest import RESET, SYSTEM, Start, basic


async def test_a_rule_holds_for_its_count_and_after_its_first_matches(start: Start) -> None:
    bmc = await start(faults=[FaultRule(name="busy", method="GET", path=SYSTEM, status=503, after=1, count=2)])

    statuses = [(await bmc.get(SYSTEM)).status for _ in range(5)]

    assert statuses == [200, 503, 503, 200, 200]
    assert bmc.server.faults.hits("busy") == 2


@pytest.mark.parametrize(
    ("rule", "hit"),
    [
        (FaultRule(path="*/systems/1"), True),
        (FaultRule(path="/redfish/v1/Systems/1/"), True),
        (FaultRule(path="/redfish/v1/Systems"), False),
        (FaultRule(method="GET,PATCH"), True),
        (FaultRule(method="PATCH"), False),
        (FaultRule(login=LoginKind.BASIC), True),
        (FaultRule(login=LoginKind.SESSION), False),
        (FaultRule(match_headers={"user-agent": "Python*"}), True),
        (FaultRule(match_headers={"If-Match": "*"}), False),
        (FaultRule(match_body={"x": 1}), False),
    ],
)
async def test_a_rule_selects_by_path_method_login_headers_and_body(start: Start, rule: FaultRule, hit: bool) -> None:
    bmc = await start()
    name = bmc.server.faults.add(rule)

    await bmc.get(SYSTEM)

    assert bmc.server.faults.hits(name) == int(hit)


async def test_a_body_selects_by_a_part_of_it(start: Start) -> None:
    rule = FaultRule(method="POST", match_body={"ResetType": "On"}, status=409, body={"error": {"code": "x"}})
    bmc = await start(faults=[rule])
    bmc.server.state.set_power("Off")

    assert (await bmc.reset("On")).status == 409
    assert (await bmc.reset("ForceOff")).status == 204
    assert [reset.reset_type for reset in bmc.server.state.resets] == ["ForceOff"]


@pytest.mark.case("B23")
async def test_a_sequence_gives_successive_answers_null_included(start: Start) -> None:
    states: list[Any] = [None, "Reset", "PoweringOn", "On"]
    effects = tuple(Effect(set={"/PowerState": state}) for state in states)
    bmc = await start(faults=[FaultRule(method="GET", path=SYSTEM, sequence=effects)])
    bmc.server.state.set_power("Off")

    seen = [(await bmc.get(SYSTEM)).data["PowerState"] for _ in range(5)]

    assert seen == [None, "Reset", "PoweringOn", "On", "Off"]


async def test_a_sequence_with_a_larger_count_repeats_its_last_effect(start: Start) -> None:
    rule = FaultRule(path=SYSTEM, sequence=(Effect(status=500), Effect(status=503)), count=4)
    bmc = await start(faults=[rule])

    assert [(await bmc.get(SYSTEM)).status for _ in range(5)] == [500, 503, 503, 503, 200]


async def test_merge_changes_the_answer_and_not_the_state(start: Start) -> None:
    bmc = await start(
        faults=[FaultRule(path=SYSTEM, merge={"Boot": None, "Status": {"Health": "Critical"}}, count=1)]
    )

    spoiled = (await bmc.get(SYSTEM)).data
    true = (await bmc.get(SYSTEM)).data

    assert "Boot" not in spoiled
    assert spoiled["Status"] == {"State": "Enabled", "Health": "Critical", "HealthRollup": "OK"}
    assert true["Boot"]
    assert true["Status"]["Health"] == "OK"


async def test_what_a_rule_does_to_a_member_shows_in_its_expanded_collection_too(start: Start) -> None:
    bmc = await start(faults=[FaultRule(name="off", path=SYSTEM, set={"/PowerState": "Off"}, count=2)])

    expanded = [(await bmc.get("/redfish/v1/Systems?$expand=.")).data["Members"][0] for _ in range(3)]

    assert [member["PowerState"] for member in expanded] == ["Off", "Off", "On"]
    assert bmc.server.faults.hits("off") == 2


async def test_a_member_that_a_rule_makes_fail_stays_a_link_and_the_rule_waits(start: Start) -> None:
    bmc = await start(faults=[FaultRule(name="busy", path=SYSTEM, status=503, count=1)])

    (member,) = (await bmc.get("/redfish/v1/Systems?$expand=.")).data["Members"]

    assert member == {"@odata.id": SYSTEM}
    assert [(await bmc.get(SYSTEM)).status for _ in range(2)] == [503, 200]


@pytest.mark.case("B28")
async def test_a_late_answer_comes_after_the_request_was_executed(start: Start) -> None:
    bmc = await start(faults=[FaultRule(method="POST", path=RESET, answer_late=30)])

    with pytest.raises(TimeoutError):
        await bmc.post(RESET, {"ResetType": "ForceOff"}, timeout=aiohttp.ClientTimeout(total=0.3))

    assert bmc.server.state.power() is PowerState.OFF
    assert len(bmc.server.state.resets) == 1
    assert bmc.server.journal.entries("POST")[0].executed


async def test_latency_comes_before_the_request_is_executed(start: Start) -> None:
    bmc = await start(faults=[FaultRule(method="POST", path=RESET, latency=30)])

    with pytest.raises(TimeoutError):
        await bmc.post(RESET, {"ResetType": "ForceOff"}, timeout=aiohttp.ClientTimeout(total=0.3))

    assert bmc.server.state.power() is PowerState.ON


@pytest.mark.parametrize(("drop", "power"), [(Drop.BEFORE, PowerState.ON), (Drop.AFTER, PowerState.OFF)])
async def test_a_cut_connection_is_cut_before_or_after_execution(start: Start, drop: Drop, power: PowerState) -> None:
    bmc = await start(faults=[FaultRule(method="POST", path=RESET, drop=drop, count=1)])

    with pytest.raises(aiohttp.ClientError):
        await bmc.reset("ForceOff")

    assert bmc.server.state.power() is power
    entry = bmc.server.journal.entries("POST")[0]
    assert (entry.executed, entry.status) == (drop is Drop.AFTER, None)
    assert (await bmc.get(SYSTEM)).status == 200, "the service itself goes on"


async def test_a_status_answers_without_execution_unless_told_to_execute(start: Start) -> None:
    rules = [
        FaultRule(method="POST", status=500, count=1),
        FaultRule(method="POST", status=500, execute=True, count=1),
    ]
    bmc = await start(faults=rules)

    first = await bmc.reset("ForceRestart")
    second = await bmc.reset("ForceRestart")

    assert (first.status, second.status) == (500, 500)
    assert len(bmc.server.state.resets) == 1


async def test_a_web_page_comes_instead_of_json(start: Start) -> None:
    bmc = await start(faults=[FaultRule(path="/redfish/v1", raw=RawAnswer(text="<html>log in</html>"))])

    reply = await bmc.get("/redfish/v1/")

    assert (reply.status, reply.headers["Content-Type"], reply.body) == (200, "text/html", b"<html>log in</html>")


async def test_an_answer_breaks_off_in_the_middle(start: Start) -> None:
    bmc = await start(faults=[FaultRule(path=SYSTEM, raw=RawAnswer(truncate_at=100))])

    with pytest.raises(aiohttp.ClientPayloadError):
        await bmc.get(SYSTEM)


async def test_an_answer_without_end_stops_when_the_client_leaves(start: Start) -> None:
    bmc = await start(faults=[FaultRule(path=SYSTEM, raw=RawAnswer(megabytes=100_000))])
    received = 0

    async with aiohttp.ClientSession() as session, session.get(bmc.server.url + SYSTEM, headers=basic()) as answer:
        async for chunk in answer.content.iter_chunked(1 << 20):
            received += len(chunk)
            if received > 8 << 20:
                answer.close()
                break

    assert received > 8 << 20
    assert (await bmc.get("/redfish/v1/")).status == 200


@pytest.mark.case("B30")
async def test_headers_are_replaced_doubled_and_removed(start: Start) -> None:
    rules = [
        FaultRule(headers={"ETag": 'W/"1"'}, count=1),
        FaultRule(add_headers={"ETag": '"second"'}, count=1),
        FaultRule(remove_headers=("etag",), count=1),
        FaultRule(headers={"ETag": ""}, count=1),
    ]
    bmc = await start(faults=rules)

    tags = [(await bmc.get(SYSTEM)).headers.getall("ETag", []) for _ in range(5)]

    assert tags[0] == ['W/"1"']
    assert tags[1][1:] == ['"second"']
    assert tags[2] == []
    assert tags[3] == [""]
    assert len(tags[4]) == 1


@pytest.mark.case("B29")
async def test_an_action_with_an_etag_can_be_refused(start: Start) -> None:
    bmc = await start(
        faults=[FaultRule(method="POST", path="*/Actions/*", match_headers={"If-Match": "*"}, status=412)]
    )

    refused = await bmc.post(RESET, {"ResetType": "ForceRestart"}, headers={"If-Match": '"x"'})
    accepted = await bmc.reset("ForceRestart")

    assert (refused.status, accepted.status) == (412, 204)
    assert len(bmc.server.state.resets) == 1


async def test_other_requests_go_on_while_one_is_delayed(start: Start) -> None:
    bmc = await start(faults=[FaultRule(path=SYSTEM, latency=30)])
    slow = asyncio.create_task(bmc.get(SYSTEM))

    quick = await bmc.get("/redfish/v1/Chassis/1")

    assert quick.status == 200
    assert not slow.done()
    slow.cancel()


async def test_faults_and_journal_are_driven_over_http_where_enabled(start: Start) -> None:
    bmc = await start(control=True)

    added = await bmc.post("/_simulator/faults", {"name": "down", "path": "*/Systems/*", "status": 503})
    down = await bmc.get(SYSTEM)
    listed = await bmc.get("/_simulator/faults")
    await bmc.delete("/_simulator/faults/down")
    up = await bmc.get(SYSTEM)
    journal = await bmc.get("/_simulator/journal?method=GET")
    state = await bmc.get("/_simulator/state")

    assert added.data == {"names": ["down"]}
    assert (down.status, up.status) == (503, 200)
    assert listed.data["faults"][0]["hits"] == 1
    assert [entry["status"] for entry in journal.data["entries"]] == [503, 200]
    assert state.data["power"] == {SYSTEM: "On"}


async def test_a_wrong_rule_over_http_is_told_what_is_wrong(start: Start) -> None:
    bmc = await start(control=True)

    reply = await bmc.post("/_simulator/faults", {"faults": [{"stauts": 503}, {"status": 42}]})

    assert reply.status == 400
    assert "rule 1" in reply.data["error"]
    assert "stauts" in reply.data["error"]
    assert "rule 2: status 42" in reply.data["error"]
    assert len(bmc.server.faults) == 0


async def test_the_control_resource_is_absent_unless_enabled(start: Start) -> None:
    bmc = await start()

    assert (await bmc.get("/_simulator/faults")).status == 404


TOML = """
[[faults]]
name = "late"
method = "POST"
path = "*/Actions/ComputerSystem.Reset"
answer_late = 2.5

[[faults]]
path = "*/Systems/1"
sequence = [{ status = 503 }, { merge = { PowerState = "Reset" } }]
"""


def test_rules_are_read_from_toml_and_json(tmp_path: Path) -> None:
    toml, plain = tmp_path / "faults.toml", tmp_path / "faults.json"
    toml.write_text(TOML)
    plain.write_text(json.dumps({"faults": [{"path": "*", "drop": "after", "count": 1}]}))

    rules = load_faults(toml)

    assert rules[0].answer_late == 2.5
    assert [effect.status for effect in rules[1].sequence] == [503, None]
    assert load_faults(plain)[0].drop is Drop.AFTER


def test_a_fault_file_names_every_fault_at_once(tmp_path: Path) -> None:
    file = tmp_path / "faults.json"
    file.write_text('[{"drop": "sometimes"}, {"latency": -1, "count": 0}, {"path": "*"}]')

    with pytest.raises(FaultFileError) as caught:
        load_faults(file)

    assert str(file) in str(caught.value)
    assert "rule 1: Invalid enum value 'sometimes'" in str(caught.value)
    assert "rule 2: latency must not be negative" in str(caught.value)
    assert "rule 2: count must be 1 or more" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [1]}, {"a": [2, 3]}, {"a": [2, 3]}),
        (["a"], {"x": 1}, {"x": 1}),
        ({"a": 1}, "text", "text"),
    ],
)
def test_a_merge_patch_merges_as_rfc_7396_says(target: Any, patch: Any, merged: Any) -> None:
    assert merge_patch(target, patch) == merged
