"""Sites, agents, join tokens, API tokens and nodes, through the API."""

import asyncio
import itertools

import pytest

from control_plane.store import Row, Transaction
from protocol.ids import new_id
from protocol.join_token import JoinToken
from tests.control_plane.api_harness import AGENT_URL, CA_SHA256, Api


async def test_a_node_is_registered_changed_and_forgotten(api: Api) -> None:
    site_id = await api.site()
    bmc = {"address": "https://192.0.2.10", "credentialRef": "rack7", "tls": "verify"}
    made = await api.ok(
        "nodes.create",
        {"name": "n1", "siteId": "lab", "bmc": bmc, "labels": {"row": "7"}, "drivers": {"console": "ipmi"}},
    )
    assert made["bmc"] == {**bmc, "driver": "redfish"}
    assert made["siteId"] == site_id
    assert await api.ok("nodes.get", {"nodeId": "n1"}) == await api.ok("nodes.get", {"nodeId": made["id"]}) == made
    change = {"nodeId": "n1", "name": "n2", "bmc": {"address": "ipmi://192.0.2.11", "credentialRef": None}}
    changed = await api.ok("nodes.update", change)
    assert changed["bmc"] == {
        "address": "ipmi://192.0.2.11",
        "driver": "ipmi",
        "credentialRef": None,
        "tls": "verify",
    }
    assert (changed["name"], changed["labels"], changed["drivers"]) == ("n2", {"row": "7"}, {"console": "ipmi"})
    assert await api.ok("nodes.delete", {"nodeId": "n2"}) == {"id": made["id"]}
    assert (await api.call("nodes.get", {"nodeId": "n2"})).code == "NOT_FOUND"


@pytest.mark.parametrize(
    ("address", "driver"),
    [
        ("https://192.0.2.1:8443", "redfish"),
        ("ipmi://192.0.2.1", "ipmi"),
        ("ssh://192.0.2.1", "ssh"),
        ("simulated://m1", "simulated"),
        ("192.0.2.1", "auto"),
    ],
)
async def test_the_address_names_the_driver_unless_the_request_does(
    sqlite_api: Api, address: str, driver: str
) -> None:
    await sqlite_api.site()
    request = {"name": "n1", "siteId": "lab", "bmc": {"address": address}}
    assert (await sqlite_api.ok("nodes.create", request))["bmc"]["driver"] == driver
    named = {"name": "n2", "siteId": "lab", "bmc": {"address": address, "driver": "ipmi"}}
    assert (await sqlite_api.ok("nodes.create", named))["bmc"]["driver"] == "ipmi"


async def test_names_are_taken_once_in_a_tenant(api: Api) -> None:
    await api.site()
    await api.node("n1")
    await api.node("n2")
    again = {"name": "n1", "siteId": "lab", "bmc": {"address": "simulated://x"}}
    assert (await api.call("nodes.create", again)).message == "there is a node named 'n1' already"
    assert (await api.call("nodes.update", {"nodeId": "n2", "name": "n1"})).code == "CONFLICT"
    assert (await api.call("sites.create", {"name": "lab"})).message == "there is a site named 'lab' already"
    await api.site("other")
    assert (await api.call("sites.update", {"siteId": "other", "name": "lab"})).code == "CONFLICT"


async def test_a_node_of_an_unknown_site_is_refused(api: Api) -> None:
    request = {"name": "n1", "siteId": "nowhere", "bmc": {"address": "simulated://x"}}
    answer = await api.call("nodes.create", request)
    assert (answer.code, answer.message) == ("NOT_FOUND", "there is no site 'nowhere'")


async def test_a_node_with_an_open_command_is_not_forgotten(api: Api) -> None:
    await api.lab()
    await api.ok("drivers.invoke", {"nodeId": "n1", "operation": "power.getPower", "waitMs": 0})
    answer = await api.call("nodes.delete", {"nodeId": "n1"})
    assert answer.code == "INVALID_STATE"
    assert "1 open commands" in answer.message


async def test_pages_have_no_gap_and_no_repeat_while_rows_come_and_go(api: Api) -> None:
    await api.site()
    made = [await api.node(f"n{n}") for n in range(25)]
    seen: list[str] = []
    cursor = None
    for turn in itertools.count():
        page = await api.ok("nodes.list", {"limit": 7} | ({"cursor": cursor} if cursor else {}))
        seen += [item["id"] for item in page["items"]]
        cursor = page["cursor"]
        if cursor is None:
            break
        # One that was seen goes, and two come.
        await api.ok("nodes.delete", {"nodeId": seen[turn]})
        await asyncio.gather(api.node(f"late{turn}a"), api.node(f"late{turn}b"))
    assert len(seen) == len(set(seen))
    assert set(made) <= set(seen)


async def test_newest_first_pages_are_not_shifted_by_newer_rows(api: Api) -> None:
    await api.lab()
    invoke = {"nodeId": "n1", "operation": "power.getPower", "waitMs": 0}
    made = [(await api.ok("drivers.invoke", invoke))["id"] for _ in range(11)]
    seen: list[str] = []
    cursor = None
    while True:
        page = await api.ok("commands.list", {"limit": 3} | ({"cursor": cursor} if cursor else {}))
        seen += [item["id"] for item in page["items"]]
        cursor = page["cursor"]
        if cursor is None:
            break
        await api.ok("drivers.invoke", invoke)
    assert seen == made[::-1]


