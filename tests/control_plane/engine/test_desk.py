"""Transitions that are asked for at the same time share a transaction, and nothing else."""

import asyncio
from typing import Any

import pytest

from control_plane.engine.desk import Desk
from control_plane.engine.transitions import Look, Settle, Settlement, Then, transit
from control_plane.store import StoreUnavailable, Transaction
from protocol.ids import new_id
from tests.control_plane.engine.rig import Rig, work


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


def _spoil(tx: Transaction, workflow_id: str) -> None:
    tx.run("UPDATE workflow_steps SET spec = 'no JSON' WHERE workflow_id = :id", {"id": workflow_id})


def _watch(rig: Rig) -> list[int]:
    """The sizes of the batches from now on."""
    write, sizes = rig.store.write, []

    async def watched(fn: Any, *args: Any) -> Any:
        if fn is transit:
            sizes.append(len(args[1]))
        return await write(fn, *args)

    rig.store.write = watched  # type: ignore[method-assign, assignment]
    return sizes
