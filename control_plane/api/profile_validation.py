"""What is said of a profile before it is stored: its faults, or the steps that it makes. Light to import."""

from control_plane.api.shapes.profiles import PlannedStep, ProfileValidation
from control_plane.engine.expansion import Expansion, RowSeed

__all__ = ["validation"]


def validation(expansion: Expansion) -> ProfileValidation:
    """An expansion as it is shown."""
    return ProfileValidation(
        valid=not expansion.issues,
        issues=expansion.issues,
        steps=[] if expansion.issues else [_planned(seed) for seed in expansion.seeds],
    )


def _planned(seed: RowSeed) -> PlannedStep:
    return PlannedStep(
        id=seed.id,
        phase=seed.phase.value,
        action=seed.action,
        runs_on=seed.runs_on.value,
        driver=seed.spec.driver,
        timeout_ms=seed.spec.timeout_ms,
        retries=seed.spec.retries,
        on_failure=seed.spec.on_failure,
        await_rejoin=seed.spec.await_rejoin,
        when=seed.spec.when,
    )
