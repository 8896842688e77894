"""What became of a change that a BMC took as a task (HTTP 202): its own words where it failed.

The Task is read and not its monitor: reading a monitor ends the task on Lenovo XCC (metal-toolbox/bmclib).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish import messages
from drivers.redfish.document import Document, link, path_of, text
from drivers.redfish.failures import NoAnswer
from drivers.redfish.transport import Answer
from protocol.errors import BmcMessage, OperationError

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["has_failed", "task_path", "words_of_task"]

_FAILED = frozenset({"exception", "killed", "cancelled", "interrupted"})


def task_path(answer: Answer | NoAnswer | None) -> str | None:
    """The task that an answer names, in its body or in `Location`; None for an answer that is no task."""
    if not isinstance(answer, Answer) or answer.status != 202:
        return None
    body = answer.said()
    if isinstance(body, dict) and link(body) is not None:
        return link(body)
    location = answer.headers.get("Location") or ""
    return path_of(location) if location.strip() and "monitor" not in location.lower() else None


def has_failed(task: Document) -> bool:
    """Whether the task ended without doing its work; a "Completed" with a critical message is a failure too."""
    state, status = (text(task, "TaskState") or "").lower(), (text(task, "TaskStatus") or "").lower()
    return state in _FAILED or status == "critical"


async def words_of_task(
    connection: RedfishConnection, answer: Answer | NoAnswer | None, call: Call
) -> tuple[bool, list[BmcMessage]]:
    """Whether the task of an answer has failed, and what it says."""
    path = task_path(answer)
    if path is None:
        return False, []
    try:
        task = await connection.find(path, call)
    except OperationError:
        return False, []
    if task is None:
        return False, []
    return has_failed(task), messages.bmc_messages(messages.notes_of(task))
