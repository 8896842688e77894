"""The watch over an IPMI machine: one command tells the power and the chassis' faults.

IPMI's own alerts are not heard: they go to the one address that a LAN channel is configured with.
"""

from drivers.driver import Call
from drivers.ipmi.chassis import read_chassis_status
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.power import power_of
from drivers.signals import Glance
from protocol.shapes.management import Health

__all__ = ["IpmiWatch"]


class IpmiWatch:
    def __init__(self, connection: IpmiConnection) -> None:
        self._connection = connection

    async def look(self, call: Call) -> Glance:
        """In a session that is there: exactly one command.

        The health is that of the chassis' fault bits: sensors, which are many commands, are not asked.
        """
        status = await read_chassis_status(self._connection, call)
        health = Health.CRITICAL if status.faults else Health.OK
        return Glance(power_of(status), health, f"{status.raw[0]:#04x}")
