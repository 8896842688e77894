"""Firmware: what is read, what is asked, and which way an update takes."""

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, OperationError
from simulators.redfish import FaultRule, ServiceOptions
from tests.drivers.redfish.harness import Bench, bench, without_waiting
from tests.drivers.redfish.test_mockups import TREES

SERVICE = "/redfish/v1/UpdateService"
INVENTORY = f"{SERVICE}/FirmwareInventory"
TASKS = "/redfish/v1/TaskService/Tasks"
SIMPLE = "*/Actions/*SimpleUpdate"
IMAGE = "http://192.0.2.1/images/bmc-2.14.0.bin"
BMC_UPDATE = {"image": IMAGE, "targets": ["BMC"], "expectVersion": "2.14.0"}
GET, UPDATE = "firmware.getFirmware", "firmware.updateFirmware"


def orders(bmc: Bench) -> list[Any]:
    """The bodies of every update that reached the BMC, in order."""
    return [
        entry.body for entry in bmc.bmc.journal.entries("POST", "*UpdateService*") if "Sessions" not in entry.path
    ]


def version(bmc: Bench, component: str = "BMC") -> object:
    return (bmc.bmc.state.document(f"{INVENTORY}/{component}") or {}).get("Version")


# Reading


def expected_components(tree: Path) -> list[tuple[str, object, object]]:
    """What a tree's own files list: id, name and version of every entry, by a plain reading of them."""

    def load(path: str) -> dict[str, Any]:
        folders = tree
        for part in path.strip("/").split("/"):
            found = [item for item in folders.iterdir() if item.name.lower() == part.lower()]
            if not found:
                return {}
            folders = found[0]
        file = folders / "index.json"
        return json.loads(file.read_text()) if file.exists() else {}

    service = load(load("/redfish/v1").get("UpdateService", {}).get("@odata.id", "/none"))
    for name in ("FirmwareInventory", "SoftwareInventory"):
        members = load(service.get(name, {}).get("@odata.id", "/none")).get("Members") or []
        paths = dict.fromkeys(member["@odata.id"] for member in members)
        found = {path.rpartition("/")[2]: load(path) for path in paths}
        listed = [
            (entry.get("Id") or last, entry.get("Name") or last, (entry.get("Version") or "").strip() or None)
            for last, entry in found.items()
            if "error" not in entry and entry
        ]
        if listed:
            return listed
    return []


@pytest.mark.parametrize("tree", TREES)
@without_waiting
async def test_the_inventory_is_what_the_tree_holds(tree: str, shared: Path) -> None:
    folder = shared / "mockups" / tree
    expected = expected_components(folder)
    async with bench(folder) as bmc:
        components = (await bmc(GET))["components"]
        shown = [(item["id"], item["name"], item["version"]) for item in components]
        if expected:
            assert shown == expected
            assert all(item["path"] for item in components)
        else:
            assert {item["id"] for item in components} == {"BIOS", "BMC"}
            assert all(item["version"] for item in components)
        reads = bmc.requests("GET")
        # The service's root, the service, one collection (two where the first is missing), and each member once.
        assert len(reads) <= max(len(expected) + 4, 9)
        assert len(reads) == len(set(reads))


async def components_of(shared: Path, tree: str) -> dict[str, dict[str, Any]]:
    async with bench(shared / "mockups" / tree) as bmc:
        return {item["id"]: item for item in (await bmc(GET))["components"]}


@without_waiting
async def test_copies_that_do_not_run_are_told_apart(shared: Path) -> None:
    dell = await components_of(shared, "dell-r750-idrac9-7.10")
    assert dell["Installed-159-1.13.2__BIOS.Setup.1-1"]["active"]
    assert not dell["Previous-159-1.6.5__BIOS.Setup.1-1"]["active"]
    lenovo = await components_of(shared, "lenovo-sr670v2-xcc")
    assert [lenovo[name]["active"] for name in ("BMC-Primary", "BMC-Primary-Pending", "BMC-Backup")] == [
        True,
        False,
        False,
    ]
    assert lenovo["UEFI-Pending"]["version"] is None
    supermicro = await components_of(shared, "supermicro-821ge")
    assert [supermicro[name]["active"] for name in ("BIOS", "Golden_BIOS", "Staging_BIOS")] == [True, False, False]
    hpe = await components_of(shared, "hpe-dl385-ilo5")
    assert {item["name"] for item in hpe.values() if not item["active"]} == {"Redundant System ROM"}


