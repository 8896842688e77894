"""The console's websocket: rights, refusals, one writer, late readers, audit; over a real port, and an agent that is
the test's."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from control_plane.audit import list_audit
from control_plane.authority import Authority
from control_plane.server import ControlPlane
from control_plane.store import Transaction
from control_plane.tokens import LOCAL_OPERATOR, ApiToken, create_token
from protocol.commands import Ending, Outcome
from protocol.console_frames import ConsoleEnded, ConsoleFrame, EndReason, FrameKind, decode_console_frame
from protocol.errors import Failure
from protocol.frames import Accepted, Command, ErrorFrame, Finished, Settled, decode_control_frame
from protocol.ids import new_id
from protocol.join_token import JoinToken
from tests.control_plane.running import config_for
from tests.control_plane.scripted_agent import ScriptedAgent


class ConsoleAgent:
    """An agent whose machine has a console that the test writes on."""

    def __init__(self, agent: ScriptedAgent) -> None:
        self.agent = agent
        self.stream = new_id("strm")
        self.opened: list[dict[str, Any]] = []
        self.failure: Failure | None = None
        self.attached = asyncio.Event()
        self.detached = asyncio.Event()
        self.typed = bytearray()
        self.breaks = 0
        self.offset = 0
        self.complaints: list[str] = []
        self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                assert self.agent.connection is not None
                message = await self.agent.connection.recv()
                if isinstance(message, bytes):
                    await self._console(decode_console_frame(message))
                    continue
                frame = decode_control_frame(message)
                if isinstance(frame, Command):
                    await self._answer(frame)
                elif isinstance(frame, ErrorFrame):
                    self.complaints.append(frame.message)
                else:
                    assert isinstance(frame, Settled) or type(frame).__name__ == "WatchList", frame

    async def _answer(self, command: Command) -> None:
        assert command.payload["operation"] == "openConsole"
        self.opened.append(command.payload)
        await self.agent.send(Accepted(id=command.id))
        ending = Ending(Outcome.SUCCEEDED, result={"stream": self.stream})
        if self.failure is not None:
            ending = Ending(Outcome.FAILED, error=self.failure)
        await self.agent.send(Finished(id=command.id, ending=ending))

    async def _console(self, frame: ConsoleFrame) -> None:
        match frame.kind:
            case FrameKind.ATTACH:
                await self.send(ConsoleFrame(FrameKind.WINDOW, self.stream, 1_000))
                self.attached.set()
            case FrameKind.INPUT:
                self.typed += frame.data
            case FrameKind.BREAK:
                self.breaks += 1
            case FrameKind.DETACH:
                self.detached.set()

    async def send(self, frame: ConsoleFrame) -> None:
        assert self.agent.connection is not None
        await self.agent.connection.send(frame.encode())

    async def writes(self, data: bytes) -> None:
        await asyncio.wait_for(self.attached.wait(), 10)
        await self.send(ConsoleFrame(FrameKind.DATA, self.stream, self.offset, data))
        self.offset += len(data)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.agent.cut()


@dataclass
class Site:
    plane: ControlPlane
    folder: Path
    token: str
    agent: ConsoleAgent
    name: str = ""
    """Of the token."""

    def console(self, query: str = "", *, node: str = "n1", token: str | None = None) -> connect:
        return connect(
            f"ws://127.0.0.1:{self.plane.api_port}/api/compute/console/{node}{query}",
            additional_headers={"Authorization": f"Bearer {token or self.token}"},
            proxy=None,
        )

    async def refused(self, query: str = "", *, node: str = "n1", token: str | None = None) -> tuple[int, Any]:
        with pytest.raises(InvalidStatus) as caught:
            async with self.console(query, node=node, token=token):
                pass
        response = caught.value.response
        return response.status_code, json.loads(response.body)["error"]

    async def make_token(self, permissions: list[str], tenant: str = "acme") -> ApiToken:
        token = ApiToken.new()

        def make(tx: Transaction) -> None:
            name = token.id.replace("_", "-")
            create_token(
                tx, token, tenant_id=tenant, name=name, permissions=permissions, created_by="test", ttl_ms=None
            )

        await self.plane.store.write(make)
        return token

    async def audit(self, count: int) -> list[dict[str, Any]]:
        """The console's audit lines, oldest first, once there are so many."""
        async with asyncio.timeout(10):
            while True:
                rows = await self.plane.store.read(list_audit, "acme", None, 100)
                lines = [row for row in reversed(rows) if row.action == "compute:console:open"]
                if len(lines) >= count:
                    return [{**line.detail, "actor": line.actor, "decision": line.decision} for line in lines]
                await asyncio.sleep(0.02)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    config = config_for(tmp_path / "state")
    (tmp_path / "agent").mkdir()
    async with ControlPlane(config) as plane:
        api = plane.compute.api
        made = await api.joinTokens.create(LOCAL_OPERATOR, {"tenantId": "acme", "siteId": "lab", "createSite": True})
        record = {"address": "https://192.0.2.1", "credentialRef": "bmc"}
        await api.nodes.create(
            LOCAL_OPERATOR,
            {"tenantId": "acme", "name": "n1", "siteId": "lab", "bmc": record, "drivers": {"console": "ipmi"}},
        )
        ca = Authority.open(config.state / "ca").pem
        joined = await ScriptedAgent.joined(plane.agents_port, ca, JoinToken.parse(made.token), tmp_path / "agent")
        await joined.connect()
        site = Site(plane, tmp_path, "", ConsoleAgent(joined))
        made_token = await site.make_token(["compute:console:open"])
        site.token, site.name = made_token.text(), made_token.id.replace("_", "-")
        yield site
        await site.agent.stop()


