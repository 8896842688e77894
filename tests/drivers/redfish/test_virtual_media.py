"""Virtual media: whatever way an image gets into a slot, it is seen there before success is said."""

import asyncio
from typing import Any

import pytest

from drivers.redfish.manners import Manners
from drivers.redfish.media_request import ImageAddress, InsertRequest
from drivers.redfish.media_slots import Slot, candidates, holds, shows, slot_of, without_mirrors
from drivers.redfish.messages import Note
from protocol.errors import ErrorCode
from protocol.shapes.virtual_media import InsertMethod, MediaDevice
from simulators.redfish import Drop, Effect, FaultRule
from tests.drivers.redfish.harness import SYSTEM, Bench, bench, without_waiting

IMAGE = "http://192.0.2.1/images/debian.iso"
SLOT = "/redfish/v1/Managers/1/VirtualMedia/Cd"
INSERT, EJECT = "*/VirtualMedia.InsertMedia", "*/VirtualMedia.EjectMedia"


def refusal(key: str, text: str = "", related: list[str] | None = None) -> dict[str, Any]:
    note = {"MessageId": f"Base.1.12.{key}" if key else "", "Message": text, "RelatedProperties": related or []}
    return {"error": {"code": note["MessageId"], "@Message.ExtendedInfo": [note]}}


def bodies(bmc: Bench) -> list[Any]:
    return [entry.body for entry in bmc.bmc.journal.entries("POST", INSERT)]


async def without_actions(bmc: Bench) -> None:
    bmc.bmc.state.edit(SLOT, lambda document: document.pop("Actions"))


@without_waiting
async def test_an_image_is_inserted_seen_and_ejected() -> None:
    async with bench() as bmc:
        assert await bmc("virtual-media.insertMedia", {"image": IMAGE}) == {
            "slot": "Cd",
            "image": IMAGE,
            "changed": True,
        }
        assert bmc.bmc.state.media[SLOT].image == IMAGE
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["changed"] is False
        assert bodies(bmc) == [{"Image": IMAGE}]
        assert await bmc("virtual-media.ejectMedia") == {"ejected": ["Cd"]}
        assert not bmc.bmc.state.media[SLOT].inserted
        assert await bmc("virtual-media.ejectMedia") == {"ejected": []}
        assert len(bmc.requests("POST", EJECT)) == 1


@without_waiting
async def test_another_image_in_the_slot_is_ejected_first() -> None:
    async with bench() as bmc:
        await bmc("virtual-media.insertMedia", {"image": "http://192.0.2.1/old.iso"})
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["changed"] is True
        assert bmc.bmc.state.media[SLOT].image == IMAGE


@without_waiting
async def test_the_device_chooses_the_slot() -> None:
    async with bench() as bmc:
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE, "device": "usb"}))["slot"] == "USB"
        await bmc("virtual-media.insertMedia", {"image": IMAGE, "device": "cd"})
        assert await bmc("virtual-media.ejectMedia", {"device": "cd"}) == {"ejected": ["Cd"]}


@pytest.mark.case("B01")
@without_waiting
async def test_a_slot_without_actions_is_patched_with_its_tag() -> None:
    async with bench() as bmc:
        await without_actions(bmc)
        listed = {slot["id"]: slot["insertMethod"] for slot in (await bmc("virtual-media.listMedia"))["slots"]}
        assert listed["Cd"] == "patch"
        bmc.bmc.state.edit("/redfish/v1/Managers/1/VirtualMedia/USB", lambda d: d.update(MediaTypes=["USBStick"]))
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["slot"] == "Cd"
        (patch,) = bmc.bmc.journal.entries("PATCH", SLOT)
        assert patch.body == {"Image": IMAGE, "Inserted": True, "WriteProtected": True}
        assert "If-Match" in patch.headers
        await bmc("virtual-media.ejectMedia")
        assert bmc.bmc.journal.entries("PATCH", SLOT)[-1].body == {"Image": None, "Inserted": False}
        assert not bmc.bmc.state.media[SLOT].inserted


