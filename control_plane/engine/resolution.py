"""What a step's `use` means: a registered step, else a driver operation, else its fallback.

Pure over the registry, the profile's drivers and the table of operations.
"""

import difflib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from control_plane.engine.profile import ANY_DRIVER, FailureStep, Fallback, Place, ProfileStep, mended, place_of
from control_plane.engine.records import StepKind
from control_plane.engine.registry import Definition, StepRegistry
from control_plane.engine.states import RunsOn
from control_plane.engine.timing import Timing
from protocol.address_logins import login_faults
from protocol.errors import Issue
from protocol.operations import CONCERNS, DRIVERS, OPERATIONS, Operation
from protocol.validation import check

__all__ = ["IN_BAND_PLACES", "Call", "Resolution", "Resolved", "Resolver", "drivers_of_place"]

IN_BAND_PLACES = frozenset({RunsOn.RAMDISK, RunsOn.DAEMON})
"""Agents that run on the machine itself."""
_IN_BAND_DRIVERS = frozenset({"linux", "simulated"})
_SITE_DRIVERS = frozenset({*DRIVERS, ANY_DRIVER}) - {"linux"}
_AGENTS = "site, ramdisk or daemon"
_MOST_CLOSE_LOOKS = 20
"""Searching for similar names is slow, and a document may have hundreds of wrong ones."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What a step asks for: the part of it that says what is done, and where."""

    use: str
    on: Place | None = None
    with_: Mapping[str, object] = {}
    fallback: str | Fallback | None = None
    use_at: str
    on_at: str
    with_at: str
    """Where each of them stands in the document: a fallback may have them from its step."""

    @classmethod
    def of(cls, step: ProfileStep | FailureStep, path: str) -> "Call":
        """The call of a step that stands at this path."""
        return cls(
            use=step.use,
            on=step.on,
            with_=step.with_,
            fallback=step.fallback if isinstance(step, ProfileStep) else None,
            use_at=f"{path}.use",
            on_at=f"{path}.on",
            with_at=f"{path}.with",
        )

    @property
    def next(self) -> "Call | None":
        """The call of its fallback, which has from this one what it leaves out."""
        inner = self.fallback
        if inner is None:
            return None
        where = self.use_at.removesuffix(".use") + ".fallback"
        if isinstance(inner, str):
            return msgspec.structs.replace(self, use=inner, fallback=None, use_at=where)
        changes: dict[str, object] = {"use": inner.use, "fallback": inner.fallback, "use_at": f"{where}.use"}
        if inner.on is not None:
            changes |= {"on": inner.on, "on_at": f"{where}.on"}
        if inner.with_ is not None:
            changes |= {"with_": inner.with_, "with_at": f"{where}.with"}
        return msgspec.structs.replace(self, **changes)


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """What a call came to."""

    kind: StepKind
    action: str
    """The registered step's id, or the operation's."""
    runs_on: RunsOn
    with_: dict[str, object]
    timeout_ms: int
    retries: int = 0
    await_rejoin: bool = False
    driver: str | None = None
    cleanup: str | None = None


class Resolution(NamedTuple):
    """What was found, or every reason why it cannot be used."""

    found: Resolved | None
    issues: list[Issue]


