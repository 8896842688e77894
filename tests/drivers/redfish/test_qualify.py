"""What a BMC can do and what OpenStack Ironic would find of what it needs, by reading; and the report as a file."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from drivers.driver import operations_of
from drivers.qualification_report import faults_of, save_report
from drivers.redfish.boot_override import BootView
from drivers.redfish.evidence import Evidence
from drivers.redfish.ironic_profile import PROFILE, ironic_verdict
from drivers.redfish.qualify import judge
from drivers.registry import load
from protocol.operations import OPERATIONS
from protocol.shapes.management import Fulfilment, Need
from rackwright.cli import main
from simulators.redfish import FaultRule
from tests.drivers.redfish.harness import SYSTEM, Bench, bench, without_waiting
from tests.drivers.redfish.test_mockups import TREES

OWN = set(operations_of(load("redfish")))


async def qualify(bmc: Bench) -> dict[str, Any]:
    return await bmc("management.qualify")


def lines(report: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {line["operation"]: line for line in report["operations"]}


def needs(report: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {
        f"{row['resource']} {row['item']}": (row["verdict"], row["evidence"])
        for row in report["profile"]["requirements"]
    }


@without_waiting
async def test_every_operation_has_a_verdict_with_what_says_so_and_nothing_is_changed() -> None:
    async with bench() as bmc:
        report = await qualify(bmc)
        assert list(lines(report)) == list(OPERATIONS)
        assert all(line["evidence"] for line in report["operations"])
        assert lines(report)["inspect.getInventory"]["support"] == "supported"
        assert {entry.method for entry in bmc.bmc.journal} - {"GET"} <= {"POST"}
        assert len(bmc.requests("POST")) == 1


@pytest.mark.parametrize("tree", TREES)
@without_waiting
async def test_nothing_is_called_supported_that_the_driver_does_not_have(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        for operation, line in lines(await qualify(bmc)).items():
            assert line["support"] != "supported" or operation in OWN, line


def test_an_operation_of_the_bmc_that_the_driver_lacks_is_named_as_both() -> None:
    evidence = Evidence({}, {"PowerState": "On"}, {})
    report = {line.operation: line for line in judge(evidence, {"power.setPower"})}
    assert report["power.getPower"].support == "unsupported"
    assert report["power.getPower"].evidence == "this driver does not have it (the BMC: PowerState is On)"


@without_waiting
async def test_no_resource_is_read_twice() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        before = len(bmc.bmc.journal)
        await qualify(bmc)
        asked = [entry.path for entry in list(bmc.bmc.journal)[before:]]
        assert len(asked) == len(set(asked)), sorted(path for path in asked if asked.count(path) > 1)


@pytest.mark.parametrize("tree", TREES)
@without_waiting
async def test_no_resource_of_a_real_tree_is_read_twice(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        await bmc("management.getInfo")
        before = len(bmc.bmc.journal)
        await qualify(bmc)
        asked = [f"{entry.path}?{entry.query}" for entry in list(bmc.bmc.journal)[before:]]
        assert len(asked) == len(set(asked)), sorted(path for path in asked if asked.count(path) > 1)


@without_waiting
async def test_a_server_that_keeps_to_the_profile_meets_it() -> None:
    async with bench() as bmc:
        profile = (await qualify(bmc))["profile"]
        assert profile["profile"] == PROFILE
        assert profile["verdict"] == "met", [row for row in profile["requirements"] if row["need"] == "mandatory"]
        assert all(row["neededFor"] and row["evidence"] for row in profile["requirements"])


VERDICTS = {
    # Read off the trees by hand: what of the mandatory part is missing or cannot be told.
    "cray-ex235a": {
        "ServiceRoot RedfishVersion 1.6.0 or later": "notMet",
        "ComputerSystem Boot.BootSourceOverrideTarget: Pxe, Hdd, Cd": "notMet",
        "ComputerSystem Links.ManagedBy": "notMet",
        "VirtualMedia InsertMedia": "notMet",
    },
    "dell-r750-idrac9-7.10": {
        "ComputerSystem Boot.BootSourceOverrideTarget: Pxe, Hdd, Cd": "met",
        "VirtualMedia InsertMedia": "met",
        "VirtualMedia EjectMedia": "met",
        "ComputerSystem Reset: On, ForceOff, ForceRestart": "met",
        "UpdateService SimpleUpdate": "met",
    },
    "lenovo-sr670v2-xcc": {
        "VirtualMedia InsertMedia": "notMet",
        "ComputerSystem Reset: On, ForceOff, ForceRestart": "met",
    },
    "supermicro-821ge": {
        "VirtualMedia InsertMedia": "met",
        "VirtualMedia EjectMedia": "unknown",
        "ComputerSystem Reset: On, ForceOff, ForceRestart": "met",
    },
    "supermicro-x10": {
        "ServiceRoot RedfishVersion 1.6.0 or later": "notMet",
        "ComputerSystem Boot.BootSourceOverrideMode": "notMet",
        "VirtualMedia MediaTypes": "notMet",
        "Bios Attributes": "unknown",
    },
    "openbmc-stock": {
        "VirtualMedia InsertMedia": "notMet",
        "UpdateService SimpleUpdate": "notMet",
        "ServiceRoot RedfishVersion 1.6.0 or later": "met",
    },
    "nvidia-gh200-openbmc": {
        "ComputerSystem Manufacturer": "notMet",
        "EthernetInterface MACAddress, Status.State, Status.Health": "unknown",
        "UpdateService SimpleUpdate": "notMet",
    },
    "intel-s2600bpb": {"ServiceRoot Tasks": "notMet", "VirtualMedia InsertMedia": "notMet"},
}


@pytest.mark.parametrize("tree", VERDICTS)
@without_waiting
async def test_what_ironic_needs_is_told_of_a_recorded_bmc(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        report = await qualify(bmc)
        found = needs(report)
        assert {key: found[key][0] for key in VERDICTS[tree]} == VERDICTS[tree]
        mandatory = {row["verdict"] for row in report["profile"]["requirements"] if row["need"] == "mandatory"}
        worst = next(verdict for verdict in ("notMet", "unknown", "met") if verdict in mandatory)
        assert report["profile"]["verdict"] == worst


@without_waiting
async def test_what_cannot_be_read_now_is_neither_met_nor_missing() -> None:
    async with bench() as bmc:
        bmc.bmc.faults.add(FaultRule(method="GET", path=f"{SYSTEM}/Processors", status=503))
        bmc.bmc.faults.add(FaultRule(method="GET", path="/redfish/v1/UpdateService", status=503))
        found = needs(await qualify(bmc))
        for row in ("Processor ProcessorArchitecture, TotalThreads", "UpdateService SimpleUpdate"):
            verdict, evidence = found[row]
            assert verdict == "unknown"
            assert "busy" in evidence


def verdict_of(item: str, evidence: Evidence) -> tuple[Fulfilment, str]:
    (row,) = [row for row in ironic_verdict(evidence).requirements if row.item.startswith(item)]
    return row.verdict, row.evidence


@pytest.mark.parametrize(
    ("boot", "verdict", "words"),
    [
        ({"BootSourceOverrideTarget@Redfish.AllowableValues": ["Pxe", "Hdd", "Cd"]}, "met", "it takes Pxe, Hdd, Cd"),
        ({"BootSourceOverrideTarget@Redfish.AllowableValues": ["Pxe"]}, "notMet", "it does not take Hdd, Cd"),
        ({"BootSourceOverrideTarget": "None"}, "unknown", "are not listed"),
        ({}, "notMet", "Boot has no BootSourceOverrideTarget"),
    ],
)
def test_a_list_of_values_proves_that_a_property_can_be_written(
    boot: dict[str, Any], verdict: str, words: str
) -> None:
    evidence = Evidence({}, {}, {}, boot=BootView(boot, {}))
    found = verdict_of("Boot.BootSourceOverrideTarget", evidence)
    assert found[0] == verdict
    assert words in found[1]


def test_only_the_mandatory_part_decides() -> None:
    rows = ironic_verdict(Evidence({}, {}, {})).requirements
    assert {row.need for row in rows} == set(Need)
    assert ironic_verdict(Evidence({}, {}, {})).verdict is Fulfilment.NOT_MET


@pytest.mark.parametrize(
    ("version", "verdict"), [("1.6.0", "met"), ("1.0.1", "notMet"), ("next", "unknown"), (None, "unknown")]
)
def test_the_redfish_version_is_compared_as_numbers(version: str | None, verdict: str) -> None:
    assert verdict_of("RedfishVersion", Evidence({"RedfishVersion": version}, {}, {}))[0] == verdict
    assert verdict_of("RedfishVersion", Evidence({"RedfishVersion": "1.15.0"}, {}, {}))[0] == "met"


def test_the_report_is_printed_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    file.write_text("older")
    assert main(["bmc", "qualify", "--address", "simulated://m1", "--save", str(file)]) == 0
    saved = json.loads(file.read_text())
    assert saved["address"] == "simulated://m1"
    assert saved["takenAt"].endswith("+00:00")
    assert [line["operation"] for line in saved["operations"]] == list(OPERATIONS)
    assert "power.getPower" in capsys.readouterr().out
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_report_that_cannot_be_saved_is_told_before_the_bmc_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bmc", "qualify", "--address", "simulated://m1", "--save"]
    assert main([*command, str(tmp_path / "nowhere" / "report.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main([*command, str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_a_report_that_is_not_written_whole_leaves_the_older_one(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("older")
    assert faults_of(file) == []
    with pytest.raises(UnicodeEncodeError):
        save_report(file, "\ud800")
    assert file.read_text() == "older"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
