"""Virtual media: the cases B01 to B12, and others of their kinds."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from protocol.errors import ErrorCode
from simulators.redfish import Effect, FaultRule
from tests.drivers.redfish.harness import Bench, bench, without_waiting
from tests.drivers.redfish.test_virtual_media import EJECT, IMAGE, INSERT, SLOT, refusal

MANAGER_MEDIA = "/redfish/v1/Managers/1/VirtualMedia"
USB = f"{MANAGER_MEDIA}/USB"
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "profiles"


def only_patch(bmc: Bench, path: str = SLOT) -> None:
    """The slot has no actions; its `Allow` header says PATCH then."""
    bmc.bmc.state.edit(path, lambda document: document.pop("Actions"))


def patches(bmc: Bench, path: str = SLOT) -> list[Any]:
    return [entry.body for entry in bmc.bmc.journal.entries("PATCH", path)]


def inserts(bmc: Bench) -> list[Any]:
    return [entry.body for entry in bmc.bmc.journal.entries("POST", INSERT)]


@pytest.mark.case("B10")
@pytest.mark.parametrize("tree", ["hpe-dl385-ilo5", "hpe-dl380a-ilo6"])
@without_waiting
async def test_b10_hpe_is_given_the_empty_body_that_it_wants_at_once(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as bmc:
        slot = (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["slot"]
        assert await bmc("virtual-media.ejectMedia") == {"ejected": [slot]}
        assert [entry.body for entry in bmc.bmc.journal.entries("POST", EJECT)] == [{}]


def no_usb(bmc: Bench) -> None:
    bmc.bmc.state.edit(USB, lambda document: document.update(MediaTypes=["USBStick"]))


# A slot without actions


@pytest.mark.case("B01")
@without_waiting
async def test_b01_the_tag_of_the_slot_goes_with_the_patch() -> None:
    async with bench() as bmc:
        only_patch(bmc)
        no_usb(bmc)
        bmc.bmc.faults.add(FaultRule(method="GET", path=SLOT, headers={"ETag": '"4ad7"'}))
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SLOT, match_headers={"If-Match": '"4ad7"'}, status=200))
        await bmc.fails("virtual-media.insertMedia", {"image": IMAGE})
        (patch,) = bmc.bmc.journal.entries("PATCH", SLOT)
        assert patch.headers["If-Match"] == '"4ad7"'
        assert patch.body == {"Image": IMAGE, "Inserted": True, "WriteProtected": True}


@pytest.mark.case("B01")
@pytest.mark.parametrize("status", [412, 428])
@without_waiting
async def test_b01_a_tag_that_was_overtaken_is_read_again(status: int) -> None:
    async with bench() as bmc:
        only_patch(bmc)
        no_usb(bmc)
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SLOT, count=1, status=status))
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["slot"] == "Cd"
        assert len(patches(bmc)) == 2


@pytest.mark.case("B01")
@pytest.mark.parametrize(
    ("refused", "key", "added"),
    [
        ("WriteProtected", "PropertyUnknown", {"Inserted": True}),
        ("WriteProtected", "PropertyNotWritable", {"Inserted": True}),
        ("Inserted", "PropertyNotWritable", {"WriteProtected": True}),
    ],
)
@without_waiting
async def test_b01_a_property_that_the_slot_does_not_take_is_left_out(
    refused: str, key: str, added: dict[str, Any]
) -> None:
    async with bench() as bmc:
        only_patch(bmc)
        no_usb(bmc)
        body = refusal(key, f"The property {refused} is not one.", [f"#/{refused}"])
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SLOT, match_body={refused: True}, status=400, body=body))
        await bmc("virtual-media.insertMedia", {"image": IMAGE})
        assert patches(bmc)[-1] == {"Image": IMAGE, **added}


@pytest.mark.case("B01", "B03")
@without_waiting
async def test_b01_a_slot_that_is_patched_gets_what_it_misses_too() -> None:
    async with bench() as bmc:
        only_patch(bmc)
        no_usb(bmc)
        body = refusal("PropertyMissing", related=["#/TransferProtocolType"])
        bmc.bmc.state.patch(SLOT, {"TransferProtocolType": "NFS"})
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SLOT, count=1, status=400, body=body))
        await bmc("virtual-media.insertMedia", {"image": IMAGE})
        whole = {"Image": IMAGE, "Inserted": True, "WriteProtected": True}
        assert patches(bmc) == [whole, {**whole, "TransferProtocolType": "HTTP"}]


@pytest.mark.case("B01", "B08")
@pytest.mark.parametrize("status", [404, 405, 501])
@without_waiting
async def test_b01_a_slot_that_names_an_action_and_does_not_have_it_is_patched(status: int) -> None:
    async with bench(faults=[FaultRule(method="POST", path=INSERT, status=status)]) as bmc:
        no_usb(bmc)
        allow = {"Allow": "GET, HEAD, PATCH"}
        bmc.bmc.faults.add(FaultRule(method="GET", path=SLOT, headers=allow))
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SLOT, status=200, execute=False))
        error = await bmc.fails("virtual-media.insertMedia", {"image": IMAGE}, timeout=30)
        assert error.code is ErrorCode.NOT_APPLIED
        assert patches(bmc) == [{"Image": IMAGE, "Inserted": True, "WriteProtected": True}]


# What a BMC wants in the body


@pytest.mark.case("B02")
@pytest.mark.parametrize("status", [400, 422, 500])
@without_waiting
async def test_b02_a_bmc_that_takes_the_image_alone_is_sent_nothing_else(status: int) -> None:
    unknown = refusal("PropertyUnknown", related=["#/Inserted", "#/WriteProtected"])
    rules = [
        FaultRule(method="POST", path=INSERT, match_body={name: value}, status=status, body=unknown)
        for name in ("Inserted", "WriteProtected")
        for value in (True, False)
    ]
    async with bench(faults=rules) as bmc:
        await bmc("virtual-media.insertMedia", {"image": IMAGE})
        assert inserts(bmc) == [{"Image": IMAGE}]


@pytest.mark.case("B03")
@pytest.mark.parametrize(
    ("image", "added"),
    [
        ("http://192.0.2.1/a.iso", {"TransferProtocolType": "HTTP"}),
        ("https://192.0.2.1/a.iso", {"TransferProtocolType": "HTTPS"}),
        ("nfs://192.0.2.1/share/a.iso", {"TransferProtocolType": "NFS"}),
        ("smb://192.0.2.1/share/a.iso", {"TransferProtocolType": "CIFS"}),
    ],
)
@pytest.mark.parametrize("status", [400, 422, 500])
@without_waiting
async def test_b03_the_protocol_is_that_of_the_address(image: str, added: dict[str, Any], status: int) -> None:
    body = refusal("CreateFailedMissingReqProperties", related=["TransferProtocolType"])
    async with bench(faults=[FaultRule(method="POST", path=INSERT, count=1, status=status, body=body)]) as bmc:
        await bmc("virtual-media.insertMedia", {"image": image})
        assert inserts(bmc) == [{"Image": image}, {"Image": image, **added}]


@pytest.mark.case("B03", "B05")
@without_waiting
async def test_b03_what_is_missed_one_after_the_other_is_added_once_each() -> None:
    missed = ["TransferProtocolType", "TransferMethod", "UserName", "MediaType"]
    refusals = tuple(
        Effect(
            status=400,
            body=refusal("ActionParameterMissing", f"InsertMedia requires that the parameter {name} be present."),
        )
        for name in missed
    )
    async with bench(faults=[FaultRule(method="POST", path=INSERT, sequence=refusals)]) as bmc:
        await bmc("virtual-media.insertMedia", {"image": IMAGE})
        assert inserts(bmc)[-1] == {
            "Image": IMAGE,
            "TransferProtocolType": "HTTP",
            "TransferMethod": "Stream",
            "UserName": "anonymous",
            "Password": "(hidden)",
            "MediaType": "CD",
        }
        assert len(inserts(bmc)) == 5


NESTED = {
    "beside a property, within an object": {
        "Parameters": {"MediaType@Message.ExtendedInfo": [{"MessageId": "Base.1.5.PropertyMissing", "Message": "!"}]}
    },
    "one object for the list": {
        "MediaType@Message.ExtendedInfo": {"MessageId": "Base.1.5.PropertyMissing", "Message": "missing"}
    },
    "as text within the error": {
        "error": {"code": "Base.1.5.GeneralError", "message": "The property MediaType is required."}
    },
    "in the arguments only": {
        "error": {
            "code": "Base.1.8.GeneralError",
            "@Message.ExtendedInfo": [
                {
                    "MessageId": "Base.1.8.ActionParameterMissing",
                    "Message": "A parameter is missing.",
                    "MessageArgs": ["InsertMedia", "MediaType"],
                    "RelatedProperties": [],
                }
            ],
        }
    },
}


@pytest.mark.case("B05")
@pytest.mark.parametrize("body", NESTED.values(), ids=NESTED.keys())
@without_waiting
async def test_b05_what_is_missed_is_found_wherever_it_is_said(body: dict[str, Any]) -> None:
    async with bench(faults=[FaultRule(method="POST", path=INSERT, count=1, status=400, body=body)]) as bmc:
        await bmc("virtual-media.insertMedia", {"image": IMAGE})
        assert inserts(bmc) == [{"Image": IMAGE}, {"Image": IMAGE, "MediaType": "CD"}]


@pytest.mark.case("B04")
@pytest.mark.parametrize("name", ["UserName", "Password"])
@without_waiting
async def test_b04_a_bmc_that_wants_a_login_gets_a_placeholder_and_never_its_own(name: str) -> None:
    body = {"error": {"@Message.ExtendedInfo": [{"MessageId": "Base.1.12.ActionParameterMissing", "Message": name}]}}
    async with bench(faults=[FaultRule(method="POST", path=INSERT, count=1, status=400, body=body)]) as bmc:
        sent: list[bytes] = []
        service = bmc.bmc.service
        answer = service.answer

        def watched(request: Any) -> Any:
            sent.append(request.body)
            return answer(request)

        service.answer = watched  # type: ignore[method-assign]
        await bmc("virtual-media.insertMedia", {"image": IMAGE})
        last = next(body for body in reversed(sent) if b"Image" in body)
        assert b'"Password":"anonymous"' in last
        assert bmc.target.secret.reveal().encode() not in last


# Where the slots are


@pytest.mark.case("B07")
@pytest.mark.parametrize("fault", ["404", "503", "null"])
@without_waiting
async def test_b07_a_system_whose_media_cannot_be_had_leaves_those_of_the_manager(fault: str) -> None:
    async with bench() as bmc:
        bmc.bmc.state.patch("/redfish/v1/Systems/1", {"VirtualMedia": {"@odata.id": "/redfish/v1/Systems/1/VM"}})
        if fault == "503":
            bmc.bmc.faults.add(FaultRule(method="GET", path="/redfish/v1/Systems/1/VM", count=2, status=503))
        if fault == "null":
            bmc.bmc.state.put("/redfish/v1/Systems/1/VM", {"@odata.id": "/redfish/v1/Systems/1/VM", "Members": None})
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["slot"] == "Cd"
        assert len(inserts(bmc)) == 1


@pytest.mark.case("B08")
@pytest.mark.parametrize("status", [404, 405, 409, 500, 501])
@without_waiting
async def test_b08_a_slot_that_refuses_leaves_the_next_one(status: int) -> None:
    async with bench(faults=[FaultRule(method="POST", path=f"{SLOT}/*", status=status)]) as bmc:
        bmc.bmc.state.edit(USB, lambda document: document.update(MediaTypes=["CD", "DVD"]))
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["slot"] == "USB"


# Out again


@pytest.mark.case("B10")
@pytest.mark.parametrize("status", [400, 409, 500])
@without_waiting
async def test_b10_an_eject_that_the_bmc_takes_only_after_a_while_is_given_again(status: int) -> None:
    async with bench() as bmc:
        await bmc("virtual-media.insertMedia", {"image": IMAGE})
        body = refusal("ResourceInUse", "The media is in use.")
        bmc.bmc.faults.add(FaultRule(method="POST", path=EJECT, count=2, status=status, body=body))
        assert await bmc("virtual-media.ejectMedia") == {"ejected": ["Cd"]}
        assert not bmc.bmc.state.media[SLOT].inserted


@pytest.mark.case("B10")
@without_waiting
async def test_b10_a_slot_that_shows_no_way_out_is_patched_where_it_takes_a_patch() -> None:
    async with bench() as bmc:
        await bmc("virtual-media.insertMedia", {"image": IMAGE})
        bmc.bmc.state.edit(SLOT, lambda document: document["Actions"].pop("#VirtualMedia.EjectMedia"))
        bmc.bmc.faults.add(FaultRule(method="GET", path=SLOT, count=3, headers={"Allow": "GET, HEAD, PATCH"}))
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=SLOT, status=204))
        bmc.bmc.faults.add(FaultRule(method="GET", path=SLOT, after=2, merge={"Image": None, "Inserted": False}))
        assert await bmc("virtual-media.ejectMedia") == {"ejected": ["Cd"]}
        assert patches(bmc) == [{"Image": None, "Inserted": False}]


@pytest.mark.case("B10")
@without_waiting
async def test_b10_a_slot_that_shows_no_way_out_is_asked_by_the_standard_s_path() -> None:
    async with bench() as bmc:
        await bmc("virtual-media.insertMedia", {"image": IMAGE})
        bmc.bmc.faults.add(FaultRule(method="GET", path=SLOT, merge={"Actions": {"#VirtualMedia.EjectMedia": None}}))
        bmc.bmc.faults.add(FaultRule(method="GET", path=SLOT, headers={"Allow": "GET, HEAD"}))
        assert await bmc("virtual-media.ejectMedia") == {"ejected": ["Cd"]}
        assert len(bmc.requests("POST", EJECT)) == 1


@pytest.mark.case("B21")
@pytest.mark.parametrize("key", ["UnableToModifyDuringSystemPOST", "InvalidOperationForSystemState"])
@without_waiting
async def test_b21_an_image_waits_for_the_end_of_the_self_test(key: str) -> None:
    body = {"error": {"@Message.ExtendedInfo": [{"MessageId": f"iLO.2.14.{key}", "Message": "POST"}]}}
    async with bench(faults=[FaultRule(method="POST", path=INSERT, count=9, status=400, body=body)]) as bmc:
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["changed"] is True
        bmc.bmc.faults.add(FaultRule(method="POST", path=EJECT, count=9, status=400, body=body))
        assert await bmc("virtual-media.ejectMedia") == {"ejected": ["Cd"]}


# What runs from the image


@pytest.mark.case("B12")
@pytest.mark.parametrize("profile", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_b12_a_machine_is_switched_off_before_its_image_is_taken_out(profile: Path) -> None:
    steps = [step.get("use") for step in yaml.safe_load(profile.read_text()).get("cleanup") or []]
    if "power.setPower" in steps and "virtual-media.ejectMedia" in steps:
        assert steps.index("power.setPower") < steps.index("virtual-media.ejectMedia")
