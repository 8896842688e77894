"""Events: listed by cursor, and followed as a stream."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from control_plane import events
from control_plane.api.stream import follow
from control_plane.events import publish
from control_plane.store import Transaction, open_store
from tests.control_plane.api_harness import Api
from tests.control_plane.open_write import OpenWrite, publish_named


async def always() -> bool:
    return True


def publish_many(tx: Transaction, count: int, tenant: str = "acme") -> None:
    for number in range(count):
        publish(tx, tenant, f"test/{number}", "test.happened", {"number": number})


def publish_rare(tx: Transaction) -> None:
    publish(tx, "acme", "test/rare", "rare.found", {})


def age_all(tx: Transaction, by_ms: int) -> None:
    tx.run("UPDATE events SET at = at - :by", {"by": by_ms})


async def messages(stream: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream's bytes, one by one."""
    async for chunk in stream:
        for block in chunk.decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "data" in lines:
                event = msgspec.json.decode(lines["data"])
                assert (lines["id"], lines["event"]) == (str(event["seq"]), event["type"])
                yield event


async def take(stream: AsyncIterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(20):
        return [await anext(stream) for _ in range(count)]


async def test_the_cursor_of_an_answer_is_where_to_go_on_even_when_it_was_empty(api: Api) -> None:
    empty = await api.ok("events.list")
    assert (empty["items"], bool(empty["cursor"])) == ([], True)
    await api.store.write(publish_many, 5)
    first = await api.ok("events.list", {"cursor": empty["cursor"], "limit": 3})
    rest = await api.ok("events.list", {"cursor": first["cursor"]})
    assert [event["data"]["number"] for event in first["items"] + rest["items"]] == [0, 1, 2, 3, 4]
    assert (await api.ok("events.list", {"cursor": rest["cursor"]}))["items"] == []


async def test_events_are_searched_newest_first_until_there_are_no_older_ones(api: Api) -> None:
    await api.store.write(publish_many, 5)
    first = await api.ok("events.list", {"order": "newest", "limit": 3})
    rest = await api.ok("events.list", {"order": "newest", "limit": 3, "cursor": first["cursor"]})
    assert [event["data"]["number"] for event in first["items"] + rest["items"]] == [4, 3, 2, 1, 0]
    assert rest["cursor"] is None


@pytest.mark.parametrize("order", ["oldest", "newest"])
async def test_events_are_found_by_machine_kind_and_age(api: Api, order: str) -> None:
    node_id = await api.agent(await api.site(), online=False) and await api.node()
    await api.node("n2")
    await api.ok("drivers.invoke", {"nodeId": "n1", "operation": "power.getPower", "waitMs": 0})

    async def found(**wanted: object) -> list[str]:
        answer = await api.ok("events.list", {"order": order, **wanted})
        return [
            f"{event['type']} {event['data'].get('name') or event['data'].get('nodeId')}" for event in answer["items"]
        ]

    of_node = [f"command.queued {node_id}", "node.created n1"]
    assert sorted(await found(nodeId="n1")) == of_node
    assert await found(nodeId=node_id, kind="node") == ["node.created n1"]
    assert await found(kind="node.created", since="1h") == (
        ["node.created n1", "node.created n2"] if order == "oldest" else ["node.created n2", "node.created n1"]
    )
    assert await found(kind="nod") == []
    await api.store.write(age_all, 7_200_000)
    assert await found(since="1h") == []
    assert (await api.call("events.list", {"kind": "x%"})).status == 400
    assert (await api.call("events.list", {"nodeId": "n1"}, token=api.other)).status == 404


async def test_a_search_looks_at_so_many_events_at_a_time_and_finds_all(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "SEARCHED", 4)
    await api.store.write(publish_many, 10)
    await api.store.write(publish_rare)
    await api.store.write(publish_many, 10)
    for order in ("newest", "oldest"):
        seen: list[str] = []
        looks, cursor = 0, None
        while True:
            request = {"order": order, "kind": "rare", "limit": 5}
            answer = await api.ok("events.list", request | ({} if cursor is None else {"cursor": cursor}))
            seen += [event["type"] for event in answer["items"]]
            looks += 1
            if answer["cursor"] in (None, cursor):
                break
            cursor = answer["cursor"]
        assert (seen, looks >= 5) == (["rare.found"], True)


async def test_a_stream_gives_what_happens_in_order_and_only_ones_own(api: Api) -> None:
    stream = messages(follow(api.hub, "acme", 0, always))
    await api.store.write(publish_many, 150)
    await api.store.write(publish_many, 3, "umbrella")
    await api.store.write(publish_many, 2)
    events = await take(stream, 152)
    assert {event["tenantId"] for event in events} == {"acme"}
    assert [event["data"]["number"] for event in events] == [*range(150), 0, 1]


async def test_a_stream_is_resumed_without_gap_and_without_repeat(api: Api) -> None:
    await api.store.write(publish_many, 10)
    seen: list[int] = []
    last = 0
    for _ in range(5):
        events = await take(messages(follow(api.hub, "acme", last, always)), 2)
        seen += [event["data"]["number"] for event in events]
        last = events[-1]["seq"]
    assert seen == list(range(10))


async def test_a_stream_without_a_place_begins_now(api: Api) -> None:
    await api.store.write(publish_many, 3)
    stream = follow(api.hub, "acme", None, always)
    assert (await anext(stream)).startswith(b": ")
    await api.store.write(publish_many, 1)
    assert [event["data"]["number"] for event in await take(messages(stream), 1)] == [0]


async def test_a_stream_ends_when_its_token_is_no_longer_good(sqlite_api: Api) -> None:
    async def never() -> bool:
        return False

    async with asyncio.timeout(10):
        chunks = [chunk async for chunk in follow(sqlite_api.hub, "acme", 0, never)]
    assert len(chunks) == 1
    assert sqlite_api.hub.open == 0


async def test_streams_end_when_the_process_stops(sqlite_api: Api) -> None:
    stream = follow(sqlite_api.hub, "acme", 0, always)
    await anext(stream)
    sqlite_api.hub.stop()
    async with asyncio.timeout(10):
        assert [chunk async for chunk in stream] == []


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("?tenantId=umbrella", 403, "this token is for another tenant"),
        ("?tenantId=a%20b", 400, "the request has 1 fault"),
        ("?after=soon", 400, "the request has 1 fault"),
    ],
)
async def test_a_stream_is_refused_like_any_request(sqlite_api: Api, path: str, status: int, message: str) -> None:
    answer = await sqlite_api.http("GET", f"/api/compute/events/stream{path}")
    assert (answer.status, answer.message) == (status, message)


