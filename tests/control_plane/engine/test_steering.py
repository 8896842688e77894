"""What an operator does to a workflow: abort, retry, pause, resume (A43-A47)."""

from contextlib import AbstractContextManager

import pytest

from control_plane.engine import verbs
from control_plane.engine.context import StepContext, StepFailed
from control_plane.engine.states import Ending, StepState, WorkflowState
from control_plane.engine.transitions import Then
from protocol.commands import CommandState
from protocol.errors import RequestCode, RequestError
from tests.control_plane.engine.rig import DONE, Rig, failed, power, work

CANCELLED, FAILED, SUCCEEDED = WorkflowState.CANCELLED, WorkflowState.FAILED, WorkflowState.SUCCEEDED


async def broken(context: StepContext) -> None:
    raise StepFailed("the image is not there")


def refused(code: RequestCode) -> AbstractContextManager[object]:
    return pytest.raises(RequestError, match=code.value)


async def failed_workflow(rig: Rig, *, node: bool = True) -> str:
    """first succeeded, second failed, third was cancelled; tidied up."""
    rig.code["second"] = broken
    workflow_id = await rig.start(
        work("first"),
        work("second", onFailure={"use": "plane.work"}),
        work("third"),
        cleanup=[work("tidy")],
        node=node,
    )
    assert (await rig.finish(workflow_id)).workflow.state is FAILED
    return workflow_id


@pytest.mark.line("A43")
async def test_a43_an_abort_cancels_what_waits_and_what_is_out_then_cleans_up(rig: Rig) -> None:
    workflow_id = await rig.start(
        power("reset", id="act", onFailure={"use": "plane.work"}), work("never"), cleanup=[work("tidy")]
    )
    await rig.run(workflow_id)
    aborted = await rig.abort(workflow_id, "wrong machine")
    assert (aborted.state, aborted.ending) == (WorkflowState.RUNNING, Ending.CANCELLING)
    seen = await rig.finish(workflow_id)
    assert seen.states == {
        "act": "cancelled",
        "never": "cancelled",
        "act.on-failure": "cancelled",
        "tidy": "succeeded",
    }
    error = seen.workflow.error
    assert error is not None
    assert (seen.workflow.state, error.code, error.message) == (CANCELLED, "ABORTED", "wrong machine")
    (command,) = await rig.commands(workflow_id)
    assert command.state is CommandState.CANCELLED
    assert rig.executed == {}


@pytest.mark.line("A43")
async def test_a43_clean_up_waits_for_the_agents_word_that_the_act_has_ended(rig: Rig) -> None:
    rig.site.answer = lambda row: None
    workflow_id = await rig.start(power("reset", id="act"), cleanup=[work("tidy")])
    await rig.run(workflow_id)
    await rig.agents_work()
    await rig.abort(workflow_id)
    await rig.run(workflow_id)
    assert rig.runs["tidy"] == 0
    (begun,) = rig.site.open
    await rig.site.finish(begun, DONE)
    seen = await rig.finish(workflow_id)
    assert (seen.states, rig.runs["tidy"]) == ({"act": "cancelled", "tidy": "succeeded"}, 1)


@pytest.mark.line("A43")
async def test_a43_an_agent_that_never_answers_holds_an_abort_up_for_a_minute_at_the_most(rig: Rig) -> None:
    rig.site.answer = lambda row: None
    workflow_id = await rig.start(power("reset", id="act"), cleanup=[work("tidy")])
    await rig.run(workflow_id)
    await rig.agents_work()
    await rig.site.disconnect()
    begun = rig.clock.now
    await rig.abort(workflow_id)
    assert (await rig.finish(workflow_id)).workflow.state is CANCELLED
    assert rig.clock.now - begun == rig.timing.cancel_grace_ms


@pytest.mark.line("A43")
async def test_a43_every_command_that_is_out_is_cancelled(rig: Rig) -> None:
    async def relay(context: StepContext) -> None:
        for key in ("one", "two", "three"):
            try:
                await context.await_command(kind="node.reboot", payload={}, key=key)
            except Exception as not_ready:
                last = not_ready
        raise last

    await rig.machine.boot("daemon")
    rig.machine.daemon.answer = lambda row: None
    rig.code["work"] = relay
    workflow_id = await rig.start(work())
    await rig.run(workflow_id)
    await rig.agents_work()
    await rig.abort(workflow_id, "stop it all")
    reasons = [row.cancel_reason for row in await rig.commands(workflow_id)]
    assert reasons == ["the workflow was aborted: stop it all"] * 3


