"""Vendor behaviour over the recorded trees: how each wants its media, its entity tags and its boot target."""

from pathlib import Path

import pytest

from simulators.redfish import Behaviour, RedfishServer
from simulators.redfish.errors import general_error
from simulators.redfish.routes import Call
from tests.simulators.conftest import SYSTEM, Start

IMAGE = "http://images.example/boot.iso"


@pytest.mark.case("B01")
async def test_lenovo_takes_media_by_patch_with_an_etag(start: Start, shared: Path) -> None:
    bmc = await start(shared / "mockups" / "lenovo-sr670v2-xcc")
    slot, twin = (f"/redfish/v1/{owner}/1/VirtualMedia/EXT1" for owner in ("Managers", "Systems"))
    body = {"Image": IMAGE, "Inserted": True, "WriteProtected": True}

    read = await bmc.get(slot)
    bare = await bmc.patch(slot, body)
    inserted = await bmc.patch(slot, body, headers={"If-Match": read.headers["ETag"]})
    stale = await bmc.patch(slot, {"Image": None}, headers={"If-Match": read.headers["ETag"]})
    seen_at_system = (await bmc.get(twin)).data["Image"]
    ejected = await bmc.patch(
        slot, {"Image": None, "Inserted": False}, headers={"If-Match": inserted.headers["ETag"]}
    )

    assert read.headers["Allow"] == "GET, HEAD, PATCH"
    assert (bare.status, inserted.status, stale.status, ejected.status) == (428, 200, 412, 200)
    assert inserted.data["Image"] == seen_at_system == IMAGE
    assert (ejected.data["Image"], ejected.data["Inserted"]) == (None, False)


async def test_lenovo_upload_slots_take_no_url(start: Start, shared: Path) -> None:
    bmc = await start(shared / "mockups" / "lenovo-sr670v2-xcc")

    reply = await bmc.patch(
        "/redfish/v1/Managers/1/VirtualMedia/RDOC1", {"Image": IMAGE, "Inserted": True}, headers={"If-Match": "*"}
    )

    assert reply.status == 400


@pytest.mark.case("B02")
async def test_supermicro_inserts_an_image_only_and_then_offers_eject(start: Start, shared: Path) -> None:
    bmc = await start(shared / "mockups" / "supermicro-821ge")
    slot = "/redfish/v1/Managers/1/VirtualMedia/VirtualMedia1"
    insert, eject = (f"{slot}/Actions/VirtualMedia.{name}" for name in ("InsertMedia", "EjectMedia"))

    too_much = await bmc.post(insert, {"Image": IMAGE, "Inserted": True, "WriteProtected": True})
    no_eject_yet = await bmc.post(eject, {})
    inserted = await bmc.post(insert, {"Image": IMAGE})
    offered = (await bmc.get(slot)).data["Actions"]
    ejected = await bmc.post(eject, {})
    gone = (await bmc.get(slot)).data["Actions"]

    assert too_much.status == 400
    assert too_much.message_ids == ["ActionParameterUnknown", "ActionParameterUnknown"]
    assert no_eject_yet.status == 404
    assert (inserted.status, ejected.status) == (204, 204)
    assert offered["#VirtualMedia.EjectMedia"]["target"] == eject
    assert "#VirtualMedia.EjectMedia" not in gone


async def test_supermicro_falls_back_to_once_without_enabled(start: Start, shared: Path) -> None:
    bmc = await start(shared / "mockups" / "supermicro-821ge")
    await bmc.patch(SYSTEM, {"Boot": {"BootSourceOverrideEnabled": "Continuous", "BootSourceOverrideTarget": "Pxe"}})

    reply = await bmc.patch(SYSTEM, {"Boot": {"BootSourceOverrideTarget": "UsbCd"}})

    assert reply.status == 200
    assert reply.data["Boot"]["BootSourceOverrideEnabled"] == "Once"


@pytest.mark.case("B10")
@pytest.mark.parametrize("tree", ["hpe-dl385-ilo5", "hpe-dl380a-ilo6"])
async def test_hpe_ejects_with_a_body_and_only_what_is_inserted(start: Start, shared: Path, tree: str) -> None:
    bmc = await start(shared / "mockups" / tree)
    slot = "/redfish/v1/Managers/1/VirtualMedia/2"
    insert, eject = (f"{slot}/Actions/VirtualMedia.{name}" for name in ("InsertMedia", "EjectMedia"))

    inserted = await bmc.post(insert, {"Image": IMAGE})
    bare = await bmc.post(eject)
    ejected = await bmc.post(eject, {})
    again = await bmc.post(eject, {})

    assert (inserted.status, bare.status, ejected.status, again.status) == (204, 415, 204, 400)
    assert (await bmc.get(slot)).data["Image"] == "", "iLO writes no image as an empty string"


@pytest.mark.case("B25")
@pytest.mark.parametrize(("tree", "status"), [("hpe-dl385-ilo5", 400), ("dell-r750-idrac9-6.00", 409)])
async def test_a_redundant_reset_is_an_error_of_the_vendor(
    start: Start, shared: Path, tree: str, status: int
) -> None:
    bmc = await start(shared / "mockups" / tree)
    system = bmc.server.state.systems[0]
    target = (bmc.server.state.document(system) or {})["Actions"]["#ComputerSystem.Reset"]["target"]

    reply = await bmc.reset("On", target)

    assert reply.status == status
    assert bmc.server.state.resets == []


async def test_a_behaviour_can_be_chosen_by_name_over_any_tree(start: Start) -> None:
    bmc = await start(behaviour="hpe-ilo")

    assert (await bmc.reset("On")).status == 400


def test_an_unknown_behaviour_lists_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="choose one of: dell-idrac, generic, hpe-ilo, lenovo-xcc, supermicro"):
        RedfishServer(behaviour="commodore")


async def test_a_behaviour_of_a_test_may_veto_and_alter_a_write_and_its_read_back(start: Start) -> None:
    class Moody(Behaviour):
        def before_write(self, call: Call) -> None:
            if call.action:
                raise general_error(500, "not today")
            call.body["AssetTag"] = str(call.body["AssetTag"]).upper()

        def on_change(self, path: str, document: dict[str, object]) -> None:
            document["Seen"] = True

    bmc = await start(behaviour=Moody())

    patched = await bmc.patch(SYSTEM, {"AssetTag": "rack"})
    vetoed = await bmc.reset("ForceOff")

    assert (patched.data["AssetTag"], patched.data["Seen"]) == ("RACK", True)
    assert vetoed.status == 500
    assert bmc.server.state.resets == []
