"""Servers driven over IPMI 2.0 (RMCP+), by an asyncio client of our own: no process or thread per BMC.

Layers: `packets`, `handshake`, `ladder`, `session` and `sol` are pure; `transport`, `login` and `connection` do the
I/O and own the rules for sending; `power`, `boot`, `management`, `inspect`, `console` and `config` are the concerns.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from drivers.driver import Environment
from drivers.ipmi.boot import IpmiBoot
from drivers.ipmi.config import IpmiConfig
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.console import IpmiConsole
from drivers.ipmi.inspect import IpmiInspect
from drivers.ipmi.management import IpmiManagement
from drivers.ipmi.power import IpmiPower
from drivers.ipmi.watch import IpmiWatch
from drivers.target import Target
from protocol.operations import Concern

__all__ = ["DRIVER", "IpmiConnection", "IpmiDriver"]


class IpmiDriver:
    """The `ipmi` driver. Virtual media, Secure Boot and the boot order do not exist in IPMI."""

    @property
    def name(self) -> str:
        return "ipmi"

    @property
    def concerns(self) -> Mapping[Concern, Callable[[Any], object]]:
        return _CONCERNS

    @property
    def watch(self) -> Callable[[IpmiConnection], IpmiWatch]:
        """See `drivers.watch`."""
        return IpmiWatch

    def connect(self, target: Target, environment: Environment) -> IpmiConnection:
        """A connection to the BMC; no I/O yet."""
        return IpmiConnection(target, environment)


_CONCERNS: Final[Mapping[Concern, Callable[[Any], object]]] = {
    Concern.POWER: IpmiPower,
    Concern.MANAGEMENT: IpmiManagement,
    Concern.BOOT: IpmiBoot,
    Concern.CONSOLE: IpmiConsole,
    Concern.INSPECT: IpmiInspect,
    Concern.CONFIG: IpmiConfig,
}

DRIVER: Final = IpmiDriver()
