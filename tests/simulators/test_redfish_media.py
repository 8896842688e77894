"""Virtual media: insert and eject by action and by PATCH, and what a wrong request gets."""

import pytest

from simulators.redfish import PowerState
from tests.simulators.conftest import CD, SYSTEM, Start

INSERT = f"{CD}/Actions/VirtualMedia.InsertMedia"
EJECT = f"{CD}/Actions/VirtualMedia.EjectMedia"
IMAGE = "https://images.example/ramdisk/boot.iso?sig=1"


async def test_an_inserted_image_is_shown_and_seen_by_the_next_start(start: Start) -> None:
    bmc = await start()

    reply = await bmc.post(INSERT, {"Image": IMAGE, "UserName": "reader", "Password": "s3cr3t-image"})
    await bmc.reset("ForceRestart")

    assert reply.status == 204
    slot = (await bmc.get(CD)).data
    assert (slot["Image"], slot["ImageName"], slot["Inserted"]) == (IMAGE, "boot.iso", True)
    assert (slot["ConnectedVia"], slot["WriteProtected"], slot["UserName"]) == ("URI", True, "reader")
    assert slot["Password"] is None
    assert bmc.server.state.boots[0].media == {CD: IMAGE}


@pytest.mark.case("B59")
async def test_an_ejected_image_is_gone(start: Start) -> None:
    bmc = await start()
    await bmc.post(INSERT, {"Image": IMAGE})

    assert (await bmc.post(EJECT, {})).status == 204

    slot = (await bmc.get(CD)).data
    assert (slot["Image"], slot["Inserted"], slot["ConnectedVia"]) == (None, False, "NotConnected")


async def test_an_eject_without_a_body_is_accepted_where_no_vendor_says_otherwise(start: Start) -> None:
    bmc = await start()
    await bmc.post(INSERT, {"Image": IMAGE})

    assert (await bmc.post(EJECT)).status == 204
    assert not bmc.server.state.media[CD].inserted


async def test_a_second_image_is_refused_while_one_is_inserted(start: Start) -> None:
    bmc = await start()
    await bmc.post(INSERT, {"Image": IMAGE})

    reply = await bmc.post(INSERT, {"Image": "http://images.example/other.iso"})

    assert reply.status == 409
    assert reply.message_ids == ["ResourceInUse"]
    assert bmc.server.state.media[CD].image == IMAGE


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "ActionParameterMissing"),
        ({"Image": ""}, "ActionParameterMissing"),
        ({"Image": 7}, "ActionParameterValueTypeError"),
        ({"Image": IMAGE, "Speed": "fast"}, "ActionParameterUnknown"),
    ],
)
async def test_a_wrong_insert_is_refused(start: Start, body: object, message: str) -> None:
    bmc = await start()

    reply = await bmc.post(INSERT, body)

    assert reply.status == 400
    assert reply.message_ids == [message]
    assert not bmc.server.state.media[CD].inserted


async def test_a_slot_with_actions_does_not_take_its_image_by_patch(start: Start) -> None:
    bmc = await start()

    reply = await bmc.patch(CD, {"Image": IMAGE, "Inserted": True})

    assert reply.status == 405
    assert reply.headers["Allow"] == "GET, HEAD"


async def test_a_slot_without_actions_takes_its_image_by_patch(start: Start) -> None:
    bmc = await start()
    bmc.server.state.edit(CD, lambda document: document.pop("Actions"))

    slot = await bmc.get(CD)
    inserted = await bmc.patch(CD, {"Image": IMAGE, "Inserted": True, "WriteProtected": True})
    ejected = await bmc.patch(CD, {"Image": None, "Inserted": False})

    assert slot.headers["Allow"] == "GET, HEAD, PATCH"
    assert (inserted.status, inserted.data["Image"], inserted.data["Inserted"]) == (200, IMAGE, True)
    assert (ejected.status, ejected.data["Image"], ejected.data["Inserted"]) == (200, None, False)
    assert (await bmc.post(INSERT, {"Image": IMAGE})).status == 404


async def test_media_survive_a_power_cycle_of_the_host(start: Start) -> None:
    bmc = await start()
    await bmc.post(INSERT, {"Image": IMAGE})

    await bmc.reset("PowerCycle")

    assert bmc.server.state.power(SYSTEM) is PowerState.ON
    assert bmc.server.state.media[CD].image == IMAGE
