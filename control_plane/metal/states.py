"""The provision states of a machine, what moves it from one to the other, and what it takes to come back. Pure.

    enrolled ──commission──► commissioning ──► available ──deploy──► deploying ──► deployed
                                                   ▲                                  │
                                                   └────────── releasing ◄──release───┘
    rescuing ──► rescue      from any state at rest; leads back to it by recover
    recovering ──► deployed  out of rescue or failed: a machine that was in service, started from its disk again
    failed                   where a workflow has failed or was aborted, with its cause; left by recover, or by a verb
    maintenance              stands in for a state at rest: nothing is started meanwhile

What a failed workflow has left behind is not guessed: the node keeps the last state that was really reached (`base`)
and whether a workflow has begun to change its disks since (`residue`). A machine whose erasure was begun and not
finished may still hold somebody's data, so only another release leads away from there.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

__all__ = [
    "AT_REST",
    "BASES",
    "GOAL",
    "MOVING",
    "TRANSITIONS",
    "UNDER_WAY",
    "MetalVerb",
    "Outlook",
    "ProvisionState",
    "Refusal",
    "Residue",
    "changes_disks",
    "erasing",
    "may_start",
    "safe_state",
]


class ProvisionState(StrEnum):
    ENROLLED = "enrolled"
    """Known by its BMC; nothing on it is trusted."""
    COMMISSIONING = "commissioning"
    AVAILABLE = "available"
    """Inspected and clean: ready for a system."""
    DEPLOYING = "deploying"
    DEPLOYED = "deployed"
    """In service."""
    RELEASING = "releasing"
    RESCUING = "rescuing"
    RESCUE = "rescue"
    """It runs the ramdisk for whoever looks into it."""
    RECOVERING = "recovering"
    """It is started from its own disk again; in service once its system has connected."""
    FAILED = "failed"
    MAINTENANCE = "maintenance"


class MetalVerb(StrEnum):
    """What starts a workflow; each is bound to a profile."""

    COMMISSION = "commission"
    DEPLOY = "deploy"
    RELEASE = "release"
    RESCUE = "rescue"
    REMEDIATE = "remediate"
    """Brings a machine in service back that went away by itself; it stays `deployed` meanwhile."""
    RECOVER = "recover"
    """Starts the own system of a machine that was in service, and runs the ramdisk."""


class Residue(StrEnum):
    """What workflows that did not end well have left since the node's base."""

    CHANGED = "changed"
    """Something was written to its disks, or removed from them."""
    ERASING = "erasing"
    """An erasure before a release was begun: what of the former system is left, nobody knows."""


_S = ProvisionState
_V = MetalVerb

MOVING: Mapping[MetalVerb, ProvisionState] = {
    _V.COMMISSION: _S.COMMISSIONING,
    _V.DEPLOY: _S.DEPLOYING,
    _V.RELEASE: _S.RELEASING,
    _V.RESCUE: _S.RESCUING,
    _V.REMEDIATE: _S.DEPLOYED,
    _V.RECOVER: _S.RECOVERING,
}
GOAL: Mapping[MetalVerb, ProvisionState] = {
    _V.COMMISSION: _S.AVAILABLE,
    _V.DEPLOY: _S.DEPLOYED,
    _V.RELEASE: _S.AVAILABLE,
    _V.RESCUE: _S.RESCUE,
    _V.REMEDIATE: _S.DEPLOYED,
    _V.RECOVER: _S.DEPLOYED,
}
BASES = frozenset({_S.ENROLLED, _S.AVAILABLE, _S.DEPLOYED})
AT_REST = BASES | {_S.RESCUE, _S.FAILED}
"""No workflow moves a node that is in one of these."""
UNDER_WAY = ", ".join(f"'{state}'" for state in dict.fromkeys(MOVING.values()) if state not in BASES)
"""For SQL: the states in which a workflow moves a machine. The index `provisions_moving` (migration 0012) has these
words in this order, and SQLite takes it for no others."""

