"""The site's agent is killed in the middle of a firmware update and of a password's rotation, at every stage.

Real processes: `rackwright control-plane serve`, `rackwright agent run`, and BMCs of ours, whose journals say what
has reached them. An update is given to its BMC once at most, and its end is told. After a rotation one password
holds, the vault has that one, and no account is locked.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent.vault import Vault, VaultKey
from control_plane.authority import Authority
from simulators.redfish import Drop, FaultRule, RedfishServerThread, ServiceOptions, UpdateManners
from tests.e2e.frame_proxy import Deed, FrameProxy, Seen, let_pass
from tests.e2e.processes import AgentProcess, ControlPlaneProcess, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

OLD, NEW = "Present-Pa55word", "Rotated-Pa55word"
REF, NEW_REF = "site/bmc", "site/bmc-next"
ENDED = {"succeeded", "failed", "rejected", "expired", "cancelled"}
UPDATE, ACCOUNT, SESSIONS, RESET = "*SimpleUpdate", "*/Accounts/*", "*/Sessions", "*.Reset"
VERSION = "/redfish/v1/UpdateService/FirmwareInventory/BMC"
FOR_EVER = 200.0
"""Seconds that no test waits for: what hangs so long is there when the agent dies."""
FRAMES = ["accepted", "started", "finished"]
"""What the journal knows of a command, each written before the frame that tells it."""


@dataclass
class Machine:
    """A node, and the BMC that it is reached by."""

    node_id: str
    bmc: RedfishServerThread

    def asked(self, method: str, path: str, *, done: bool = False) -> int:
        return self.bmc.journal.count(method, path, executed_only=done)

    @property
    def version(self) -> str:
        return str((self.bmc.state.document(VERSION) or {})["Version"])

    @property
    def password(self) -> str:
        return self.bmc.server.service.accounts.logins["admin"].password

    @property
    def is_locked(self) -> bool:
        return self.bmc.server.service.accounts.locked("admin")

    @property
    def is_away(self) -> bool:
        return bool(self.bmc.server.service.manager.down_for)


class Site:
    """One site; its agent is started again after it was killed, as systemd would."""

    def __init__(self, folder: Path) -> None:
        self.plane = ControlPlaneProcess(folder)
        self.agent = AgentProcess(folder)
        self.stack = contextlib.ExitStack()
        self.image = ""
        self._number = 0

    def start(self) -> None:
        self.plane.start()
        self.agent.join(self.plane)
        self.agent.credential(REF, "admin", OLD)
        self.agent.credential(NEW_REF, "admin", NEW)
        self.image = self.stack.enter_context(image_server())

    def stop(self) -> None:
        for program in (self.agent, self.plane):
            if program.running:
                program.kill()
        self.stack.close()

    def machine(self, *faults: FaultRule, **options: Any) -> Machine:
        """Another node, with a BMC of its own."""
        self._number += 1
        made = ServiceOptions(lockout_after=2, **options)
        server = RedfishServerThread(users={"admin": OLD}, tls=True, options=made, faults=faults)
        bmc = self.stack.enter_context(server)
        record = {"address": bmc.url, "credentialRef": REF, "tls": "first-use"}
        name = f"m{self._number}"
        node = self.plane.call("nodes.create", tenantId="default", name=name, siteId="lab", bmc=record)
        return Machine(str(node["id"]), bmc)

    def begin(self, machine: Machine, operation: str, args: dict[str, object], **more: object) -> str:
        """The id of its command."""
        answer = self.plane.call(
            "drivers.invoke",
            tenantId="default",
            nodeId=machine.node_id,
            operation=operation,
            args=args,
            waitMs=0,
            **more,
        )
        return str(answer["id"])

    def update(self, machine: Machine, **more: object) -> str:
        args: dict[str, object] = {"image": self.image, "targets": ["BMC"], "expectVersion": "2.14.0"}
        return self.begin(machine, "firmware.updateFirmware", args, **more)

    async def occupied(self) -> Machine:
        """A machine with a reset under way that does not end: what is asked of it now is accepted, and waits."""
        machine = self.machine(FaultRule(method="POST", path=RESET, latency=FOR_EVER, drop=Drop.BEFORE, count=1))
        self.begin(machine, "power.setPower", {"action": "reset"})
        await self.until("the reset is under way", lambda: machine.asked("POST", RESET))
        return machine

    async def accepted(self, command_id: str) -> None:
        def look() -> bool:
            row = self.plane.call("commands.get", tenantId="default", commandId=command_id)
            return bool(row["state"] == "delivered")

        await self.until(f"{command_id} is accepted", look)

    def rotate(self, machine: Machine) -> str:
        return self.begin(machine, "config.rotatePassword", {"user": "admin", "newCredentialRef": NEW_REF})

    async def ended(self, command_id: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            row = self.plane.call("commands.get", tenantId="default", commandId=command_id)
            return row if row["state"] in ENDED else None

        found: dict[str, Any] = await asyncio.to_thread(wait_until, f"{command_id} ends", look, 120)
        return found

    async def until(self, what: str, ready: Callable[[], object]) -> None:
        await asyncio.to_thread(wait_until, what, ready)

    async def revive(self) -> None:
        await asyncio.to_thread(self.agent.start)

    def password_in_the_vault(self, machine: Machine) -> str:
        vault = Vault(self.agent.state / "vault.json", lambda: VaultKey.load(self.agent.state / "vault.key"))
        assert not vault.is_staged(REF, machine.node_id), "it was left unsettled"
        found = vault.lookup(REF, machine.node_id)
        assert found is not None
        return found.password.reveal()


@contextlib.contextmanager
def image_server() -> Iterator[str]:
    """The address of an image that BMCs fetch by themselves."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(bytes(100_000))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), name="images", daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/bmc-2.14.0.bin"
        server.shutdown()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    site.start()
    yield site
    site.stop()


