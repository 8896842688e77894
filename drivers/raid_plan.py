"""A RAID plan: what is kept, deleted and made, in words for an operator and in names for a driver. Pure."""

from dataclasses import dataclass

import msgspec

from protocol.errors import ErrorCode, Issue, OperationError
from protocol.shapes.raid import PlanStep, RaidLevel, RaidVolume, SpareKind, VolumeSpec

__all__ = ["Keep", "Make", "Plan", "Spare", "bytes_wanted", "is_size", "tell_progress"]

_GIB = 1 << 30
_TOLERANCE = 0.01
"""By how much a volume may differ from the size that was asked for: controllers round to stripes."""
_ROUNDING = 256 << 20


@dataclass(frozen=True, slots=True)
class Make:
    """A volume to make. `index`: its place in the request; `size_bytes`: None for all the space."""

    index: int
    controller: str
    level: RaidLevel
    drives: tuple[str, ...]
    name: str | None = None
    size_bytes: int | None = None
    spans: int | None = None

    def step(self) -> PlanStep:
        size = "all the space" if self.size_bytes is None else f"{self.size_bytes / _GIB:g} GiB"
        detail = f"{self.level}, {size}, on {', '.join(self.drives)}"
        return PlanStep(act="create", volume=self.title, detail=detail, controller=self.controller)

    @property
    def title(self) -> str:
        return self.name or f"new {self.level}"


@dataclass(frozen=True, slots=True)
class Keep:
    """A volume that is there as it was asked for."""

    index: int
    volume: RaidVolume


@dataclass(frozen=True, slots=True)
class Spare:
    """A drive to make a hot spare: of one wanted volume (`index`), or of the whole controller (None)."""

    controller: str
    drive: str
    index: int | None = None

    @property
    def kind(self) -> SpareKind:
        return SpareKind.GLOBAL if self.index is None else SpareKind.DEDICATED


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order: delete, make, spare. With `faults` nothing of it may be done."""

    delete: tuple[RaidVolume, ...] = ()
    make: tuple[Make, ...] = ()
    keep: tuple[Keep, ...] = ()
    spare: tuple[Spare, ...] = ()
    faults: tuple[Issue, ...] = ()
    unsuitable: bool = False
    """The fault is that no controller of the machine (or not the named one) makes volumes."""

    def check(self, *, of_one: bool = False) -> None:
        """Raises OperationError with every fault: INVALID_ARGUMENT, or UNSUPPORTED for a machine that makes none.

        `of_one`: the request was for one volume and has no list of them.
        """
        if not self.faults:
            return
        prefix = "volumes[0]." if of_one else ""
        faults = [msgspec.structs.replace(fault, path=fault.path.removeprefix(prefix)) for fault in self.faults]
        raise OperationError(
            ErrorCode.UNSUPPORTED if self.unsuitable else ErrorCode.INVALID_ARGUMENT,
            "; ".join(str(fault) for fault in faults),
            details={"issues": [msgspec.to_builtins(fault) for fault in faults]},
        )

    @property
    def changes(self) -> bool:
        return bool(self.delete or self.make or self.spare)

    def steps(self) -> list[PlanStep]:
        """The plan for an operator to read."""
        titles = {kept.index: kept.volume.id for kept in self.keep} | {made.index: made.title for made in self.make}
        return [
            *(_step("keep", kept.volume) for kept in self.keep),
            *(_step("delete", volume) for volume in self.delete),
            *(made.step() for made in self.make),
            *(
                PlanStep(
                    act="spare",
                    volume=titles.get(spare.index, "") if spare.index is not None else "all volumes",
                    detail=f"{spare.drive} as {spare.kind} hot spare",
                    controller=spare.controller,
                )
                for spare in self.spare
            ),
        ]


def tell_progress(error: OperationError, plan: Plan, done: list[PlanStep]) -> None:
    """Adds to the failure of a step how far the plan went, in words and as `done` and `notDone` in its details.

    A volume that is deleted by then is gone: whoever reads only the message must learn of it.
    """
    rest = [step for step in plan.steps() if step.act != "keep" and step not in done]
    parts = (("done", done), ("not done", rest))
    told = [f"{words}: {', '.join(map(_said, steps))}" for words, steps in parts if steps]
    error.message = "; ".join([error.message, *told])
    error.args = (error.message,)
    error.details = {**error.details, "done": msgspec.to_builtins(done), "notDone": msgspec.to_builtins(rest)}


def _said(step: PlanStep) -> str:
    return f"{step.act} {step.volume} ({step.detail})"


def bytes_wanted(spec: VolumeSpec) -> int | None:
    """None for "max"."""
    return None if spec.size_gib == "max" else int(spec.size_gib * _GIB)


def is_size(found: int | None, wanted: int | None) -> bool:
    """Whether a volume has the size that was asked for; a size that is not told or not asked for is no difference."""
    if found is None or wanted is None:
        return True
    return abs(found - wanted) <= max(wanted * _TOLERANCE, _ROUNDING)


def _step(act: str, volume: RaidVolume) -> PlanStep:
    size = "size unknown" if volume.size_bytes is None else f"{volume.size_bytes / _GIB:.0f} GiB"
    words = [str(volume.level or "level unknown"), size, f"on {', '.join(volume.drives) or 'unknown drives'}"]
    words += [volume.name] if volume.name and volume.name != volume.id else []
    words += [volume.state] if volume.state not in (None, "online") else []
    return PlanStep(
        act="keep" if act == "keep" else "delete",
        volume=volume.id,
        detail=", ".join(words),
        controller=volume.controller,
    )
