"""Rows of workflows that ended long ago, made inside the database: about twenty thousand workflows a second.

For each workflow three steps, one command and two events: events are kept for a third of the time that workflows are.
They are spread over the ninety days that are kept, and over the machines. Workflows and steps are as large as those
of the work that is measured, or smaller: PostgreSQL puts a new row into whatever gap of an old page it fits into, and
rows smaller than all before them would be strewn over the whole history until its gaps are full.
"""

from benchmarks.engine_worker import document, spec
from control_plane.store import Store, Transaction, json_text

__all__ = ["STEPS", "TENANT", "fill", "node_of"]

TENANT = "default"
STEPS = 3
_BATCH = 20_000
_KEPT_MS = 89 * 86_400_000
_TAKES_MS = 600_000
_NUMBERS = """
WITH RECURSIVE numbers (n) AS (
    SELECT CAST(:first AS BIGINT) UNION ALL SELECT n + 1 FROM numbers WHERE n < CAST(:last AS BIGINT)
)
"""
"""The workflows of a batch. Ids are numbers written as the alphabet of ids allows: they sort as they were made."""
_WORKFLOW = "'wf_01k0aaaaaaaaaa' || CAST(100000000000 + n AS TEXT)"
_COMMAND = "'cmd_01k0aaaaaaaaaa' || CAST(100000000000 + n AS TEXT)"
_NODE = "'node_01k0aaaaaaaaaa' || CAST(100000000000 + n % CAST(:nodes AS BIGINT) AS TEXT)"
_BEGAN = "(CAST(:oldest AS BIGINT) + n * CAST(:apart AS BIGINT))"
_ENDED = f"({_BEGAN} + {_TAKES_MS})"
_WORKFLOWS = f"""
INSERT INTO workflows (id, tenant_id, profile_id, profile_version, node_id, shard, state, created_at,
    started_at, finished_at, updated_at) {_NUMBERS}
SELECT {_WORKFLOW}, :tenant, 'prof_01k0aaaaaaaaaa100000000000', 1, {_NODE}, n % 32,
    CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'succeeded' END, {_BEGAN}, {_BEGAN}, {_ENDED}, {_ENDED} FROM numbers
"""
_DOCUMENTS = f"""
INSERT INTO workflow_documents (workflow_id, document) {_NUMBERS} SELECT {_WORKFLOW}, :document FROM numbers
"""
_PLACES = "numbers CROSS JOIN (SELECT 0 AS seq UNION ALL SELECT 1 UNION ALL SELECT 2) AS place"
_STEPS = f"""
INSERT INTO workflow_steps (workflow_id, seq, phase, state, attempt, first_attempt, result, started_at, finished_at)
{_NUMBERS}
SELECT {_WORKFLOW}, place.seq, 'main', 'succeeded', 1, 1, '{{}}', {_BEGAN}, {_ENDED} FROM {_PLACES}
"""
_PLANS = f"""
INSERT INTO step_plans (workflow_id, seq, id, action, runs_on, spec) {_NUMBERS}
SELECT {_WORKFLOW}, place.seq, 'step-' || CAST(place.seq AS TEXT), 'bench.noop', 'control-plane', :spec FROM {_PLACES}
"""
_COMMANDS = f"""
INSERT INTO commands (id, tenant_id, node_id, agent_id, kind, payload, key, repeat, state, created_at, created_by,
    not_after, started_at, finished_at, ending, workflow_id) {_NUMBERS}
SELECT {_COMMAND}, :tenant, {_NODE}, :agent, 'driver.invoke', :payload, 'wf:' || {_WORKFLOW} || ':step-0', 'converge',
    'succeeded', {_BEGAN}, {_WORKFLOW}, {_ENDED}, {_BEGAN}, {_ENDED}, :ending, {_WORKFLOW} FROM numbers
"""
_EVENTS = f"""
INSERT INTO events (id, tenant_id, at, subject, type, data) {_NUMBERS}
SELECT 'evt_01k0aaaaaaaaa' || CAST(1000000000000 + 2 * n + word.number AS TEXT), :tenant, {_ENDED},
    'workflow/' || {_WORKFLOW}, word.type, :data
FROM numbers CROSS JOIN (
    SELECT 0 AS number, 'workflow.started' AS type UNION ALL SELECT 1, 'workflow.succeeded'
) AS word
"""


def node_of(number: int) -> str:
    """The id of a node that has workflows."""
    return f"node_01k0aaaaaaaaaa{100_000_000_000 + number}"


async def fill(store: Store, workflows: int, nodes: int) -> None:
    """That many ended workflows on that many nodes, into a store that has none."""
    agent = await store.write(_agent)
    for first in range(0, workflows, _BATCH):
        await store.write(_batch, first, min(first + _BATCH, workflows) - 1, workflows, nodes, agent)


def _agent(tx: Transaction) -> str:
    agent = "agent_01k0aaaaaaaaaa100000000000"
    tx.run(
        "INSERT INTO agents (id, tenant_id, role, host_name, version, drivers, created_at) "
        "VALUES (:id, :tenant, 'site', 'host', '0', '{}', 0)",
        {"id": agent, "tenant": TENANT},
    )
    return agent


def _batch(tx: Transaction, first: int, last: int, workflows: int, nodes: int, agent: str) -> None:
    every: dict[str, object] = {
        "first": first,
        "last": last,
        "tenant": TENANT,
        "nodes": nodes,
        "oldest": tx.now() - _KEPT_MS,
        "apart": (_KEPT_MS - _TAKES_MS) // workflows,
    }
    result = {"state": "on", "changed": True, "verbUsed": "On"}
    payload = {
        "driver": "redfish",
        "concern": "power",
        "operation": "setPower",
        "args": {"action": "on"},
        "targetNodeId": node_of(first),
        "target": {"address": "https://192.0.2.10", "credentialRef": "rack-1", "tls": "first-use"},
    }
    facts = {"workflowId": "wf_01k0aaaaaaaaaa100000000000", "nodeId": node_of(first), "profileVersion": 1}
    tx.run(_WORKFLOWS, every)
    tx.run(_DOCUMENTS, every | {"document": json_text(document(STEPS))})
    tx.run(_STEPS, every)
    tx.run(_PLANS, every | {"spec": json_text(spec({}))})
    ending = {"outcome": "succeeded", "result": result}
    tx.run(_COMMANDS, every | {"agent": agent, "payload": json_text(payload), "ending": json_text(ending)})
    tx.run(_EVENTS, every | {"data": json_text(facts)})
