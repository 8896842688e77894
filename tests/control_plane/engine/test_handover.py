"""Workers that die or are replaced, two that hold one shard, and a database that goes away (A26, A52, A53)."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from control_plane.engine.context import StepContext
from control_plane.engine.rows import lock_workflow
from control_plane.engine.shards import give_back, take_anew, take_shards
from control_plane.engine.states import StepState, WorkflowState
from control_plane.engine.timing import SHARDS
from control_plane.engine.transitions import Look, Next, Settle, Settlement, Then, transit
from control_plane.store import CommitUnknown, StoreUnavailable, Transaction, migrate, open_store
from tests.control_plane.engine.rig import WORKER, Rig, make_rig, power, work
from tests.control_plane.ledger import Clock

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


@pytest.mark.case("B58")
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


@pytest.mark.case("B58")
async def test_two_processes_of_one_name_share_no_hold(rig: Rig) -> None:
    """The one that started last drives; the other one knows that it holds nothing, and gives nothing back."""
    take = rig.store.write
    first = await take(take_anew, "same", 15_000)
    await take(give_back, WORKER, rig.fences)
    first = await take(take_shards, "same", first, 15_000, True)
    second = await take(take_anew, "same", 15_000)
    assert (len(first), len(second)) == (SHARDS, SHARDS)
    assert await take(take_shards, "same", first, 15_000, True) == {}
    # What the first one does keeps the second one's leases neither alive nor ends them.
    await take(give_back, "same", first)
    assert await take(take_shards, "same", second, 15_000, False) == second
    rig.clock.pass_by(15_001)
    assert await take(take_shards, "same", second, 15_000, False) != second


async def test_a_worker_whose_name_another_process_took_says_so_once(
    sqlite_rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = sqlite_rig
    async with rig.reconciler(), rig.reconciler(), asyncio.timeout(20):
        while "another process calls itself" not in caplog.text:
            await asyncio.sleep(0.01)
        workflow_id = await rig.start(work())
        await until(rig, workflow_id, is_succeeded)
    assert caplog.text.count("another process calls itself") == 1
    assert rig.runs["work"] == 1


@pytest.mark.line("A26")
async def test_a26_shards_are_shared_out_given_up_and_taken_over(rig: Rig) -> None:
    take = rig.store.write
    await take(give_back, WORKER, rig.fences)
    one = await take(take_shards, "one", {}, 15_000, True)
    assert len(one) == SHARDS
    await take(take_shards, "two", {}, 15_000, True)
    kept = await take(take_shards, "one", one, 15_000, True)
    two = await take(take_shards, "two", {}, 15_000, True)
    assert (len(kept), len(two), kept.keys() & two.keys()) == (16, 16, set())
    assert all(two[shard] > one[shard] for shard in two)
    # The first one dies: its lease runs out by the database's clock.
    rig.clock.pass_by(10_000)
    await take(take_shards, "two", two, 15_000, True)
    rig.clock.pass_by(5_001)
    assert len(await take(take_shards, "two", two, 15_000, True)) == SHARDS


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
async def test_a53_an_execution_that_was_overtaken_does_not_fail_the_attempt(sqlite_rig: Rig) -> None:
    """What it learns on the way, that the step waits by now, may be old again when it says so."""
    rig, entered, go = sqlite_rig, asyncio.Event(), asyncio.Event()

    async def relay(context: StepContext) -> dict[str, object]:
        if not entered.is_set():
            entered.set()
            await go.wait()
        return await context.await_command(kind="task.run", payload={"script": "install"})

    rig.code["relay"] = relay
    workflow_id = await rig.start(work("relay"))
    first = await rig.advance(workflow_id)
    overtaken = asyncio.create_task(rig.execute(first))
    await entered.wait()
    second = await rig.advance(workflow_id)
    assert await rig.settle(second, await rig.execute(second))
    go.set()
    late = await overtaken
    assert (await rig.advance(workflow_id, hinted=True)).then is Then.RUN
    await rig.settle(first, late)
    assert (await rig.step(workflow_id, "relay")).error is None
    assert (await rig.finish(workflow_id)).workflow.state is SUCCEEDED
    assert len(await rig.commands(workflow_id)) == 1


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


@pytest.mark.case("B58")
@pytest.mark.parametrize("kind", [Look, Settle])
@pytest.mark.parametrize("stored", [False, True], ids=["nothing stored", "its answer lost"])
async def test_a_database_that_goes_away_for_a_moment_has_no_code_run_twice(
    sqlite_rig: Rig, kind: type, stored: bool
) -> None:
    """Neither a step that was marked as running and not begun waits for its deadline, nor is an outcome lost."""
    rig = sqlite_rig
    write, away = rig.store.write, asyncio.Event()

    async def flaky(fn: Any, *args: Any) -> Any:
        if fn is not transit or away.is_set() or not any(isinstance(asked, kind) for asked in args[1]):
            return await write(fn, *args)
        away.set()
        if stored:
            await write(fn, *args)
            raise CommitUnknown("the connection was lost")
        raise StoreUnavailable("the disk is full")

    rig.store.write = flaky  # type: ignore[method-assign, assignment]
    workflow_id = await rig.start(work(timeout="1d"))
    async with rig.reconciler():
        await until(rig, workflow_id, is_succeeded)
    assert rig.runs["work"] == 1
    names = await rig.event_names(workflow_id)
    assert len(names) == len(set(names))


@pytest.mark.case("B58")
async def test_an_outcome_is_given_up_when_the_shard_is_lost(sqlite_rig: Rig) -> None:
    """Another worker has begun the code anew: what the first one brings does not count any more."""
    rig = sqlite_rig
    write = rig.store.write
    offered = asyncio.Event()

    async def never_settles(fn: Any, *args: Any) -> Any:
        if fn is transit and any(isinstance(asked, Settle) and asked.grip.worker == WORKER for asked in args[1]):
            offered.set()
            raise StoreUnavailable("the disk is full")
        return await write(fn, *args)

    rig.store.write = never_settles  # type: ignore[method-assign, assignment]
    workflow_id = await rig.start(work(timeout="1d"))
    async with rig.reconciler():
        await offered.wait()
        async with rig.reconciler("engine-2"):
            await until(rig, workflow_id, is_succeeded)
    assert rig.runs["work"] == 2


@dataclass
class Endless:
    """Code that runs until it is ended."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: int = 0
    most_at_once: int = 0

    async def __call__(self, context: StepContext) -> None:
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.at_once -= 1
            self.ended.set()


