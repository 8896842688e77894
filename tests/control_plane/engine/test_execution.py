"""How steps run: one at a time, code outside of every transaction, one command for each attempt (A14-A29)."""

import asyncio
from itertools import pairwise

import pytest

from control_plane.engine.context import StepContext
from control_plane.engine.states import Phase, StepState, WorkflowState
from control_plane.engine.transitions import Settlement, Then
from control_plane.sessions import revoke_agent
from protocol.commands import CommandState, Ending, Outcome
from protocol.errors import Failure
from tests.control_plane.engine.rig import DONE, TENANT, Rig, failed, operation, power, work

WAITING, RUNNING = StepState.WAITING, StepState.RUNNING


@pytest.mark.line("A14")
async def test_a14_phases_run_main_then_on_failure_then_clean_up_with_one_step_in_flight(rig: Rig) -> None:
    workflow_id = await rig.start(
        work("first"),
        power("reset", id="act", onFailure={"use": "plane.work"}),
        work("never"),
        cleanup=[work("tidy"), power("off", id="last")],
    )
    rig.site.answer = lambda row: failed() if row.payload["args"] == {"action": "reset"} else DONE
    in_flight: list[list[str]] = []
    look = await rig.advance(workflow_id)
    while look.then is not Then.OVER:
        seen = await rig.look(workflow_id)
        in_flight.append([step.id for step in seen.steps.values() if step.state in (RUNNING, WAITING)])
        if look.then is Then.RUN:
            await rig.settle(look, await rig.execute(look))
        elif look.then is Then.WAIT:
            await rig.agents_work()
        look = await rig.advance(workflow_id)
    assert all(len(steps) <= 1 for steps in in_flight)
    began = [steps[0] for steps in in_flight if steps]
    assert list(dict.fromkeys(began)) == ["first", "act", "act.on-failure", "tidy", "last"]
    seen = await rig.look(workflow_id)
    phases = [step.phase for step in sorted(seen.steps.values(), key=lambda step: step.seq)]
    assert phases == [Phase.MAIN] * 3 + [Phase.ON_FAILURE] + [Phase.CLEANUP] * 2
    assert seen.workflow.state is WorkflowState.FAILED


@pytest.mark.line("A15")
async def test_a15_code_is_marked_running_then_run_outside_of_any_transaction_then_settled(rig: Rig) -> None:
    seen_from_within: list[StepState] = []

    async def look_around(context: StepContext) -> dict[str, object]:
        # Its own mark is durable, and the database is free: it could not be read or written otherwise.
        seen_from_within.append((await rig.step(context.workflow_id, "work")).state)
        await rig.label(seen="yes")
        return {"answer": 42}

    rig.code["work"] = look_around
    workflow_id = await rig.start(work())
    marked = await rig.advance(workflow_id)
    assert marked.then is Then.RUN
    settlement = await rig.execute(marked)
    assert (await rig.step(workflow_id, "work")).state is RUNNING
    assert await rig.settle(marked, settlement)
    step = await rig.step(workflow_id, "work")
    assert (step.state, step.result, seen_from_within) == (StepState.SUCCEEDED, {"answer": 42}, [RUNNING])


@pytest.mark.line("A15")
@pytest.mark.line("A16")
@pytest.mark.parametrize(
    "meanwhile", ["aborted", "aborted near its deadline", "timed out", "next attempt", "taken over"]
)
async def test_a16_what_comes_back_too_late_is_dropped(rig: Rig, meanwhile: str) -> None:
    workflow_id = await rig.start(work(retries=2, timeout="1m"))
    marked = await rig.advance(workflow_id)
    if meanwhile == "aborted near its deadline":
        rig.clock.pass_by(30_000)
    if meanwhile.startswith("aborted"):
        await rig.abort(workflow_id, "not wanted")
    elif meanwhile == "taken over":
        late = rig.grip(marked.workflow.shard) if marked.workflow else None
        await rig.take_over("engine-2")
        assert late != rig.grip(marked.workflow.shard if marked.workflow else 0)
    else:
        rig.clock.pass_by(60_000)
        assert (await rig.advance(workflow_id)).then is Then.AGAIN
        if meanwhile == "next attempt":
            assert (await rig.advance(workflow_id)).then is Then.RUN
    before = await rig.look(workflow_id)
    if meanwhile == "taken over":
        rig.worker, new = "engine-1", rig.fences
        rig.fences = {shard: fence - 1 for shard, fence in new.items()}
    for settlement in (Settlement(result={"late": True}), Settlement(not_ready_ms=0)):
        assert not await rig.settle(marked, settlement)
    assert await rig.look(workflow_id) == before


