"""Boot tickets, and the joining of machines by them, over real mutual TLS, on both databases."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from control_plane.authority import Authority
from control_plane.boot_settings import BootSettings, set_boot_settings
from control_plane.gateway import Gateway
from control_plane.join_tokens import create_join_token
from control_plane.machine_facts import note_inventory_marks
from control_plane.machine_joining import last_refusal
from control_plane.nodes import create_node
from control_plane.records import NodeRow
from control_plane.sessions import get_agent, list_agents, revoke_agent
from control_plane.sites import create_site
from control_plane.store import Store, Transaction, migrate
from protocol.boot_ticket import BootTicket, TicketInterface, TicketNetwork, from_json
from protocol.frames import Goodbye, Joined, JoinRefused, Ticket, TicketRequest, Welcome
from protocol.ids import new_id
from protocol.join_token import JoinToken
from protocol.machine_facts import MachineFacts
from tests.control_plane.scripted_agent import ScriptedAgent, join, key_and_csr

M1 = MachineFacts(uuid="4c4c4544-0042-3510-8052-b9c04f4e4d32", serial="CZ1", macs=["b8:2a:72:dd:a0:01"])
M2 = MachineFacts(uuid="1b4e28ba-2fa1-11d2-883f-0016d3cca427", serial="CZ2", macs=["b8:2a:72:dd:a0:02"])


@dataclass
class Lab:
    """A site with its agent connected, a machine of it, and a machine of another site."""

    store: Store
    authority: Authority
    gateway: Gateway
    folder: Path
    node_id: str = ""
    other_id: str = ""
    agents: list[ScriptedAgent] = field(default_factory=list)

    async def join_as_site(self, site_id: str) -> ScriptedAgent:
        token = JoinToken.new(self.authority.sha256)
        await self.store.write(_site_token, token, site_id)
        return await self.connected(token)

    async def connected(
        self, token: JoinToken, machine: MachineFacts | None = None, boot: str = "boot-1"
    ) -> ScriptedAgent:
        """An agent that has joined by the token and said hello."""
        folder = self.folder / token.id
        folder.mkdir()
        agent = await ScriptedAgent.joined(self.gateway.port, self.authority.pem, token, folder, machine)
        agent.boot_id = boot
        self.agents.append(agent)
        assert isinstance(await agent.connect(), Welcome)
        return agent

    async def attempt(self, ticket: BootTicket, machine: MachineFacts | None = M1) -> Joined | JoinRefused:
        token = JoinToken.parse(ticket.token.reveal())
        return await join(self.gateway.port, self.authority.pem, token, key_and_csr()[1], machine)

    async def boot(self, ticket: BootTicket, boot: str, machine: MachineFacts | None = M1) -> ScriptedAgent:
        """The machine starts its ramdisk, which joins."""
        return await self.connected(JoinToken.parse(ticket.token.reveal()), machine, boot)

    async def ticket(self, **wanted: object) -> BootTicket:
        """One that the site's agent asks for."""
        answer = await ask(self.agents[0], **({"node_id": self.node_id} | wanted))
        assert answer.ticket is not None, answer.refusal
        return from_json(answer.ticket)


async def ask(agent: ScriptedAgent, **wanted: object) -> Ticket:
    await agent.send(msgspec.structs.replace(TicketRequest(id="t1"), **wanted))
    answer = await agent.receive()
    assert isinstance(answer, Ticket), answer
    return answer


def _site_token(tx: Transaction, token: JoinToken, site_id: str) -> None:
    create_join_token(tx, token, tenant_id="root", site_id=site_id, role="site", created_by="test", ttl_ms=60_000)


def _fleet(tx: Transaction) -> tuple[str, list[str]]:
    site, other = create_site(tx, "root", "lab"), create_site(tx, "root", "elsewhere")
    return site.id, [_node(tx, name, at.id) for name, at in (("m1", site), ("m2", other))]


def _node(tx: Transaction, name: str, site_id: str) -> str:
    now = tx.now()
    row = NodeRow(
        new_id("node"), "root", name, site_id, {}, {}, "https://192.0.2.1", "redfish", None, "first-use", now, now
    )
    return create_node(tx, row).id


