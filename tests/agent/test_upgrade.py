"""`daemon.upgrade`: fetched, checked, installed beside the agent, and proven by the version of the next process."""

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.departure import Departures
from agent.handlers import CURRENT_COMMAND, Answer
from agent.own_machine import OwnMachine
from agent.upgrade import Upgrade, is_version
from drivers import Drivers
from drivers.linux.host import Host, Ran
from protocol.commands import Ending, Outcome
from protocol.errors import ErrorCode, OperationError
from tests.agent.rig import FakeClock
from tests.drivers.linux.image_server import Faults, serving

DEB = b"a debian package" * 1000
SHA = hashlib.sha256(DEB).hexdigest()


@dataclass(frozen=True)
class System(Host):
    """A system whose dpkg takes what it is given, or says why not."""

    package: str = "rackwright-daemon"
    version: str = "0.2.0"
    dpkg: str = ""
    ran: list[tuple[str, ...]] = field(default_factory=list)
    installing: list[str] = field(default_factory=list)

    def has(self, program: str) -> bool:
        return True

    async def run(self, *words: str, timeout: float, given: bytes | None = None) -> Ran:
        self.ran.append(words)
        if words[0] == "dpkg-deb":
            return Ran(0, f"Package: {self.package}\nVersion: {self.version}\n", "")
        if words[0] == "systemd-run":
            script = words[-1]
            log = Path(script.rpartition(">")[0].rpartition(">")[2].split()[0])
            log.write_text(self.dpkg or "Setting up\n")
            return Ran(1 if self.dpkg else 0, "", "")
        return Ran(0, self.installing.pop(0) if self.installing else "inactive\n", "")


class Agent:
    def __init__(self, folder: Path, host: System, version: str = "0.1.0") -> None:
        async def told(_command: str, _seconds: float) -> bool:
            return True

        departures = Departures(folder / "departure.json", FakeClock(), told=told, stop=lambda: None)
        self.restarted = asyncio.Event()
        machine = OwnMachine(Drivers(), departures, folder, host)
        self.upgrade = Upgrade(machine, self.restarted.set, version=version, systemd=True)

    async def run(self, url: str, seconds: float = 20.0, **more: object) -> Answer:
        CURRENT_COMMAND.set("cmd_1")
        payload = {"url": url, "sha256": SHA, **more}
        assert self.upgrade.faults(payload) == []
        async with self.upgrade.turn(payload) as work:
            return await work.run(seconds, lambda _message, _percent: None)

    async def observe(self) -> Ending:
        CURRENT_COMMAND.set("cmd_1")
        async with self.upgrade.turn({"url": "http://h/x.deb", "sha256": SHA}) as work:
            return await work.observe(5.0)