@pytest.mark.line("A43")
async def test_a43_code_sends_nothing_more_once_its_workflow_is_aborted(rig: Rig) -> None:
    async def abort_then_send(context: StepContext) -> None:
        await rig.abort(context.workflow_id)
        await context.await_command(kind="task.run", payload={})

    rig.code["work"] = abort_then_send
    workflow_id = await rig.start(work(timeout="5s"))
    assert (await rig.finish(workflow_id)).workflow.state is CANCELLED
    assert await rig.commands(workflow_id) == []


@pytest.mark.line("A43")
async def test_a43_an_abort_of_a_failing_workflow_cancels_it_and_does_not_clean_up_twice(rig: Rig) -> None:
    rig.code["work"] = broken
    workflow_id = await rig.start(work(), cleanup=[power("off", id="tidy"), work("last")])
    await rig.run(workflow_id)
    assert (await rig.look(workflow_id)).workflow.step_id == "tidy"
    await rig.abort(workflow_id, "enough")
    seen = await rig.finish(workflow_id)
    assert (seen.workflow.state, seen.states) == (
        CANCELLED,
        {"work": "failed", "tidy": "succeeded", "last": "succeeded"},
    )
    assert len(rig.site.done) == 1


@pytest.mark.line("A44")
async def test_a44_a_workflow_that_never_began_is_cancelled_at_once_and_without_clean_up(rig: Rig) -> None:
    workflow_id = await rig.start(work(), cleanup=[work("tidy")])
    assert (await rig.abort(workflow_id)).state is CANCELLED
    assert (await rig.look(workflow_id)).states == {"work": "cancelled", "tidy": "cancelled"}
    assert await rig.event_names(workflow_id) == ["created", "cancelled"]


@pytest.mark.line("A44")
async def test_a44_a_failed_workflow_is_cancelled_at_once_and_not_cleaned_up_again(rig: Rig) -> None:
    workflow_id = await failed_workflow(rig)
    before = rig.runs.copy()
    assert (await rig.abort(workflow_id, "give it up")).state is CANCELLED
    assert (await rig.run(workflow_id)).then is Then.OVER
    assert rig.runs == before


@pytest.mark.line("A44")
async def test_a44_a_second_abort_changes_nothing_and_one_of_success_is_refused(rig: Rig) -> None:
    workflow_id = await rig.start(power("on", id="act"))
    await rig.run(workflow_id)
    first = await rig.abort(workflow_id, "first")
    assert await rig.abort(workflow_id, "second") == first
    ended = (await rig.finish(workflow_id)).workflow
    assert await rig.abort(workflow_id, "third") == ended
    assert ended.error is not None
    assert ended.error.message == "first"
    done = await rig.start(work())
    await rig.finish(done)
    with refused(RequestCode.INVALID_STATE):
        await rig.abort(done)


@pytest.mark.line("A44")
@pytest.mark.parametrize("in_flight", [True, False])
async def test_a44_a_paused_workflow_can_be_aborted_and_is_cleaned_up(rig: Rig, in_flight: bool) -> None:
    workflow_id = await rig.start(power("on", id="act"), work("next"), cleanup=[work("tidy")])
    await rig.run(workflow_id)
    await rig.pause(workflow_id)
    if not in_flight:
        await rig.agents_work()
        await rig.run(workflow_id)
    await rig.abort(workflow_id)
    seen = await rig.finish(workflow_id)
    assert (seen.workflow.state, seen.states["tidy"], seen.states["next"]) == (CANCELLED, "succeeded", "cancelled")


