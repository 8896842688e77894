"""Transitions that are asked for at the same time share a transaction, and nothing else."""

import asyncio
import threading
from typing import Any

import pytest

from control_plane.engine.desk import Desk
from control_plane.engine.rows import Grip, lock_workflow
from control_plane.engine.transitions import Look, Settle, Settlement, Then, transit
from control_plane.store import ConstraintViolated, StoreUnavailable, Transaction, migrate, open_store
from protocol.ids import new_id
from tests.control_plane.engine.rig import Rig, make_rig, work
from tests.control_plane.ledger import Clock


async def _started(rig: Rig, count: int) -> list[Look]:
    ids = [await rig.start(work(), node=False) for _ in range(count)]
    shards = {identifier: (await rig.look(identifier)).workflow.shard for identifier in ids}
    return [Look(identifier, rig.grip(shard)) for identifier, shard in shards.items()]


async def test_what_is_asked_for_together_is_made_in_one_transaction(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    looks = await _started(rig, 5)
    batches = _watch(rig)
    answers = await asyncio.gather(*(Desk(rig.store, rig.timing).ask(look) for look in looks[:1]))
    desk = Desk(rig.store, rig.timing)
    answers += await asyncio.gather(*(desk.ask(look) for look in looks[1:]))
    assert [answer.then for answer in answers] == [Then.RUN] * 5
    assert batches == [1, 4]


async def test_one_workflow_is_never_twice_in_a_batch(sqlite_rig: Rig) -> None:
    """A settlement and a look beside it follow one another: each sees what the other did."""
    rig = sqlite_rig
    (look,) = await _started(rig, 1)
    desk = Desk(rig.store, rig.timing)
    running = await desk.ask(look)
    assert running.step is not None
    batches = _watch(rig)
    settled, beside = await asyncio.gather(
        desk.ask(Settle(running.step, look.grip, Settlement(result={}))),
        desk.ask(look._replace(executing=(running.step.seq, running.step.attempt))),
    )
    assert settled.then is Then.AGAIN
    assert beside.then is Then.AGAIN
    assert batches == [1, 1]


async def test_a_transition_that_fails_does_not_disturb_its_neighbours(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    looks = await _started(rig, 4)
    broken = looks[2].workflow_id
    await rig.store.write(_spoil, broken)
    desk = Desk(rig.store, rig.timing)
    answers = await asyncio.gather(*(desk.ask(look) for look in looks), return_exceptions=True)
    failed = [look.workflow_id for look, answer in zip(looks, answers, strict=True) if isinstance(answer, Exception)]
    assert failed == [broken]
    assert [getattr(answer, "then", None) for answer in answers] == [Then.RUN, Then.RUN, None, Then.RUN]


async def test_a_workflow_that_has_failed_is_tried_alone_until_it_is_well_again(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    looks = await _started(rig, 4)
    spec = await rig.store.write(_spoil, looks[2].workflow_id)
    desk = Desk(rig.store, rig.timing)
    batches = _watch(rig)
    for _ in range(2):
        answers = await asyncio.gather(*(desk.ask(look) for look in looks), return_exceptions=True)
        assert [isinstance(answer, Exception) for answer in answers] == [False, False, True, False]
    assert sorted(batches) == [1, 1, 1, 1, 1, 3, 4]
    await rig.store.write(_mend, looks[2].workflow_id, spec)
    batches.clear()
    for _ in range(2):
        await asyncio.gather(*(desk.ask(look) for look in looks))
    assert sorted(batches) == [1, 3, 4]


async def test_a_batch_that_breaks_a_rule_of_the_database_is_made_one_by_one(rig: Rig) -> None:
    looks = await _started(rig, 3)
    await rig.store.write(_forbid_to_run, looks[1].workflow_id)
    desk = Desk(rig.store, rig.timing)
    answers = await asyncio.gather(*(desk.ask(look) for look in looks), return_exceptions=True)
    assert [getattr(answer, "then", None) for answer in answers] == [Then.RUN, None, Then.RUN]
    assert isinstance(answers[1], ConstraintViolated)
    for look in looks[::2]:
        assert await rig.event_names(look.workflow_id) == ["created", "started", "step.started work"]
    assert await rig.event_names(looks[1].workflow_id) == ["created"]


@pytest.mark.case("B50")
async def test_a_row_that_somebody_holds_keeps_nobody_else_waiting(postgres_url: str) -> None:
    """An operator's verb that takes long, or a console of the database that was left open."""
    store = open_store(postgres_url)
    await migrate(store)
    rig = await make_rig(store, Clock())
    looks = await _started(rig, 5)
    desk = Desk(rig.store, rig.timing)
    holding, go = threading.Event(), threading.Event()
    holder = asyncio.create_task(store.write(_hold, looks[2].workflow_id, holding, go))
    await asyncio.to_thread(holding.wait)
    held = asyncio.create_task(desk.ask(looks[2]))
    free = [desk.ask(look) for look in (*looks[:2], *looks[3:])]
    assert [answer.then for answer in await asyncio.gather(*free)] == [Then.RUN] * 4
    assert not held.done()
    go.set()
    await holder
    assert (await held).then is Then.RUN
    await store.close()


async def test_a_workflow_of_another_worker_is_over_also_beside_a_row_that_is_held(rig: Rig) -> None:
    looks = await _started(rig, 2)
    lost = looks[1]._replace(grip=Grip("somebody else", 1))
    answers = await rig.store.write(transit, rig.timing, [looks[0], lost], False)
    assert [answer.then for answer in answers] == [Then.RUN, Then.OVER]


async def test_a_database_that_is_away_is_asked_once_for_all_of_a_batch(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    looks = await _started(rig, 3)
    calls = 0

    async def away(*_: Any) -> Any:
        nonlocal calls
        calls += 1
        raise StoreUnavailable("the disk is full")

    rig.store.write = away  # type: ignore[method-assign, assignment]
    desk = Desk(rig.store, rig.timing)
    answers = await asyncio.gather(*(desk.ask(look) for look in looks), return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    assert calls == 1


async def test_a_workflow_that_is_gone_is_over(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    (look,) = await _started(rig, 1)
    answer = await Desk(rig.store, rig.timing).ask(look._replace(workflow_id=new_id("wf")))
    assert answer.then is Then.OVER


@pytest.mark.parametrize("count", [300])
async def test_a_long_queue_is_made_in_batches_of_a_bounded_size(sqlite_rig: Rig, count: int) -> None:
    rig = sqlite_rig
    looks = await _started(rig, count)
    batches = _watch(rig)
    desk = Desk(rig.store, rig.timing)
    answers = await asyncio.gather(*(desk.ask(look) for look in looks))
    assert {answer.then for answer in answers} == {Then.RUN}
    assert batches == [256, 44]


def _spoil(tx: Transaction, workflow_id: str) -> str:
    """Makes a step unreadable. What was there."""
    found = tx.one("SELECT spec FROM step_plans WHERE workflow_id = :id", {"id": workflow_id})
    assert found is not None
    _mend(tx, workflow_id, "no JSON")
    return str(found[0])


def _mend(tx: Transaction, workflow_id: str, spec: str) -> None:
    tx.run("UPDATE step_plans SET spec = :spec WHERE workflow_id = :id", {"id": workflow_id, "spec": spec})


def _forbid_to_run(tx: Transaction, workflow_id: str) -> None:
    """From now on the database refuses that this workflow runs."""
    tx.run(
        "CREATE UNIQUE INDEX forbidden ON workflows (profile_version) "
        f"WHERE state = 'running' AND id IN ('{workflow_id}', 'wf_running')"
    )
    tx.run(
        "INSERT INTO workflows (id, tenant_id, profile_id, profile_version, shard, state, created_at, "
        "updated_at) SELECT 'wf_running', tenant_id, profile_id, profile_version, shard, 'running', "
        "created_at, updated_at FROM workflows WHERE id = :id",
        {"id": workflow_id},
    )


def _hold(tx: Transaction, workflow_id: str, holding: threading.Event, go: threading.Event) -> None:
    lock_workflow(tx, workflow_id)
    holding.set()
    go.wait(30)


def _watch(rig: Rig) -> list[int]:
    """The sizes of the batches from now on."""
    write, sizes = rig.store.write, []

    async def watched(fn: Any, *args: Any) -> Any:
        if fn is transit:
            sizes.append(len(args[1]))
        return await write(fn, *args)

    rig.store.write = watched  # type: ignore[method-assign, assignment]
    return sizes