@pytest.fixture
async def lab(store: Store, tmp_path: Path) -> AsyncIterator[Lab]:
    await migrate(store)
    site_id, (node_id, other_id) = await store.write(_fleet)
    authority = Authority.open(tmp_path / "ca")
    gateway = Gateway(store, authority, worker="w1")
    await gateway.start()
    made = Lab(store, authority, gateway, tmp_path, node_id, other_id)
    await made.join_as_site(site_id)
    yield made
    for agent in made.agents:
        with contextlib.suppress(ConnectionClosed):
            await agent.__aexit__(None, None, None)
    await gateway.stop()


# Tickets


async def test_a_sites_agent_gets_a_ticket_for_a_machine_of_its_site(lab: Lab) -> None:
    ticket = await lab.ticket()
    assert ticket.node_id == lab.node_id
    assert ticket.control_plane == f"wss://localhost:{lab.gateway.port}"
    assert JoinToken.parse(ticket.token.reveal()).ca_sha256 == lab.authority.sha256


async def test_no_agent_gets_a_ticket_for_a_machine_of_another_site(lab: Lab) -> None:
    answer = await ask(lab.agents[0], node_id=lab.other_id)
    assert (answer.ticket, answer.refusal) == (None, "this agent's site has no such machine")


async def test_a_ramdisk_gets_no_ticket_of_another_ramdisk(lab: Lab) -> None:
    ramdisk = await lab.boot(await lab.ticket(), "boot-a")
    answer = await ask(ramdisk, node_id=lab.node_id)
    assert answer.refusal == "a ramdisk's ticket is for the site's own agent alone"


async def test_a_ramdisk_gets_a_daemons_ticket_only_while_a_step_is_to_bring_it(lab: Lab) -> None:
    ramdisk = await lab.boot(await lab.ticket(), "boot-a")
    answer = await ask(ramdisk, purpose="daemon")
    assert answer.refusal == "no step of the machine's workflow is to bring it a daemon's ticket"
    assert (await ask(lab.agents[0], node_id=lab.node_id, purpose="daemon")).ticket is None


