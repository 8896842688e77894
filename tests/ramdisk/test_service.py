"""The agent of a ramdisk as a real process: it joins, does what it is told once, dies, and comes back."""

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import psutil
import pytest

from agent.identity import Facts
from agent.tickets import Tickets
from protocol.boot_ticket import TICKET_NAME, BootTicket, from_json, to_json
from protocol.commands import Outcome
from protocol.frames import AgentFrame, Command, Finished, Hello, Started, Ticket, TicketRequest
from protocol.ids import new_id
from protocol.image_admission import ADMISSION
from protocol.join_token import JoinToken
from protocol.secret import Secret
from ramdisk.service import daemon_files
from tests.agent.test_machine_identity import port
from tests.agent.tls_control_plane import ControlPlane, control_plane
from tests.conftest import REPOSITORY
from tests.drivers.linux.machine import Machine

pytestmark = pytest.mark.e2e


class Ramdisk:
    """A machine with one port, whose network is there."""

    def __init__(self, folder: Path, plane: ControlPlane) -> None:
        self.folder = folder
        self.plane = plane
        self.process: Process | None = None
        self.log = b""
        machine = Machine(folder / "machine")
        machine.write("class/tty/console/active", "ttyS0")
        (machine.host.dev / "ttyS0").touch()
        port(machine, "rwtest0", "52:54:00:00:00:01", carrier="0")
        (machine.host.proc / "net").mkdir()
        (machine.host.proc / "net" / "if_inet6").write_text("20010db8000000000000000000000005 02 40 00 80 rwtest0\n")
        self.token = plane.token()
        ticket = BootTicket(node_id="node_1", control_plane=plane.url, token=Secret(self.token))
        file = folder / "root" / TICKET_NAME
        file.parent.mkdir(parents=True)
        file.write_bytes(to_json(ticket))

    async def start(self) -> Hello:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.ramdisk.ramdisk_process", str(self.folder)),
            cwd=REPOSITORY,
            stdin=DEVNULL,
            stderr=PIPE,
        )
        return cast(Hello, await self.plane.next(Hello))

    async def end(self, number: int) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        _, errors = await self.process.communicate()
        self.log += errors
        return self.process.returncode or 0

    @property
    def console(self) -> str:
        return (self.folder / "machine" / "dev" / "ttyS0").read_text()


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    (tmp_path / "plane").mkdir()
    async with control_plane(tmp_path / "plane") as plane:
        yield plane


@pytest.fixture
async def ramdisk(tmp_path: Path, plane: ControlPlane) -> AsyncIterator[Ramdisk]:
    ramdisk = Ramdisk(tmp_path / "ramdisk", plane)
    yield ramdisk
    if ramdisk.process is not None:
        await ramdisk.end(signal.SIGKILL)


def task(script: str) -> Command:
    payload: dict[str, object] = {"script": script, "targetNodeId": "node_1"}
    return Command(id=new_id("cmd"), kind="task.run", payload=payload, remaining_ms=60_000)


async def ending_of(plane: ControlPlane, command: Command) -> Finished:
    while True:
        finished = cast(Finished, await plane.next(Finished))
        if finished.id == command.id:
            return finished


