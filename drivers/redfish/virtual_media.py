"""Virtual media: images into slots and out again, each change read back from the slot."""

from drivers.driver import Call
from drivers.redfish import messages
from drivers.redfish.answer import Answer
from drivers.redfish.boot import patch_when_ready, unproven
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, dig, link
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.media_reading import read_slot, read_slots, with_their_ways
from drivers.redfish.media_request import ImageAddress, InsertRequest
from drivers.redfish.media_slots import Slot, candidates, holds, shows
from drivers.redfish.tasks import words_about, words_of_task
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

__all__ = ["RedfishVirtualMedia"]

_SLOT_SECONDS = 20.0
"""How long a busy BMC is asked for a slot that a change depends on."""
_INSERTED_SECONDS = 60.0
_EJECTED_SECONDS = 30.0
_OF_ONE_SLOT = frozenset(
    {ErrorCode.UNSUPPORTED, ErrorCode.NOT_APPLIED, ErrorCode.BMC_ERROR, ErrorCode.CONFLICT, ErrorCode.OUTCOME_UNKNOWN}
)
_SERVER_ERROR_TRIES = 3
_SERVER_ERROR_PAUSE = 3.0
_STATE_SECONDS = 120.0
"""How long a BMC may refuse in its present state: HPE iLO does during the host's self-test (Launchpad 2136275)."""
_EJECT = "VirtualMedia.EjectMedia"


