"""When a change of a storage controller happens: at once, as a task, or with the next start of the host."""

from collections.abc import Callable
from dataclasses import dataclass, field

from simulators.redfish.documents import Answer, JsonObject, decode, encode, path_key
from simulators.redfish.errors import (
    Message,
    RedfishError,
    property_unknown,
    property_value_not_in_list,
)
from simulators.redfish.machine import Machine
from simulators.redfish.routes import Call
from simulators.redfish.tasks import RunningTask, TaskEngine

APPLY_TIME = "@Redfish.OperationApplyTime"
AT_ONCE, ON_RESET = "Immediate", "OnReset"


@dataclass(slots=True)
class _Waiting:
    task: RunningTask
    work: Callable[[], None]


@dataclass(slots=True)
class StorageJobs:
    """The changes of all storages that have not been done yet."""

    machine: Machine
    tasks: TaskEngine
    _waiting: list[_Waiting] = field(default_factory=list)
    _latest: dict[str, str] = field(default_factory=dict)
    """By storage: the newest task."""

    def __post_init__(self) -> None:
        self.machine.at_host_start.append(self.host_starts)

    def time_of(self, body: JsonObject, collection: JsonObject) -> str:
        """When a change is to happen. RedfishError for a time that the collection does not offer."""
        support = collection.get("@Redfish.OperationApplyTimeSupport")
        offered = support.get("SupportedValues") if isinstance(support, dict) else None
        if APPLY_TIME not in body:
            return str(offered[0]) if offered else AT_ONCE
        if not offered:
            raise RedfishError(400, property_unknown(APPLY_TIME))
        if body[APPLY_TIME] not in offered:
            raise RedfishError(400, property_value_not_in_list(APPLY_TIME, body[APPLY_TIME], offered))
        return str(body[APPLY_TIME])

    def check_free(self, storage: str) -> None:
        """RedfishError where the vendor takes one job for a controller at a time, and one has not ended.

        Source: OpenStack Ironic's notes on RAID over Redfish; the message is what iDRAC gives for BIOS jobs.
        """
        task = self.machine.store.document(self._latest.get(path_key(storage))) or {}
        is_open = task.get("TaskState") not in (None, "Completed", "Exception", "Cancelled")
        if is_open and self.machine.behaviour.one_storage_job:
            text = "Pending configuration values are already committed, unable to perform another set operation."
            raise RedfishError(400, Message("IDRAC.2.8.SYS011", text, resolution="Wait for the scheduled job."))

    def do(self, call: Call, storage: str, name: str, time: str, work: Callable[[], None]) -> Answer | None:
        """Does the work when its time has come; None where that was at once, and its own answer is to be given."""
        if time == ON_RESET:
            answer, task = self.tasks.schedule(name)
            self._waiting.append(_Waiting(task, work))
        elif self.machine.behaviour.storage_changes_by_task or self.machine.options.volume_changes_by_task:
            answer = self.tasks.start(name, work)
        else:
            work()
            return None
        self._note(answer, call, storage)
        return answer

    def host_starts(self, _system: str) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self.tasks.run(one.task, one.work)

    def _note(self, answer: Answer, call: Call, storage: str) -> None:
        """Writes into the task what was asked for (Task schema, Payload)."""
        path = str(decode(answer.body)["@odata.id"])
        payload = {"TargetUri": call.request.path, "HttpOperation": call.request.method, "HttpHeaders": []}
        answer.body = encode(self.machine.store.edit(path, lambda task: task.update(Payload=payload)))
        self._latest[path_key(storage)] = path
