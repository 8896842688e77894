"""What metal's steps know of their machine, and how they ask agents: one reading, and commands that are sent once.

A step's code is run again and again while it waits. What it has asked before is in that one reading, so that waiting
writes nothing.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from control_plane.engine.agent_steps import relayed_key, words_of
from control_plane.engine.context import DriverError, StepContext, StepFailed
from control_plane.engine.states import RunsOn
from control_plane.metal.rows import Asked, get_run
from control_plane.nodes import target_by
from control_plane.store import Transaction
from protocol.commands import TERMINAL, CommandKind, CommandState, DriverInvoke, Ending, TargetRef
from protocol.errors import Failure

__all__ = ["Agent", "Machine", "Relayed", "Seen", "see"]


class Relayed(msgspec.Struct, frozen=True):
    """A command that this attempt has sent, by the key that tells it from the attempt's others."""

    key: str
    state: CommandState
    created_at: int
    finished_at: int | None
    ending: Ending | None

    @property
    def over(self) -> bool:
        return self.state in TERMINAL

    @property
    def failure(self) -> Failure | None:
        return None if self.ending is None else self.ending.error

    @property
    def words(self) -> str:
        """What is said of it where it did not succeed."""
        return words_of(self.state, self.failure)


class Agent(NamedTuple):
    """The machine's own agent that is connected now."""

    role: str
    boot_id: str
    connected_at: int
    new_boot: bool
    """Nobody has seen this boot before the attempt began."""
    follows_ramdisk: bool
    """This boot was first seen after the machine's ramdisk was seen last."""


class Seen(NamedTuple):
    """The machine at one moment, by the tables alone."""

    now: int
    name: str
    drivers: Mapping[str, str]
    """Each concern's driver: the profile's, else the node's."""
    bmc_driver: str
    target: TargetRef
    asked: Asked
    agent: Agent | None
    sent: Mapping[str, Relayed]
    power: str
    """As the site's agent has seen it; unknown where it does not watch the machine now."""
    power_since: int
    ramdisk_at: int | None
    """When the machine's ramdisk has connected last."""


def see(tx: Transaction, context: StepContext) -> Seen:
    """Raises StepFailed where the node is gone."""
    row = tx.one(
        """
        SELECT nodes.name, nodes.drivers, nodes.bmc_driver, nodes.bmc_address, nodes.credential_ref, nodes.tls,
            workflow_documents.document
        FROM nodes JOIN workflows ON workflows.node_id = nodes.id
            JOIN workflow_documents ON workflow_documents.workflow_id = workflows.id
        WHERE workflows.id = :workflow AND nodes.tenant_id = :tenant
        """,
        {"workflow": context.workflow_id, "tenant": context.tenant_id},
    )
    if row is None:
        raise StepFailed("the workflow has no node, or the node is not there any more", code="NO_AGENT")
    name, own, bmc_driver, address, credential_ref, tls, document = row
    drivers = msgspec.json.decode(own, type=dict[str, str]) | msgspec.json.decode(document, type=_Drivers).drivers
    run = get_run(tx, context.workflow_id)
    power, power_since = _observed(tx, context.node_id or "")
    ramdisk_at = _ramdisk_at(tx, context.node_id or "")
    return Seen(
        now=tx.now(),
        name=str(name),
        drivers=drivers,
        bmc_driver=str(bmc_driver),
        target=TargetRef(address, credential_ref, tls),
        asked=Asked() if run is None else run.asked,
        agent=_agent(tx, context, ramdisk_at),
        sent=_sent(tx, context),
        power=power,
        power_since=power_since,
        ramdisk_at=ramdisk_at,
    )


