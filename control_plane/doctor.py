"""What an operator should look at, found by looking at the tables only: no agent and no BMC is asked.

Each kind of finding has one query, which reads an index of what is wrong and not the whole history.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

from control_plane.engine.records import WorkflowError
from control_plane.engine.timing import SHARDS, Timing
from control_plane.metal.states import UNDER_WAY, Residue
from control_plane.records import ALL_TENANTS
from control_plane.store import Transaction
from protocol.durations import span_words
from protocol.errors import ErrorCode

__all__ = ["MOST_OF_A_KIND", "Finding", "Severity", "examine"]

Severity = Literal["info", "warning", "error"]
MOST_OF_A_KIND = 100
_ORDER = {"error": 0, "warning": 1, "info": 2}
_AGENT_ABSENT_MS = 120_000
"""An agent that restarts, or whose worker does, is back long before."""
_CERTIFICATE_NEAR_MS = 7 * 86_400_000
"""Agents renew theirs at half of its 30 days: one that has so little left does not renew."""
_COMMAND_LATE_MS = 300_000
_SHARDS_LEFT_MS = 60_000
_WAYS_OUT = {
    ErrorCode.UNREACHABLE.value: "see that its BMC has power and network, and that the node's address is right",
    ErrorCode.TIMEOUT.value: "its BMC answers too slowly or not at all: a restart of the BMC may help",
    ErrorCode.AUTH_FAILED.value: "mend the credential on the site's host: rackwright agent credentials set",
    ErrorCode.AUTH_BLOCKED.value: "mend the credential on the site's host: rackwright agent credentials set",
    ErrorCode.TLS_UNTRUSTED.value: "if it is the right machine, pin what it shows: rackwright nodes update --tls",
}
"""By the code that a trouble begins with."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    severity: Severity
    tenant_id: str
    subject: str
    message: str
    hint: str


class _Asked(NamedTuple):
    tenant_id: str
    timing: Timing
    now: int

    def of(self, table: str) -> str:
        """Confines a query to the tenant. As an expression, since SQLite would rather read all that the tenant has
        ever had than the few rows of the index that the query is meant for."""
        return "" if self.tenant_id == ALL_TENANTS else f"AND {table}.tenant_id || '' = :tenant"

    def params(self, **more: object) -> dict[str, object]:
        own = {} if self.tenant_id == ALL_TENANTS else {"tenant": self.tenant_id}
        return {**own, **more, "limit": MOST_OF_A_KIND + 1}


def examine(tx: Transaction, tenant_id: str, timing: Timing) -> tuple[list[Finding], bool]:
    """The findings of a tenant (`*`: of every one), the gravest first; and whether some kind has more."""
    asked = _Asked(tenant_id, timing, tx.now())
    found: list[Finding] = []
    more = False
    for check in _CHECKS:
        kind = list(islice(check(tx, asked), MOST_OF_A_KIND + 1))
        more = more or len(kind) > MOST_OF_A_KIND
        found += kind[:MOST_OF_A_KIND]
    return sorted(found, key=lambda finding: _ORDER[finding.severity]), more


def _undriven_shards(tx: Transaction, asked: _Asked) -> Iterator[Finding]:
    """Work is due where no worker holds the shard: no engine runs."""
    rows = tx.all(
        f"""
        SELECT workflows.tenant_id, COUNT(*) FROM workflows LEFT JOIN shards ON shards.shard = workflows.shard
        WHERE workflows.shard IN EACH(:shards) AND workflows.wake_at IS NOT NULL AND workflows.wake_at < :before
            AND (shards.shard IS NULL OR shards.expires_at < :before) {asked.of("workflows")}
        GROUP BY workflows.tenant_id ORDER BY workflows.tenant_id LIMIT :limit
        """,
        asked.params(shards=list(range(SHARDS)), before=asked.now - _SHARDS_LEFT_MS),
    )
    for tenant_id, count in rows:
        yield Finding(
            id="engine-idle",
            severity="error",
            tenant_id=tenant_id,
            subject="control-plane/engine",
            message=f"{_count(count, 'workflow')} due for a minute or more, with no worker to drive",
            hint="start a control plane with [engine] enabled = true, and look into its log",
        )


