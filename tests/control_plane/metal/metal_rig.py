"""A machine that behaves: its BMC switches it, its ramdisk comes up where it is booted to it, its system after kexec.

The engine and the agents are those of the engine's rig. What a machine does wrong is up to the test.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from control_plane.engine.profiles import create_profile
from control_plane.engine.records import StepRow, WorkflowRow
from control_plane.metal import verbs
from control_plane.metal.bindings import Bindings
from control_plane.metal.owner import MetalOwner
from control_plane.metal.rows import Asked, ProvisionRow, lock_provision, put_provision
from control_plane.metal.states import MetalVerb, ProvisionState
from control_plane.metal.verbs import Tools, Wish
from control_plane.records import CommandRow
from control_plane.store import Transaction
from protocol.commands import Ending, Outcome
from tests.control_plane.engine.rig import TENANT, Rig, failed, operation, work

IMAGE = {"url": "https://images.example/debian-12.raw.zst", "sha256": "ab" * 32}
BOOT = {"use": "metal.bootRamdisk", "on": "site"}
ERASE = operation("deploy.eraseDisks", "ramdisk", **{"with": {"mode": "metadata"}})
DRIVERS = {
    "power": "redfish",
    "boot": "redfish",
    "virtual-media": "redfish",
    "management": "redfish",
    "deploy": "linux",
    "inspect": "linux",
}


class Deed(NamedTuple):
    """What an agent was asked, in few words: `power.setPower off`."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class MetalRig:
    """The engine's rig with metal on top. `bmc` answers for the machine; a test may put its own answer before it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.tools = Tools(rig.registry, rig.timing, Bindings())
        self.owner = MetalOwner(rig.store, self.tools)
        self.power = "off"
        self.medium: str | None = None
        self.override: str | None = None
        self.first: Callable[[str, CommandRow], Ending | None] = lambda what, row: None
        """Asked before the machine itself: an ending here is the command's."""
        self.boots_to: Callable[[], str | None] = self._by_the_override
        """What comes up when the machine is switched on: ramdisk, daemon, or nothing."""
        self.kexec_works = True
        self.deeds: list[Deed] = []
        self.pending_boot: str | None = None
        for agent in rig.agents:
            agent.answer = self._answer_as(agent.role)

    # The verbs

    async def define(self, name: str, *steps: dict[str, Any], **more: Any) -> None:
        """A profile of this name."""
        document = {"profile": name, "drivers": DRIVERS, "steps": list(steps), **more}
        await self.rig.store.write(_define, self.tools, document)

    async def begin(self, verb: str, *, profile: str | None = None, asked: Asked | None = None) -> str:
        """The workflow's id."""
        wish = Wish(MetalVerb(verb), "test", asked or Asked(), profile)
        row = await self.rig.store.write(_begin, self.tools, self.rig.node_id, wish)
        assert row.workflow_id is not None
        return row.workflow_id

    async def abort(self, reason: str | None = None) -> None:
        await self.rig.store.write(_abort, self.tools, self.rig.node_id, reason)

    async def recover(self, *, as_it_is: bool = False) -> str:
        """The state that it is in now; a workflow that was begun has yet to be finished."""
        return (await self.rig.store.write(_recover, self.tools, self.rig.node_id, as_it_is)).state.value

    async def maintenance(self, switch: str, reason: str | None = None) -> str:
        return (await self.rig.store.write(_maintenance, self.rig.node_id, switch, reason)).state.value

    async def force(self, state: str, **more: Any) -> None:
        """The node is in this state, however it came there."""
        await self.rig.store.write(_force, self.rig.node_id, state, more)

    # Time goes by

    async def turn(self, workflow_id: str) -> None:
        """Whatever is due is done once, by everybody; where nothing was, time goes by."""
        look = await self.rig.run(workflow_id, hinted=True)
        busy = await self.rig.agents_work()
        if self.pending_boot is not None:
            role, self.pending_boot = self.pending_boot, None
            self.rig.clock.pass_by(20_000)
            await self.rig.machine.boot(role)
            return
        await self.rig.machine.connect()
        if not busy:
            self.rig.clock.now = max(self.rig.clock.now + 500, look.wake_at or 0)

    async def finish(self, workflow_id: str, *, take: bool = True) -> WorkflowRow:
        """Turns until the workflow has ended and, unless told otherwise, metal has heard of it."""
        for _ in range(400):
            seen = await self.rig.look(workflow_id)
            if seen.workflow.state.value in ("succeeded", "failed", "cancelled"):
                break
            await self.turn(workflow_id)
        else:
            raise AssertionError(f"{workflow_id} has not ended: {await self.rig.look(workflow_id)}")
        if take:
            await self.owner.take_all()
        return seen.workflow

    async def do(self, verb: str, *, profile: str | None = None, asked: Asked | None = None) -> WorkflowRow:
        """Begins and finishes."""
        return await self.finish(await self.begin(verb, profile=profile, asked=asked))

    # Looking

    async def provision(self) -> ProvisionRow:
        return (await self.rig.store.write(lock_provision, TENANT, self.rig.node_id))[1]

    async def state(self) -> str:
        return (await self.provision()).state.value

    async def step(self, workflow_id: str, step_id: str) -> StepRow:
        return await self.rig.step(workflow_id, step_id)

    async def moves(self) -> list[str]:
        """`enrolled > commissioning`, … as they were published."""
        return await self.rig.store.read(_moves, self.rig.node_id)

    @property
    def acts(self) -> list[str]:
        """What was done, without what was only read."""
        return [str(deed) for deed in self.deeds if ".get" not in deed.what]

    # The machine

    def _answer_as(self, role: str) -> Callable[[CommandRow], Ending | None]:
        def answer(row: CommandRow) -> Ending | None:
            what = words_of(row)
            self.deeds.append(Deed(role, what))
            ending = self.first(what, row)
            return self._by_the_machine(what, row) if ending is None else ending

        return answer

    def _by_the_machine(self, what: str, row: CommandRow) -> Ending | None:
        operation_id, _, argument = what.partition(" ")
        if operation_id == "power.getPower":
            return done(state=self.power, raw=self.power)
        if operation_id == "power.setPower":
            return self._set_power(argument)
        if operation_id == "virtual-media.insertMedia":
            self.medium = argument
            return done(slot="Cd", image="https://site/…/ramdisk.iso", changed=True)
        if operation_id == "virtual-media.ejectMedia":
            self.medium = None
            return done(ejected=["Cd"])
        if operation_id == "boot.setBootDevice":
            self.override = None if argument == "none" else argument
            return done(target=argument, enabled="once")
        if operation_id == "boot.getBoot":
            return done(target=self.override, enabled="disabled" if self.override is None else "once")
        if operation_id in ("boot.kexec", "node.reboot"):
            if self.kexec_works:
                self._come_up("daemon")
            return done()
        return done()

    def _set_power(self, action: str) -> Ending:
        before, self.power = self.power, "off" if action in ("off", "softOff") else "on"
        if self.power == "off":
            self.rig.machine.up = None
        elif action == "reset" or before == "off":
            self._come_up(self.boots_to())
        return done(state=self.power, changed=before != self.power or action == "reset")

    def _come_up(self, role: str | None) -> None:
        self.override = None
        self.pending_boot = role

    def _by_the_override(self) -> str | None:
        return "ramdisk" if self.override in ("cd", "usb", "uefiHttp", "pxe") else "daemon"


