"""The agents' door under siege: agents that do not read or do not stop, strangers, revoked ones, lost hints."""

import asyncio
import datetime
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from control_plane import admission, agent_link, authority, command_queue, delivery, gateway, joining, sessions
from control_plane.authority import Authority
from control_plane.commands import settle
from control_plane.gateway import Gateway
from control_plane.records import CommandRow
from control_plane.sessions import get_agent, revoke_agent
from control_plane.store import StoreUnavailable, Transaction, json_text, migrate, open_store
from protocol.commands import CommandState, Ending, Outcome
from protocol.errors import Failure
from protocol.frames import (
    JOIN_SUBPROTOCOL,
    CertificateRequest,
    Command,
    ErrorFrame,
    Finished,
    Goodbye,
    JoinRefused,
    Progress,
    Welcome,
    encode,
)
from protocol.join_token import JoinToken
from protocol.operations import Repeat
from tests.control_plane.scripted_agent import ScriptedAgent, join, key_and_csr
from tests.control_plane.test_gateway import Site, _enqueue, _site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """On SQLite alone: what is tried here is the door, not the database."""
    store = open_store(f"sqlite://{tmp_path}/control.db")
    await migrate(store)
    ca = Authority.open(tmp_path / "ca")
    door = Gateway(store, ca, worker="w1")
    await door.start()
    site_id, node_id = await store.write(_site)
    it = Site(store, ca, door, site_id, node_id, tmp_path)
    yield it
    await it.gateway.stop()
    await store.close()


async def another(site: Site, name: str) -> ScriptedAgent:
    folder = site.folder / name
    folder.mkdir()
    return await ScriptedAgent.joined(site.gateway.port, site.authority.pem, await site.token(), folder)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def stranger(site: Site) -> ClientConnection:
    return await connect(
        f"wss://127.0.0.1:{site.gateway.port}/join",
        ssl=ssl.create_default_context(cadata=site.authority.pem),
        subprotocols=[Subprotocol(JOIN_SUBPROTOCOL)],
        proxy=None,
    )


def deafen(agent: ScriptedAgent) -> None:
    """Its host is there and takes no byte any more, as behind a cut line."""
    assert agent.connection is not None
    agent.connection.transport.pause_reading()


# Agents that do not read


async def test_a_dead_older_connection_does_not_keep_the_newer_one_waiting(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        deafen(agent)
        older = agent.connection
        begun = time.monotonic()
        assert isinstance(await agent.connect(), Welcome)
        assert time.monotonic() - begun < gateway._STOP_SECONDS
        row = await site.command(agent)
        assert (await agent.receive_command()).id == row.id
        assert older is not None
        older.transport.abort()


async def test_an_agent_that_does_not_read_holds_up_no_other(site: Site) -> None:
    async with await site.agent() as deaf, await another(site, "second") as other:
        await deaf.connect()
        await other.connect()
        deafen(deaf)
        large: dict[str, object] = {"note": "x" * 400_000}
        for _ in range(20):
            row = await site.store.write(_large, site, deaf.id, large)
        mine = await site.command(other)
        assert (await other.receive_command()).id == mine.id
        assert (await site.row(row.id)).state is CommandState.QUEUED
        assert deaf.connection is not None
        deaf.connection.transport.abort()


async def test_a_stop_does_not_wait_for_an_agent_that_does_not_read(site: Site) -> None:
    agent = await site.agent()
    await agent.connect()
    deafen(agent)
    large: dict[str, object] = {"note": "x" * 400_000}
    for _ in range(20):
        await site.store.write(_large, site, agent.id, large)
    async with asyncio.timeout(gateway._STOP_SECONDS + agent_link._FAREWELL_SECONDS + 5):
        await site.gateway.stop()
    assert agent.connection is not None
    agent.connection.transport.abort()


async def test_an_agent_for_which_too_much_waits_is_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_link, "_MOST_POSTED", 5)
    async with await site.agent() as agent:
        await agent.connect()
        link = site.gateway._links[agent.id]
        for _ in range(7):
            link.post(Progress(id="x", message="y"))
        assert agent.connection is not None
        await agent.connection.wait_closed()
        await until(lambda: agent.id not in site.gateway.connected)


