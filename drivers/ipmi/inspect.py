"""Inspect over IPMI: who the machine is, by its FRU, its GUID and what the firmware told the BMC.

IPMI has no inventory beyond that. Some BMCs have a sensor per processor, module or drive bay that says that something
is there: its name is all that is known of it. MAC addresses of the host are in no area that the specification knows,
and makers' own areas are not reliable, so there are none.
"""

from typing import Final

from drivers.driver import Call
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.device import read_device_id, read_guid
from drivers.ipmi.fru import Fru, FruError, read_fru
from drivers.ipmi.repository import read_sensor_records
from drivers.ipmi.sensors import read_reading
from drivers.ipmi.system_info import SystemInfo, read_system_info
from protocol.errors import OperationError
from protocol.shapes import Nothing
from protocol.shapes.inspect import (
    ChassisIdentity,
    Drive,
    FirmwareVersion,
    Inventory,
    MemoryModule,
    Processor,
    SystemIdentity,
    Unread,
)

__all__ = ["IpmiInspect"]

_MAIN_FRU: Final = 0
_SENSOR_SPECIFIC: Final = 0x6F
_PROCESSOR, _MEMORY, _DRIVE_SLOT = 0x07, 0x0C, 0x0D
_PRESENT: Final = {_PROCESSOR: 7, _MEMORY: 6, _DRIVE_SLOT: 0}
"""The state that says "it is there", by sensor type (IPMI 2.0, table 42-3)."""
_BMC_OWNER: Final = 0x20
_NOT_TOLD: Final = ["processors", "memory", "drives", "nics", "pci", "trustedModules"]


class IpmiInspect:
    def __init__(self, connection: IpmiConnection) -> None:
        self._connection = connection

    async def get_inventory(self, arguments: Nothing, call: Call) -> Inventory:
        """The inventory; what IPMI does not tell is in `incomplete`, what could not be read in `unread`.

        Raises OperationError where the BMC does not answer.
        """
        unread: list[Unread] = []
        call.progress("reading the FRU", 0)
        device = await read_device_id(self._connection, call, fresh=True)
        fru = await self._fru(call, unread)
        firmware = [FirmwareVersion(name="BMC", version=device.firmware)]
        bios = await read_system_info(self._connection, SystemInfo.FIRMWARE_VERSION, call)
        if bios is not None:
            firmware.insert(0, FirmwareVersion(name="BIOS", version=bios))
        host_name = await read_system_info(self._connection, SystemInfo.SYSTEM_NAME, call)
        call.progress("reading the sensors that tell what is there", 50)
        present = await self._present(call, unread)
        processors = [Processor(socket=name) for name in present[_PROCESSOR]]
        return Inventory(
            system=SystemIdentity(
                vendor=fru.maker or device.maker.name,
                model=fru.model,
                serial=fru.serial,
                part_number=fru.product_part or fru.board_part,
                uuid=await read_guid(self._connection, call),
                asset_tag=fru.asset_tag,
                host_name=host_name,
                processor_count=len(processors) or None,
            ),
            chassis=_chassis(fru),
            processors=processors,
            memory=[MemoryModule(slot=name) for name in present[_MEMORY]],
            drives=[Drive(name=name) for name in present[_DRIVE_SLOT]],
            firmware=firmware,
            incomplete=(["system"] if unread else []) + _NOT_TOLD,
            unread=unread,
        )

    async def _fru(self, call: Call, unread: list[Unread]) -> Fru:
        """A BMC without a FRU, or with a blank or broken one, is common: the rest is told all the same."""
        try:
            return await read_fru(self._connection, _MAIN_FRU, call)
        except FruError as fault:
            unread.append(Unread(path="FRU device 0", reason=str(fault)))
        except OperationError as error:
            if not error.bmc:
                raise
            unread.append(Unread(path="FRU device 0", reason=error.message))
        return Fru()

    async def _present(self, call: Call, unread: list[Unread]) -> dict[int, list[str]]:
        """The names of the sensors that say that their part is there, by sensor type."""
        found: dict[int, list[str]] = {kind: [] for kind in _PRESENT}
        try:
            records = await read_sensor_records(self._connection, call)
        except OperationError as error:
            if not error.bmc:
                raise
            unread.append(Unread(path="SDR repository", reason=error.message))
            return found
        for record in records:
            state = _PRESENT.get(record.sensor_type)
            if state is None or record.event_type != _SENSOR_SPECIFIC or record.owner != _BMC_OWNER:
                continue
            for index in range(record.share):
                reading = await read_reading(self._connection, record, index, call)
                if reading.states >> state & 1:
                    name = record.name or f"sensor {record.number + index:#04x}"
                    found[record.sensor_type].append(f"{name} {index + 1}" if record.share > 1 else name)
        return found


def _chassis(fru: Fru) -> list[ChassisIdentity]:
    if fru.chassis_part is None and fru.chassis_serial is None:
        return []
    return [ChassisIdentity(name="chassis", serial=fru.chassis_serial, part_number=fru.chassis_part)]