@pytest.fixture
async def proxy(place: Site) -> AsyncIterator[FrameProxy]:
    """Between the agent, which runs, and its control plane."""
    identity = place.agent.identity / "current"
    authority = Authority.open(place.plane.state / "ca")
    key = identity / "agent.key"
    async with FrameProxy(authority, identity / "agent.crt", key, place.plane.agents_port) as proxy:
        if place.agent.running:
            await asyncio.to_thread(place.agent.stop)
        place.agent.dial(proxy.port)
        await place.revive()
        await place.until(
            "the agent is connected",
            lambda: place.plane.call("agents.list", tenantId="default")["items"][-1]["connected"],
        )
        yield proxy


async def killed_at(frame: str, proxy: FrameProxy, site: Site, begin: Callable[[], str]) -> str:
    """The agent dies when it says this for the first time, and nobody hears it; another process goes on."""
    met = asyncio.Event()

    async def plan(seen: Seen) -> Deed:
        if seen.type != frame or met.is_set():
            return Deed.PASS
        site.agent.kill()
        met.set()
        return Deed.DROP_AND_CUT

    proxy.plan = plan
    asking = asyncio.create_task(asyncio.to_thread(begin))
    async with asyncio.timeout(30):
        await met.wait()
    proxy.plan = let_pass
    await site.revive()
    return await asking


def judge_update(machine: Machine, row: dict[str, Any]) -> None:
    """It was given to the BMC once at most, and what is told is true."""
    assert machine.asked("POST", UPDATE) <= 1
    if row["state"] == "succeeded":
        assert row["result"]["after"] == {"BMC": "2.14.0"}
        assert machine.version == "2.14.0"
        return
    assert row["state"] == "failed", row
    assert row["error"]["code"] == "OUTCOME_UNKNOWN"
    assert "firmware versions were read" in row["error"]["message"]


async def judge_rotation(site: Site, machine: Machine, row: dict[str, Any]) -> None:
    """One password holds: the one that the vault has. The next command gets in with it, and nobody is locked out."""
    assert machine.asked("PATCH", ACCOUNT) <= 1
    assert site.password_in_the_vault(machine) == machine.password
    assert machine.password == (NEW if row["state"] == "succeeded" else OLD), row
    if row["state"] != "succeeded":
        assert row["error"]["code"] == "INTERRUPTED", row
    refused = [entry for entry in machine.bmc.journal.entries("POST", SESSIONS) if entry.status == 401]
    assert len(refused) <= 1
    assert not machine.is_locked
    read = await site.ended(site.begin(machine, "power.getPower", {}))
    assert read["state"] == "succeeded", read