class Resolver:
    """Resolves the calls of one profile."""

    def __init__(self, registry: StepRegistry, timing: Timing, drivers: Mapping[str, str]) -> None:
        self._registry = registry
        self._timing = timing
        self._drivers = drivers
        self._looks_left = _MOST_CLOSE_LOOKS

    def resolve(self, call: Call) -> Resolution:
        """The first of the call and its fallbacks that there is.

        What there is but is used wrongly (another `on`, wrong arguments) is an issue: it does not fall through.
        """
        unresolved: list[Issue] = []
        circles = _circles(call)
        if circles:
            return Resolution(None, circles)
        at: Call | None = call
        while at is not None:
            definition = self._registry.get(at.use)
            if definition is not None:
                return _registered(definition, at)
            operation = OPERATIONS.get(at.use)
            absent = self._absence(operation, at)
            if absent is None and operation is not None:
                return self._operation(operation, at)
            unresolved += [absent] if absent is not None else []
            unresolved += _argument_faults(operation, at) if operation is not None else []
            at = at.next
        return Resolution(None, unresolved)

    def cleanup_of(self, resolved: Resolved, call: Call) -> Resolution:
        """The registered step that tidies up after this one, with the same `with`."""
        definition = self._registry.get(resolved.cleanup or "")
        if definition is None:
            message = f"{resolved.action!r} is tidied up by {resolved.cleanup!r}, which is not registered here"
            return Resolution(None, [Issue(call.use_at, message, "the plugin that brings the step is incomplete")])
        owed = msgspec.structs.replace(call, use=definition.id, on=None, with_=resolved.with_, fallback=None)
        return _registered(definition, owed)

    def _operation(self, operation: Operation, call: Call) -> Resolution:
        """One driver.invoke, by the driver that is bound to the operation's concern."""
        place = place_of(call.on)
        driver = self._drivers[operation.concern.value]
        assert place is not None
        issues = _argument_faults(operation, call)
        known = driver in DRIVERS or driver == ANY_DRIVER
        if known and driver not in drivers_of_place(place):
            issues.append(Issue(call.on_at, *_wrong_place(driver, operation, place)))
        if issues:
            return Resolution(None, issues)
        return Resolution(
            Resolved(
                kind="operation",
                action=operation.id,
                runs_on=place,
                with_=dict(call.with_),
                timeout_ms=self._timing.driver_operation_timeout_ms,
                driver=driver,
            ),
            [],
        )

    def _absence(self, operation: Operation | None, call: Call) -> Issue | None:
        """Why the call is no driver operation, or None."""
        if operation is None:
            return Issue(call.use_at, *self._unknown(call.use))
        if call.on in (None, "control-plane"):
            why = "not by the control plane" if call.on else "and `on` is missing, which says by whose"
            return Issue(call.on_at, f"{call.use!r} is done by an agent's driver, {why}", f"write {_AGENTS}")
        if operation.concern not in self._drivers:
            concern = operation.concern.value
            example = "linux" if concern in ("deploy", "inspect") else "redfish"
            message = f"{call.use!r} needs a driver, and none is bound to {concern!r}"
            return Issue(call.use_at, message, f"add it to drivers, such as {concern}: {example}")
        return None

    def _unknown(self, use: str) -> tuple[str, str]:
        """The message and the hint for a name that nothing has."""
        message = f"there is no step and no operation {use[:128]!r}"
        if self._looks_left == 0:
            return message, ""
        self._looks_left -= 1
        names = [*(definition.id for definition in self._registry), *OPERATIONS]
        close = difflib.get_close_matches(use[:128], names, 3, 0.6)
        concern, dot, _ = use.partition(".")
        if not close and dot and concern in CONCERNS:
            close = [name for name in OPERATIONS if name.startswith(f"{concern}.")]
        if close:
            return message, f"did you mean {' or '.join(close)}?"
        return message, "`rackwright drivers operations` lists the operations; other steps come with plugins"


def drivers_of_place(place: RunsOn) -> frozenset[str]:
    """The drivers that an agent there can use: an in-band one on a site agent would work on the site's own host."""
    return _IN_BAND_DRIVERS if place in IN_BAND_PLACES else _SITE_DRIVERS


def _argument_faults(operation: Operation, call: Call) -> list[Issue]:
    found = [*check(operation.arguments, call.with_, call.with_at)[1], *login_faults(call.with_, call.with_at)]
    return [mended(issue) for issue in found]


def _registered(definition: Definition, call: Call) -> Resolution:
    issues: list[Issue] = []
    place = place_of(call.on)
    allowed = {definition.runs_on, *definition.relays}
    if place is not None and place not in allowed:
        message = f"{definition.id!r} does not run on {place}"
        issues.append(Issue(call.on_at, message, f"write {' or '.join(sorted(allowed))}, or leave it out"))
    if definition.with_ is not None:
        issues += [mended(issue) for issue in check(definition.with_, call.with_, call.with_at)[1]]
    issues += login_faults(call.with_, call.with_at)
    if issues:
        return Resolution(None, issues)
    is_command = definition.function is None
    return Resolution(
        Resolved(
            kind="command" if is_command else "code",
            action=definition.id,
            # Code relays what it is told to; a command goes to one agent or to another.
            runs_on=place if is_command and place is not None else definition.runs_on,
            with_=dict(call.with_),
            timeout_ms=definition.timeout_ms,
            retries=definition.retries,
            await_rejoin=definition.await_rejoin,
            cleanup=definition.cleanup,
        ),
        [],
    )


def _circles(call: Call) -> list[Issue]:
    """A fallback that asks for what was asked for before can never help."""
    seen = {(call.use, place_of(call.on))}
    issues = []
    at = call.next
    while at is not None:
        wanted = (at.use, place_of(at.on))
        if wanted in seen:
            issues.append(Issue(at.use_at, f"the fallbacks go round in a circle: {at.use!r} was tried before"))
        seen.add(wanted)
        at = at.next
    return issues


def _wrong_place(driver: str, operation: Operation, place: RunsOn) -> tuple[str, str]:
    message = f"the driver {driver!r} bound to {operation.concern.value!r} cannot work on {place}"
    if place in IN_BAND_PLACES:
        return message, "a BMC is reached through the site agent: write site, or bind linux"
    return message, "linux works on the machine that it runs on: write ramdisk or daemon, or bind redfish or ipmi"
