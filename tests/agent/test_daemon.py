"""The agent of an installed system as a real process: what it does to its own machine, and what it says it has."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from agent.identity import IdentityStore
from agent.joining import join
from protocol.frames import Command, ErrorFrame, Finished, NodeSpec, NodeSpecApplied
from protocol.ids import new_id
from tests.agent.test_process import Daemon
from tests.agent.tls_control_plane import control_plane

pytestmark = pytest.mark.e2e


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with control_plane(tmp_path) as plane:
        await join(plane.url, plane.token(), IdentityStore(tmp_path / "state" / "identity"))
        daemon = Daemon(tmp_path, plane)
        settings = (tmp_path / "agent.toml").read_text()
        (tmp_path / "agent.toml").write_text(f'role = "daemon"\n{settings}')
        yield daemon
        if daemon.process is not None:
            await daemon.end(signal.SIGKILL)


async def test_a_daemon_does_what_is_done_on_an_installed_machine(daemon: Daemon) -> None:
    hello = await daemon.start()
    assert (hello.role, list(hello.drivers), hello.node_spec) == ("daemon", ["linux"], 0)
    command = Command(id=new_id("cmd"), kind="task.run", payload={"script": "echo on $HOME"}, remaining_ms=60_000)
    await daemon.plane.tell(command)
    finished = cast(Finished, await daemon.plane.next(Finished))
    assert finished.ending.result is not None
    assert finished.ending.result["output"] == "on /root\n"
    other = Command(id=new_id("cmd"), kind="boot.kexec", payload={}, remaining_ms=60_000)
    await daemon.plane.tell(other)
    refused = cast(Finished, await daemon.plane.next(Finished))
    assert refused.ending.error is not None
    does = "driver.invoke, agent.collectLogs, node.reboot, task.run, daemon.upgrade"
    assert does in refused.ending.error.message


async def test_a_node_spec_is_acknowledged_when_it_is_applied_and_its_faults_are_told(daemon: Daemon) -> None:
    await daemon.start()
    await daemon.plane.tell(NodeSpec(generation=1, spec={"hostnam": "n1"}))
    complaint = cast(ErrorFrame, await daemon.plane.next(ErrorFrame))
    assert complaint.about == "nodeSpec"
    assert "hostnam: is not known here (did you mean 'hostname'?)" in complaint.message
    await daemon.plane.tell(NodeSpec(generation=2, spec={}))
    assert await daemon.plane.next(NodeSpecApplied) == NodeSpecApplied(generation=2)
    await daemon.end(signal.SIGTERM)
    assert (await daemon.start()).node_spec == 2