# Agents that say too much, or nonsense


async def test_progress_is_bounded_in_number_and_length(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_link, "_MOST_PROGRESS", 3)
    async with await site.agent() as agent:
        await agent.connect()
        for number in range(10):
            await agent.send(Progress(id=f"cmd_{number}", message="m" * 100_000))
        row = await site.command(agent)
        await agent.receive_command()
        await agent.finish(row.id)
        progress = site.gateway._links[agent.id].progress
        assert len(progress) == 3
        assert {len(news.message) for news in progress.values()} == {agent_link._LONGEST_PROGRESS}


async def test_a_frame_on_which_the_control_plane_fails_does_not_cut_the_others_off(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(tx: object, agent_id: str, command_id: str, ending: Ending, session_id: str) -> object:
        if ending.outcome is Outcome.FAILED:
            raise ValueError("a fault of ours")
        return settle(tx, agent_id, command_id, ending, session_id)  # type: ignore[arg-type]

    monkeypatch.setattr(agent_link, "settle", faulty)
    async with await site.agent() as agent:
        await agent.connect()
        first, second = await site.command(agent), await site.command(agent)
        await agent.receive_command()
        await agent.receive_command()
        await agent.send(Finished(id=first.id, ending=Ending(Outcome.FAILED, error=Failure("TIMEOUT", "late"))))
        answer = await agent.receive()
        assert isinstance(answer, ErrorFrame)
        assert answer.about == first.id
        await agent.finish(second.id)
        assert first.id in caplog.text


async def test_an_ending_of_the_largest_size_is_taken_and_a_larger_frame_ends_only_the_connection(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent)
        await agent.receive_command()
        empty = Ending(Outcome.SUCCEEDED, {"text": ""})
        room = (1 << 20) - len(encode(Finished(id=row.id, ending=empty)))
        with pytest.raises(ConnectionClosed) as closed:
            await agent.finish(row.id, Ending(Outcome.SUCCEEDED, {"text": "x" * (room + 1)}))
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        await agent.connect()
        await agent.receive_command()
        await agent.finish(row.id, Ending(Outcome.SUCCEEDED, {"text": "x" * room}))
        assert (await site.row(row.id)).state is CommandState.SUCCEEDED


# Strangers


async def test_a_stranger_who_says_nothing_is_sent_away_without_a_traceback(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(joining, "_REQUEST_TIMEOUT", 0.05)
    connection = await stranger(site)
    with pytest.raises(ConnectionClosed):
        await connection.recv()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_stranger_cannot_make_the_control_plane_hold_large_frames(site: Site) -> None:
    connection = await stranger(site)
    await connection.send("x" * (joining._LARGEST_REQUEST + 1))
    with pytest.raises(ConnectionClosed) as closed:
        await connection.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


@pytest.mark.case("B50")
async def test_strangers_are_bounded_in_number_and_the_next_is_told_when_to_come(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_OPEN_AT_ONCE", 2)
    waiting = [await stranger(site) for _ in range(2)]
    await until(lambda: site.gateway._joining._open == 2)
    with pytest.raises(InvalidStatus) as refused:
        await stranger(site)
    assert refused.value.response.status_code == 503
    assert refused.value.response.headers["Retry-After"] == "60"
    async with await _joined_later(site, waiting) as agent:
        assert isinstance(await agent.connect(), Welcome)


async def test_a_guesser_is_stopped_and_keeps_no_true_token_from_joining_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_REFUSALS_PER_MINUTE", 3)
    true = await site.token()
    for _ in range(3):
        wrong = JoinToken(true.ca_sha256, true.id, JoinToken.new("0" * 64).secret)
        answer = await join(site.gateway.port, site.authority.pem, wrong, key_and_csr()[1])
        assert isinstance(answer, JoinRefused)
    answer = await join(site.gateway.port, site.authority.pem, true, key_and_csr()[1])
    assert isinstance(answer, JoinRefused)
    assert "wait a minute" in answer.message
    for network in list(site.gateway._joining._refusals.elements()):
        site.gateway._joining._forget_refusal(network)
    assert site.gateway._joining._refusals == {}
    await ScriptedAgent.joined(site.gateway.port, site.authority.pem, true, site.folder)


async def test_joins_that_succeed_use_up_nobodys_tries(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_REFUSALS_PER_MINUTE", 1)
    for number in range(4):
        await another(site, str(number))


@pytest.mark.parametrize("request_text", ["{" * 400, '{"type":"join"}', "[" * 5_000])
async def test_a_damaged_join_request_is_answered(site: Site, request_text: str) -> None:
    connection = await stranger(site)
    await connection.send(request_text)
    assert "cannot be read" in str(await connection.recv())


async def test_older_tls_is_refused(site: Site) -> None:
    context = ssl.create_default_context(cadata=site.authority.pem)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((OSError, WebSocketException)):
        await connect(f"wss://127.0.0.1:{site.gateway.port}/join", ssl=context, proxy=None)


async def test_half_open_connections_do_not_keep_agents_out(site: Site) -> None:
    half_open = [await asyncio.open_connection("127.0.0.1", site.gateway.port) for _ in range(300)]
    async with await site.agent() as agent:
        assert isinstance(await agent.connect(), Welcome)
    for _, writer in half_open:
        writer.transport.abort()


async def test_an_expired_agents_certificate_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = await site.agent()
    key, csr = key_and_csr()
    monkeypatch.setattr(authority, "_AGENT_LIFE", datetime.timedelta(seconds=-10))
    (site.folder / "key.pem").write_bytes(key)
    (site.folder / "cert.pem").write_text(site.authority.issue_agent(csr, agent.id).pem)
    with pytest.raises((OSError, WebSocketException)):
        await agent.connect()


# The revoked, and lost hints


async def test_a_revoked_agent_whose_hint_was_lost_is_sent_away_by_the_next_sweep(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_SWEEP_SECONDS", 0.05)
    async with await site.agent() as agent:
        await agent.connect()
        await site.store.write(lambda tx: tx.run("UPDATE agents SET revoked_at = 1 WHERE id = :id", {"id": agent.id}))
        answer = await agent.receive()
        assert isinstance(answer, Goodbye)
        assert answer.retry_after_ms is None


async def test_a_revoked_agent_gets_no_new_certificate_over_its_open_connection(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gateway, "_send_away", lambda self, link: None)
    async with await site.agent() as agent:
        await agent.connect()
        await site.store.write(revoke_agent, "root", agent.id, "stolen")
        await agent.send(CertificateRequest(csr=key_and_csr()[1]))
        answer = await agent.receive()
        assert isinstance(answer, ErrorFrame)
        assert "revoked" in answer.message


async def test_a_command_whose_hint_was_lost_is_sent_however_busy_the_others_are(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_SWEEP_SECONDS", 0.2)
    async with await site.agent() as quiet, await another(site, "busy") as busy:
        await quiet.connect()
        await busy.connect()

        async def hints_without_end() -> None:
            while True:
                site.gateway._delivery.wake(busy.id)
                await asyncio.sleep(0.01)

        monkeypatch.setattr("control_plane.commands.COMMANDS_CHANNEL", "nobody_listens")
        flood = asyncio.create_task(hints_without_end())
        row = await site.command(quiet)
        assert (await quiet.receive_command()).id == row.id
        flood.cancel()


async def test_delivery_goes_on_after_a_fault_and_after_the_database_was_away(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "_SWEEP_SECONDS", 0.02)
    faults: list[Exception] = [ValueError("a fault of ours"), StoreUnavailable("the disk is full")]
    real = command_queue.owed_to_worker

    def flaky(*arguments: object) -> object:
        if faults:
            raise faults.pop()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(delivery, "owed_to_worker", flaky)
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent)
        assert (await agent.receive_command()).id == row.id
        assert "commands wait for the database: the disk is full" in caplog.text
        assert "what is owed to the agents could not be sent" in caplog.text


async def test_the_end_of_a_connection_is_stored_when_the_database_is_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "_CLOSE_RETRY_SECONDS", 0.02)
    away = [True, True]
    real = sessions.close_session

    def flaky(*arguments: object) -> None:
        if away:
            away.pop()
            raise StoreUnavailable("PostgreSQL restarts")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(gateway, "close_session", flaky)
    agent = await site.agent()
    await agent.connect()
    await agent.cut()
    async with asyncio.timeout(10):
        while True:
            _, session = await site.store.read(get_agent, "root", agent.id)
            if session is not None and session.disconnected_at is not None:
                break
            await asyncio.sleep(0.02)


@pytest.mark.case("B50")
async def test_agents_are_turned_away_with_one_line_while_the_database_is_away(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("the database does not answer", advice="free space on the disk")

    agent = await site.agent()
    monkeypatch.setattr(admission, "open_session", away)
    for _ in range(3):
        with pytest.raises(ConnectionClosed) as closed:
            await agent.connect()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
    lines = [record for record in caplog.records if "turned away" in record.getMessage()]
    assert len(lines) == 1
    assert "free space on the disk" in lines[0].getMessage()


# The clock, the host, the disk


async def test_a_clock_that_was_set_back_gives_a_command_no_more_time_than_was_asked(site: Site) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        row = await site.command(agent)
        assert (await agent.receive_command()).id == row.id
        link = site.gateway._links[agent.id]
        link.send_command(row, row.created_at - 7_200_000)
        assert (await agent.receive_command()).remaining_ms <= 60_000


async def test_what_a_frame_waits_is_taken_off_the_time_that_is_left() -> None:
    posted = agent_link._Posted(
        Command(id="c", kind="k", payload={}, remaining_ms=5_000), asyncio.get_running_loop().time() - 3.0
    )
    sent = agent_link._of_this_moment(posted)
    assert isinstance(sent, Command)
    assert sent.remaining_ms <= 2_000


async def test_two_copies_with_one_identity_are_told_in_the_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async with await site.agent() as agent:
        await agent.connect()
        link = site.gateway._links[agent.id]
        link.session = msgspec.structs.replace(link.session, instance="another process")
        await agent.connect()
        assert "two copies use one identity" in caplog.text


def test_a_full_disk_takes_no_certificate_away_that_is_still_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ca = Authority.open(tmp_path)
    names = ("localhost",)
    monkeypatch.setattr(authority, "_SERVER_LIFE", datetime.timedelta(days=20))
    ca.server_context(names)
    before = (tmp_path / "server.pem").read_bytes(), (tmp_path / "server.key").read_bytes()
    # Less than a third of a certificate's life is left.
    monkeypatch.setattr(authority, "_SERVER_LIFE", datetime.timedelta(days=90))
    write = authority._write

    def full(file: Path, content: bytes) -> None:
        if file.name.startswith("server.pem"):
            raise OSError(28, "No space left on device")
        write(file, content)

    monkeypatch.setattr(authority, "_write", full)
    ca.server_context(names)
    assert ((tmp_path / "server.pem").read_bytes(), (tmp_path / "server.key").read_bytes()) == before
    assert "the old one stays in use" in caplog.text
    with pytest.raises(OSError, match="No space"):
        ca.server_context(("another.example",))


@pytest.mark.case("B50")
async def test_the_spread_of_a_reconnect_is_for_all_agents_that_could_come(site: Site) -> None:
    site.gateway._expected = 5_000
    async with await site.agent() as agent:
        answer = await agent.connect()
        assert isinstance(answer, Welcome)
        assert answer.reconnect_spread_ms == 5_000 * 1_000 // gateway._RECONNECTS_PER_SECOND


async def _joined_later(site: Site, waiting: list[ClientConnection]) -> ScriptedAgent:
    """As soon as a place is free."""
    await waiting[0].close()
    await until(lambda: site.gateway._joining._open < 2)
    return await site.agent()


def _large(tx: Transaction, site: Site, agent_id: str, args: dict[str, object]) -> CommandRow:
    """A command whose frame fills what the network buffers."""
    row = _enqueue(tx, agent_id, site.node_id, Repeat.ONCE, 60_000)
    tx.run(
        "UPDATE commands SET payload = :payload WHERE id = :id",
        {"id": row.id, "payload": json_text({**row.payload, "args": args})},
    )
    return row
