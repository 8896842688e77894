"""Reading one task or job as a BMC shows it: how far it is, whether it waits for a reset, and what it says.

Task and Job are two schemas for one thing (DSP2046); Dell shows its own job a third way, or inside a task's `Oem`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from drivers.redfish import messages
from drivers.redfish.document import Document, dig, number, text
from protocol.errors import BmcMessage

__all__ = ["Stage", "TaskView", "is_task"]


class Stage(Enum):
    """Where a task is. Whatever is not known to be an end is none: vendors have states of their own."""

    WAITING = "waiting"
    """It has not begun, and says neither when nor why."""
    SCHEDULED = "scheduled"
    """It waits for a reset, or for its time."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


_STAGES = {
    "new": Stage.WAITING,
    "pending": Stage.WAITING,
    "waiting": Stage.WAITING,
    "readyforexecution": Stage.WAITING,
    "scheduled": Stage.SCHEDULED,
    "rebootpending": Stage.SCHEDULED,
    "completed": Stage.DONE,
    "rebootcompleted": Stage.DONE,
    "exception": Stage.FAILED,
    "killed": Stage.FAILED,
    "cancelled": Stage.FAILED,
    "failed": Stage.FAILED,
    "completedwitherrors": Stage.FAILED,
    "invalid": Stage.FAILED,
    "rebootfailed": Stage.FAILED,
}
_SCHEDULED_WORDS = re.compile(r"\bJCP001$|successfully scheduled", re.IGNORECASE)
"""Dell: a job that waits for a reset says so under TaskState Starting or New too."""
_TYPE = re.compile(r"#?(Task|Job|DellJob)\.")


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task as one reading showed it."""

    stage: Stage
    state: str
    """The BMC's own name of the state; empty where it gives none."""
    percent: int | None = None
    words: list[BmcMessage] = field(default_factory=list)

    @property
    def says(self) -> str:
        """One line about it for an operator: its last message, else its state."""
        return next((word.text for word in reversed(self.words) if word.text), self.state)

    @classmethod
    def of(cls, document: Document) -> "TaskView":
        state = _job_state(document) or text(document, "TaskState") or ""
        words = list(_words(document))
        return cls(_stage(document, state, words), state, _percent(document), words)


def is_task(document: object) -> bool:
    """Whether a document is a task or a job, by its type or its state."""
    kind = text(document, "@odata.type") or ""
    return bool(_TYPE.match(kind)) or bool(text(document, "TaskState") or text(document, "JobState"))


def _stage(document: Document, state: str, words: list[BmcMessage]) -> Stage:
    stages = {_STAGES.get(name.lower()) for name in (state, text(document, "TaskState") or "")}
    stage = _STAGES.get(state.lower(), Stage.RUNNING)
    if Stage.FAILED in stages or any(_lower(document, key) == "critical" for key in ("TaskStatus", "JobStatus")):
        return Stage.FAILED
    if stage is Stage.DONE and _has_critical_message(document):
        # OpenStack Ironic's notes on RAID and BIOS: Dell and AMI end in "Completed" and say there why it is not so.
        return Stage.FAILED
    if stage is not Stage.DONE and words and _SCHEDULED_WORDS.search(f"{words[-1].text}\n{words[-1].id}"):
        return Stage.SCHEDULED
    return stage


def _has_critical_message(document: Document) -> bool:
    listed = dig(document, "Messages")
    return any(
        _lower(message, key) == "critical"
        for message in (listed if isinstance(listed, list) else [listed])
        for key in ("Severity", "MessageSeverity")
    )


def _job_state(document: Document) -> str | None:
    return text(document, "JobState") or next((text(part, "JobState") for part in _oem(document, "JobState")), None)


def _percent(document: Document) -> int | None:
    found = number(document, "PercentComplete")
    if found is None:
        found = next((number(part, "PercentComplete") for part in _oem(document, "PercentComplete")), None)
    return None if found is None else int(min(100.0, max(0.0, found)))


def _words(document: Document) -> Iterator[BmcMessage]:
    yield from messages.bmc_messages(messages.notes_of(document))
    for part in ({} if "Messages" in document else document, *_oem(document, "Message")):
        identifier, words = text(part, "MessageId") or "", text(part, "Message") or ""
        if (identifier or words) and not dig(document, "Messages"):
            yield BmcMessage(identifier[:200], words[:500])


def _oem(document: Document, key: str) -> Iterator[Document]:
    """The parts of `Oem` that hold `key`, whatever the vendor."""
    found = dig(document, "Oem")
    for part in found.values() if isinstance(found, dict) else ():
        if isinstance(part, dict) and key in part:
            yield part


def _lower(document: object, key: str) -> str:
    return (text(document, key) or "").lower()