@pytest.mark.line("A45")
async def test_a45_a_retry_begins_with_the_first_step_that_was_not_done(rig: Rig) -> None:
    workflow_id = await failed_workflow(rig)
    before = await rig.look(workflow_id)
    retried = await rig.retry(workflow_id)
    assert (retried.state, retried.error, retried.finished_at) == (WorkflowState.RUNNING, None, None)
    seen = await rig.look(workflow_id)
    assert seen.steps["first"] == before.steps["first"]
    assert {name: (step.state.value, step.attempt) for name, step in seen.steps.items() if name != "first"} == {
        "second": ("pending", 2),
        "third": ("pending", 2),
        "second.on-failure": ("pending", 2),
        "tidy": ("pending", 2),
    }
    del rig.code["second"]
    ended = await rig.finish(workflow_id)
    assert ended.workflow.state is SUCCEEDED
    assert ended.states["second.on-failure"] == "skipped"
    assert (rig.runs["first"], rig.runs["second"], rig.runs["third"], rig.runs["tidy"]) == (1, 2, 1, 2)


@pytest.mark.line("A45")
async def test_a45_a_retry_from_a_step_does_it_and_every_later_one_again(rig: Rig) -> None:
    workflow_id = await failed_workflow(rig)
    await rig.retry(workflow_id, "first")
    seen = await rig.look(workflow_id)
    assert [seen.steps[name].attempt for name in ("first", "second", "third")] == [2, 2, 2]
    (retried,) = [data for kind, data in await rig.events(workflow_id) if kind == "workflow.retried"]
    assert retried["fromStep"] == "first"


@pytest.mark.line("A45")
async def test_a45_retries_are_counted_afresh_and_keys_never_again(rig: Rig) -> None:
    rig.site.answer = lambda row: failed()
    workflow_id = await rig.start(power("reset", id="act", retries=1))
    await rig.finish(workflow_id)
    await rig.retry(workflow_id)
    await rig.finish(workflow_id)
    key = f"wf:{workflow_id}:act"
    assert [row.key for row in await rig.commands(workflow_id)] == [key, f"{key}#2", f"{key}#3", f"{key}#4"]


@pytest.mark.line("A45")
async def test_a45_a_skipped_step_counts_as_done(rig: Rig) -> None:
    rig.code["two"] = broken
    workflow_id = await rig.start(work("one", when="gpu"), work("two"))
    await rig.finish(workflow_id)
    await rig.retry(workflow_id)
    assert (await rig.look(workflow_id)).states == {"one": "skipped", "two": "pending"}


@pytest.mark.line("A46")
async def test_a46_only_a_failed_workflow_is_retried_and_only_from_a_main_step(rig: Rig) -> None:
    workflow_id = await failed_workflow(rig)
    before = await rig.look(workflow_id)
    for step in ("tidy", "second.on-failure", "nobody"):
        with refused(RequestCode.INVALID_INPUT):
            await rig.retry(workflow_id, step)
    assert await rig.look(workflow_id) == before
    await rig.abort(workflow_id)
    with refused(RequestCode.INVALID_STATE):
        await rig.retry(workflow_id)
    with refused(RequestCode.NOT_FOUND):
        await rig.retry("wf_00000000000000000000000000")


@pytest.mark.line("A46")
@pytest.mark.parametrize("from_step", [None, "work"])
async def test_a46_where_only_clean_up_failed_there_is_nothing_to_retry(rig: Rig, from_step: str | None) -> None:
    rig.code["tidy"] = broken
    workflow_id = await rig.start(work(), cleanup=[work("tidy")])
    assert (await rig.finish(workflow_id)).workflow.state is FAILED
    with refused(RequestCode.INVALID_INPUT):
        await rig.retry(workflow_id, from_step)


@pytest.mark.line("A46")
@pytest.mark.parametrize("subject", ["node", "instance"])
async def test_a46_a_retry_beside_another_active_workflow_is_a_conflict(rig: Rig, subject: str) -> None:
    rig.code["work"] = broken
    more = {"instance_id": "vm-1"} if subject == "instance" else {}
    workflow_id = await rig.start(work(), node=subject == "node", **more)
    await rig.finish(workflow_id)
    other = await rig.start(work("other"), node=subject == "node", **more)
    with refused(RequestCode.CONFLICT):
        await rig.retry(workflow_id)
    await rig.finish(other)
    assert (await rig.retry(workflow_id)).state is WorkflowState.RUNNING


