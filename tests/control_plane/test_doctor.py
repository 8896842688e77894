"""What the doctor finds, and what it leaves alone."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from control_plane.doctor import MOST_OF_A_KIND, Finding, examine
from control_plane.engine.records import WorkflowError
from control_plane.engine.states import StepState, WorkflowState
from control_plane.engine.timing import SHARDS, Timing
from control_plane.metal.rows import find_provision, put_provision
from control_plane.metal.states import MetalVerb, ProvisionState, Residue
from control_plane.nodes import find_node
from control_plane.observations import Reported, store_observations
from control_plane.sessions import close_session, record_certificate
from control_plane.sites import create_site, serve_by
from control_plane.store import Transaction, migrate, open_store
from protocol.frames import NodeState
from tests.control_plane.api_harness import Api
from tests.control_plane.ledger import Ledger
from tests.control_plane.workflow_rows import put_command, put_workflow, step

MINUTE = 60_000
DAY = 86_400_000


async def findings(ledger: Ledger, tenant: str = "acme") -> list[Finding]:
    found, _ = await ledger.store.read(examine, tenant, Timing())
    return found


async def of_kind(ledger: Ledger, kind: str, tenant: str = "acme") -> list[Finding]:
    return [finding for finding in await findings(ledger, tenant) if finding.id == kind]


@pytest.fixture
async def served(ledger: Ledger) -> Ledger:
    """The ledger's site has its agent, and the agent is connected."""
    await ledger.store.write(_serve, ledger)
    await ledger.connect()
    return ledger


async def test_a_fleet_in_good_order_has_no_findings(served: Ledger) -> None:
    assert await findings(served) == []


@pytest.mark.case("B56")
@pytest.mark.line("A50")
@pytest.mark.parametrize("state", [WorkflowState.RUNNING, WorkflowState.PAUSED])
async def test_a50_a_step_more_than_five_minutes_past_its_deadline_is_stuck_and_no_other(
    served: Ledger, state: WorkflowState
) -> None:
    workflow_id = await served.store.write(_put_waiting, served, state, served.clock.now)
    served.clock.pass_by(5 * MINUTE)
    assert await of_kind(served, "workflows-stuck") == []
    served.clock.pass_by(1)
    (found,) = await of_kind(served, "workflows-stuck")
    assert (found.severity, found.subject) == ("warning", f"workflow/{workflow_id}")
    assert "step-0 (power.getPower)" in found.message
    assert "5 min past its deadline" in found.message


async def test_a_step_that_is_not_due_yet_is_not_stuck_however_long_it_takes(served: Ledger) -> None:
    await served.store.write(_put_waiting, served, WorkflowState.RUNNING, served.clock.now + 10 * DAY)
    served.clock.pass_by(9 * DAY)
    assert await of_kind(served, "workflows-stuck") == []


@pytest.mark.line("A50")
async def test_a50_workflows_that_failed_within_a_day_are_told_as_information(served: Ledger) -> None:
    error = WorkflowError(code="STEP_TIMEOUT", message="write (deploy.writeImage): it was late")

    def put(tx: Transaction) -> str:
        put_workflow(tx, served.node_id, WorkflowState.SUCCEEDED)
        put_workflow(tx, served.node_id, WorkflowState.CANCELLED)
        return put_workflow(tx, served.node_id, WorkflowState.FAILED, error=error)

    workflow_id = await served.store.write(put)
    served.clock.pass_by(DAY - 1)
    (found,) = await of_kind(served, "workflows-failed")
    assert (found.severity, found.subject) == ("info", f"workflow/{workflow_id}")
    assert "write (deploy.writeImage): it was late" in found.message
    assert found.hint.endswith(f"rackwright workflows retry {served.node_id} {workflow_id}")
    served.clock.pass_by(1)
    assert await of_kind(served, "workflows-failed") == []


async def test_a_workflow_without_a_node_is_seen_too(served: Ledger) -> None:
    def put(tx: Transaction) -> None:
        put_workflow(tx, None, WorkflowState.FAILED)
        waiting = step(0, state=StepState.WAITING, deadline=tx.now(), started_at=tx.now())
        put_workflow(tx, None, WorkflowState.RUNNING, [waiting], step_seq=0, wake_at=tx.now())

    await served.store.write(put)
    served.clock.pass_by(6 * MINUTE)
    assert {finding.id for finding in await findings(served)} == {
        "workflows-failed",
        "workflows-stuck",
        "engine-idle",
    }