async def test_a_daemon_joins_by_the_ticket_that_its_ramdisk_has_brought(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control_plane.tickets.daemon_ticket_wanted", lambda tx, node_id: node_id == lab.node_id)
    ramdisk = await lab.boot(await lab.ticket(), "boot-a")
    answer = await ask(ramdisk, purpose="daemon")
    assert answer.ticket is not None
    daemon = await lab.boot(from_json(answer.ticket), "boot-b")
    assert daemon.role == "daemon"
    assert daemon.id != ramdisk.id


async def test_the_agent_of_the_system_before_is_not_taken_for_the_one_that_is_installed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk may be another one than the image went to, and firmware may start it."""
    monkeypatch.setattr("control_plane.tickets.daemon_ticket_wanted", lambda tx, node_id: True)
    ramdisk = await lab.boot(await lab.ticket(), "boot-a")
    before = await lab.boot(from_json((await ask(ramdisk, purpose="daemon")).ticket or ""), "boot-b")
    ramdisk = await lab.boot(await lab.ticket(), "boot-c")
    answer = await ask(ramdisk, purpose="daemon")
    assert isinstance(await before.receive(), Goodbye)
    refusal = await before.connect()
    assert isinstance(refusal, Goodbye)
    assert "superseded" in refusal.reason
    assert (await lab.boot(from_json(answer.ticket or ""), "boot-d")).id == before.id


async def test_only_the_hash_of_a_ticket_is_stored(lab: Lab) -> None:
    ticket = await lab.ticket()
    secret = JoinToken.parse(ticket.token.reveal()).secret.reveal()
    assert secret not in str(await lab.store.read(_everything))


def _everything(tx: Transaction) -> list[object]:
    return [tx.all(f"SELECT * FROM {table}") for table in ("join_tokens", "events", "audit", "commands", "agents")]


async def test_the_site_and_the_machines_ramdisk_are_told_the_same_admission_and_nobody_else_is(lab: Lab) -> None:
    ramdisk = await lab.boot(await lab.ticket(), "boot-a")
    wanted = {"purpose": "image", "checksum": "ab" * 32}
    told = await ask(lab.agents[0], node_id=lab.node_id, **wanted)
    assert told.ticket is not None
    assert len(told.ticket) == 40
    assert (await ask(ramdisk, **wanted)).ticket == told.ticket
    for other in (await ask(ramdisk, node_id=lab.other_id, **wanted), await ask(lab.agents[0], **wanted)):
        assert other.ticket is None
        assert other.refusal == "images are for the machine's own ramdisk and its site's agent alone"
    assert (await ask(lab.agents[0], node_id=lab.other_id, **wanted)).ticket is None
    # It lies nowhere.
    assert told.ticket not in str(await lab.store.read(_everything))


async def test_an_admission_is_for_one_image(lab: Lab) -> None:
    told = {
        (await ask(lab.agents[0], node_id=lab.node_id, purpose="image", checksum=checksum)).ticket
        for checksum in ("ab" * 32, "cd" * 32, "ab" * 64)
    }
    assert len(told) == 3
    answer = await ask(lab.agents[0], node_id=lab.node_id, purpose="image", checksum="../etc")
    assert (answer.ticket, answer.refusal) == (None, "this is no checksum of an image")


async def test_an_admission_is_the_same_in_every_worker_and_after_a_restart(lab: Lab) -> None:
    wanted = {"node_id": lab.node_id, "purpose": "image", "checksum": "ab" * 32}
    before = await ask(lab.agents[0], **wanted)
    other = Gateway(lab.store, Authority.open(lab.folder / "ca"), worker="w2")
    await other.start()
    try:
        agent = lab.agents[0]
        agent.port = other.port
        assert isinstance(await agent.connect(), Welcome)
        assert (await ask(agent, **wanted)).ticket == before.ticket
        await agent.__aexit__(None, None, None)
    finally:
        await other.stop()


async def test_a_ticket_at_hand_is_kept_until_it_is_used(lab: Lab) -> None:
    ticket = await lab.ticket()
    holds = JoinToken.parse(ticket.token.reveal()).id
    kept = await ask(lab.agents[0], node_id=lab.node_id, holds=holds)
    assert (kept.ticket, kept.refusal) == (None, None)
    await lab.boot(ticket, "boot-a")
    assert (await ask(lab.agents[0], node_id=lab.node_id, holds=holds)).ticket is not None


async def test_whether_the_machine_has_joined_is_told_apart_from_a_ticket_that_has_run_out(lab: Lab) -> None:
    first, second = await lab.ticket(), await lab.ticket()
    holds = JoinToken.parse(first.token.reveal()).id
    await lab.store.write(
        lambda tx: tx.run("UPDATE join_tokens SET expires_at = :now WHERE id = :id", {"now": tx.now(), "id": holds})
    )
    answer = await ask(lab.agents[0], node_id=lab.node_id, holds=holds)
    assert (answer.ticket is not None, answer.joined) == (True, False)
    await lab.boot(second, "boot-a")
    assert (await ask(lab.agents[0], node_id=lab.node_id, holds=holds)).joined, "by a later ticket"


async def test_the_machines_own_settings_are_on_its_ticket(lab: Lab) -> None:
    network = TicketNetwork(interfaces=[TicketInterface(mac="b8:2a:72:dd:a0:01", vlan=7)])
    await lab.store.write(set_boot_settings, lab.node_id, BootSettings(network, "ttyS1,57600"))
    ticket = await lab.ticket()
    assert (ticket.network, ticket.serial_console) == (network, "ttyS1,57600")


async def test_a_machine_that_asks_by_its_mac_is_found_among_those_that_are_to_start(lab: Lab) -> None:
    await lab.store.write(_inventory, lab.node_id, M1)
    wanted = {"machine": MachineFacts(macs=["B8-2A-72-DD-A0-01"]), "among": [lab.node_id, lab.other_id]}
    assert (await ask(lab.agents[0], **wanted)).node_id == lab.node_id
    strange = await ask(lab.agents[0], **(wanted | {"machine": MachineFacts(macs=["b8:2a:72:dd:a0:77"])}))
    assert strange.refusal == "no machine that is to start is known so"
    assert (await ask(lab.agents[0], **(wanted | {"among": []}))).ticket is None


def _inventory(tx: Transaction, node_id: str, facts: MachineFacts) -> None:
    system = {"uuid": facts.uuid, "serial": facts.serial}
    nics = [{"name": "1", "mac": mac} for mac in facts.macs]
    note_inventory_marks(tx, node_id, {"system": system, "nics": nics}, "bmc")


# Joining


async def test_a_ramdisk_joins_as_the_machines_own_agent(lab: Lab) -> None:
    ramdisk = await lab.boot(await lab.ticket(), "boot-a")
    agent, session = await lab.store.read(get_agent, "root", ramdisk.id)
    assert (agent.role, agent.node_id) == ("ramdisk", lab.node_id)
    assert session is not None
    assert session.boot_id == "boot-a"


@pytest.mark.case("B47")
async def test_a_ticket_cannot_be_used_twice(lab: Lab) -> None:
    ticket = await lab.ticket()
    await lab.boot(ticket, "boot-a")
    again = await lab.attempt(ticket)
    assert isinstance(again, JoinRefused)
    assert again.code == "TOKEN_REFUSED"
    assert "start the machine from its boot medium again" in again.message


async def test_a_machine_whose_joins_answer_was_lost_is_answered_again_for_its_key(lab: Lab) -> None:
    token, csr = JoinToken.parse((await lab.ticket()).token.reveal()), key_and_csr()[1]
    first = await join(lab.gateway.port, lab.authority.pem, token, csr, M1)
    assert await join(lab.gateway.port, lab.authority.pem, token, csr, M1) == first
    assert isinstance(first, Joined)
    assert (first.role, first.node) == ("ramdisk", lab.node_id)
    assert await lab.store.read(_good_certificates, first.agent_id) == 1
    assert len(await lab.store.read(list_agents, "root", "", 9)) == 2, "the site's and the machine's"


@pytest.mark.case("B47")
async def test_b47_a_lost_join_is_not_answered_again_once_a_later_boot_has_joined(lab: Lab) -> None:
    token, csr = JoinToken.parse((await lab.ticket()).token.reveal()), key_and_csr()[1]
    first = await join(lab.gateway.port, lab.authority.pem, token, csr, M1)
    assert isinstance(first, Joined)
    later = await lab.boot(await lab.ticket(), "boot-b")
    assert later.id == first.agent_id
    refused = await join(lab.gateway.port, lab.authority.pem, token, csr, M1)
    assert isinstance(refused, JoinRefused)
    assert "a later one of the machine was used" in refused.message
    assert await lab.store.read(_good_certificates, later.id) == 1
    await later.cut()
    assert isinstance(await later.connect(), Welcome), "the later boot stays"


@pytest.mark.case("B47")
async def test_b47_a_new_boot_with_a_good_ticket_takes_the_place_of_the_boot_before_at_once(lab: Lab) -> None:
    older = await lab.ticket()
    first = await lab.boot(await lab.ticket(), "boot-a")
    assert isinstance(await lab.attempt(older), JoinRefused), "an older ticket is dead once a later one was used"

    second = await lab.boot(await lab.ticket(), "boot-b")

    assert second.id == first.id
    assert isinstance(await first.receive(), Goodbye)
    with pytest.raises(ConnectionClosed):
        await first.receive()
    refusal = await first.connect()
    assert isinstance(refusal, Goodbye), "what the earlier boot was given is of no use any more"
    assert "superseded by a new boot" in refusal.reason
    _, session = await lab.store.read(get_agent, "root", second.id)
    assert session is not None
    assert (session.boot_id, session.disconnected_at) == ("boot-b", None)


async def test_a_ticket_that_is_made_later_outlives_the_use_of_an_earlier_one(lab: Lab) -> None:
    first, second = await lab.ticket(), await lab.ticket()
    await lab.boot(first, "boot-a")
    await lab.boot(second, "boot-b")


async def test_the_same_boot_may_connect_again_and_again(lab: Lab) -> None:
    ramdisk = await lab.boot(await lab.ticket(), "boot-a")
    await ramdisk.cut()
    assert isinstance(await ramdisk.connect(), Welcome)


@pytest.mark.case("B47")
async def test_of_two_boots_that_join_at_once_one_is_left(lab: Lab) -> None:
    tickets = [await lab.ticket() for _ in range(4)]
    answers = await asyncio.gather(*(lab.attempt(ticket) for ticket in tickets))
    joined = [answer for answer in answers if isinstance(answer, Joined)]
    assert joined
    assert len({answer.agent_id for answer in joined}) == 1
    good = await lab.store.read(_good_certificates, joined[0].agent_id)
    assert good == 1


def _good_certificates(tx: Transaction, agent_id: str) -> int:
    row = tx.one("SELECT COUNT(*) FROM certificates WHERE agent_id = :id AND revoked_at IS NULL", {"id": agent_id})
    assert row is not None
    return int(row[0])


async def test_an_agent_that_was_revoked_is_followed_by_another_one(lab: Lab) -> None:
    first = await lab.boot(await lab.ticket(), "boot-a")
    await lab.store.write(revoke_agent, "root", first.id, "lost")
    second = await lab.boot(await lab.ticket(), "boot-b")
    assert second.id != first.id


async def test_a_ticket_of_a_machine_that_is_gone_joins_nobody(lab: Lab) -> None:
    ticket = await lab.ticket()
    await lab.store.write(lambda tx: tx.run("DELETE FROM nodes WHERE id = :id", {"id": lab.node_id}))
    answer = await lab.attempt(ticket)
    assert isinstance(answer, JoinRefused)
    assert "is not there any more" in answer.message


# Which machine it is


async def test_another_machine_is_refused_and_its_ticket_is_dead(lab: Lab) -> None:
    await lab.store.write(_inventory, lab.node_id, M1)
    ticket = await lab.ticket()
    refused = await lab.attempt(ticket, M2)
    assert isinstance(refused, JoinRefused)
    assert refused.code == "AMBIGUOUS_MACHINE"
    assert "serial number CZ2, where CZ1 is known" in refused.message
    again = await lab.attempt(ticket, M1)
    assert isinstance(again, JoinRefused), "it has come to the wrong place, so nobody may use it"
    why = await lab.store.read(last_refusal, lab.node_id)
    assert why is not None
    assert why.startswith("AMBIGUOUS_MACHINE")
    assert not [agent for agent, _ in await lab.store.read(list_agents, "root", "", 9) if agent.role == "ramdisk"]


async def test_what_kept_a_machine_out_is_forgotten_once_it_has_joined(lab: Lab) -> None:
    await lab.store.write(_inventory, lab.node_id, M1)
    await lab.attempt(await lab.ticket(), M2)
    await lab.boot(await lab.ticket(), "boot-a")
    assert await lab.store.read(last_refusal, lab.node_id) is None


async def test_a_machine_that_was_seen_once_is_known_from_then_on(lab: Lab) -> None:
    await lab.boot(await lab.ticket(), "boot-a", M1)
    refused = await lab.attempt(await lab.ticket(), M2)
    assert isinstance(refused, JoinRefused)
    assert refused.code == "AMBIGUOUS_MACHINE"


async def test_a_machine_with_a_new_mainboard_is_known_by_its_bmcs_next_inventory(lab: Lab) -> None:
    await lab.store.write(_inventory, lab.node_id, M1)
    await lab.boot(await lab.ticket(), "boot-a", M1)
    await lab.store.write(_inventory, lab.node_id, M2)
    await lab.boot(await lab.ticket(), "boot-b", M2)


async def test_a_machine_without_any_sound_fact_joins_by_its_ticket_alone(lab: Lab) -> None:
    await lab.store.write(_inventory, lab.node_id, M1)
    nonsense = MachineFacts(uuid="Not Settable", serial="Default string", macs=["N/A"])
    await lab.boot(await lab.ticket(), "boot-a", nonsense)
