"""The steps that start a machine's ramdisk, and that take its boot medium away again.

Both look first and do what is missing, so that a retry begins from the machine's real state and not from what an
earlier attempt believed (cases B56, NICo#909 and BMO#1182: progress that was saved and never true again).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from control_plane.engine.context import DriverError, StepContext, StepFailed
from control_plane.machine_joining import last_refusal
from control_plane.metal.machine import Machine
from control_plane.metal.own_system import own_system
from control_plane.metal.rows import get_run
from control_plane.metal.states import MetalVerb
from control_plane.store import Transaction

__all__ = ["RAMDISK_IMAGE", "BootRamdisk", "boot_ramdisk", "eject_ramdisk"]

RAMDISK_IMAGE = "rackwright:ramdisk"
"""The site's agent puts the node's own image in its place."""
_ROUNDS = 3
"""How often the machine is switched off anew when something else switches it on before its turn."""
_LOOK_MS = 5_000
_FAREWELL_MS = 30_000
"""How long before its deadline a waiting step asks why nothing came."""


class BootRamdisk(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How the ramdisk is started."""

    method: Literal["virtualMedia", "uefiHttp", "pxe"] = "virtualMedia"
    device: Literal["cd", "usb"] = "cd"
    """The drive that virtual media show."""
    mode: Literal["uefi", "bios"] | None = None
    """Null keeps the machine's present boot mode."""
    shutdown: Literal["hard", "soft"] = "hard"
    """soft: its running system is asked to end first."""
    soft_timeout: Annotated[float, Meta(gt=0, le=3600)] = 180.0
    """Seconds that it is given for that."""
    keep_running: bool = False
    """The ramdisk still runs when the workflow is over; else the machine is switched off with the clean-up."""


async def boot_ramdisk(context: StepContext, arguments: BootRamdisk) -> dict[str, object]:
    """Starts the node's ramdisk, and waits until it has connected."""
    machine = await Machine.of(context)
    state = (await machine.site("power.getPower", {}, key="power")).get("state")
    if state != "off":
        await _switch_off(machine, arguments, "off")
    if arguments.method == "virtualMedia":
        media: dict[str, object] = {"image": RAMDISK_IMAGE, "device": arguments.device}
        await machine.site("virtual-media.insertMedia", media, key="insert")
    last = await _switch_on(machine, arguments)
    return _arrived(machine, last) or await _wait(machine, last)


async def eject_ramdisk(context: StepContext, arguments: BootRamdisk) -> dict[str, object]:
    """Takes the ramdisk's boot medium away; a machine that still runs the ramdisk is switched off before, also where
    its agent has died or lost its network.

    The order is off, then eject (case B12, LP2160374): some BMCs refuse to take away, or break off, what is in use.
    """
    machine = await Machine.of(context)
    notes = list[str]()
    switched_off = "off" in machine.seen.sent or (not arguments.keep_running and await _runs_ramdisk(machine))
    if switched_off:
        await machine.site("power.setPower", {"action": "off"}, key="off")
    if arguments.method == "virtualMedia":
        await machine.site("virtual-media.ejectMedia", {"device": arguments.device}, key="eject")
    try:
        boot = await machine.site("boot.getBoot", {}, key="boot")
        if _is_to_be_taken_back(boot, arguments):
            await machine.site("boot.setBootDevice", {"device": "none"}, key="override")
    except DriverError as error:
        notes.append(f"the boot override could not be taken back: {error.message}")
    return {"switchedOff": switched_off, "notes": notes}


def _is_to_be_taken_back(boot: dict[str, object], arguments: BootRamdisk) -> bool:
    """Nobody else's override is, such as a lasting one to the disk. Where there is none any more, the site may still
    hold ready what the machine has not fetched, or has not joined with: that ends with the override."""
    if boot.get("enabled") == "disabled":
        return arguments.method != "virtualMedia"
    return boot.get("target") == _target(arguments)


async def _runs_ramdisk(machine: Machine) -> bool:
    """Of a machine without a connected agent: whether its ramdisk has come up in this workflow, and nothing has told
    it to go since; in a recovery, whether it is what was heard of last."""
    agent, context = machine.seen.agent, machine.context
    if agent is not None:
        return agent.role == "ramdisk"
    return await context.read(_has_stayed, context.workflow_id, context.node_id or "")


