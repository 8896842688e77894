"""What is done to each machine, in which order, and whether the BMC itself says that it happened."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from bmc import Bmc, BmcProtocol

from protocol.commands import TERMINAL
from rackwright.client import Client

__all__ = ["Observation", "Outcome", "Row", "Step", "Task", "exercise", "judge", "plan"]

_WAIT_MS = 60_000
_TIMEOUT = "70s"
_ENDED = {state.value for state in TERMINAL}


class Task(Enum):
    """What is asked of every machine; the values head the columns of the live table."""

    READ = "read"
    ON = "on"
    OFF = "off"
    INSERT = "media in"
    BOOT = "boot device"
    RESET = "reset"
    EJECT = "media out"


class Outcome(Enum):
    OK = "ok"
    WRONG = "WRONG"
    NOT_IN_PROTOCOL = "–"


@dataclass(frozen=True)
class Step:
    """One operation as the operator asks for it."""

    task: Task
    operation: str
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> str:
        """The arguments, as a user types them, with images in short."""
        return " ".join(f"{name}={_brief(str(value))}" for name, value in self.args.items()) or "–"


@dataclass(frozen=True)
class Observation:
    """What the witness read after a step; only what the step is about. `restarts`: how many the step brought."""

    power: str = ""
    boot: str = ""
    boot_words: str = ""
    media: tuple[str, ...] = ()
    restarts: int = 0


@dataclass(frozen=True)
class Row:
    """One line of the summary."""

    bmc: Bmc
    step: Step
    says: str
    seconds: float | None
    outcome: Outcome


def plan(protocol: BmcProtocol, is_on: bool, image: str) -> list[Step]:
    """The steps for a machine that is on, or off: every task once, and a change of power is always a change."""
    device = "cd" if protocol is BmcProtocol.REDFISH else "pxe"
    on = Step(Task.ON, "power.setPower", {"action": "on"})
    off = Step(Task.OFF, "power.setPower", {"action": "off"})
    running = [
        Step(Task.INSERT, "virtual-media.insertMedia", {"image": image, "device": "cd"}),
        Step(Task.BOOT, "boot.setBootDevice", {"device": device}),
        Step(Task.RESET, "power.setPower", {"action": "reset"}),
        Step(Task.EJECT, "virtual-media.ejectMedia"),
    ]
    return [off, on, *running] if is_on else [on, *running, off]


def judge(step: Step, result: dict[str, Any], seen: Observation) -> tuple[str, bool]:
    """What the BMC says, in its words, and whether that is what was asked."""
    match step.task:
        case Task.READ:
            return seen.power, seen.power == result.get("state")
        case Task.ON | Task.OFF:
            return seen.power, seen.power == step.args["action"] and result.get("changed") is True
        case Task.BOOT:
            return seen.boot_words, seen.boot == step.args["device"]
        case Task.INSERT:
            is_inserted = seen.media == (step.args["image"],)
            return _brief(*seen.media) if is_inserted else f"inserted: {', '.join(seen.media) or 'none'}", is_inserted
        case Task.EJECT:
            return ", ".join(seen.media) or "no image", not seen.media
        case Task.RESET:
            times = {1: "once", 2: "twice"}.get(seen.restarts, f"{seen.restarts} times")
            return f"restarted {times}, {seen.power}", seen.restarts == 1 and seen.power == "on"


def exercise(bmc: Bmc, client: Client, image: str, begins: Callable[[Step], None]) -> Iterator[Row]:
    """Does everything to one machine, in order, up to the first thing that is not as asked."""
    first = Step(Task.READ, "power.getPower")
    begins(first)
    yield (row := _done(bmc, client, first))
    for step in plan(bmc.protocol, row.says == "on", image):
        if row.outcome is Outcome.WRONG:
            return
        begins(step)
        if bmc.protocol is BmcProtocol.IPMI and step.task in (Task.INSERT, Task.EJECT):
            row = Row(bmc, step, "IPMI has no virtual media", None, Outcome.NOT_IN_PROTOCOL)
        else:
            row = _done(bmc, client, step)
        yield row


def _done(bmc: Bmc, client: Client, step: Step) -> Row:
    seconds = 0.0
    try:
        before = bmc.witness.resets() if step.task is Task.RESET else 0
        began = time.monotonic()
        command = _invoked(client, bmc.name, step)
        seconds = time.monotonic() - began
        if command["state"] != "succeeded":
            return Row(bmc, step, _why(command), seconds, Outcome.WRONG)
        says, is_as_asked = judge(step, command["result"] or {}, _observed(bmc, step.task, before))
    except OSError as error:
        return Row(bmc, step, f"the BMC could not be read back by {bmc.witness.how}: {error}", seconds, Outcome.WRONG)
    return Row(bmc, step, says, seconds, Outcome.OK if is_as_asked else Outcome.WRONG)


def _invoked(client: Client, node: str, step: Step) -> dict[str, Any]:
    """The command, once it has ended. Raises RequestError."""
    command = client.call(
        "drivers",
        "invoke",
        {
            "nodeId": node,
            "operation": step.operation,
            "args": step.args,
            "timeout": _TIMEOUT,
            "waitMs": _WAIT_MS,
        },
    )
    while command["state"] not in _ENDED:
        command = client.call("commands", "get", {"commandId": command["id"], "waitMs": _WAIT_MS})
    return command


def _observed(bmc: Bmc, task: Task, resets_before: int) -> Observation:
    witness = bmc.witness
    match task:
        case Task.READ | Task.ON | Task.OFF:
            return Observation(power=witness.power())
        case Task.RESET:
            return Observation(power=witness.power(), restarts=witness.resets() - resets_before)
        case Task.BOOT:
            device, words = witness.boot()
            return Observation(boot=device, boot_words=words)
        case Task.INSERT | Task.EJECT:
            return Observation(media=tuple(witness.media()))


def _brief(text: str) -> str:
    """A URL without its server."""
    return f"…/{text.rpartition('/')[2]}" if "://" in text else text


def _why(command: dict[str, Any]) -> str:
    error = command["error"] or {"code": command["state"], "message": "no reason was given"}
    return f"{error['code']}: {error['message']}"
