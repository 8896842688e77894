"""The link, over real mutual TLS: it comes back from everything, and says what it met."""

import asyncio
import contextlib
import datetime
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from agent.backoff import Backoff
from agent.endpoint import Endpoint
from agent.identity import Identity, IdentityStore
from agent.joining import join
from agent.link import Link
from agent.session import SessionEnd
from protocol.commands import Outcome
from protocol.frames import ErrorFrame, Finished, Goodbye, Hello, Welcome
from protocol.operations import Repeat
from tests.agent.counting_driver import Machines
from tests.agent.rig import Agent, FakeClock, setting, until
from tests.agent.tls_control_plane import DAY, ControlPlane, control_plane

QUICK = Backoff(base=0.01, cap=0.05, healthy_after=0.0)


class Linked:
    """An agent with a real link to a scripted control plane."""

    def __init__(self, folder: Path, clock: FakeClock, plane: ControlPlane, store: IdentityStore) -> None:
        self.plane = plane
        self.store = store
        self.agent = Agent(folder, clock)
        self.link = Link(
            Endpoint.parse(plane.url), store, self.agent.executor, self._hello, backoff=QUICK, chance=random.Random(1)
        )
        self.task = asyncio.create_task(self.link.run())

    def _hello(self, identity: Identity) -> Hello:
        return self.agent.hello()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.agent.kill()

    async def error(self) -> str:
        await until(lambda: self.link.status.last_error is not None)
        return self.link.status.last_error or ""


@contextlib.asynccontextmanager
async def linked(tmp_path: Path, clock: FakeClock, **settings: object) -> AsyncIterator[Linked]:
    after_join = cast("dict[str, object]", settings.pop("after_join", {}))
    store = IdentityStore(tmp_path / "state" / "identity")
    (tmp_path / "state").mkdir(exist_ok=True)
    async with control_plane(tmp_path, **settings) as plane:
        await join(plane.url, plane.token(), store)
        for name, value in after_join.items():
            setattr(plane, name, value)
        agent = Linked(tmp_path / "state", clock, plane, store)
        try:
            yield agent
        finally:
            await agent.stop()


