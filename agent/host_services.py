"""The services of packages: whether they run, and whether they start with the system (systemd)."""

from typing import NamedTuple

from drivers.linux.host import Host
from protocol.errors import ErrorCode, OperationError

__all__ = ["ServiceState", "is_active", "set_service"]

_SECONDS = 120.0
_OURS = ("rackwright-daemon", "rackwright-agent")
_ENABLED = ("enabled", "enabled-runtime", "alias", "static", "indirect", "generated")
"""Words of `systemctl is-enabled` for a unit that starts, or that something else starts (systemctl(1))."""
_AGAIN = "auto-restart"
"""How systemd calls the time between a service's failure and its next start, which counts as activating; newer ones
know an `auto-restart-queued` too."""


class ServiceState(NamedTuple):
    """None: whatever it is."""

    enabled: bool | None
    running: bool | None


async def set_service(host: Host, name: str, wanted: ServiceState) -> bool:
    """Whether anything was changed. Raises OperationError: CONFLICT (no such service, or our own), NOT_APPLIED."""
    unit = name if "." in name else f"{name}.service"
    if unit.startswith(_OURS):
        raise OperationError(ErrorCode.CONFLICT, f"{unit} is this agent itself")
    loaded = await host.run("systemctl", "show", "--property=LoadState", "--value", unit, timeout=_SECONDS)
    if loaded.code or loaded.out.strip() != "loaded":
        raise OperationError(
            ErrorCode.CONFLICT, f"there is no {unit} on this host ({loaded.out.strip() or loaded.words})"
        )
    changed = False
    if wanted.enabled is not None and await _is_enabled(host, unit) != wanted.enabled:
        await _act(host, "enable" if wanted.enabled else "disable", unit)
        if await _is_enabled(host, unit) != wanted.enabled:
            raise OperationError(
                ErrorCode.NOT_APPLIED, f"{unit} is {'not ' if wanted.enabled else ''}enabled after all"
            )
        changed = True
    if wanted.running is not None and await _runs(host, unit) is not wanted.running:
        await _act(host, "start" if wanted.running else "stop", unit)
        if (runs := await _runs(host, unit)) is not wanted.running:
            what = "does not run" if wanted.running else "still runs"
            why = f": systemd goes on starting it ({_AGAIN})" if runs is None and wanted.running else ""
            raise OperationError(ErrorCode.NOT_APPLIED, f"{unit} {what} after all{why}")
        changed = True
    return changed


async def is_active(host: Host, unit: str) -> bool:
    return await _runs(host, unit) is True


async def _runs(host: Host, unit: str) -> bool | None:
    """None for what neither runs nor has stopped: it is about to stop, or failed and is to be started again."""
    names = ("--property=ActiveState", "--property=SubState")
    ran = await host.run("systemctl", "show", *names, unit, timeout=_SECONDS)
    facts = dict(line.split("=", 1) for line in ran.out.splitlines() if "=" in line)
    state, detail = facts.get("ActiveState", ""), facts.get("SubState", "")
    if state in ("inactive", "failed"):
        return False
    starts = state == "activating" and not detail.startswith(_AGAIN)
    return True if starts or state in ("active", "reloading", "refreshing") else None


async def _is_enabled(host: Host, unit: str) -> bool:
    ran = await host.run("systemctl", "is-enabled", unit, timeout=_SECONDS)
    return ran.out.strip() in _ENABLED


async def _act(host: Host, verb: str, unit: str) -> None:
    ran = await host.run("systemctl", verb, unit, timeout=_SECONDS)
    if ran.code:
        raise OperationError(ErrorCode.NOT_APPLIED, f"systemctl {verb} {unit}: {ran.words}")
