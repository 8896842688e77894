"""After a crash: how a command that was begun has ended, by what the machine says now.

Nothing is done to the machine here, and nothing is guessed: where no reading can tell, the ending says so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from agent.endings import broken_off, outcome_unknown
from drivers.firmware_components import showing
from drivers.linux import settling
from protocol.commands import DriverInvoke, Ending, Outcome
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.firmware import FirmwareReading, UpdateFirmware, UpdateFirmwareResult, UpdateOutcome

__all__ = ["OBSERVATIONS", "Observation", "observe"]


class Observation(msgspec.Struct, frozen=True):
    """How one operation's outcome is read from the machine.

    `judge` takes the operation's arguments and the reading: a result when the machine is as asked, None when the
    reading cannot tell. Where a reading could prove that nothing was done it would still not prove that nothing is
    under way, so there is no third answer; but for what the ended process did itself, of which nothing is left:
    `broken_off` then says in words that it provably did not come to its end.
    """

    read: str
    judge: Callable[[Mapping[str, object], Mapping[str, object]], dict[str, object] | None]
    know: Callable[[Mapping[str, object]], str]
    patience: float = 0.0
    """Seconds for which the machine is read again, where what was begun may still be under way and end well."""
    broken_off: Callable[[Mapping[str, object], Mapping[str, object]], str | None] = lambda _arguments, _reading: None


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
    """Every update that was asked for shows its version. One without a version leaves no trace that a reading could
    find."""
    try:
        asked = msgspec.convert(arguments, UpdateFirmware).wanted
        shown = [{"name": item.get("id"), **item} for item in _structs(reading.get("components"))]
        components = msgspec.convert({"components": shown}, FirmwareReading).components
    except msgspec.ValidationError:
        return None
    outcomes = []
    for update in asked:
        found = showing(update.expect_version, update.targets, components) if update.expect_version else []
        if not found:
            return None
        versions = {component.id or component.name: component.version for component in found}
        outcomes.append(UpdateOutcome(image=_shown_image(update.image), after=versions))
    after = {name: version for outcome in outcomes for name, version in outcome.after.items()}
    listed = outcomes if arguments.get("updates") else []
    result: dict[str, object] = msgspec.to_builtins(UpdateFirmwareResult(before={}, after=after, updates=listed))
    return result


def _shown_image(image: str) -> str:
    """As the driver's own result names it: without a password, and without what may be one."""
    # A ramdisk has no such driver, and loads what it needs only.
    from drivers.redfish.image_source import Image

    try:
        return Image.parse(image).shown
    except ValueError:
        return "(an image)"


def _volume_made(arguments: Mapping[str, object], reading: Mapping[str, object]) -> dict[str, object] | None:
    """The drives had to be free when it was begun: a volume on exactly these is the one that was asked for."""
    asked = arguments.get("drives")
    for volume in _volumes(reading, arguments.get("controller")):
        members = volume.get("drives")
        as_asked = volume.get("level") == arguments.get("level")
        named = arguments.get("name") in (None, volume.get("name"))
        if not (as_asked and named and isinstance(asked, list) and isinstance(members, list)):
            continue
        ids = _drive_ids(reading, volume.get("controller"))
        if {ids.get(str(name)) for name in asked} == set(map(str, members)):
            facts = {"sizeBytes": volume.get("sizeBytes"), "drives": members}
            return {"volume": volume.get("id"), "task": None, "resetOwed": False, **facts}
    return None


def _drive_ids(reading: Mapping[str, object], controller: object) -> dict[str, str]:
    """A controller's drives by every word that names them."""
    drives = [drive for drive in _structs(reading.get("drives")) if drive.get("controller") == controller]
    by_serial = {str(drive.get("serial")): str(drive.get("id")) for drive in drives}
    return by_serial | {str(drive.get("id")): str(drive.get("id")) for drive in drives}


def _volume_deleted(arguments: Mapping[str, object], reading: Mapping[str, object]) -> dict[str, object] | None:
    controller, name = arguments.get("controller"), arguments.get("volume")
    seen = any(shown.get("id") == controller for shown in _structs(reading.get("controllers")))
    # Where a part could not be read, a volume that is not seen may be there.
    if not seen or reading.get("unread"):
        return None
    if any(name in (volume.get("id"), volume.get("name")) for volume in _volumes(reading, controller)):
        return None
    return {"task": None, "resetOwed": False, "deleted": [name], "waiting": []}