def _has_stayed(tx: Transaction, workflow_id: str, node_id: str) -> bool:
    run = get_run(tx, workflow_id)
    if run is not None and run.verb is MetalVerb.RECOVER:
        return own_system(tx, node_id).ramdisk_is_last
    began = tx.one(
        """
        SELECT MIN(sessions.connected_at) FROM sessions JOIN agents ON agents.id = sessions.agent_id
        WHERE agents.node_id = :node AND sessions.boot_id = (
            SELECT newest.boot_id FROM sessions AS newest JOIN agents AS its ON its.id = newest.agent_id
            WHERE its.node_id = :node AND newest.role = 'ramdisk' ORDER BY newest.connected_at DESC LIMIT 1)
        """,
        {"node": node_id},
    )
    stayed = tx.one(
        """
        SELECT 1 FROM workflows WHERE id = :workflow AND started_at <= :began AND NOT EXISTS (
            SELECT 1 FROM commands WHERE commands.workflow_id = workflows.id AND commands.created_at >= :began AND (
                commands.kind IN ('boot.kexec', 'node.reboot')
                OR (commands.kind = 'task.run' AND commands.ending LIKE '%"then":"%')
                OR (commands.kind = 'driver.invoke' AND commands.payload LIKE '%"setPower"%')))
        """,
        {"workflow": workflow_id, "began": None if began is None else began[0]},
    )
    return stayed is not None


async def _switch_off(machine: Machine, arguments: BootRamdisk, key: str) -> None:
    args: dict[str, object] = {"action": "off"}
    if arguments.shutdown == "soft":
        args = {"action": "softOff", "softTimeout": arguments.soft_timeout}
    await machine.site("power.setPower", args, key=key)


async def _switch_on(machine: Machine, arguments: BootRamdisk) -> str:
    """The key of the command that has switched it on. Raises StepFailed where something else always was faster.

    A machine that was on already may have started before its boot device was set: it is switched off once more.
    """
    for turn in range(1, _ROUNDS + 1):
        suffix = "" if turn == 1 else f"-{turn}"
        if turn > 1:
            await machine.site("power.setPower", {"action": "off"}, key=f"off{suffix}")
        await machine.site("boot.setBootDevice", _boot_device(arguments), key=f"boot{suffix}")
        on = await machine.site("power.setPower", {"action": "on"}, key=f"on{suffix}")
        if on.get("changed", True):
            return f"on{suffix}"
    raise StepFailed(
        f"something else has switched the machine on {_ROUNDS} times before it was to start: another controller, or "
        "a power policy of its BMC",
        code="POWER_CONTESTED",
    )


def _boot_device(arguments: BootRamdisk) -> dict[str, object]:
    args: dict[str, object] = {"device": _target(arguments)}
    if arguments.mode is not None:
        args["mode"] = arguments.mode
    if arguments.method == "uefiHttp":
        args["httpBootUri"] = RAMDISK_IMAGE
    return args


def _target(arguments: BootRamdisk) -> str:
    return arguments.device if arguments.method == "virtualMedia" else arguments.method


def _arrived(machine: Machine, last: str) -> dict[str, object] | None:
    """The ramdisk of a new boot is there. Raises StepFailed where another system is."""
    agent, on = machine.seen.agent, machine.seen.sent.get(last)
    if agent is None or not agent.new_boot or on is None:
        return None
    if agent.role == "ramdisk":
        # The connection of one that was switched off just now ends only when its silence is noticed.
        return {"bootId": agent.boot_id, "role": agent.role} if agent.connected_at >= on.created_at else None
    if agent.connected_at >= (on.finished_at or on.created_at):
        raise StepFailed(
            f"the machine has started its {agent.role} and not the ramdisk: its firmware did not follow the boot "
            "override",
            code="WRONG_BOOT",
        )
    return None


async def _wait(machine: Machine, last: str) -> dict[str, object]:
    """Raises StepNotReady, or StepFailed once it is known, or the deadline is near."""
    context, seen = machine.context, machine.seen
    on = seen.sent.get(last)
    if on is None:
        # It has ended in this very execution: the next look knows when.
        raise context.not_ready(0)
    if seen.power == "off" and seen.power_since > (on.finished_at or on.created_at):
        raise StepFailed(
            "the machine was switched on, and is off again before its ramdisk has connected: somebody has switched "
            "it off, or it has failed",
            code="POWER_LOST",
        )
    patience = min(_FAREWELL_MS, (context.deadline_ms - context.started_ms) // 10)
    if machine.time_left_ms > patience:
        raise context.not_ready(min(_LOOK_MS, machine.time_left_ms - patience))
    raise StepFailed(await _why_nothing_came(machine), code="REJOIN_TIMEOUT")


async def _why_nothing_came(machine: Machine) -> str:
    seen, nearly_over = machine.seen, machine.time_left_ms <= _FAREWELL_MS // 10
    words = "the machine's ramdisk has not connected in time"
    known = seen.sent.get("why")
    if not nearly_over or (known is not None and known.over):
        try:
            power = await machine.site("power.getPower", {}, key="why")
            words += f"; the BMC says that it is {power.get('state')}"
        except DriverError as error:
            words += f"; its BMC does not answer: {error.message}"
    if seen.agent is not None:
        words += f"; its {seen.agent.role} is connected, of the boot before"
    context = machine.context
    refused = await context.read(last_refusal, context.node_id or "", context.started_ms)
    if refused is not None:
        words += f"; an agent that came for it was refused: {refused}"
    return f"{words}. Look at its console: rackwright console {seen.name}"