def _stuck(tx: Transaction, asked: _Asked) -> Iterator[Finding]:
    """A step is looked at at its deadline at the latest: one that is long past it is looked at by nobody."""
    rows = tx.all(
        f"""
        SELECT workflows.tenant_id, workflows.id, workflows.node_id, plans.id, plans.action, steps.deadline
        FROM workflows
            JOIN workflow_steps AS steps ON steps.workflow_id = workflows.id AND steps.seq = workflows.step_seq
            JOIN step_plans AS plans ON plans.workflow_id = workflows.id AND plans.seq = workflows.step_seq
        WHERE workflows.shard IN EACH(:shards) AND workflows.wake_at IS NOT NULL AND workflows.wake_at < :before
            AND workflows.state IN ('pending', 'running', 'paused') AND steps.state IN ('running', 'waiting')
            AND steps.deadline < :before {asked.of("workflows")}
        ORDER BY steps.deadline LIMIT :limit
        """,
        asked.params(shards=list(range(SHARDS)), before=asked.now - asked.timing.stuck_after_ms),
    )
    for tenant_id, workflow_id, node_id, step_id, action, deadline in rows:
        late = span_words(asked.now - deadline)
        yield Finding(
            id="workflows-stuck",
            severity="warning",
            tenant_id=tenant_id,
            subject=f"workflow/{workflow_id}",
            message=f"its step {step_id} ({action}){_on(node_id)} is {late} past its deadline",
            hint="no worker drives it: see that a control plane with its engine enabled reaches the database",
        )


def _failed(tx: Transaction, asked: _Asked) -> Iterator[Finding]:
    rows = tx.all(
        f"""
        SELECT tenant_id, id, node_id, error, finished_at FROM workflows
        WHERE state = 'failed' AND finished_at > :since {asked.of("workflows")}
        ORDER BY finished_at DESC LIMIT :limit
        """,
        asked.params(since=asked.now - asked.timing.failed_window_ms),
    )
    for tenant_id, workflow_id, node_id, error, finished_at in rows:
        why = "" if error is None else msgspec.json.decode(error, type=WorkflowError).message
        yield Finding(
            id="workflows-failed",
            severity="info",
            tenant_id=tenant_id,
            subject=f"workflow/{workflow_id}",
            message=f"failed {span_words(asked.now - finished_at)} ago{_on(node_id)}: {why}",
            hint=(
                f"mend the cause, then: rackwright workflows retry {node_id} {workflow_id}"
                if node_id
                else "the module that started it decides what comes next"
            ),
        )


def _failed_nodes(tx: Transaction, asked: _Asked) -> Iterator[Finding]:
    rows = tx.all(
        f"""
        SELECT provisions.tenant_id, provisions.node_id, nodes.name, provisions.verb, provisions.cause,
            provisions.since, provisions.residue
        FROM provisions JOIN nodes ON nodes.id = provisions.node_id
        WHERE provisions.state = 'failed' {asked.of("provisions")}
        ORDER BY provisions.since DESC LIMIT :limit
        """,
        asked.params(),
    )
    for tenant_id, node_id, name, verb, cause, since, residue in rows:
        why = "" if cause is None else f": {msgspec.json.decode(cause, type=WorkflowError).message}"
        yield Finding(
            id="metal-failed",
            severity="warning",
            tenant_id=tenant_id,
            subject=f"node/{node_id}",
            message=f"{name!r} failed to {verb} {span_words(asked.now - since)} ago{why}",
            hint=f"mend the cause, then {_ways_out(name, verb, residue)}",
        )