@pytest.mark.case("B02")
@without_waiting
async def test_the_first_attempt_sends_the_image_only() -> None:
    unknown = refusal("PropertyUnknown", related=["#/Inserted"])
    rules = [
        FaultRule(method="POST", path=INSERT, match_body={"Inserted": True}, status=400, body=unknown),
        FaultRule(method="POST", path=INSERT, match_body={"WriteProtected": True}, status=400, body=unknown),
    ]
    async with bench(faults=rules) as bmc:
        await bmc("virtual-media.insertMedia", {"image": IMAGE})
        assert bodies(bmc) == [{"Image": IMAGE}]


LADDER = {
    "the protocol, by related property": (
        refusal("PropertyMissing", related=["#/TransferProtocolType"]),
        {"TransferProtocolType": "HTTP"},
    ),
    "the protocol, without a hash": (
        refusal("ActionParameterMissing", related=["/TransferProtocolType"]),
        {"TransferProtocolType": "HTTP"},
    ),
    "the protocol, named in a general error": (
        refusal("GeneralError", "The parameter TransferProtocolType must be given."),
        {"TransferProtocolType": "HTTP"},
    ),
    "the method": (refusal("ActionParameterMissing", "TransferMethod is missing"), {"TransferMethod": "Stream"}),
    "a user, without an error code": (
        {
            "error": {
                "@Message.ExtendedInfo": [{"MessageId": "Base.1.5.ActionParameterMissing", "Message": "UserName"}]
            }
        },
        {"UserName": "anonymous", "Password": "(hidden)"},
    ),
    "the media type, beside no error": (
        {"MediaType@Message.ExtendedInfo": [{"MessageId": "Base.1.5.PropertyMissing", "Message": "missing"}]},
        {"MediaType": "CD"},
    ),
    "nothing that it names": (refusal("GeneralError", "A general error."), {"TransferProtocolType": "HTTP"}),
}


@pytest.mark.case("B03")
@pytest.mark.case("B04")
@pytest.mark.case("B05")
@pytest.mark.parametrize(("body", "added"), LADDER.values(), ids=LADDER.keys())
@without_waiting
async def test_what_a_bmc_misses_is_added(body: dict[str, Any], added: dict[str, Any]) -> None:
    async with bench(faults=[FaultRule(method="POST", path=INSERT, count=1, status=400, body=body)]) as bmc:
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["changed"] is True
        assert bodies(bmc) == [{"Image": IMAGE}, {"Image": IMAGE, **added}]


@pytest.mark.case("B03")
@without_waiting
async def test_the_ladder_ends_where_everything_was_tried_once() -> None:
    body = refusal("ActionParameterMissing", related=["#/TransferProtocolType"])
    async with bench(faults=[FaultRule(method="POST", path=INSERT, status=400, body=body)]) as bmc:
        error = await bmc.fails("virtual-media.insertMedia", {"image": IMAGE})
        assert error.code is ErrorCode.BMC_ERROR
        tried = [tuple(sorted(body)) for body in bodies(bmc)]
        assert len(tried) == len(set(tried))
        assert ("Image", "Inserted", "WriteProtected") in tried


@without_waiting
async def test_a_refusal_that_no_parameter_mends_is_not_tried_further() -> None:
    body = refusal("ResourceAtUriInUnknownFormat", "The image cannot be read.")
    async with bench(faults=[FaultRule(method="POST", path=INSERT, status=400, body=body)]) as bmc:
        error = await bmc.fails("virtual-media.insertMedia", {"image": IMAGE})
        assert len(bodies(bmc)) == 1
        assert "The image cannot be read." in str(error)


@pytest.mark.case("B04")
@without_waiting
async def test_a_user_and_password_of_the_image_go_their_own_way_and_into_no_error() -> None:
    secret = "Im4ge-S3cret"
    address = f"http://reader:{secret}@192.0.2.1/a.iso"
    async with bench() as bmc:
        result = await bmc("virtual-media.insertMedia", {"image": address})
        assert result["image"] == "http://192.0.2.1/a.iso"
        assert bodies(bmc) == [{"Image": "http://192.0.2.1/a.iso", "UserName": "reader", "Password": "(hidden)"}]
        bmc.bmc.faults.add(FaultRule(method="POST", path=INSERT, status=400, body=refusal("X", f"bad {secret}")))
        await bmc("virtual-media.ejectMedia")
        error = await bmc.fails("virtual-media.insertMedia", {"image": address})
        assert secret not in f"{error} {error.details} {error.bmc}"


