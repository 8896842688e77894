"""A change that a BMC takes as a task is followed to its end, however the BMC shows that task, or does not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from drivers.driver import Call
from drivers.redfish import DRIVER, RedfishConnection
from drivers.redfish.answer import Answer
from drivers.redfish.task_view import Stage, TaskView
from drivers.redfish.tasks import Ending, Outcome, TaskName, follow_task, task_named_by, words_of_task
from protocol.errors import BmcMessage, ErrorCode, OperationError
from simulators.redfish import Drop, Effect, FaultRule, ServiceOptions
from tests.drivers.redfish.harness import RESET, SYSTEM, Bench, bench, without_waiting

TASK = "/redfish/v1/TaskService/Tasks/77"
MONITOR = "/redfish/v1/TaskService/TaskMonitors/77"
ACTION = f"{SYSTEM}/Actions/ComputerSystem.Reset"


@dataclass
class Follower:
    """A connection to the simulated BMC, and what its progress said."""

    bmc: Bench
    connection: RedfishConnection
    progress: list[tuple[str, float | None]] = field(default_factory=list)

    def call(self, seconds: float = 600.0) -> Call:
        deadline = asyncio.get_running_loop().time() + seconds
        return Call("bios.setBios", deadline, lambda text, percent: self.progress.append((text, percent)))

    async def answer(self, status: int = 202, body: Any = None, *, location: str | None = None) -> Answer:
        """The answer to an order that the BMC gives as told, without doing it."""
        headers = {} if location is None else {"Location": location}
        rule = FaultRule(name="order", method="POST", path=RESET, status=status, body=body, headers=headers)
        self.bmc.bmc.faults.add(rule)
        return await self.connection.act("POST", ACTION, {"ResetType": "On"}, self.call())

    async def follow(
        self, answer: Answer | None, *, seconds: float = 600.0, patience: float | None = None, staged: bool = True
    ) -> Ending:
        return await follow_task(self.connection, answer, self.call(seconds), patience=patience, staged_ends=staged)

    def reads(self, path: str = f"{TASK}*") -> int:
        return len(self.bmc.requests("GET", path))


@contextlib.asynccontextmanager
async def follower(*stages: dict[str, Any] | int, path: str = TASK) -> AsyncIterator[Follower]:
    """A BMC with a task that shows one stage after the other; a number is an HTTP status. The last one stays."""
    async with bench() as bmc:
        if stages:
            bmc.bmc.state.put(path, {"@odata.id": path, "@odata.type": "#Task.v1_7_4.Task", "TaskState": "Running"})
            bmc.bmc.faults.add(
                FaultRule(
                    name="stages",
                    method="GET",
                    path=path,
                    sequence=tuple(_effect(stage) for stage in stages),
                    count=10_000,
                )
            )
        with bmc.drivers.connections.use(DRIVER, bmc.target) as connection:
            assert isinstance(connection, RedfishConnection)
            yield Follower(bmc, connection)


def _effect(stage: dict[str, Any] | int) -> Effect:
    return Effect(status=stage) if isinstance(stage, int) else Effect(merge=stage)


def state(name: str, percent: int | None = None, **more: Any) -> dict[str, Any]:
    return {"TaskState": name, "PercentComplete": percent, **more}


def said(text: str, severity: str = "OK", identifier: str = "X.1.0.Said") -> dict[str, Any]:
    return {"Messages": [{"MessageId": identifier, "Message": text, "Severity": severity}]}


# --- which task an answer names ---


@pytest.mark.parametrize(
    ("status", "body", "location", "named"),
    [
        (202, {"@odata.id": TASK, "TaskState": "New"}, MONITOR, TaskName(TASK, MONITOR)),
        (202, {"@odata.id": TASK, "TaskState": "New", "TaskMonitor": MONITOR}, None, TaskName(TASK, MONITOR)),
        (202, {"@odata.id": TASK}, None, TaskName(TASK)),
        (202, None, TASK, TaskName(TASK)),
        (202, None, f"{TASK}/", TaskName(f"{TASK}/")),
        (202, None, f"https://192.0.2.9{TASK}", TaskName(TASK)),
        (202, None, f"{TASK}/Monitor", TaskName(None, f"{TASK}/Monitor")),
        (202, {"@odata.id": "/redfish/v1/JobService/Jobs/JID_1", "JobState": "New"}, None,
         TaskName("/redfish/v1/JobService/Jobs/JID_1")),
        (200, None, "/redfish/v1/Managers/iDRAC.Embedded.1/Oem/Dell/Jobs/JID_1",
         TaskName("/redfish/v1/Managers/iDRAC.Embedded.1/Oem/Dell/Jobs/JID_1")),
        (202, {"Accepted": {}, "Messages": [{"Message": f"Please also check Task Resource {TASK} to see more."}]},
         None, TaskName(TASK)),
        (202, None, None, None),
        (204, None, None, None),
        (200, {"@odata.id": "/redfish/v1/Systems/1/Bios", "Attributes": {}}, None, None),
        (201, {"@odata.id": "/redfish/v1/Systems/1/Storage/1/Volumes/3"},
         "/redfish/v1/Systems/1/Storage/1/Volumes/3", None),
    ],
)  # fmt: skip
@pytest.mark.case("B42")
@without_waiting
async def test_b42_the_task_is_found_wherever_the_answer_names_it(
    status: int, body: Any, location: str | None, named: TaskName | None
) -> None:
    async with follower() as watch:
        assert task_named_by(await watch.answer(status, body, location=location)) == named


@without_waiting
async def test_an_answer_without_a_task_has_an_unknown_outcome_and_costs_no_request() -> None:
    async with follower() as watch:
        answer = await watch.answer(204)
        before = len(watch.bmc.bmc.journal)
        assert await watch.follow(answer) == Ending(Outcome.UNKNOWN)
        assert await watch.follow(None) == Ending(Outcome.UNKNOWN)
        assert len(watch.bmc.bmc.journal) == before


# --- the way to the end ---


@without_waiting
async def test_a_task_is_followed_to_its_end_and_its_progress_is_told_once_each() -> None:
    stages = [state("Running", 10), state("Running", 10), state("Running", 60), state("Completed", 100)]
    async with follower(*stages) as watch:
        ending = await watch.follow(await watch.answer(location=TASK))
        assert (ending.outcome, ending.path, ending.percent) == (Outcome.DONE, TASK, 100)
        assert watch.progress == [("Running", 10), ("Running", 60), ("Completed", 100)]
        assert watch.reads() == 4


@without_waiting
async def test_the_pauses_between_looks_grow_to_ten_seconds() -> None:
    clock = asyncio.get_running_loop().time
    async with follower(*[state("Running")] * 30, state("Completed")) as watch:
        started = clock()
        await watch.follow(await watch.answer(location=TASK))
        assert 200 < clock() - started < 320


@pytest.mark.case("B42")
@pytest.mark.parametrize(
    "name",
    ["New", "Starting", "Running", "Pending", "Service", "Suspended", "Interrupted", "Scheduled", "Downloading", ""],
)
@without_waiting
async def test_b42_no_state_but_an_end_ends_a_task(name: str) -> None:
    async with follower(*[state(name)] * 3, state("Completed")) as watch:
        assert (await watch.follow(await watch.answer(location=TASK), staged=False)).outcome is Outcome.DONE


@pytest.mark.parametrize(
    "last",
    [
        state("Exception"),
        state("Killed"),
        state("Cancelled"),
        state("Completed", **said("it did not work", "Critical")),
        state("Completed", TaskStatus="Critical"),
        state("Completed", Messages=[{"Message": "no", "MessageSeverity": "Critical"}]),
        state("Completed", Oem={"Dell": {"JobState": "CompletedWithErrors"}}),
        {"TaskState": None, "JobState": "Failed"},
        {"TaskState": None, "JobState": "CompletedWithErrors", "Message": "Job completed with errors."},
    ],
)
@without_waiting
async def test_a_task_that_ends_in_a_fault_has_failed(last: dict[str, Any]) -> None:
    async with follower(state("Running"), last) as watch:
        assert (await watch.follow(await watch.answer(location=TASK))).outcome is Outcome.FAILED


@without_waiting
async def test_a_failed_task_is_told_in_its_own_words() -> None:
    async with follower(state("Exception", **said("the volume is busy", "Critical", "STOR.1.0.7"))) as watch:
        answer = await watch.answer(location=TASK)
        assert (await watch.follow(answer)).words == [BmcMessage("STOR.1.0.7", "the volume is busy")]
        assert await words_of_task(watch.connection, answer, watch.call()) == (
            True,
            [BmcMessage("STOR.1.0.7", "the volume is busy")],
        )


@without_waiting
async def test_a_job_of_dell_s_own_form_is_read_too() -> None:
    path = "/redfish/v1/Managers/iDRAC.Embedded.1/Jobs/JID_5"
    job = {"TaskState": None, "JobState": "Running", "PercentComplete": 34, "Message": "Job in progress.",
           "MessageId": "PR20"}  # fmt: skip
    ended = {**job, "JobState": "Completed", "PercentComplete": 100, "MessageId": "PR19"}
    async with follower(job, ended, path=path) as watch:
        ending = await watch.follow(await watch.answer(200, location=path))
        assert (ending.outcome, ending.percent) == (Outcome.DONE, 100)
        assert ending.words == [BmcMessage("PR19", "Job in progress.")]
        assert watch.progress[0] == ("Job in progress.", 34)


# --- tasks that wait ---


@pytest.mark.parametrize(
    "waiting",
    [
        state("Scheduled"),
        state("Pending"),
        state("New"),
        state("Starting", Messages=[{"MessageId": "IDRAC.2.8.JCP001", "Message": "Task successfully scheduled."}]),
        state("New", Oem={"Dell": {"JobState": "Scheduled", "JobType": "BIOSConfiguration"}}),
        state("Completed", Oem={"Dell": {"JobState": "Scheduled"}}),
        {"TaskState": None, "JobState": "Scheduled", "MessageId": "JCP001"},
    ],
)
@without_waiting
async def test_a_task_that_waits_for_a_reset_is_staged_and_not_waited_for(waiting: dict[str, Any]) -> None:
    async with follower(waiting) as watch:
        ending = await watch.follow(await watch.answer(location=TASK))
        assert ending.outcome is Outcome.STAGED


@without_waiting
async def test_a_task_of_a_change_for_the_next_reset_is_looked_at_once() -> None:
    async with follower(state("Scheduled")) as watch:
        answer = await watch.answer(location=TASK)
        ending = await follow_task(watch.connection, answer, watch.call(60), at_reset=True)
        assert ending.outcome is Outcome.STAGED
        assert watch.reads() == 1


@without_waiting
async def test_a_task_of_a_change_for_the_next_reset_may_still_fail_before_it_is_scheduled() -> None:
    async with follower(state("New"), state("Exception")) as watch:
        answer = await watch.answer(location=TASK)
        ending = await follow_task(watch.connection, answer, watch.call(60), at_reset=True)
        assert ending.outcome is Outcome.FAILED


@without_waiting
async def test_a_task_that_only_passes_through_scheduled_is_followed_on() -> None:
    async with follower(state("New"), state("Scheduled"), state("Running", 5), state("Completed")) as watch:
        assert (await watch.follow(await watch.answer(location=TASK))).outcome is Outcome.DONE


@without_waiting
async def test_a_task_that_does_not_end_is_a_timeout_that_says_where_it_was() -> None:
    async with follower(state("Running", 42, **said("copying"))) as watch:
        with pytest.raises(OperationError) as caught:
            await watch.follow(await watch.answer(location=TASK), patience=30)
        error = caught.value
        assert error.code is ErrorCode.TIMEOUT
        assert "last seen Running, 42 % done" in error.message
        assert error.details == {"task": TASK, "state": "Running", "percent": 42}
        assert [word.text for word in error.bmc] == ["copying"]


@without_waiting
async def test_time_is_left_to_look_at_the_effect() -> None:
    async with follower(state("Running")) as watch:
        answer = await watch.answer(location=TASK)
        call = watch.call(60)
        with pytest.raises(OperationError):
            await follow_task(watch.connection, answer, call)
        assert call.remaining >= 5


# --- tasks that are not there ---


@pytest.mark.case("B42")
@without_waiting
async def test_b42_a_task_that_is_not_there_right_after_its_creation_is_waited_for() -> None:
    async with follower(*[404] * 8, state("Completed")) as watch:
        assert (await watch.follow(await watch.answer(location=TASK))).outcome is Outcome.DONE


@pytest.mark.case("B42")
@without_waiting
async def test_b42_a_task_that_is_purged_after_a_look_is_gone_with_its_last_words() -> None:
    async with follower(state("New", 0, **said("scheduled")), 404) as watch:
        ending = await watch.follow(await watch.answer(location=TASK))
        assert (ending.outcome, ending.percent) == (Outcome.GONE, 0)
        assert [word.text for word in ending.words] == ["scheduled"]


@without_waiting
async def test_a_single_404_of_a_bmc_that_restarts_is_not_the_end() -> None:
    async with follower(state("Running"), 404, state("Running"), 404, state("Completed")) as watch:
        assert (await watch.follow(await watch.answer(location=TASK))).outcome is Outcome.DONE


@without_waiting
async def test_a_task_that_was_named_and_never_is_there_is_gone() -> None:
    clock = asyncio.get_running_loop().time
    async with follower() as watch:
        answer = await watch.answer(location=TASK)
        started = clock()
        assert (await watch.follow(answer)).outcome is Outcome.GONE
        assert clock() - started >= 30


@pytest.mark.parametrize(
    "trouble",
    [
        Effect(drop=Drop.BEFORE),
        Effect(status=503),
        Effect(status=503, headers={"Retry-After": "30"}),
        Effect(status=500),
        Effect(status=502, body="<html>bad gateway</html>"),
        Effect(status=200, body="<html>starting</html>"),
        Effect(status=200, body={"error": {"code": "Base.1.8.GeneralError", "message": "later"}}),
    ],
)
@without_waiting
async def test_a_bmc_that_cannot_answer_for_a_while_is_put_up_with(trouble: Effect) -> None:
    async with follower(state("Running")) as watch:
        answer = await watch.answer(location=TASK)
        watch.bmc.bmc.faults.remove("stages")
        watch.bmc.bmc.faults.add(FaultRule(method="GET", path=TASK, sequence=(trouble,) * 12))
        watch.bmc.bmc.faults.add(FaultRule(method="GET", path=TASK, merge=state("Completed")))
        assert (await watch.follow(answer)).outcome is Outcome.DONE


@without_waiting
async def test_a_task_that_cannot_be_read_to_the_end_is_a_timeout_with_the_reason() -> None:
    async with follower(503) as watch:
        with pytest.raises(OperationError) as caught:
            await watch.follow(await watch.answer(location=TASK), seconds=120)
        assert caught.value.code is ErrorCode.TIMEOUT
        assert "could not be read" in caught.value.message
        assert "503" in caught.value.message


@without_waiting
async def test_a_login_that_is_refused_meanwhile_ends_the_wait() -> None:
    async with follower(state("Running"), 403) as watch:
        with pytest.raises(OperationError) as caught:
            await watch.follow(await watch.answer(location=TASK))
        assert caught.value.code is ErrorCode.AUTH_FAILED


# --- monitors ---


@pytest.mark.case("B42")
@without_waiting
async def test_b42_the_monitor_is_never_read_while_the_task_can_be() -> None:
    async with follower(state("Running"), state("Completed")) as watch:
        body = {"@odata.id": TASK, "TaskState": "New"}
        assert (await watch.follow(await watch.answer(body=body, location=MONITOR))).outcome is Outcome.DONE
        assert watch.reads(MONITOR) == 0


@pytest.mark.case("B42")
@pytest.mark.parametrize("monitor", [MONITOR, f"{TASK}/Monitor", f"{TASK}/TaskMonitor/"])
@without_waiting
async def test_b42_the_task_is_told_from_its_monitor_s_path(monitor: str) -> None:
    async with follower(state("Running"), state("Completed")) as watch:
        ending = await watch.follow(await watch.answer(location=monitor))
        assert (ending.outcome, ending.path) == (Outcome.DONE, TASK)
        assert watch.reads(monitor) == 0


@pytest.mark.case("B42")
@without_waiting
async def test_b42_the_task_of_a_monitor_with_a_name_of_its_own_is_found_among_the_tasks() -> None:
    tasks = "/redfish/v1/TaskService/Tasks"
    monitor = "/redfish/v1/TaskService/TaskMonitors/0a1b2c3d"
    async with follower(state("Running"), state("Completed")) as watch:
        watch.bmc.bmc.state.edit(tasks, lambda document: document.update(Members=[{"@odata.id": TASK}]))
        watch.bmc.bmc.state.patch(TASK, {"TaskMonitor": monitor})
        ending = await watch.follow(await watch.answer(location=monitor))
        assert (ending.outcome, ending.path) == (Outcome.DONE, TASK)
        assert watch.reads(monitor) == 0


def monitor_gives(*effects: Effect) -> FaultRule:
    return FaultRule(method="GET", path=MONITOR, sequence=effects, count=10_000)


@without_waiting
async def test_where_only_the_monitor_answers_it_is_followed_to_its_last_answer() -> None:
    async with follower() as watch:
        answer = await watch.answer(location=MONITOR)
        running = Effect(status=202, body={"TaskState": "Running", "PercentComplete": 50})
        watch.bmc.bmc.faults.add(monitor_gives(running, running, Effect(status=204)))
        ending = await watch.follow(answer)
        assert (ending.outcome, ending.path) == (Outcome.DONE, MONITOR)
        assert watch.progress == [("Running", 50)]


@without_waiting
async def test_a_monitor_that_ends_in_an_error_has_failed_with_its_words() -> None:
    error = {"error": {"@Message.ExtendedInfo": [{"MessageId": "X.1.0.Bad", "Message": "no such image"}]}}
    async with follower() as watch:
        answer = await watch.answer(location=MONITOR)
        watch.bmc.bmc.faults.add(monitor_gives(Effect(status=202), Effect(status=400, body=error)))
        ending = await watch.follow(answer)
        assert ending.outcome is Outcome.FAILED
        assert ending.words == [BmcMessage("X.1.0.Bad", "no such image")]


@pytest.mark.case("B42")
@without_waiting
async def test_b42_a_monitor_that_is_deleted_by_reading_it_leaves_a_task_that_is_gone() -> None:
    async with follower() as watch:
        answer = await watch.answer(location=MONITOR)
        watch.bmc.bmc.faults.add(monitor_gives(Effect(status=202, body={"TaskState": "Running"}), Effect(status=404)))
        assert (await watch.follow(answer)).outcome is Outcome.GONE


@pytest.mark.parametrize("spelling", [f"{TASK}/", TASK.upper().replace("/REDFISH/V1", "/redfish/v1")])
@without_waiting
async def test_a_path_is_followed_in_the_spelling_that_the_bmc_answers(spelling: str) -> None:
    async with follower(state("Completed")) as watch:
        assert (await watch.follow(await watch.answer(location=spelling))).outcome is Outcome.DONE


@without_waiting
async def test_a_bmc_that_wants_no_trailing_slash_is_asked_without_one() -> None:
    slashed = "/redfish/v1/TaskService/Tasks/78/"
    async with bench(options=ServiceOptions(strict_paths=True)) as bmc:
        bmc.bmc.state.put(slashed.rstrip("/"), {"@odata.id": slashed.rstrip("/"), "TaskState": "Completed"})
        with bmc.drivers.connections.use(DRIVER, bmc.target) as connection:
            assert isinstance(connection, RedfishConnection)
            watch = Follower(bmc, connection)
            ending = await watch.follow(await watch.answer(location=slashed))
            assert (ending.outcome, ending.path) == (Outcome.DONE, slashed.rstrip("/"))


# --- any document ---


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"TaskState": None},
        {"TaskState": 5, "Messages": 7, "Oem": [], "PercentComplete": "many"},
        {"TaskState": "Running", "Messages": [None, 3, "text", {"Message": None}], "Oem": {"X": None}},
        {"JobState": ["Completed"]},
        {"TaskState": "Completed" * 1000},
    ],
)
def test_a_task_without_sense_is_one_that_runs(document: dict[str, Any]) -> None:
    assert TaskView.of(document).stage is Stage.RUNNING


@pytest.mark.parametrize(("shown", "percent"), [(None, None), (-3, 0), (40.7, 40), ("55", 55), (400, 100)])
def test_per_cents_are_whole_numbers_from_0_to_100(shown: object, percent: int | None) -> None:
    assert TaskView.of({"PercentComplete": shown}).percent == percent
