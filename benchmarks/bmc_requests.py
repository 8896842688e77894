"""What each operation costs a BMC in HTTP requests, on recorded trees of four makers, against the least possible.

Our own Redfish server plays the tree in a process of its own; the driver speaks to it over loopback, so the seconds
are those of our code and not of a BMC, which takes 0.1 to 2 s for a request. A session is open, and what a connection
learns once (the addresses of system, manager and BIOS, the BIOS registry) is known: readings are done twice, and the
second one counts.

The least was worked out by hand. It counts one request for each resource that must be read, a collection with its
members as one where the service offers `$expand` (all four do; without it each member costs one), one for each
change, and one to read a change back: a BMC's yes is no proof. The entity tag of a change is that of the reading on
which it was decided.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import Figure
from benchmarks.children import Child, Pipe, child
from drivers import Drivers, Target
from drivers.driver import operations_of
from drivers.registry import load
from protocol.errors import OperationError
from protocol.operations import OPERATIONS, Repeat
from simulators.redfish import RedfishServer

USER, PASSWORD = "admin", "password"
PEER = "least possible"
IMAGE = "http://192.0.2.1/images/debian.iso"
TREES = {
    "dell": "dell-r750-idrac9-7.10",
    "hpe": "hpe-dl385-ilo5",
    "lenovo": "lenovo-sr670v2-xcc",
    "supermicro": "supermicro-821ge",
}

_Costs = Mapping[str, int]


def _each(number: int, **others: int) -> _Costs:
    return {**dict.fromkeys(TREES, number), **others}


LEAST: dict[str, _Costs] = {
    # The system.
    "power.getPower": _each(1),
    # The system (state, reset types), the order, the system. Supermicro lists its reset types in an ActionInfo only.
    "power.setPower.off": _each(3, supermicro=4),
    "power.setPower.on": _each(3, supermicro=4),
    # System and manager.
    "management.getInfo": _each(2),
    # System, manager, chassis, its power, its thermal, all storage.
    "management.getHealth": _each(6),
    # All chassis in one, and the sensors of the one that has some: HPE keeps them in Thermal and Power; the Sensors
    # of Supermicro have no units, so that Thermal and Power must be read beside.
    "management.getSensors": _each(2, hpe=3, supermicro=4),
    # The system, its log services, the entries. Dell keeps its log at the manager, which the system names.
    "management.getEventLog": _each(3, dell=4),
    # The log is found as above (2, Dell 3), counted, cleared and counted again: a BMC writes of the clearing into the
    # log, and of what else happens meanwhile, so that only fewer entries than before prove it.
    "management.clearEventLog": _each(5, dell=6),
    "management.getIndicator": _each(1),
    # The system (its state, its entity tag), the change, the system.
    "management.setIndicator": _each(3),
    # The system, and its settings object where there is one.
    "boot.getBoot": _each(1, dell=2, lenovo=2),
    # Those, the change, and the one resource of them that was changed.
    "boot.setBootDevice": _each(3, dell=4, lenovo=4),
    # Those, the change, and those again: the settings object shows that it was taken, the system whether it waits.
    "boot.setBootOrder": _each(3, dell=5, lenovo=5),
    # The system leads to SecureBoot; to change it: that, the change, that again.
    "boot.getSecureBoot": _each(2),
    "boot.setSecureBoot": _each(4),
    # System, manager, and the slots: at the manager, at Dell and Lenovo also at the system. Lenovo's slots have no
    # actions: only the Allow header of each tells how it takes an image; two of the ten are known to take uploads.
    "virtual-media.listMedia": _each(3, dell=4, lenovo=4 + 8),
    # All slots are looked at: an image that one of them holds must not be inserted into another (case B07). Then the
    # change, and the slot that was changed. One of Lenovo's must be read by itself before, for its Allow header.
    "virtual-media.insertMedia": _each(5, dell=6, lenovo=7),
    # The same: any slot may hold something.
    "virtual-media.ejectMedia": _each(5, dell=6, lenovo=7),
    "console.getConsole": _each(2),
    # Each once: system, manager, Secure Boot, slots, chassis, log services, BIOS, storage and a drive, update
    # service, accounts, protocols, certificates, interfaces, processors. Dell and Lenovo have a settings object and
    # slots at the system besides, Lenovo's slots must be read by themselves as above, Supermicro's reset types too.
    "management.qualify": _each(15, dell=15 + 2, lenovo=15 + 2 + 8, supermicro=15 + 1),
    # The same count is worked out part by part in tests/drivers/redfish/test_inventory_trees.py.
    "inspect.getInventory": {
        # System, manager, chassis, processors, memory; storage and two drives; interfaces; cards, the functions of
        # three, the ports of two; boot options; the BMC's interfaces; PCI devices and a function of each of ten.
        "dell": 5 + (1 + 2) + 1 + (1 + 3 + 2) + 1 + 1 + (1 + 10),
        # 18 drives; three cards with functions and ports; six PCI devices.
        "hpe": 5 + (1 + 18) + 1 + (1 + 3 + 3) + 1 + 1 + (1 + 6),
        # Four drives; two cards, of which one tells nothing but by its ports; 16 PCI devices.
        "lenovo": 5 + (1 + 4) + 1 + (1 + 2 + 1) + 1 + 1 + (1 + 16),
        # Eight drives; ten cards whose functions the interfaces name; 26 PCI devices.
        "supermicro": 5 + (1 + 8) + 1 + 1 + 1 + 1 + (1 + 26),
    },
    # The BIOS and its settings.
    "bios.getBios": _each(2),
    # The same, the change, the settings. Dell makes a job of it: it is looked at once.
    "bios.setBios": _each(4, dell=5),
    # The system, all storage, and of each that has drives and volumes: its volumes, its drives, its controllers where
    # they are a collection. Dell: one with two drives. HPE: one with two drives, and controllers. Lenovo: two with
    # two drives each. Supermicro has no volumes at all.
    "raid.getRaid": {"dell": 2 + (1 + 2), "hpe": 2 + (1 + 1 + 2), "lenovo": 2 + 2 * (1 + 2), "supermicro": 2},
    # The update service and its inventory.
    "firmware.getFirmware": _each(2),
    # Manager, protocols, event service, its destinations. HPE keeps the time servers in a resource of its own; of
    # Supermicro the interfaces must be asked for the host name.
    "config.getConfig": _each(4, hpe=5, supermicro=5),
}


def run() -> list[Figure]:
    shared = Path(os.environ.get("RACKWRIGHT_SHARED", "../shared")) / "mockups"
    if not shared.is_dir():
        print(
            f"bmc.requests is left out: there are no recorded trees in {shared} (set RACKWRIGHT_SHARED)",
            file=sys.stderr,
        )
        return []
    figures: list[Figure] = []
    for vendor, tree in TREES.items():
        with child(_serve, str(shared / tree)) as bmc:
            figures += uvloop.run(_measure(vendor, bmc, bmc.receive()))
    return figures


def table(order: list[str], attribute: dict[str, object]) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Each figure's name, operation and arguments, in an order in which every change changes something."""
    for operation in LEAST:
        if operation.startswith("power.setPower"):
            yield operation, "power.setPower", {"action": operation.rpartition(".")[2]}
        elif OPERATIONS[operation].repeat is Repeat.READ:
            yield operation, operation, {}
    yield "management.setIndicator", "management.setIndicator", {"state": "on"}
    yield "boot.setBootDevice", "boot.setBootDevice", {"device": "pxe"}
    yield "boot.setBootOrder", "boot.setBootOrder", {"order": order[::-1]}
    yield "boot.setSecureBoot", "boot.setSecureBoot", {"enabled": True}
    yield "virtual-media.insertMedia", "virtual-media.insertMedia", {"image": IMAGE}
    yield "virtual-media.ejectMedia", "virtual-media.ejectMedia", {}
    yield "management.clearEventLog", "management.clearEventLog", {}
    if attribute:
        yield "bios.setBios", "bios.setBios", {"attributes": attribute}