async def test_a_stream_needs_the_right_to_read_events(sqlite_api: Api) -> None:
    token = await sqlite_api.make_token("acme", ["compute:nodes:*"])
    answer = await sqlite_api.http("GET", "/api/compute/events/stream", token=token)
    assert (answer.status, "compute:events:read" in answer.message) == (403, True)
    assert (await sqlite_api.http("POST", "/api/compute/events/stream")).status == 405


async def test_the_last_event_id_goes_before_the_query(sqlite_api: Api) -> None:
    api = sqlite_api
    await api.store.write(publish_many, 3)
    task = asyncio.create_task(api.http("GET", "/api/compute/events/stream?after=0", headers={"last-event-id": "2"}))
    await asyncio.sleep(0.2)
    api.hub.stop()
    answer = await task
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body.count(b"event: test.happened") == 1


@pytest.fixture
async def postgres_api(postgres_url: str) -> AsyncIterator[Api]:
    """The API over PostgreSQL alone, where several write at the same time."""
    opened = open_store(postgres_url)
    made = Api(opened)
    await made.start()
    yield made
    await made.stop()
    await opened.close()


async def test_a_list_ends_before_an_event_that_an_older_transaction_may_still_come_before(
    postgres_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control_plane.api.handlers.history._PATIENCE_SECONDS", 0.01)
    async with OpenWrite(postgres_api.store, "older") as older:
        await postgres_api.store.write(publish_named, "younger")
        held = await postgres_api.ok("events.list")
        assert held["items"] == []
        await older.end()
        monkeypatch.undo()
        shown = await postgres_api.ok("events.list", {"cursor": held["cursor"]})
        assert [event["subject"] for event in shown["items"]] == ["test/older", "test/younger"]


async def test_a_stream_goes_on_when_an_older_transaction_ends_that_published_nothing(postgres_api: Api) -> None:
    """Nobody rings then: the stream has to find out by itself."""
    async with OpenWrite(postgres_api.store) as older:
        stream = messages(follow(postgres_api.hub, "acme", 0, always))
        taking = asyncio.create_task(take(stream, 1))
        await postgres_api.store.write(publish_named, "younger")
        assert not await postgres_api.services.horizon.refresh(0.2)
        assert not taking.done()
        await older.end()
        assert [event["subject"] for event in await taking] == ["test/younger"]


async def test_a_stream_without_a_place_begins_when_nothing_can_come_before_it_any_more(postgres_api: Api) -> None:
    async with OpenWrite(postgres_api.store, "older") as older:
        await postgres_api.store.write(publish_named, "younger")
        stream = follow(postgres_api.hub, "acme", None, always)
        greeting = asyncio.ensure_future(anext(stream))
        assert not await postgres_api.services.horizon.refresh(0.2)
        assert not greeting.done()
        await older.end()
        assert (await greeting).startswith(b": ")
        await postgres_api.store.write(publish_named, "youngest")
        assert [event["subject"] for event in await take(messages(stream), 1)] == ["test/youngest"]


async def test_a_stream_that_nobody_reads_any_more_is_let_go(sqlite_api: Api) -> None:
    stream = follow(sqlite_api.hub, "acme", 0, always)
    await anext(stream)
    assert sqlite_api.hub.open == 1
    with contextlib.suppress(StopAsyncIteration):
        await stream.aclose()  # type: ignore[attr-defined]
    assert sqlite_api.hub.open == 0
