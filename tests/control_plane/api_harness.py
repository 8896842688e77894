"""The API in this process, on an empty database, without a socket: requests go straight into the application."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.applications import Starlette

from control_plane.api.app import build_app
from control_plane.api.call import Services
from control_plane.api.dispatch import Dispatcher
from control_plane.api.metrics import Metrics
from control_plane.api.stream import EventHub
from control_plane.records import AgentRow, CommandRow, SessionRow
from control_plane.sessions import open_session
from control_plane.store import Store, Transaction, migrate, params_of
from control_plane.tokens import ApiToken, create_token
from control_plane.waiters import Waiters
from protocol.frames import Hello, Progress
from protocol.ids import new_id

CA_SHA256 = "c" * 64
AGENT_URL = "wss://control.example:8443"
WORKER = "worker-1"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"])

    @property
    def faults(self) -> dict[str, str]:
        return {issue["path"]: issue["message"] for issue in self.json["error"].get("issues", [])}


@dataclass
class RecordingLinks:
    """Stands for the gateway: says which agents are connected, and keeps what was to be sent to them."""

    sessions: dict[str, SessionRow] = field(default_factory=dict)
    sent: list[CommandRow] = field(default_factory=list)
    progress: dict[str, Progress] = field(default_factory=dict)

    @property
    def connected(self) -> Mapping[str, object]:
        return self.sessions

    def live_session(self, agent_id: str) -> SessionRow | None:
        return self.sessions.get(agent_id)

    async def deliver(self, row: CommandRow, now: int | None = None) -> None:
        self.sent.append(row)

    def progress_of(self, row: CommandRow) -> Progress | None:
        return self.progress.get(row.id)


class Api:
    """An application, its store, and tokens of two tenants."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.links = RecordingLinks()
        self.waiters = Waiters(store, poll_seconds=0.2)
        self.services = Services(
            store, ca_sha256=CA_SHA256, agent_url=AGENT_URL, waiters=self.waiters, links=self.links
        )
        self.metrics = Metrics(lambda: len(self.links.connected))
        self.waiters.seen = self.metrics.command_seen
        self.hub = EventHub(store, self.services.horizon)
        self.dispatcher = Dispatcher(self.services, self.metrics)
        self.not_ready: str | None = None
        self.app: Starlette = build_app(self.dispatcher, self.hub, ready=self._ready)
        self.token = ""
        self.other = ""

    async def start(self) -> None:
        await migrate(self.store)
        self.waiters.start()
        self.hub.start()
        self.token = await self.make_token("acme", ["*"])
        self.other = await self.make_token("umbrella", ["*"])

    async def stop(self) -> None:
        self.hub.stop()
        await self.waiters.stop()

    async def make_token(
        self, tenant: str, permissions: list[str], *, ttl_ms: int | None = None, name: str | None = None
    ) -> str:
        token = ApiToken.new()
        await self.store.write(_token, token, tenant, permissions, ttl_ms, name or token.id.replace("_", "-"))
        return token.text()

    async def call(self, verb: str, request: object = None, *, token: str | None = None) -> Answer:
        """`group.method`, as the first tenant's administrator unless another token is given."""
        group, _, method = verb.partition(".")
        body = msgspec.json.encode({} if request is None else request)
        return await self.http("POST", f"/api/compute/{group}/{method}", body, token=token)

    async def ok(self, verb: str, request: object = None, *, token: str | None = None) -> Any:
        answer = await self.call(verb, request, token=token)
        assert answer.status == 200, answer.body
        return answer.json

    async def http(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        path, _, query = path.partition("?")
        sent = {"content-type": "application/json", "authorization": f"Bearer {token or self.token}"}
        sent |= {name.lower(): value for name, value in (headers or {}).items()}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items() if value],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8440),
        }
        messages: list[Any] = []
        bodies = [body]

        async def receive() -> dict[str, Any]:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            # The client stays, and says nothing more.
            return await asyncio.Future()

        async def send(message: Any) -> None:
            messages.append(message)

        await self.app(scope, receive, send)
        received = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        return Answer(messages[0]["status"], received, b"".join(m.get("body", b"") for m in messages[1:]))

    async def site(self, name: str = "lab", *, token: str | None = None) -> str:
        return str((await self.ok("sites.create", {"name": name}, token=token))["id"])

    async def node(self, name: str = "n1", *, site: str = "lab", token: str | None = None, **more: Any) -> str:
        request = {"name": name, "siteId": site, "bmc": {"address": f"simulated://{name}"}, **more}
        return str((await self.ok("nodes.create", request, token=token))["id"])

    async def agent(self, site_id: str, tenant: str = "acme", *, online: bool = True) -> str:
        """An agent that serves the site; connected to this worker where it is online."""
        agent_id = new_id("agent")
        await self.store.write(_agent, agent_id, tenant, site_id)
        if online:
            await self.connect(agent_id)
        return agent_id

    async def connect(self, agent_id: str, journal: str = "jrn_1") -> SessionRow:
        hello = Hello(
            agent_id=agent_id,
            role="site",
            boot_id="boot",
            journal_id=journal,
            version="0.1.0",
            host_name="site-host",
            drivers={"simulated": ["power.getPower"]},
        )
        session, _, _ = await self.store.write(open_session, hello, WORKER)
        self.links.sessions[agent_id] = session
        return session

    async def lab(self) -> str:
        """A site with a connected agent and the node n1; the agent's id."""
        agent_id = await self.agent(await self.site())
        await self.node()
        return agent_id

    async def _ready(self) -> str | None:
        return self.not_ready


def _token(
    tx: Transaction, token: ApiToken, tenant: str, permissions: list[str], ttl_ms: int | None, name: str
) -> None:
    create_token(tx, token, tenant_id=tenant, name=name, permissions=permissions, created_by="test", ttl_ms=ttl_ms)


def _agent(tx: Transaction, agent_id: str, tenant: str, site_id: str) -> None:
    row = AgentRow(agent_id, tenant, site_id, None, "site", "site-host", "0.1.0", {}, tx.now(), None, None, None)
    names = ", ".join(AgentRow.__struct_fields__)
    places = ", ".join(f":{name}" for name in AgentRow.__struct_fields__)
    tx.run(f"INSERT INTO agents ({names}) VALUES ({places})", params_of(row))
    tx.run("UPDATE sites SET agent_id = :agent WHERE id = :id", {"agent": agent_id, "id": site_id})
