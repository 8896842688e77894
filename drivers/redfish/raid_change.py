"""Changing one RAID controller: a volume made or deleted, a spare set aside, everything cleared.

Each change is sent once. It is done when reading shows it; where the controller does it at the next reset of the
machine, that is the answer, and nobody waits. After a lost answer the controller is looked at, and nothing is sent
again: a second request for a volume would make another one of what is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.raid_plan import Make, Spare, is_size
from drivers.redfish.answer import Answer
from drivers.redfish.boot import patch_when_ready, unproven
from drivers.redfish.document import (
    Document,
    action,
    allowed_values,
    link,
    link_target,
    links,
    members,
    next_page,
    same_path,
    text,
)
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.raid_reading import Shelf, level_of, names_of, volume_of
from drivers.redfish.raid_request import (
    APPLY_TIME,
    VolumeRequest,
    apply_time,
    is_about,
    name_property,
    request_faults,
)
from drivers.redfish.raid_storage import capabilities_path
from drivers.redfish.tasks import Ending, Outcome, follow_task
from drivers.redfish.walking import read_pages
from drivers.redfish.watching import comes_true
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.raid import RaidVolume, SpareKind

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["Change", "Controller"]

_SEEN_SECONDS = 180.0
"""How long a finished change may take to be seen: controllers tell their BMC of it late."""
_DOUBT_SECONDS = 60.0
"""How long a change is looked for that was answered with a server error."""
_REFUSED_SECONDS = 180.0
"""How long a controller is asked again that is not ready: it ends the job before."""
_LONGEST_PAUSE = 15.0
_MOST_VOLUMES = 2000


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one change. `staged`: it waits for a reset of the machine, and nothing shows it yet."""

    task: str | None = None
    staged: bool = False
    volume: RaidVolume | None = None


