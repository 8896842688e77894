"""A Redfish service that is not there: recorded trees with state, sessions, tasks, events and faults on demand.

```python
async with RedfishServer(Path("mockups/some-tree"), users={"admin": "secret"}) as bmc:
    ...  # talk to bmc.url; read bmc.journal and bmc.state; spoil answers by bmc.faults
```
"""

from simulators.redfish.behaviour import Behaviour
from simulators.redfish.faults import Drop, Effect, FaultBook, FaultFileError, FaultRule, RawAnswer, load_faults
from simulators.redfish.fleet import RedfishFleet
from simulators.redfish.history import Boot, Reset
from simulators.redfish.journal import JournalEntry, RequestJournal
from simulators.redfish.options import Account, Outage, ServiceOptions, UpdateManners
from simulators.redfish.power import PowerState, ResetType
from simulators.redfish.server import RedfishServer
from simulators.redfish.state import MachineState, Media
from simulators.redfish.thread import RedfishServerThread
from simulators.redfish.tls import TlsMaterial
from simulators.redfish.tree import OWN_TREE, RecordedTree, TreeError

__all__ = [
    "OWN_TREE",
    "Account",
    "Behaviour",
    "Boot",
    "Drop",
    "Effect",
    "FaultBook",
    "FaultFileError",
    "FaultRule",
    "JournalEntry",
    "MachineState",
    "Media",
    "Outage",
    "PowerState",
    "RawAnswer",
    "RecordedTree",
    "RedfishFleet",
    "RedfishServer",
    "RedfishServerThread",
    "RequestJournal",
    "Reset",
    "ResetType",
    "ServiceOptions",
    "TlsMaterial",
    "TreeError",
    "UpdateManners",
    "load_faults",
]