async def test_work_that_is_due_on_a_shard_that_nobody_holds_means_that_no_engine_runs(served: Ledger) -> None:
    await served.store.write(_put_waiting, served, WorkflowState.RUNNING, served.clock.now + DAY)
    served.clock.pass_by(2 * MINUTE)
    (found,) = await of_kind(served, "engine-idle")
    assert (found.severity, "1 workflow due" in found.message) == ("error", True)
    await served.store.write(_hold_shards)
    assert await of_kind(served, "engine-idle") == []


async def test_a_site_agent_that_is_away_is_told_once_it_is_away_for_long(served: Ledger) -> None:
    session, _ = await served.connect()
    await served.store.write(close_session, session.id, "cut")
    served.clock.pass_by(2 * MINUTE)
    assert await of_kind(served, "agents-offline") == []
    served.clock.pass_by(1)
    (found,) = await of_kind(served, "agents-offline")
    assert (found.severity, found.subject) == ("warning", f"agent/{served.agent_id}")
    assert "away for 2 min" in found.message
    await served.connect()
    assert await of_kind(served, "agents-offline") == []


async def test_a_site_agent_that_joined_and_never_came_is_told(ledger: Ledger) -> None:
    await ledger.store.write(_serve, ledger)
    ledger.clock.pass_by(3 * MINUTE)
    (found,) = await of_kind(ledger, "agents-offline")
    assert "has never connected since it joined 3 min ago" in found.message


async def test_a_node_in_trouble_is_told_with_its_cause_while_its_agent_is_there(ledger: Ledger) -> None:
    await ledger.store.write(_serve, ledger)
    session, _ = await ledger.connect()
    told = NodeState(
        node_id=ledger.node_id, power="unknown", health="unknown", trouble="AUTH_FAILED: refused", age_ms=90_000
    )
    await ledger.store.write(store_observations, [Reported(session.id, session.agent_id, told)])
    (found,) = await of_kind(ledger, "nodes-troubled")
    assert (found.severity, found.subject) == ("warning", f"node/{ledger.node_id}")
    assert found.message.endswith("has been in trouble for 1 min: AUTH_FAILED: refused")
    assert "agent credentials set" in found.hint
    assert await of_kind(ledger, "nodes-troubled", "umbrella") == []
    assert len(await of_kind(ledger, "nodes-troubled", "*")) == 1

    await ledger.store.write(close_session, session.id, "gone")
    assert await of_kind(ledger, "nodes-troubled") == []


async def test_a_site_without_an_agent_matters_when_it_has_machines(served: Ledger) -> None:
    await served.store.write(lambda tx: create_site(tx, "acme", "empty"))
    (found,) = await of_kind(served, "sites-without-agent")
    assert (found.severity, "'empty' has 0 nodes" in found.message) == ("info", True)
    await served.store.write(_serve_by_nobody, served)
    assert [finding.severity for finding in await of_kind(served, "sites-without-agent")] == ["warning", "info"]


async def test_a_certificate_near_its_end_is_told_and_one_that_was_renewed_is_not(served: Ledger) -> None:
    now = served.clock.now
    await served.store.write(record_certificate, served.agent_id, "01", now + 10 * DAY)
    assert await of_kind(served, "certificates-expiring") == []
    served.clock.pass_by(4 * DAY)
    (found,) = await of_kind(served, "certificates-expiring")
    assert (found.severity, "ends in 6 d 0 h" in found.message) == ("warning", True)
    served.clock.pass_by(7 * DAY)
    (found,) = await of_kind(served, "certificates-expiring")
    assert (found.severity, "ended 1 d 0 h ago" in found.message) == ("error", True)
    await served.store.write(record_certificate, served.agent_id, "02", now + 40 * DAY)
    assert await of_kind(served, "certificates-expiring") == []


async def test_a_command_that_is_open_long_after_its_time_is_told(served: Ledger) -> None:
    row = await served.command(lasts_ms=1_000)
    served.clock.pass_by(5 * MINUTE + 1_000)
    assert await of_kind(served, "commands-overdue") == []
    served.clock.pass_by(1)
    (found,) = await of_kind(served, "commands-overdue")
    assert (found.severity, found.subject) == ("warning", f"command/{row.id}")