@pytest.mark.line("A16")
async def test_a16_an_attempt_that_fails_after_an_abort_is_not_tried_again(rig: Rig) -> None:
    workflow_id = await rig.start(work(retries=5, timeout="10s"))
    marked = await rig.advance(workflow_id)
    settlement = Settlement(error=None, result=None, not_ready_ms=1)
    await rig.abort(workflow_id)
    assert not await rig.settle(marked, settlement)
    seen = await rig.finish(workflow_id)
    assert seen.workflow.state is WorkflowState.CANCELLED
    assert (seen.states, seen.steps["work"].attempt) == ({"work": "cancelled"}, 1)


@pytest.mark.line("A17")
async def test_a17_code_whose_worker_died_is_run_again_under_the_same_keys(rig: Rig) -> None:
    keys: list[str] = []

    async def send(context: StepContext) -> dict[str, object]:
        keys.append(context.key)
        return await context.await_command(kind="driver.invoke", payload=reset_of(context))

    rig.code["work"] = send
    workflow_id = await rig.start(work(retries=1))
    marked = await rig.advance(workflow_id)
    await rig.execute(marked)
    # The worker dies before it settles. The next one finds the step running, and nobody who runs it.
    await rig.take_over("engine-2")
    again = await rig.advance(workflow_id)
    assert again.then is Then.RUN
    await rig.settle(again, await rig.execute(again))
    assert keys == [f"wf:{workflow_id}:work"] * 2
    assert [row.key for row in await rig.commands(workflow_id)] == [f"wf:{workflow_id}:work#1"]
    rig.site.answer = lambda row: failed() if len(rig.site.done) == 1 else DONE
    assert (await rig.finish(workflow_id)).workflow.state is WorkflowState.SUCCEEDED
    assert keys[-1] == f"wf:{workflow_id}:work#2"


@pytest.mark.line("A18")
async def test_a18_a_step_that_is_not_ready_is_run_again_after_5_seconds_or_after_what_it_says(rig: Rig) -> None:
    waits: list[int | None] = [None, 30_000]

    async def ready_later(context: StepContext) -> None:
        if waits:
            raise context.not_ready(waits.pop(0))

    rig.code["work"] = ready_later
    workflow_id = await rig.start(work())
    begun = rig.clock.now
    assert (await rig.run(workflow_id)).wake_at == begun + 5_000
    rig.clock.pass_by(4_999)
    await rig.run(workflow_id)
    assert rig.runs["work"] == 1
    rig.clock.pass_by(1)
    assert (await rig.run(workflow_id)).wake_at == begun + 35_000
    rig.clock.pass_by(30_000)
    await rig.run(workflow_id)
    step = await rig.step(workflow_id, "work")
    assert (step.state, step.attempt, rig.runs["work"]) == (StepState.SUCCEEDED, 1, 3)


@pytest.mark.line("A18")
async def test_a18_a_step_that_is_never_ready_times_out(rig: Rig) -> None:
    async def never(context: StepContext) -> None:
        raise context.not_ready(45_000)

    rig.code["work"] = never
    workflow_id = await rig.start(work(timeout="1m"))
    begun = rig.clock.now
    seen = await rig.finish(workflow_id)
    error = seen.steps["work"].error
    assert error is not None
    assert (error.code, error.message) == ("STEP_TIMEOUT", "it was not done within 60 s")
    assert rig.clock.now == begun + 60_000
    assert rig.runs["work"] == 2


@pytest.mark.line("A19")
async def test_a19_an_agents_step_sends_one_command_whose_time_ends_with_the_steps(rig: Rig) -> None:
    workflow_id = await rig.start(power("reset", id="act", timeout="90s", retries=1))
    begun = rig.clock.now
    for _ in range(5):
        await rig.run(workflow_id, hinted=True)
        rig.clock.pass_by(10_000)
    (command,) = await rig.commands(workflow_id)
    step = await rig.step(workflow_id, "act")
    assert (command.key, command.not_after) == (f"wf:{workflow_id}:act", begun + 90_000)
    assert (step.command_id, step.deadline) == (command.id, command.not_after)
    rig.site.answer = lambda row: failed() if len(rig.site.done) == 1 else DONE
    await rig.finish(workflow_id)
    keys = [row.key for row in await rig.commands(workflow_id)]
    assert keys == [f"wf:{workflow_id}:act", f"wf:{workflow_id}:act#2"]