async def test_it_joins_as_a_ramdisk_and_does_what_a_machines_own_agent_does(
    ramdisk: Ramdisk, plane: ControlPlane, tmp_path: Path
) -> None:
    hello = await ramdisk.start()
    assert (hello.role, hello.boot_id) == ("ramdisk", Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    assert list(hello.drivers) == ["linux"]
    assert plane.joins[0].machine is not None
    assert plane.joins[0].machine.macs == ["52:54:00:00:00:01"]
    command = task("echo hello")
    await plane.tell(command)
    finished = await ending_of(plane, command)
    assert finished.ending.result is not None
    assert finished.ending.result["output"] == "hello\n"
    unknown = Command(id=new_id("cmd"), kind="site.offerImage", payload={}, remaining_ms=60_000)
    await plane.tell(unknown)
    refused = await ending_of(plane, unknown)
    assert refused.ending.error is not None
    kinds = "driver.invoke, agent.collectLogs, node.reboot, task.run, boot.kexec"
    assert f"it does {kinds}" in refused.ending.error.message
    assert await ramdisk.end(signal.SIGTERM) == 0
    assert "waiting for orders" in ramdisk.console


async def test_nothing_listens_no_core_is_written_and_the_token_is_nowhere_left(
    ramdisk: Ramdisk, plane: ControlPlane
) -> None:
    await ramdisk.start()
    assert ramdisk.process is not None
    process = psutil.Process(ramdisk.process.pid)
    assert [one for one in process.net_connections() if one.status == psutil.CONN_LISTEN] == []
    assert [one for one in process.net_connections() if one.type == socket.SOCK_DGRAM] == []
    assert process.rlimit(psutil.RLIMIT_CORE) == (0, 0)
    await ramdisk.end(signal.SIGTERM)
    token = ramdisk.token.encode()
    assert token not in ramdisk.log
    left = [path for path in ramdisk.folder.rglob("*") if path.is_file() and token in path.read_bytes()]
    assert left == []


@pytest.mark.case("B49")
async def test_b49_a_process_that_was_killed_comes_back_without_joining_or_doing_anything_twice(
    ramdisk: Ramdisk, plane: ControlPlane, tmp_path: Path
) -> None:
    plane.settles = False
    first = await ramdisk.start()
    done = task(f"echo x >>{tmp_path}/count")
    await plane.tell(done)
    before = await ending_of(plane, done)
    slow = task(f"echo begun >>{tmp_path}/slow; sleep 1000")
    await plane.tell(slow)
    while cast(Started, await plane.next(Started)).id != slow.id:
        pass
    while not (tmp_path / "slow").exists():
        await asyncio.sleep(0.01)
    await ramdisk.end(signal.SIGKILL)
    second = await ramdisk.start()
    assert (second.agent_id, second.boot_id, second.journal_id) == (first.agent_id, first.boot_id, first.journal_id)
    assert len(plane.joins) == 1
    assert {held.id for held in second.held} == {done.id, slow.id}
    endings = {frame.id: frame for frame in [await _finished(plane), await _finished(plane)]}
    assert endings[done.id].ending == before.ending
    interrupted = endings[slow.id].ending
    assert interrupted.error is not None
    assert (interrupted.outcome, interrupted.error.code) == (Outcome.FAILED, "INTERRUPTED")
    await plane.tell(done)
    assert (await ending_of(plane, done)).ending == before.ending
    assert (tmp_path / "count").read_text() == "x\n"
    assert (tmp_path / "slow").read_text() == "begun\n"


async def _finished(plane: ControlPlane) -> Finished:
    return cast(Finished, await plane.next(Finished))


async def test_the_installed_systems_ticket_is_asked_for_over_its_own_link(
    ramdisk: Ramdisk, plane: ControlPlane
) -> None:
    await ramdisk.start()
    payload: dict[str, object] = {
        "driver": "linux",
        "concern": "deploy",
        "operation": "writeConfigDrive",
        "args": {"daemon": True},
        "targetNodeId": "node_1",
    }
    command = Command(id=new_id("cmd"), kind="driver.invoke", payload=payload, remaining_ms=60_000)
    await plane.tell(command)
    request = cast(TicketRequest, await plane.next(TicketRequest))
    assert request.purpose == "daemon"
    daemon = BootTicket(node_id="node_1", control_plane=plane.url, token=Secret(JoinToken.new("cd" * 32).text()))
    await plane.tell(Ticket(id=request.id, node_id="node_1", ticket=to_json(daemon).decode()))
    finished = await ending_of(plane, command)
    # This machine has no disk that was written: the ticket came, and nothing of it is in the error.
    assert finished.ending.error is not None
    assert "no image was written" in finished.ending.error.message
    assert from_json(to_json(daemon)).token.reveal() not in repr(finished)


async def test_the_installed_systems_agent_goes_the_way_to_the_control_plane_that_this_machine_was_given() -> None:
    said: list[TicketRequest] = []
    learnt: list[str] = []

    def say(frame: AgentFrame) -> None:
        assert isinstance(frame, TicketRequest)
        said.append(frame)
        tickets.take(Ticket(id=frame.id, node_id="node_1", ticket=to_json(daemon).decode()))

    tickets = Tickets(say)
    daemon = BootTicket(
        node_id="node_1", control_plane="https://plane.example:8443", token=Secret(JoinToken.new("cd" * 32).text())
    )
    own = Facts("agt_1", "ramdisk", "north", "https://10.0.2.2:8443", node="node_1")
    files = await daemon_files(tickets, own, lambda secret: learnt.append(secret.reveal()))
    written = from_json(files["rackwright.json"])
    assert written.control_plane == own.control_plane
    assert written.token == daemon.token
    assert [(request.node_id, request.purpose) for request in said] == [("node_1", "daemon")]
    assert learnt == [daemon.token.reveal()]


async def test_what_admits_to_an_image_comes_over_the_link_and_is_in_no_command_ending_or_journal(
    ramdisk: Ramdisk, plane: ControlPlane
) -> None:
    await ramdisk.start()
    image = {"url": f"http://127.0.0.1:9/images/{ADMISSION}/{'ab' * 32}/debian.raw", "sha256": "ab" * 32}
    command = Command(
        id=new_id("cmd"),
        kind="driver.invoke",
        payload={
            "driver": "linux",
            "concern": "deploy",
            "operation": "writeImage",
            "args": {"image": image, "rootDevice": {"serial": "of no disk at all"}},
            "targetNodeId": "node_1",
        },
        remaining_ms=60_000,
    )
    await plane.tell(command)
    asked = cast(TicketRequest, await plane.next(TicketRequest))
    assert (asked.purpose, asked.checksum) == ("image", "ab" * 32)
    assert ADMISSION.encode() in kept(ramdisk)
    admission = "0123456789" * 4
    await plane.tell(Ticket(id=asked.id, node_id="node_1", ticket=admission))
    finished = await ending_of(plane, command)
    assert finished.ending.error is not None
    assert admission not in str(finished)
    await ramdisk.end(signal.SIGTERM)
    assert admission.encode() not in kept(ramdisk) + ramdisk.log


def kept(ramdisk: Ramdisk) -> bytes:
    """All that lies in its folder: the journal and its log among it."""
    return b"".join(file.read_bytes() for file in ramdisk.folder.rglob("*") if file.is_file())
