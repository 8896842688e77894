"""A change of a controller that is still under way, or waits for a reset: another one must not be sent on top.

A volume that is being made is in no list yet. An agent that was restarted, or an operator who asks again before the
reset that is owed, would have it made twice, or meet a controller that takes one job at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish.document import Document, link, members, text
from drivers.redfish.raid_reading import Shelf
from drivers.redfish.task_view import Stage, TaskView

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["Pending", "is_of", "pending_change"]

_SEARCHED = 20
"""How many of the newest tasks are looked at."""
_SHORTEST_NAME = 4
"""A controller's id that is shorter is found in every text."""
_OPEN = frozenset({Stage.WAITING, Stage.SCHEDULED, Stage.RUNNING})


@dataclass(frozen=True, slots=True)
class Pending:
    """A task that has not ended."""

    path: str
    stage: Stage
    says: str

    @property
    def waits_for_reset(self) -> bool:
        return self.stage is not Stage.RUNNING


async def pending_change(connection: RedfishConnection, shelf: Shelf, call: Call) -> Pending | None:
    """The open task that is about this controller; None where there is none, or where none can be read."""
    service = await connection.find(link(await connection.root(call), "Tasks"), call)
    collection = await connection.find(link(service, "Tasks"), call)
    for path in reversed(members(collection)[-_SEARCHED:]):
        document = await connection.find(path, call)
        if document is None:
            continue
        view = TaskView.of(document)
        if view.stage in _OPEN and is_of(document, shelf):
            return Pending(path, view.stage, view.says)
    return None


def is_of(task: Document, shelf: Shelf) -> bool:
    """Whether a task is about the controller: by the address that was written to, else by the name that its maker
    puts into the task's (Dell: `Configure: RAID.Integrated.1-1`). Pure."""
    target = link(task, "Payload", "TargetUri")
    if target is not None:
        lowered = f"{target.rstrip('/').lower()}/"
        return any(lowered.startswith(f"{path.rstrip('/').lower()}/") for path in (shelf.path, shelf.volumes_path))
    name = text(task, "Name") or ""
    return len(shelf.id) >= _SHORTEST_NAME and shelf.id in name
