"""Tasks: work that outlives its request (DSP0266, Asynchronous operations; Task schema)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from simulators.redfish.documents import Answer, JsonObject, linked_path, path_key
from simulators.redfish.errors import Message, RedfishError, not_found, success_document
from simulators.redfish.machine import Machine
from simulators.redfish.routes import Call, Routes

DEFAULT_SERVICE = "/redfish/v1/TaskService"


class TaskState(StrEnum):
    """`Task.TaskState` of the Redfish schema, those that this engine uses."""

    NEW = "New"
    STARTING = "Starting"
    RUNNING = "Running"
    PENDING = "Pending"
    COMPLETED = "Completed"
    EXCEPTION = "Exception"
    CANCELLED = "Cancelled"


ENDED = {TaskState.COMPLETED, TaskState.EXCEPTION, TaskState.CANCELLED}
# The way of a task: the share of its time that has passed, the state it then has, and its per cent.
STAGES = (
    (0.0, TaskState.STARTING, 0),
    (0.1, TaskState.RUNNING, 10),
    (0.4, TaskState.RUNNING, 40),
    (0.7, TaskState.RUNNING, 70),
)


class TaskStaged(Exception):
    """Raised by the work of a task: it waits for the next start of a host, which does `work`."""

    def __init__(self, text: str, work: Callable[[], None]) -> None:
        super().__init__(text)
        self.work = work


class TaskFailed(Exception):
    """Raised by the work of a task: the task ends in Exception with this text, or with this message."""

    def __init__(self, text: str, message: Message | None = None) -> None:
        super().__init__(text)
        self.message = message or Message("GeneralError", text, "Critical")


class Cancellable(Protocol):
    def cancel(self) -> object: ...


@dataclass(slots=True)
class RunningTask:
    path: str
    monitor: str
    work: Callable[[], None]
    state: TaskState = TaskState.NEW
    scheduled: list[Cancellable] = field(default_factory=list)
    """What goes on for it, and stops when it is cancelled."""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


class TaskEngine:
    """Starts tasks, moves them along the timeline, and answers for their monitors."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        service = linked_path(machine.store.tree.root, "Tasks") or DEFAULT_SERVICE
        self.service = service.rstrip("/")
        self.collection = (linked_path(machine.store.document(service), "Tasks") or f"{self.service}/Tasks").rstrip(
            "/"
        )
        self.running: dict[str, RunningTask] = {}
        self.staged: list[RunningTask] = []
        machine.at_host_start.append(self._host_starts)

    def register(self, routes: Routes) -> None:
        routes.deletions["Task"] = self.cancel

    def start(self, name: str, work: Callable[[], None], seconds: float | None = None) -> Answer:
        """Starts a task that does `work` at its end: 202 with the monitor in Location and the task as body."""
        task = self._create(name, work)
        total = self.machine.options.task_seconds if seconds is None else seconds
        self._run(task, total)
        return self._accepted(task, max(1, round(total / 10)) if total > 0 else None)

    def schedule(self, name: str) -> tuple[Answer, RunningTask]:
        """A task that waits until `run` is called: for what is to happen with the next start of the host.

        The message is Dell's (JCP001); the state is what iDRAC shows with it.
        """
        task = self._create(name, lambda: None)
        self._show(
            task, TaskState.STARTING, 0, "OK", Message("IDRAC.2.8.JCP001", "Task successfully scheduled.", "OK")
        )
        return self._accepted(task, None), task

    def begin(self, name: str) -> tuple[Answer, RunningTask]:
        """A task whose work goes on elsewhere, for as long as it takes: it runs until `run` ends it."""
        task = self._create(name, lambda: None)
        self._show(task, TaskState.RUNNING, 0, "OK")
        return self._accepted(task, 1), task

    def progress(self, task: RunningTask, percent: int) -> None:
        """How far the work is that goes on elsewhere."""
        if not task.has_ended:
            self._show(task, TaskState.RUNNING, percent, "OK")

    def fail(self, task: RunningTask, failure: TaskFailed) -> None:
        """Ends a task at once, whose work went on elsewhere."""

        def work() -> None:
            raise failure

        if not task.has_ended:
            task.work = work
            self._finish(task)

    def run(self, task: RunningTask, work: Callable[[], None]) -> None:
        """Runs a task that was scheduled; it does `work` at its end. One that was cancelled stays so."""
        if not task.has_ended:
            task.work = work
            self._run(task, self.machine.options.task_seconds)

    def _create(self, name: str, work: Callable[[], None]) -> RunningTask:
        number = self.machine.store.free_id(self.collection)
        task = RunningTask(f"{self.collection}/{number}", f"{self.service}/TaskMonitors/{number}", work)
        document: JsonObject = {
            "@odata.type": "#Task.v1_7_4.Task",
            "@odata.id": task.path,
            "Id": number,
            "Name": name,
            "TaskState": TaskState.NEW.value,
            "TaskStatus": "OK",
            "PercentComplete": 0,
            "StartTime": timestamp(),
            "TaskMonitor": task.monitor,
            "Messages": [],
        }
        if self.machine.store.find(self.collection) is not None:
            self.machine.store.add_member(self.collection, document)
        else:
            self.machine.store.put(task.path, document)
        self.running[path_key(task.monitor)] = task
        return task

    def _run(self, task: RunningTask, total: float) -> None:
        # One that ran already while its work went on elsewhere does not go back.
        for share, state, percent in STAGES[1:] if task.state is TaskState.RUNNING else STAGES:
            self._at(task, share * total, state, percent)
        task.scheduled.append(self.machine.timeline.after(total, lambda: self._finish(task)))

    def _accepted(self, task: RunningTask, retry_after: int | None) -> Answer:
        headers = {"Location": task.monitor, "OData-Version": "4.0"}
        if retry_after is not None:
            headers["Retry-After"] = str(retry_after)
        return Answer.of(202, self.machine.store.document(task.path), headers)

    def monitor(self, path: str) -> Answer | None:
        """The answer of a task monitor: 202 while the task runs, then its result; None for other paths."""
        task = self.running.get(path_key(path))
        if task is None:
            return None
        if task.state not in ENDED:
            return Answer.of(
                202, self.machine.store.document(task.path), {"Location": task.monitor, "OData-Version": "4.0"}
            )
        if task.state is TaskState.COMPLETED:
            return Answer.of(200, success_document(), {"OData-Version": "4.0"})
        messages = (self.machine.store.document(task.path) or {}).get("Messages") or [{}]
        text = str(messages[-1].get("Message", "The task did not complete."))
        return RedfishError(500, Message("GeneralError", text, "Critical")).answer()

    def cancel(self, call: Call) -> Answer:
        """DELETE of a task: one that runs is cancelled, one that has ended is forgotten."""
        for key, task in list(self.running.items()):
            if path_key(task.path) != path_key(call.path):
                continue
            if task.state in ENDED:
                del self.running[key]
                self.machine.store.remove_member(self.collection, task.path)
            else:
                for scheduled in task.scheduled:
                    scheduled.cancel()
                self._show(task, TaskState.CANCELLED, None, "Warning")
            return Answer(204)
        raise not_found(call.path)

    def _at(self, task: RunningTask, seconds: float, state: TaskState, percent: int) -> None:
        task.scheduled.append(self.machine.timeline.after(seconds, lambda: self._show(task, state, percent, "OK")))

    def _finish(self, task: RunningTask) -> None:
        try:
            task.work()
        except TaskStaged as staged:
            task.work = staged.work
            self.staged.append(task)
            text = Message("OperationPending", str(staged), "OK")
            self._show(task, TaskState.PENDING, None, "OK", text)
        except TaskFailed as failure:
            self._show(task, TaskState.EXCEPTION, None, "Critical", failure.message)
        else:
            self._show(task, TaskState.COMPLETED, 100, "OK", Message("Success", "The task was carried out.", "OK"))
        kept = self.machine.options.task_kept_seconds
        if kept is not None:
            self.machine.timeline.after(kept, lambda: self._forget(task))

    def _host_starts(self, _system: str) -> None:
        staged, self.staged = self.staged, []
        for task in staged:
            self._finish(task)

    def _forget(self, task: RunningTask) -> None:
        self.running.pop(path_key(task.monitor), None)
        self.machine.store.remove_member(self.collection, task.path)

    def _show(
        self, task: RunningTask, state: TaskState, percent: int | None, status: str, message: Message | None = None
    ) -> None:
        task.state = state

        def show(document: JsonObject) -> None:
            document["TaskState"], document["TaskStatus"] = state.value, status
            if percent is not None:
                document["PercentComplete"] = percent
            if message is not None:
                document["Messages"] = [*document["Messages"], message.document()]
            if state in ENDED:
                document["EndTime"] = timestamp()

        if self.machine.store.find(task.path) is not None:
            self.machine.store.edit(task.path, show)


def timestamp() -> str:
    """Now, as Redfish writes dates."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
