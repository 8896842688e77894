"""A machine is started from its own medium, joins, and is started anew behind everybody's back (case B47).

Real processes: control plane, site agent, simulated BMC. The machine is a process too: it reads its medium where the
BMC was told to, joins with the ticket that it finds there, and runs the agent in the role ramdisk.
"""

import asyncio
import base64
import json
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent.errors import JoinFailed
from agent.identity import IdentityStore
from agent.joining import join
from protocol.boot_ticket import AREA_SIZE, BootTicket, decode_area
from protocol.machine_facts import MachineFacts
from tests.agent.boot_site import AREA_OFFSET, make_image
from tests.e2e.processes import AgentProcess, ControlPlaneProcess, Program, free_port, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PASSWORD = "planted-Passw0rd-4711"
FACTS = MachineFacts(uuid="4c4c4544-0042-3510-8052-b9c04f4e4d32", serial="CZ1", macs=["b8:2a:72:dd:a0:01"])


class Machine:
    """What one start of the machine does."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.agent = AgentProcess(folder)
        self.ticket: BootTicket | None = None

    def read_medium(self, url: str) -> None:
        wanted = f"bytes={AREA_OFFSET}-{AREA_OFFSET + AREA_SIZE - 1}"
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Range": wanted}), timeout=30) as answer:
            self.ticket = decode_area(answer.read())

    def join(self, facts: MachineFacts = FACTS) -> str:
        """The id of the agent that it has become."""
        assert self.ticket is not None
        store = IdentityStore(self.agent.identity)
        url, token = self.ticket.control_plane, self.ticket.token.reveal()
        identity = asyncio.run(join(url, token, store, force=True, machine=facts))
        assert (identity.facts.role, identity.facts.node) == ("ramdisk", self.ticket.node_id)
        return identity.facts.agent_id


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.boot_port, self.bmc_port = free_port(), free_port()
        (folder / "password").write_text(PASSWORD)
        image = make_image(folder / "image")
        self.plane = ControlPlaneProcess(folder)
        boot = f'[boot]\nimage = "{image}"\nlisten = "127.0.0.1:{self.boot_port}"\n'
        self.agent = AgentProcess(folder, settings=f"[watch]\nenabled = false\n{boot}")
        words = ("simulate", "redfish", "--http", "--port", str(self.bmc_port))
        self.bmc = Program(folder, "bmc", *words, "--password-file", str(folder / "password"))

    def start(self, stack: ExitStack) -> None:
        stack.enter_context(self.bmc.running_for())
        stack.enter_context(self.plane.running_for())
        self.agent.join(self.plane)
        self.agent.credential("bmc", "admin", PASSWORD)
        stack.enter_context(self.agent.running_for())
        record = {"address": f"http://127.0.0.1:{self.bmc_port}", "credentialRef": "bmc"}
        self.plane.call("nodes.create", tenantId="default", name="n1", siteId="lab", bmc=record)
        wait_until("the BMC answers", self.inserted)

    def inserted(self) -> list[str]:
        """What the machine's own BMC shows as inserted, with an empty text where there is nothing."""
        url = f"http://127.0.0.1:{self.bmc_port}/redfish/v1/Managers/1/VirtualMedia/Cd"
        login = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
        request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return [json.load(answer)["Image"] or ""]

    def invoke(self, operation: str, **args: object) -> dict[str, Any]:
        return self.plane.call(
            "drivers.invoke", tenantId="default", nodeId="n1", operation=operation, args=args, waitMs=30_000
        )

    def ramdisk(self) -> dict[str, Any] | None:
        """The machine's own agent, while it is connected."""
        items = self.plane.call("agents.list", tenantId="default")["items"]
        return next((item for item in items if item["role"] == "ramdisk" and item["connected"]), None)


@pytest.mark.case("B47")
def test_a_machine_that_was_started_anew_joins_in_the_place_of_its_earlier_self(tmp_path: Path) -> None:
    site = Site(tmp_path)
    first, second, third = (Machine(tmp_path / name) for name in ("boot-1", "boot-2", "boot-3"))
    with ExitStack() as stack:
        site.start(stack)
        command = site.invoke("virtual-media.insertMedia", image="rackwright:ramdisk")
        assert command["state"] == "succeeded", command
        assert command["result"]["image"] == "rackwright:ramdisk"
        (url,) = site.inserted()

        first.read_medium(url)
        agent_id = first.join()
        stack.enter_context(first.agent.running_for())
        ramdisk = wait_until("the ramdisk is connected", site.ramdisk)
        assert ramdisk["id"] == agent_id
        first_session = ramdisk["session"]["id"]

        # Somebody switches the machine off and on, and the site's agent dies beside.
        site.agent.kill()
        site.agent.start()
        wait_until("the medium is there again", lambda: _reachable(url))
        second.read_medium(url)
        assert second.ticket is not None
        assert first.ticket is not None
        assert second.ticket.token != first.ticket.token
        assert second.join() == agent_id
        wait_until("the earlier boot is out", lambda: "booted anew" in first.agent.said())
        stack.enter_context(second.agent.running_for())
        wait_until("the new boot is in", lambda: (r := site.ramdisk()) and r["session"]["id"] != first_session)

        with pytest.raises(JoinFailed, match="used up") as failure:
            first.join()
        assert failure.value.refusal == "TOKEN_REFUSED"

        # The medium is read by a machine that is not the node's.
        site.agent.kill()
        site.agent.start()
        wait_until("the medium is there again", lambda: _reachable(url))
        third.read_medium(url)
        with pytest.raises(JoinFailed, match="this machine is not 'n1'") as failure:
            third.join(MachineFacts(uuid="1b4e28ba-2fa1-11d2-883f-0016d3cca427", serial="CZ2"))
        assert failure.value.refusal == "AMBIGUOUS_MACHINE"
        assert site.ramdisk() is not None

        site.invoke("virtual-media.ejectMedia")
        assert site.inserted() == [""]
        with pytest.raises(urllib.error.HTTPError):
            third.read_medium(url)
        for program in (second.agent, site.agent, site.plane):
            program.stop()
    _no_trace_of(tmp_path, [machine.ticket for machine in (first, second, third)], url)


def _reachable(url: str) -> bool:
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as answer:
        return bool(answer.status == 200)


def _no_trace_of(folder: Path, tickets: list[BootTicket | None], url: str) -> None:
    """No file holds a ticket's secret, and none but the agent's own list of paths the medium's address."""
    secrets = [ticket.token.reveal().rpartition(".")[2].encode() for ticket in tickets if ticket is not None]
    assert len(secrets) == 3
    path = url.split("/")[3].encode()
    for file in folder.rglob("*"):
        if not file.is_file() or file.name == "bmc.log":
            continue
        data = file.read_bytes()
        assert not any(secret in data for secret in secrets), file
        assert path not in data or file.name == "boot-paths.json", file
