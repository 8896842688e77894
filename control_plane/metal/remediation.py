"""Machines in service that went away by themselves, and the workflows that bring them back.

Only nodes that opted in are looked at, and only while they are deployed, with no workflow and no maintenance. Two
things count: the BMC has shown the machine switched off for a while, and nobody asked for that here; or its agent is
away for long while it is switched on. Where many machines of a site are away at once, the site itself has failed, and
nothing is started; a machine that keeps going away is given up after a few times and has failed, with that as cause.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from control_plane.engine.records import WorkflowError
from control_plane.metal.bindings import Limits
from control_plane.metal.rows import Asked, lock_provision, store_provision
from control_plane.metal.states import MetalVerb, ProvisionState
from control_plane.metal.verbs import OWNER, Tools, Wish, begin
from control_plane.store import Store, StoreError, Transaction, json_text
from protocol.errors import RequestCode, RequestError

__all__ = ["Candidate", "Remediation", "find_candidates", "grounds", "held_sites", "note_asked_off", "remedy"]

_log = logging.getLogger("control_plane.metal.remediation")
_SWEEP_SECONDS = 30.0
_DAY_MS = 86_400_000
_OURS_MS = 1_200_000
"""A machine that was switched off by a command of ours is seen off within this time of its end."""
replace = msgspec.structs.replace


class Candidate(NamedTuple):
    """A machine in service that may have gone away, as the tables show it."""

    node_id: str
    tenant_id: str
    site_id: str
    power: str
    """unknown where no agent watches the machine now."""
    power_since: int
    agent_gone_since: int | None
    """When its daemon's last connection ended; None while it is connected, or where it has had none since the machine
    was brought into service: an operator may have said so of one whose agent was away, or that has none."""
    asked_off_at: int | None
    """When a command of ours last switched it off."""
    newly_asked: bool
    """That is not noted with the node yet."""
    last_remedy_at: int | None
    remedies: int
    """Of the last day."""


class Remediation:
    """One worker's part. `run` until cancelled; that several workers do the same is harmless."""

    def __init__(
        self, store: Store, tools: Tools, limits: Limits | None = None, *, sweep_seconds: float = _SWEEP_SECONDS
    ) -> None:
        self._store = store
        self._tools = tools
        self._limits = limits or Limits()
        self._sweep_seconds = sweep_seconds

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_seconds * random.uniform(0.75, 1.25))
            try:
                await self.sweep()
            except StoreError as error:
                _log.warning("machines that went away wait for the database: %s", error)

    async def sweep(self) -> int:
        """Starts what is due now; how many workflows that were. Raises StoreError."""
        limits = self._limits
        candidates, opted_in, under_way, now = await self._store.read(_survey)
        asked_off = [one for one in candidates if one.newly_asked]
        if asked_off:
            # The command may be forgotten before the machine is wanted again.
            await self._store.write(note_asked_off, asked_off)
        found = {one: why for one in candidates if (why := grounds(one, limits, now)) is not None}
        held = held_sites(found, opted_in, limits)
        for site_id in held:
            _log.warning(
                "so many machines of site %s are away that the site itself has failed: none is reset", site_id
            )
        started, room = 0, Counter({site: limits.at_once - count for site, count in under_way.items()})
        for one, why in found.items():
            if one.site_id in held or room.setdefault(one.site_id, limits.at_once) <= 0:
                continue
            if await self._store.write(remedy, self._tools, limits, one, why):
                room[one.site_id] -= 1
                started += 1
        return started


def grounds(one: Candidate, limits: Limits, now: int) -> str | None:
    """Why this machine is to be brought back, or None. Pure."""
    if one.last_remedy_at is not None and now - one.last_remedy_at < limits.pause_ms:
        return None
    if one.power == "off":
        asked = one.asked_off_at
        if asked is not None and asked >= one.power_since - _OURS_MS:
            return None
        return "the BMC shows it switched off by itself" if now - one.power_since >= limits.off_ms else None
    gone = one.agent_gone_since
    # One that is not seen to be on may be in the hands of somebody who works on it.
    if one.power == "on" and gone is not None and now - max(gone, one.power_since) >= limits.gone_ms:
        return "it is switched on, and its agent is away"
    return None


def held_sites(found: Iterable[Candidate], opted_in: dict[str, int], limits: Limits) -> set[str]:
    """Sites where so many machines are away at once that it is not the machines. Pure."""
    away = Counter(one.site_id for one in found)
    return {
        site_id
        for site_id, count in away.items()
        if count >= limits.outage_least and count > opted_in.get(site_id, count) * limits.outage_share
    }


def remedy(tx: Transaction, tools: Tools, limits: Limits, one: Candidate, why: str) -> bool:
    """Starts the node's remediation; False where it is not due any more, or cannot be started.

    A node that was brought back as often as it may be has failed.
    """
    try:
        node, row = lock_provision(tx, one.tenant_id, one.node_id)
    except RequestError:
        return False
    if row.state is not ProvisionState.DEPLOYED or not row.remediate:
        return False
    if one.remedies >= limits.per_day:
        cause = WorkflowError(
            code="REMEDIATION_SPENT",
            message=f"{why}, after it was brought back {one.remedies} times within a day",
        )
        store_provision(tx, node, row, replace(row, state=ProvisionState.FAILED, cause=cause))
        return False
    try:
        begin(tx, tools, node, row, Wish(MetalVerb.REMEDIATE, OWNER, Asked(reason=why)))
    except RequestError as refused:
        if refused.code is not RequestCode.CONFLICT:
            _log.warning("node %s (%s) is not brought back: %s", node.name, why, refused.message)
        return False
    return True


