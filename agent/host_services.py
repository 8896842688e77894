"""The services of packages: whether they run, and whether they start with the system (systemd)."""

from typing import NamedTuple

from drivers.linux.host import Host
from protocol.errors import ErrorCode, OperationError

__all__ = ["ServiceState", "is_active", "set_service"]

_SECONDS = 120.0
_OURS = ("rackwright-daemon", "rackwright-agent")
_ENABLED = ("enabled", "enabled-runtime", "alias", "static", "indirect", "generated")
"""Words of `systemctl is-enabled` for a unit that starts, or that something else starts (systemctl(1))."""


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
    if wanted.running is not None and await is_active(host, unit) != wanted.running:
        await _act(host, "start" if wanted.running else "stop", unit)
        if await is_active(host, unit) != wanted.running:
            raise OperationError(
                ErrorCode.NOT_APPLIED, f"{unit} {'does not run' if wanted.running else 'still runs'} after all"
            )
        changed = True
    return changed


async def is_active(host: Host, unit: str) -> bool:
    ran = await host.run("systemctl", "is-active", unit, timeout=_SECONDS)
    return ran.out.strip() in ("active", "reloading", "activating")


async def _is_enabled(host: Host, unit: str) -> bool:
    ran = await host.run("systemctl", "is-enabled", unit, timeout=_SECONDS)
    return ran.out.strip() in _ENABLED


async def _act(host: Host, verb: str, unit: str) -> None:
    ran = await host.run("systemctl", verb, unit, timeout=_SECONDS)
    if ran.code:
        raise OperationError(ErrorCode.NOT_APPLIED, f"systemctl {verb} {unit}: {ran.words}")