@without_waiting
async def test_members_that_are_missing_twice_or_half_there_hinder_nothing() -> None:
    def spoil(document: dict[str, Any]) -> None:
        document.pop("Members@odata.count")
        document["Members"] = [*document["Members"], document["Members"][0], None, {"@odata.id": f"{INVENTORY}/Gone"}]

    faults = [
        FaultRule(path=f"{INVENTORY}/NIC1", status=503),
        FaultRule(path=f"{INVENTORY}/PSU1", body="<html>busy</html>", status=200),
        FaultRule(path=f"{INVENTORY}/BIOS", set={"/Version": None, "/Name": ["?"], "/Updateable": "yes"}),
    ]
    async with bench(faults=faults) as bmc:
        bmc.bmc.state.edit(INVENTORY, spoil)
        found = {item["id"]: item for item in (await bmc(GET))["components"]}
        assert set(found) == {"BMC", "BIOS", "RAID1"}
        assert (found["BIOS"]["name"], found["BIOS"]["version"], found["BIOS"]["updateable"]) == ("BIOS", None, None)


@without_waiting
async def test_an_inventory_that_takes_minutes_is_waited_for() -> None:
    async with bench(faults=[FaultRule(path=f"{INVENTORY}/*", latency=40)]) as bmc:
        assert len((await bmc(GET))["components"]) == 5


@pytest.mark.parametrize("gone", ["the inventory", "the service"])
@without_waiting
async def test_without_an_inventory_the_system_and_its_manager_say_it(gone: str) -> None:
    async with bench() as bmc:
        bmc.bmc.state.remove(INVENTORY if gone == "the inventory" else SERVICE)
        shown = {item["id"]: item["version"] for item in (await bmc(GET))["components"]}
        manager = bmc.bmc.state.document("/redfish/v1/Managers/1") or {}
        assert shown["BMC"] == manager["FirmwareVersion"]


# One update


@without_waiting
async def test_an_update_ends_when_the_version_is_read() -> None:
    told: list[tuple[str, float | None]] = []
    async with bench(options=ServiceOptions(task_seconds=120)) as bmc:
        result = await bmc(UPDATE, BMC_UPDATE, progress=lambda *said: told.append(said))
        assert (result["before"], result["after"]) == ({"BMC": "2.13.0"}, {"BMC": "2.14.0"})
        assert (result["changed"], result["resetOwed"], result["transport"]) == (True, False, "simple")
        assert result["task"].startswith(TASKS)
        assert orders(bmc) == [{"ImageURI": IMAGE, "TransferProtocol": "HTTP", "Targets": [f"{INVENTORY}/BMC"]}]
    assert {percent for _, percent in told} >= {10, 40, 70}


@without_waiting
async def test_a_version_that_is_there_already_sends_nothing() -> None:
    async with bench() as bmc:
        result = await bmc(UPDATE, {**BMC_UPDATE, "expectVersion": "2.13.0"})
        assert (result["changed"], result["after"]) == (False, {"BMC": "2.13.0"})
        assert (await bmc(UPDATE, {"image": IMAGE, "expectVersion": "2.13.0"}))["changed"] is False
        assert orders(bmc) == []


@without_waiting
async def test_without_a_target_the_component_that_has_changed_is_told() -> None:
    async with bench() as bmc:
        bmc.bmc.state.edit(
            INVENTORY, lambda document: document["Members"].sort(key=lambda m: "BMC" not in m["@odata.id"])
        )
        result = await bmc(UPDATE, {"image": IMAGE, "expectVersion": "2.14.0"})
        assert (result["before"], result["after"]) == ({"BMC": "2.13.0"}, {"BMC": "2.14.0"})


@pytest.mark.parametrize(
    "target", ["BMC", "bmc", "Manager firmware", f"{INVENTORY}/BMC", f"{INVENTORY}/BMC/", "/redfish/v1/Managers/1"]
)
@without_waiting
async def test_a_target_may_be_named_by_id_name_path_or_what_it_belongs_to(target: str) -> None:
    async with bench() as bmc:
        bmc.bmc.state.patch(f"{INVENTORY}/BMC", {"RelatedItem": [{"@odata.id": "/redfish/v1/Managers/1"}]})
        result = await bmc(UPDATE, {**BMC_UPDATE, "targets": [target]})
        assert result["after"] == {"BMC": "2.14.0"}
        (order,) = orders(bmc)
        assert order["Targets"] == [target if "Managers" in target else f"{INVENTORY}/BMC"]


