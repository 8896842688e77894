"""Virtual media: images into slots and out again, each change read back from the slot."""

from drivers.driver import Call
from drivers.redfish.boot import patch_when_ready, unproven
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, dig, link, members
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.media_request import ImageAddress, InsertRequest
from drivers.redfish.media_slots import Slot, candidates, holds, shows, slot_of, without_mirrors
from drivers.redfish.tasks import words_of_task
from drivers.redfish.transport import Answer
from drivers.redfish.watching import comes_true
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.virtual_media import (
    EjectMedia,
    EjectMediaResult,
    InsertMedia,
    InsertMediaResult,
    InsertMethod,
    MediaSlots,
)

__all__ = ["RedfishVirtualMedia", "read_slots"]

_INSERTED_SECONDS = 60.0
_EJECTED_SECONDS = 30.0
_SERVER_ERROR_TRIES = 3
_SERVER_ERROR_PAUSE = 3.0


class RedfishVirtualMedia:
    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection

    async def list_media(self, arguments: Nothing, call: Call) -> MediaSlots:
        """The slots of the system and of the managers that manage it, each once."""
        return MediaSlots(slots=[slot.shown() for slot in await read_slots(self._connection, call)])

    async def insert_media(self, arguments: InsertMedia, call: Call) -> InsertMediaResult:
        """Puts the image into the first slot that takes it; another image in that slot is ejected first.

        A slot that holds the image already ends it, with `changed` false. Raises OperationError: UNSUPPORTED,
        NOT_APPLIED, OUTCOME_UNKNOWN (no answer, and no reading shows the image), or the refusals of every slot.
        """
        try:
            address = ImageAddress.parse(arguments.image)
        except ValueError as error:
            raise OperationError(ErrorCode.INVALID_ARGUMENT, str(error)) from None
        slots = await self._slots(call)
        self._check_address(address)
        usable = candidates(slots, arguments.device)
        held = next((slot for slot in usable if holds(slot, address.url)), None)
        if held is not None:
            return InsertMediaResult(slot=held.id, image=held.image or address.url, changed=False)
        if not usable:
            listed = "; ".join(f"{slot.id}: {', '.join(slot.media_types)} ({slot.method})" for slot in slots)
            raise OperationError(
                ErrorCode.UNSUPPORTED, f"no slot of this BMC takes a {arguments.device} image; it has {listed}"
            )
        refusals: list[tuple[Slot, Refused]] = []
        for slot in usable:
            call.progress(f"inserting into {slot.id}", None)
            try:
                return await self._insert_into(
                    slot, InsertRequest(address, slot, arguments.device, arguments.write_protected), call
                )
            except Refused as refused:
                if refused.code in (ErrorCode.LICENSE_REQUIRED, ErrorCode.AUTH_FAILED, ErrorCode.BUSY):
                    raise
                refusals.append((slot, refused))
        raise _all_refused(refusals)

    async def eject_media(self, arguments: EjectMedia, call: Call) -> EjectMediaResult:
        """Empties every slot that holds something, or those for one device; nothing is sent to empty ones."""
        ejected = []
        for slot in await self._slots(call):
            if slot.inserted and (arguments.device is None or slot.takes(arguments.device)):
                await self._eject(slot, call)
                ejected.append(slot.id)
        return EjectMediaResult(ejected=ejected)

    async def _slots(self, call: Call) -> list[Slot]:
        slots = await read_slots(self._connection, call)
        if not slots:
            raise OperationError(
                ErrorCode.UNSUPPORTED, f"this BMC shows no virtual media slots{await self._why(call)}"
            )
        return slots

    async def _why(self, call: Call) -> str:
        """What stands in the place of slots: Supermicro X10 has a form of its own, and only for SMB shares."""
        manager = await self._connection.service.manager(call)
        collection = await self._connection.find(link(manager, "VirtualMedia"), call)
        oem = dig(collection, "Oem")
        if not isinstance(oem, dict) or not oem:
            return ""
        return f": {link(manager, 'VirtualMedia')} has its maker's own form only ({', '.join(map(str, oem))})"

    def _check_address(self, address: ImageAddress) -> None:
        bad = [mark for mark in self._connection.service.manners.image_may_not_hold if mark in address.url]
        if bad:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT, f"this BMC takes no image address with {' or '.join(bad)} in it"
            )

    async def _insert_into(self, slot: Slot, request: InsertRequest, call: Call) -> InsertMediaResult:
        if slot.inserted:
            await self._eject(slot, call)
        url = request.address.url
        answer: Answer | NoAnswer | None
        try:
            if slot.method is InsertMethod.ACTION:
                answer = await self._insert_by_action(slot, request, call)
            else:
                answer = await self._insert_by_patch(slot, request, call)
        except NoAnswer as failure:
            answer = failure
        now = slot

        async def is_settled() -> bool:
            nonlocal now
            now = await self._read(slot, call)
            return shows(now, url) or (await words_of_task(self._connection, answer, call))[0]

        await comes_true(is_settled, call, _INSERTED_SECONDS)
        if not shows(now, url):
            state = "inserted" if now.inserted else "not inserted"
            error = unproven(answer, "the image", f"the slot {slot.id} reads {now.image or 'no image'}, {state}")
            error.bmc = (await words_of_task(self._connection, answer, call))[1]
            raise error
        return InsertMediaResult(slot=slot.id, image=now.image or url, changed=True)

    async def _insert_by_action(self, slot: Slot, request: InsertRequest, call: Call) -> Answer | None:
        failures = 0
        while True:
            try:
                return await self._connection.act("POST", slot.insert_target or "", request.body, call)
            except Refused as refused:
                if refused.status in (400, 422) and request.after_refusal(refused.notes):
                    continue
                if not _may_pass(refused):
                    raise
                failures += 1
                if shows(await self._read(slot, call), request.address.url):
                    return None
                pause = refused.wait if refused.wait is not None else _SERVER_ERROR_PAUSE
                if failures >= _SERVER_ERROR_TRIES or pause >= call.remaining:
                    raise
                await call.sleep(pause, f"{slot.id} could not take the image yet")

    async def _insert_by_patch(self, slot: Slot, request: InsertRequest, call: Call) -> Answer:
        """Slots without an action (Lenovo XCC, stmcginnis/gofish issue 529)."""
        body: Document = {"Image": request.address.url, "Inserted": True, "WriteProtected": request.write_protected}
        if request.address.user is not None:
            body |= {"UserName": request.address.user, "Password": request.address.password}
        try:
            return await self._patch(slot, body, call)
        except Refused as refused:
            if refused.status != 400:
                raise
            # XCC before 2.50 sets Inserted by itself and refuses it.
            return await self._patch(slot, {"Image": request.address.url}, call)

    async def _eject(self, slot: Slot, call: Call) -> None:
        lost: NoAnswer | None = None
        try:
            if slot.eject_target is not None:
                await self._eject_by_action(slot, slot.eject_target, call)
            elif slot.method in (InsertMethod.PATCH, InsertMethod.UNKNOWN):
                await self._eject_by_patch(slot, call)
            else:
                raise OperationError(
                    ErrorCode.UNSUPPORTED, f"{slot.id} holds {slot.image or 'an image'} and offers no way to eject it"
                )
        except NoAnswer as failure:
            lost = failure

        async def is_empty() -> bool:
            return not (await self._read(slot, call)).inserted

        if not await comes_true(is_empty, call, _EJECTED_SECONDS):
            raise unproven(lost, f"the order to eject from {slot.id}", "the slot still reads inserted")

    async def _eject_by_action(self, slot: Slot, target: str, call: Call) -> None:
        """Without a body, then with an empty one (iLO answers 400 or 415 without). Whatever else the BMC says, an
        empty slot is success."""
        body: Document | None = None
        failures = 0
        while True:
            try:
                await self._connection.act("POST", target, body, call)
                return
            except Refused as refused:
                if not (await self._read(slot, call)).inserted:
                    return
                if refused.status in (400, 411, 415) and body is None:
                    body = {}
                    continue
                if not _may_pass(refused):
                    raise
                failures += 1
                pause = refused.wait if refused.wait is not None else _SERVER_ERROR_PAUSE
                if failures >= _SERVER_ERROR_TRIES or pause >= call.remaining:
                    raise
                await call.sleep(pause, f"{slot.id} could not be emptied yet")

    async def _eject_by_patch(self, slot: Slot, call: Call) -> None:
        try:
            await self._patch(slot, {"Image": None, "Inserted": False}, call)
        except Refused as refused:
            if refused.status != 400:
                raise
            await self._patch(slot, {"Image": None}, call)

    async def _patch(self, slot: Slot, body: Document, call: Call) -> Answer:
        return await patch_when_ready(lambda: self._connection.patch(slot.path, body, call), call)

    async def _read(self, slot: Slot, call: Call) -> Slot:
        return await _read_slot(self._connection, slot.path, call)


