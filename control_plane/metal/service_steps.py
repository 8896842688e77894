"""The steps that bring a machine into service: out of its ramdisk, or back after it went away by itself.

That a command to start it has succeeded means nothing: only the system's own agent, of another boot, does (B51). What
cannot be done, or does not bring it back in time, is followed by the next means, as the profile lists them (B52).
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from control_plane.engine.context import DriverError, StepContext, StepFailed
from control_plane.engine.states import RunsOn
from control_plane.metal.machine import Machine, Relayed
from protocol.commands import CommandKind, CommandState
from protocol.durations import parse_duration
from protocol.errors import ErrorCode

__all__ = ["BootInstalled", "BringUp", "boot_installed", "bring_up"]

Means = Literal["kexec", "reboot", "reset"]
_LOOK_MS = 5_000
_UNDECIDED = frozenset({ErrorCode.OUTCOME_UNKNOWN, ErrorCode.INTERRUPTED, ErrorCode.TIMEOUT})
"""The machine may be on its way all the same."""


class BootInstalled(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How the installed system is started."""

    means: Annotated[tuple[Means, ...], Meta(min_length=1, max_length=3)] = ("kexec", "reboot", "reset")
    """One after another, until the installed system's agent is there. reset: off, the boot medium out, on."""
    patience: str | int = "6m"
    """How long each of them is given."""
    persistent_disk: bool = True
    """The BMC's override is set to the disk for good before, so that no later start loops through the network."""
    device: Literal["cd", "usb"] = "cd"
    """The drive that the ramdisk was started from, which is emptied before a reset."""

    def __post_init__(self) -> None:
        _require_duration(self.patience)