def _stalled_nodes(tx: Transaction, asked: _Asked) -> Iterator[Finding]:
    """Shown as under way, and no workflow moves them."""
    rows = tx.all(
        f"""
        SELECT provisions.tenant_id, provisions.node_id, nodes.name, provisions.state,
            COALESCE(workflows.finished_at, provisions.since)
        FROM provisions JOIN nodes ON nodes.id = provisions.node_id
            LEFT JOIN workflows ON workflows.id = provisions.workflow_id
        WHERE provisions.state IN ({UNDER_WAY})
            AND (workflows.id IS NULL OR workflows.state IN ('succeeded', 'failed', 'cancelled'))
            AND COALESCE(workflows.finished_at, provisions.since) < :before {asked.of("provisions")}
        ORDER BY provisions.node_id LIMIT :limit
        """,
        asked.params(before=asked.now - asked.timing.stuck_after_ms),
    )
    for tenant_id, node_id, name, state, since in rows:
        yield Finding(
            id="metal-stalled",
            severity="warning",
            tenant_id=tenant_id,
            subject=f"node/{node_id}",
            message=f"{name!r} is {state}, and no workflow has moved it for {span_words(asked.now - since)}",
            hint="see that a control plane with its engine enabled reaches the database, and look into its log",
        )


def _absent_agents(tx: Transaction, asked: _Asked) -> Iterator[Finding]:
    """Of the agents that serve a site. A machine's own agent is away whenever the machine is."""
    rows = tx.all(
        f"""
        SELECT agents.tenant_id, agents.id, agents.host_name, sites.name, sessions.disconnected_at, agents.created_at
        FROM sites JOIN agents ON agents.id = sites.agent_id LEFT JOIN sessions ON sessions.id = agents.session_id
        WHERE (sessions.id IS NULL OR sessions.disconnected_at IS NOT NULL) AND agents.revoked_at IS NULL
            AND COALESCE(sessions.disconnected_at, agents.created_at) < :before {asked.of("sites")}
        ORDER BY agents.id LIMIT :limit
        """,
        asked.params(before=asked.now - _AGENT_ABSENT_MS),
    )
    for tenant_id, agent_id, host_name, site, left_at, joined_at in rows:
        since = (
            f"has been away for {span_words(asked.now - left_at)}" if left_at is not None else "has never connected"
        )
        if left_at is None:
            since += f" since it joined {span_words(asked.now - joined_at)} ago"
        yield Finding(
            id="agents-offline",
            severity="warning",
            tenant_id=tenant_id,
            subject=f"agent/{agent_id}",
            message=f"the agent of site {site!r} on {host_name!r} {since}: commands for the site wait",
            hint="on its host: systemctl status rackwright-agent, and rackwright agent status",
        )


def _troubled_nodes(tx: Transaction, asked: _Asked) -> Iterator[Finding]:
    """Of sites whose agent is connected: what an absent one has last seen may be so no more."""
    rows = tx.all(
        f"""
        SELECT nodes.tenant_id, nodes.id, nodes.name, node_observations.trouble, node_observations.seen_at
        FROM node_observations JOIN nodes ON nodes.id = node_observations.node_id
            JOIN sites ON sites.id = nodes.site_id AND sites.agent_id = node_observations.agent_id
            JOIN agents ON agents.id = sites.agent_id
            JOIN sessions ON sessions.id = agents.session_id AND sessions.disconnected_at IS NULL
        WHERE node_observations.trouble IS NOT NULL {asked.of("nodes")}
        ORDER BY node_observations.seen_at LIMIT :limit
        """,
        asked.params(),
    )
    for tenant_id, node_id, name, trouble, since in rows:
        yield Finding(
            id="nodes-troubled",
            severity="warning",
            tenant_id=tenant_id,
            subject=f"node/{node_id}",
            message=f"{name!r} has been in trouble for {span_words(asked.now - since)}: {trouble}",
            hint=_WAYS_OUT.get(
                trouble.partition(":")[0], f"try it yourself: rackwright invoke {name} power.getPower"
            ),
        )