class RedfishVirtualMedia:
    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection

    async def list_media(self, arguments: Nothing, call: Call) -> MediaSlots:
        """The slots of the system and of the managers that manage it, each once."""
        slots, unread = await read_slots(self._connection, call, patience=_SLOT_SECONDS)
        if unread is not None and not slots:
            raise unread
        slots = await with_their_ways(self._connection, slots, call, patience=_SLOT_SECONDS)
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
        refusals: list[tuple[Slot, Refused]] = []
        for shown in usable:
            slot = shown
            try:
                slot = await self._with_way(shown, call)
                slots = [slot if other.path == slot.path else other for other in slots]
                if not candidates([slot], arguments.device):
                    continue
                call.progress(f"inserting into {slot.id}", None)
                return await self._insert_into(
                    slot, InsertRequest(address, slot, arguments.device, arguments.write_protected), call
                )
            except Refused as refused:
                if refused.code in (ErrorCode.LICENSE_REQUIRED, ErrorCode.AUTH_FAILED, ErrorCode.BUSY):
                    raise
                refusals.append((slot, refused))
        if refusals:
            raise _all_refused(refusals)
        if unread is not None:
            raise unread
        listed = "; ".join(f"{slot.id}: {', '.join(slot.media_types)} ({slot.method})" for slot in slots)
        raise OperationError(
            ErrorCode.UNSUPPORTED, f"no slot of this BMC takes a {arguments.device} image; it has {listed}"
        )

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
            emptied = await self._eject(slot, call)
            slot = emptied if emptied.method is slot.method else slot
        url = request.address.url
        answer: Answer | NoAnswer | None
        try:
            answer = await self._insert_by_any_way(slot, request, call)
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

    async def _insert_by_any_way(self, slot: Slot, request: InsertRequest, call: Call) -> Answer | None:
        """By the action where there is one; by PATCH where there is none, or where it turns out to be no more than a
        name (OpenStack sushy, fix-virtual-media-fallback)."""
        if slot.method is not InsertMethod.ACTION:
            return await self._insert_by_patch(slot, request, call)
        try:
            return await self._insert_by_action(slot, request, call)
        except Refused as refused:
            if not (refused.absent and (await self._read_alone(slot, call)).patchable):
                raise
        return await self._insert_by_patch(slot, InsertRequest(request.address, slot, request.device), call)

    async def _insert_by_action(self, slot: Slot, request: InsertRequest, call: Call) -> Answer | None:
        tries = _Tries(slot, call)
        while True:
            try:
                return await self._connection.act("POST", slot.insert_target or "", request.body, call)
            except Refused as refused:
                if refused.status in (400, 422) and request.after_refusal(refused.notes):
                    continue
                # A server error that names a parameter is a refusal too.
                if refused.status == 500 and request.after_named_refusal(refused.notes):
                    continue
                if not _may_pass(refused):
                    raise
                if shows(await self._read(slot, call), request.address.url):
                    return None
                await tries.wait_after(refused, f"{slot.id} could not take the image yet")
                if shows(await self._read(slot, call), request.address.url):
                    return None

    async def _insert_by_patch(self, slot: Slot, request: InsertRequest, call: Call) -> Answer:
        """Slots without an action (Lenovo XCC, stmcginnis/gofish issue 529)."""
        request.fill_for_patch()
        while True:
            try:
                return await self._patch(slot, request.body, call)
            except Refused as refused:
                if refused.status not in (400, 422):
                    raise
                if not request.after_named_refusal(refused.notes):
                    break
        # XCC before 2.50 sets Inserted by itself and refuses it.
        return await self._patch(slot, {"Image": request.address.url}, call)

    async def _eject(self, slot: Slot, call: Call) -> Slot:
        """The slot as it reads once it is empty."""
        answer: Answer | NoAnswer | None
        if slot.eject_target is None:
            slot = await self._read_alone(slot, call)
            if not slot.inserted:
                return slot
        try:
            if slot.eject_target is not None:
                answer = await self._eject_by_action(slot, slot.eject_target, call)
            elif slot.patchable or slot.method is InsertMethod.UNKNOWN:
                answer = await self._eject_by_patch(slot, call)
            elif slot.insert_target is not None:
                # The action that is missing from the list has its place by DSP0266's rule for actions.
                answer = await self._eject_by_action(slot, f"{slot.path.rstrip('/')}/Actions/{_EJECT}", call)
            else:
                raise OperationError(
                    ErrorCode.UNSUPPORTED, f"{slot.id} holds {slot.image or 'an image'} and offers no way to eject it"
                )
        except NoAnswer as failure:
            answer = failure

        now = slot

        async def is_empty() -> bool:
            nonlocal now
            now = await self._read(slot, call)
            return not now.inserted

        if not await comes_true(is_empty, call, _EJECTED_SECONDS):
            words = await words_about(self._connection, answer, call)
            raise unproven(answer, f"the order to eject from {slot.id}", "the slot still reads inserted", words)
        return now

    async def _eject_by_action(self, slot: Slot, target: str, call: Call) -> Answer | None:
        """Without a body where nothing is known, then with an empty one. Whatever else the BMC says, an empty slot is
        success."""
        body: Document | None = {} if self._connection.service.manners.eject_wants_body else None
        tries = _Tries(slot, call)
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
                await tries.wait_after(refused, f"{slot.id} could not be emptied yet")

    async def _eject_by_patch(self, slot: Slot, call: Call) -> Answer:
        try:
            return await self._patch(slot, {"Image": None, "Inserted": False}, call)
        except Refused as refused:
            if refused.status != 400:
                raise
            return await self._patch(slot, {"Image": None}, call)

    async def _patch(self, slot: Slot, body: Document, call: Call) -> Answer:
        return await patch_when_ready(
            lambda: self._connection.patch(slot.path, body, call, known=slot.document), call
        )

    async def _read(self, slot: Slot, call: Call) -> Slot:
        return await read_slot(self._connection, slot.path, call)

    async def _with_way(self, slot: Slot, call: Call) -> Slot:
        return slot if slot.tells_way else await self._read(slot, call)

    async def _read_alone(self, slot: Slot, call: Call) -> Slot:
        return slot if slot.document is not None else await self._read(slot, call)


class _Tries:
    """How often, and for how long, one order is given again that a slot did not take."""

    def __init__(self, slot: Slot, call: Call) -> None:
        self._slot = slot
        self._call = call
        self._errors = 0
        self._waited = 0.0

    async def wait_after(self, refused: Refused, doing: str) -> None:
        """Waits for the next try; raises the refusal where there is to be none. A state that passes is given longer
        than a server error, of which nobody knows that it passes."""
        pause = refused.wait if refused.wait is not None else _SERVER_ERROR_PAUSE
        # A slot that somebody else uses is no state of the machine: another slot may be free.
        notes = [note for note in refused.notes if note.key != "ResourceInUse"]
        self._errors += not messages.is_transient(notes)
        self._waited += pause
        if self._errors >= _SERVER_ERROR_TRIES or self._waited > _STATE_SECONDS or pause >= self._call.remaining:
            raise refused
        await self._call.sleep(pause, doing)


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
