"""The simulated event service: streams that stay open, words that are asked for or refused, and slots."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from simulators.redfish import RedfishServer, ServiceOptions
from tests.simulators.conftest import SYSTEM, RedfishClient, Start, basic

EVENTS = "/redfish/v1/EventService"
SUBSCRIPTIONS = f"{EVENTS}/Subscriptions"
STREAM = f"{EVENTS}/SSE"
BODY = {"Destination": "https://192.0.2.7/events", "Protocol": "Redfish"}


@contextlib.asynccontextmanager
async def listening(bmc: RedfishClient, query: str = "", **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """An open stream, its first comment read."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{bmc.server.url}{STREAM}{query}", headers={**basic(), **headers}) as answer,
    ):
        if answer.status == 200:
            assert (await answer.content.readline()).startswith(b":")
            assert await answer.content.readline() == b"\n"
        yield answer


async def event(stream: aiohttp.ClientResponse) -> tuple[int, dict[str, Any]]:
    """The next event: its id and its one record."""
    number = (await stream.content.readline()).removeprefix(b"id: ")
    data = (await stream.content.readline()).removeprefix(b"data: ")
    assert await stream.content.readline() == b"\n"
    return int(number), msgspec.json.decode(data)["Events"][0]


async def test_a_stream_tells_of_power_and_health_as_they_change(start: Start) -> None:
    bmc = await start()
    async with listening(bmc) as stream:
        assert stream.content_type == "text/event-stream"
        await bmc.reset("ForceOff")
        first, power = await event(stream)
        bmc.server.state.set_health("Critical")
        second, health = await event(stream)

    assert power["MessageId"] == "ResourceEvent.1.3.ResourcePoweredOff"
    assert power["OriginOfCondition"] == {"@odata.id": SYSTEM}
    assert (health["MessageId"], health["Severity"]) == (
        "ResourceEvent.1.3.ResourceStatusChangedCritical",
        "Critical",
    )
    assert second == first + 1


async def test_a_stream_is_a_subscription_while_it_lasts(start: Start) -> None:
    bmc = await start()
    async with listening(bmc):
        members = (await bmc.get(SUBSCRIPTIONS)).data["Members"]
        document = (await bmc.get(members[0]["@odata.id"])).data
        assert document["SubscriptionType"] == "SSE"

    async with asyncio.timeout(10):
        while (await bmc.get(SUBSCRIPTIONS)).data["Members"]:
            await asyncio.sleep(0.01)


async def test_who_deletes_the_subscription_ends_the_stream(start: Start) -> None:
    bmc = await start()
    async with listening(bmc) as stream:
        members = (await bmc.get(SUBSCRIPTIONS)).data["Members"]
        assert (await bmc.delete(members[0]["@odata.id"])).status == 204

        assert await stream.content.read() == b""


async def test_a_listener_that_comes_back_is_told_what_it_missed(start: Start) -> None:
    bmc = await start()
    async with listening(bmc) as stream:
        await bmc.reset("ForceOff")
        number, _ = await event(stream)
    await bmc.reset("On")

    async with listening(bmc, **{"Last-Event-ID": str(number)}) as stream:
        _, missed = await event(stream)

    assert missed["MessageId"].endswith("ResourcePoweredOn")


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("?$filter=EventFormatType%20eq%20Event", {}, 200),
        ("?$filter=Colour%20eq%20Red", {}, 400),
        ("", {"Accept": "application/json"}, 406),
        ("", {"Authorization": "Basic bm9ib2R5Om5vYm9keQ=="}, 401),
    ],
)
async def test_a_stream_is_opened_for_who_may_listen(
    start: Start, query: str, headers: dict[str, str], status: int
) -> None:
    bmc = await start()
    async with listening(bmc, query, **headers) as stream:
        assert stream.status == status


async def test_a_stopped_server_ends_its_streams() -> None:
    async with RedfishServer() as server, RedfishClient(server) as bmc, listening(bmc) as stream:
        await server.stop()
        with contextlib.suppress(aiohttp.ClientError):
            assert await stream.content.read() == b""


@pytest.mark.parametrize(
    ("tree", "body", "status"),
    [
        ("hpe-dl385-ilo5", {**BODY, "EventTypes": ["Alert"]}, 201),
        ("hpe-dl385-ilo5", BODY, 400),
        ("hpe-dl385-ilo5", {**BODY, "EventTypes": ["Weather"]}, 400),
        ("hpe-dl380a-ilo6", {**BODY, "EventTypes": ["Alert"]}, 400),
        ("hpe-dl380a-ilo6", BODY, 201),
    ],
)
async def test_event_types_are_asked_for_where_they_are_listed_and_refused_where_not(
    start: Start, shared: Path, tree: str, body: object, status: int
) -> None:
    bmc = await start(shared / "mockups" / tree)

    assert (await bmc.post(SUBSCRIPTIONS, body)).status == status


async def test_there_are_no_more_subscriptions_than_slots(start: Start) -> None:
    bmc = await start(options=ServiceOptions(max_subscriptions=1))

    assert (await bmc.post(SUBSCRIPTIONS, BODY)).status == 201
    full = await bmc.post(SUBSCRIPTIONS, BODY)

    assert (full.status, full.message_ids) == (503, ["EventSubscriptionLimitExceeded"])


async def test_the_control_resource_switches_the_machine(start: Start) -> None:
    bmc = await start(control=True)

    switched = await bmc.post("/_simulator/state", {"power": "Off", "health": "Warning"})
    refused = await bmc.post("/_simulator/state", {"power": "Sideways"})

    assert switched.data["power"] == {SYSTEM: "Off"}
    assert (await bmc.get(SYSTEM)).data["Status"]["Health"] == "Warning"
    assert refused.status == 400