@pytest.mark.case("B56")
async def test_a_node_that_has_failed_is_told_with_its_cause_and_the_ways_out(served: Ledger) -> None:
    cause = WorkflowError(code="DRIVER_ERROR", message="boot (metal.bootRamdisk): the slot is empty")
    await served.store.write(_put_provision, served, "failed", {"verb": MetalVerb.DEPLOY, "cause": cause})
    served.clock.pass_by(3 * MINUTE)
    (found,) = await of_kind(served, "metal-failed")
    assert (found.severity, found.subject) == ("warning", f"node/{served.node_id}")
    assert "failed to deploy 3 min ago: boot (metal.bootRamdisk): the slot is empty" in found.message
    assert "rackwright nodes recover" in found.hint
    assert await of_kind(served, "metal-failed", "umbrella") == []
    await served.store.write(_put_provision, served, "failed", {"verb": MetalVerb.RECOVER, "cause": cause})
    (found,) = await of_kind(served, "metal-failed")
    assert "failed to recover" in found.message
    assert found.hint.count("rackwright nodes recover") == 2
    assert found.hint.endswith("--as-it-is)"), "the same twice is no choice"
    half_erased = {"verb": MetalVerb.RESCUE, "cause": cause, "residue": Residue.ERASING}
    await served.store.write(_put_provision, served, "failed", half_erased)
    (found,) = await of_kind(served, "metal-failed")
    assert "rackwright nodes release" in found.hint
    assert "recover" not in found.hint, "it would be refused"


@pytest.mark.parametrize("state", ["available", "deployed", "rescue", "maintenance", "enrolled"])
async def test_a_node_at_rest_has_no_findings(served: Ledger, state: str) -> None:
    await served.store.write(_put_provision, served, state, {})
    served.clock.pass_by(DAY)
    assert await findings(served) == []


@pytest.mark.case("B56")
@pytest.mark.parametrize("state", ["commissioning", "deploying", "releasing", "rescuing", "recovering"])
async def test_a_node_that_is_shown_as_moved_by_a_workflow_that_has_ended_or_is_gone_is_stalled(
    served: Ledger, state: str
) -> None:
    def put(tx: Transaction) -> str:
        return put_workflow(tx, served.node_id, WorkflowState.SUCCEEDED)

    workflow_id = await served.store.write(put)
    for known in (workflow_id, "wf_gone"):
        await served.store.write(_put_provision, served, state, {"workflow_id": known})
        served.clock.pass_by(5 * MINUTE)
        if known == "wf_gone":
            assert await of_kind(served, "metal-stalled") == []
        served.clock.pass_by(1)
        (found,) = await of_kind(served, "metal-stalled")
        assert (found.severity, found.subject) == ("warning", f"node/{served.node_id}")
        assert f"is {state}, and no workflow has moved it for 5 min" in found.message


async def test_a_node_that_a_workflow_moves_is_not_stalled_however_long_it_takes(served: Ledger) -> None:
    def put(tx: Transaction) -> str:
        waiting = step(0, state=StepState.WAITING, deadline=tx.now() + 10 * DAY, started_at=tx.now())
        return put_workflow(tx, served.node_id, WorkflowState.RUNNING, [waiting], step_seq=0)

    workflow_id = await served.store.write(put)
    await served.store.write(_put_provision, served, "deploying", {"workflow_id": workflow_id})
    served.clock.pass_by(9 * DAY)
    assert await of_kind(served, "metal-stalled") == []


async def test_very_many_of_a_kind_are_cut_and_it_is_said(served: Ledger) -> None:
    def put(tx: Transaction) -> None:
        for _ in range(MOST_OF_A_KIND + 1):
            put_workflow(tx, None, WorkflowState.FAILED)

    await served.store.write(put)
    found, more = await served.store.read(examine, "acme", Timing())
    assert (len(found), more) == (MOST_OF_A_KIND, True)


async def test_the_gravest_comes_first_and_a_tenant_sees_its_own_only(ledger: Ledger) -> None:
    def put(tx: Transaction) -> None:
        put_workflow(tx, ledger.node_id, WorkflowState.FAILED)
        put_workflow(tx, None, WorkflowState.FAILED, tenant="umbrella")
        waiting = step(0, state=StepState.WAITING, deadline=tx.now(), started_at=tx.now())
        put_workflow(tx, None, WorkflowState.RUNNING, [waiting], tenant="umbrella", step_seq=0, wake_at=tx.now())
        put_command(tx, ledger.node_id, ledger.agent_id, not_after=tx.now())

    await ledger.store.write(put)
    ledger.clock.pass_by(6 * MINUTE)
    every = await findings(ledger, "*")
    assert [finding.severity for finding in every] == ["error", "warning", "warning", "warning", "info", "info"]
    assert [(finding.id, finding.tenant_id) for finding in every[:4]] == [
        ("engine-idle", "umbrella"),
        ("workflows-stuck", "umbrella"),
        ("commands-overdue", "acme"),
        ("sites-without-agent", "acme"),
    ]
    assert {finding.tenant_id for finding in await findings(ledger, "acme")} == {"acme"}
    assert {finding.tenant_id for finding in await findings(ledger, "umbrella")} == {"umbrella"}


