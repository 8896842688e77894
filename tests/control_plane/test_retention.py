"""What is removed by age, and what is not."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from control_plane.audit import record
from control_plane.engine.states import StepState, WorkflowState
from control_plane.engine.verbs import retry
from control_plane.events import publish
from control_plane.retention import PRUNES, Kept, prune_all, prune_commands, prune_workflows
from control_plane.store import Store, Transaction, migrate, open_store
from protocol.commands import CommandState
from protocol.errors import RequestCode, RequestError
from tests.control_plane.ledger import Ledger
from tests.control_plane.workflow_rows import put_command, put_workflow, step

DAY = 86_400_000
KEPT = Kept(events_ms=30 * DAY, commands_ms=90 * DAY, workflows_ms=60 * DAY, audit_ms=400 * DAY)


async def test_only_workflows_that_ended_long_ago_are_removed_with_their_steps_and_commands(ledger: Ledger) -> None:
    def put(tx: Transaction) -> dict[str, str]:
        made = {}
        for state in WorkflowState:
            # At most one is active on a node.
            node_id = ledger.node_id if state is WorkflowState.RUNNING else None
            made[state.value] = put_workflow(tx, node_id, state, [step(0), step(1)])
            ended = {"state": CommandState.SUCCEEDED, "finished_at": tx.now()}
            put_command(tx, ledger.node_id, ledger.agent_id, made[state.value], **ended)
        return made

    made = await ledger.store.write(put)
    ledger.clock.pass_by(61 * DAY)
    young = await ledger.store.write(_put_ended, ledger)
    await prune_all(ledger.store, KEPT)
    left = await ledger.store.read(_left)
    assert left["workflows"] == {made["pending"], made["running"], made["paused"], young}
    assert left["documents"] == left["steps"] == left["plans"] == left["workflows"]
    assert left["commands"] == left["workflows"]


async def test_a_workflows_commands_are_kept_as_long_as_it_is(ledger: Ledger) -> None:
    workflow_id = await ledger.store.write(_put_ended, ledger)
    await ledger.settle((await ledger.command()).id)
    ledger.clock.pass_by(91 * DAY)
    await prune_all(ledger.store, Kept(commands_ms=90 * DAY, workflows_ms=100 * DAY))
    assert (await ledger.store.read(_left))["commands"] == {workflow_id}
    ledger.clock.pass_by(10 * DAY)
    await prune_all(ledger.store, Kept(commands_ms=90 * DAY, workflows_ms=100 * DAY))
    assert (await ledger.store.read(_left))["commands"] == set()


async def test_a_workflow_with_a_command_that_is_still_open_is_kept(ledger: Ledger) -> None:
    def put(tx: Transaction) -> str:
        workflow_id = put_workflow(tx, None, WorkflowState.FAILED)
        put_command(tx, ledger.node_id, ledger.agent_id, workflow_id, state=CommandState.RUNNING)
        return workflow_id

    workflow_id = await ledger.store.write(put)
    ledger.clock.pass_by(1000 * DAY)
    await prune_all(ledger.store, KEPT)
    assert (await ledger.store.read(_left))["workflows"] == {workflow_id}


async def test_the_audit_trail_outlives_the_events(ledger: Ledger) -> None:
    await ledger.store.write(_put_history)
    ledger.clock.pass_by(31 * DAY)
    await ledger.store.write(_put_history)
    await prune_all(ledger.store, KEPT)
    assert await ledger.store.read(_history) == (1, 2)
    ledger.clock.pass_by(370 * DAY)
    await prune_all(ledger.store, KEPT)
    assert await ledger.store.read(_history) == (0, 1)


async def test_a_batch_removes_no_more_than_it_may(ledger: Ledger) -> None:
    for _ in range(5):
        await ledger.store.write(_put_ended, ledger)
    ledger.clock.pass_by(61 * DAY)
    assert [await ledger.store.write(prune_workflows, KEPT, 2) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_failed_workflow_is_either_retried_or_removed_and_never_halved(ledger: Ledger) -> None:
    for _ in range(10):
        workflow_id = await ledger.store.write(_put_failed)
        ledger.clock.pass_by(61 * DAY)
        answers = await asyncio.gather(
            ledger.store.write(retry, workflow_id),
            ledger.store.write(prune_workflows, KEPT, 10),
            return_exceptions=True,
        )
        left = await ledger.store.read(_left)
        if isinstance(answers[0], RequestError):
            assert answers[0].code is RequestCode.NOT_FOUND
            assert workflow_id not in left["workflows"] | left["steps"]
        else:
            assert {workflow_id} <= left["workflows"] & left["steps"]


@pytest.mark.parametrize("prune", [prune for prune, _ in PRUNES], ids=lambda prune: prune.__name__)
async def test_an_empty_database_has_nothing_to_remove(ledger: Ledger, prune: Any) -> None:
    assert await ledger.store.write(prune, KEPT, 10) == 0


async def test_old_rows_are_found_by_an_index_and_never_by_looking_at_all(tmp_path: Path) -> None:
    store = open_store(f"sqlite://{tmp_path}/control.db")
    await migrate(store)
    plans = await _plans(store, tmp_path / "control.db")
    assert not [plan for plan in plans if plan.startswith(("SCAN workflows", "SCAN commands"))]
    assert any("workflows_ended" in plan for plan in plans)
    assert any("commands_ended" in plan for plan in plans)


async def _plans(store: Store, file: Path) -> list[str]:
    """How SQLite would find what the two largest prunes look for."""
    seen: list[tuple[str, Any]] = []

    class Spy:
        def __init__(self, tx: Transaction) -> None:
            self._tx = tx

        def now(self) -> int:
            return self._tx.now()

        def all(self, sql: str, params: Any) -> list[Any]:
            seen.append((sql, params))
            return self._tx.all(sql, params)

        def run(self, sql: str, params: Any) -> int:
            seen.append((sql, params))
            return self._tx.run(sql, params)

    def work(tx: Transaction) -> None:
        for prune in (prune_workflows, prune_commands):
            prune(Spy(tx), KEPT, 10)  # type: ignore[arg-type]

    await store.write(work)
    await store.close()
    plans = []
    with sqlite3.connect(file) as connection:
        for sql, _ in seen:
            plain = sql.replace("FOR UPDATE OF workflows SKIP LOCKED", "").replace("FOR UPDATE SKIP LOCKED", "")
            plain = plain.replace("IN EACH(:ended)", "IN ('succeeded')")
            rows = connection.execute(f"EXPLAIN QUERY PLAN {plain}", {"before": 1, "limit": 1})
            plans += [str(row[3]) for row in rows]
    return plans


def _put_ended(tx: Transaction, ledger: Ledger) -> str:
    workflow_id = put_workflow(tx, ledger.node_id, WorkflowState.SUCCEEDED)
    ended: dict[str, Any] = {"state": CommandState.SUCCEEDED, "finished_at": tx.now()}
    put_command(tx, ledger.node_id, ledger.agent_id, workflow_id, **ended)
    return workflow_id


def _put_failed(tx: Transaction) -> str:
    return put_workflow(tx, None, WorkflowState.FAILED, [step(0, state=StepState.FAILED)])


def _put_history(tx: Transaction) -> None:
    publish(tx, "acme", "thing/1", "thing.done", {})
    record(tx, tenant_id="acme", actor="a", action="b:c:d", resource="e/f", request_id="r", detail={})


def _left(tx: Transaction) -> dict[str, set[str]]:
    return {
        "workflows": {row[0] for row in tx.all("SELECT id FROM workflows")},
        "steps": {row[0] for row in tx.all("SELECT workflow_id FROM workflow_steps")},
        "documents": {row[0] for row in tx.all("SELECT workflow_id FROM workflow_documents")},
        "plans": {row[0] for row in tx.all("SELECT workflow_id FROM step_plans")},
        "commands": {row[0] for row in tx.all("SELECT workflow_id FROM commands")},
    }


def _history(tx: Transaction) -> tuple[int, int]:
    events, audit = tx.one("SELECT COUNT(*) FROM events"), tx.one("SELECT COUNT(*) FROM audit")
    assert events is not None
    assert audit is not None
    return events[0], audit[0]
