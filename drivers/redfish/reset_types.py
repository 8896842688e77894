"""Which of Redfish's reset types does what is asked, and what a BMC's words for the power state mean. Pure."""

from collections.abc import Iterable

from drivers.redfish.document import Document, dig, path_of, text
from protocol.shapes.power import PowerAction, PowerState

__all__ = ["RESET", "SETTLED", "candidates", "is_after", "meaning", "restart_marks", "target_of"]

RESET = "ComputerSystem.Reset"
_MEANING = {
    "on": PowerState.ON,
    "off": PowerState.OFF,
    "poweringon": PowerState.POWERING_ON,
    "poweringoff": PowerState.POWERING_OFF,
}
SETTLED = frozenset({PowerState.ON, PowerState.OFF})
"""The states that do not change by themselves."""

_CANDIDATES: dict[PowerAction, tuple[str, ...]] = {
    PowerAction.ON: ("On", "ForceOn", "PushPowerButton"),
    PowerAction.OFF: ("ForceOff", "Off"),
    PowerAction.SOFT_OFF: ("GracefulShutdown", "PushPowerButton"),
    PowerAction.RESET: ("ForceRestart", "PowerCycle"),
    PowerAction.CYCLE: ("PowerCycle", "ForceRestart"),
    PowerAction.NMI: ("Nmi",),
}


def meaning(raw: object) -> PowerState:
    """What a BMC's word says of the power. null, "Reset", "Unknown", "Paused" and what nobody knows are UNKNOWN.

    HPE Gen11 says null, "Reset" and "Unknown" for a while after a power change (MAAS, Launchpad bug 2079797).
    """
    return _MEANING.get(raw.strip().lower(), PowerState.UNKNOWN) if isinstance(raw, str) else PowerState.UNKNOWN


def candidates(action: PowerAction, allowed: Iterable[str], raw: str | None = None) -> list[str]:
    """The reset types to send for an action, best first. `allowed`: what the BMC lists; empty where it lists nothing.

    `raw`: the power state in the BMC's own word; a paused host is resumed rather than switched on.
    """
    listed = list(allowed)
    wanted = list(_CANDIDATES[action])
    if action is PowerAction.ON and raw is not None and raw.lower() == "paused":
        wanted.insert(0, "Resume")
    if not listed:
        return [verb for verb in wanted if verb not in ("Off", "Resume")]
    return [verb for verb in wanted if verb in listed]


def target_of(system: Document, path: str) -> str:
    """Where a reset is ordered: the action's own target; by DSP0266's rule for it where the BMC names none."""
    target = text(system, "Actions", f"#{RESET}", "target")
    return path_of(target) if target is not None else f"{path.rstrip('/')}/Actions/{RESET}"


def restart_marks(system: Document) -> tuple[str | None, str | None]:
    """What changes when a host restarts: the time of its last reset (zeros and 1970 are none), its boot progress."""
    moment = text(system, "LastResetTime")
    if moment is not None and moment.startswith(("0000", "1970-01-01")):
        moment = None
    progress = dig(system, "BootProgress")
    return moment, text(progress, "LastState")


_EARLY = frozenset(
    {
        "None",
        "PrimaryProcessorInitializationStarted",
        "BusInitializationStarted",
        "MemoryInitializationStarted",
        "SecondaryProcessorInitializationStarted",
        "PCIResourceConfigStarted",
        "SystemHardwareInitializationComplete",
        "SetupEntered",
        "OSBootStarted",
    }
)


def is_after(before: Document, now: Document) -> bool:
    """Whether the second reading proves that the host was restarted since the first."""
    state = meaning(now.get("PowerState"))
    was = meaning(before.get("PowerState"))
    if was is PowerState.ON and state in (PowerState.OFF, PowerState.POWERING_OFF, PowerState.POWERING_ON):
        return True
    moment, progress = restart_marks(before)
    later_moment, later_progress = restart_marks(now)
    # What a reading left out says nothing: BMCs leave properties out now and then.
    if "LastResetTime" in before and later_moment is not None and later_moment != moment:
        return True
    if progress is not None and later_progress != progress and later_progress in _EARLY:
        return True
    was_at, post = _self_test(before), _self_test(now)
    return None not in (was_at, post) and post != was_at and str(post).startswith(("InPost", "PowerOff", "Reset"))


def _self_test(system: Document) -> str | None:
    """How far the firmware's self-test is, as HPE iLO tells it (`Oem.Hpe.PostState`); iLO has no LastResetTime."""
    sections = dig(system, "Oem")
    listed = sections.values() if isinstance(sections, dict) else []
    return next((found for section in listed if (found := text(section, "PostState")) is not None), None)
