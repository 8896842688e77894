"""What a failure makes of a workflow: retries, `onFailure`, clean-up, and the words that are kept (A36-A42)."""

import asyncio

import pytest

from control_plane.commands import expire
from control_plane.engine.context import StepContext, StepFailed
from control_plane.engine.states import WorkflowState
from control_plane.sites import serve_by
from protocol.commands import Ending, Outcome
from protocol.errors import Failure
from tests.control_plane.engine.rig import DONE, Rig, Seen, failed, kexec, power, work

FAILED, SUCCEEDED = WorkflowState.FAILED, WorkflowState.SUCCEEDED
REJECTED = Ending(Outcome.REJECTED, error=Failure("UNKNOWN_KIND", "I do not know this"))
CANCELLED = Ending(Outcome.CANCELLED, error=Failure("CANCELLED", "stopped by hand"))


async def broken(context: StepContext) -> None:
    raise StepFailed("the image is not there")


def error_code(seen: Seen, step_id: str) -> str | None:
    error = seen.steps[step_id].error
    return None if error is None else error.code


@pytest.mark.case("B56")
@pytest.mark.line("A36")
async def test_a36_an_attempt_that_fails_is_followed_by_the_next_under_a_new_key(rig: Rig) -> None:
    rig.site.answer = lambda row: failed()
    workflow_id = await rig.start(power("reset", id="act", retries=2))
    seen = await rig.finish(workflow_id)
    key = f"wf:{workflow_id}:act"
    assert [row.key for row in await rig.commands(workflow_id)] == [key, f"{key}#2", f"{key}#3"]
    assert (seen.steps["act"].attempt, seen.workflow.state) == (3, FAILED)
    attempts = [(kind, data.get("attempt")) for kind, data in await rig.events(workflow_id) if "stepId" in data]
    assert attempts == [
        ("workflow.step.started", 1),
        ("workflow.step.retrying", 2),
        ("workflow.step.started", 2),
        ("workflow.step.retrying", 3),
        ("workflow.step.started", 3),
        ("workflow.step.failed", 3),
    ]


@pytest.mark.line("A36")
async def test_a36_retries_end_with_the_first_attempt_that_succeeds(rig: Rig) -> None:
    reasons: list[str | None] = []

    async def third_time_lucky(context: StepContext) -> None:
        present = (await rig.look(context.workflow_id)).steps["work"].error
        reasons.append(None if present is None else present.message)
        if context.attempt < 3:
            raise StepFailed(f"not at {context.attempt}")

    rig.code["work"] = third_time_lucky
    seen = await rig.finish(await rig.start(work(retries=7)))
    assert reasons == [None, "not at 1", "not at 2"], "an attempt under way tells why the last one failed"
    assert (rig.runs["work"], seen.steps["work"].attempt, seen.workflow.state) == (3, 3, SUCCEEDED)
    assert seen.steps["work"].error is None


@pytest.mark.line("A37")
@pytest.mark.parametrize("phase", ["continue", "fail", "rescue"])
async def test_a37_on_failure_continues_fails_or_asks_for_a_rescue(rig: Rig, phase: str) -> None:
    rig.code["work"] = broken
    workflow_id = await rig.start(work(onFailure=phase), work("next"))
    seen = await rig.finish(workflow_id)
    assert error_code(seen, "work") == "STEP_FAILED"
    if phase == "continue":
        assert (seen.workflow.state, seen.workflow.error, seen.states["next"]) == (SUCCEEDED, None, "succeeded")
        return
    assert seen.workflow.error is not None
    assert (seen.workflow.state, seen.workflow.error.rescue) == (FAILED, phase == "rescue")
    assert seen.states["next"] == "cancelled"


@pytest.mark.line("A37")
async def test_a37_the_on_failure_step_of_the_step_that_failed_runs_and_no_other(rig: Rig) -> None:
    rig.code["second"] = broken
    steps = [work(name, onFailure={"use": "plane.work"}) for name in ("first", "second", "third")]
    workflow_id = await rig.start(*steps)
    seen = await rig.finish(workflow_id)
    assert seen.states == {
        "first": "succeeded",
        "second": "failed",
        "third": "cancelled",
        "first.on-failure": "skipped",
        "second.on-failure": "succeeded",
        "third.on-failure": "skipped",
    }
    assert seen.workflow.state is FAILED


@pytest.mark.line("A37")
async def test_a37_on_failure_steps_are_skipped_when_main_has_succeeded(rig: Rig) -> None:
    seen = await rig.finish(await rig.start(work(onFailure={"use": "plane.work"})))
    assert seen.states == {"work": "succeeded", "work.on-failure": "skipped"}
    assert seen.workflow.state is SUCCEEDED


