"""Virtual media: images into slots and out again, each change read back from the slot."""

from drivers.driver import Call
from drivers.redfish.boot import patch_when_ready, unproven
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, dig, link, members
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.media_request import ImageAddress, InsertRequest
from drivers.redfish.media_slots import Slot, candidates, holds, shows, slot_of, without_mirrors
from drivers.redfish.tasks import words_about, words_of_task
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

_SLOT_SECONDS = 20.0
"""How long a busy BMC is asked for a slot that a change depends on."""
_INSERTED_SECONDS = 60.0
_EJECTED_SECONDS = 30.0
_OF_ONE_SLOT = frozenset(
    {ErrorCode.UNSUPPORTED, ErrorCode.NOT_APPLIED, ErrorCode.BMC_ERROR, ErrorCode.CONFLICT, ErrorCode.OUTCOME_UNKNOWN}
)
_SERVER_ERROR_TRIES = 3
_SERVER_ERROR_PAUSE = 3.0


class RedfishVirtualMedia:
    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection

    async def list_media(self, arguments: Nothing, call: Call) -> MediaSlots:
        """The slots of the system and of the managers that manage it, each once."""
        slots, unread = await read_slots(self._connection, call, patience=_SLOT_SECONDS)
        if unread is not None and not slots:
            raise unread
        return MediaSlots(slots=[slot.shown() for slot in slots])

    async def insert_media(self, arguments: InsertMedia, call: Call) -> InsertMediaResult:
        """Puts the image into the first slot that takes it; another image in that slot is ejected first.

        A slot that holds the image already ends it, with `changed` false. Raises OperationError: UNSUPPORTED,
        NOT_APPLIED, OUTCOME_UNKNOWN (no answer, and no reading shows the image), or the refusals of every slot.
        """
        try:
            address = ImageAddress.parse(arguments.image)
        except ValueError as error:
            raise OperationError(ErrorCode.INVALID_ARGUMENT, str(error)) from None
        slots, unread = await self._slots(call)
        self._check_address(address)
        usable = candidates(slots, arguments.device)
        held = next((slot for slot in usable if holds(slot, address.url)), None)
        if held is not None:
            return InsertMediaResult(slot=held.id, image=held.image or address.url, changed=False)
        if not usable and unread is not None:
            raise unread
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
        ejected: list[str] = []
        failure: OperationError | None = None
        slots, unread = await self._slots(call)
        for slot in slots:
            if not slot.inserted or not (arguments.device is None or slot.takes(arguments.device)):
                continue
            try:
                await self._eject(slot, call)
                ejected.append(slot.id)
            except OperationError as error:
                # The other slots are emptied all the same, as far as the BMC still answers.
                failure = failure or error
                if error.code not in _OF_ONE_SLOT:
                    break
        # A slot that could not be seen must not count as empty.
        failure = failure or unread
        if failure is not None:
            failure.details = {**failure.details, "ejected": list(ejected)}
            raise failure
        return EjectMediaResult(ejected=ejected)

    async def _slots(self, call: Call) -> tuple[list[Slot], OperationError | None]:
        slots, unread = await read_slots(self._connection, call, patience=_SLOT_SECONDS)
        if not slots and unread is None:
            raise OperationError(
                ErrorCode.UNSUPPORTED, f"this BMC shows no virtual media slots{await self._why(call)}"
            )
        return slots, unread

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
            words = await words_about(self._connection, answer, call)
            raise unproven(answer, "the image", f"the slot {slot.id} reads {now.image or 'no image'}, {state}", words)
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
                if shows(await self._read(slot, call), request.address.url):
                    return None

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
        answer: Answer | NoAnswer | None
        try:
            if slot.eject_target is not None:
                answer = await self._eject_by_action(slot, slot.eject_target, call)
            elif slot.method in (InsertMethod.PATCH, InsertMethod.UNKNOWN):
                answer = await self._eject_by_patch(slot, call)
            else:
                raise OperationError(
                    ErrorCode.UNSUPPORTED, f"{slot.id} holds {slot.image or 'an image'} and offers no way to eject it"
                )
        except NoAnswer as failure:
            answer = failure

        async def is_empty() -> bool:
            return not (await self._read(slot, call)).inserted

        if not await comes_true(is_empty, call, _EJECTED_SECONDS):
            words = await words_about(self._connection, answer, call)
            raise unproven(answer, f"the order to eject from {slot.id}", "the slot still reads inserted", words)

    async def _eject_by_action(self, slot: Slot, target: str, call: Call) -> Answer | None:
        """Without a body, then with an empty one (iLO answers 400 or 415 without). Whatever else the BMC says, an
        empty slot is success."""
        body: Document | None = None
        failures = 0
        while True:
            try:
                return await self._connection.act("POST", target, body, call)
            except Refused as refused:
                if not (await self._read(slot, call)).inserted:
                    return None
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

    async def _eject_by_patch(self, slot: Slot, call: Call) -> Answer:
        try:
            return await self._patch(slot, {"Image": None, "Inserted": False}, call)
        except Refused as refused:
            if refused.status != 400:
                raise
            return await self._patch(slot, {"Image": None}, call)

    async def _patch(self, slot: Slot, body: Document, call: Call) -> Answer:
        return await patch_when_ready(lambda: self._connection.patch(slot.path, body, call), call)

    async def _read(self, slot: Slot, call: Call) -> Slot:
        return await _read_slot(self._connection, slot.path, call)


async def read_slots(
    connection: RedfishConnection, call: Call, *, patience: float = 0
) -> tuple[list[Slot], OperationError | None]:
    """The slots of the system, then those of each manager that manages it, and why one of them could not be seen.

    A slot that cannot be read is left out. With `patience`, in seconds, a BMC that is busy is waited for; where it
    stays so, that is what is handed back.
    """
    unread: OperationError | None = None

    async def look(path: str | None) -> Document | None:
        nonlocal unread
        try:
            return await (connection.find_patiently(path, call) if patience else connection.find(path, call))
        except Refused as refused:
            unread = refused
            return None

    system = await connection.service.system(call)
    managers = [await look(path) for path in await connection.service.managers(call, system)]
    paths = [link(holder, "VirtualMedia") for holder in (system, *managers)]
    collections: list[list[Slot]] = []
    seen: set[str] = set()
    for collection in paths:
        if collection is None or collection.rstrip("/").lower() in seen:
            continue
        seen.add(collection.rstrip("/").lower())
        slots = []
        for member in members(await look(collection)):
            try:
                slots.append(await _read_slot(connection, member, call, patience=patience))
            except Refused as refused:
                if refused.code is ErrorCode.BUSY:
                    unread = refused
        collections.append(slots)
    return without_mirrors(collections), unread


async def _read_slot(connection: RedfishConnection, path: str, call: Call, patience: float = 30.0) -> Slot:
    answer = await connection.read(path, call, patience=patience)
    return slot_of(
        path, connection.document_of(answer), answer.headers.getall("Allow", ()), connection.service.manners
    )


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