async def _measure(vendor: str, bmc: Child, url: str) -> list[Figure]:
    target = Target(address=url, username=USER, password=PASSWORD)
    own = operations_of(load("redfish"))
    figures = []
    async with Drivers() as drivers:
        await drivers.invoke(target, "management.getInfo")
        order: Any = (await drivers.invoke(target, "boot.getBoot"))["order"]
        attribute = await other_value(drivers, target) if "bios.getBios" in own else {}
        for name, operation, arguments in table(list(order), attribute):
            if operation not in own:
                continue
            try:
                if OPERATIONS[operation].repeat is Repeat.READ:
                    await drivers.invoke(target, operation, arguments)
                before, began = _requests(bmc), time.perf_counter()
                await drivers.invoke(target, operation, arguments)
                seconds, requests = time.perf_counter() - began, _requests(bmc) - before
            except OperationError as error:
                print(f"bmc.requests.{vendor}.{name} is left out: {error.code}: {error.message}", file=sys.stderr)
                continue
            least = LEAST[name][vendor]
            figures.append(
                Figure(
                    f"bmc.requests.{vendor}.{name}",
                    requests,
                    "requests",
                    PEER,
                    least,
                    requests / least,
                    f"{seconds:.4f} s on {TREES[vendor]}",
                )
            )
    return figures


async def other_value(drivers: Drivers, target: Target) -> dict[str, object]:
    """One attribute of the BIOS that may be changed, with a value that it does not have."""
    reading: Any = await drivers.invoke(target, "bios.getBios")
    for attribute in reading["attributes"]:
        usable = attribute["kind"] == "enumeration" and not attribute["readOnly"] and not attribute["note"]
        for choice in attribute["choices"] if usable else []:
            if choice != attribute["value"]:
                return {attribute["name"]: choice}
    return {}


def _requests(bmc: Child) -> int:
    bmc.pipe.send("count")
    return int(bmc.receive())


def _serve(pipe: Pipe, tree: str) -> None:
    uvloop.run(_bmc(pipe, Path(tree)))


async def _bmc(pipe: Pipe, tree: Path) -> None:
    async with RedfishServer(tree, users={USER: PASSWORD}) as server:
        pipe.send(server.url)
        while True:
            await asyncio.to_thread(pipe.recv)
            pipe.send(server.journal.total)
