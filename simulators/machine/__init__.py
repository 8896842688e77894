"""A virtual machine under QEMU whose BMC is our own: Redfish and IPMI over one power, one drive and one serial port.

```python
folder = StateFolder(Path("state"))
spec = MachineSpec(folder.identity(), disks=(open_disk(Path("disk.raw"), "D1", 8 << 30),))
async with VirtualMachine(spec, folder) as machine:
    ...  # talk to machine.redfish.url and machine.ipmi.address; read machine.serial
```
"""

from simulators.machine.bmc_memory import BmcMemoryError
from simulators.machine.boot_plan import BootPlan, BootTarget, Device
from simulators.machine.host import Cause, Host, HostState, Order, OrderRefused
from simulators.machine.image import ImageFault
from simulators.machine.machine import VirtualMachine
from simulators.machine.process import MachineFault
from simulators.machine.serial_port import SerialPort
from simulators.machine.spec import (
    Disk,
    DiskBus,
    Firmware,
    Forward,
    Identity,
    MachineSpec,
    Nic,
    NicModel,
    SpecError,
)
from simulators.machine.state_folder import StateError, StateFolder, open_disk

__all__ = [
    "BmcMemoryError",
    "BootPlan",
    "BootTarget",
    "Cause",
    "Device",
    "Disk",
    "DiskBus",
    "Firmware",
    "Forward",
    "Host",
    "HostState",
    "Identity",
    "ImageFault",
    "MachineFault",
    "MachineSpec",
    "Nic",
    "NicModel",
    "Order",
    "OrderRefused",
    "SerialPort",
    "SpecError",
    "StateError",
    "StateFolder",
    "VirtualMachine",
    "open_disk",
]