def note_asked_off(tx: Transaction, candidates: Iterable[Candidate]) -> None:
    """Keeps with each node when it was switched off on purpose."""
    tx.run_many(
        "UPDATE provisions SET asked_off_at = :at WHERE node_id = :node",
        [{"at": one.asked_off_at, "node": one.node_id} for one in candidates],
    )


def find_candidates(tx: Transaction) -> list[Candidate]:
    """Opted-in machines in service, without a workflow, that are seen off or whose agent is not connected."""
    now = tx.now()
    rows = tx.all(
        """
        SELECT provisions.node_id, provisions.tenant_id, nodes.site_id, seen.power, seen.seen_at,
            watcher.id IS NOT NULL AS watched,
            (SELECT MAX(sessions.connected_at) FROM agents JOIN sessions ON sessions.id = agents.session_id
                WHERE agents.node_id = provisions.node_id AND sessions.disconnected_at IS NULL
                    AND agents.revoked_at IS NULL) AS connected_at,
            (SELECT MAX(sessions.disconnected_at) FROM agents JOIN sessions ON sessions.id = agents.session_id
                WHERE agents.node_id = provisions.node_id AND sessions.role = 'daemon'
                    AND agents.revoked_at IS NULL
                    AND sessions.disconnected_at >= COALESCE(provisions.deployed_at, 0)) AS gone_at,
            (SELECT MAX(runs.started_at) FROM provision_runs AS runs
                WHERE runs.node_id = provisions.node_id AND runs.verb = 'remediate') AS last_at,
            (SELECT COUNT(*) FROM provision_runs AS runs WHERE runs.node_id = provisions.node_id
                AND runs.verb = 'remediate' AND runs.started_at > :day) AS remedies,
            provisions.asked_off_at
        FROM provisions JOIN nodes ON nodes.id = provisions.node_id
            LEFT JOIN node_observations AS seen ON seen.node_id = provisions.node_id
            LEFT JOIN sites ON sites.id = nodes.site_id
            LEFT JOIN agents AS owner ON owner.id = sites.agent_id AND owner.id = seen.agent_id
            LEFT JOIN sessions AS watcher ON watcher.id = owner.session_id AND watcher.disconnected_at IS NULL
        WHERE provisions.remediate AND provisions.state = 'deployed'
            AND NOT EXISTS (SELECT 1 FROM workflows WHERE workflows.node_id = provisions.node_id
                AND workflows.state IN ('pending', 'running', 'paused'))
        ORDER BY provisions.node_id
        """,
        {"day": now - _DAY_MS},
    )
    found = []
    for node_id, tenant_id, site_id, power, seen_at, watched, connected_at, gone_at, last_at, remedies, noted in rows:
        shown = str(power) if power is not None and watched else "unknown"
        gone = None if connected_at is not None else gone_at
        if shown != "off" and gone is None:
            continue
        newest = _newest_power_command(tx, tenant_id, node_id) if shown == "off" else None
        asked = newest.at if newest is not None and newest.off else None
        # What was noted holds until the machine is switched on again.
        holds = noted is not None and (newest is None or newest.off or noted > newest.at)
        found.append(
            Candidate(
                node_id=node_id,
                tenant_id=tenant_id,
                site_id=site_id,
                power=shown,
                power_since=seen_at or 0,
                agent_gone_since=gone,
                asked_off_at=max((at for at in (asked, noted if holds else None) if at is not None), default=None),
                newly_asked=asked is not None and (noted is None or asked > noted),
                last_remedy_at=last_at,
                remedies=remedies,
            )
        )
    return found


def _survey(tx: Transaction) -> tuple[list[Candidate], dict[str, int], dict[str, int], int]:
    """The candidates, how many machines of each site opted in, and how many are being brought back there."""
    opted_in = tx.all(
        "SELECT nodes.site_id, COUNT(*) FROM provisions JOIN nodes ON nodes.id = provisions.node_id "
        "WHERE provisions.remediate AND provisions.state = 'deployed' GROUP BY nodes.site_id"
    )
    under_way = tx.all(
        """
        SELECT nodes.site_id, COUNT(*) FROM workflows JOIN nodes ON nodes.id = workflows.node_id
            JOIN provision_runs AS runs ON runs.workflow_id = workflows.id
        WHERE workflows.state IN ('pending', 'running', 'paused') AND workflows.node_id IS NOT NULL
            AND runs.verb = 'remediate'
        GROUP BY nodes.site_id
        """
    )
    return find_candidates(tx), dict(opted_in), dict(under_way), tx.now()


class _PowerCommand(NamedTuple):
    """`at`: when it ended, or was asked for where it has not ended. `off`: it was to switch the machine off."""

    at: int
    off: bool


def _newest_power_command(tx: Transaction, tenant_id: str, node_id: str) -> _PowerCommand | None:
    """Of ours. An NMI changes no power."""
    row = tx.one(
        """
        SELECT COALESCE(finished_at, created_at), payload LIKE :off OR payload LIKE :soft FROM commands
        WHERE tenant_id = :tenant AND node_id = :node AND kind = 'driver.invoke' AND state <> 'rejected'
            AND payload LIKE '%"setPower"%' AND payload NOT LIKE :nmi
        ORDER BY id DESC LIMIT 1
        """,
        {
            "tenant": tenant_id,
            "node": node_id,
            "off": f"%{json_text({'action': 'off'})[1:-1]}%",
            "soft": f"%{json_text({'action': 'softOff'})[1:-1]}%",
            "nmi": f"%{json_text({'action': 'nmi'})[1:-1]}%",
        },
    )
    return None if row is None else _PowerCommand(int(row[0]), bool(row[1]))
