"""The watch over a simulated machine."""

from drivers.driver import Call
from drivers.signals import Glance
from drivers.simulated.machine import SimulatedConnection
from protocol.shapes.management import Health

__all__ = ["SimulatedWatch"]


class SimulatedWatch:
    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    async def look(self, call: Call) -> Glance:
        """Counted by no script: what fails is what always fails, so that a script's counts are its caller's own."""
        state = await self._connection.glance(call)
        return Glance(state.power, Health.OK, state.power.value)
