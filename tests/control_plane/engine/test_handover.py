"""Workers that die or are replaced, two that hold one shard, and a database that goes away (A26, A52, A53)."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from control_plane.engine.context import StepContext
from control_plane.engine.shards import give_back, take_shards
from control_plane.engine.states import StepState, WorkflowState
from control_plane.engine.timing import SHARDS
from control_plane.engine.transitions import Settle, Settlement, Then, transit
from control_plane.store import StoreUnavailable
from tests.control_plane.engine.rig import WORKER, Rig, power, work

SUCCEEDED = WorkflowState.SUCCEEDED


async def until(rig: Rig, workflow_id: str, holds: Callable[[Any], bool]) -> None:
    """Waits until the stored workflow is so."""
    while not holds(await rig.look(workflow_id)):
        await asyncio.sleep(0.005)


def is_succeeded(seen: Any) -> bool:
    return bool(seen.workflow.state is SUCCEEDED)


@pytest.mark.line("A26")
async def test_a26_another_worker_goes_on_where_the_rows_say(rig: Rig) -> None:
    workflow_id = await rig.start(work("one"), power("reset", id="two"), work("three"), cleanup=[work("four")])
    transitions = 0
    while (await rig.look(workflow_id)).workflow.state is not SUCCEEDED:
        transitions += 1
        await rig.take_over(f"engine-{transitions}")
        look = await rig.advance(workflow_id, hinted=True)
        if look.then is Then.RUN:
            settlement = await rig.execute(look)
            await rig.settle(look, settlement)
        elif look.then is Then.WAIT:
            await rig.agents_work()
    assert rig.runs == {"one": 1, "three": 1, "four": 1}
    assert list(rig.executed.values()) == [1]


@pytest.mark.line("A26")
async def test_a26_a_worker_that_lost_its_shard_changes_nothing_also_in_the_middle_of_a_step(rig: Rig) -> None:
    workflow_id = await rig.start(work("one"), work("two"))
    old = dict(rig.fences)
    marked = await rig.advance(workflow_id)
    await rig.take_over("engine-2")
    before = await rig.look(workflow_id)
    rig.worker, new = WORKER, rig.fences
    rig.fences = old
    assert not await rig.settle(marked, Settlement(result={}))
    assert (await rig.advance(workflow_id)).then is Then.OVER
    assert await rig.look(workflow_id) == before
    # Nor does its old fence count when the shard comes back to it.
    await rig.take_over(WORKER)
    assert rig.fences != old
    assert new != old
    rig.fences = old
    assert not await rig.settle(marked, Settlement(result={}))


@pytest.mark.line("A26")
@pytest.mark.parametrize("successor", [WORKER, "engine-2"], ids=["restarted", "another"])
async def test_a26_code_that_a_dead_worker_was_running_is_run_anew_as_soon_as_its_shard_is_taken(
    rig: Rig, successor: str
) -> None:
    """Not when the step's time is over, which may be hours away."""
    begun, never = asyncio.Event(), asyncio.Event()

    async def hang_once(context: StepContext) -> None:
        begun.set()
        if rig.runs["work"] == 1:
            await never.wait()

    rig.code["work"] = hang_once
    workflow_id = await rig.start(work(timeout="1d"))
    first = await rig.advance(workflow_id)
    assert first.then is Then.RUN
    dead = asyncio.create_task(rig.execute(first))
    await begun.wait()
    async with rig.reconciler(successor):
        await until(rig, workflow_id, is_succeeded)
    assert rig.runs["work"] == 2
    dead.cancel()


@pytest.mark.line("A26")
async def test_a26_shards_are_shared_out_given_up_and_taken_over(rig: Rig) -> None:
    take = rig.store.write
    await take(give_back, WORKER)
    one = await take(take_shards, "one", 15_000, True)
    assert len(one) == SHARDS
    await take(take_shards, "two", 15_000, True)
    kept = await take(take_shards, "one", 15_000, True)
    two = await take(take_shards, "two", 15_000, True)
    assert (len(kept), len(two), kept.keys() & two.keys()) == (16, 16, set())
    assert all(two[shard] > one[shard] for shard in two)
    # The first one dies: its lease runs out by the database's clock.
    rig.clock.pass_by(10_000)
    await take(take_shards, "two", 15_000, True)
    rig.clock.pass_by(5_001)
    assert len(await take(take_shards, "two", 15_000, True)) == SHARDS


