"""Reading the virtual media slots of system and managers: each collection in one request where the BMC can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish.document import Document, link
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.media_slots import Slot, slot_of, without_mirrors
from drivers.redfish.walking import is_whole, read_listing
from protocol.errors import ErrorCode, OperationError

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["read_slot", "read_slots", "with_their_ways"]

_MOST_SLOTS = 200
_SLOT_SECONDS = 30.0


async def read_slots(
    connection: RedfishConnection,
    call: Call,
    *,
    patience: float = 0,
    holders: Sequence[Document | None] | None = None,
) -> tuple[list[Slot], OperationError | None]:
    """The slots of the system, then those of each manager that manages it, and why one of them could not be seen.

    A slot that cannot be read is left out. With `patience`, in seconds, a BMC that is busy is waited for; where it
    stays so, that is what is handed back. `holders`: system and managers where they were read already.
    """
    return await _Round(connection, call, patience).read(holders)


async def read_slot(connection: RedfishConnection, path: str, call: Call, patience: float = _SLOT_SECONDS) -> Slot:
    """One slot by itself, so that its `Allow` header tells how it takes an image. Raises Refused."""
    answer = await connection.read(path, call, patience=patience)
    allow = answer.headers.getall("Allow", ())
    return slot_of(path, connection.document_of(answer), allow, connection.service.manners)


async def with_their_ways(
    connection: RedfishConnection, slots: list[Slot], call: Call, *, patience: float = 0
) -> list[Slot]:
    """The same slots; those that came with their collection and have no action are read once more by themselves."""
    told = []
    for slot in slots:
        try:
            told.append(slot if slot.tells_way else await read_slot(connection, slot.path, call, patience))
        except (Refused, NoAnswer):
            told.append(slot)
    return told


class _Round:
    """One look at all slots."""

    def __init__(self, connection: RedfishConnection, call: Call, patience: float) -> None:
        self._connection = connection
        self._call = call
        self._patience = patience
        self._unread: OperationError | None = None

    async def read(self, holders: Sequence[Document | None] | None) -> tuple[list[Slot], OperationError | None]:
        if holders is None:
            service = self._connection.service
            system = await service.system(self._call)
            managers = [await self._manager(path) for path in await service.managers(self._call, system)]
            holders = [system, *managers]
        found: list[list[Slot]] = []
        seen: set[str] = set()
        names: list[set[str]] = []
        for collection in (link(holder, "VirtualMedia") for holder in holders):
            if collection is None or collection.rstrip("/").lower() in seen:
                continue
            seen.add(collection.rstrip("/").lower())
            listed = await self._listed(collection)
            own = {_name(item) for item in listed}
            if own in names and not any(map(is_whole, listed)):
                # Only a mirror (see `without_mirrors`): its members need not be read.
                continue
            names.append(own)
            found.append([slot for item in listed if (slot := await self._slot(item)) is not None])
        return without_mirrors(found), self._unread

    async def _manager(self, path: str) -> Document | None:
        try:
            if self._patience:
                return await self._connection.find_patiently(path, self._call)
            return await self._connection.find(path, self._call)
        except Refused as refused:
            self._unread = refused
            return None

    async def _listed(self, collection: str) -> list[Document]:
        try:
            return await read_listing(self._connection, collection, self._call, _MOST_SLOTS, patience=self._patience)
        except Refused as refused:
            if self._patience and refused.code is ErrorCode.BUSY:
                self._unread = refused
        except NoAnswer:
            if self._patience:
                raise
        except OperationError as error:
            if error.code is not ErrorCode.BMC_ERROR:
                raise
        return []

    async def _slot(self, item: Document) -> Slot | None:
        path = link(item)
        if path is None:
            return None
        if is_whole(item):
            return slot_of(path, item, None, self._connection.service.manners)
        try:
            return await read_slot(self._connection, path, self._call, self._patience)
        except NoAnswer:
            if self._patience:
                raise
        except OperationError as error:
            if error.code is ErrorCode.BUSY:
                self._unread = error
            elif not isinstance(error, Refused) and error.code is not ErrorCode.BMC_ERROR:
                raise
        return None


def _name(item: Document) -> str:
    return (link(item) or "").rstrip("/").rpartition("/")[2].lower()
