"""A join is stored, and its answer reaches nobody: the same command is given again, and there is one agent.

Real processes: `rackwright control-plane serve`, `rackwright agent join` and `agent run`, and between them a proxy
that sees the answer leave the control plane.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.authority import Authority
from tests.e2e.frame_proxy import Deed, FrameProxy, Seen
from tests.e2e.processes import AgentProcess, ControlPlaneProcess, rackwright, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


class Place:
    """One site whose agent has not joined yet."""

    def __init__(self, folder: Path) -> None:
        self.plane = ControlPlaneProcess(folder)
        self.agent = AgentProcess(folder)

    def join(self, port: int, token: str) -> str:
        words = ("agent", "join", f"https://127.0.0.1:{port}", "-", "--config", str(self.agent.config))
        return rackwright(*words, stdin=token)

    def agents(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.plane.call("agents.list", tenantId="default")["items"]
        return found

    def connected(self) -> bool:
        return [agent["connected"] for agent in self.agents()] == [True]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    it = Place(tmp_path)
    it.plane.start()
    yield it
    for program in (it.agent, it.plane):
        if program.running:
            program.kill()


@pytest.mark.parametrize("killed", [True, False], ids=["the control plane is killed", "the connection is cut"])
async def test_a_join_whose_answer_was_lost_is_had_by_the_same_command_again(place: Place, *, killed: bool) -> None:
    answers = 0

    async def lose_the_first_answer(frame: Seen) -> Deed:
        nonlocal answers
        if frame.type != "joined":
            return Deed.PASS
        answers += 1
        if answers > 1:
            return Deed.PASS
        if killed:
            place.plane.kill()
        return Deed.DROP_AND_CUT

    authority = Authority.open(place.plane.state / "ca")
    token = await asyncio.to_thread(place.plane.join_token)
    async with FrameProxy(authority, None, None, place.plane.agents_port, plan=lose_the_first_answer) as proxy:
        with pytest.raises(AssertionError, match=r"broke before it answered.*the same command"):
            await asyncio.to_thread(place.join, proxy.port, token)
        if killed:
            await asyncio.to_thread(place.plane.start)
        said = await asyncio.to_thread(place.join, proxy.port, token)
    (agent,) = await asyncio.to_thread(place.agents)
    assert f"joined as {agent['id']}" in said
    assert answers == 2
    # What it was given is good to connect with.
    place.agent.dial(place.plane.agents_port)
    place.agent.start()
    await asyncio.to_thread(wait_until, "the agent is connected", place.connected)
