"""One firmware update: given to the BMC exactly once, followed to its end, proven by reading the version."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

from drivers.driver import Call
from drivers.firmware_components import show
from drivers.redfish.answer import Answer
from drivers.redfish.document import Document, link, members, same_path, text
from drivers.redfish.failures import Refused
from drivers.redfish.firmware_delivery import Delivery, Order
from drivers.redfish.firmware_inventory import read_inventory
from drivers.redfish.firmware_settling import Settling
from drivers.redfish.firmware_verdict import Seen, Verdict, judge, says_reset_is_owed
from drivers.redfish.messages import bmc_messages
from drivers.redfish.task_view import Stage, TaskView
from drivers.redfish.tasks import Ending, Outcome, follow_task
from drivers.redfish.update_service import Progress, UpdateService
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.firmware import FirmwareComponent, UpdateOutcome

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["Update"]

_SEARCH_SECONDS = 60.0
"""How long a task is looked for whose start had no answer."""
_STATE_PAUSE = 5.0
_BEGINS_SECONDS = 30.0
"""How long an update service may be idle after it took an update."""
_PATIENCE = {Outcome.DONE: 180.0, Outcome.GONE: 180.0, Outcome.UNKNOWN: 900.0}
"""How long an update that has ended, as far as its task says, may take to show its version while the BMC is there.
Without a task nothing says when it has ended: flashing takes up to a quarter of an hour."""
_PATIENCE_UNSAID = 60.0
"""The same after a task that says it is done, where no version is expected."""
_PATIENCE_REFUSED = 120.0
"""The same after a server error with words: mostly a refusal, but some BMCs say it and carry on."""


class Update:
    """One order on its way."""

    def __init__(
        self,
        connection: RedfishConnection,
        order: Order,
        service: UpdateService,
        before: Sequence[FirmwareComponent],
        call: Call,
    ) -> None:
        self._connection = connection
        self._order = order
        self._service = service
        self._before = before
        self._call = call
        self._has_system = connection.service.system_path is not None

    async def run(self) -> UpdateOutcome:
        """Raises OperationError with the BMC's own words: BMC_ERROR and the refusals (not done), NOT_APPLIED (it said
        yes, the version says no), TIMEOUT, OUTCOME_UNKNOWN (the order's answer was lost, and no reading tells)."""
        delivery = Delivery(self._connection, self._order, self._service, self._call)
        await delivery.check_free()
        known_tasks = await self._task_paths()
        async with delivery.ready():
            given = await delivery.give()
            lost = given if isinstance(given, OperationError) else None
            answer = await self._search(known_tasks) if isinstance(given, OperationError) else given
            self._call.progress("the BMC has the update", None)
            ending = await follow_task(self._connection, answer, self._call)
            if ending.outcome is Outcome.UNKNOWN:
                ending = await self._follow_state(ending, self._service.progress)
            elif ending.outcome is Outcome.GONE:
                ending = await self._look_at_job(ending)
            return await self._conclude(ending, lost)

    async def _task_paths(self) -> list[str] | None:
        """The tasks that are there before; None where there is no list of them."""
        connection, call = self._connection, self._call
        service = await connection.find(link(await connection.root(call), "Tasks"), call)
        collection = await connection.find(link(service, "Tasks"), call)
        return None if collection is None else members(collection)

    async def _search(self, known: list[str] | None) -> Answer | None:
        """The task of an order whose answer was lost: one that is new and is about this update. Only reads."""
        if known is None:
            return None
        targets = [self._service.simple_target, self._service.multipart_path, self._service.push_path]
        clock = asyncio.get_running_loop().time
        until = min(clock() + _SEARCH_SECONDS, self._call.deadline - _STATE_PAUSE)
        while True:
            with contextlib.suppress(OperationError):
                fresh = [path for path in await self._task_paths() or [] if not _is_in(path, known)]
                tasks = {path: await self._connection.find(path, self._call) for path in fresh}
                named = [path for path, task in tasks.items() if _is_about(task, targets)]
                unnamed = [path for path, task in tasks.items() if task and not text(task, "Payload", "TargetUri")]
                for path in (named or unnamed)[:1]:
                    return _as_answer(self._service.path, path)
            if clock() >= until:
                return None
            await asyncio.sleep(_STATE_PAUSE)

    async def _follow_state(self, ending: Ending, before: Progress | None) -> Ending:
        """An answer without a task: the service itself may say how far it is (HPE iLO before 2.30)."""
        if not self._service.manners.update_state:
            return ending
        clock = asyncio.get_running_loop().time
        begins_by, at_work = clock() + _BEGINS_SECONDS, False
        while self._call.remaining > _STATE_PAUSE * 2:
            document = await self._connection.find(self._service.path, self._call)
            progress = replace(self._service, document=document).progress if document is not None else None
            # How the update before this one has ended stays there until this one begins.
            fresh = progress is not None and (at_work or progress != before)
            if progress is not None and fresh and progress.has_failed:
                return Ending(Outcome.FAILED, None, bmc_messages(progress.words))
            if progress is not None and progress.is_working:
                at_work = True
                self._call.progress(f"the BMC is {progress.state.lower()}", progress.percent)
            elif progress is not None and fresh and (at_work or progress.state.lower() == "complete"):
                return Ending(Outcome.DONE, None, bmc_messages(progress.words))
            elif clock() >= begins_by and progress is not None:
                return ending
            await asyncio.sleep(_STATE_PAUSE)
        return ending

    async def _look_at_job(self, ending: Ending) -> Ending:
        """Dell's job outlives its task: it says whether the update waits for a reset (cases B42)."""
        keys, path = self._service.manners.jobs, ending.path
        if not keys or path is None:
            return ending
        with contextlib.suppress(OperationError):
            manager = await self._connection.service.manager(self._call)
            jobs = link(manager, *keys)
            name = path.rstrip("/").rpartition("/")[2]
            job = await self._connection.find(f"{jobs.rstrip('/')}/{name}", self._call) if jobs else None
            if job is not None:
                view = TaskView.of(job)
                found = {Stage.SCHEDULED: Outcome.STAGED, Stage.FAILED: Outcome.FAILED, Stage.DONE: Outcome.DONE}
                return Ending(found.get(view.stage, Outcome.GONE), path, view.words or ending.words, view.percent)
        return ending

    async def _conclude(self, ending: Ending, lost: OperationError | None) -> UpdateOutcome:
        if ending.outcome is Outcome.FAILED:
            raise self._error(ErrorCode.BMC_ERROR, "the BMC's update has failed", ending)
        if ending.outcome is Outcome.STAGED:
            return await self._staged(ending)
        patience = _PATIENCE[ending.outcome]
        if self._order.expected is None and ending.outcome is Outcome.DONE:
            patience = _PATIENCE_UNSAID
        if isinstance(lost, Refused) and lost.notes:
            patience = min(patience, _PATIENCE_REFUSED)
        if says_reset_is_owed(ending.words):
            patience = min(patience, _PATIENCE_UNSAID)
        try:
            verdict = await self._settling().wait(patience)
        except OperationError as error:
            error.details = {**error.details, "task": ending.path}
            raise
        if verdict.seen is Seen.REACHED:
            return self._outcome(verdict, ending)
        if verdict.seen is Seen.STAGED or (verdict.seen is Seen.SAME and says_reset_is_owed(ending.words)):
            return self._outcome(verdict, ending, reset_owed=True)
        if self._order.expected is None and ending.outcome is Outcome.DONE:
            # It is told as done, and nothing was said of what to look for.
            return self._outcome(verdict, ending)
        raise self._not_seen(verdict, ending, lost)

    async def _staged(self, ending: Ending) -> UpdateOutcome:
        """It waits for a reset: the versions are those that run until then."""
        now: Sequence[FirmwareComponent] = self._before
        with contextlib.suppress(OperationError):
            document = await self._connection.find(self._service.path, self._call)
            now = await read_inventory(self._connection, document, self._call)
        verdict = judge(self._before, now, self._order.targets, self._order.expected)
        return self._outcome(verdict, ending, reset_owed=True)

    def _not_seen(self, verdict: Verdict, ending: Ending, lost: OperationError | None) -> OperationError:
        expected = self._order.expected
        runs = f"what runs is {show(verdict.after)}" if verdict.after else "no version has changed"
        wanted = "" if expected is None else f", not {expected}" if verdict.after else f" ({expected} was expected)"
        if lost is not None:
            unknown = self._error(
                ErrorCode.OUTCOME_UNKNOWN,
                f"the update was sent once and had no answer ({lost.message}); {runs}{wanted}. It may still be at "
                "work: read the versions before repeating it",
                ending,
                verdict,
            )
            unknown.bmc = unknown.bmc or lost.bmc
            return unknown
        if ending.outcome is Outcome.UNKNOWN:
            return self._error(
                ErrorCode.OUTCOME_UNKNOWN,
                f"the BMC took the update and named no task; {runs}{wanted}. It may still be at work, or wait for a "
                "reset: read the versions before repeating it",
                ending,
                verdict,
            )
        if expected is None:
            return self._error(
                ErrorCode.OUTCOME_UNKNOWN,
                f"the BMC keeps the update's task no more, and {runs}. It may wait for a reset: read the versions "
                "before repeating it",
                ending,
                verdict,
            )
        said = "says that the update is done" if ending.outcome is Outcome.DONE else "keeps its task no more"
        return self._error(
            ErrorCode.NOT_APPLIED,
            f"the BMC {said}, but {runs}{wanted}. Firmware of the host may still wait for a reset of the host",
            ending,
            verdict,
        )

    def _error(self, code: ErrorCode, message: str, ending: Ending, verdict: Verdict | None = None) -> OperationError:
        details: dict[str, object] = {"task": ending.path, "transport": self._order.transport.value}
        if verdict is not None:
            details |= {"before": verdict.before, "after": verdict.after}
        return OperationError(code, f"{self._order.image.shown}: {message}", bmc=ending.words, details=details)

    def _outcome(self, verdict: Verdict, ending: Ending, *, reset_owed: bool = False) -> UpdateOutcome:
        return UpdateOutcome(
            image=self._order.image.shown,
            before=verdict.before,
            after=verdict.after,
            task=ending.path,
            reset_owed=reset_owed,
            transport=self._order.transport,
        )

    def _settling(self) -> Settling:
        return Settling(
            self._connection,
            self._before,
            self._order.targets,
            self._order.expected,
            self._call,
            has_system=self._has_system,
        )


def _is_in(path: str, listed: Sequence[str]) -> bool:
    return any(same_path(path, other) for other in listed)


def _is_about(task: Document | None, targets: Sequence[str | None]) -> bool:
    target = text(task, "Payload", "TargetUri")
    return target is not None and any(other is not None and same_path(target, other) for other in targets)


def _as_answer(path: str, task: str) -> Answer:
    """The answer that was lost, as far as it matters: it would have named this task."""
    headers: CIMultiDict[str] = CIMultiDict()
    return Answer("POST", path, 202, CIMultiDictProxy(headers), msgspec.json.encode({"@odata.id": task}))