@pytest.mark.line("A38")
async def test_a38_a_failure_cancels_the_rest_cleans_up_and_keeps_its_cause(rig: Rig) -> None:
    rig.site.answer = lambda row: failed("BMC_REFUSED", "the BMC refused it", bmc="Lid is open")
    rig.code["tidy"] = broken
    workflow_id = await rig.start(
        power("on", id="act", onFailure={"use": "plane.work"}), work("never"), cleanup=[work("tidy")]
    )
    rig.code["act.on-failure"] = broken
    seen = await rig.finish(workflow_id)
    error = seen.workflow.error
    assert error is not None
    assert (seen.workflow.state, seen.workflow.ending, error.code) == (FAILED, None, "COMMAND_FAILED")
    assert error.message == "act (power.setPower): BMC_REFUSED: the BMC refused it (the BMC said: Lid is open)"
    assert error.details is not None
    assert error.details.code == "BMC_REFUSED"
    assert seen.states == {"act": "failed", "never": "cancelled", "act.on-failure": "failed", "tidy": "failed"}
    assert "step.cancelled never" not in await rig.event_names(workflow_id)


@pytest.mark.line("A38")
async def test_a38_while_it_cleans_up_it_is_running_and_failing(rig: Rig) -> None:
    rig.code["work"] = broken
    workflow_id = await rig.start(work(), cleanup=[power("off", id="tidy")])
    await rig.run(workflow_id)
    seen = await rig.look(workflow_id)
    assert (seen.workflow.state.value, seen.workflow.ending) == ("running", "failing")
    assert seen.workflow.step_id == "tidy"


@pytest.mark.line("A39")
async def test_a39_a_step_that_fails_in_on_failure_or_clean_up_stops_nothing(rig: Rig) -> None:
    for name in ("work", "work.on-failure", "mount", "mount.cleanup", "tidy-1", "tidy-3"):
        rig.code[name] = broken
    workflow_id = await rig.start(
        {"id": "mount", "use": "plane.mount", "onFailure": "continue"},
        work(onFailure={"use": "plane.work"}),
        cleanup=[work(f"tidy-{number}") for number in (1, 2, 3, 4)],
    )
    seen = await rig.finish(workflow_id)
    assert seen.states == {
        "mount": "failed",
        "work": "failed",
        "work.on-failure": "failed",
        "mount.cleanup": "failed",
        "tidy-1": "failed",
        "tidy-2": "succeeded",
        "tidy-3": "failed",
        "tidy-4": "succeeded",
    }
    assert seen.workflow.error is not None
    assert seen.workflow.error.message.startswith("work (plane.work): ")


@pytest.mark.line("A39")
@pytest.mark.parametrize(("on_failure", "state"), [("fail", FAILED), ("continue", SUCCEEDED)])
async def test_a39_a_failed_clean_up_after_success_fails_the_workflow_unless_it_may_fail(
    rig: Rig, on_failure: str, state: WorkflowState
) -> None:
    rig.code["tidy"] = broken
    workflow_id = await rig.start(work(), cleanup=[work("tidy", onFailure=on_failure), work("last")])
    seen = await rig.finish(workflow_id)
    assert (seen.workflow.state, seen.states["last"]) == (state, "succeeded")
    assert (seen.workflow.error is not None) == (state is FAILED)


@pytest.mark.line("A40")
async def test_a40_what_a_step_leaves_behind_is_tidied_up_only_if_it_started(rig: Rig) -> None:
    rig.code["work"] = broken
    mount = {"use": "plane.mount"}
    workflow_id = await rig.start(
        mount | {"id": "one"}, mount | {"id": "two", "when": "gpu"}, work(), mount | {"id": "three"}
    )
    seen = await rig.finish(workflow_id)
    assert (seen.states["one.cleanup"], seen.states["two.cleanup"]) == ("succeeded", "skipped")
    assert (seen.states["three"], seen.states["three.cleanup"]) == ("cancelled", "skipped")


@pytest.mark.line("A40")
async def test_a40_a_step_that_started_and_failed_is_tidied_up_in_the_reverse_order(rig: Rig) -> None:
    rig.code["two"] = broken
    workflow_id = await rig.start(
        {"use": "plane.mount", "id": "one"}, {"use": "plane.mount", "id": "two"}, cleanup=[work("tidy")]
    )
    await rig.finish(workflow_id)
    names = [name for name in await rig.event_names(workflow_id) if name.startswith("step.started")]
    assert names[2:] == ["step.started two.cleanup", "step.started one.cleanup", "step.started tidy"]