async def test_however_many_workflows_have_ended_only_what_matters_is_read(tmp_path: Path) -> None:
    store = open_store(f"sqlite://{tmp_path}/control.db")
    await migrate(store)
    plans: list[str] = []

    class Explained:
        """A transaction that tells how each statement finds its rows."""

        def __init__(self, tx: Transaction) -> None:
            self._tx = tx
            self.now = tx.now

        def all(self, sql: str, params: Any) -> list[Any]:
            plans.extend(str(row[3]) for row in self._tx.all(f"EXPLAIN QUERY PLAN {sql}", params))
            return self._tx.all(sql, params)

    def work(tx: Transaction) -> None:
        for tenant in ("acme", "*"):
            examine(Explained(tx), tenant, Timing())  # type: ignore[arg-type]

    await store.read(work)
    await store.close()
    tables = (" workflows", " commands", " provisions", " node_observations")
    found = {plan.partition("(")[0].strip() for plan in plans if any(table in plan for table in tables)}
    assert found == {
        "SEARCH workflows USING INDEX workflows_due",
        "SEARCH workflows USING INDEX workflows_failed",
        "SEARCH commands USING INDEX commands_due",
        "SCAN provisions USING INDEX provisions_failed",
        "SCAN provisions USING INDEX provisions_moving",
        "SCAN node_observations USING INDEX node_observations_troubled",
        # Of a node that is under way, its one workflow.
        "SEARCH workflows USING INDEX sqlite_autoindex_workflows_1",
    }


@pytest.mark.line("B10")
async def test_b10_the_doctor_answers_over_the_api_with_the_right_to_it(api: Api) -> None:
    await api.site()
    answer = await api.ok("doctor.findings")
    (found,) = answer["items"]
    assert set(found) == {"id", "severity", "tenantId", "subject", "message", "hint"}
    assert (found["id"], answer["more"]) == ("sites-without-agent", False)
    without = await api.make_token("acme", ["compute:workflows:*"])
    assert (await api.call("doctor.findings", token=without)).code == "FORBIDDEN"
    everywhere = await api.make_token("*", ["compute:doctor:read"])
    assert len((await api.ok("doctor.findings", token=everywhere))["items"]) == 1
    assert (await api.ok("doctor.findings", token=api.other))["items"] == []


def _serve(tx: Transaction, ledger: Ledger) -> None:
    row = tx.one("SELECT site_id FROM nodes WHERE id = :id", {"id": ledger.node_id})
    assert row is not None
    serve_by(tx, row[0], ledger.agent_id)


def _serve_by_nobody(tx: Transaction, ledger: Ledger) -> None:
    tx.run("UPDATE sites SET agent_id = NULL WHERE agent_id = :id", {"id": ledger.agent_id})


def _put_provision(tx: Transaction, ledger: Ledger, state: str, more: dict[str, Any]) -> None:
    row = find_provision(tx, find_node(tx, "acme", ledger.node_id))
    put_provision(tx, msgspec.structs.replace(row, state=ProvisionState(state), since=tx.now(), **more))


def _put_waiting(tx: Transaction, ledger: Ledger, state: WorkflowState, deadline: int) -> str:
    """A step that waits, and is looked at at its deadline, or in a moment where that is far."""
    waiting = step(0, state=StepState.WAITING, deadline=deadline, started_at=tx.now())
    more: dict[str, Any] = {"step_seq": 0, "step_id": "step-0", "wake_at": min(deadline, tx.now() + 10_000)}
    return put_workflow(tx, ledger.node_id, state, [waiting], **more)


def _hold_shards(tx: Transaction) -> None:
    for shard in range(SHARDS):
        tx.run(
            "INSERT INTO shards (shard, worker, fence, expires_at) VALUES (:shard, 'worker-1', 1, :until)",
            {"shard": shard, "until": tx.now() + 15_000},
        )
