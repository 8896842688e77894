"""Virtual media of a simulated machine: one slot per kind of device."""

from drivers.driver import Call
from drivers.simulated.machine import SimulatedConnection
from drivers.simulated.state import SLOTS, MachineState, MediumState, note
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.virtual_media import (
    EjectMedia,
    EjectMediaResult,
    InsertMedia,
    InsertMediaResult,
    InsertMethod,
    MediaSlot,
    MediaSlots,
)

__all__ = ["SimulatedVirtualMedia"]

_SCHEMES = ("http://", "https://", "nfs://", "smb://", "cifs://")


class SimulatedVirtualMedia:
    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    async def list_media(self, arguments: Nothing, call: Call) -> MediaSlots:
        return await self._connection.read(call, _slots)

    async def insert_media(self, arguments: InsertMedia, call: Call) -> InsertMediaResult:
        """An image in the slot is replaced by another one."""
        return await self._connection.change(call, arguments, lambda state: _insert(state, arguments))

    async def eject_media(self, arguments: EjectMedia, call: Call) -> EjectMediaResult:
        def deed(state: MachineState) -> tuple[bool, EjectMediaResult]:
            wanted = [SLOTS[arguments.device.value]] if arguments.device else list(SLOTS.values())
            ejected = [slot for slot, _ in wanted if state.media.pop(slot, None) is not None]
            for slot in ejected:
                note(state, f"the image was ejected from {slot}")
            return bool(ejected), EjectMediaResult(ejected=ejected)

        return await self._connection.change(call, arguments, deed)


def _slots(state: MachineState) -> MediaSlots:
    slots = []
    for slot, words in SLOTS.values():
        medium = state.media.get(slot)
        slots.append(
            MediaSlot(
                id=slot,
                media_types=words,
                image=medium.image if medium else None,
                inserted=medium is not None,
                insert_method=InsertMethod.ACTION,
                write_protected=medium.write_protected if medium else None,
                location=f"simulated/{slot}",
            )
        )
    return MediaSlots(slots=slots)


def _insert(state: MachineState, arguments: InsertMedia) -> tuple[bool, InsertMediaResult]:
    if not arguments.image.lower().startswith(_SCHEMES):
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"image: the BMC cannot reach {arguments.image!r}; give an http, https, nfs or smb address",
        )
    slot, _ = SLOTS[arguments.device.value]
    wanted = MediumState(image=arguments.image, write_protected=arguments.write_protected)
    changed = state.media.get(slot) != wanted
    if changed:
        state.media[slot] = wanted
        note(state, f"an image was inserted into {slot}")
    return changed, InsertMediaResult(slot=slot, image=wanted.image, changed=changed)
