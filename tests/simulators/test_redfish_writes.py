"""Writes as DSP0266 has them: entity tags, methods, headers, and PATCH of what is writable and what is not."""

import asyncio

import pytest

from simulators.redfish import ServiceOptions
from tests.simulators.conftest import RESET, SYSTEM, Start

NETWORK = "/redfish/v1/Managers/1/NetworkProtocol"


async def test_each_write_gives_a_resource_a_fresh_etag(start: Start) -> None:
    bmc = await start()
    first = (await bmc.get(SYSTEM)).headers["ETag"]

    patched = await bmc.patch(SYSTEM, {"AssetTag": "rack-7"}, headers={"If-Match": first})
    stale = await bmc.patch(SYSTEM, {"AssetTag": "rack-8"}, headers={"If-Match": first})
    read = await bmc.get(SYSTEM)

    assert patched.status == 200
    assert patched.headers["ETag"] == read.headers["ETag"] != first
    assert stale.status == 412
    assert stale.message_ids == ["PreconditionFailed"]
    assert read.data["AssetTag"] == "rack-7"


async def test_of_many_conditional_writes_at_once_exactly_one_wins(start: Start) -> None:
    bmc = await start()
    etag = (await bmc.get(SYSTEM)).headers["ETag"]

    replies = await asyncio.gather(
        *(bmc.patch(SYSTEM, {"AssetTag": f"writer-{n}"}, headers={"If-Match": etag}) for n in range(8))
    )

    assert sorted(reply.status for reply in replies) == [200] + [412] * 7


async def test_an_unchanged_resource_is_not_sent_again(start: Start) -> None:
    bmc = await start()
    etag = (await bmc.get(SYSTEM)).headers["ETag"]

    reply = await bmc.get(SYSTEM, headers={"If-None-Match": etag})

    assert reply.status == 304
    assert reply.body == b""


async def test_a_service_may_demand_an_etag(start: Start) -> None:
    bmc = await start(options=ServiceOptions(require_etag=True))

    bare = await bmc.patch(SYSTEM, {"AssetTag": "x"})
    starred = await bmc.patch(SYSTEM, {"AssetTag": "x"}, headers={"If-Match": "*"})

    assert bare.status == 428
    assert starred.status == 200


async def test_an_etag_on_an_action_is_not_looked_at(start: Start) -> None:
    bmc = await start()

    reply = await bmc.post(RESET, {"ResetType": "ForceOff"}, headers={"If-Match": '"stale"'})

    assert reply.status == 204


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", SYSTEM, "GET, HEAD, PATCH"),
        ("POST", SYSTEM, "GET, HEAD, PATCH"),
        ("PUT", SYSTEM, "GET, HEAD, PATCH"),
        ("PATCH", "/redfish/v1/Systems", "GET, HEAD"),
        ("POST", "/redfish/v1/", "GET, HEAD"),
        ("GET", RESET, "POST"),
        ("DELETE", "/redfish/v1/SessionService/Sessions", "GET, HEAD, POST"),
    ],
)
async def test_a_method_that_is_not_allowed_is_told_which_are(
    start: Start, method: str, path: str, allow: str
) -> None:
    bmc = await start()

    reply = await bmc.request(method, path, {} if method in ("PUT", "PATCH", "POST") else None)

    assert reply.status == 405
    assert reply.headers["Allow"] == allow


async def test_options_and_head_tell_the_same_as_get(start: Start) -> None:
    bmc = await start()

    read = await bmc.get(SYSTEM)
    headed = await bmc.request("HEAD", SYSTEM)
    options = await bmc.request("OPTIONS", SYSTEM)

    assert headed.status == 200
    assert headed.body == b""
    assert headed.headers["ETag"] == read.headers["ETag"]
    assert headed.headers["Content-Length"] == str(len(read.body))
    assert options.status == 204
    assert options.headers["Allow"] == read.headers["Allow"]


