"""The Redfish driver: a BMC's HTTP service, spoken to by a client of our own."""

from collections.abc import Callable, Mapping
from typing import Any

from drivers.driver import Environment
from drivers.redfish.bios import RedfishBios
from drivers.redfish.boot import RedfishBoot
from drivers.redfish.config import RedfishConfig
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.console import RedfishConsole
from drivers.redfish.event_service import RedfishWatch
from drivers.redfish.firmware import RedfishFirmware
from drivers.redfish.inspect import RedfishInspect
from drivers.redfish.management import RedfishManagement
from drivers.redfish.power import RedfishPower
from drivers.redfish.raid import RedfishRaid
from drivers.redfish.virtual_media import RedfishVirtualMedia
from drivers.target import Target
from protocol.operations import Concern

__all__ = ["DRIVER", "RedfishConnection", "RedfishDriver"]


class RedfishDriver:
    """Machines whose BMC has a Redfish service (DSP0266)."""

    name = "redfish"
    concerns: Mapping[Concern, Callable[[Any], object]] = {
        Concern.POWER: RedfishPower,
        Concern.MANAGEMENT: RedfishManagement,
        Concern.BOOT: RedfishBoot,
        Concern.BIOS: RedfishBios,
        Concern.VIRTUAL_MEDIA: RedfishVirtualMedia,
        Concern.RAID: RedfishRaid,
        Concern.FIRMWARE: RedfishFirmware,
        Concern.CONFIG: RedfishConfig,
        Concern.INSPECT: RedfishInspect,
        Concern.CONSOLE: RedfishConsole,
    }

    watch = RedfishWatch
    """See `drivers.watch`."""

    def connect(self, target: Target, environment: Environment) -> RedfishConnection:
        return RedfishConnection(target, environment)


DRIVER = RedfishDriver()