def _unserved_sites(tx: Transaction, asked: _Asked) -> Iterator[Finding]:
    rows = tx.all(
        f"""
        SELECT sites.tenant_id, sites.id, sites.name, COUNT(nodes.id)
        FROM sites LEFT JOIN nodes ON nodes.site_id = sites.id
        WHERE sites.agent_id IS NULL {asked.of("sites")}
        GROUP BY sites.tenant_id, sites.id, sites.name ORDER BY sites.id LIMIT :limit
        """,
        asked.params(),
    )
    for tenant_id, site_id, name, nodes in rows:
        yield Finding(
            id="sites-without-agent",
            severity="warning" if nodes else "info",
            tenant_id=tenant_id,
            subject=f"site/{site_id}",
            message=f"site {name!r} has {_count(nodes, 'node')} and no agent",
            hint=f"rackwright join-tokens create --site {name}, then rackwright agent join on a host there",
        )


def _old_certificates(tx: Transaction, asked: _Asked) -> Iterator[Finding]:
    rows = tx.all(
        f"""
        SELECT agents.tenant_id, agents.id, agents.host_name, MAX(certificates.not_after)
        FROM agents JOIN certificates ON certificates.agent_id = agents.id
        WHERE agents.revoked_at IS NULL {asked.of("agents")}
        GROUP BY agents.tenant_id, agents.id, agents.host_name HAVING MAX(certificates.not_after) < :before
        ORDER BY agents.id LIMIT :limit
        """,
        asked.params(before=asked.now + _CERTIFICATE_NEAR_MS),
    )
    for tenant_id, agent_id, host_name, not_after in rows:
        left = not_after - asked.now
        gone = left <= 0
        yield Finding(
            id="certificates-expiring",
            severity="error" if gone else "warning",
            tenant_id=tenant_id,
            subject=f"agent/{agent_id}",
            message=(
                f"the certificate of the agent on {host_name!r} "
                + (f"ended {span_words(-left)} ago: it cannot connect" if gone else f"ends in {span_words(left)}")
            ),
            hint=(
                "join it again with a new token, or revoke it when it is not used any more"
                if gone
                else "a connected agent renews it by itself: see that this one connects; its log says why it does not"
            ),
        )


def _late_commands(tx: Transaction, asked: _Asked) -> Iterator[Finding]:
    rows = tx.all(
        f"""
        SELECT tenant_id, id, node_id, state, not_after FROM commands
        WHERE state IN ('queued', 'delivered', 'running') AND not_after < :before {asked.of("commands")}
        ORDER BY not_after LIMIT :limit
        """,
        asked.params(before=asked.now - _COMMAND_LATE_MS),
    )
    for tenant_id, command_id, node_id, state, not_after in rows:
        yield Finding(
            id="commands-overdue",
            severity="warning",
            tenant_id=tenant_id,
            subject=f"command/{command_id}",
            message=f"it is {state}{_on(node_id)}, {span_words(asked.now - not_after)} after its time was over",
            hint="a control plane that runs ends such commands within a minute: look into its log",
        )


_CHECKS: tuple[Callable[[Transaction, _Asked], Iterator[Finding]], ...] = (
    _undriven_shards,
    _stuck,
    _stalled_nodes,
    _failed_nodes,
    _late_commands,
    _absent_agents,
    _troubled_nodes,
    _old_certificates,
    _unserved_sites,
    _failed,
)


def _ways_out(name: str, verb: str | None, residue: str | None) -> str:
    recover = f"rackwright nodes recover {name}"
    if residue == Residue.ERASING:
        return f"release it again (rackwright nodes release {name}): data may be left on it"
    if verb == "recover":
        return f"recover it again ({recover}), or say that it is in service ({recover} --as-it-is)"
    return f"begin anew (rackwright nodes {_again(verb)} {name}), or take it back ({recover})"


def _again(verb: str | None) -> str:
    """What an operator starts where this has failed: a remediation is started by nobody."""
    return "rescue" if verb in (None, "remediate") else str(verb)


def _on(node_id: str | None) -> str:
    return "" if node_id is None else f" on {node_id}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
