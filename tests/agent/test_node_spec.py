"""The node spec in the agent's state folder."""

import asyncio
import errno
from pathlib import Path

import pytest

from agent.executor import Executor
from agent.journal import Journal
from agent.node_spec import SpecKeeper
from agent.session import Closed, Session
from protocol.frames import AgentFrame, Hello, NodeSpec, NodeSpecApplied, Welcome, encode
from tests.agent.rig import FakeClock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "node-spec.json"


async def test_a_spec_is_stored_before_it_is_said_to_be_held(file: Path) -> None:
    said: list[tuple[AgentFrame, int]] = []

    def say(frame: AgentFrame) -> None:
        # Whoever reads the file now, after a crash for one, finds what was said.
        said.append((frame, SpecKeeper(file, say).generation))

    keeper = SpecKeeper(file, say)
    assert (keeper.generation, keeper.spec) == (0, None)
    keeper.take(NodeSpec(generation=3, spec={"hostname": "n1"}))
    await keeper.aclose()
    assert said == [(NodeSpecApplied(generation=3), 3)]
    again = SpecKeeper(file, say)
    assert (again.generation, again.spec) == (3, {"hostname": "n1"})


async def test_of_several_that_come_at_once_the_last_one_stays(file: Path) -> None:
    said: list[AgentFrame] = []
    keeper = SpecKeeper(file, said.append)
    for generation in (1, 2, 3):
        keeper.take(NodeSpec(generation=generation, spec={"g": generation}))
    await keeper.aclose()
    assert said[-1] == NodeSpecApplied(generation=3)
    assert SpecKeeper(file, said.append).spec == {"g": 3}


async def test_an_older_generation_is_taken_too_since_a_restored_control_plane_sends_it(file: Path) -> None:
    keeper = SpecKeeper(file, lambda _frame: None)
    for generation in (9, 4):
        keeper.take(NodeSpec(generation=generation, spec={}))
        await keeper.aclose()
    assert keeper.generation == 4


async def test_what_could_not_be_stored_is_not_said_to_be_held(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[AgentFrame] = []
    keeper = SpecKeeper(file, said.append)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("agent.node_spec.write_durably", full)
        keeper.take(NodeSpec(generation=1, spec={}))
        await keeper.aclose()
    assert (said, keeper.generation) == ([], 0)
    keeper.take(NodeSpec(generation=1, spec={}))
    await keeper.aclose()
    assert said == [NodeSpecApplied(generation=1)]


async def test_a_file_that_cannot_be_read_counts_as_none(file: Path) -> None:
    file.write_bytes(b"{")
    assert SpecKeeper(file, lambda _frame: None).generation == 0


class _Scripted:
    """A connection that says a welcome and a node spec, and then is gone."""

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames

    async def send(self, data: bytes) -> None:
        return None

    async def send_bytes(self, data: bytes) -> None:
        raise AssertionError("no console is open here")

    async def receive(self) -> str | bytes:
        await asyncio.sleep(0)
        if not self._frames:
            raise Closed("gone")
        return self._frames.pop(0).decode()

    async def close(self) -> None:
        return None


async def test_a_session_hands_the_spec_on(folder: Path, clock: FakeClock) -> None:
    journal = Journal.open(folder / "journal.db", clock)
    executor = Executor(journal, {}, clock, role="daemon")
    spec = NodeSpec(generation=1, spec={"a": 1})
    taken: list[NodeSpec] = []
    connection = _Scripted([encode(Welcome(session_id="ses_1")), encode(spec)])
    hello = Hello(agent_id="agent_1", role="daemon", boot_id="b", journal_id="j", version="0")
    await Session(connection, lambda: hello, executor, node_spec=taken.append).run()
    journal.close()
    assert taken == [spec]
