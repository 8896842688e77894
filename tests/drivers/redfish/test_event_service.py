"""The watch over a Redfish BMC: looks, event streams, subscriptions, and what vendors' events mean."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.redfish.bmc_events import events_in, events_of, moment_of
from drivers.redfish.event_service import offer_of
from drivers.redfish.event_stream import LARGEST_EVENT, LONGEST_RETRY, EventStream, StreamedEvent
from drivers.redfish.messages import Note
from drivers.redfish.subscription import amended, first_words
from drivers.signals import BmcEvent, EventKind, EventOffer, Glance, Listener, Signal
from drivers.watch import Watch
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.management import Health
from protocol.shapes.power import PowerState
from simulators.redfish import FaultRule, ServiceOptions
from simulators.redfish.faults import Drop, Effect
from tests.drivers.redfish.harness import SESSIONS, SYSTEM, Bench, bench, without_waiting
from tests.drivers.redfish.test_mockups import TREES

EVENTS = "/redfish/v1/EventService"
SUBSCRIPTIONS = f"{EVENTS}/Subscriptions"
STREAM = f"{EVENTS}/SSE"
LISTENER = Listener("https://192.0.2.7:8444/events/t0ken", "rackwright node_1")
PLAIN = Listener("http://192.0.2.7:8444/events/t0ken", "rackwright node_1")


def watch_of(it: Bench) -> Watch:
    return Watch(it.drivers, it.target)


async def look(it: Bench) -> Glance:
    return await watch_of(it).look(20)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def opened(signals: AsyncGenerator[Signal, None]) -> None:
    """Waits for the sign that the stream is open."""
    assert (await anext(signals)).events == ()


# Looks


async def test_a_look_tells_power_and_health_for_one_request() -> None:
    async with bench() as it:
        await look(it)
        it.bmc.journal.clear()

        found = await look(it)

        assert found == Glance(PowerState.ON, Health.OK, "On")
        assert it.requests() == [SYSTEM]


@pytest.mark.case("B23")
@without_waiting
async def test_b23_what_is_between_two_states_is_never_told_as_off() -> None:
    async with bench() as it:
        await look(it)
        words = (None, "Reset", "PoweringOn", "On")
        shown = tuple(Effect(set={"/PowerState": word}) for word in words)
        it.bmc.faults.add(FaultRule(method="GET", path="*/Systems/1", sequence=shown))

        told = [(await look(it)).power for _ in range(4)]

        assert told == [PowerState.UNKNOWN, PowerState.UNKNOWN, PowerState.POWERING_ON, PowerState.ON]


async def test_a_busy_bmc_is_not_asked_again_and_says_how_long_it_wants_to_be_left_alone() -> None:
    async with bench() as it:
        await look(it)
        it.bmc.journal.clear()
        it.bmc.faults.add(FaultRule(path="*/Systems/1", status=503, headers={"Retry-After": "77"}))

        with pytest.raises(OperationError) as raised:
            await look(it)

        assert (raised.value.code, raised.value.details["retryAfter"]) == (ErrorCode.BUSY, 77.0)
        assert it.requests() == [SYSTEM]


async def test_a_look_that_fails_repeats_no_secret() -> None:
    async with bench() as it:
        await look(it)
        said = {"error": {"code": "Base.1.0.GeneralError", "message": f"no, not with {it.target.secret.reveal()}"}}
        it.bmc.faults.add(FaultRule(path="*/Systems/1", status=500, body=said))

        with pytest.raises(OperationError) as raised:
            await look(it)

        assert it.target.secret.reveal() not in str(raised.value)


@pytest.mark.parametrize("tree", TREES)
async def test_a_look_and_the_offer_are_what_the_tree_holds(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as it:
        found = await look(it)
        offer = await watch_of(it).event_offer(20)

        connection = it.drivers.connections.get(await it.drivers.driver_for(it.target), it.target)
        path = str(connection.service.system_path)  # type: ignore[attr-defined]
        system = _recorded(shared / "mockups" / tree, path)
        status = system.get("Status") or {}
        word = status.get("HealthRollup") or status.get("Health")
        assert found.raw == system.get("PowerState")
        assert found.health.value == (word or "unknown").lower()
        root = _recorded(shared / "mockups" / tree, "/redfish/v1")
        service = root.get("EventService")
        recorded = _recorded(shared / "mockups" / tree, service["@odata.id"]) if service else {}
        if not recorded or recorded.get("ServiceEnabled") is False:
            assert offer == EventOffer()
        else:
            assert offer.subscriptions == recorded["Subscriptions"]["@odata.id"]
            stream = recorded.get("ServerSentEventUri")
            assert (offer.stream or "").partition("?")[0] == (stream or "")


def _recorded(tree: Path, path: str) -> dict[str, Any]:
    """A resource of the tree, by the simplest reading there is; folders may differ in case (HPE)."""
    folder = tree
    for step in path.strip("/").split("/"):
        folder = next(child for child in folder.iterdir() if child.name.lower() == step.lower())
    found: dict[str, Any] = json.loads((folder / "index.json").read_text())
    return found


# Streams


async def test_a_stream_tells_what_happens_and_uses_the_one_session() -> None:
    async with bench(options=ServiceOptions(max_sessions=1)) as it:
        signals = watch_of(it).listen(STREAM, None, 20)
        async with contextlib.aclosing(signals):
            await opened(signals)
            it.bmc.state.set_power("Off")
            told = await anext(signals)
            during = await look(it)

        assert [event.kind for event in told.events] == [EventKind.POWER]
        assert told.events[0].origin == SYSTEM
        assert during.power is PowerState.OFF
        assert len(it.requests("POST", SESSIONS)) == 1
        await until(lambda: not it.bmc.service.events.streams.open)


async def test_an_operation_does_not_wait_for_the_stream() -> None:
    async with bench() as it:
        signals = watch_of(it).listen(STREAM, None, 20)
        async with contextlib.aclosing(signals):
            await opened(signals)

            assert (await it("power.setPower", {"action": "off"}))["state"] == "off"
            assert [event.kind for event in (await anext(signals)).events] == [EventKind.POWER]


@without_waiting
async def test_a_session_lives_as_long_as_its_stream_and_ends_after_it() -> None:
    async with bench() as it:
        signals = watch_of(it).listen(STREAM, None, 20)
        async with contextlib.aclosing(signals):
            await opened(signals)
            await asyncio.sleep(600)
            assert len(it.bmc.state.open_sessions) == 1

        await asyncio.sleep(130)
        assert it.bmc.state.open_sessions == []


async def test_a_stream_goes_on_from_the_last_event_that_was_heard() -> None:
    async with bench() as it:
        first = watch_of(it).listen(STREAM, None, 20)
        async with contextlib.aclosing(first):
            await opened(first)
            it.bmc.state.set_power("Off")
            heard = await anext(first)
        it.bmc.state.set_health("Critical")

        second = watch_of(it).listen(STREAM, heard.last_id, 20)
        async with contextlib.aclosing(second):
            await opened(second)
            missed = await anext(second)

        assert [event.kind for event in missed.events] == [EventKind.HEALTH]
        assert not missed.gap


async def test_a_filter_that_the_bmc_refuses_is_left_out() -> None:
    async with bench() as it:
        signals = watch_of(it).listen(f"{STREAM}?$filter=Colour%20eq%20Red", None, 20)
        async with contextlib.aclosing(signals):
            await opened(signals)

        assert it.requests("GET", STREAM) == [STREAM, STREAM]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (FaultRule(path="*/SSE", status=404), ErrorCode.UNSUPPORTED),
        (FaultRule(path="*/SSE", status=200, body={"@odata.id": "/x"}), ErrorCode.UNSUPPORTED),
        (FaultRule(path="*/SSE", status=503), ErrorCode.BUSY),
        (FaultRule(path="*/SSE", drop="before"), ErrorCode.UNREACHABLE),  # type: ignore[arg-type]
    ],
)
async def test_a_stream_that_cannot_be_is_a_typed_error(fault: FaultRule, code: ErrorCode) -> None:
    async with bench(faults=[fault]) as it:
        with pytest.raises(OperationError) as raised:
            await anext(watch_of(it).listen(STREAM, None, 20))

        assert raised.value.code is code


async def test_a_session_that_had_ended_is_renewed_for_the_stream() -> None:
    async with bench() as it:
        await look(it)
        it.bmc.state.end_sessions()

        signals = watch_of(it).listen(STREAM, None, 20)
        async with contextlib.aclosing(signals):
            await opened(signals)

        assert len(it.requests("POST", SESSIONS)) == 2


async def test_the_end_of_a_stream_is_its_end_and_no_error() -> None:
    async with bench() as it:
        signals = watch_of(it).listen(STREAM, None, 20)
        await opened(signals)
        it.bmc.service.events.streams.close_all()

        assert [signal async for signal in signals] == []


# What a stream's bytes mean


def test_lines_may_end_in_any_way_and_come_in_any_pieces() -> None:
    text = (
        b"\xef\xbb\xbf: hello\r\nid: 7\rdata: one\ndata: two\r\n\r\nretry: 2500\n: still here\n\nid:8\ndata:three\n\n"
    )
    expected = [StreamedEvent("one\ntwo", "7"), StreamedEvent("three", "8")]

    for size in (1, 2, 3, 7, len(text)):
        stream = EventStream()
        found = [event for at in range(0, len(text), size) for event in stream.feed(text[at : at + size])]

        assert found == expected
        assert stream.retry == 2.5


def test_an_event_without_end_is_let_pass_and_the_next_one_says_so() -> None:
    stream = EventStream()
    lost = [event for _ in range(LARGEST_EVENT // 1000 + 2) for event in stream.feed(b"data: " + b"x" * 1000 + b"\n")]

    assert lost == []
    assert stream.feed(b"\n") == []
    assert stream.feed(b"id: 3\ndata: {}\n\n") == [StreamedEvent("{}", "3", after_loss=True)]


def test_a_bmc_cannot_have_its_stream_left_alone_for_days() -> None:
    stream = EventStream()
    stream.feed(b"retry: 99999999\n")
    assert stream.retry == LONGEST_RETRY


def test_a_long_line_that_comes_in_many_small_pieces_is_one_event() -> None:
    stream = EventStream()
    line = b"data: " + b"x" * (LARGEST_EVENT - 100)
    found = [event for at in range(0, len(line), 50) for event in stream.feed(line[at : at + 50])]

    assert found == []
    assert [len(event.data) for event in stream.feed(b"\n\n")] == [LARGEST_EVENT - 100]


def test_a_line_without_end_takes_no_more_memory_than_one_event() -> None:
    stream = EventStream()
    for _ in range(5):
        assert stream.feed(b"y" * LARGEST_EVENT) == []
    assert len(stream._rest) <= 2 * LARGEST_EVENT

    assert stream.feed(b"\n\ndata: z\n\n") == [StreamedEvent("z", None, after_loss=True)]


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_no_bytes_make_a_stream_fail(pieces: list[bytes]) -> None:
    stream = EventStream()
    for piece in pieces:
        for event in stream.feed(piece):
            events_in(event.data)


# What events mean


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"MessageId": "ResourceEvent.1.3.ResourcePoweredOff"}, EventKind.POWER),
        ({"MessageId": "iLOEvents.3.7.ServerPoweredOn", "EventType": "Alert"}, EventKind.POWER),
        (
            {"MessageId": "iDRAC.2.8.SYS1003", "Message": "System CPU Resetting.", "EventType": "Alert"},
            EventKind.POWER,
        ),
        ({"MessageId": "OpenBMC.0.1.DCPowerOff"}, EventKind.POWER),
        ({"MessageId": "EventLog.1.0.PowerStatusChange"}, EventKind.POWER),
        ({"MessageId": "CrayAlerts.ResourcePowerStateChanged"}, EventKind.POWER),
        ({"MessageId": "X.1.0.FQX", "Message": "The server has been powered off."}, EventKind.POWER),
        ({"MessageId": "ResourceEvent.1.0.ResourceStatusChangedCritical"}, EventKind.HEALTH),
        ({"MessageId": "ResourceEvent.1.0.ResourceErrorsDetected"}, EventKind.HEALTH),
        ({"MessageId": "iLOResourceEvents.1.3.AggregateHealthStatusChange"}, EventKind.HEALTH),
        ({"MessageId": "iDRAC.2.8.PSU0003", "Severity": "Critical", "EventType": "Alert"}, EventKind.HEALTH),
        ({"MessageId": "A.1.B", "OriginOfCondition": {"@odata.id": "/redfish/v1/Systems/1"}}, EventKind.HEALTH),
        ({"MessageId": "A.1.B", "EventType": "StatusChange"}, EventKind.HEALTH),
        (
            {"MessageId": "A.1.B", "OriginOfCondition": "/redfish/v1/Systems/1/LogServices/SEL/Entries/7"},
            EventKind.LOG,
        ),
        ({"MessageId": "iDRAC.2.8.LOG007", "EventType": "Alert", "Severity": "OK"}, EventKind.LOG),
        ({"MessageId": "iDRAC.2.8.USR0030", "Message": "Logged in", "EventType": "Alert"}, EventKind.OTHER),
        ({"MessageId": "TaskEvent.1.0.TaskCompletedOK"}, EventKind.OTHER),
        ({"MessageId": "ResourceEvent.1.3.TestMessage"}, EventKind.OTHER),
        (
            {
                "MessageId": "ResourceEvent.1.0.ResourceCreated",
                "OriginOfCondition": "/redfish/v1/SessionService/Sessions/1",
            },
            EventKind.OTHER,
        ),
        ({}, EventKind.OTHER),
    ],
)
def test_an_event_is_known_by_its_message_else_by_what_it_is_of(record: dict[str, Any], kind: EventKind) -> None:
    assert [event.kind for event in events_of({"Events": [record]})] == [kind]


def test_every_form_of_a_payload_is_read() -> None:
    record = {"MessageId": "ResourceEvent.1.3.ResourcePoweredOn", "EventTimestamp": "2026-01-02T03:04:05-0600"}
    expected = (BmcEvent(EventKind.POWER, "ResourceEvent.1.3.ResourcePoweredOn", at="2026-01-02T03:04:05-06:00"),)

    assert events_of({"Events": [record]}) == expected
    assert events_of({"Events": record}) == expected
    assert events_of([{"Events": [record]}]) == expected
    assert events_of(record) == expected
    assert events_of({"Events": [None, 7, "x", record]}) == expected
    assert events_of({"@odata.type": "#MetricReport.v1_0_0.MetricReport", "MetricValues": []}) == ()
    assert events_in(b'\xef\xbb\xbf{"Events": [{"MessageId": "A.B", "Message": "a\nb"}]}')[0].text == "a\nb"
    assert events_in(b"<html>") == ()


@pytest.mark.parametrize(
    ("word", "moment"),
    [
        ("2026-01-02T03:04:05-0600", "2026-01-02T03:04:05-06:00"),
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05+00:00"),
        ("2026-01-02 03:04:05", "2026-01-02T03:04:05+00:00"),
        ("0000-00-00T00:00:00Z", None),
        ("1970-01-01T00:00:00Z", None),
        ("soon", None),
        (None, None),
    ],
)
def test_moments_are_read_as_bmcs_write_them(word: str | None, moment: str | None) -> None:
    assert moment_of(word) == moment


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["Events", "MessageId", "Message", "Severity", "OriginOfCondition", "EventType", "@odata.id"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_payload_makes_the_reading_fail(payload: object) -> None:
    assert all(isinstance(event, BmcEvent) for event in events_of(payload))


# Subscriptions


async def test_a_subscription_is_made_once_and_taken_away() -> None:
    async with bench() as it:
        watch = watch_of(it)

        path = await watch.subscribe(PLAIN, 20)
        again = await watch.subscribe(PLAIN, 20)
        there = await watch.is_subscribed(path, PLAIN, 20)
        await watch.unsubscribe(path, 20)
        await watch.unsubscribe(path, 20)

        assert (path, there) == (again, True)
        assert len(it.requests("POST", SUBSCRIPTIONS)) == 1
        assert not await watch.is_subscribed(path, PLAIN, 20)
        assert it.bmc.state.document(SUBSCRIPTIONS)["Members"] == []  # type: ignore[index]


async def test_the_subscription_of_an_earlier_listener_of_ours_is_replaced() -> None:
    async with bench() as it:
        watch = watch_of(it)
        stranger = await watch.subscribe(Listener("http://192.0.2.9/theirs", "somebody else"), 20)
        old = await watch.subscribe(Listener("http://192.0.2.7:8444/events/0ld", PLAIN.context), 20)

        path = await watch.subscribe(PLAIN, 20)

        left = [member["@odata.id"] for member in it.bmc.state.document(SUBSCRIPTIONS)["Members"]]  # type: ignore[index]
        assert left == [stranger, path]
        assert old not in left


async def test_when_all_slots_are_taken_the_bmc_says_so_itself() -> None:
    async with bench(options=ServiceOptions(max_subscriptions=0)) as it:
        with pytest.raises(OperationError) as raised:
            await watch_of(it).subscribe(PLAIN, 20)

        assert "All event subscriptions are taken." in str(raised.value)
        assert len(it.requests("POST", SUBSCRIPTIONS)) == 1


async def test_a_subscription_whose_answer_was_lost_is_looked_for_and_not_asked_for_again() -> None:
    async with bench(faults=[FaultRule(method="POST", path="*/Subscriptions", drop=Drop.AFTER, count=1)]) as it:
        path = await watch_of(it).subscribe(PLAIN, 20)

        assert await watch_of(it).is_subscribed(path, PLAIN, 20)
        assert len(it.requests("POST", SUBSCRIPTIONS)) == 1


async def test_a_switched_off_event_service_is_unsupported() -> None:
    async with bench() as it:
        it.bmc.state.patch(EVENTS, {"ServiceEnabled": False})

        assert await watch_of(it).event_offer(20) == EventOffer()
        with pytest.raises(OperationError, match="is off") as raised:
            await watch_of(it).subscribe(PLAIN, 20)
        assert raised.value.code is ErrorCode.UNSUPPORTED


@pytest.mark.parametrize("tree", TREES)
async def test_every_tree_takes_a_subscription_in_its_own_words(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as it:
        watch = watch_of(it)
        offer = await watch.event_offer(20)
        if offer.subscriptions is None:
            # It has no event service (DMTF catfish), or one that is switched off (iDRAC 6.00).
            with pytest.raises(OperationError) as raised:
                await watch.subscribe(LISTENER, 20)
            assert raised.value.code is ErrorCode.UNSUPPORTED
            return

        path = await watch.subscribe(LISTENER, 20)

        document = it.bmc.state.document(path)
        assert document is not None
        assert (document["Destination"], document["Protocol"]) == (LISTENER.url, "Redfish")
        assert await watch.subscribe(LISTENER, 20) == path
        await watch.unsubscribe(path, 20)
        after = it.bmc.state.document(path)
        assert after is None or after["Destination"] != LISTENER.url


@pytest.mark.parametrize("tree", ["dell-r750-idrac9-7.10", "hpe-dl380a-ilo6"])
async def test_a_bmc_that_sends_by_https_only_is_not_given_another_address(tree: str, shared: Path) -> None:
    async with bench(shared / "mockups" / tree) as it:
        with pytest.raises(OperationError, match="https only"):
            await watch_of(it).subscribe(PLAIN, 20)

        assert it.requests("POST", "*/Subscriptions") == []


async def test_supermicros_slots_are_filled_and_given_free(shared: Path) -> None:
    async with bench(shared / "mockups" / "supermicro-821ge") as it:
        path = await watch_of(it).subscribe(PLAIN, 20)
        filled = it.bmc.state.document(path)
        await watch_of(it).unsubscribe(path, 20)
        free = it.bmc.state.document(path)

        assert filled is not None
        assert free is not None
        assert (filled["Destination"], filled["Oem"]["Supermicro"]["EnableSubscription"]) == (PLAIN.url, True)
        assert (free["Destination"], free["Oem"]["Supermicro"]["EnableSubscription"]) == ("0.0.0.0", False)
        assert it.requests("POST", "*/Subscriptions") == []
        assert it.requests("DELETE", "*/Subscriptions/*") == []


def test_event_types_are_sent_where_the_service_lists_them_and_nowhere_else() -> None:
    old = first_words({"EventTypesForSubscription": ["StatusChange", "Alert", "MetricReport"]}, PLAIN)
    new = first_words({"RegistryPrefixes": ["Base"], "EventFormatTypes": ["Event", "MetricReport"]}, PLAIN)

    assert old == {
        "Destination": PLAIN.url,
        "Protocol": "Redfish",
        "Context": PLAIN.context,
        "EventTypes": ["Alert", "StatusChange"],
    }
    assert (new["EventFormatType"], new["SubscriptionType"], "EventTypes" in new) == ("Event", "RedfishEvent", False)


def test_a_body_is_mended_by_what_the_bmc_says_of_it() -> None:
    body = {"Destination": "x", "EventTypes": ["Alert"]}

    assert amended(body, [Note("Base.1.12.PropertyUnknown", "", ("EventTypes",))], {}) == {"Destination": "x"}
    assert amended({}, [Note("Base.1.8.PropertyMissing", "", ("EventTypes",))], {}) == {"EventTypes": ["Alert"]}
    assert amended({}, [Note("Base.1.8.PropertyMissing", "", ("HttpHeaders",))], {}) == {"HttpHeaders": []}
    assert amended(body, [Note("Base.1.8.PropertyMissing", "", ("Colour",))], {}) is None


@without_waiting
async def test_a_refused_property_is_left_out_at_the_second_try() -> None:
    async with bench() as it:
        refusal = {
            "error": {
                "code": "Base.1.12.GeneralError",
                "@Message.ExtendedInfo": [
                    {
                        "MessageId": "Base.1.12.PropertyUnknown",
                        "RelatedProperties": ["/SubscriptionType"],
                        "Message": "?",
                    }
                ],
            }
        }
        it.bmc.faults.add(
            FaultRule(
                method="POST",
                path="*/Subscriptions",
                match_body={"SubscriptionType": "RedfishEvent"},
                status=400,
                body=refusal,
            )
        )

        path = await watch_of(it).subscribe(PLAIN, 20)

        assert await watch_of(it).is_subscribed(path, PLAIN, 20)
        assert len(it.requests("POST", SUBSCRIPTIONS)) == 2


def test_an_address_that_is_none_is_no_stream() -> None:
    assert offer_of({"ServerSentEventUri": "None"}).stream is None
    assert offer_of({"ServerSentEventUri": "https://evil.example/redfish/v1/SSE"}).stream == "/redfish/v1/SSE"
    assert offer_of({"ServiceEnabled": False, "ServerSentEventUri": "/x"}) == EventOffer()