class Controller:
    """One controller that is being changed."""

    def __init__(self, connection: RedfishConnection, shelf: Shelf, call: Call) -> None:
        self._connection = connection
        self._shelf = shelf
        self._call = call
        self._capabilities: Document | None = None
        self._asked_capabilities = False

    # Making

    async def create(self, make: Make) -> Change:
        """Makes a volume. Raises OperationError: INVALID_ARGUMENT (what the controller is known to refuse, before
        anything is sent), the BMC's refusal, NOT_APPLIED, OUTCOME_UNKNOWN (no answer, and no such volume is seen)."""
        call, shelf = self._call, self._shelf
        collection = await self._connection.get(shelf.volumes_path, call)
        before = await self._volume_paths(collection)
        capabilities = await self._what_is_known(collection)
        faults = request_faults(make, capabilities)
        if faults:
            raise OperationError(ErrorCode.INVALID_ARGUMENT, f"{shelf.id}: {'; '.join(map(str, faults))}")
        drives = [shelf.drive_paths[name] for name in make.drives]
        request = VolumeRequest(make, drives, apply_time(collection), name_property(capabilities))
        call.progress(f"making {make.title} on {shelf.id}", None)
        made: tuple[str, Document] | None = None

        async def is_there() -> bool:
            nonlocal made
            made = made or await self._new_volume(before, make)
            return made is not None

        answer = await self._post(request, is_there)
        ending = await self._end(answer, f"the volume {make.title}", at_once=request.at_once)
        if ending.outcome is Outcome.STAGED:
            return Change(ending.path, staged=True)
        if not await comes_true(is_there, call, _SEEN_SECONDS) or made is None:
            raise unproven(
                answer,
                f"the order to make {make.title} on {shelf.id}",
                f"no new volume is seen on {', '.join(make.drives)}; it may still be under way as a task",
                ending.words,
            )
        return Change(ending.path, volume=self._proven(made, make, ending))

    async def _post(
        self, request: VolumeRequest, is_there: Callable[[], Awaitable[bool]]
    ) -> Answer | NoAnswer | None:
        """Sends the request in the form that this BMC takes. None where a refusal turned out to be none."""
        path = self._shelf.volumes_path
        while True:
            try:
                return await self._when_ready(
                    lambda: self._connection.order(path, request.body, self._call, look=path), is_there
                )
            except NoAnswer as lost:
                return lost
            except Refused as refused:
                if not refused.certainly_not_done:
                    if await comes_true(is_there, self._call, _DOUBT_SECONDS):
                        return None
                    raise
                if refused.status not in (400, 422) or not request.after_refusal(refused.notes):
                    raise

    async def _new_volume(self, before: list[str], make: Make) -> tuple[str, Document] | None:
        """The volume that is there now and was not before, on the drives of the request."""
        wanted = {self._shelf.drive_paths[name].rstrip("/").lower() for name in make.drives}
        for path in await self._volume_paths():
            if any(same_path(path, old) for old in before):
                continue
            document = await self._connection.find(path, self._call)
            drives = {drive.rstrip("/").lower() for drive in links(document, "Links", "Drives")}
            if document is None:
                continue
            # A service that tells no drives of a volume tells its level at least.
            if drives == wanted or (not drives and level_of(document) is make.level):
                return path, document
        return None

    def _proven(self, made: tuple[str, Document], make: Make, ending: Ending) -> RaidVolume:
        path, document = made
        ids = [(at, name) for name, at in self._shelf.drive_paths.items()]
        volume = volume_of(path, document, self._shelf.id, ids)
        differs = []
        if volume.level is not None and volume.level is not make.level:
            differs.append(f"is a {volume.level} and not a {make.level}")
        if not is_size(volume.size_bytes, make.size_bytes):
            differs.append(f"has {volume.size_bytes} bytes and not {make.size_bytes}")
        if make.name is not None and make.name not in names_of(document):
            differs.append(f"is named {volume.name} and not {make.name}")
        if differs:
            raise OperationError(
                ErrorCode.NOT_APPLIED,
                f"the volume {volume.id} of {self._shelf.id} was made, but {' and '.join(differs)}",
                bmc=ending.words,
            )
        self._shelf.volume_paths[volume.id] = path
        return volume

    async def _what_is_known(self, collection: Document) -> Document | None:
        """The capabilities of the volume collection, asked for once."""
        if not self._asked_capabilities:
            self._capabilities = await self._connection.find(capabilities_path(collection), self._call)
            self._asked_capabilities = True
        return self._capabilities

    # Deleting

    async def delete(self, name: str) -> Change:
        """Deletes a volume; one that is gone already is deleted. Raises OperationError: the BMC's refusal,
        NOT_APPLIED, OUTCOME_UNKNOWN (no answer, and the volume is still there)."""
        path = self._shelf.volume_paths[name]
        self._call.progress(f"deleting {name} of {self._shelf.id}", None)

        async def is_gone() -> bool:
            return not any(same_path(path, other) for other in await self._volume_paths())

        try:
            answer: Answer | NoAnswer | None = await self._send_delete(path, is_gone)
        except NoAnswer as lost:
            answer = lost
        except Refused as refused:
            doubtful = not refused.certainly_not_done or refused.status in (404, 410)
            if not (doubtful and await comes_true(is_gone, self._call, _DOUBT_SECONDS)):
                raise
            answer = None
        ending = await self._end(answer, f"the deletion of {name}", at_once=False)
        if ending.outcome is Outcome.STAGED:
            return Change(ending.path, staged=True)
        if not await comes_true(is_gone, self._call, _SEEN_SECONDS):
            raise unproven(
                answer, f"the order to delete {name} of {self._shelf.id}", "it is still listed", ending.words
            )
        return Change(ending.path)

    async def _send_delete(self, path: str, is_gone: Callable[[], Awaitable[bool]]) -> Answer | None:
        """Without a body: iDRAC from 6.00.02 refuses an apply time here. With one where the BMC misses it."""
        body: Document | None = None
        while True:
            try:
                return await self._when_ready(partial(self._act_once, "DELETE", path, body), is_gone)
            except Refused as refused:
                if body is not None or refused.status not in (400, 422):
                    raise
                if not any(is_about(note, APPLY_TIME) for note in refused.notes):
                    raise
                collection = await self._connection.get(self._shelf.volumes_path, self._call)
                body = {APPLY_TIME: apply_time(collection) or "Immediate"}

    # Spares

    async def set_aside(self, spare: Spare, volume: str | None) -> Change:
        """Makes a drive a hot spare: of the volume with this id, or of the whole controller.

        Raises OperationError: the BMC's refusal, NOT_APPLIED, OUTCOME_UNKNOWN.
        """
        path = self._shelf.drive_paths[spare.drive]
        self._call.progress(f"making {spare.drive} a {spare.kind} hot spare", None)
        if spare.kind is SpareKind.GLOBAL or volume is None:
            at, body = path, dict[str, object](HotspareType="Global")
        else:
            at = self._shelf.volume_paths[volume]
            present = links(await self._connection.get(at, self._call), "Links", "DedicatedSpareDrives")
            body = {"Links": {"DedicatedSpareDrives": [{"@odata.id": one} for one in [*present, path]]}}

        async def stands_by() -> bool:
            document = await self._connection.get(at, self._call)
            if spare.kind is SpareKind.GLOBAL:
                return text(document, "HotspareType") == "Global"
            return any(same_path(one, path) for one in links(document, "Links", "DedicatedSpareDrives"))

        answer: Answer | NoAnswer
        try:
            answer = await patch_when_ready(lambda: self._connection.patch(at, body, self._call), self._call)
        except NoAnswer as lost:
            answer = lost
        ending = await self._end(answer, f"the spare {spare.drive}", at_once=False)
        if ending.outcome is Outcome.STAGED:
            return Change(ending.path, staged=True)
        if not await comes_true(stands_by, self._call, _SEEN_SECONDS):
            raise unproven(answer, f"the order to set {spare.drive} aside", "it does not stand by", ending.words)
        return Change(ending.path)

    # Clearing

    async def clear_by_reset(self) -> Change | None:
        """Has the controller forget its volumes, spares and foreign configurations, by the standard's action or the
        maker's; None where neither is offered, and nothing was sent."""
        wanted = await self._resets()
        if not wanted:
            return None
        names = [volume.id for volume in self._shelf.volumes if not volume.raw]
        paths = [self._shelf.volume_paths[name] for name in names]

        async def is_clear() -> bool:
            present = await self._volume_paths()
            return not any(same_path(path, other) for path in paths for other in present)

        change = Change()
        for target, body in wanted:
            self._call.progress(f"clearing {self._shelf.id}", None)
            answer: Answer | NoAnswer
            try:
                answer = await self._connection.order(target, body, self._call, look=self._shelf.volumes_path)
            except NoAnswer as lost:
                answer = lost
            except Refused as refused:
                if refused.certainly_not_done:
                    raise
                answer = refused.as_lost()
            ending = await self._end(answer, f"clearing {self._shelf.id}", at_once=False)
            change = Change(ending.path, staged=ending.outcome is Outcome.STAGED)
            if change.staged:
                return change
        if not await comes_true(is_clear, self._call, _SEEN_SECONDS):
            raise unproven(answer, f"the order to clear {self._shelf.id}", "it still has volumes", ending.words)
        return change

    async def _resets(self) -> list[tuple[str, Document]]:
        """The orders that clear this controller, each with its target."""
        offered = action(self._shelf.storage, "Storage.ResetToDefaults")
        if offered is not None:
            kinds = allowed_values(offered, "ResetType")
            if not kinds or "ResetAll" in kinds:
                return [(link_target(offered) or "", {"ResetType": "ResetAll"})]
        maker = self._connection.service.manners.raid_service
        if maker is None:
            return []
        system = await self._connection.service.system(self._call)
        service = await self._connection.find(link(system, *maker.where), self._call)
        names = [maker.clear_foreign] if any(drive.state == "foreign" for drive in self._shelf.drives) else []
        if any(not volume.raw for volume in self._shelf.volumes) or any(drive.spare for drive in self._shelf.drives):
            names.append(maker.reset)
        orders = [action(service, name) for name in names]
        if any(order is None for order in orders):
            return []
        return [
            (link_target(order) or "", {maker.parameter: self._shelf.id}) for order in orders if order is not None
        ]

    # What all of them share

    async def _end(self, answer: Answer | NoAnswer | None, what: str, *, at_once: bool) -> Ending:
        """The end of the change's task. Raises OperationError BMC_ERROR with the BMC's words for one that failed."""
        if not isinstance(answer, Answer):
            return Ending(Outcome.UNKNOWN)
        ending = await follow_task(self._connection, answer, self._call, staged_ends=not at_once)
        if ending.outcome is Outcome.FAILED:
            raise OperationError(
                ErrorCode.BMC_ERROR,
                f"{what} failed on {self._shelf.id}: its task {ending.path} ended without doing it",
                bmc=ending.words,
                details={"task": ending.path},
            )
        return ending

    async def _when_ready(
        self, send: Callable[[], Awaitable[Answer]], is_done: Callable[[], Awaitable[bool]]
    ) -> Answer | None:
        """Sends; again in a while where the BMC said for certain that it did nothing because it was not ready. None
        where a look between finds it done."""
        waited, pause = 0.0, 2.0
        while True:
            try:
                return await send()
            except Refused as refused:
                seconds = refused.wait if refused.wait is not None else pause
                final = refused.status == 401 or not (refused.transient and refused.certainly_not_done)
                if final or waited + seconds > _REFUSED_SECONDS or seconds >= self._call.remaining:
                    raise
                self._call.progress(f"{self._shelf.id} is not ready yet: {refused.message}", None)
            await self._call.sleep(seconds, f"{self._shelf.id} was not ready for the change")
            if await is_done():
                return None
            waited, pause = waited + seconds, min(pause * 1.5, _LONGEST_PAUSE)

    async def _act_once(self, method: str, path: str, body: Document | None) -> Answer:
        """Sent again, once, where the session had ended: that refusal proves that it was not done."""
        try:
            return await self._connection.act(method, path, body, self._call)
        except Refused as refused:
            if refused.status != 401:
                raise
        await self._connection.read(self._shelf.volumes_path, self._call)
        return await self._connection.act(method, path, body, self._call)

    async def _volume_paths(self, collection: Document | None = None) -> list[str]:
        """The volumes that are listed now; `collection` where it was just read."""
        path = self._shelf.volumes_path
        page = await self._connection.get(path, self._call) if collection is None else collection
        following = next_page(page)
        rest = await read_pages(self._connection, following, self._call, _MOST_VOLUMES) if following else []
        return [*members(page), *(at for item in rest if (at := link(item)) is not None)]