async def test_a_command_goes_to_the_machine_and_its_ending_comes_back(
    tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    async with linked(tmp_path, clock) as agent:
        await agent.plane.next(Hello)
        await agent.plane.tell(setting("reset"))
        finished = cast(Finished, await agent.plane.next(Finished))
        assert finished.ending.outcome is Outcome.SUCCEEDED
        assert machines.acts["m1 reset"] == 1
        await until(lambda: not agent.agent.executor.held())
        assert agent.link.status.connected


@pytest.mark.case("B49")
async def test_a_cut_connection_is_made_again_and_the_ending_is_told_again(
    tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    async with linked(tmp_path, clock, settles=False) as agent:
        await agent.plane.next(Hello)
        await agent.plane.tell(setting("reset"))
        first = await agent.plane.next(Finished)
        agent.plane.connections[-1].transport.abort()
        hello = cast(Hello, await agent.plane.next(Hello))
        assert [held.state for held in hello.held] == ["finished"]
        assert await agent.plane.next(Finished) == first
        assert machines.acts["m1 reset"] == 1


@pytest.mark.case("B50")
@pytest.mark.parametrize("status", [401, 403, 404, 409, 423, 429, 500, 502, 503])
async def test_refusals_of_a_deploy_under_way_are_transient(
    status: int, tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    refusals = {"refuse_status": [(status, "being deployed"), (status, "still")]}
    async with linked(tmp_path, clock, after_join=refusals) as agent:
        assert f"answered {status}: being deployed" in await agent.error()
        await agent.plane.next(Hello)
        assert agent.link.status.attempts == 3


@pytest.mark.case("B50")
async def test_b50_agents_that_are_told_the_same_time_to_come_again_come_no_sooner_and_not_together(
    tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    (tmp_path / "state").mkdir()
    store = IdentityStore(tmp_path / "state" / "identity")
    async with control_plane(tmp_path, refusal_headers={"Retry-After": "60"}) as plane:
        await join(plane.url, plane.token(), store)
        plane.refuse_status = [(423, "locked")] * 20
        agent = Agent(tmp_path / "state", clock)
        endpoint = Endpoint.parse(plane.url)
        links = [Link(endpoint, store, agent.executor, lambda _: agent.hello()) for _ in range(20)]
        waits = [await link._one_round() for link in links]
        await agent.kill()
    assert all(60 <= seconds <= 61 for seconds in waits)
    assert len(set(waits)) == 20


async def test_a_control_plane_that_is_away_is_waited_for(
    tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    async with linked(tmp_path, clock) as agent:
        await agent.plane.next(Hello)
        await agent.plane.stop()
        await until(lambda: "cannot be reached" in (agent.link.status.last_error or ""))
        await agent.plane.start()
        await agent.plane.next(Hello)


async def test_a_revoked_agent_stays_up_and_says_so(tmp_path: Path, clock: FakeClock, machines: Machines) -> None:
    goodbye = {"goodbye": Goodbye(reason="revoked by an operator")}
    async with linked(tmp_path, clock, after_join=goodbye) as agent:
        assert await agent.error() == "revoked by an operator"
        await until(lambda: agent.link.status.revoked)
        assert not agent.task.done()
        assert agent.link.status.attempts == 1


async def test_a_revoked_agent_that_is_told_to_hurry_is_welcomed_again(
    tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    goodbye = {"goodbye": Goodbye(reason="revoked by an operator")}
    async with linked(tmp_path, clock, after_join=goodbye) as agent:
        await until(lambda: agent.link.status.revoked)
        agent.plane.goodbye = None
        agent.link.hurry()
        await until(lambda: agent.link.status.connected)
        assert not agent.link.status.revoked


async def test_a_goodbye_with_a_time_is_honoured(tmp_path: Path, clock: FakeClock, machines: Machines) -> None:
    goodbye = {"goodbye": Goodbye(reason="restarting", retry_after_ms=50)}
    async with linked(tmp_path, clock, after_join=goodbye) as agent:
        started = time.monotonic()
        assert await agent.error() == "restarting"
        agent.plane.goodbye = None
        await until(lambda: agent.link.status.connected)
        assert time.monotonic() - started >= 0.04


async def test_a_control_plane_of_another_version_is_told_as_that(
    tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    async with linked(tmp_path, clock, after_join={"subprotocol": "rackwright.agent.v9"}) as agent:
        assert "does not speak rackwright.agent.v1: upgrade" in await agent.error()


async def test_a_control_plane_with_another_ca_is_never_spoken_to(
    tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    async with linked(tmp_path, clock) as agent:
        await agent.plane.next(Hello)
        await agent.plane.stop()
        (tmp_path / "other").mkdir()
        other = ControlPlane(tmp_path / "other")
        other.port = agent.plane.port
        await other.start()
        await until(lambda: "does not hold" in (agent.link.status.last_error or ""))
        assert "clock of this host" in (agent.link.status.last_error or "")
        assert other.hellos == []
        await other.stop()


async def test_a_certificate_that_the_control_plane_does_not_know_is_told_as_that(
    tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    async with linked(tmp_path, clock) as agent:
        await agent.plane.next(Hello)
        await agent.plane.stop()
        ca = agent.plane.authority
        (tmp_path / "other").mkdir()
        other = ControlPlane(tmp_path / "other")
        other.port = agent.plane.port
        # Its own server certificate is of the known CA, but it trusts the agents of another one.
        await other.start()
        await other.stop()
        import ssl

        from websockets.asyncio.server import serve

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "server.pem")
        context.load_verify_locations(cadata=other.authority.pem)
        context.verify_mode = ssl.CERT_REQUIRED
        server = await serve(lambda _connection: asyncio.sleep(0), "127.0.0.1", other.port, ssl=context)
        await until(lambda: "closed the connection without an answer" in (agent.link.status.last_error or ""))
        assert "refuses this agent's certificate" in (agent.link.status.last_error or "")
        assert "join again" in (agent.link.status.last_error or "")
        server.close()
        await server.wait_closed()
        assert ca.pem != other.authority.pem


@pytest.mark.parametrize(
    ("validity", "said"),
    [
        ((DAY, 30 * DAY), "set the clock"),
        ((-30 * DAY, -DAY), "join --force"),
    ],
)
async def test_a_certificate_that_does_not_hold_now_is_told_with_what_to_do(
    validity: tuple[datetime.timedelta, datetime.timedelta],
    said: str,
    tmp_path: Path,
    clock: FakeClock,
    machines: Machines,
) -> None:
    async with linked(tmp_path, clock, validity=validity) as agent:
        assert said in await agent.error()
        assert agent.plane.hellos == []


async def test_a_certificate_is_renewed_at_half_its_life_with_a_new_key(
    tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    async with linked(tmp_path, clock, validity=(-20 * DAY, 10 * DAY)) as agent:
        before = agent.store.current()
        await until(lambda: len(agent.plane.hellos) == 2 and agent.store.waiting() is None)
        after = agent.store.current()
        assert before is not None
        assert after is not None
        assert before.serial != after.serial
        assert agent.plane.serials[0] != agent.plane.serials[1]
        assert not before.folder.exists()
        assert after.facts == before.facts


async def test_a_renewed_certificate_that_is_refused_leaves_the_one_before_in_use(
    tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    async with linked(tmp_path, clock) as agent:
        await until(lambda: agent.link.status.connected)
        current = agent.store.current()
        assert current is not None
        folder, key = agent.store.begin()
        other = ControlPlane(tmp_path)
        from cryptography.x509.oid import ExtendedKeyUsageOID

        strange = other.authority.issue(key.public_key(), ExtendedKeyUsageOID.CLIENT_AUTH, [])
        agent.store.complete(folder, current.facts, strange, agent.plane.authority.pem, renewal=True)
        agent.plane.connections[-1].transport.abort()
        await until(lambda: len(agent.plane.hellos) == 2)
        await until(lambda: agent.store.waiting() is None)
        assert agent.store.current() == current


async def test_frames_of_a_newer_control_plane_are_answered_with_an_error_and_nothing_else_changes(
    tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    async with linked(tmp_path, clock) as agent:
        await agent.plane.next(Hello)
        for message in ('{"type":"dance","id":"x"}', "{", '{"type":"command","id":7}', b"\x00bytes"):
            await agent.plane.connections[-1].send(message)
        told = [cast(ErrorFrame, await agent.plane.next(ErrorFrame)) for _ in range(4)]
        assert "dance" in told[0].message
        assert told[0].about == "x"
        await agent.plane.tell(setting("reset"))
        assert cast(Finished, await agent.plane.next(Finished)).ending.outcome is Outcome.SUCCEEDED
        assert len(agent.plane.hellos) == 1


@pytest.mark.case("B50")
def test_delays_grow_to_their_cap_and_are_never_in_step() -> None:
    backoff, chance = Backoff(), random.Random(7)
    assert [backoff.bound(failures) for failures in (1, 2, 3, 6, 7, 50, 5000)] == [1, 2, 4, 32, 60, 60, 60]
    delays = [backoff.delay(7, chance) for _ in range(2000)]
    assert max(delays) <= 60
    assert len({int(delay) for delay in delays}) > 50
    assert max(backoff.after_session(20_000, chance) for _ in range(500)) > 15
    assert 240 <= backoff.slow(chance) <= 360


def test_what_is_not_known_to_be_harmless_is_an_act() -> None:
    from protocol.commands import repeat_of

    assert repeat_of("node.reboot", {}) is Repeat.ONCE


class _AlwaysMost(random.Random):
    """Chance that takes the longest delay each time."""

    def uniform(self, a: float, b: float) -> float:
        return b


@pytest.mark.case("B50")
async def test_a_control_plane_that_welcomes_and_drops_is_not_hammered(
    tmp_path: Path, clock: FakeClock, machines: Machines
) -> None:
    agent = Agent(tmp_path, clock)
    link = Link(
        Endpoint("cp.example"),
        IdentityStore(tmp_path / "identity"),
        agent.executor,
        lambda _identity: agent.hello(),
        chance=_AlwaysMost(),
    )
    welcome = Welcome(session_id="ses_1", reconnect_spread_ms=100)
    dropped = SessionEnd(reason="dropped", welcome=welcome, lasted=0.5)
    assert [link._after(dropped) for _ in range(8)] == [0.1, 2, 4, 8, 16, 32, 60, 60]
    lasted = SessionEnd(reason="cut", welcome=welcome, lasted=31)
    assert [link._after(lasted), link._after(dropped)] == [0.1, 0.1]
    superseded = SessionEnd(reason="x", welcome=welcome, lasted=1, goodbye=Goodbye(reason="x", retry_after_ms=3_000))
    assert link._after(superseded) == 5.0
    await agent.kill()
