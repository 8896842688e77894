"""After a crash: what is done with each command that the journal holds, as a pure plan.

    accepted                        its time has passed            expired, not done
    accepted                        otherwise                      wait for the control plane's word
    started, read or converge       its time is known and left     run it again: repeating is harmless
    started, read                   otherwise                      ended as interrupted
    started, converge or once       otherwise                      settle it by reading the machine
    finished                                                       report it until it is settled

A command that was begun and is an act (`once`) is never begun again, whatever is read.

One that was only accepted is not begun on the journal's word alone. The journal may be older than what the control
plane knows: its host was set back to a snapshot, or its disk was full when the command was cancelled or refused, and
the ending was told from memory. The control plane, which hears of it in the hello, sends it again with the time that
is left, or has it forgotten.
"""

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto

import msgspec

from agent.clock import Clock, remaining_seconds
from agent.endings import outcome_unknown
from agent.journal import Entry
from protocol.commands import DriverInvoke, Ending, JournalState, Outcome
from protocol.errors import OperationError
from protocol.operations import Repeat

__all__ = ["OBSERVATIONS", "Observation", "Step", "observe", "plan"]


class Step(Enum):
    RUN_AGAIN = auto()
    EXPIRE = auto()
    AWAIT_WORD = auto()
    INTERRUPT = auto()
    OBSERVE = auto()
    REPORT = auto()


def plan(entry: Entry, repeat: Repeat, clock: Clock) -> Step:
    """What to do with a row of the journal when the agent starts."""
    if entry.state is JournalState.FINISHED:
        return Step.REPORT
    remaining = remaining_seconds(clock, entry.deadline)
    if entry.state is JournalState.ACCEPTED:
        return Step.EXPIRE if remaining is not None and remaining <= 0 else Step.AWAIT_WORD
    if repeat is not Repeat.ONCE and remaining is not None and remaining > 0:
        return Step.RUN_AGAIN
    return Step.INTERRUPT if repeat is Repeat.READ else Step.OBSERVE


class Observation(msgspec.Struct, frozen=True):
    """How one operation's outcome is read from the machine.

    `judge` takes the operation's arguments and the reading: a result when the machine is as asked, None when the
    reading cannot tell. Where a reading could prove that nothing was done it would still not prove that nothing is
    under way, so there is no third answer.
    """

    read: str
    judge: Callable[[Mapping[str, object], Mapping[str, object]], dict[str, object] | None]
    know: Callable[[Mapping[str, object]], str]


def _power(arguments: Mapping[str, object], reading: Mapping[str, object]) -> dict[str, object] | None:
    # The state after a reset, a cycle or an NMI is the state before it: it proves neither.
    wanted = {"on": "on", "off": "off", "softOff": "off"}.get(str(arguments.get("action")))
    if wanted is None or reading.get("state") != wanted:
        return None
    return {"state": wanted, "changed": False, "verbUsed": None, "forced": False}


def _boot_device(arguments: Mapping[str, object], reading: Mapping[str, object]) -> dict[str, object] | None:
    device = arguments.get("device")
    if device == "none":
        as_asked = reading.get("enabled") == "disabled"
    else:
        enabled = "continuous" if arguments.get("persistent") else "once"
        as_asked = reading.get("target") == device and reading.get("enabled") == enabled
    if arguments.get("mode") is not None:
        as_asked = as_asked and reading.get("mode") == arguments["mode"]
    if not as_asked:
        return None
    kept = ("target", "rawTarget", "enabled", "mode", "httpBootUri")
    return {**{name: reading.get(name) for name in kept}, "persistentSupported": None}


def _inserted(arguments: Mapping[str, object], reading: Mapping[str, object]) -> dict[str, object] | None:
    for slot in _slots(reading):
        if slot.get("inserted") and slot.get("image") == arguments.get("image"):
            return {"slot": slot.get("id"), "image": slot.get("image"), "changed": False}
    return None


def _ejected(arguments: Mapping[str, object], reading: Mapping[str, object]) -> dict[str, object] | None:
    if arguments.get("device") is None and not any(slot.get("inserted") for slot in _slots(reading)):
        return {"ejected": []}
    return None


def _firmware(arguments: Mapping[str, object], reading: Mapping[str, object]) -> dict[str, object] | None:
    expected, targets = arguments.get("expectVersion"), arguments.get("targets")
    if not expected or not isinstance(targets, list) or not targets:
        return None
    found = {
        str(component.get("id")): component.get("version")
        for component in _structs(reading.get("components"))
        if any(str(target).rstrip("/").endswith(f"/{component.get('id')}") for target in targets)
    }
    if len(found) < len(targets) or any(version != expected for version in found.values()):
        return None
    return {"before": {}, "after": found, "task": None, "resetOwed": False}


def _slots(reading: Mapping[str, object]) -> list[Mapping[str, object]]:
    return _structs(reading.get("slots"))


def _structs(value: object) -> list[Mapping[str, object]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _count_inserted(reading: Mapping[str, object]) -> str:
    images = [str(slot.get("image")) for slot in _slots(reading) if slot.get("inserted")]
    return f"inserted: {', '.join(images) or 'nothing'}"


OBSERVATIONS: Mapping[str, Observation] = {
    "power.setPower": Observation("power.getPower", _power, lambda r: f"power is {r.get('state')} now"),
    "boot.setBootDevice": Observation(
        "boot.getBoot", _boot_device, lambda r: f"the boot override is {r.get('target')}, {r.get('enabled')}"
    ),
    "virtual-media.insertMedia": Observation("virtual-media.listMedia", _inserted, _count_inserted),
    "virtual-media.ejectMedia": Observation("virtual-media.listMedia", _ejected, _count_inserted),
    "firmware.updateFirmware": Observation(
        "firmware.getFirmware",
        _firmware,
        lambda r: f"{len(_structs(r.get('components')))} firmware versions were read",
    ),
}
"""The operations whose outcome a reading can settle, or at least throw light on."""

_WHAT_TO_DO = "It is not repeated by itself: look at the machine, and ask again if it is still wanted"


async def observe(invoke: DriverInvoke, read: Callable[[str], Awaitable[Mapping[str, object]]]) -> Ending:
    """How a command that was begun has ended, by what the machine says now; OUTCOME_UNKNOWN when it cannot tell.

    `read` does one reading operation on the machine. When it does not answer, the cause is told.
    """
    name = invoke.operation_id
    begun = f"the agent stopped after {name} was begun and before its result was known"
    observation = OBSERVATIONS.get(name)
    if observation is None:
        return outcome_unknown(f"{begun}; no reading can tell whether it happened. {_WHAT_TO_DO}")
    try:
        reading = await read(observation.read)
    except OperationError as error:
        return outcome_unknown(
            f"{begun}, and the machine could not be read since ({error}). {_WHAT_TO_DO}",
            {"readError": msgspec.to_builtins(error.as_failure())},
        )
    result = observation.judge(invoke.args, reading)
    if result is None:
        return outcome_unknown(f"{begun}; {observation.know(reading)}. {_WHAT_TO_DO}", {observation.read: reading})
    return Ending(
        Outcome.SUCCEEDED,
        result=result,
        observed={"settledBy": f"{observation.read} after the agent was restarted"},
    )