async def test_code_ends_whose_shard_was_given_to_a_worker_that_joined(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    code = rig.code["work"] = Endless()
    ids = [await rig.start(work(timeout="1d"), node=False) for _ in range(12)]
    async with rig.reconciler(), asyncio.timeout(20):
        while code.at_once < len(ids):
            await asyncio.sleep(0.005)
        assert len(await rig.store.write(take_shards, "engine-2", {}, 10**12, True)) == 0
        await code.ended.wait()
        taken = await rig.store.write(take_shards, "engine-2", {}, 10**12, True)
        shards = [(await rig.look(workflow_id)).workflow.shard for workflow_id in ids]
        while code.at_once > len([shard for shard in shards if shard not in taken]):
            await asyncio.sleep(0.005)
    assert rig.runs["work"] == len(ids)


@pytest.mark.case("B58")
async def test_code_ends_when_the_lease_cannot_be_renewed_and_runs_again_when_it_can(sqlite_rig: Rig) -> None:
    """Its worker cannot know whether another one has taken the shard."""
    rig = sqlite_rig
    code = rig.code["work"] = Endless()
    write, away = rig.store.write, asyncio.Event()

    async def flaky(fn: Any, *args: Any) -> Any:
        if away.is_set():
            raise StoreUnavailable("the disk is full")
        return await write(fn, *args)

    rig.store.write = flaky  # type: ignore[method-assign, assignment]
    await rig.start(work(timeout="1d"))
    async with rig.reconciler(lease_ms=600), asyncio.timeout(20):
        await code.begun.wait()
        away.set()
        code.begun.clear()
        await code.ended.wait()
        away.clear()
        await code.begun.wait()
    assert (rig.runs["work"], code.most_at_once) == (2, 1)


async def test_a_worker_that_stops_gives_its_shards_back_after_its_code_has_ended(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    begun, held = asyncio.Event(), []

    async def tidies_up(context: StepContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            held.append(await rig.store.write(take_shards, "engine-2", {}, 15_000, True))

    rig.code["work"] = tidies_up
    await rig.start(work(timeout="1d"))
    async with rig.reconciler(), asyncio.timeout(20):
        await begun.wait()
    assert held == [{}]
    assert len(await rig.store.write(take_shards, "engine-2", {}, 15_000, True)) == SHARDS


async def test_code_that_keeps_its_end_to_itself_is_over_all_the_same(sqlite_rig: Rig) -> None:
    """An abort tells it to end; it goes on for a moment and returns as if nothing had been."""
    rig = sqlite_rig
    begun = asyncio.Event()

    async def stubborn(context: StepContext) -> dict[str, object]:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return {"done": True}

    async def cancelled_from_within(context: StepContext) -> None:
        raise asyncio.CancelledError

    rig.code |= {"work": stubborn, "tidy": cancelled_from_within}
    workflow_id = await rig.start(work(timeout="1d"), cleanup=[work("tidy")])
    async with rig.reconciler(), asyncio.timeout(20):
        await begun.wait()
        await rig.abort(workflow_id)
        await until(rig, workflow_id, lambda seen: seen.workflow.state is WorkflowState.CANCELLED)
    seen = await rig.look(workflow_id)
    assert seen.states == {"work": "cancelled", "tidy": "failed"}
    assert rig.runs["tidy"] == 1
    assert seen.steps["work"].result is None


async def test_a_row_that_somebody_holds_keeps_no_shard_from_being_taken(postgres_url: str) -> None:
    """Nor from being kept: both are one transaction."""
    store = open_store(postgres_url)
    await migrate(store)
    rig = await make_rig(store, Clock())
    workflow_id = await rig.start(work(timeout="1d"))
    await rig.advance(workflow_id)
    holding, go = threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        lock_workflow(tx, workflow_id)
        holding.set()
        go.wait(30)

    holder = asyncio.create_task(store.write(hold))
    await asyncio.to_thread(holding.wait)
    await store.write(give_back, WORKER, rig.fences)
    assert len(await store.write(take_shards, "engine-2", {}, 15_000, True)) == SHARDS
    go.set()
    await holder
    await store.close()


async def test_nobody_takes_a_shard_while_a_transition_of_it_is_under_way(postgres_url: str) -> None:
    """Its worker may give it up, or renew it, meanwhile: the hold lasts until the transition is stored."""
    store = open_store(postgres_url)
    await migrate(store)
    rig = await make_rig(store, Clock())
    workflow_id = await rig.start(work(timeout="1d"))
    shard = (await rig.look(workflow_id)).workflow.shard
    made, go = threading.Event(), threading.Event()

    def slowly(tx: Transaction) -> Next:
        (answer,) = transit(tx, rig.timing, [Look(workflow_id, rig.grip(shard))])
        made.set()
        go.wait(30)
        return answer

    under_way = asyncio.create_task(store.write(slowly))
    await asyncio.to_thread(made.wait)
    assert len(await store.write(take_shards, WORKER, rig.fences, 15_000, True)) == SHARDS
    await store.write(give_back, WORKER, rig.fences)
    taken = await store.write(take_shards, "engine-2", {}, 15_000, True)
    assert taken.keys() == set(range(SHARDS)) - {shard}
    go.set()
    assert (await under_way).then is Then.RUN
    taken = await store.write(take_shards, "engine-2", {}, 15_000, True)
    assert shard in taken
    late = Look(workflow_id, rig.grip(shard))
    assert (await store.write(transit, rig.timing, [late]))[0].then is Then.OVER
    await store.close()


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
    assert len(await rig.store.write(take_shards, "engine-2", {}, 15_000, True)) == SHARDS


async def test_a_worker_that_was_not_seen_for_a_day_is_forgotten(rig: Rig) -> None:
    await rig.take_over("gone")
    rig.clock.now += 86_400_001
    await rig.take_over("here")
    assert await rig.store.read(lambda tx: tx.all("SELECT name FROM workers")) == [("here",)]
