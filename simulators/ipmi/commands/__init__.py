"""The commands that the BMC knows, one module for each kind."""

from typing import Final

from simulators.ipmi.commands import chassis, device, payload, sensor, session, storage, transport, users
from simulators.ipmi.commands.registry import CommandTable

ALL_COMMANDS: Final[CommandTable] = {
    **chassis.COMMANDS,
    **device.COMMANDS,
    **payload.COMMANDS,
    **sensor.COMMANDS,
    **session.COMMANDS,
    **storage.COMMANDS,
    **transport.COMMANDS,
    **users.COMMANDS,
}