SECOND = f"{SYSTEM}/VirtualMedia"


async def media_on_the_system_too(bmc: Bench, name: str) -> None:
    slot = dict(bmc.bmc.state.document(SLOT) or {})
    path = f"{SECOND}/{name}"
    slot |= {"@odata.id": path, "Id": name}
    slot["Actions"] = {
        f"#VirtualMedia.{verb}": {"target": f"{path}/Actions/VirtualMedia.{verb}"}
        for verb in ("InsertMedia", "EjectMedia")
    }
    bmc.bmc.state.put(path, slot)
    bmc.bmc.state.put(SECOND, {"@odata.id": SECOND, "@odata.type": "#VirtualMediaCollection.VirtualMediaCollection",
                               "Name": "Media", "Members": [{"@odata.id": path}]})  # fmt: skip
    bmc.bmc.state.patch(SYSTEM, {"VirtualMedia": {"@odata.id": SECOND}})


@pytest.mark.case("B07")
@without_waiting
async def test_slots_are_found_under_the_system_the_manager_and_both() -> None:
    async with bench() as bmc:
        assert [slot["id"] for slot in (await bmc("virtual-media.listMedia"))["slots"]] == ["Cd", "USB"]
        await media_on_the_system_too(bmc, "1")
        assert [slot["id"] for slot in (await bmc("virtual-media.listMedia"))["slots"]] == ["1", "Cd", "USB"]
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["slot"] == "1"
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["changed"] is False
        bmc.bmc.state.edit("/redfish/v1/Managers/1", lambda document: document.pop("VirtualMedia"))
        assert [slot["id"] for slot in (await bmc("virtual-media.listMedia"))["slots"]] == ["1"]


@pytest.mark.case("B07")
@without_waiting
async def test_one_collection_that_both_link_to_is_listed_once() -> None:
    async with bench() as bmc:
        own = {"@odata.id": "/redfish/v1/managers/1/VirtualMedia/"}
        bmc.bmc.state.patch(SYSTEM, {"VirtualMedia": own})
        assert [slot["id"] for slot in (await bmc("virtual-media.listMedia"))["slots"]] == ["Cd", "USB"]


@pytest.mark.case("B08")
@without_waiting
async def test_the_slot_that_takes_the_image_is_found_past_those_that_do_not() -> None:
    async with bench() as bmc:
        for name in ("1", "2", "3"):
            await media_on_the_system_too(bmc, name)
        members = [{"@odata.id": f"{SECOND}/{name}"} for name in ("3", "1", "2")]
        bmc.bmc.state.edit(SECOND, lambda document: document.update(Members=members))
        bmc.bmc.state.edit(f"{SECOND}/1", lambda document: document.pop("Actions"))
        bmc.bmc.faults.add(FaultRule(method="GET", path=f"{SECOND}/1", headers={"Allow": "GET, HEAD"}))
        bmc.bmc.faults.add(FaultRule(method="POST", path=f"{SECOND}/2/*", status=405))
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["slot"] == "3"


@pytest.mark.case("B08")
@without_waiting
async def test_where_no_slot_takes_it_every_attempt_is_told() -> None:
    async with bench(faults=[FaultRule(method="POST", path=INSERT, status=405)]) as bmc:
        bmc.bmc.state.edit("/redfish/v1/Managers/1/VirtualMedia/USB", lambda d: d.update(MediaTypes=["CD"]))
        error = await bmc.fails("virtual-media.insertMedia", {"image": IMAGE})
        assert error.details["slots"] == ["Cd", "USB"]
        assert "Cd:" in error.message
        assert "USB:" in error.message