@pytest.mark.line("A20")
@pytest.mark.parametrize("place", ["site", "ramdisk", "daemon"])
async def test_a20_a_step_goes_to_the_sites_agent_or_to_the_machines_own(rig: Rig, place: str) -> None:
    agents = {"site": rig.site, "ramdisk": rig.machine.ramdisk, "daemon": rig.machine.daemon}
    await rig.machine.boot("daemon")
    steps = {"site": power("on"), "ramdisk": {"use": "task.run", "with": {}}, "daemon": {"use": "node.reboot"}}
    workflow_id = await rig.start(steps[place])
    await rig.run(workflow_id)
    (command,) = await rig.commands(workflow_id)
    assert (command.agent_id, command.node_id) == (agents[place].id, rig.node_id)
    assert command.payload["targetNodeId"] == rig.node_id


@pytest.mark.line("A20")
async def test_a20_a_ramdisk_that_has_not_booted_yet_is_waited_for(rig: Rig) -> None:
    workflow_id = await rig.start({"id": "install", "use": "task.run"})
    await rig.machine.off()
    await rig.run(workflow_id)
    assert (await rig.step(workflow_id, "install")).state is WAITING
    await rig.machine.boot("ramdisk")
    assert (await rig.finish(workflow_id)).workflow.state is WorkflowState.SUCCEEDED


def reset_of(context: StepContext) -> dict[str, object]:
    """A destructive command that only the control plane can put together."""
    return {
        "driver": "redfish",
        "concern": "power",
        "operation": "setPower",
        "args": {"action": "reset"},
        "targetNodeId": context.node_id,
        "target": {"address": "https://192.0.2.1", "credentialRef": "bmc-n1", "tls": "verify"},
    }


@pytest.mark.line("A21")
async def test_a21_a_relayed_command_is_sent_once_for_each_attempt_and_asked_for_every_2_seconds(rig: Rig) -> None:
    results: list[object] = []

    async def relay(context: StepContext) -> dict[str, object]:
        results.append(await context.await_command(kind="driver.invoke", payload=reset_of(context)))
        results.append(await context.await_command(kind="driver.invoke", payload=reset_of(context), key="again"))
        return {"done": True}

    rig.code["work"] = relay
    workflow_id = await rig.start(work())
    begun = rig.clock.now
    assert (await rig.run(workflow_id)).wake_at == begun + 2_000
    for _ in range(3):
        rig.clock.pass_by(2_000)
        await rig.run(workflow_id)
    assert (len(await rig.commands(workflow_id)), rig.runs["work"]) == (1, 4)
    rig.site.answer = lambda row: Ending(Outcome.SUCCEEDED, result={"number": len(rig.site.done)})
    seen = await rig.finish(workflow_id)
    first, second = await rig.commands(workflow_id)
    assert (first.key, second.key) == (f"wf:{workflow_id}:work#1", f"wf:{workflow_id}:work#1:again")
    assert results[-2:] == [{"number": 1}, {"number": 2}]
    assert seen.steps["work"].result == {"done": True}
    assert set(rig.executed.values()) == {1}


@pytest.mark.line("A21")
@pytest.mark.parametrize(("timeout_ms", "lasts_ms"), [(None, 60_000), (5_000, 5_000), (10**9, 60_000)])
async def test_a21_a_relayed_command_has_no_more_time_than_its_step(
    rig: Rig, timeout_ms: int | None, lasts_ms: int
) -> None:
    async def relay(context: StepContext) -> dict[str, object]:
        payload = reset_of(context)
        return await context.await_command(kind="driver.invoke", payload=payload, timeout_ms=timeout_ms)

    rig.code["work"] = relay
    workflow_id = await rig.start(work(timeout="1m"))
    await rig.run(workflow_id)
    (command,) = await rig.commands(workflow_id)
    assert command.not_after == rig.clock.now + lasts_ms