async def said(connection: ClientConnection) -> dict[str, Any]:
    """The next text message."""
    message = await asyncio.wait_for(connection.recv(), 10)
    assert isinstance(message, str), message
    answer: dict[str, Any] = json.loads(message)
    return answer


async def heard(connection: ClientConnection, expected: bytes) -> None:
    """Until these bytes came; words that come between are passed over."""
    read = b""
    while expected not in read:
        message = await asyncio.wait_for(connection.recv(), 10)
        read += message if isinstance(message, bytes) else b""


async def opened(connection: ClientConnection) -> dict[str, Any]:
    """The first message, once the console is open."""
    first = await said(connection)
    assert first["type"] == "opened"
    if not first["ready"]:
        assert (await said(connection))["type"] == "ready"
    return first


async def test_bytes_go_both_ways(site: Site) -> None:
    async with site.console() as one:
        first = await opened(one)
        assert (first["nodeName"], first["writer"]) == ("n1", True)
        await site.agent.writes(b"login: ")
        await heard(one, b"login: ")
        await one.send(b"root\r")
        await one.send(json.dumps({"type": "break"}))
        async with asyncio.timeout(10):
            while not site.agent.breaks:
                await asyncio.sleep(0.01)
        assert bytes(site.agent.typed) == b"root\r"
    (payload,) = site.agent.opened
    assert payload["driver"] == "ipmi"
    assert payload["target"] == {"address": "ipmi://192.0.2.1", "credentialRef": "bmc", "tls": "first-use"}
    assert payload["args"] == {"takeOver": False}
    lines = await site.audit(2)
    assert [line["event"] for line in lines] == ["opened", "closed"]
    assert lines[1]["typedBytes"] == 5
    assert site.agent.complaints == []


async def test_many_read_one_types_and_the_late_see_what_was(site: Site) -> None:
    async with site.console() as first:
        await opened(first)
        await site.agent.writes(b"booting")
        await heard(first, b"booting")
        async with site.console() as late, site.console("?readOnly=true") as watcher:
            told = await opened(late)
            assert told["writer"] is False
            assert told["holder"] == site.name
            await heard(late, b"booting")
            await opened(watcher)
            await late.send(b"ignored")
            await watcher.send(b"ignored")
            await late.send(json.dumps({"type": "take"}))
            assert (await said(late))["mine"] is True
            assert (await said(first))["mine"] is False
            await first.send(b"ignored")
            await late.send(b"mine")
            async with asyncio.timeout(10):
                while bytes(site.agent.typed) != b"mine":
                    await asyncio.sleep(0.01)
        assert len(site.agent.opened) == 1
    events = [line["event"] for line in await site.audit(7)]
    assert sorted(events) == ["closed"] * 3 + ["opened"] * 3 + ["tookWriter"]


async def test_force_makes_the_writer_at_once(site: Site) -> None:
    async with site.console() as first:
        await opened(first)
        async with site.console("?force=true") as second:
            assert (await opened(second))["writer"] is True
            assert (await said(first))["type"] == "writer"


async def test_a_token_needs_the_right_and_the_refusal_is_in_the_audit_trail(site: Site) -> None:
    weak = (await site.make_token(["compute:nodes:read", "compute:*:read"])).text()
    status, error = await site.refused(token=weak)
    assert (status, error["code"]) == (403, "FORBIDDEN")
    assert (await site.audit(1))[0]["decision"] == "denied"
    assert (await site.refused(token="rwt_nonsense"))[0] == 401
    assert (await site.refused(token=(await site.make_token(["*"], "umbrella")).text()))[0] == 404


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("?readOnly=perhaps", "readOnly"),
        ("?kind=telnet", "kind"),
        ("?replay=-1", "replay"),
        ("?command=", "command"),
        ("?unknown=1", "unknown"),
    ],
)
async def test_every_fault_of_the_query_is_named(site: Site, query: str, path: str) -> None:
    status, error = await site.refused(query)
    assert status == 400
    assert [issue["path"] for issue in error["issues"]] == [path]


async def test_an_unknown_machine_is_not_found(site: Site) -> None:
    assert (await site.refused(node="n2"))[0] == 404