@pytest.mark.line("A41")
@pytest.mark.parametrize("how", ["success", "failure", "abort"])
async def test_a41_clean_up_runs_whatever_the_outcome(rig: Rig, how: str) -> None:
    if how == "failure":
        rig.site.answer = lambda row: failed()
    workflow_id = await rig.start(
        {"use": "plane.mount", "id": "mount"}, power("on", id="act"), cleanup=[work("tidy")]
    )
    await rig.run(workflow_id)
    if how == "abort":
        await rig.abort(workflow_id)
    seen = await rig.finish(workflow_id)
    assert (seen.states["mount.cleanup"], seen.states["tidy"]) == ("succeeded", "succeeded")
    assert seen.workflow.state.value == {"success": "succeeded", "failure": "failed", "abort": "cancelled"}[how]


async def _times_out(context: StepContext) -> None:
    raise context.not_ready(10**9)


class OddError(Exception):
    code = "DISK_FULL"


async def _own_code(context: StepContext) -> None:
    raise OddError("no room")


async def _own_timeout(context: StepContext) -> None:
    async with asyncio.timeout(0):
        await asyncio.sleep(1)


async def _cancels_itself(context: StepContext) -> None:
    raise asyncio.CancelledError


async def _returns_rubbish(context: StepContext) -> dict[str, object]:
    return ["no", "object"]  # type: ignore[return-value]


async def _returns_too_much(context: StepContext) -> dict[str, object]:
    return {"blob": "x" * 100_000_000}


async def _returns_what_json_cannot_hold(context: StepContext) -> dict[str, object]:
    return {"it": object()}


@pytest.mark.line("A42")
@pytest.mark.parametrize(
    ("code", "words", "behaviour"),
    [
        ("STEP_FAILED", "the image is not there", broken),
        ("STEP_TIMEOUT", "not done within", _times_out),
        ("DISK_FULL", "OddError: no room", _own_code),
        ("STEP_FAILED", "TimeoutError", _own_timeout),
        ("STEP_FAILED", "cancelled from within", _cancels_itself),
        ("STEP_FAILED", "returned list", _returns_rubbish),
        ("STEP_FAILED", "100000011 bytes", _returns_too_much),
        ("STEP_FAILED", "cannot be stored", _returns_what_json_cannot_hold),
    ],
)
async def test_a42_code_that_fails_leaves_its_code_and_its_words(
    sqlite_rig: Rig, code: str, words: str, behaviour: object
) -> None:
    sqlite_rig.code["work"] = behaviour  # type: ignore[assignment]
    seen = await sqlite_rig.finish(await sqlite_rig.start(work()))
    error = seen.steps["work"].error
    assert error is not None
    assert error.code == code
    assert words in error.message


@pytest.mark.line("A42")
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("COMMAND_FAILED", failed("BMC_REFUSED", "no")),
        ("COMMAND_REJECTED", REJECTED),
        ("COMMAND_CANCELLED", CANCELLED),
        ("COMMAND_EXPIRED", None),
        ("STEP_TIMEOUT", None),
        ("NO_AGENT", None),
        ("REJOIN_TIMEOUT", DONE),
    ],
)
async def test_a42_an_agents_step_that_fails_leaves_its_code_and_the_agents_own(
    rig: Rig, code: str, answer: Ending | None
) -> None:
    rig.site.answer = lambda row: answer
    step = kexec(id="act") if code == "REJOIN_TIMEOUT" else power("on", id="act", timeout="1m")
    workflow_id = await rig.start(step)
    if code == "NO_AGENT":
        await rig.store.write(serve_by, rig.site_id, None)
    if code == "COMMAND_EXPIRED":
        await rig.site.disconnect()
        await rig.run(workflow_id)
        await rig.store.write(lambda tx: tx.run("UPDATE commands SET not_after = :now", {"now": tx.now() - 1}))
        rig.clock.pass_by(10_000)
        await rig.store.write(expire, 10)
    seen = await rig.finish(workflow_id)
    assert error_code(seen, "act") == code
    error = seen.steps["act"].error
    if answer is not None and answer.error is not None:
        assert error is not None
        assert error.details == answer.error


@pytest.mark.line("A42")
async def test_a42_a_step_that_is_not_registered_any_more_fails_and_says_so(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    workflow_id = await rig.start(work())
    rig.registry = type(rig.registry)()
    seen = await rig.finish(workflow_id)
    error = seen.steps["work"].error
    assert error is not None
    assert "'plane.work' is not registered in this worker's version any more" in error.message


@pytest.mark.line("A42")
async def test_a42_code_that_hangs_is_ended_at_its_deadline(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang(context: StepContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    rig.code["work"] = hang
    workflow_id = await rig.start(work(timeout="1m"))
    async with rig.reconciler() as reconciler:
        await begun.wait()
        rig.clock.pass_by(60_000)
        reconciler.hint(workflow_id)
        await ended.wait()
        while (await rig.look(workflow_id)).workflow.state is not FAILED:
            await asyncio.sleep(0.01)
    assert error_code(await rig.look(workflow_id), "work") == "STEP_TIMEOUT"