@pytest.mark.line("A21")
async def test_a21_a_relayed_result_is_found_also_when_the_agent_is_gone_since(rig: Rig) -> None:
    async def relay(context: StepContext) -> dict[str, object]:
        return await context.await_command(kind="driver.invoke", payload=reset_of(context))

    rig.code["work"] = relay
    workflow_id = await rig.start(work())
    await rig.run(workflow_id)
    await rig.agents_work()
    await rig.store.write(revoke_agent, TENANT, rig.site.id, "replaced")
    seen = await rig.finish(workflow_id, agents=False)
    assert (seen.workflow.state, seen.steps["work"].result) == (WorkflowState.SUCCEEDED, {"state": "on"})


@pytest.mark.line("A22")
@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (failed("BMC_REFUSED", "the BMC said no", bmc="Fan missing"), "Fan missing"),
        (Ending(Outcome.REJECTED, error=Failure("UNKNOWN_KIND", "I do not know this")), "I do not know this"),
        (Ending(Outcome.CANCELLED, error=Failure("CANCELLED", "stopped by hand")), "stopped by hand"),
        (None, "no agent took the command"),
    ],
    ids=["failed", "rejected", "cancelled", "expired"],
)
async def test_a22_a_relayed_command_that_does_not_succeed_is_a_driver_error(
    rig: Rig, ending: Ending | None, words: str
) -> None:
    async def relay(context: StepContext) -> dict[str, object]:
        return await context.await_command(kind="driver.invoke", payload=reset_of(context), timeout_ms=30_000)

    rig.code["work"] = relay
    workflow_id = await rig.start(work())
    if ending is None:
        await rig.site.disconnect()
        await rig.run(workflow_id)
        rig.clock.pass_by(30_001)
    else:
        rig.site.answer = lambda row: ending
    seen = await rig.finish(workflow_id)
    error = seen.steps["work"].error
    assert error is not None
    assert error.code == "DRIVER_ERROR"
    assert words in error.message


@pytest.mark.line("A23")
async def test_a23_waiting_is_looked_at_every_10_seconds_and_at_the_deadline_at_the_latest(rig: Rig) -> None:
    workflow_id = await rig.start(power("on", timeout="25s"))
    begun = rig.clock.now
    looks = []
    while (look := await rig.run(workflow_id)).then is Then.WAIT:
        assert look.wake_at is not None
        looks.append(look.wake_at - begun)
        assert (await rig.look(workflow_id)).workflow.wake_at == look.wake_at
        rig.clock.now = look.wake_at
    assert looks == [10_000, 20_000, 25_000]


