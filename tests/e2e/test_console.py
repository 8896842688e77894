"""A machine's console from its serial port to an operator's terminal: real processes, and a pseudo-terminal."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from simulators.ipmi.accounts import User
from simulators.ipmi.bmc import IpmiBmc
from simulators.ipmi.console import Console
from simulators.ipmi.server import IpmiServer, IpmiServerThread
from tests.e2e.processes import AgentProcess, ControlPlaneProcess, wait_until
from tests.e2e.pty_program import PtyProgram, on_a_terminal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

PASSWORD = "planted-Sol-8812"
ESCAPE = b"\x1d"


@dataclass
class Site:
    """A control plane, an agent, and one machine whose serial port the test holds."""

    folder: Path
    plane: ControlPlaneProcess
    agent: AgentProcess
    bmc: IpmiBmc
    thread: IpmiServerThread

    @property
    def environment(self) -> dict[str, str]:
        token = self.folder / "token"
        token.write_text(self.plane.token)
        return {
            "RACKWRIGHT_URL": f"http://127.0.0.1:{self.plane.api_port}",
            "RACKWRIGHT_TOKEN_FILE": str(token),
            "XDG_CONFIG_HOME": str(self.folder),
        }

    @contextlib.contextmanager
    def console(self, *words: str) -> Iterator[PtyProgram]:
        with on_a_terminal("console", "n1", "--tenant", "default", *words, environment=self.environment) as program:
            yield program

    def machine_writes(self, text: bytes) -> None:
        self.thread.call(lambda: self.bmc.console.write(text))

    def typed(self) -> bytes:
        return bytes(self.bmc.console.received)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    bmc = IpmiBmc(
        users=[User("admin", PASSWORD.encode())], console=Console(lambda text: text.replace(b"\r", b"\r\n"))
    )
    server = IpmiServer(bmc)
    plane, agent = ControlPlaneProcess(tmp_path), AgentProcess(tmp_path)
    with IpmiServerThread(server) as thread, plane.running_for():
        agent.join(plane)
        agent.credential("bmc", "admin", PASSWORD)
        record = {"address": f"ipmi://127.0.0.1:{server.port}", "credentialRef": "bmc"}
        plane.call("nodes.create", tenantId="default", name="n1", siteId="lab", bmc=record)
        with agent.running_for():
            wait_until("the agent is connected", lambda: _connected(plane))
            yield Site(tmp_path, plane, agent, bmc, thread)
            agent.stop()
        plane.stop()


def _connected(plane: ControlPlaneProcess) -> bool:
    return any(item["connected"] for item in plane.call("agents.list", tenantId="default")["items"])


def _open(site: Site) -> None:
    """Until the console is open at the BMC: what a machine writes before is lost, as on a real one."""
    wait_until("the console is open", lambda: site.bmc.sol is not None)


def test_an_operator_works_at_a_console_and_leaves_it(site: Site) -> None:
    with site.console() as program:
        program.expect(b"Ctrl-] ? for help")
        assert program.is_raw
        _open(site)
        site.machine_writes(b"login: ")
        program.expect(b"login: ")
        program.press(b"root\r\x03\x04\x13\x11\x1a\x00")
        program.expect(b"root\r\n\x03\x04\x13\x11\x1a\x00")
        program.press(ESCAPE + b"?")
        program.expect(b"send a break")
        program.press(ESCAPE + b"b" + b"x")
        program.expect(b"x")
        assert site.bmc.console.breaks == 1
        program.press(ESCAPE + ESCAPE)
        program.expect(ESCAPE)
        program.press(ESCAPE + b".")
        assert program.wait() == 0
        assert program.mode == program.before
    assert site.typed() == b"root\r\x03\x04\x13\x11\x1a\x00x" + ESCAPE
    (log,) = wait_until("the log is there", lambda: [*(site.agent.state / "consoles").glob("node_*.log")])
    wait_until("the log is written", lambda: b"login: root" in log.read_bytes())
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    listed = site.plane.call("audit.list", tenantId="default", limit=100)["items"]
    events = [line["detail"].get("event") for line in listed if line["action"] == "compute:console:open"]
    assert sorted(map(str, events)) == ["closed", "opened"]


def test_many_read_one_types_and_who_comes_late_sees_what_was(site: Site) -> None:
    with site.console() as first, site.console("--read-only") as watcher:
        first.expect(b"for help")
        watcher.expect(b"for help")
        _open(site)
        site.machine_writes(b"booting kernel 6.1")
        first.expect(b"booting kernel 6.1")
        watcher.expect(b"booting kernel 6.1")
        with site.console() as late:
            late.expect(b"types here; you read along")
            late.expect(b"booting kernel 6.1")
            late.press(b"ignored")
            late.expect(b"the escape key and w make it you")
            late.press(ESCAPE + b"w")
            late.expect(b"you type now")
            first.expect(b"types now; you read along")
            late.press(b"mine")
            for program in (first, watcher, late):
                program.expect(b"mine")
            watcher.press(b"never" + ESCAPE + b"w")
            watcher.expect(b"this session is read-only")
            with site.console("--force") as fourth:
                late.expect(b"types now; you read along")
                fourth.press(b"!")
                late.expect(b"!")
    assert site.typed() == b"mine!"


def test_the_terminal_is_put_back_however_the_program_ends(site: Site) -> None:
    for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)):
        with site.console() as program:
            program.expect(b"for help")
            assert program.is_raw
            os.kill(program.pid, number)
            assert program.wait() == code
            assert program.mode == program.before


def test_a_pipe_in_place_of_a_terminal_works_too(site: Site) -> None:
    command = [sys.executable, "-m", "rackwright", "console", "n1", "--tenant", "default", "--stay", "2s"]
    environment = {**os.environ, **site.environment}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        output, errors = process.communicate(b"uptime\r", timeout=60)
    assert process.returncode == 0, errors
    assert b"uptime\r\n" in output
    assert site.typed() == b"uptime\r"
    assert errors == b""


def test_a_bmc_that_restarts_is_followed(site: Site) -> None:
    with site.console() as program:
        program.expect(b"for help")
        _open(site)
        site.machine_writes(b"before")
        program.expect(b"before")
        site.thread.call(lambda: site.bmc.restart(0.5))
        program.expect(b"it may have restarted; trying to connect again")
        program.expect(b"connected again")
        program.press(b"after")
        program.expect(b"after")
        program.press(ESCAPE + b".")
        assert program.wait() == 0
    assert site.typed() == b"after"


def test_an_agent_that_is_killed_is_told_of_and_the_console_comes_back(site: Site) -> None:
    with site.console() as program:
        program.expect(b"for help")
        _open(site)
        site.machine_writes(b"before")
        program.expect(b"before")
        site.agent.kill()
        program.expect(b"the site's agent is cut off")
        program.press(b"lost keys")
        site.agent.start()
        program.expect(b"the site's agent is back")
        program.expect(b"the console was opened anew")
        wait_until("keys arrive again", lambda: _press_until_typed(site, program))
        program.press(ESCAPE + b".")
        assert program.wait() == 0
    assert b"lost keys" not in site.typed()


def _press_until_typed(site: Site, program: PtyProgram) -> bool:
    program.press(b"+")
    time.sleep(0.2)
    return b"+" in site.typed()


def test_a_control_plane_that_restarts_is_waited_for(site: Site) -> None:
    with site.console() as program:
        program.expect(b"for help")
        _open(site)
        site.machine_writes(b"before")
        program.expect(b"before")
        site.plane.stop()
        site.plane.start()
        program.expect(b"is back; the last output follows once more")
        program.expect(b"before")
        wait_until("keys arrive again", lambda: _press_until_typed(site, program))
        program.press(ESCAPE + b".")
        assert program.wait() == 0


def test_a_console_that_somebody_holds_is_refused_and_can_be_taken_over(site: Site) -> None:
    address = str(site.plane.call("nodes.get", tenantId="default", nodeId="n1")["bmc"]["address"])
    password = site.folder / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    words = ("bmc", "console", "--address", address, "--user", "admin", "--password-file", str(password))
    with on_a_terminal(*words) as straight:
        straight.expect(b"for help")
        site.machine_writes(b"straight from the BMC")
        straight.expect(b"straight from the BMC")
        with site.console() as refused:
            refused.expect(b"take it over")
            assert refused.wait() == 1
            assert refused.mode == refused.before
        with site.console("--take-over") as taken:
            taken.expect(b"for help")
            straight.expect(b"the console is over")
            assert straight.wait() == 1
            assert straight.mode == straight.before
            wait_until("keys arrive", lambda: _press_until_typed(site, taken))


def test_refusals_are_told_before_the_terminal_is_touched(site: Site) -> None:
    def code(*words: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "rackwright", "console", *words],
            env={**os.environ, **site.environment, **environment},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stderr

    assert code("no-such-node", "--tenant", "default")[0] == 3
    assert code("n1", "--escape", "^^^")[0] == 2
    assert code("n1", "--read-only", "--force")[0] == 2
    weak = site.folder / "weak"
    made = site.plane.call("tokens.create", tenantId="default", name="weak", permissions=["compute:nodes:read"])
    weak.write_text(str(made["token"]))
    refused = code("n1", "--tenant", "default", RACKWRIGHT_TOKEN_FILE=str(weak))
    assert refused[0] == 4
    assert "compute:console:open" in refused[1]
    site.agent.stop()
    wait_until("the agent is gone", lambda: not _connected(site.plane))
    gone = code("n1", "--tenant", "default")
    assert gone[0] == 1
    assert "agent is not connected" in gone[1]
