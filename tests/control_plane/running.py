"""A control plane in a thread and event loop of its own, on free ports: for clients that block."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any, Self

from websockets.exceptions import ConnectionClosed

from control_plane.authority import Authority
from control_plane.config import AgentsConfig, ApiConfig, Config, StoreConfig
from control_plane.server import ControlPlane
from control_plane.tokens import ApiToken, create_token
from protocol.commands import Ending, Outcome
from protocol.errors import Failure
from protocol.frames import Accepted, Cancel, Command, Finished, Welcome
from protocol.join_token import JoinToken
from tests.control_plane.scripted_agent import ScriptedAgent


def config_for(folder: Path, *, store_url: str = "", worker: str = "worker-1", **api: Any) -> Config:
    return Config(
        state_dir=str(folder),
        worker=worker,
        store=StoreConfig(url=store_url),
        api=ApiConfig(**{"listen": "127.0.0.1:0"} | api),
        agents=AgentsConfig(listen="127.0.0.1:0", names=["localhost", "127.0.0.1"]),
    )


class RunningControlPlane:
    """`with RunningControlPlane(folder) as plane:`"""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.config = config_for(folder, **options)
        self.plane: ControlPlane
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="control plane", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.plane.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        scheme = "http" if self.config.api.tls_key is None else "https"
        return f"{scheme}://127.0.0.1:{self.plane.api_port}"

    def run(self, work: Any) -> Any:
        """A coroutine, in the control plane's loop, to its end."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def token(self, permissions: list[str] | None = None, tenant: str = "acme") -> str:
        token = ApiToken.new()

        def make(tx: Any) -> None:
            create_token(
                tx,
                token,
                tenant_id=tenant,
                name=token.id.replace("_", "-"),
                permissions=permissions or ["*"],
                created_by="test",
                ttl_ms=None,
            )

        self.run(self.plane.store.write(make))
        return token.text()

    def agent(self, join_token: str, folder: Path) -> "AnsweringAgent":
        """An agent that has joined, is connected, and lets every command succeed."""
        agent: AnsweringAgent = self.run(self._agent(join_token, folder))
        return agent

    async def _start(self) -> None:
        self.plane = ControlPlane(self.config)
        await self.plane.__aenter__()

    async def _agent(self, join_token: str, folder: Path) -> "AnsweringAgent":
        ca = Authority.open(self.config.state / "ca").pem
        agent = await ScriptedAgent.joined(self.plane.agents_port, ca, JoinToken.parse(join_token), folder)
        answering = AnsweringAgent(agent)
        await answering.start()
        return answering


class AnsweringAgent:
    """Ends every command as `ending` says, and keeps what was asked; with `ending` None it takes and never ends."""

    def __init__(self, agent: ScriptedAgent) -> None:
        self.agent = agent
        self.asked: list[Command] = []
        self.ending: Ending | None = Ending(Outcome.SUCCEEDED, result={"state": "on", "raw": "On"})
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        answer = await self.agent.connect()
        assert isinstance(answer, Welcome), answer
        self._task = asyncio.create_task(self._answer())

    async def sent_away(self) -> None:
        """Until the control plane has closed the connection."""
        assert self._task is not None
        await self._task

    async def _answer(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                frame = await self.agent.receive()
                if isinstance(frame, Command):
                    self.asked.append(frame)
                    await self.agent.send(Accepted(id=frame.id))
                    if self.ending is not None:
                        await self.agent.send(Finished(id=frame.id, ending=self.ending))
                elif isinstance(frame, Cancel):
                    failure = Failure("CANCELLED", "stopped before it began")
                    await self.agent.send(Finished(id=frame.id, ending=Ending(Outcome.CANCELLED, error=failure)))