_STARTS_FROM: Mapping[MetalVerb, frozenset[ProvisionState]] = {
    _V.COMMISSION: frozenset({_S.ENROLLED, _S.AVAILABLE}),
    _V.DEPLOY: frozenset({_S.AVAILABLE}),
    _V.RELEASE: frozenset({_S.DEPLOYED}),
    _V.RESCUE: BASES,
    _V.REMEDIATE: frozenset({_S.DEPLOYED}),
    _V.RECOVER: frozenset(),
}

TRANSITIONS: Mapping[ProvisionState, frozenset[ProvisionState]] = {
    _S.ENROLLED: frozenset({_S.COMMISSIONING, _S.RESCUING, _S.MAINTENANCE}),
    _S.COMMISSIONING: frozenset({_S.AVAILABLE, _S.FAILED, _S.ENROLLED, _S.RESCUE}),
    _S.AVAILABLE: frozenset({_S.COMMISSIONING, _S.DEPLOYING, _S.RESCUING, _S.MAINTENANCE}),
    _S.DEPLOYING: frozenset({_S.DEPLOYED, _S.FAILED, _S.AVAILABLE, _S.RESCUE}),
    # A remediation that fails leads from here to failed.
    _S.DEPLOYED: frozenset({_S.RELEASING, _S.RESCUING, _S.FAILED, _S.MAINTENANCE}),
    _S.RELEASING: frozenset({_S.AVAILABLE, _S.FAILED, _S.DEPLOYED, _S.RESCUE}),
    _S.RESCUING: AT_REST,
    _S.RESCUE: frozenset(
        {_S.COMMISSIONING, _S.DEPLOYING, _S.RELEASING, _S.RESCUING, _S.RECOVERING, _S.MAINTENANCE} | BASES
    ),
    _S.RECOVERING: frozenset({_S.DEPLOYED, _S.FAILED, _S.RESCUE}),
    _S.FAILED: frozenset(
        {
            _S.COMMISSIONING,
            _S.DEPLOYING,
            _S.RELEASING,
            _S.RESCUING,
            _S.RESCUE,
            _S.RECOVERING,
            _S.MAINTENANCE,
        }
        | BASES
    ),
    _S.MAINTENANCE: AT_REST,
}
"""Every change that is ever stored is one of these. Out of a moving state: to its goal, to failed, or back to where
it began when it was aborted before anything was done."""


class Refusal(NamedTuple):
    """Why something cannot be, and what to do."""

    message: str


class Outlook(NamedTuple):
    """What is seen of a node that is to recover."""

    state: ProvisionState
    base: ProvisionState
    residue: Residue | None
    verb: MetalVerb | None
    """Of the workflow that has moved it last."""
    done: bool
    """Every main step of that workflow has succeeded: only its clean-up has not."""
    agent: str | None
    """The role of the machine's agent that is connected now; None for none."""
    agent_is_new: bool
    """It has connected since that workflow began."""
    is_back: bool
    """The machine's own system is connected now, from a boot that was first seen after the ramdisk."""
    ramdisk_is_last: bool
    """The machine was started with its ramdisk since it was brought into service, and nobody has heard of its own
    system after that."""


def may_start(
    verb: MetalVerb, state: ProvisionState, base: ProvisionState, residue: Residue | None
) -> Refusal | None:
    """None where the verb may be started in this state."""
    if state in BASES:
        if state in _STARTS_FROM[verb]:
            return None
        return Refusal(f"it is {state}: {_hint(verb, state)}")
    if state is _S.MAINTENANCE:
        return Refusal("it is in maintenance, in which nothing is started: end the maintenance first")
    if state in (_S.FAILED, _S.RESCUE):
        return _may_start_again(verb, state, base, residue)
    return Refusal(f"it is {state}: wait for the end, or abort it")