class BringUp(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How a machine in service is brought back."""

    reset: bool = True
    """A machine that is on, and whose agent is away, is reset; else that is a failure."""


async def boot_installed(context: StepContext, arguments: BootInstalled) -> dict[str, object]:
    """Starts the installed system, and waits until its agent has connected."""
    machine = await Machine.of(context)
    agent = machine.seen.agent
    if agent is not None and agent.role == "daemon" and (agent.new_boot or agent.follows_ramdisk):
        return {"bootId": agent.boot_id, "role": agent.role, "means": _current(machine, arguments)}
    if arguments.persistent_disk:
        await _prefer_disk(machine)
    return await _Ladder(machine, arguments).climb()


async def bring_up(context: StepContext, arguments: BringUp) -> dict[str, object]:
    """Has the installed system's agent connected: switches on what is off, resets what is on and silent."""
    machine = await Machine.of(context)
    seen = machine.seen
    acts = [key for key in seen.sent if key != "power"]
    agent = seen.agent
    if agent is not None and agent.role == "daemon":
        # Only once something was done does it take a new boot: an agent that came back meanwhile must not be reset.
        # One from before the ramdisk is a connection that nobody has found broken yet.
        since_ramdisk = seen.ramdisk_at is None or agent.follows_ramdisk
        if agent.new_boot if acts else since_ramdisk:
            return {"bootId": agent.boot_id, "role": agent.role, "acts": acts}
    state = (await machine.site("power.getPower", {}, key="power")).get("state")
    if state == "off":
        await machine.site("power.setPower", {"action": "on"}, key="on")
    elif arguments.reset:
        await machine.site("power.setPower", {"action": "reset"}, key="reset")
    else:
        raise StepFailed(f"the machine is {state}, and its agent is away", code="AGENT_GONE")
    _give_up_in_time(machine, f"it was found {state}, and its agent has not connected after it was started")
    raise context.not_ready(_LOOK_MS)


class _Ladder:
    """One means after another. Which one is tried now is told by the commands that were sent."""

    def __init__(self, machine: Machine, arguments: BootInstalled) -> None:
        self._machine = machine
        self._means: Sequence[Means] = arguments.means
        self._device = arguments.device
        self._patience = parse_duration(arguments.patience)
        self._notes: list[str] = []

    async def climb(self) -> dict[str, object]:
        """Raises StepNotReady while something is under way, StepFailed when nothing is left to try."""
        machine = self._machine
        tried = [self._first_sent(means) for means in self._means]
        last = max((index for index, sent in enumerate(tried) if sent is not None), default=-1)
        for means, sent in zip(self._means[:last], tried[:last], strict=True):
            self._notes.append(f"{means}: {_fate(sent)}")
        if last >= 0:
            await self._go_on(self._means[last], tried[last])
        for means in self._means[last + 1 :]:
            if means != "reset" and not self._ramdisk_is_there:
                self._notes.append(f"{means}: the ramdisk is not connected")
                continue
            try:
                await self._begin(means)
            except DriverError as error:
                self._notes.append(f"{means}: {error.message}")
                continue
            raise machine.context.not_ready(_LOOK_MS)
        raise StepFailed(
            f"the installed system has not come back ({'; '.join(self._notes)}). Look at its console: "
            f"rackwright console {machine.seen.name}",
            code="REJOIN_TIMEOUT",
        )

    async def _go_on(self, means: Means, sent: Relayed | None) -> None:
        """Waits for the means that was begun last; returns where it has had its chance."""
        machine, seen = self._machine, self._machine.seen
        if sent is None:
            return
        agent = seen.agent
        if agent is not None and agent.role == "ramdisk" and agent.new_boot and agent.connected_at > sent.created_at:
            self._notes.append(f"{means}: the machine has started its ramdisk once more")
            return
        if _is_refused(sent):
            self._notes.append(f"{means}: {sent.words}")
            return
        _give_up_in_time(machine, "; ".join([*self._notes, f"{means}: {_fate(sent)}"]))
        if means == "reset":
            try:
                await self._begin(means)
            except DriverError as error:
                self._notes.append(f"{means}: {error.message}")
                return
            # Its time begins with the start: a BMC may take long to switch off, and the machine must not stay off.
            sent = seen.sent.get("reset-on", sent)
        if seen.now >= sent.created_at + self._patience:
            self._notes.append(f"{means}: {_fate(sent)}")
            return
        raise machine.context.not_ready(_LOOK_MS)

    async def _begin(self, means: Means) -> None:
        """Raises StepNotReady once it is sent, or DriverError."""
        machine = self._machine
        if means == "reset":
            try:
                await machine.site("power.setPower", {"action": "off"}, key="reset")
            except DriverError as error:
                sent = self._first_sent(means)
                if sent is None or _is_refused(sent):
                    raise
                # It may be off, and is switched on all the same.
                self._notes.append(f"whether the machine was switched off is not known: {error.message}")
            try:
                await machine.site("virtual-media.ejectMedia", {"device": self._device}, key="reset-eject")
            except DriverError as error:
                self._notes.append(f"the boot medium was not taken out: {error.message}")
            await machine.site("power.setPower", {"action": "on"}, key="reset-on")
            return
        kind = CommandKind.BOOT_KEXEC if means == "kexec" else CommandKind.NODE_REBOOT
        await machine.command(kind, {}, RunsOn.RAMDISK, key=means, timeout_ms=self._patience)

    def _first_sent(self, means: Means) -> Relayed | None:
        return self._machine.seen.sent.get(means)

    @property
    def _ramdisk_is_there(self) -> bool:
        agent = self._machine.seen.agent
        return agent is not None and agent.role == "ramdisk"


async def _prefer_disk(machine: Machine) -> None:
    """Best effort: many BMCs have no lasting override, and the EFI entry that was written counts as well."""
    try:
        await machine.site("boot.setBootDevice", {"device": "disk", "persistent": True}, key="disk")
    except DriverError:
        return


def _current(machine: Machine, arguments: BootInstalled) -> str | None:
    """The means that was begun last."""
    return next((means for means in reversed(arguments.means) if means in machine.seen.sent), None)


def _is_refused(sent: Relayed) -> bool:
    """It was not done: where that is not known, the machine is waited for all the same."""
    if not sent.over or sent.state is CommandState.SUCCEEDED:
        return False
    failure = sent.failure
    return sent.state is not CommandState.FAILED or failure is None or failure.code not in _UNDECIDED


def _fate(sent: Relayed | None) -> str:
    if sent is None:
        return "not tried"
    if sent.over and sent.state is not CommandState.SUCCEEDED:
        return sent.words
    return "the machine did not come back in time"


def _give_up_in_time(machine: Machine, why: str) -> None:
    """Fails with the cause while there is time to say it."""
    if machine.time_left_ms <= _LOOK_MS:
        raise StepFailed(why, code="REJOIN_TIMEOUT")


def _require_duration(text: str | int) -> None:
    if parse_duration(text) <= 0:
        raise ValueError("must be longer than nothing")
