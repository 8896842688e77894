"""The drivers there are, loaded when first asked for."""

from functools import cache
from importlib import import_module
from typing import Protocol, cast

from drivers.driver import Driver
from protocol.errors import ErrorCode, OperationError

__all__ = ["INSTALLED", "load"]

INSTALLED: dict[str, str] = {
    "redfish": "drivers.redfish",
    "ipmi": "drivers.ipmi",
    "ssh": "drivers.ssh",
    "linux": "drivers.linux",
    "simulated": "drivers.simulated",
}
"""Each driver's module; it hands out one object named `DRIVER`."""


class _Module(Protocol):
    DRIVER: Driver


@cache
def load(name: str) -> Driver:
    """The driver of this name. Raises OperationError UNSUPPORTED when it, or what it needs, is not installed."""
    module = INSTALLED.get(name)
    if module is None:
        raise OperationError(
            ErrorCode.UNSUPPORTED, f"this installation has no {name} driver; it has {', '.join(INSTALLED)}"
        )
    try:
        return cast(_Module, import_module(module)).DRIVER
    except ModuleNotFoundError as error:
        raise OperationError(
            ErrorCode.UNSUPPORTED,
            f"the {name} driver needs {error.name}, which is not installed: pip install 'rackwright[drivers]'",
        ) from error
