"""The node spec in the agent's state folder."""

import asyncio
import errno
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.executor import Executor
from agent.journal import Journal
from agent.node_spec import SpecKeeper
from agent.session import Closed, Session
from protocol.errors import Issue
from protocol.frames import AgentFrame, ErrorFrame, Hello, NodeSpec, NodeSpecApplied, Welcome, encode
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


class _Host:
    """A host that cannot be brought about what `missing` names."""

    def __init__(self, *missing: str) -> None:
        self.missing = list(missing)
        self.applied: list[object] = []

    async def apply(self, spec: Mapping[str, object]) -> list[Issue]:
        self.applied.append(dict(spec))
        return [Issue(name, "is not there") for name in self.missing]


async def test_a_generation_is_acknowledged_only_when_the_host_is_as_it_says(file: Path) -> None:
    said: list[AgentFrame] = []
    host = _Host("services.nginx", "users[0] ada")
    keeper = SpecKeeper(file, said.append, host.apply)
    frame = NodeSpec(generation=4, spec={"hostname": "n1"})
    keeper.take(frame)
    await keeper.aclose()
    (complaint,) = said
    assert isinstance(complaint, ErrorFrame)
    assert complaint.about == "nodeSpec"
    assert "services.nginx: is not there; users[0] ada: is not there" in complaint.message
    assert (keeper.generation, SpecKeeper(file, said.append, host.apply).generation) == (0, 0)
    # The control plane sends it again; the same fault is not told twice.
    keeper.take(frame)
    await keeper.aclose()
    assert len(said) == 1
    host.missing.clear()
    keeper.take(frame)
    await keeper.aclose()
    assert said[1:] == [NodeSpecApplied(generation=4)]
    assert (keeper.generation, SpecKeeper(file, said.append, host.apply).generation) == (4, 4)
    assert host.applied == [{"hostname": "n1"}] * 3


async def test_a_start_brings_the_host_to_what_is_stored(file: Path) -> None:
    said: list[AgentFrame] = []
    host = _Host()
    first = SpecKeeper(file, said.append, host.apply)
    first.take(NodeSpec(generation=1, spec={"hostname": "n1"}))
    await first.aclose()
    again = SpecKeeper(file, said.append, host.apply)
    again.resume()
    await again.aclose()
    assert host.applied == [{"hostname": "n1"}] * 2
    assert said == [NodeSpecApplied(generation=1)] * 2
    nothing = SpecKeeper(file.with_name("other"), said.append, host.apply)
    nothing.resume()
    await nothing.aclose()
    assert len(said) == 2


async def test_a_newer_spec_that_cannot_be_applied_leaves_the_older_generation_unsaid(file: Path) -> None:
    host = _Host()
    keeper = SpecKeeper(file, lambda _frame: None, host.apply)
    keeper.take(NodeSpec(generation=1, spec={}))
    await keeper.aclose()
    host.missing.append("time")
    keeper.take(NodeSpec(generation=2, spec={"time": {}}))
    await keeper.aclose()
    assert keeper.generation == 0