def _volumes(reading: Mapping[str, object], controller: object) -> list[Mapping[str, object]]:
    """The volumes that were made on the controller."""
    return [
        volume
        for volume in _structs(reading.get("volumes"))
        if controller in ("any", volume.get("controller")) and not volume.get("raw")
    ]


def _count_volumes(reading: Mapping[str, object]) -> str:
    names = [str(volume.get("id")) for volume in _volumes(reading, "any")]
    return f"volumes: {', '.join(names) or 'none'}"


def _count_disks(reading: Mapping[str, object]) -> str:
    names = [str(disk.get("name")) for disk in _structs(reading.get("disks"))]
    return f"disks: {', '.join(names) or 'none'}"


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
    "raid.createVolume": Observation("raid.getRaid", _volume_made, _count_volumes),
    "raid.deleteVolume": Observation("raid.getRaid", _volume_deleted, _count_volumes),
    "deploy.writeImage": Observation(
        "deploy.getDisks", settling.written, _count_disks, broken_off=settling.write_broken_off
    ),
    "deploy.eraseDisks": Observation(
        "deploy.getDisks", settling.erased, _count_disks, broken_off=settling.erasure_broken_off
    ),
    "firmware.updateFirmware": Observation(
        "firmware.getFirmware",
        _firmware,
        lambda r: f"{len(_structs(r.get('components')))} firmware versions were read",
        patience=1200.0,
    ),
}
"""The operations whose outcome a reading can settle, or at least throw light on."""

_PAUSE = 20.0
"""Seconds between two readings of a machine that is waited for."""
_MAY_PASS = frozenset(
    {ErrorCode.UNREACHABLE, ErrorCode.BUSY, ErrorCode.TIMEOUT, ErrorCode.BMC_ERROR, ErrorCode.CONFLICT}
)
_WHAT_TO_DO = "It is not repeated by itself: look at the machine, and ask again if it is still wanted"


async def observe(
    invoke: DriverInvoke, read: Callable[[str], Awaitable[Mapping[str, object]]], seconds: float = 0.0
) -> Ending:
    """How a command that was begun has ended, by what the machine says now; OUTCOME_UNKNOWN when it cannot tell.

    `read` does one reading operation on the machine. When it does not answer, the cause is told. `seconds`: what is
    left of the command's time, in which something that goes on by itself (a BMC that replaces its firmware, and is
    away meanwhile) is waited for.
    """
    name = invoke.operation_id
    begun = f"the agent stopped after {name} was begun and before its result was known"
    observation = OBSERVATIONS.get(name)
    if observation is None:
        return outcome_unknown(f"{begun}; no reading can tell whether it happened. {_WHAT_TO_DO}")
    clock = asyncio.get_running_loop().time
    until = clock() + min(observation.patience, seconds)
    while True:
        try:
            reading = await read(observation.read)
        except OperationError as error:
            if error.code in _MAY_PASS and clock() < until:
                await asyncio.sleep(min(_PAUSE, until - clock()))
                continue
            return outcome_unknown(
                f"{begun}, and the machine could not be read since ({error}). {_WHAT_TO_DO}",
                {"readError": msgspec.to_builtins(error.as_failure())},
            )
        result = observation.judge(invoke.args, reading)
        if result is not None:
            break
        proved = observation.broken_off(invoke.args, reading)
        if proved is not None:
            return broken_off(f"{begun}; {proved}. Asking again does all of it anew", {observation.read: reading})
        if clock() >= until or not _leaves_a_trace(invoke):
            return outcome_unknown(
                f"{begun}; {observation.know(reading)}. {_WHAT_TO_DO}", {observation.read: reading}
            )
        await asyncio.sleep(min(_PAUSE, max(0.0, until - clock())))
    return Ending(
        Outcome.SUCCEEDED,
        result=result,
        observed={"settledBy": f"{observation.read} after the agent was restarted"},
    )


def _leaves_a_trace(invoke: DriverInvoke) -> bool:
    """Whether a later reading could settle it at all: an update without an expected version is waited for in vain."""
    updates = invoke.args.get("updates") or [invoke.args]
    return invoke.operation_id != "firmware.updateFirmware" or all(
        isinstance(update, Mapping) and update.get("expectVersion") for update in _structs(updates)
    )
