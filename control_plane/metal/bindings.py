"""Which profile a verb runs: the one that the request names, else the node's own, else the one of the settings."""

from collections.abc import Mapping

import msgspec

from control_plane.metal.states import MetalVerb

__all__ = ["Bindings", "Limits"]


class Bindings(msgspec.Struct, frozen=True, kw_only=True):
    """A profile's name for each verb; every tenant has its own profile of that name."""

    commission: str = "commission"
    deploy: str = "deploy"
    release: str = "release"
    rescue: str = "rescue"
    remediate: str = "remediate"
    recover: str = "recover"

    def profile_of(self, verb: MetalVerb, own: Mapping[str, str], asked: str | None = None) -> str:
        """`own`: the node's."""
        if asked is not None:
            return asked
        bound: str = own.get(verb.value) or getattr(self, verb.value)
        return bound


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When a machine that went away by itself is brought back, and when rather nothing is done. Milliseconds."""

    off_ms: int = 120_000
    """How long it must be seen switched off."""
    gone_ms: int = 600_000
    """How long its agent must be away while it is switched on."""
    pause_ms: int = 900_000
    """Between one remediation of a machine and the next."""
    per_day: int = 3
    """Remediations of one machine in a day; after that it has failed."""
    at_once: int = 5
    """Remediations of one site at a time."""
    outage_share: float = 0.3
    """Where more of a site's machines are away at once, it is the site that has failed, and nothing is started."""
    outage_least: int = 4
    """Fewer than these are no outage, however large their share."""
