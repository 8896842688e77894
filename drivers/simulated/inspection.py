"""The inventory of a simulated machine."""

from drivers.driver import Call
from drivers.simulated.firmware import COMPONENTS, versions
from drivers.simulated.machine import SimulatedConnection
from drivers.simulated.state import MachineState
from protocol.shapes import Nothing
from protocol.shapes.inspect import FirmwareVersion, Inventory, SystemIdentity

__all__ = ["SimulatedInspection"]


class SimulatedInspection:
    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    async def get_inventory(self, arguments: Nothing, call: Call) -> Inventory:
        return await self._connection.read(call, self._inventory)

    def _inventory(self, state: MachineState) -> Inventory:
        identity = self._connection.identity
        return Inventory(
            system=SystemIdentity(
                vendor=identity.vendor,
                model=identity.model,
                serial=identity.serial,
                sku="SIM-2000-16C",
                uuid=identity.uuid,
                asset_tag=str(state.bios.get("AssetTag") or "") or None,
                memory_mib=identity.memory_mib,
                processor_count=len(identity.processors),
            ),
            processors=identity.processors,
            memory=identity.memory,
            drives=identity.drives,
            nics=identity.nics,
            pci=identity.pci,
            firmware=[
                FirmwareVersion(name=COMPONENTS[component].name, version=version, updateable=True)
                for component, version in versions(state).items()
            ],
        )
