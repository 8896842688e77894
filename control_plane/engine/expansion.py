"""From a profile to the rows of a workflow, or to every reason why it cannot be run.

The rows stand in the order in which they run: main, on-failure, then clean-up (what steps leave behind first, in the
reverse order of the steps; then the profile's own clean-up steps).
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from control_plane.engine.profile import LONGEST_ID, FailureStep, Parsed, Placed, Profile, ProfileStep, parse
from control_plane.engine.records import OnFailure, StepSpec
from control_plane.engine.registry import StepRegistry
from control_plane.engine.resolution import Call, Resolved, Resolver
from control_plane.engine.states import Phase, RunsOn
from control_plane.engine.timing import MAX_STEPS, Timing
from protocol.durations import parse_duration
from protocol.errors import Issue

__all__ = ["Expansion", "RowSeed", "expand", "step_ids"]


_JOINT = re.compile(r"[.\[]")
_STEP = re.compile(r"(steps|cleanup)\[([0-9]+)\]")


class RowSeed(msgspec.Struct, frozen=True, kw_only=True):
    """What a row of `workflow_steps` begins with."""

    seq: int
    """From 1 on, over all phases."""
    id: str
    phase: Phase
    action: str
    runs_on: RunsOn
    spec: StepSpec
    owner_seq: int | None = None
    """The row that this on-failure or clean-up row belongs to."""


class Expansion(NamedTuple):
    """`seeds` are complete only where there is no issue."""

    profile: Profile | None
    seeds: list[RowSeed]
    issues: list[Issue]


def expand(document: object, registry: StepRegistry, timing: Timing, *, has_node: bool = True) -> Expansion:
    """The rows of a document that is a JSON value. Never raises for its content: every fault is an issue.

    `has_node`: whether there is a machine that agents' steps can work on.
    """
    parsed = parse(document)
    rows = _Rows(parsed, registry, timing, has_node)
    # What follows from a fault that was told before is no fault of its own.
    told = {issue.path for issue in parsed.issues}
    others = (issue for issue in rows.issues if told.isdisjoint(_places(issue.path)))
    # A step and its fallback may have the same `with`, and so the same fault.
    issues = list(dict.fromkeys([*parsed.issues, *others]))
    issues.sort(key=_place_in_document)
    return Expansion(None if issues else parsed.profile, rows.seeds, issues)


def step_ids(steps: list[ProfileStep], taken: set[str]) -> list[str]:
    """An id for each: its own, else its `use`, with -2, -3 and so on where that is taken. Adds them to `taken`."""
    taken |= {step.id for step in steps if step.id is not None}
    return [step.id if step.id is not None else _free_id(step.use, taken) for step in steps]


class _Wish(NamedTuple):
    """A step that the document asks for, by the id that its row will have."""

    id: str
    path: str
    step: ProfileStep | FailureStep
    owner: str | None = None


class _Row(NamedTuple):
    """A wish that was resolved, or what a definition asks for; not numbered yet."""

    id: str
    path: str
    call: Call
    resolved: Resolved
    step: ProfileStep | FailureStep | None
    """None for what a definition asks for."""
    owner: str | None


class _Rows:
    """Puts the rows together."""

    def __init__(self, parsed: Parsed, registry: StepRegistry, timing: Timing, has_node: bool) -> None:
        self.issues: list[Issue] = []
        self._resolver = Resolver(registry, timing, parsed.drivers)
        self._has_node = has_node
        # An explicit id keeps its step, wherever it stands; generated ones make way.
        taken = {placed.step.id for placed in parsed.cleanup if placed.step.id is not None}
        main, cleanup = _wishes(parsed.steps, taken), _wishes(parsed.cleanup, taken)
        on_failure = [
            _Wish(f"{wish.id}.on-failure", f"{wish.path}.onFailure", wish.step.on_failure, wish.id)
            for wish in main
            if isinstance(wish.step, ProfileStep) and isinstance(wish.step.on_failure, FailureStep)
        ]
        main_rows, failure_rows, cleanup_rows = (self._resolved(wishes) for wishes in (main, on_failure, cleanup))
        owed, owed_last = self._owed([*main_rows, *failure_rows]), self._owed(cleanup_rows)
        self.issues += _clashes([*main, *on_failure, *owed, *cleanup, *owed_last])
        self.seeds = _numbered(main_rows, failure_rows, [*owed, *cleanup_rows, *owed_last])
        if len(self.seeds) > MAX_STEPS:
            message = f"they make {len(self.seeds)} steps in all phases: {MAX_STEPS} are the most"
            hint = "on-failure steps and what tidies up after a step are counted too"
            self.issues.append(Issue("steps", message, hint))

    def _resolved(self, wishes: list[_Wish]) -> list[_Row]:
        rows = []
        for wish in wishes:
            call = Call.of(wish.step, wish.path)
            found, issues = self._resolver.resolve(call)
            self.issues += issues
            if found is None:
                continue
            if not self._has_node:
                self.issues += _without_node(found, wish.step, wish.path)
            rows.append(_Row(wish.id, wish.path, call, found, wish.step, wish.owner))
        return rows

    def _owed(self, rows: list[_Row]) -> list[_Row]:
        """What tidies up after these, the last of them first."""
        owed = []
        for row in reversed(rows):
            if row.resolved.cleanup is not None:
                found, issues = self._resolver.cleanup_of(row.resolved, row.call)
                self.issues += issues
                if found is not None:
                    owed.append(_Row(f"{row.id}.cleanup", row.path, row.call, found, None, row.id))
        return owed


def _wishes(listed: list[Placed], taken: set[str]) -> list[_Wish]:
    ids = step_ids([placed.step for placed in listed], taken)
    return [_Wish(identifier, placed.path, placed.step) for placed, identifier in zip(listed, ids, strict=True)]


def _clashes(rows: Sequence[_Wish | _Row]) -> Iterator[Issue]:
    """Ids that two rows would have, and those that are too long."""
    first: dict[str, str] = {}
    for row in rows:
        where = f"{row.path}.id" if isinstance(row.step, ProfileStep) else row.path
        if row.id in first:
            yield Issue(where, f"the id {row.id!r} is also that of {first[row.id]}", "give it another")
        first.setdefault(row.id, row.path)
        if len(row.id) > LONGEST_ID:
            message = f"the id {row.id[:40]}… has {len(row.id)} characters: {LONGEST_ID} are the most"
            yield Issue(where, message, "give the step a shorter id")


def _numbered(main: list[_Row], on_failure: list[_Row], cleanup: list[_Row]) -> list[RowSeed]:
    phases = [(Phase.MAIN, main), (Phase.ON_FAILURE, on_failure), (Phase.CLEANUP, cleanup)]
    ordered = [(phase, row) for phase, rows in phases for row in rows]
    numbers: dict[str | None, int] = {row.id: seq for seq, (_, row) in enumerate(ordered, 1)}
    return [
        RowSeed(
            seq=seq,
            id=row.id,
            phase=phase,
            action=row.resolved.action,
            runs_on=row.resolved.runs_on,
            spec=_spec(row),
            owner_seq=numbers.get(row.owner),
        )
        for seq, (phase, row) in enumerate(ordered, 1)
    ]


def _free_id(use: str, taken: set[str]) -> str:
    base = use.replace(":", "-").replace("#", "-")
    identifier, number = base, 1
    while identifier in taken:
        number += 1
        identifier = f"{base}-{number}"
    taken.add(identifier)
    return identifier


def _spec(row: _Row) -> StepSpec:
    """The definition's values, and the step's own where it has them."""
    resolved, step = row.resolved, row.step
    timeout_ms, retries = resolved.timeout_ms, resolved.retries
    if step is not None and step.timeout is not None:
        timeout_ms = parse_duration(step.timeout)
    if step is not None and step.retries is not None:
        retries = step.retries
    return StepSpec(
        kind=resolved.kind,
        with_=resolved.with_,
        when=step.when if step is not None else None,
        timeout_ms=timeout_ms,
        retries=retries,
        on_failure=_on_failure_word(step),
        await_rejoin=resolved.await_rejoin or (isinstance(step, ProfileStep) and step.await_ is not None),
        driver=resolved.driver,
    )


def _on_failure_word(step: ProfileStep | FailureStep | None) -> OnFailure:
    if not isinstance(step, ProfileStep):
        return "fail"
    return "step" if isinstance(step.on_failure, FailureStep) else step.on_failure


def _places(path: str) -> Iterator[str]:
    """The path itself, and the paths of what it stands in: `steps[2].with`, `steps[2]`, `steps`."""
    yield path
    for match in _JOINT.finditer(path):
        yield path[: match.start()]


def _place_in_document(issue: Issue) -> tuple[int, int]:
    match = _STEP.match(issue.path)
    return (0, 0) if match is None else (1 if match[1] == "steps" else 2, int(match[2]))


def _without_node(found: Resolved, step: ProfileStep | FailureStep, path: str) -> Iterator[Issue]:
    hint = "start the workflow for a node"
    if found.runs_on is not RunsOn.CONTROL_PLANE:
        yield Issue(f"{path}.use", f"{found.action!r} is done by an agent, and the workflow has no node", hint)
    elif isinstance(step, ProfileStep) and step.await_ is not None:
        yield Issue(f"{path}.await", "the workflow has no node whose return could be awaited", hint)
