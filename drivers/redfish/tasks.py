"""What became of a change that a BMC took as a task (HTTP 202): its own words where it failed.

The Task is read and not its monitor: reading a monitor ends the task on Lenovo XCC (metal-toolbox/bmclib).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish import messages
from drivers.redfish.document import Document, dig, link, path_of, text
from drivers.redfish.failures import NoAnswer
from drivers.redfish.transport import Answer
from drivers.redfish.watching import comes_true
from protocol.errors import BmcMessage, OperationError

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["ending_of_task", "has_ended", "has_failed", "task_path", "words_about", "words_of_task"]

_FAILED = frozenset({"exception", "killed", "cancelled"})
_ENDED = _FAILED | {"completed"}
_ENDS_SECONDS = 30.0


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
    listed = dig(task, "Messages")
    said = listed if isinstance(listed, list) else []
    critical = any((text(item, "Severity") or "").lower() == "critical" for item in said)
    return state in _FAILED or status == "critical" or (state == "completed" and critical)


def has_ended(task: Document) -> bool:
    return (text(task, "TaskState") or "").lower() in _ENDED


async def ending_of_task(
    connection: RedfishConnection, answer: Answer | NoAnswer | None, call: Call
) -> tuple[bool, list[BmcMessage]]:
    """The same once the task has ended, or after half a minute: for acts whose effect no reading shows."""
    path = task_path(answer)
    if path is None:
        return False, []
    task: Document = {}

    async def is_over() -> bool:
        nonlocal task
        found = await connection.find(path, call)
        task = task if found is None else found
        return found is None or has_ended(found)

    with contextlib.suppress(OperationError):
        await comes_true(is_over, call, _ENDS_SECONDS)
    return has_failed(task), messages.bmc_messages(messages.notes_of(task))


async def words_about(
    connection: RedfishConnection, answer: Answer | NoAnswer | None, call: Call
) -> list[BmcMessage]:
    """What a BMC said of a change that it took and did not do: in the change's task, or in its answer."""
    words = (await words_of_task(connection, answer, call))[1]
    if not words and isinstance(answer, Answer):
        words = [said for said in messages.bmc_messages(messages.notes_of(answer.said())) if not _is_assent(said)]
    return words


def _is_assent(said: BmcMessage) -> bool:
    return said.id.rpartition(".")[2] in ("Success", "NoOperation", "Created")


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