async def test_nodes_of_one_site(api: Api) -> None:
    await api.site("lab")
    await api.site("far")
    near, _ = await api.node("n1", site="lab"), await api.node("n2", site="far")
    assert [item["id"] for item in (await api.ok("nodes.list", {"siteId": "lab"}))["items"]] == [near]


async def test_a_join_token_is_shown_once_and_carries_the_cas_hash(api: Api) -> None:
    await api.site()
    made = await api.ok("joinTokens.create", {"siteId": "lab", "ttl": "10m"})
    token = JoinToken.parse(made["token"])
    assert (token.ca_sha256, token.id, made["agentUrl"]) == (CA_SHA256, made["id"], AGENT_URL)
    listed = (await api.ok("joinTokens.list"))["items"]
    assert [item["id"] for item in listed] == [made["id"]]
    assert "token" not in listed[0]


async def test_a_join_tokens_site_is_made_when_that_is_asked_for(api: Api) -> None:
    answer = await api.call("joinTokens.create", {"siteId": "new"})
    assert (answer.code, answer.message) == (
        "NOT_FOUND",
        "there is no site 'new': make it first, or ask for createSite",
    )
    made = await api.ok("joinTokens.create", {"siteId": "new", "createSite": True})
    assert (await api.ok("sites.get", {"siteId": "new"}))["id"] == made["siteId"]
    again = await api.ok("joinTokens.create", {"siteId": "new", "createSite": True})
    assert again["siteId"] == made["siteId"]


async def test_a_join_token_is_ended_before_it_is_used_and_not_after(api: Api) -> None:
    await api.site()
    made = await api.ok("joinTokens.create", {"siteId": "lab"})
    ended = await api.ok("joinTokens.revoke", {"joinTokenId": made["id"]})
    assert ended["expiresAt"] < made["expiresAt"]
    assert await api.ok("joinTokens.revoke", {"joinTokenId": made["id"]}) == ended
    used = await api.ok("joinTokens.create", {"siteId": "lab"})
    await api.store.write(_use, used["id"])
    answer = await api.call("joinTokens.revoke", {"joinTokenId": used["id"]})
    assert (answer.code, "revoke agent agent_x instead" in answer.message) == ("INVALID_STATE", True)


async def test_an_agent_is_shown_with_its_connection_and_denied_for_ever(api: Api) -> None:
    site_id = await api.site()
    agent_id = await api.agent(site_id)
    shown = await api.ok("agents.get", {"agentId": agent_id})
    assert (shown["connected"], shown["hostName"], shown["siteId"]) == (True, "site-host", site_id)
    assert [row["agentId"] for row in (await api.ok("drivers.matrix"))["items"]] == [agent_id]
    revoked = await api.ok("agents.revoke", {"agentId": agent_id, "reason": "stolen"})
    assert revoked["revokedReason"] == "stolen"
    assert (await api.ok("sites.get", {"siteId": "lab"}))["agentId"] is None
    assert (await api.ok("drivers.matrix"))["items"] == []
    answer = await api.call("sites.update", {"siteId": "lab", "agentId": agent_id})
    assert (answer.code, "it was revoked" in answer.message) == ("INVALID_STATE", True)


async def test_a_site_is_given_to_another_of_ones_own_agents(api: Api) -> None:
    first_site, second_site = await api.site(), await api.site("far")
    await api.agent(first_site)
    second = await api.agent(second_site)
    assert (await api.ok("sites.update", {"siteId": "lab", "agentId": second}))["agentId"] == second
    assert (await api.ok("sites.update", {"siteId": "lab", "agentId": None}))["agentId"] is None
    foreign = await api.agent(await api.site(token=api.other), "umbrella")
    assert (await api.call("sites.update", {"siteId": "lab", "agentId": foreign})).code == "NOT_FOUND"
    assert (await api.call("sites.update", {"siteId": "lab", "agentId": new_id("agent")})).code == "NOT_FOUND"


async def test_a_tokens_secret_is_in_no_row_and_no_list(api: Api) -> None:
    made = await api.ok("tokens.create", {"name": "ci", "permissions": ["compute:*:read"], "ttl": "1d"})
    secret = made["token"].split("_", 2)[2]
    for table in ("tokens", "audit", "events"):
        assert secret not in str(await api.store.read(_everything, table))
    assert secret not in str(await api.ok("tokens.list"))
    assert (await api.ok("nodes.list", token=made["token"]))["items"] == []
    assert (await api.call("sites.create", {"name": "x"}, token=made["token"])).code == "FORBIDDEN"
    answer = await api.call("tokens.create", {"name": "ci", "permissions": ["*"]})
    assert (answer.code, "revoke it" in answer.message) == ("CONFLICT", True)


async def test_the_operations_are_listed_with_their_schemas(sqlite_api: Api) -> None:
    listed = await sqlite_api.ok("drivers.operations", {"concern": "power"})
    assert [item["id"] for item in listed["items"]] == ["power.getPower", "power.setPower"]
    set_power = listed["items"][1]
    name = set_power["arguments"]["$ref"].rpartition("/")[2]
    assert "action" in listed["definitions"][name]["properties"]
    assert len((await sqlite_api.ok("drivers.operations"))["items"]) > 30


def _use(tx: Transaction, token_id: str) -> None:
    tx.run("UPDATE join_tokens SET used_at = 1, used_by = 'agent_x' WHERE id = :id", {"id": token_id})


def _everything(tx: Transaction, table: str) -> list[Row]:
    return tx.all(f"SELECT * FROM {table}")
