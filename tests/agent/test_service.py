"""The daemon's own order: what it needs before it starts, and how it ends when a part of it fails."""

import io
from pathlib import Path

import pytest

from agent.config import Config
from agent.errors import AgentError, IdentityError
from agent.identity import IdentityStore
from agent.joining import join
from agent.logs import Lines, Scrubber
from agent.service import Service
from agent.state_lock import only_one
from protocol.frames import Hello
from tests.agent.tls_control_plane import control_plane


def service(folder: Path) -> Service:
    scrubber = Scrubber()
    return Service(Config(state_dir=str(folder)), scrubber, Lines(scrubber, io.StringIO()))


def test_before_joining_it_does_not_start_and_makes_no_journal(folder: Path) -> None:
    with pytest.raises(IdentityError, match="rackwright agent join URL TOKEN"):
        service(folder)
    assert not (folder / "journal.db").exists()


async def test_a_damaged_memory_of_bmcs_stops_the_start(folder: Path, tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        await join(plane.url, plane.token(), IdentityStore(folder / "identity"))
    (folder / "bmcs.json").write_text("{")
    with pytest.raises(AgentError, match=r"bmcs\.json is damaged"):
        service(folder)


async def test_a_part_that_fails_ends_the_whole_in_good_order(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with control_plane(tmp_path) as plane:
        await join(plane.url, plane.token(), IdentityStore(folder / "identity"))
        running = service(folder)

        async def broken() -> None:
            await plane.next(Hello)
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(running._status, "keep", broken)
        with pytest.raises(AgentError, match="a part of the agent failed: a fault of ours"):
            await running.run()
        hello = plane.hellos[0]
        assert hello.role == "site"
        assert "power.getPower" in hello.drivers["simulated"]
        assert (folder / "status.json").exists()


def test_two_agents_do_not_share_a_state_folder(folder: Path) -> None:
    with only_one(folder), pytest.raises(AgentError, match="another agent runs"), only_one(folder):
        pass
    with only_one(folder):
        pass
