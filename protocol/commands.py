"""Commands: what the control plane asks of an agent, and the states that a command goes through.

States and their transitions (the ledger in the control plane holds them; the agent's journal holds `JournalState`):

    queued ──► delivered ──► running ──► succeeded
       │           │            │  └───► failed
       │           └────────────┼──────► cancelled
       ├──► rejected, expired, cancelled
       └──► (a report that overtakes another may skip states, never go back)

`delivered` means that the agent has it in its journal: it will be executed at most once, and its result is not lost.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from protocol.addresses import Address, TlsPolicy
from protocol.errors import Failure, Issue
from protocol.operations import CONCERNS, DRIVERS, OPERATIONS, Repeat
from protocol.validation import check

__all__ = [
    "SELF_TERMINATING",
    "TERMINAL",
    "TRANSITIONS",
    "CommandKind",
    "CommandState",
    "DriverInvoke",
    "Ending",
    "JournalState",
    "Outcome",
    "TargetRef",
    "may_follow",
    "payload_faults",
    "repeat_of",
]


class CommandKind(StrEnum):
    DRIVER_INVOKE = "driver.invoke"
    BOOT_KEXEC = "boot.kexec"
    NODE_REBOOT = "node.reboot"
    DAEMON_UPGRADE = "daemon.upgrade"
    TASK_RUN = "task.run"
    COLLECT_LOGS = "agent.collectLogs"
    SITE_OFFER_IMAGE = "site.offerImage"
    """To a site's agent: have this image ready on the site's boot server, and say under which address."""


SELF_TERMINATING = frozenset({CommandKind.BOOT_KEXEC, CommandKind.NODE_REBOOT, CommandKind.DAEMON_UPGRADE})
"""Kinds that end the process that runs them: success is seen by the agent's return, not by its report."""


class CommandState(StrEnum):
    QUEUED = "queued"
    DELIVERED = "delivered"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


TERMINAL = frozenset(
    {
        CommandState.SUCCEEDED,
        CommandState.FAILED,
        CommandState.REJECTED,
        CommandState.EXPIRED,
        CommandState.CANCELLED,
    }
)

TRANSITIONS: Mapping[CommandState, frozenset[CommandState]] = {
    CommandState.QUEUED: frozenset({CommandState.DELIVERED, CommandState.RUNNING}) | TERMINAL,
    CommandState.DELIVERED: frozenset({CommandState.RUNNING}) | TERMINAL,
    CommandState.RUNNING: TERMINAL - {CommandState.REJECTED, CommandState.EXPIRED},
    **dict.fromkeys(TERMINAL, frozenset[CommandState]()),
}


def may_follow(before: CommandState, after: CommandState) -> bool:
    """Whether the ledger lets a command go from one state to the other."""
    return after in TRANSITIONS[before]


class JournalState(StrEnum):
    """What an agent's journal knows of a command."""

    ACCEPTED = "accepted"
    """Durable, and not begun: it is provably not done."""
    STARTED = "started"
    """Begun: without a result, only the machine can tell what happened."""
    FINISHED = "finished"
    """The outcome is kept until the control plane has said that it has it."""


class Outcome(StrEnum):
    """How a command ended, in the agent's words."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def state(self) -> CommandState:
        return CommandState(self.value)


class TargetRef(msgspec.Struct, frozen=True, rename="camel"):
    """Which BMC, and by which credential; the password is the agent's to look up, and nobody else's."""

    address: str
    credential_ref: str | None = None
    tls: str = "first-use"
    """A `TlsPolicy`: verify, ca:/path, sha256:<hex>, first-use or none."""


class DriverInvoke(msgspec.Struct, frozen=True, rename="camel"):
    """The payload of `driver.invoke`. An in-band driver (linux) has no target."""

    driver: str
    concern: str
    operation: str
    args: dict[str, object]
    target_node_id: str
    target: TargetRef | None = None

    @property
    def operation_id(self) -> str:
        return f"{self.concern}.{self.operation}"


class Ending(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How a command ended and what came of it: `result` with success, `error` with anything else."""

    outcome: Outcome
    result: dict[str, object] | None = None
    error: Failure | None = None
    observed: dict[str, str] = {}
    """Facts seen on the way that the control plane keeps, such as `tlsFingerprint`."""


def payload_faults(kind: str, payload: Mapping[str, object]) -> list[Issue]:
    """Every fault of a command's payload, so that a bad one is refused before it is stored or begun."""
    if kind != CommandKind.DRIVER_INVOKE:
        known = [member.value for member in CommandKind]
        return [] if kind in known else [Issue("kind", f"{kind!r} is not one of {', '.join(known)}")]
    invoke, issues = check(DriverInvoke, payload, "payload")
    if invoke is None:
        return issues
    if invoke.driver not in DRIVERS and invoke.driver != "auto":
        issues.append(Issue("payload.driver", f"{invoke.driver!r} is not one of {', '.join(DRIVERS)}"))
    if invoke.concern not in CONCERNS:
        issues.append(Issue("payload.concern", f"{invoke.concern!r} is not one of {', '.join(CONCERNS)}"))
    operation = OPERATIONS.get(invoke.operation_id)
    if operation is None:
        issues.append(Issue("payload.operation", f"there is no operation {invoke.operation_id!r}"))
    else:
        issues += check(operation.arguments, invoke.args, "payload.args")[1]
    if invoke.target is not None:
        try:
            Address.parse(invoke.target.address)
        except ValueError as error:
            issues.append(Issue("payload.target.address", str(error)))
        try:
            TlsPolicy.parse(invoke.target.tls)
        except ValueError as error:
            issues.append(Issue("payload.target.tls", str(error)))
    return issues


def repeat_of(kind: str, payload: Mapping[str, object]) -> Repeat:
    """What executing this command a second time would mean. Whatever is not known to be harmless is `once`."""
    if kind == CommandKind.COLLECT_LOGS:
        return Repeat.READ
    if kind == CommandKind.SITE_OFFER_IMAGE:
        return Repeat.CONVERGE
    if kind != CommandKind.DRIVER_INVOKE:
        return Repeat.ONCE
    operation = OPERATIONS.get(f"{payload.get('concern')}.{payload.get('operation')}")
    arguments = payload.get("args")
    if operation is None or not isinstance(arguments, Mapping):
        return Repeat.ONCE
    return operation.repeat_for(arguments)