async def test_a_site_without_its_agent_is_told_at_once(site: Site) -> None:
    await site.agent.stop()
    async with asyncio.timeout(10):
        while (await site.plane.compute.api.agents.list(LOCAL_OPERATOR, {"tenantId": "acme"})).items[0].connected:
            await asyncio.sleep(0.02)
    status, error = await site.refused()
    assert (status, error["code"]) == (503, "UNAVAILABLE")
    assert "agent is not connected" in error["message"]


async def test_an_agent_at_another_worker_is_told_by_its_name(site: Site) -> None:
    def move(tx: Transaction) -> None:
        tx.run("UPDATE sessions SET worker = 'worker-2' WHERE disconnected_at IS NULL")

    await site.plane.store.write(move)
    status, error = await site.refused()
    assert (status, error["code"]) == (409, "INVALID_STATE")
    assert "'worker-2'" in error["message"]


async def test_a_console_that_cannot_be_opened_ends_with_the_bmcs_words(site: Site) -> None:
    site.agent.failure = Failure("CONFLICT", "another session holds the serial console")
    async with site.console() as one:
        assert (await said(one))["type"] == "opened"
        ended = await said(one)
        assert (ended["type"], ended["reason"], ended["code"]) == ("ended", "failed", "CONFLICT")
        assert "another session" in ended["message"]


@pytest.mark.parametrize(
    ("query", "driver", "arguments"),
    [
        (
            "?kind=ssh&command=sol%20start&takeOver=true",
            "ipmi",
            {"kind": "ssh", "command": "sol start", "takeOver": True},
        ),
        ("?kind=sol", "ipmi", {"kind": "sol", "takeOver": False}),
    ],
)
async def test_wishes_reach_the_driver(site: Site, query: str, driver: str, arguments: dict[str, object]) -> None:
    async with site.console(query) as one:
        await opened(one)
    assert site.agent.opened[0]["driver"] == driver
    assert site.agent.opened[0]["args"] == arguments


async def test_the_kind_tells_the_driver_where_the_node_has_none_for_consoles(site: Site) -> None:
    await site.plane.compute.api.nodes.update(LOCAL_OPERATOR, {"tenantId": "acme", "nodeId": "n1", "drivers": {}})
    async with site.console("?kind=ssh") as one:
        await opened(one)
    payload = site.agent.opened[0]
    assert (payload["driver"], payload["target"]["address"]) == ("ssh", "ssh://192.0.2.1")
    assert payload["target"]["tls"] == "first-use"


async def test_a_revoked_token_ends_what_it_opened(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control_plane.api.console._CHECK_SECONDS", 0.05)
    token = await site.make_token(["compute:console:open"])
    async with site.console(token=token.text()) as one:
        await opened(one)
        await site.plane.compute.api.tokens.revoke(LOCAL_OPERATOR, {"tenantId": "acme", "tokenId": token.id})
        ended = await said(one)
        assert (ended["reason"], ended["code"]) == ("forbidden", "UNAUTHENTICATED")


async def test_a_message_that_is_none_ends_the_connection(site: Site) -> None:
    async with site.console() as one:
        await opened(one)
        await one.send('{"type": "explode"}')
        with pytest.raises(ConnectionClosed) as caught:
            await heard(one, b"never")
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1007


async def test_the_end_of_the_stream_reaches_the_reader(site: Site) -> None:
    async with site.console() as one:
        await opened(one)
        await site.agent.writes(b"bye")
        ended = ConsoleEnded(EndReason.ENDED, "somebody took it over", "CONFLICT")
        await site.agent.send(ConsoleFrame.ending(site.agent.stream, site.agent.offset, ended))
        await heard(one, b"bye")
        assert (await said(one))["message"] == "somebody took it over"


async def test_frames_of_a_stream_that_nobody_reads_are_stopped(site: Site) -> None:
    await site.agent.send(ConsoleFrame(FrameKind.DATA, site.agent.stream, 0, b"who reads this?"))
    await asyncio.wait_for(site.agent.detached.wait(), 10)


async def test_a_control_plane_that_stops_sends_readers_away(site: Site) -> None:
    async with site.console() as one:
        await opened(one)
        site.plane.gateway.consoles.stop()
        assert (await said(one))["reason"] == "away"


async def test_a_plain_request_is_told_what_the_path_is(site: Site) -> None:
    import http.client

    def ask() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", site.plane.api_port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/api/compute/console/n1", headers={"Authorization": f"Bearer {site.token}"})
            answer = connection.getresponse()
            return answer.status, answer.read()

    status, body = await asyncio.to_thread(ask)
    assert status == 426
    assert b"websocket" in body


async def test_an_agents_garbage_is_answered_and_its_link_goes_on(site: Site) -> None:
    assert site.agent.agent.connection is not None
    await site.agent.agent.connection.send(b"\x00garbage")
    await site.agent.agent.send(ErrorFrame(message="still here"))
    async with asyncio.timeout(10):
        while not site.agent.complaints:
            await asyncio.sleep(0.01)
    async with site.console() as one:
        await opened(one)
