"""A scripted machine that is not there: every operation, for demos, tests and load.

Its address is `simulated://name`; what it is made of follows from the name. `script` says how machines behave, `acts`
what they really did. Two variables of the environment serve other processes: `RACKWRIGHT_SIMULATED_SCRIPT` names a
file of scripts, `RACKWRIGHT_SIMULATED_STATE` a folder in which machines and their acts outlive the process.
"""

from collections.abc import Callable, Mapping
from typing import Any

from drivers.driver import Environment
from drivers.simulated.acts import Act
from drivers.simulated.bios import SimulatedBios
from drivers.simulated.boot import SimulatedBoot
from drivers.simulated.config import SimulatedConfig
from drivers.simulated.console import SimulatedConsole
from drivers.simulated.deploy import SimulatedDeploy
from drivers.simulated.firmware import SimulatedFirmware
from drivers.simulated.inspection import SimulatedInspection
from drivers.simulated.machine import STATE_VARIABLE, SimulatedConnection, act_counts, acts, clear, state
from drivers.simulated.management import SimulatedManagement
from drivers.simulated.power import SimulatedPower
from drivers.simulated.raid import SimulatedRaid
from drivers.simulated.script import SCRIPT_VARIABLE, Fault, Moment, Script, script
from drivers.simulated.state import MachineState
from drivers.simulated.virtual_media import SimulatedVirtualMedia
from drivers.simulated.watch import SimulatedWatch
from drivers.target import Target
from protocol.operations import Concern

__all__ = [
    "DRIVER",
    "SCRIPT_VARIABLE",
    "STATE_VARIABLE",
    "Act",
    "Fault",
    "MachineState",
    "Moment",
    "Script",
    "act_counts",
    "acts",
    "clear",
    "script",
    "state",
]


class _SimulatedDriver:
    name = "simulated"
    concerns: Mapping[Concern, Callable[[Any], object]] = {
        Concern.POWER: SimulatedPower,
        Concern.MANAGEMENT: SimulatedManagement,
        Concern.BOOT: SimulatedBoot,
        Concern.VIRTUAL_MEDIA: SimulatedVirtualMedia,
        Concern.CONSOLE: SimulatedConsole,
        Concern.INSPECT: SimulatedInspection,
        Concern.BIOS: SimulatedBios,
        Concern.RAID: SimulatedRaid,
        Concern.FIRMWARE: SimulatedFirmware,
        Concern.CONFIG: SimulatedConfig,
        Concern.DEPLOY: SimulatedDeploy,
    }

    watch = SimulatedWatch
    """See `drivers.watch`."""

    def connect(self, target: Target, environment: Environment) -> SimulatedConnection:
        return SimulatedConnection(target, environment)


DRIVER = _SimulatedDriver()
