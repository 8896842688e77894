"""How a machine's ramdisk is started, and tickets for set-ups by hand, over the API."""

import pytest

from control_plane.boot_settings import parse_port, text_of_port
from protocol.boot_ticket import decode_word
from protocol.join_token import JoinToken
from tests.control_plane.api_harness import Api

LINE = "b8:2a:72:dd:a0:01 vlan=7 address=192.0.2.5/24 address=2001:db8::5/64 gateway=192.0.2.1 dns=192.0.2.53"


async def test_a_machine_asks_by_dhcp_unless_something_else_was_said(sqlite_api: Api) -> None:
    await sqlite_api.site()
    node_id = await sqlite_api.node()
    shown = await sqlite_api.ok("nodes.getBoot", {"nodeId": node_id})
    assert (shown["ports"], shown["serialConsole"]) == ([], "ttyS0,115200")


async def test_what_was_said_of_its_ports_is_on_its_next_ticket(sqlite_api: Api) -> None:
    await sqlite_api.site()
    node_id = await sqlite_api.node()
    await sqlite_api.ok("nodes.setBoot", {"nodeId": node_id, "ports": [LINE], "serialConsole": "ttyS1,57600"})
    assert (await sqlite_api.ok("nodes.getBoot", {"nodeId": node_id}))["ports"] == [LINE]
    made = await sqlite_api.ok("nodes.createTicket", {"nodeId": node_id})
    ticket = decode_word(made["word"])
    assert ticket.serial_console == "ttyS1,57600"
    (port,) = ticket.network.interfaces
    assert (port.vlan, port.addresses) == (7, ["192.0.2.5/24", "2001:db8::5/64"])


async def test_a_ticket_is_for_one_machine_and_one_role(sqlite_api: Api) -> None:
    await sqlite_api.site()
    node_id = await sqlite_api.node()
    made = await sqlite_api.ok("nodes.createTicket", {"nodeId": node_id, "role": "daemon"})
    ticket = decode_word(made["word"])
    assert (ticket.node_id, ticket.token.reveal()) == (node_id, made["token"])
    tokens = (await sqlite_api.ok("joinTokens.list", {}))["items"]
    assert [(token["id"], token["role"]) for token in tokens] == [(made["joinTokenId"], "daemon")]
    assert JoinToken.parse(made["token"]).id == made["joinTokenId"]
    trail = str(await sqlite_api.ok("audit.list", {}))
    assert made["token"] not in trail
    assert made["word"] not in trail


async def test_every_fault_of_a_port_is_told(sqlite_api: Api) -> None:
    await sqlite_api.site()
    node_id = await sqlite_api.node()
    lines = ["eth0", f"{LINE} vlan=8", "b8:2a:72:dd:a0:01 address=192.0.2.5", LINE]
    answer = await sqlite_api.call("nodes.setBoot", {"nodeId": node_id, "ports": lines})
    assert answer.status == 400
    issues = answer.json["error"]["issues"]
    assert [issue["path"] for issue in issues] == ["ports[0]", "ports[1]", "ports[2]"]


async def test_the_agents_of_a_forgotten_machine_are_revoked(sqlite_api: Api) -> None:
    site_id = await sqlite_api.site()
    node_id = await sqlite_api.node()
    agent_id = await sqlite_api.agent(site_id, "acme")
    await sqlite_api.store.write(
        lambda tx: tx.run(
            "UPDATE agents SET node_id = :node, role = 'daemon' WHERE id = :id", {"node": node_id, "id": agent_id}
        )
    )
    await sqlite_api.ok("nodes.delete", {"nodeId": node_id})
    agent = await sqlite_api.ok("agents.get", {"agentId": agent_id})
    assert agent["revokedReason"] == "its machine was forgotten"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "is no MAC address"),
        ("b8-2a-72-dd-a0-01", "is no MAC address"),
        ("b8:2a:72:dd:a0:01 mtu=9000", "is none of vlan="),
        ("b8:2a:72:dd:a0:01 vlan=4095", "is no VLAN"),
        ("b8:2a:72:dd:a0:01 address=192.0.2.5", "is no address with its prefix"),
        ("b8:2a:72:dd:a0:01 address=192.0.2.5/33", "is no address with its prefix"),
        ("b8:2a:72:dd:a0:01 gateway=router", "is no IP address"),
        ("b8:2a:72:dd:a0:01 gateway=192.0.2.1 gateway=192.0.2.2", "more than once"),
    ],
)
def test_a_faulty_port_is_refused_with_the_form(line: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_port(line)


def test_a_port_is_shown_as_it_was_said() -> None:
    assert text_of_port(parse_port(LINE)) == LINE