@without_waiting
async def test_a_server_error_passes_and_is_looked_at_before_each_new_attempt() -> None:
    async with bench(faults=[FaultRule(method="POST", path=INSERT, count=2, status=500)]) as bmc:
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["changed"] is True
        assert len(bodies(bmc)) == 3
    async with bench(faults=[FaultRule(method="POST", path=INSERT, status=500, execute=True)]) as bmc:
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["changed"] is True
        assert len(bodies(bmc)) == 1


@pytest.mark.case("B28")
@pytest.mark.parametrize(("drop", "code"), [(Drop.AFTER, None), (Drop.BEFORE, ErrorCode.OUTCOME_UNKNOWN)])
@without_waiting
async def test_an_insertion_whose_answer_is_lost_is_settled_by_reading(drop: Drop, code: ErrorCode | None) -> None:
    async with bench(faults=[FaultRule(method="POST", path=INSERT, drop=drop)]) as bmc:
        if code is None:
            assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["changed"] is True
        else:
            assert (await bmc.fails("virtual-media.insertMedia", {"image": IMAGE})).code is code
        assert len(bodies(bmc)) == 1


@without_waiting
async def test_a_yes_that_the_slot_does_not_show_is_not_applied() -> None:
    async with bench(faults=[FaultRule(method="POST", path=INSERT, status=204)]) as bmc:
        error = await bmc.fails("virtual-media.insertMedia", {"image": IMAGE})
        assert error.code is ErrorCode.NOT_APPLIED
        assert "no image, not inserted" in error.message


@without_waiting
async def test_an_image_that_shows_late_is_waited_for() -> None:
    late = tuple(Effect(set={"/Inserted": False, "/Image": None}) for _ in range(6))
    async with bench(faults=[FaultRule(method="GET", path=SLOT, sequence=late)]) as bmc:
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["image"] == IMAGE


@pytest.mark.case("B10")
@pytest.mark.parametrize("status", [400, 415])
@without_waiting
async def test_an_eject_without_a_body_that_is_refused_is_sent_with_an_empty_one(status: int) -> None:
    async with bench() as bmc:
        await bmc("virtual-media.insertMedia", {"image": IMAGE})
        bmc.bmc.faults.add(FaultRule(method="POST", path=EJECT, count=1, status=status))
        assert await bmc("virtual-media.ejectMedia") == {"ejected": ["Cd"]}
        assert [entry.body for entry in bmc.bmc.journal.entries("POST", EJECT)] == [None, {}]


@pytest.mark.case("B10")
@pytest.mark.parametrize("status", [400, 404, 409, 500])
@without_waiting
async def test_a_refused_eject_of_a_slot_that_is_empty_by_now_is_success(status: int) -> None:
    async with bench() as bmc:
        await bmc("virtual-media.insertMedia", {"image": IMAGE})
        bmc.bmc.faults.add(FaultRule(method="POST", path=EJECT, status=status, execute=True))
        assert await bmc("virtual-media.ejectMedia") == {"ejected": ["Cd"]}
        assert len(bmc.requests("POST", EJECT)) == 1


@pytest.mark.parametrize("image", ["", "debian.iso", "file:///etc/passwd", "http://", "http://192.0.2.1", "ftp:x"])
@without_waiting
async def test_an_image_that_is_no_address_is_refused_before_anything_is_sent(image: str) -> None:
    async with bench() as bmc:
        assert (await bmc.fails("virtual-media.insertMedia", {"image": image})).code is ErrorCode.INVALID_ARGUMENT
        assert bmc.requests("POST") == []


def slot(path: str, document: dict[str, Any] | None = None, allow: tuple[str, ...] = (), **manners: Any) -> Slot:
    return slot_of(path, document or {}, allow, Manners(**manners))


def test_the_ways_into_a_slot_are_told_apart() -> None:
    action = {"Actions": {"#VirtualMedia.InsertMedia": {"target": "/x"}}}
    assert slot("/a", action).method is InsertMethod.ACTION
    assert slot("/a", {}, ("GET, PATCH",)).method is InsertMethod.PATCH
    assert slot("/a", {}, ("GET, HEAD",)).method is InsertMethod.NONE
    assert slot("/a", {}).method is InsertMethod.UNKNOWN
    assert slot("/a", {"Id": "RDOC1"}, ("PATCH",), upload_slots="^RDOC").method is InsertMethod.UPLOAD


