"""Simulated BMCs on loopback, and OpenIPMI's `ipmi_sim`, which nobody here wrote."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drivers import Breaker, Drivers, Reply, Target
from protocol.errors import OperationError
from simulators.ipmi.accounts import User
from simulators.ipmi.bmc import IpmiBmc
from simulators.ipmi.faults import FaultRule, Phase
from simulators.ipmi.journal import JournalEntry
from simulators.ipmi.server import IpmiServer

USER = "admin"
PASSWORD = "Pl4nted-Secret"


@dataclass
class Site:
    """A simulated BMC, its target, and a process' connections to it."""

    server: IpmiServer
    target: Target
    drivers: Drivers

    @property
    def bmc(self) -> IpmiBmc:
        return self.server.bmc

    @property
    def breaker(self) -> Breaker:
        return self.drivers.environment.breaker

    async def invoke(self, operation: str, timeout: float = 20.0, **arguments: object) -> dict[str, object]:
        return (await self.reply(operation, timeout, **arguments)).result

    async def reply(self, operation: str, timeout: float = 20.0, **arguments: object) -> Reply:
        async with self.drivers.turn(self.target, operation, arguments) as turn:
            return await turn.run(arguments, timeout=timeout)

    async def refused(self, operation: str, timeout: float = 20.0, **arguments: Any) -> OperationError:
        """The error that the operation must end with."""
        with pytest.raises(OperationError) as caught:
            await self.invoke(operation, timeout, **arguments)
        assert PASSWORD not in str(caught.value)
        return caught.value

    def fault(self, phase: Phase | None = None, /, **fields: Any) -> FaultRule:
        return self.bmc.faults.add(FaultRule(phase=phase, **fields))

    def asked(self, netfn: int, cmd: int) -> list[JournalEntry]:
        """The commands of one kind that the BMC got, those it lost included."""
        return self.bmc.journal.commands(netfn, cmd)

    def logins(self) -> int:
        """How often a password was shown to the BMC."""
        return len(self.bmc.journal.phase(Phase.RAKP_3))


StartSite = Callable[..., Awaitable[Site]]


@pytest.fixture
async def start_site() -> AsyncIterator[StartSite]:
    """Starts a BMC with these settings; all are stopped, and logged out of, at the end."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*, username: str = USER, password: str = PASSWORD, **settings: object) -> Site:
            settings.setdefault("users", [User(USER, PASSWORD.encode())])
            server = IpmiServer(IpmiBmc(**settings))  # type: ignore[arg-type]
            await stack.enter_async_context(server)
            drivers = await stack.enter_async_context(Drivers())
            target = Target(address=f"ipmi://127.0.0.1:{server.port}", username=username, password=password)
            return Site(server, target, drivers)

        yield start


@pytest.fixture
async def site(start_site: StartSite) -> Site:
    """A BMC with nothing wrong with it, and its machine on."""
    return await start_site()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits a twentieth of the time for answers: for tests in which a BMC stays silent."""
    monkeypatch.setattr("drivers.ipmi.login.TRIES", (0.06, 0.1, 0.15))
    monkeypatch.setattr("drivers.ipmi.login._SUITE_17_TRIES", (0.06, 0.08))
    monkeypatch.setattr("drivers.ipmi.connection._TRIES", (0.06, 0.1))
    monkeypatch.setattr("drivers.ipmi.connection._ACT_SECONDS", 0.3)
    monkeypatch.setattr("drivers.ipmi.connection._CLOSE_TRIES", (0.06, 0.06))
    monkeypatch.setattr("drivers.ipmi.connection._BUSY_PAUSES", (0.01, 0.02))
    monkeypatch.setattr("drivers.ipmi.ladder._BACK_OFF", (0.01, 0.02, 0.04))
    monkeypatch.setattr("drivers.ipmi.boot._IN_USE_PAUSES", (0.01, 0.02))
    monkeypatch.setattr("drivers.ipmi.power._POLL_SECONDS", (0.02,))
    monkeypatch.setattr("drivers.ipmi.power._RESEND_AFTER", 0.3)
    monkeypatch.setattr("drivers.ipmi.power._BUSY_PAUSES", (0.01, 0.02))
    monkeypatch.setattr("drivers.ipmi.management._BACK_POLL_SECONDS", 0.05)
    monkeypatch.setattr("drivers.ipmi.management._NEVER_AWAY_SECONDS", 0.3)


def free_port() -> int:
    """A UDP port of loopback that nobody listens on just now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class IpmiSim:
    """OpenIPMI's LAN simulator with one machine, whose state its chassis script keeps in files."""

    target: Target
    folder: Path

    def state(self) -> Mapping[str, str]:
        return {f.name: f.read_text().strip() for f in (self.folder / "st").iterdir() if f.name != "log"}


@pytest.fixture
def ipmi_sim(shared: Path, tmp_path: Path) -> Iterator[IpmiSim]:
    """A running `ipmi_sim`; skipped where it is not installed (Debian package openipmi)."""
    program = shutil.which("ipmi_sim")
    settings = shared / "peers" / "ipmi_sim"
    if program is None or not settings.is_dir():
        pytest.skip("no ipmi_sim here: install the package openipmi, and see RACKWRIGHT_SHARED for its settings")
    port = free_port()
    (tmp_path / "st").mkdir()
    (tmp_path / "state").mkdir()
    for name in ("sim.conf", "sim.emu", "chassis.sh"):
        text = (settings / name).read_text().replace("@DIR@", str(tmp_path)).replace("9001", str(port))
        # Its serial ports are not needed here, and would each want a free TCP port.
        lines = [line for line in text.splitlines() if not line.lstrip().startswith(("serial ", "sol "))]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    (tmp_path / "chassis.sh").chmod(0o755)
    command = [program, "-c", "sim.conf", "-f", "sim.emu", "-s", "state", "-p", "-n"]
    with (tmp_path / "out").open("wb") as output:
        process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=output, stderr=output)
    try:
        _await_port(port, process, tmp_path / "out")
        target = Target(address=f"ipmi://127.0.0.1:{port}", username="admin", password="secret")
        yield IpmiSim(target, tmp_path)
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _await_port(port: int, process: "subprocess.Popen[bytes]", output: Path) -> None:
    """Until something is bound to the port: a second bind of it then fails."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return
        time.sleep(0.02)
    pytest.fail(f"ipmi_sim did not open its port: {output.read_text(errors='replace') or 'it said nothing'}")