class Machine:
    """A step's machine during one execution of its code."""

    def __init__(self, context: StepContext, seen: Seen) -> None:
        self.context = context
        self.seen = seen

    @classmethod
    async def of(cls, context: StepContext) -> "Machine":
        return cls(context, await context.read(see, context))

    async def site(
        self, operation: str, args: dict[str, object], *, key: str, timeout_ms: int | None = None
    ) -> dict[str, object]:
        """One operation on the BMC, by the site's agent: sent once per attempt under the key, and its result.

        Raises StepNotReady while it has not ended, DriverError with its reason when it did not succeed.
        """
        concern = operation.partition(".")[0]
        driver = self.seen.drivers.get(concern, self.seen.bmc_driver)
        return await self._ask(
            CommandKind.DRIVER_INVOKE,
            self._invocation(operation, args, driver, target_by(driver, self.seen.target)),
            RunsOn.SITE,
            key,
            timeout_ms,
        )

    async def ramdisk(self, operation: str, args: dict[str, object], *, key: str) -> dict[str, object]:
        """One operation on the machine itself, by its ramdisk's agent; as `site`."""
        driver = self.seen.drivers.get(operation.partition(".")[0], "linux")
        payload = self._invocation(operation, args, driver, None)
        return await self._ask(CommandKind.DRIVER_INVOKE, payload, RunsOn.RAMDISK, key, None)

    async def command(
        self,
        kind: CommandKind,
        payload: dict[str, object],
        place: RunsOn,
        *,
        key: str,
        timeout_ms: int | None = None,
    ) -> dict[str, object]:
        """A command of another kind; as `site`."""
        full = {**payload, "targetNodeId": self.context.node_id}
        return await self._ask(kind, full, place, key, timeout_ms)

    @property
    def time_left_ms(self) -> int:
        return self.context.deadline_ms - self.seen.now

    async def _ask(
        self, kind: CommandKind, payload: dict[str, object], place: RunsOn, key: str, timeout_ms: int | None
    ) -> dict[str, object]:
        known = self.seen.sent.get(key)
        if known is not None and known.over:
            if known.state is not CommandState.SUCCEEDED:
                raise DriverError(known.words, "" if known.failure is None else known.failure.code)
            return (known.ending.result if known.ending is not None else None) or {}
        if place is RunsOn.RAMDISK:
            self._require_power()
        return await self.context.await_command(
            kind=kind.value, payload=payload, key=key, timeout_ms=timeout_ms, place=place
        )

    def _require_power(self) -> None:
        """A ramdisk that was switched off brings no result any more, and is not waited for. Raises StepFailed."""
        seen = self.seen
        if seen.agent is None and seen.power == "off" and seen.power_since > (seen.ramdisk_at or seen.now):
            raise StepFailed(
                "the machine is off, and its ramdisk with it: somebody has switched it off, or it has failed",
                code="POWER_LOST",
            )

    def _invocation(
        self, operation: str, args: dict[str, object], driver: str, target: TargetRef | None
    ) -> dict[str, object]:
        concern, _, name = operation.partition(".")
        invoke = DriverInvoke(
            driver=driver,
            concern=concern,
            operation=name,
            args=args,
            target_node_id=self.context.node_id or "",
            target=target,
        )
        payload: dict[str, object] = msgspec.to_builtins(invoke)
        return payload


class _Drivers(msgspec.Struct):
    drivers: dict[str, str] = {}


def _sent(tx: Transaction, context: StepContext) -> dict[str, Relayed]:
    prefix = relayed_key(context.workflow_id, context.step_id, context.attempt) + ":"
    rows = tx.all(
        "SELECT key, state, created_at, finished_at, ending FROM commands WHERE workflow_id = :workflow",
        {"workflow": context.workflow_id},
        into=Relayed,
    )
    return {row.key.removeprefix(prefix): row for row in rows if row.key.startswith(prefix)}


def _ramdisk_at(tx: Transaction, node_id: str) -> int | None:
    row = tx.one(
        """
        SELECT MAX(sessions.connected_at) FROM sessions JOIN agents ON agents.id = sessions.agent_id
        WHERE agents.node_id = :node AND sessions.role = 'ramdisk'
        """,
        {"node": node_id},
    )
    return None if row is None or row[0] is None else int(row[0])


def _agent(tx: Transaction, context: StepContext, ramdisk_at: int | None) -> Agent | None:
    row = tx.one(
        """
        SELECT sessions.role, sessions.boot_id, sessions.connected_at FROM agents
            JOIN sessions ON sessions.id = agents.session_id
        WHERE agents.node_id = :node AND agents.revoked_at IS NULL AND sessions.disconnected_at IS NULL
        ORDER BY sessions.connected_at DESC, sessions.id DESC LIMIT 1
        """,
        {"node": context.node_id},
    )
    if row is None:
        return None
    role, boot_id, connected_at = row
    # An agent that lost its connection and comes back late is not a machine that has started again.
    (first_seen,) = tx.one(
        """
        SELECT MIN(sessions.connected_at) FROM sessions JOIN agents ON agents.id = sessions.agent_id
        WHERE agents.node_id = :node AND sessions.boot_id = :boot
        """,
        {"node": context.node_id, "boot": boot_id},
    ) or (connected_at,)
    return Agent(
        role=str(role),
        boot_id=str(boot_id),
        connected_at=int(connected_at),
        new_boot=first_seen > context.started_ms,
        follows_ramdisk=ramdisk_at is not None and first_seen > ramdisk_at,
    )


def _observed(tx: Transaction, node_id: str) -> tuple[str, int]:
    row = tx.one(
        """
        SELECT node_observations.power, node_observations.seen_at
        FROM node_observations JOIN nodes ON nodes.id = node_observations.node_id
            JOIN sites ON sites.id = nodes.site_id
            JOIN agents ON agents.id = sites.agent_id AND agents.id = node_observations.agent_id
            JOIN sessions ON sessions.id = agents.session_id
        WHERE node_observations.node_id = :node AND sessions.disconnected_at IS NULL
        """,
        {"node": node_id},
    )
    return ("unknown", 0) if row is None else (str(row[0]), int(row[1]))