@without_waiting
async def test_every_fault_of_a_request_is_told_at_once_and_nothing_is_sent(tmp_path: Path) -> None:
    async with bench() as bmc:
        error = await bmc.fails(
            UPDATE,
            {
                "updates": [
                    {"image": f"file://{tmp_path}/none.bin", "targets": ["BCM", "PSU1"]},
                    {"image": "gopher://x/y"},
                    {"image": IMAGE, "targets": ["/redfish/v1/Nothing"]},
                ]
            },
        )
        assert error.code is ErrorCode.INVALID_ARGUMENT
        for said in (
            "updates[0].targets[0]: this BMC lists no component 'BCM' (did you mean BMC?)",
            "updates[0].targets[1]: 'PSU1' cannot be updated",
            "updates[0].image",
            "No such file",
            "updates[1].image: an image is an address",
            "updates[2].targets[0]",
            "Nothing was sent",
        ):
            assert said in error.message
        assert orders(bmc) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "image is required"),
        ({"image": IMAGE, "updates": [{"image": IMAGE}]}, "updates stands in place of image"),
        ({"image": IMAGE, "transport": "tftp"}, "not one of auto"),
    ],
)
@without_waiting
async def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, object], said: str) -> None:
    async with bench() as bmc:
        error = await bmc.fails(UPDATE, arguments)
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert said in error.message


@without_waiting
async def test_a_name_that_several_components_have_is_no_target(shared: Path) -> None:
    async with bench(shared / "mockups" / "hpe-dl385-ilo5") as bmc:
        error = await bmc.fails(UPDATE, {"image": IMAGE, "targets": ["NVMe Drive"]})
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert "names 16 components (give one of the ids" in error.message


# What is offered decides what is sent


SIMPLE_UPDATES: dict[str, dict[str, Any]] = {
    "cray-ex235a": {
        "targets": ["BMC"],
        "sent": {"TransferProtocol": "HTTP", "Targets": [f"{INVENTORY}/BMC"]},
    },
    "dell-r750-idrac9-6.00": {"sent": {"TransferProtocol": "HTTP", "@Redfish.OperationApplyTime": "Immediate"}},
    "dell-r750-idrac9-7.10": {
        "applyTime": "onReset",
        "sent": {"TransferProtocol": "HTTP", "@Redfish.OperationApplyTime": "OnReset"},
    },
    "dmtf-rackmount1": {"sent": {"TransferProtocol": "HTTP"}},
    "gigabyte-h262-megarac": {"targets": ["BMC"], "sent": {"TransferProtocol": "HTTP"}},
    "hpe-dl380a-ilo6": {"sent": {"TransferProtocol": "HTTP"}},
    "intel-s2600bpb": {"sent": {}},
    "nvidia-bluefield3": {"sent": {"TransferProtocol": "HTTP"}},
    "nvidia-dgx-h100-ami": {"sent": {"TransferProtocol": "HTTP"}},
    "supermicro-821ge": {
        "targets": ["BMC"],
        "sent": {"TransferProtocol": "HTTP", "Targets": ["/redfish/v1/Managers/1"]},
    },
}


@pytest.mark.parametrize("tree", SIMPLE_UPDATES)
@without_waiting
async def test_simple_update_is_sent_what_the_tree_offers_and_nothing_else(tree: str, shared: Path) -> None:
    case = dict(SIMPLE_UPDATES[tree])
    sent = case.pop("sent")
    async with bench(shared / "mockups" / tree) as bmc:
        try:
            await bmc(UPDATE, {"image": IMAGE, "transport": "simple", **case}, timeout=1800)
        except OperationError as error:
            # A tree with no inventory of firmware shows no version that changes.
            assert error.code is ErrorCode.OUTCOME_UNKNOWN, error  # noqa: PT017
        assert orders(bmc) == [{"ImageURI": IMAGE, **sent}]