async def test_the_next_process_proves_the_upgrade_by_its_own_version(folder: Path) -> None:
    agent = Agent(folder, System())
    with serving(DEB) as server:
        running = asyncio.create_task(agent.run(server.url, version="0.2.0"))
        await asyncio.wait_for(agent.restarted.wait(), 10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    host = agent.upgrade.machine.host
    assert isinstance(host, System)
    (words,) = [one for one in host.ran if one[0] == "systemd-run"]
    assert "--unit" in words
    assert "dpkg --force-confold --install" in words[-1]
    ending = await Agent(folder, System(), version="0.2.0").observe()
    assert ending.outcome is Outcome.SUCCEEDED
    assert ending.result == {"before": "0.1.0", "after": "0.2.0", "changed": True}
    assert ending.observed == {"version": "0.2.0"}


async def test_an_agent_that_came_back_as_it_was_tells_dpkgs_own_words(folder: Path) -> None:
    agent = Agent(folder, System())
    with serving(DEB) as server:
        running = asyncio.create_task(agent.run(server.url))
        await asyncio.wait_for(agent.restarted.wait(), 10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    (folder / "upgrade" / "log").write_text("dpkg: error processing archive\n unmet dependency: rackwright\n")
    ending = await Agent(folder, System(installing=["active\n"])).observe()
    assert ending.error is not None
    assert (ending.outcome, ending.error.code) == (Outcome.FAILED, "NOT_APPLIED")
    assert "still version 0.1.0, and not 0.2.0" in ending.error.message
    assert "unmet dependency" in ending.error.message


async def test_an_agent_that_died_before_anything_was_installed_says_so(folder: Path) -> None:
    ending = await Agent(folder, System()).observe()
    assert ending.error is not None
    assert ending.error.code == "INTERRUPTED"
    assert "asking again is safe" in ending.error.message


async def test_the_same_version_is_not_installed_again(folder: Path) -> None:
    agent = Agent(folder, System())
    answer = await agent.run("http://127.0.0.1:1/never-fetched.deb", version="0.1.0")
    assert answer.result == {"before": "0.1.0", "after": "0.1.0", "changed": False}
    with serving(DEB) as server:
        same = await Agent(folder, System(version="0.1.0-1")).run(server.url)
    assert same.result["changed"] is False


async def failure_of(
    agent: Agent, content: bytes = DEB, faults: Faults | None = None, **more: object
) -> OperationError:
    with serving(content, faults) as server, pytest.raises(OperationError) as failure:
        await agent.run(server.url, 20.0, **more)
    host = agent.upgrade.machine.host
    assert isinstance(host, System)
    assert not agent.restarted.is_set()
    return failure.value


async def test_the_files_of_an_upgrade_that_still_goes_on_are_left_alone(folder: Path) -> None:
    (folder / "upgrade").mkdir()
    (folder / "upgrade" / "0.deb").write_bytes(b"being read by dpkg")
    error = await failure_of(Agent(folder, System(installing=["activating\n"])))
    assert error.code is ErrorCode.BUSY
    assert (folder / "upgrade" / "0.deb").read_bytes() == b"being read by dpkg"


async def test_another_checksum_installs_nothing(folder: Path) -> None:
    agent = Agent(folder, System())
    error = await failure_of(agent, DEB + b"x")
    assert error.code is ErrorCode.CONFLICT
    assert "nothing was installed" in error.message


async def test_a_package_of_something_else_is_refused(folder: Path) -> None:
    error = await failure_of(Agent(folder, System(package="bash")))
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert "bash" in error.message


async def test_another_version_than_the_one_that_is_wanted_is_refused(folder: Path) -> None:
    error = await failure_of(Agent(folder, System()), version="0.3.0")
    assert "the versions 0.2.0, and 0.3.0 is wanted" in error.message


async def test_a_package_that_is_not_there_says_so(folder: Path) -> None:
    error = await failure_of(Agent(folder, System()), faults=Faults(status=[404]))
    assert "404" in error.message


async def test_dpkgs_refusal_is_told_and_this_version_goes_on(folder: Path) -> None:
    error = await failure_of(Agent(folder, System(dpkg="dpkg: dependency problems\n")))
    assert error.code is ErrorCode.NOT_APPLIED
    assert "dependency problems" in error.message


async def test_a_host_without_systemd_cannot_be_upgraded_so(folder: Path) -> None:
    agent = Agent(folder, System())
    agent.upgrade.systemd = False
    assert (await failure_of(agent)).code is ErrorCode.UNSUPPORTED


def test_faults_of_an_upgrade_are_told_before_it_is_taken_in(folder: Path) -> None:
    machine = OwnMachine.__new__(OwnMachine)
    upgrade = Upgrade(machine, lambda: None, version="1", systemd=True)
    paths = [issue.path for issue in upgrade.faults({"url": "file:///x.deb", "sha256": "12", "force": True})]
    assert paths == ["payload.force", "payload.url", "payload.sha256"]


@pytest.mark.parametrize(
    ("wanted", "version", "same"),
    [
        ("1.2.3", "1.2.3", True),
        ("1.2.3-1", "1.2.3", True),
        ("1.2.3", "1.2.3+deb12u1", True),
        ("1.2.30", "1.2.3", False),
        ("1.2.3~rc1", "1.2.3", False),
    ],
)
def test_a_debian_version_is_of_its_upstream_version(wanted: str, version: str, same: bool) -> None:
    assert is_version(wanted, version) is same