@pytest.mark.parametrize("image", [None, "", "None", "null"])
def test_no_image_is_said_in_many_ways(image: str | None) -> None:
    assert slot("/a", {"Image": image}).image is None
    assert not slot("/a", {"Image": image}).inserted


def test_connected_decides_where_the_vendor_s_inserted_lies() -> None:
    document = {"Inserted": True, "Image": "http://x/a.iso", "ConnectedVia": "NotConnected"}
    assert slot("/a", document).inserted
    assert not slot("/a", document, connected_tells=True).inserted


def test_a_collection_that_mirrors_another_is_left_out() -> None:
    one = [slot("/s/EXT1", {"Id": "EXT1"}), slot("/s/EXT2", {"Id": "EXT2"})]
    other = [slot("/m/EXT2", {"Id": "EXT2"}), slot("/m/EXT1", {"Id": "EXT1"})]
    assert without_mirrors([one, other]) == one
    assert len(without_mirrors([one, [slot("/m/CD", {"Id": "CD"})]])) == 3


def test_slots_are_tried_in_the_order_of_their_numbers() -> None:
    action = {"Actions": {"#VirtualMedia.InsertMedia": {"target": "/x"}}, "MediaTypes": ["CD"]}
    slots = [slot(f"/s/{name}", {**action, "Id": name}) for name in ("10", "2", "1")]
    assert [s.id for s in candidates(slots, MediaDevice.CD)] == ["1", "2", "10"]
    assert candidates(slots, MediaDevice.FLOPPY) == []


def test_a_rewritten_address_is_known_by_its_file_after_an_insertion_only() -> None:
    rewritten = slot("/a", {"Inserted": True, "Image": "\\\\192.0.2.1\\images\\Debian.iso"})
    assert shows(rewritten, "smb://192.0.2.1/images/debian.iso")
    assert not shows(rewritten, "smb://192.0.2.1/images/other.iso")
    assert not holds(rewritten, "smb://192.0.2.1/images/debian.iso")


def test_two_images_of_one_name_are_two_images() -> None:
    one = slot("/a", {"Inserted": True, "Image": "http://192.0.2.1/node-1/boot.iso"})
    assert holds(one, "HTTP://192.0.2.1:80/node-1/boot.iso")
    assert not holds(one, "http://192.0.2.1/node-2/boot.iso")
    assert not shows(one, "http://192.0.2.1/node-2/boot.iso")
    assert shows(slot("/a", {"Inserted": True, "Image": None}), IMAGE)


@without_waiting
async def test_a_task_that_fails_ends_the_wait_with_its_own_words() -> None:
    task = "/redfish/v1/TaskService/Tasks/7"
    ended = {
        "@odata.id": task,
        "@odata.type": "#Task.v1_7_0.Task",
        "TaskState": "Exception",
        "Messages": [{"MessageId": "VRM.1.0.0012", "Message": "The remote file cannot be reached."}],
    }
    rule = FaultRule(method="POST", path=INSERT, status=202, body={"@odata.id": task}, headers={"Location": task})
    clock = asyncio.get_running_loop().time
    async with bench(faults=[rule]) as bmc:
        bmc.bmc.state.put(task, ended)
        started = clock()
        error = await bmc.fails("virtual-media.insertMedia", {"image": IMAGE})
        assert error.code is ErrorCode.NOT_APPLIED
        assert "The remote file cannot be reached." in str(error)
        assert clock() - started < 10


def test_a_parameter_that_turns_out_unknown_is_taken_out_again() -> None:
    request = InsertRequest(ImageAddress.parse(IMAGE), slot("/a"), MediaDevice.CD)
    assert request.after_refusal([Note("X.1.0.ActionParameterMissing", "TransferMethod")])
    assert request.after_refusal([Note("X.1.0.ActionParameterUnknown", "TransferMethod")])
    assert request.body == {"Image": IMAGE}