def _may_start_again(
    verb: MetalVerb, state: ProvisionState, base: ProvisionState, residue: Residue | None
) -> Refusal | None:
    """From failed and rescue, by what is known of the disks."""
    if verb is _V.RESCUE:
        return None
    if verb is _V.REMEDIATE:
        return Refusal(f"it is {state}: only a machine in service is remedied")
    if residue is Residue.ERASING:
        if verb is _V.RELEASE:
            return None
        return Refusal("its erasure was begun and not finished, so that data may be left on it: release it again")
    if verb is _V.RECOVER:
        return None if base is _S.DEPLOYED else Refusal(f"it was {base} before: only a machine in service is started")
    if base in _STARTS_FROM[verb] or (residue is Residue.CHANGED and verb is _V.RELEASE):
        return None
    return Refusal(f"it is {state} and was {base} before: {_hint(verb, base)}")


def _hint(verb: MetalVerb, state: ProvisionState) -> str:
    if verb is _V.DEPLOY:
        return {
            _S.ENROLLED: "commission it first",
            _S.DEPLOYED: "release it first, which erases its disks",
        }.get(state, f"{verb} is not possible from there")
    if verb is _V.RELEASE:
        return "only a machine that was deployed is released"
    if verb is _V.COMMISSION:
        return "release it first, which erases its disks"
    return f"{verb} is not possible from there"


def safe_state(seen: Outlook, *, as_it_is: bool = False) -> ProvisionState | Refusal:
    """Where a failed or rescued machine stands, as far as looking can prove; never cleaner than that, nor in service
    before its own system is there. `recovering`: it has to be started first.

    `as_it_is`: an operator's word that a machine which was in service is so again, where nothing shows it.
    """
    if seen.state not in (_S.FAILED, _S.RESCUE):
        return Refusal(f"it is {seen.state}: only a machine that has failed, or is in rescue, recovers")
    if seen.state is _S.FAILED and seen.done and seen.verb is not None:
        return GOAL[seen.verb]
    if seen.residue is Residue.ERASING:
        return Refusal("its erasure was begun and not finished, so that data may be left on it: release it again")
    # What a rescue or a remediation has changed on a machine in service does not take its data away.
    if seen.residue is Residue.CHANGED and seen.base is not _S.DEPLOYED:
        new_system = seen.verb is _V.DEPLOY and seen.is_back and seen.agent_is_new
        return _S.DEPLOYED if new_system else _S.ENROLLED
    if seen.agent == "ramdisk" and seen.state is _S.FAILED and seen.verb is _V.RESCUE and seen.agent_is_new:
        return _S.RESCUE
    return seen.base if seen.base is not _S.DEPLOYED else _in_service(seen, as_it_is)


def _in_service(seen: Outlook, as_it_is: bool) -> ProvisionState | Refusal:
    """Of a machine that was deployed."""
    if seen.is_back:
        return _S.DEPLOYED
    if as_it_is:
        if seen.agent == "ramdisk":
            return Refusal("it runs the ramdisk, not its own system: recover it without --as-it-is, to start that")
        return _S.DEPLOYED
    if seen.ramdisk_is_last:
        return _S.RECOVERING
    return Refusal(
        "its own system's agent is not connected, and it was not its ramdisk that ran last: see that it is on "
        "(rackwright invoke NODE power.getPower), and recover it once its agent is back. Where it has no agent, or "
        "you know that it is in service, say so: rackwright nodes recover NODE --as-it-is"
    )


_HARMLESS = frozenset({"deploy.getDisks", "raid.getRaid"})


def erasing(actions: Iterable[str]) -> frozenset[str]:
    """Which actions of a release are its erasure: `deploy.eraseDisks`, or in its absence the operator's scripts."""
    found = frozenset(actions)
    return found & {"deploy.eraseDisks"} or found & {"task.run"}


def changes_disks(action: str) -> bool:
    """Whether a step of this kind may have changed the disks once it was begun; a script may do anything."""
    if action in _HARMLESS:
        return False
    return action.startswith(("deploy.", "raid.")) or action in ("metal.writeImage", "metal.configDrive", "task.run")
