"""One site with one real machine: control plane, site agent, image server, and a machine under QEMU with its BMC.

Everything is a process as a user would start it. Between the machine and the rest stand two doors (`plane_door`,
`boot_door`) that a test can cut. Inside the machine, 10.0.2.2 is this host's loopback.
"""

import base64
import contextlib
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Protocol

from tests.e2e.link_proxy import LinkProxy
from tests.e2e.metal.origin import Origin
from tests.e2e.processes import AgentProcess, ControlPlaneProcess, Program, free_port, wait_until

__all__ = ["NODE", "SYSTEM", "MachineProcess", "Peer", "Site", "Watched", "boots_in"]

NODE = "r1-u1"
SYSTEM = "/redfish/v1/Systems/1"
HOST = "10.0.2.2"
_PASSWORD = "planted-Passw0rd-815"


class Peer(Protocol):
    """Another machine with a BMC."""

    def running_for(self) -> AbstractContextManager[object]: ...

    def answers(self) -> object: ...


class MachineProcess(Program):
    """`rackwright simulate machine`, and the hands of whoever stands before it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.state = folder / "machine"
        self.redfish_port, self.ipmi_port = free_port(), free_port()
        secret = folder / "bmc-password"
        secret.write_text(_PASSWORD)
        words = ("--redfish-port", str(self.redfish_port), "--ipmi-port", str(self.ipmi_port))
        super().__init__(
            folder,
            "machine",
            *("simulate", "machine", "--state", str(self.state), "--control", "--verbose"),
            *("--password-file", str(secret), *words, *options),
        )

    def add(self, *options: str) -> None:
        """Options more, before it is started."""
        self._command += options

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.redfish_port}"

    @property
    def disk(self) -> Path:
        return self.state / "disk.raw"

    @property
    def serial(self) -> str:
        """What the machine has written to its serial port so far."""
        file = self.state / "serial.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def look(self) -> dict[str, Any]:
        """The state of the machine as one sees it who stands before it."""
        return self._control("machine")

    def has_written_once(self, size: int) -> bool:
        """Whether the machine has written an image of this size to its disk, and has not done so twice.

        Blocks of zeros, about a third of it, are not written; the system that runs then writes a little itself.
        """
        return 0.5 * size < self.written_bytes() < 1.2 * size

    def act(self, action: str) -> None:
        self._control("machine", {"action": action})

    def boots(self) -> list[str]:
        """The ids of the boots of the ramdisk that the serial port has seen, in order."""
        return boots_in(self.serial)

    def written_bytes(self) -> int:
        """How much the machine has written to its disk since it was switched on, as this host's kernel counts it.

        What it has sent over the network is in it too, which is little.
        """
        counted = Path(f"/proc/{self.look()['pid']}/io").read_text()
        return int(re.findall(r"wchar: (\d+)", counted)[0])

    def resets(self) -> list[str]:
        """What kinds of reset the BMC was asked for, in order, whoever asked."""
        entries = self._control(f"journal?method=POST&path={SYSTEM}/Actions/ComputerSystem.Reset")["entries"]
        return [str(entry["body"]["ResetType"]) for entry in entries if entry["executed"]]

    def redfish(self, path: str) -> dict[str, Any]:
        login = base64.b64encode(f"admin:{_PASSWORD}".encode()).decode()
        return self._ask(path, headers={"Authorization": f"Basic {login}"})

    def _control(self, name: str, body: object = None) -> dict[str, Any]:
        return self._ask(f"/_simulator/{name}", body)

    def _ask(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> dict[str, Any]:
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data, {**kind, **(headers or {})})
        with urllib.request.urlopen(request, timeout=30, context=trusting) as answer:
            found: dict[str, Any] = json.loads(answer.read() or b"{}")
            return found


def boots_in(serial: str) -> list[str]:
    return re.findall(r"boot_id ([0-9a-f-]{36})", serial)


class Watched:
    """A command line that follows a workflow to its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ends(self, seconds: float) -> tuple[int, str]:
        """The exit code, and all that was printed."""
        try:
            output, _ = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            output, _ = self._process.communicate()
            raise AssertionError(f"not over within {seconds:g} s:\n{output}") from None
        return self._process.returncode, output

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class Site:
    """`ramdisk`: the description beside the ramdisk's ISO. `options`: of the simulated machine."""

    def __init__(self, folder: Path, ramdisk: Path, origin: Origin, profiles: list[Path], *options: str) -> None:
        self.folder = folder
        self._profiles = profiles
        self.origin = origin
        self.boot_port = free_port()
        self.plane = ControlPlaneProcess(folder, log_level="info", names=("localhost", "127.0.0.1", HOST))
        self.plane_door = LinkProxy(lambda: [self.plane.agents_port])
        self.boot_door = LinkProxy(lambda: [self.boot_port])
        boot = {
            "image": str(ramdisk),
            "listen": f"127.0.0.1:{self.boot_port}",
            "url": f"http://127.0.0.1:{self.boot_port}",
            "machines_url": f"http://{HOST}:{self.boot_door.port}",
            "control_plane": f"wss://{HOST}:{self.plane_door.port}",
        }
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in boot.items())
        settings = f'[watch]\ninterval_seconds = 2\n[images]\nallow = ["127.0.0.1"]\n[boot]\n{lines}'
        self.agent = AgentProcess(folder, log_level="info", settings=settings)
        self.machine = MachineProcess(folder, *options)
        self.address = self.machine.url
        """Of the node's BMC."""
        self.peer: Peer | None = None
        """A machine that nobody here wrote, in the place of ours."""
        self._watched: list[Watched] = []

    def boot_from_network(self) -> None:
        """The machine's DHCP server names the address of the site's iPXE script."""
        self.machine.add("--boot-file", f"http://{HOST}:{self.boot_port}/ipxe/${{uuid}}")

    @contextlib.contextmanager
    def running(self) -> Iterator["Site"]:
        """From bare processes to an enrolled node, as docs/install.md tells it."""
        with ExitStack() as stack:
            stack.callback(self.plane_door.close)
            stack.callback(self.boot_door.close)
            stack.enter_context(self.machine.running_for() if self.peer is None else self.peer.running_for())
            stack.enter_context(self.plane.running_for())
            (self.folder / "token").write_text(self.plane.token)
            self.agent.join(self.plane)
            self.agent.credential("lab/bmc", "admin", _PASSWORD)
            stack.enter_context(self.agent.running_for())
            stack.callback(self._stop_watching)
            wait_until("the BMC answers", self.machine.look if self.peer is None else self.peer.answers)
            for profile in self._profiles:
                self.cli("profiles", "create", str(profile))
            address = ("--address", self.address, "--credential-ref", "lab/bmc")
            self.cli("nodes", "create", NODE, "--site", "lab", *address)
            wait_until("the site's agent is connected", lambda: self.agents("site"))
            yield self

    def cli(self, *words: str) -> str:
        """What the command prints; fails unless it succeeds."""
        done = subprocess.run(
            self._command(*words),
            capture_output=True,
            text=True,
            timeout=90,
            env=self._environment(),
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(words[:3])} ended {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def watch(self, *words: str) -> Watched:
        """Starts a command that follows something, such as `nodes deploy … --watch`."""
        process = subprocess.Popen(
            self._command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env=self._environment(),
        )
        self._watched.append(Watched(process))
        return self._watched[-1]

    def node(self) -> dict[str, Any]:
        return self.plane.call("nodes.get", tenantId="default", nodeId=NODE)

    def workflow(self) -> dict[str, Any]:
        """The newest one."""
        node = self.node()
        whose = {"tenantId": node["tenantId"], "nodeId": node["id"]}
        newest = self.plane.call("workflows.list", **whose, limit=1)["items"][0]
        return self.plane.call("workflows.get", **whose, workflowId=newest["id"])

    def find_step(self, name: str) -> dict[str, Any] | None:
        """A step of the newest workflow, by its id."""
        steps: list[dict[str, Any]] = self.workflow()["steps"]
        return next((step for step in steps if step["id"] == name), None)

    def step(self, name: str) -> dict[str, Any]:
        found = self.find_step(name)
        assert found is not None, f"there is no step {name}"
        return found

    def wait_for_step(self, name: str, state: str, seconds: float) -> None:
        """Until the step is in the state, such as waiting."""

        def is_so() -> bool:
            step = self.find_step(name)
            return step is not None and step["state"] == state

        wait_until(f"{name} is {state}", is_so, seconds)

    def wait_for_progress(self, name: str, percent: float, seconds: float) -> None:
        """Until the step's command has come so far."""

        def far_enough() -> bool:
            step = self.find_step(name)
            progress = None if step is None else step["progress"]
            return progress is not None and (progress["percent"] or 0.0) >= percent

        wait_until(f"{name} is at {percent:g} %", far_enough, seconds)

    def agents(self, role: str) -> list[dict[str, Any]]:
        """Those that are connected now."""
        items = self.plane.call("agents.list", tenantId="default")["items"]
        return [item for item in items if item["role"] == role and item["connected"]]

    def commands(self, operation: str) -> list[dict[str, Any]]:
        """What agents were asked for this operation (or kind) among the last hundred commands, oldest first."""
        items = self.plane.call("commands.list", tenantId="default", nodeId=NODE, limit=100)["items"]
        return [item for item in reversed(items) if operation in (item["operation"], item["kind"])]

    def _stop_watching(self) -> None:
        for watched in self._watched:
            watched.stop()

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "rackwright", *words]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "RACKWRIGHT_URL": f"http://127.0.0.1:{self.plane.api_port}",
            "RACKWRIGHT_TOKEN_FILE": str(self.folder / "token"),
        }
