"""What BMCs say of their consoles, on every recorded tree; and that Redfish itself opens none."""

import json
from pathlib import Path
from typing import Any

import pytest

from drivers.redfish.console import kinds_of, services_of
from drivers.redfish.manners import Manners
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.console import ConsoleKind, ConsolePurpose
from tests.drivers.redfish.harness import bench, without_waiting
from tests.drivers.redfish.test_mockups import TREES

KINDS = {
    "cray-ex235a": [],
    "dell-r750-idrac9-6.00": ["sol", "ssh"],
    "dell-r750-idrac9-7.10": ["sol", "ssh"],
    "dmtf-catfish": [],
    "dmtf-rackmount1": ["sol", "ssh"],
    "dmtf-tower": ["sol", "ssh"],
    "gigabyte-h262-megarac": ["sol"],
    "hpe-dl380a-ilo6": ["sol", "ssh"],
    "hpe-dl385-ilo5": ["sol", "ssh"],
    "intel-s2600bpb": [],
    "lenovo-sr670v2-xcc": ["sol", "ssh"],
    "nvidia-bluefield3": ["sol", "ssh"],
    "nvidia-dgx-h100-ami": ["sol"],
    "nvidia-gh200-openbmc": ["sol", "ssh"],
    "openbmc-stock": ["sol", "ssh"],
    "supermicro-821ge": ["sol", "ssh"],
    "supermicro-x10": ["sol", "ssh"],
}
"""By eye, from the trees' SerialConsole (Dell: CommandShell)."""


def described(tree: Path) -> set[tuple[str, str]]:
    """Every (kind of console, protocol) that the tree's own files name, read without the driver."""
    found = set()
    purposes = {"SerialConsole": "serial", "GraphicalConsole": "graphical", "CommandShell": "shell"}
    for file in [*tree.glob("redfish/v1/Systems/*/index.json"), *tree.glob("redfish/v1/Managers/*/index.json")]:
        resource = json.loads(file.read_bytes())
        for name, purpose in purposes.items():
            console = resource.get(name) or {}
            protocols = [
                *console.get("ConnectTypesSupported", ()),
                *(key for key in ("SSH", "IPMI") if key in console),
            ]
            found |= {(purpose, protocol) for protocol in protocols}
    return found


@pytest.mark.parametrize("tree", TREES)
@without_waiting
async def test_the_consoles_of_a_tree_are_those_in_its_files(tree: str, shared: Path) -> None:
    folder = shared / "mockups" / tree
    async with bench(folder) as ask:
        options = await ask("console.getConsole")
    assert options["kinds"] == KINDS[tree]
    told = {(service["purpose"], service["protocol"]) for service in options["services"]}
    assert told <= described(folder)
    # What only another board's manager tells (a GPU baseboard) is left out.
    if tree not in ("nvidia-dgx-h100-ami", "nvidia-gh200-openbmc"):
        assert told == described(folder)


@without_waiting
async def test_supermicro_tells_how_its_console_is_opened_and_left(shared: Path) -> None:
    async with bench(shared / "mockups" / "supermicro-821ge") as ask:
        ssh, ipmi, *_ = (await ask("console.getConsole"))["services"]
    assert (ssh["port"], ssh["entryCommand"], ssh["maxSessions"]) == (22, "cd system1/sol1; start", 1)
    assert ssh["leaveKeys"].startswith("press <Enter>")
    assert (ipmi["protocol"], ipmi["port"], ipmi["enabled"]) == ("IPMI", 623, True)


@without_waiting
async def test_reading_costs_no_more_than_system_and_manager(shared: Path) -> None:
    async with bench(shared / "mockups" / "hpe-dl385-ilo5") as ask:
        await ask("power.getPower")
        before = len(ask.bmc.journal)
        await ask("console.getConsole")
        assert len(ask.bmc.journal) - before <= 2


@without_waiting
async def test_opening_says_which_driver_to_bind() -> None:
    async with bench() as ask:
        for operation, arguments in (("console.openConsole", {}), ("console.closeConsole", {"stream": "strm_1"})):
            with pytest.raises(OperationError, match="--driver-of console=ipmi") as caught:
                await ask(operation, arguments)
            assert caught.value.code is ErrorCode.UNSUPPORTED


@pytest.mark.parametrize(
    "broken",
    [
        {"SerialConsole": None},
        {"SerialConsole": []},
        {"SerialConsole": {"SSH": None, "IPMI": "yes", "MaxConcurrentSessions": "many"}},
        {"SerialConsole": {"ConnectTypesSupported": None}},
        {"SerialConsole": {"ConnectTypesSupported": [None, 7, " "]}},
        {"GraphicalConsole": {"ConnectTypesSupported": {"KVMIP": True}}},
    ],
)
def test_broken_descriptions_are_passed_over(broken: dict[str, Any]) -> None:
    assert services_of(broken, broken) == []


def test_half_broken_ones_tell_what_they_can() -> None:
    system = {"SerialConsole": {"SSH": {"ServiceEnabled": "true", "Port": "2200", "HotKeySequenceDisplay": 5}}}
    (service,) = services_of(system, {"SerialConsole": {"ConnectTypesSupported": ["SSH"], "ServiceEnabled": False}})
    assert (service.purpose, service.protocol) == (ConsolePurpose.SERIAL, "SSH")
    assert (service.enabled, service.port) == (None, 2200)
    assert kinds_of([service], Manners()) == [ConsoleKind.SSH]