async def test_a_method_that_http_does_not_know_is_not_implemented(start: Start) -> None:
    bmc = await start()

    reply = await bmc.request("BREW", SYSTEM)

    assert reply.status == 501
    assert "error" in reply.data


async def test_every_answer_carries_the_headers_that_redfish_demands(start: Start) -> None:
    bmc = await start()

    read = await bmc.get(SYSTEM)
    missing = await bmc.get("/redfish/v1/Nowhere")

    assert read.headers["OData-Version"] == "4.0"
    assert read.headers["Cache-Control"] == "no-cache"
    assert read.headers["Link"].endswith("ComputerSystem.v1_22_2.json>; rel=describedby")
    assert read.headers["Content-Type"] == "application/json; charset=utf-8"
    assert missing.status == 404
    assert missing.headers["OData-Version"] == "4.0"
    assert missing.message_ids == ["ResourceMissingAtURI"]


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"a=b", "application/x-www-form-urlencoded", 415),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(
    start: Start, content: bytes, content_type: str, status: int
) -> None:
    bmc = await start()

    reply = await bmc.request("PATCH", SYSTEM, data=content, headers={"Content-Type": content_type})

    assert reply.status == status


async def test_a_wrong_odata_version_is_refused(start: Start) -> None:
    bmc = await start()

    assert (await bmc.get(SYSTEM, headers={"OData-Version": "4.1"})).status == 412


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "EmptyJSON"),
        ({"@odata.id": "/x"}, "NoOperation"),
        ({"Bogus": 1}, "PropertyUnknown"),
        ({"PowerState": "Off"}, "PropertyNotWritable"),
        ({"SerialNumber": "1"}, "PropertyNotWritable"),
        ({"AssetTag": 5}, "PropertyValueTypeError"),
        ({"IndicatorLED": "Purple"}, "PropertyValueNotInList"),
        ({"Boot": {"Bogus": 1}}, "PropertyUnknown"),
    ],
)
async def test_a_patch_that_changes_nothing_says_why(start: Start, body: object, message: str) -> None:
    bmc = await start()
    before = await bmc.get(SYSTEM)

    reply = await bmc.patch(SYSTEM, body)

    assert reply.status == 400
    assert reply.message_ids == [message]
    assert (await bmc.get(SYSTEM)).headers["ETag"] == before.headers["ETag"]


async def test_a_patch_that_changes_a_part_names_the_rest(start: Start) -> None:
    bmc = await start()

    reply = await bmc.patch(SYSTEM, {"AssetTag": "rack-9", "Bogus": 1, "PowerState": "Off"})

    assert reply.status == 200
    assert reply.data["AssetTag"] == "rack-9"
    assert reply.data["PowerState"] == "On"
    assert [entry["MessageArgs"] for entry in reply.data["@Message.ExtendedInfo"]] == [["Bogus"], ["PowerState"]]


async def test_arrays_are_patched_element_by_element(start: Start) -> None:
    bmc = await start()

    reply = await bmc.patch(NETWORK, {"NTP": {"NTPServers": [{}, None, "192.0.2.99"]}})

    assert reply.data["NTP"]["NTPServers"] == ["192.0.2.10", "192.0.2.99"]


async def test_indicator_lights_are_set_on_system_chassis_and_drive(start: Start) -> None:
    bmc = await start()

    for path in (SYSTEM, "/redfish/v1/Chassis/1", f"{SYSTEM}/Storage/RAID1/Drives/Disk1"):
        reply = await bmc.patch(path, {"LocationIndicatorActive": True})
        assert (reply.status, reply.data["LocationIndicatorActive"]) == (200, True)


async def test_a_cleared_log_is_empty(start: Start) -> None:
    bmc = await start()
    log = f"{SYSTEM}/LogServices/SEL"

    reply = await bmc.post(f"{log}/Actions/LogService.ClearLog", {})

    assert reply.status == 204
    entries = (await bmc.get(f"{log}/Entries")).data
    assert (entries["Members"], entries["Members@odata.count"]) == ([], 0)
    assert (await bmc.get(f"{log}/Entries/1")).status == 404