def done(**result: Any) -> Ending:
    return Ending(Outcome.SUCCEEDED, result=result)


def refused(message: str = "the BMC said no", code: str = "BMC_ERROR") -> Ending:
    return failed(code, message)


def words_of(row: CommandRow) -> str:
    if row.kind != "driver.invoke":
        return row.kind
    payload: Any = row.payload
    args = payload["args"]
    told = args.get("action") or args.get("image") or args.get("device") or args.get("mode") or ""
    told = told["url"] if isinstance(told, dict) else told
    return f"{payload['concern']}.{payload['operation']} {told}".strip()


def observe_off(tx: Transaction, node_id: str, agent_id: str) -> None:
    """The site's agent has seen the machine off just now."""
    tx.run(
        "INSERT INTO node_observations (node_id, power, health, raw, trouble, how, agent_id, seen_at) "
        "VALUES (:node, 'off', 'ok', NULL, NULL, 'poll', :agent, :now)",
        {"node": node_id, "agent": agent_id, "now": tx.now()},
    )


async def bound(metal: MetalRig) -> MetalRig:
    """With a short profile for each verb that does what it must and nothing more."""
    await metal.define("commission", BOOT, ERASE)
    await metal.define(
        "deploy",
        BOOT,
        {"id": "write", "use": "metal.writeImage", "with": {"image": IMAGE, "viaSite": False}},
        {"id": "start", "use": "metal.bootInstalled"},
    )
    await metal.define("release", BOOT, ERASE)
    await metal.define("rescue", {**BOOT, "with": {"keepRunning": True}})
    await metal.define("remediate", {"use": "metal.bringUp"})
    await metal.define("recover", {"use": "metal.ejectRamdisk"}, {"use": "metal.bringUp"})
    await metal.define("quiet", work("think"))
    return metal


def _define(tx: Transaction, tools: Tools, document: dict[str, Any]) -> None:
    create_profile(tx, tools.registry, tools.timing, TENANT, document, "test")


def _begin(tx: Transaction, tools: Tools, node_id: str, wish: Wish) -> ProvisionRow:
    node, row = lock_provision(tx, TENANT, node_id)
    return verbs.begin(tx, tools, node, row, wish)


def _abort(tx: Transaction, tools: Tools, node_id: str, reason: str | None) -> None:
    node, row = lock_provision(tx, TENANT, node_id)
    verbs.abort(tx, tools.timing, node, row, reason)


def _recover(tx: Transaction, tools: Tools, node_id: str, as_it_is: bool) -> ProvisionRow:
    return verbs.recover(tx, tools, *lock_provision(tx, TENANT, node_id), "test", as_it_is=as_it_is)


def _maintenance(tx: Transaction, node_id: str, switch: str, reason: str | None) -> ProvisionRow:
    node, row = lock_provision(tx, TENANT, node_id)
    if switch == "on":
        return verbs.start_maintenance(tx, node, row, reason)
    return verbs.end_maintenance(tx, node, row)


def _force(tx: Transaction, node_id: str, state: str, more: dict[str, Any]) -> None:
    _, row = lock_provision(tx, TENANT, node_id)
    forced = msgspec.structs.replace(row, state=ProvisionState(state), since=tx.now(), updated_at=tx.now())
    put_provision(tx, msgspec.structs.replace(forced, **more))


def _moves(tx: Transaction, node_id: str) -> list[str]:
    rows = tx.all(
        "SELECT data FROM events WHERE subject = :subject AND type = 'node.state' ORDER BY seq",
        {"subject": f"node/{node_id}"},
    )
    told = [msgspec.json.decode(row[0]) for row in rows]
    return [f"{one['from']} > {one['to']}" for one in told]