async def test_an_update_whose_agent_is_killed_as_it_tells_the_end_is_told_by_the_next(
    place: Site, proxy: FrameProxy
) -> None:
    machine = place.machine(task_seconds=0.2)
    row = await place.ended(await killed_at("finished", proxy, place, lambda: place.update(machine)))
    judge_update(machine, row)
    assert row["state"] == "succeeded", row
    assert machine.asked("POST", UPDATE) == 1


@pytest.mark.usefixtures("proxy")
async def test_an_update_whose_agent_is_killed_at_any_stage_at_the_bmc_is_never_given_to_it_again(
    place: Site,
) -> None:
    waiting = await place.occupied()
    lost = place.machine(FaultRule(method="POST", path=UPDATE, latency=FOR_EVER, drop=Drop.BEFORE))
    unanswered = place.machine(FaultRule(method="POST", path=UPDATE, answer_late=FOR_EVER), task_seconds=0.2)
    at_work = place.machine(task_seconds=8)
    away = place.machine(task_seconds=0.2, update=UpdateManners(restart_seconds=12, flaps=2))
    machines = [waiting, lost, unanswered, at_work, away]
    commands = [place.update(machine, timeout="90s" if machine is not lost else "45s") for machine in machines]
    await place.accepted(commands[0])
    await place.until("the order is on its way", lambda: lost.asked("POST", UPDATE))
    await place.until("an order is taken", lambda: unanswered.asked("POST", UPDATE, done=True))
    await place.until("a task is followed", lambda: at_work.asked("GET", "*/Tasks/*"))
    await place.until("a BMC restarts itself", lambda: away.is_away)
    place.agent.kill()
    await place.revive()
    rows = await asyncio.gather(*(place.ended(command_id) for command_id in commands))
    for machine, row in zip(machines, rows, strict=True):
        judge_update(machine, row)
        assert machine.asked("POST", UPDATE) == 1
    assert [row["state"] for row in rows] == ["succeeded", "failed", "succeeded", "succeeded", "succeeded"]
    assert (lost.asked("POST", UPDATE, done=True), lost.version) == (0, "2.13.0")


@pytest.mark.parametrize("frame", FRAMES)
async def test_a_rotation_whose_agent_is_killed_at_a_frame_leaves_one_password_that_is_known(
    frame: str, place: Site, proxy: FrameProxy
) -> None:
    machine = place.machine()
    command_id = await killed_at(frame, proxy, place, lambda: place.rotate(machine))
    row = await place.ended(command_id)
    await judge_rotation(place, machine, row)
    if frame == "finished":
        assert row["state"] == "succeeded", row


@pytest.mark.usefixtures("proxy")
async def test_a_rotation_whose_agent_is_killed_at_any_stage_at_the_bmc_leaves_one_password_that_is_known(
    place: Site,
) -> None:
    waiting = await place.occupied()
    asked = place.machine(FaultRule(method="PATCH", path=ACCOUNT, latency=FOR_EVER, drop=Drop.BEFORE))
    unanswered = place.machine(FaultRule(method="PATCH", path=ACCOUNT, answer_late=FOR_EVER))
    # Its second login is the proof of the new password.
    unproven = place.machine(
        FaultRule(method="POST", path=SESSIONS, latency=FOR_EVER, drop=Drop.BEFORE, after=1, count=1)
    )
    proven = place.machine(FaultRule(method="POST", path=SESSIONS, answer_late=FOR_EVER, after=1, count=1))
    machines = [waiting, asked, unanswered, unproven, proven]
    commands = [place.rotate(machine) for machine in machines]
    await place.accepted(commands[0])
    await place.until("the change is on its way", lambda: asked.asked("PATCH", ACCOUNT))
    await place.until("the change is made", lambda: unanswered.asked("PATCH", ACCOUNT, done=True))
    await place.until("the proof is on its way", lambda: unproven.asked("POST", SESSIONS) == 2)
    await place.until("the proof is taken", lambda: proven.asked("POST", SESSIONS, done=True) == 2)
    place.agent.kill()
    await place.revive()
    rows = await asyncio.gather(*(place.ended(command_id) for command_id in commands))
    for machine, row in zip(machines, rows, strict=True):
        await judge_rotation(place, machine, row)
    assert [row["state"] for row in rows] == ["succeeded", "failed", "succeeded", "succeeded", "succeeded"]
