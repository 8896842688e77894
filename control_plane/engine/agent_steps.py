"""Steps that an agent does: one command each, and what its ending means for the step."""

from typing import NamedTuple

import msgspec

from control_plane.commands import cancel, enqueue
from control_plane.engine.records import StepError, StepRow, WorkflowRow
from control_plane.engine.states import RunsOn
from control_plane.nodes import target_of
from control_plane.records import CommandRow, columns
from control_plane.store import Transaction
from protocol.commands import TERMINAL, CommandKind, CommandState, DriverInvoke, repeat_of
from protocol.errors import Failure, unquoted
from protocol.ids import new_id

__all__ = [
    "NoAgent",
    "StepCommand",
    "agent_for",
    "cancel_commands",
    "command_end",
    "command_key",
    "error_of",
    "find_command",
    "relayed_key",
    "send_command",
    "step_command",
    "words_of",
]


_OPEN = [state.value for state in CommandState if state not in TERMINAL]


class NoAgent(Exception):
    """There is nobody to send to. `waits`: one may still join (a ramdisk that boots), so it is no failure yet."""

    def __init__(self, message: str, *, waits: bool) -> None:
        super().__init__(message)
        self.message = message
        self.waits = waits


class StepCommand(NamedTuple):
    kind: str
    payload: dict[str, object]


def command_key(step: StepRow) -> str:
    """`wf:<id>:<stepId>`, and `…#<attempt>` from the second attempt on."""
    base = f"wf:{step.workflow_id}:{step.id}"
    return base if step.attempt == 1 else f"{base}#{step.attempt}"


def relayed_key(workflow_id: str, step_id: str, attempt: int, key: str | None = None) -> str:
    """`wf:<id>:<stepId>#<attempt>[:<key>]`: of a command that a control-plane step sends."""
    return f"wf:{workflow_id}:{step_id}#{attempt}" + (f":{key}" if key else "")


def step_command(tx: Transaction, workflow: WorkflowRow, step: StepRow) -> StepCommand:
    """The command of a step that runs on an agent."""
    if step.spec.kind != "operation":
        return StepCommand(step.action, {**step.spec.with_, "targetNodeId": workflow.node_id})
    concern, _, operation = step.action.partition(".")
    node_id = workflow.node_id or ""
    driver = step.spec.driver or "auto"
    payload = DriverInvoke(
        driver=driver,
        concern=concern,
        operation=operation,
        args=step.spec.with_,
        target_node_id=node_id,
        target=target_of(tx, node_id, driver) if step.runs_on is RunsOn.SITE else None,
    )
    return StepCommand(CommandKind.DRIVER_INVOKE.value, msgspec.to_builtins(payload))


def agent_for(tx: Transaction, tenant_id: str, node_id: str | None, runs_on: RunsOn) -> str:
    """The agent that serves this place: the node's site agent, or the machine's own. Raises NoAgent.

    An agent that is merely offline is no reason to fail: its command waits for it.
    """
    if node_id is None:
        raise NoAgent("the workflow has no node, so no agent can do this", waits=False)
    if runs_on is RunsOn.SITE:
        row = tx.one(
            "SELECT sites.agent_id, sites.name FROM nodes JOIN sites ON sites.id = nodes.site_id "
            "WHERE nodes.id = :node_id AND nodes.tenant_id = :tenant_id",
            {"node_id": node_id, "tenant_id": tenant_id},
        )
        if row is None:
            raise NoAgent(f"node {node_id} is not there any more", waits=False)
        if row[0] is None:
            raise NoAgent(f"site {row[1]!r} has no agent: join one with a join token", waits=False)
        return str(row[0])
    row = tx.one(
        """
        SELECT agents.id FROM agents LEFT JOIN sessions ON sessions.id = agents.session_id
        WHERE agents.node_id = :node_id AND agents.revoked_at IS NULL AND sessions.role = :role
        ORDER BY sessions.disconnected_at IS NULL DESC, sessions.connected_at DESC LIMIT 1
        """,
        {"node_id": node_id, "role": runs_on.value},
    )
    if row is None:
        raise NoAgent(f"no {runs_on} agent of node {node_id} has ever connected", waits=True)
    return str(row[0])


def send_command(
    tx: Transaction,
    workflow: WorkflowRow,
    command: StepCommand,
    *,
    node_id: str,
    agent_id: str,
    key: str,
    deadline: int,
) -> CommandRow:
    """Stores the command in the step's own transaction; its agent's worker sends it.

    A key that is there already gives the command that is there, whatever is asked now.
    """
    return enqueue(
        tx,
        CommandRow(
            id=new_id("cmd"),
            tenant_id=workflow.tenant_id,
            node_id=node_id,
            agent_id=agent_id,
            kind=command.kind,
            payload=command.payload,
            key=key,
            repeat=repeat_of(command.kind, command.payload),
            state=CommandState.QUEUED,
            created_at=tx.now(),
            created_by=workflow.id,
            not_after=deadline,
            sent_session=None,
            sent_journal=None,
            started_at=None,
            finished_at=None,
            cancel_reason=None,
            ending=None,
            late_ending=None,
            workflow_id=workflow.id,
        ),
    )


def find_command(tx: Transaction, workflow: WorkflowRow, node_id: str, key: str) -> CommandRow | None:
    """The command that was sent before under this key."""
    return tx.one(
        f"SELECT {columns(CommandRow)} FROM commands WHERE tenant_id = :tenant AND node_id = :node AND key = :key",
        {"tenant": workflow.tenant_id, "node": node_id, "key": key},
        into=CommandRow,
    )


def command_end(command: CommandRow) -> tuple[Failure | None, dict[str, object] | None]:
    """What an ended command left: its failure, or its result."""
    ending = command.ending
    return (None, None) if ending is None else (ending.error, ending.result)


_CODES = {
    CommandState.FAILED: "COMMAND_FAILED",
    CommandState.REJECTED: "COMMAND_REJECTED",
    CommandState.EXPIRED: "COMMAND_EXPIRED",
    CommandState.CANCELLED: "COMMAND_CANCELLED",
}
_WORDS = {
    CommandState.FAILED: "the agent reported a failure",
    CommandState.REJECTED: "the agent refused the command",
    CommandState.EXPIRED: "no agent took the command in time",
    CommandState.CANCELLED: "the command was cancelled",
}


def error_of(state: CommandState, failure: Failure | None) -> StepError:
    """The step's error for a command that did not succeed; the agent's own words and code are kept in it."""
    return StepError(code=_CODES[state], message=words_of(state, failure), details=failure)


def words_of(state: CommandState, failure: Failure | None) -> str:
    """The agent's message with the BMC's own words, or what the state itself says."""
    if failure is None:
        return _WORDS[state]
    said = "; ".join(map(str, unquoted(failure.message, failure.bmc)))
    return f"{failure.code}: {failure.message}" + (f" (the BMC said: {said})" if said else "")


def cancel_commands(tx: Transaction, workflow: WorkflowRow, reason: str) -> bool:
    """Asks every open command of the workflow to stop; whether any is still open after that."""
    rows = tx.all(
        f"SELECT {columns(CommandRow)} FROM commands WHERE workflow_id = :id AND state IN EACH(:open) FOR UPDATE",
        {"id": workflow.id, "open": _OPEN},
        into=CommandRow,
    )
    after = [cancel(tx, row, reason) for row in rows]
    return any(row.state not in TERMINAL for row in after)