async def read_slots(connection: RedfishConnection, call: Call) -> list[Slot]:
    """The slots of the system, then those of each manager that manages it; a slot that cannot be read is left out."""
    system = await connection.service.system(call)
    managers = [await connection.find(path, call) for path in await connection.service.managers(call, system)]
    paths = [link(holder, "VirtualMedia") for holder in (system, *managers)]
    collections: list[list[Slot]] = []
    seen: set[str] = set()
    for collection in paths:
        if collection is None or collection.rstrip("/").lower() in seen:
            continue
        seen.add(collection.rstrip("/").lower())
        slots = []
        for member in members(await connection.find(collection, call)):
            try:
                slots.append(await _read_slot(connection, member, call, patience=0))
            except Refused:
                continue
        collections.append(slots)
    return without_mirrors(collections)


async def _read_slot(connection: RedfishConnection, path: str, call: Call, patience: float = 30.0) -> Slot:
    answer = await connection.read(path, call, patience=patience)
    return slot_of(path, answer.document(), answer.headers.getall("Allow", ()), connection.service.manners)


def _may_pass(refused: Refused) -> bool:
    """A server error, or a state that passes: worth another try after a look."""
    return refused.status >= 500 or refused.transient


def _all_refused(refusals: list[tuple[Slot, Refused]]) -> OperationError:
    attempts = "; ".join(f"{slot.id}: {refused.message}" for slot, refused in refusals)
    last = refusals[-1][1]
    return OperationError(
        last.code,
        f"no slot took the image ({attempts})",
        bmc=[message for _, refused in refusals for message in refused.bmc],
        details={"slots": [slot.id for slot, _ in refusals], "status": dig(last.details, "status")},
    )