@pytest.mark.parametrize(
    ("tree", "arguments", "said"),
    [
        ("openbmc-stock", {"image": "tftp://192.0.2.1/obmc.tar"}, "simple: this BMC has none"),
        ("openbmc-stock", {"image": IMAGE, "transport": "simple"}, "simple: this BMC has none"),
        ("gigabyte-h262-megarac", {"image": "https://192.0.2.1/x.bin", "transport": "simple"}, "over HTTP, FTP, not"),
        ("gigabyte-h262-megarac", {"image": IMAGE, "transport": "multipart"}, "multipart: this BMC has none"),
        ("hpe-dl385-ilo5", {"image": IMAGE, "applyTime": "onReset"}, "no apply time, not OnReset"),
        (
            "lenovo-sr670v2-xcc",
            {"image": IMAGE, "transport": "simple", "targets": ["UEFI"]},
            "takes the targets /redfish/v1/UpdateService/FirmwareInventory/BMC-Backup only",
        ),
        ("dell-r750-idrac9-7.10", {"image": IMAGE, "transport": "push"}, "only stores what is pushed"),
        ("dmtf-catfish", {"image": IMAGE}, "no update service"),
        ("supermicro-x10", {"image": IMAGE}, "no update service"),
    ],
)
@without_waiting
async def test_what_a_bmc_does_not_offer_is_unsupported_with_the_reason(
    tree: str, arguments: dict[str, object], said: str, shared: Path
) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        error = await bmc.fails(UPDATE, arguments)
        assert error.code is ErrorCode.UNSUPPORTED
        assert said in error.message
        assert orders(bmc) == []


def refusal(key: str, about: str) -> dict[str, Any]:
    note = {"MessageId": f"Base.1.12.{key}", "Message": f"The parameter {about}.", "MessageArgs": [about]}
    return {"error": {"code": note["MessageId"], "@Message.ExtendedInfo": [note]}}


@without_waiting
async def test_a_parameter_that_the_bmc_misses_or_does_not_know_is_mended_once() -> None:
    missing = FaultRule(
        method="POST", path=SIMPLE, status=400, body=refusal("ActionParameterMissing", "TransferProtocol"), count=1
    )
    async with bench(faults=[missing]) as bmc:
        listed = "TransferProtocol@Redfish.AllowableValues"
        bmc.bmc.state.edit(SERVICE, lambda document: document["Actions"]["#UpdateService.SimpleUpdate"].pop(listed))
        assert (await bmc(UPDATE, BMC_UPDATE))["changed"]
        assert [("TransferProtocol" in body) for body in orders(bmc)] == [False, True]
    unknown = FaultRule(
        method="POST", path=SIMPLE, status=400, body=refusal("ActionParameterUnknown", "Targets"), count=1
    )
    async with bench(faults=[unknown]) as bmc:
        bmc.bmc.state.edit(
            INVENTORY, lambda document: document["Members"].sort(key=lambda m: "BMC" not in m["@odata.id"])
        )
        assert (await bmc(UPDATE, BMC_UPDATE))["after"] == {"BMC": "2.14.0"}
        assert [("Targets" in body) for body in orders(bmc)] == [True, False]


@without_waiting
async def test_a_refusal_reaches_the_operator_with_the_bmcs_own_words() -> None:
    refused = FaultRule(
        method="POST", path=SIMPLE, status=400, body=refusal("ResourceNotFound", "ImageURI is not there")
    )
    async with bench(faults=[refused]) as bmc:
        error = await bmc.fails(UPDATE, BMC_UPDATE)
        assert error.code is ErrorCode.BMC_ERROR
        assert "ImageURI is not there" in str(error)
        assert len(orders(bmc)) == 1


@without_waiting
async def test_a_password_in_an_images_address_goes_its_own_way_and_into_no_error() -> None:
    echo = FaultRule(
        method="POST", path=SIMPLE, status=400, body=refusal("GeneralError", "deploy s3cret-word refused")
    )
    async with bench(faults=[echo]) as bmc:
        error = await bmc.fails(
            UPDATE, {**BMC_UPDATE, "image": "http://deploy:s3cret-word@192.0.2.1/bmc-2.14.0.bin?sig=abc"}
        )
        (order,) = orders(bmc)
        assert order["ImageURI"] == "http://192.0.2.1/bmc-2.14.0.bin?sig=abc"
        assert order["Username"] == "deploy"
        assert "s3cret-word" not in f"{error} {error.details}"
        assert "sig=abc" not in f"{error} {error.details}"


@without_waiting
async def test_an_update_service_that_is_switched_off_or_busy_is_left_alone() -> None:
    async with bench() as bmc:
        bmc.bmc.state.patch(SERVICE, {"ServiceEnabled": False})
        assert "switched off" in (await bmc.fails(UPDATE, BMC_UPDATE)).message
        bmc.bmc.state.patch(SERVICE, {"ServiceEnabled": True, "HttpPushUriTargetsBusy": True})
        error = await bmc.fails(UPDATE, BMC_UPDATE)
        assert error.code is ErrorCode.BUSY
        assert "another client has claimed" in error.message
        assert orders(bmc) == []