@pytest.mark.line("A52")
@pytest.mark.parametrize("lost", ["before it is sent", "before it begins", "while it acts", "before it reports"])
async def test_a52_a_site_agent_that_is_gone_holds_its_steps_and_then_finishes_without_duplicates(
    rig: Rig, lost: str
) -> None:
    workflow_id = await rig.start(power("reset", id="one"), power("reset", id="two"), work("three"))
    if lost == "before it is sent":
        await rig.site.disconnect()
        await rig.run(workflow_id)
    else:
        await rig.run(workflow_id)
        (row,) = await rig.site.receive()
        if lost != "before it begins":
            rig.site.answer = lambda _: None
            await rig.site.begin(row.id)
        await rig.site.disconnect()
        if lost == "before it reports":
            await rig.site.finish(row.id)
    for _ in range(10):
        rig.clock.pass_by(30_000)
        await rig.run(workflow_id, hinted=True)
    assert (await rig.step(workflow_id, "one")).state is StepState.WAITING
    await rig.site.connect()
    if lost == "while it acts":
        await rig.site.finish(row.id)
    rig.site.answer = type(rig.site).answer
    seen = await rig.finish(workflow_id)
    assert seen.workflow.state is SUCCEEDED
    assert list(rig.executed.values()) == [1, 1]
    assert len(await rig.commands(workflow_id)) == 2


@pytest.mark.line("A53")
async def test_a53_two_workers_with_the_same_hold_send_one_command_for_each_attempt(rig: Rig) -> None:
    """Of the same name, by a mistake in their configuration: the rows' locks still make them follow one another."""

    async def relay(context: StepContext) -> dict[str, object]:
        return await context.await_command(kind="task.run", payload={"script": "install"})

    rig.code["relay"] = relay
    workflow_id = await rig.start(power("reset", id="one", retries=1), work("relay"), power("reset", id="two"))
    for _ in range(60):
        await asyncio.gather(*(rig.run(workflow_id, hinted=True) for _ in range(4)))
        if not await rig.agents_work():
            rig.clock.pass_by(1_000)
        if (await rig.look(workflow_id)).workflow.state is SUCCEEDED:
            break
    assert [row.key for row in await rig.commands(workflow_id)] == [
        f"wf:{workflow_id}:one",
        f"wf:{workflow_id}:relay#1",
        f"wf:{workflow_id}:two",
    ]
    assert set(rig.executed.values()) == {1}
    names = await rig.event_names(workflow_id)
    assert len(names) == len(set(names))


@pytest.mark.line("A53")
async def test_a53_two_reconcilers_of_the_same_name_do_everything_once(rig: Rig) -> None:
    ids = [await rig.start(work("one"), work("two"), node=False) for _ in range(10)]
    async with rig.reconciler() as one, rig.reconciler() as two:
        for workflow_id in ids:
            for reconciler in (one, two):
                reconciler.hint(workflow_id)
            await until(rig, workflow_id, is_succeeded)
    for workflow_id in ids:
        names = await rig.event_names(workflow_id)
        assert len(names) == len(set(names)) == 7


async def test_what_a_database_that_went_away_interrupted_goes_on_when_it_is_back(sqlite_rig: Rig) -> None:
    """A step whose settlement could not be stored is run again by the same worker, not at its deadline."""
    rig = sqlite_rig
    write, away = rig.store.write, asyncio.Event()

    async def flaky(fn: Any, *args: Any) -> Any:
        settles = fn is transit and any(isinstance(asked, Settle) for asked in args[1])
        if settles and not away.is_set():
            away.set()
            raise StoreUnavailable("the disk is full")
        return await write(fn, *args)

    rig.store.write = flaky  # type: ignore[method-assign, assignment]
    workflow_id = await rig.start(work(timeout="1d"))
    async with rig.reconciler():
        await until(rig, workflow_id, is_succeeded)
    assert rig.runs["work"] == 2


async def test_an_abort_ends_the_code_that_runs(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang(context: StepContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    rig.code["work"] = hang
    workflow_id = await rig.start(work(timeout="1d"), work("never"), cleanup=[work("tidy")])
    async with rig.reconciler():
        await begun.wait()
        await rig.abort(workflow_id)
        await ended.wait()
        await until(rig, workflow_id, lambda seen: seen.workflow.state is WorkflowState.CANCELLED)
    assert (await rig.look(workflow_id)).states == {"work": "cancelled", "never": "cancelled", "tidy": "succeeded"}


async def test_the_reconciler_drives_a_workflow_from_hint_to_hint(rig: Rig) -> None:
    async with rig.reconciler():
        workflow_id = await rig.start(work("one"), power("reset", id="two"), work("three"))
        await until(rig, workflow_id, lambda seen: seen.workflow.step_id == "two")
        await rig.agents_work()
        # The clock stands still: nothing but the hint of the command's end can have made it look.
        await until(rig, workflow_id, is_succeeded)


async def test_a_worker_that_stops_in_good_order_gives_its_shards_back(rig: Rig) -> None:
    async with rig.reconciler():
        workflow_id = await rig.start(work())
        await until(rig, workflow_id, is_succeeded)
    assert len(await rig.store.write(take_shards, "engine-2", 15_000, True)) == SHARDS


async def test_a_worker_that_was_not_seen_for_a_day_is_forgotten(rig: Rig) -> None:
    await rig.take_over("gone")
    rig.clock.now += 86_400_001
    await rig.take_over("here")
    assert await rig.store.read(lambda tx: tx.all("SELECT name FROM workers")) == [("here",)]
