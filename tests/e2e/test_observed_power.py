"""A machine is switched behind everybody's back, and the control plane knows it in seconds: by stream, push, polling.

Real processes: control plane, site agent, simulated BMC, and the operator's command line.
"""

import json
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import AgentProcess, ControlPlaneProcess, Program, free_port, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

PASSWORD = "planted-Passw0rd-3311"
NEVER = "interval_seconds = 3600\nslow_interval_seconds = 3600\n"
"""What is seen all the same was told by an event."""


class Site:
    """A control plane, an agent with its own settings, and one BMC that can be reached from outside."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.folder = folder
        self.bmc_port = free_port()
        (folder / "password").write_text(PASSWORD)
        self.plane = ControlPlaneProcess(folder)
        self.agent = AgentProcess(folder, settings=settings)
        words = ("simulate", "redfish", "--http", "--port", str(self.bmc_port), "--control")
        self.bmc = Program(folder, "bmc", *words, "--password-file", str(folder / "password"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.bmc_port}"

    def start(self, stack: ExitStack) -> None:
        stack.enter_context(self.bmc.running_for())
        stack.enter_context(self.plane.running_for())
        wait_until("the BMC answers", lambda: self._ask_bmc())
        self.agent.join(self.plane)
        self.agent.credential("bmc", "admin", PASSWORD)
        stack.enter_context(self.agent.running_for())
        record = {"address": self.url, "credentialRef": "bmc"}
        self.plane.call("nodes.create", tenantId="default", name="n1", siteId="lab", bmc=record)

    def switch(self, **state: str) -> None:
        """A hand on the machine."""
        self._ask_bmc(state)

    def _ask_bmc(self, body: dict[str, str] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_simulator/state", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def shell(self, *words: str) -> Any:
        """The operator's command line, as JSON."""
        token = self.folder / "token"
        token.write_text(self.plane.token)
        environment = {
            "PATH": "/usr/bin:/bin",
            "RACKWRIGHT_URL": f"http://127.0.0.1:{self.plane.api_port}",
            "RACKWRIGHT_TOKEN_FILE": str(token),
        }
        done = subprocess.run(
            [sys.executable, "-m", "rackwright", *words, "--tenant", "default", "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def node(self) -> dict[str, Any]:
        return self.plane.call("nodes.get", tenantId="default", nodeId="n1")

    def told(self, kind: str, to: str) -> dict[str, Any] | None:
        """The event of such a change, out of `rackwright events list`."""
        items = self.shell("events", "list", "--node", "n1", "--kind", kind, "--all")["items"]
        return next((item for item in items if item["data"]["to"] == to), None)

    def ready(self, with_events: bool) -> None:
        """Waits until the first look is known, and its BMC's events are heard."""
        wait_until("the first look", lambda: self.node()["power"] == "on")
        if with_events:
            status = self.folder / "agent" / "status.json"
            wait_until("events", lambda: json.loads(status.read_text())["watched"].get("withEvents") == 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    site.mkdir()
    return site


@pytest.mark.parametrize("how", ["stream", "push", "poll"])
def test_a_switch_behind_our_back_is_an_event_in_seconds(how: str, folder: Path) -> None:
    settings = {
        "stream": f'[watch]\nevents = ["stream"]\n{NEVER}',
        "push": f'[watch]\nevents = ["push"]\n{NEVER}[events]\nlisten = "127.0.0.1:{free_port()}"\n',
        "poll": "[watch]\nevents = []\ninterval_seconds = 1\n",
    }[how]
    site = Site(folder, settings)
    with ExitStack() as stack:
        site.start(stack)
        site.ready(with_events=how != "poll")

        site.switch(power="Off")
        began = time.monotonic()
        event = wait_until("the event", lambda: site.told("node.power", "off"))
        assert time.monotonic() - began < 15
        site.switch(health="Critical")
        health = wait_until("the event", lambda: site.told("node.health", "critical"))

        assert (event["data"]["from"], event["data"]["how"]) == ("on", how)
        assert health["data"]["from"] == "ok"
        listed = site.shell("nodes", "list")["items"][0]
        assert (listed["power"], listed["health"], listed["seenBy"]) == ("off", "critical", how)
        site.bmc.kill()
        site.agent.stop()
        site.plane.stop()
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "password" and "vault" not in file.name:
            assert PASSWORD.encode() not in file.read_bytes(), file


def test_a_bmc_that_is_gone_is_unknown_and_never_off(folder: Path) -> None:
    site = Site(folder, "[watch]\nevents = []\ninterval_seconds = 1\n")
    with ExitStack() as stack:
        site.start(stack)
        site.ready(with_events=False)
        site.bmc.kill()

        event = wait_until("the event", lambda: site.told("node.power", "unknown"))

        assert event["data"]["trouble"].startswith("UNREACHABLE: ")
        assert site.told("node.power", "off") is None
        site.bmc.start()
        wait_until("it is seen again", lambda: site.node()["power"] == "on", patience=60)
        assert site.node()["trouble"] is None
        site.agent.stop()
        wait_until("nobody watches", lambda: site.node()["watched"] is False)
        assert site.node()["power"] == "on"
