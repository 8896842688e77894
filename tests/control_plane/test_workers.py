"""Two workers on one PostgreSQL: whichever is asked, the command reaches its agent and its end reaches the asker."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.api.call import Call
from control_plane.api.dispatch import Dispatcher
from control_plane.api.metrics import Metrics
from control_plane.api.verbs import VERBS
from control_plane.authority import Authority
from control_plane.gateway_pulse import GatewayPulse
from control_plane.server import ControlPlane, StartFailed
from control_plane.store import Transaction, migrate, open_store
from control_plane.tokens import Principal
from protocol.errors import RequestError
from protocol.join_token import JoinToken
from tests.control_plane.running import AnsweringAgent, config_for
from tests.control_plane.scripted_agent import ScriptedAgent

ADMIN = Principal("tok_test", "acme", ["*"])


async def ask(plane: ControlPlane, verb: str, request: dict[str, Any]) -> Any:
    return await Dispatcher(plane.services, Metrics(lambda: 0)).call(VERBS[verb], request, ADMIN, "req_test")


@pytest.fixture
async def workers(postgres_url: str, tmp_path: Path) -> AsyncIterator[tuple[ControlPlane, ControlPlane]]:
    store = open_store(postgres_url)
    await migrate(store)
    await store.close()
    Authority.open(tmp_path / "one" / "ca")
    shutil.copytree(tmp_path / "one" / "ca", tmp_path / "two" / "ca")
    configs = [config_for(tmp_path / name, store_url=postgres_url, worker=name) for name in ("one", "two")]
    async with ControlPlane(configs[0]) as one, ControlPlane(configs[1]) as two:
        yield one, two


async def lab(plane: ControlPlane, folder: Path) -> AnsweringAgent:
    """The site lab with its agent at this worker, and the node n1."""
    made = await ask(plane, "joinTokens.create", {"siteId": "lab", "createSite": True})
    await ask(plane, "nodes.create", {"name": "n1", "siteId": "lab", "bmc": {"address": "simulated://n1"}})
    ca = Authority.open(plane.config.state / "ca").pem
    agent = AnsweringAgent(await ScriptedAgent.joined(plane.agents_port, ca, JoinToken.parse(made.token), folder))
    await agent.start()
    return agent


async def test_a_command_that_one_worker_took_is_sent_by_the_one_that_has_the_agent(
    workers: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    one, two = workers
    agent = await lab(two, tmp_path)
    for plane in (one, two):
        command = await ask(plane, "drivers.invoke", {"nodeId": "n1", "operation": "power.getPower"})
        assert (command.state, command.result) == ("succeeded", {"state": "on", "raw": "On"})
    assert len(agent.asked) == 2
    await agent.agent.cut()


async def test_a_cancel_at_one_worker_reaches_the_agent_at_the_other(
    workers: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    one, two = workers
    agent = await lab(two, tmp_path)
    agent.ending = None
    command = await ask(one, "drivers.invoke", {"nodeId": "n1", "operation": "power.getPower", "waitMs": 0})
    async with asyncio.timeout(10):
        while not agent.asked:
            await asyncio.sleep(0.01)
    await ask(one, "commands.cancel", {"commandId": command.id})
    ended = await ask(one, "commands.get", {"commandId": command.id, "waitMs": 10_000})
    assert ended.state == "cancelled"
    await agent.agent.cut()


async def test_an_agent_that_moves_to_another_worker_is_driven_from_there(
    workers: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    one, two = workers
    agent = await lab(one, tmp_path)
    agent.agent.port = two.agents_port
    await agent.start()
    command = await ask(one, "drivers.invoke", {"nodeId": "n1", "operation": "power.getPower"})
    assert command.state == "succeeded"
    assert len(agent.asked) == 1
    await agent.agent.cut()


@pytest.mark.case("B58")
async def test_the_connections_of_a_worker_that_fell_silent_are_shown_as_over(
    workers: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    one, two = workers
    agent = await lab(two, tmp_path)
    (shown,) = (await ask(one, "agents.list", {})).items
    assert shown.connected
    # It lives, and says so every five seconds: too seldom for this one, as if it were cut off from the database.
    pulse = asyncio.create_task(GatewayPulse(one.store, "one", beat_seconds=0.05, silent_seconds=0.2).run())
    async with asyncio.timeout(10):
        await agent.sent_away()
    pulse.cancel()
    (shown,) = (await ask(one, "agents.list", {})).items
    assert not shown.connected
    # Nothing is lost by that: the agent comes back, and is driven.
    await agent.start()
    command = await ask(one, "drivers.invoke", {"nodeId": "n1", "operation": "power.getPower"})
    assert command.state == "succeeded"
    await agent.agent.cut()


@pytest.mark.case("B58")
async def test_a_worker_that_has_just_started_gives_others_the_time_to_show_that_they_live(
    workers: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    """So it is after the database was away, when nobody could say anything."""
    one, two = workers
    agent = await lab(two, tmp_path)
    await one.store.write(age_gateways)
    pulse = asyncio.create_task(GatewayPulse(one.store, "one", beat_seconds=0.05, silent_seconds=60).run())
    async with asyncio.timeout(10):
        while "one" not in await one.store.read(gateways):
            await asyncio.sleep(0.01)
    await one.store.write(age_gateways)
    async with asyncio.timeout(10):
        while "one" not in await one.store.read(gateways):
            await asyncio.sleep(0.01)
    pulse.cancel()
    (shown,) = (await ask(one, "agents.list", {})).items
    assert shown.connected
    await agent.agent.cut()


def age_gateways(tx: Transaction) -> None:
    tx.run("UPDATE gateways SET seen_at = 1")


def gateways(tx: Transaction) -> list[str]:
    return [row[0] for row in tx.all("SELECT worker FROM gateways WHERE seen_at > 1 ORDER BY worker")]


async def test_postgresql_is_migrated_by_hand_and_a_start_says_how(postgres_url: str, tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="run `rackwright control-plane migrate`"):
        async with ControlPlane(config_for(tmp_path, store_url=postgres_url)):
            pass


def test_a_call_about_every_tenant_has_no_single_one() -> None:
    call = Call(ADMIN, "*", "req_test", None)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="name the tenant"):
        _ = call.tenant