@pytest.mark.line("A23")
async def test_a23_a_workflow_ends_with_every_hint_lost(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    workflow_id = await rig.start(work("one"), power("reset", id="two"), work("three"))
    rig.store.listen = lambda channel, callback: lambda: None  # type: ignore[method-assign]
    async with rig.reconciler():
        while (await rig.look(workflow_id)).workflow.step_id != "two":
            await asyncio.sleep(0.01)
        await rig.agents_work()
        rig.clock.pass_by(10_000)
        while (await rig.look(workflow_id)).workflow.state is not WorkflowState.SUCCEEDED:
            await asyncio.sleep(0.01)


@pytest.mark.line("A24")
@pytest.mark.parametrize("step", [work(timeout="1m"), power("on", id="work", timeout="1m")], ids=["code", "agent"])
async def test_a24_an_overdue_step_fails_at_the_next_look(rig: Rig, step: dict[str, object]) -> None:
    async def slow(context: StepContext) -> None:
        raise context.not_ready(50_000)

    rig.code["work"] = slow
    workflow_id = await rig.start(step)
    await rig.run(workflow_id)
    # No worker looks for a day.
    rig.clock.pass_by(86_400_000)
    assert (await rig.advance(workflow_id)).then is Then.AGAIN
    error = (await rig.step(workflow_id, "work")).error
    assert error is not None
    assert error.code == "STEP_TIMEOUT"


@pytest.mark.line("A25")
async def test_a25_a_verb_and_the_reconciler_follow_one_another(rig: Rig) -> None:
    for _ in range(10):
        workflow_id = await rig.start(work("one"), work("two"))
        await rig.advance(workflow_id)
        await asyncio.gather(rig.pause(workflow_id), *(rig.advance(workflow_id) for _ in range(4)))
        await asyncio.gather(
            rig.abort(workflow_id), *(rig.run(workflow_id) for _ in range(4)), rig.abort(workflow_id)
        )
        seen = await rig.finish(workflow_id)
        assert seen.workflow.state is WorkflowState.CANCELLED
        names = await rig.event_names(workflow_id)
        assert (names.count("started"), names.count("paused"), names.count("cancelled")) == (1, 1, 1)


@pytest.mark.line("A25")
async def test_a25_every_call_makes_one_transition_at_most(rig: Rig) -> None:
    workflow_id = await rig.start(work("one"), work("two", when="absent"), power("on", id="three"))
    states = []
    for _ in range(3):
        look = await rig.advance(workflow_id)
        states.append((await rig.look(workflow_id)).states)
        if look.then is Then.RUN:
            await rig.settle(look, Settlement(result={}))
            states.append((await rig.look(workflow_id)).states)
    for before, after in pairwise(states):
        assert len([step for step in before if before[step] != after[step]]) == 1


@pytest.mark.line("A28")
async def test_a28_a_step_whose_expression_is_false_is_skipped_with_an_event_and_the_workflow_goes_on(
    rig: Rig,
) -> None:
    workflow_id = await rig.start(work("one", when="gpu"), work("two", when="  "), work("three", when="!gpu"))
    seen = await rig.finish(workflow_id)
    assert seen.states == {"one": "skipped", "two": "skipped", "three": "succeeded"}
    assert await rig.event_names(workflow_id) == [
        "created",
        "started",
        "step.skipped one",
        "step.skipped two",
        "step.started three",
        "step.succeeded three",
        "succeeded",
    ]


@pytest.mark.line("A28")
async def test_a28_a_workflow_whose_every_step_is_skipped_has_started_and_succeeded(rig: Rig) -> None:
    workflow_id = await rig.start(work(when="gpu"))
    seen = await rig.finish(workflow_id)
    assert seen.workflow.started_at is not None
    assert await rig.event_names(workflow_id) == ["created", "started", "step.skipped work", "succeeded"]


@pytest.mark.line("A29")
async def test_a29_labels_are_read_when_the_step_is_about_to_start(rig: Rig) -> None:
    async def inspect(context: StepContext) -> None:
        await rig.label(gpu__model="H100")

    rig.code["inspect"] = inspect
    workflow_id = await rig.start(
        work("before", when="gpu.model=H100"), work("inspect"), work("after", when="gpu.model=H100")
    )
    seen = await rig.finish(workflow_id)
    assert seen.states == {"before": "skipped", "inspect": "succeeded", "after": "succeeded"}


async def test_what_an_attempt_sent_is_stopped_when_the_attempt_fails(rig: Rig) -> None:
    async def two_at_once(context: StepContext) -> dict[str, object]:
        await asyncio.gather(
            *(context.await_command(kind="driver.invoke", payload=reset_of(context), key=key) for key in "ab"),
            return_exceptions=True,
        )
        raise ValueError("it went wrong")

    rig.code["work"] = two_at_once
    workflow_id = await rig.start(work())
    seen = await rig.finish(workflow_id, agents=False)
    error = seen.steps["work"].error
    assert error is not None
    assert (error.code, error.message) == ("STEP_FAILED", "ValueError: it went wrong")
    assert [row.state for row in await rig.commands(workflow_id)] == [CommandState.CANCELLED] * 2


async def test_a_command_too_large_to_be_sent_fails_its_step(rig: Rig) -> None:
    workflow_id = await rig.start({"id": "big", "use": "task.run", "with": {"script": "x" * 600_000}})
    seen = await rig.finish(workflow_id)
    error = seen.steps["big"].error
    assert seen.workflow.state is WorkflowState.FAILED
    assert error is not None
    assert error.code == "TOO_LARGE"


@pytest.mark.parametrize("step", [operation("power.getPower")])
async def test_a_step_of_a_node_that_was_removed_fails_and_says_so(rig: Rig, step: dict[str, object]) -> None:
    workflow_id = await rig.start({**step, "id": "read"})
    await rig.store.write(lambda tx: tx.run("DELETE FROM nodes WHERE id = :id", {"id": rig.node_id}))
    seen = await rig.finish(workflow_id)
    error = seen.steps["read"].error
    assert error is not None
    assert error.code == "NO_AGENT"
    assert "not there any more" in error.message