@pytest.mark.line("A46")
async def test_a46_a_retry_at_the_very_moment_of_another_start_is_a_conflict_and_changes_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the database can tell."""
    workflow_id = await failed_workflow(rig)
    await rig.start(work("other"))
    before = await rig.look(workflow_id)
    monkeypatch.setattr(verbs, "_refuse_second", lambda tx, workflow: None)
    with refused(RequestCode.CONFLICT):
        await rig.retry(workflow_id)
    assert await rig.look(workflow_id) == before


@pytest.mark.line("A47")
async def test_a47_a_pause_lets_the_step_in_flight_end_and_starts_nothing(rig: Rig) -> None:
    workflow_id = await rig.start(power("on", id="act"), work("next"))
    await rig.run(workflow_id)
    assert (await rig.pause(workflow_id)).state is WorkflowState.PAUSED
    await rig.agents_work()
    for _ in range(3):
        await rig.run(workflow_id, hinted=True)
        rig.clock.pass_by(60_000)
    seen = await rig.look(workflow_id)
    assert (seen.states, seen.workflow.wake_at) == ({"act": "succeeded", "next": "pending"}, None)
    assert (await rig.resume(workflow_id)).state is WorkflowState.RUNNING
    assert (await rig.finish(workflow_id)).workflow.state is SUCCEEDED


@pytest.mark.line("A47")
@pytest.mark.parametrize("retries", [0, 1])
async def test_a47_of_a_paused_workflow_neither_a_retry_nor_clean_up_starts(rig: Rig, retries: int) -> None:
    workflow_id = await rig.start(power("on", id="act", timeout="1m", retries=retries), cleanup=[work("tidy")])
    await rig.run(workflow_id)
    await rig.pause(workflow_id)
    await rig.site.disconnect()
    rig.clock.pass_by(60_000)
    await rig.run(workflow_id)
    seen = await rig.look(workflow_id)
    assert seen.states == {"act": "pending" if retries else "failed", "tidy": "pending"}
    assert seen.workflow.state is WorkflowState.PAUSED
    await rig.resume(workflow_id)
    await rig.site.connect()
    ended = await rig.finish(workflow_id)
    assert ended.workflow.state is (SUCCEEDED if retries else FAILED)
    assert ended.states["tidy"] == "succeeded"


@pytest.mark.line("A47")
async def test_a47_code_that_is_not_ready_goes_on_while_its_workflow_is_paused(rig: Rig) -> None:
    async def second_time(context: StepContext) -> None:
        if rig.runs["work"] < 2:
            raise context.not_ready()

    rig.code["work"] = second_time
    workflow_id = await rig.start(work(), work("next"))
    await rig.run(workflow_id)
    await rig.pause(workflow_id)
    rig.clock.pass_by(5_000)
    await rig.run(workflow_id)
    assert (await rig.look(workflow_id)).states == {"work": "succeeded", "next": "pending"}


@pytest.mark.line("A47")
async def test_a47_pause_and_resume_are_refused_in_every_other_state(rig: Rig) -> None:
    async def refuses(workflow_id: str, *verbs: str) -> None:
        for verb in verbs:
            with refused(RequestCode.INVALID_STATE):
                await getattr(rig, verb)(workflow_id)

    workflow_id = await rig.start(work())
    await refuses(workflow_id, "pause", "resume")
    await rig.finish(workflow_id)
    await refuses(workflow_id, "pause", "resume")
    for name in ("failing", "cancelling"):
        rig.code["work"] = broken
        workflow_id = await rig.start(work(), cleanup=[power("off", id="tidy")])
        await rig.run(workflow_id)
        if name == "cancelling":
            await rig.abort(workflow_id)
        await refuses(workflow_id, "pause", "resume")
        await rig.finish(workflow_id)
        await refuses(workflow_id, "pause", "resume")
    workflow_id = await rig.start(power("on", id="act"))
    await rig.run(workflow_id)
    await refuses(workflow_id, "resume")
    await rig.pause(workflow_id)
    await refuses(workflow_id, "pause")


@pytest.mark.line("A47")
async def test_a47_clean_up_after_success_can_be_paused(rig: Rig) -> None:
    workflow_id = await rig.start(work(), cleanup=[power("off", id="tidy"), work("last")])
    await rig.run(workflow_id)
    await rig.pause(workflow_id)
    await rig.agents_work()
    await rig.run(workflow_id, hinted=True)
    assert (await rig.look(workflow_id)).steps["last"].state is StepState.PENDING
    await rig.resume(workflow_id)
    assert (await rig.finish(workflow_id)).workflow.state is SUCCEEDED
