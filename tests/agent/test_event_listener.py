"""The listener for BMCs' pushes: an address for each machine, cheap to everybody else; and subscriptions to it."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent import event_listener
from agent.bmcs import BmcMemory, Bmcs
from agent.config import EventsSection, WatchSection
from agent.errors import AgentError
from agent.event_feeds import EventFeeds
from agent.event_listener import EventListener, listener_key
from agent.observations import Observations
from agent.vault import Vault, VaultKey
from agent.watching import Watcher
from drivers.signals import BmcEvent, EventKind
from protocol.commands import TargetRef
from protocol.frames import WatchedNode, WatchList
from protocol.secret import Secret
from simulators.redfish import RedfishServer, ServiceOptions, TlsMaterial
from tests.agent.rig import until

KEY = b"k" * 32
USER, PASSWORD = "admin", "Planted-Pa55word"
SUBSCRIPTIONS = "/redfish/v1/EventService/Subscriptions"
PAYLOAD = {"Events": [{"MessageId": "ResourceEvent.1.3.ResourcePoweredOff"}]}


class Heard(list[tuple[str, tuple[BmcEvent, ...], str]]):
    def __call__(self, node_id: str, events: tuple[BmcEvent, ...], how: str) -> None:
        self.append((node_id, events, how))


@contextlib.asynccontextmanager
async def listening(**settings: Any) -> AsyncIterator[tuple[EventListener, Heard]]:
    heard = Heard()
    listener = EventListener(EventsSection(**{"listen": "127.0.0.1:0", **settings}), KEY, heard)
    await listener.start()
    try:
        yield listener, heard
    finally:
        await listener.aclose()


async def post(url: str, body: object = PAYLOAD, **more: Any) -> int:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as client, client.post(url, data=data, **more) as answer:
        return answer.status


async def test_a_push_to_a_machines_address_is_heard_as_that_machines() -> None:
    async with listening() as (listener, heard):
        first, second = listener.place("node_1"), listener.place("node_2")

        assert await post(second.url) == 204
        assert await post(first.url, b"<html>") == 204

        assert [(node_id, events[0].kind, how) for node_id, events, how in heard] == [
            ("node_2", EventKind.POWER, "push")
        ]
        assert first.url != second.url
        assert first.url.startswith(f"http://127.0.0.1:{listener.port}/events/")


async def test_an_address_cannot_be_guessed_and_is_the_same_after_a_restart(tmp_path: Path) -> None:
    key = listener_key(tmp_path / "events.key")
    again = listener_key(tmp_path / "events.key")
    urls = []
    for used in (key, again, KEY):
        listener = EventListener(EventsSection(listen="127.0.0.1:0", url="https://192.0.2.7:8444/"), used, Heard())
        urls.append(listener.place("node_1").url)

    assert urls[0] == urls[1] != urls[2]
    assert len(urls[0].rpartition("/")[2]) == 52
    assert "node_1" not in urls[0]
    assert (tmp_path / "events.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("path", ["/", "/events/", "/events/zzzz", "/redfish/v1", "/events/../etc/passwd"])
async def test_other_addresses_are_unknown(path: str) -> None:
    async with listening() as (listener, heard):
        assert await post(f"{listener.url}{path}") == 404
        assert heard == []


async def test_a_handshake_that_is_never_ended_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_listener, "_SILENT_SECONDS", 0.1)
    async with listening(**tls_settings(tmp_path)) as (listener, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await reader.read() == b""
        writer.close()


async def test_a_dropped_machine_is_unknown_again() -> None:
    async with listening() as (listener, _):
        place = listener.place("node_1")
        listener.drop("node_1")
        listener.drop("node_1")

        assert await post(place.url) == 404


async def test_what_is_too_large_is_refused_however_it_comes() -> None:
    async with listening() as (listener, heard):
        place = listener.place("node_1")

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b" " * 65536

        with contextlib.suppress(aiohttp.ClientError):
            assert await post(place.url, b" " * 300_000) == 413
        async with aiohttp.ClientSession() as client:
            with contextlib.suppress(aiohttp.ClientError):
                async with client.post(place.url, data=endless()) as answer:
                    assert answer.status == 413
        assert heard == []
        assert await post(place.url) == 204


async def test_a_body_that_is_packed_is_not_unpacked() -> None:
    import gzip

    async with listening() as (listener, heard):
        body = gzip.compress(b'{"Events": [' + b" " * 10_000_000 + b"]}")

        assert await post(listener.place("node_1").url, body, headers={"Content-Encoding": "gzip"}) == 204
        assert heard == []


async def test_a_bmc_may_knock_before_it_sends() -> None:
    async with listening() as (listener, _), aiohttp.ClientSession() as client:
        place = listener.place("node_1")
        async with client.get(place.url) as answer:
            assert answer.status == 200
        async with client.put(place.url) as answer:
            assert answer.status == 405


async def test_a_connection_that_says_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_listener, "_SILENT_SECONDS", 0.05)
    async with listening() as (listener, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"POST /events/x HTTP/1.1\r\nHost: ")

        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_there_is_an_end_to_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_listener, "_MOST_CONNECTIONS", 2)
    async with listening() as (listener, _):
        held = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(3)]

        with contextlib.suppress(ConnectionError):
            assert await held[2][0].read() == b""
        for _, writer in held:
            writer.close()


def tls_settings(folder: Path, material: TlsMaterial | None = None) -> dict[str, str]:
    """A certificate of the listener's own, in files."""
    material = material or TlsMaterial.self_signed(("127.0.0.1",))
    (folder / "cert.pem").write_bytes(material.certificate)
    (folder / "key.pem").write_bytes(material.key)
    return {"tls_certificate": str(folder / "cert.pem"), "tls_key": str(folder / "key.pem")}


async def test_a_certificate_makes_it_https(tmp_path: Path) -> None:
    material = TlsMaterial.self_signed(("127.0.0.1",))
    async with listening(**tls_settings(tmp_path, material)) as (listener, heard):
        place = listener.place("node_1")

        assert place.url.startswith("https://")
        assert await post(place.url, ssl=material.client_context()) == 204
        assert len(heard) == 1


async def test_a_start_that_fails_names_the_setting(tmp_path: Path) -> None:
    async with listening() as (listener, _):
        taken = EventListener(EventsSection(listen=f"127.0.0.1:{listener.port}"), KEY, Heard())
        with pytest.raises(AgentError, match=r"events\.listen"):
            await taken.start()
    settings = EventsSection(listen="127.0.0.1:0", tls_certificate=str(tmp_path / "no"), tls_key=str(tmp_path / "no"))
    with pytest.raises(AgentError, match=r"events\.tls_certificate"):
        await EventListener(settings, KEY, Heard()).start()


# Subscriptions that lead to it


@contextlib.asynccontextmanager
async def site(bmc: RedfishServer, folder: Path, **settings: Any) -> AsyncIterator[tuple[Watcher, Observations]]:
    """A watcher that hears by pushes alone."""
    vault = Vault(folder / "vault.json", lambda: VaultKey.load(folder / "vault.key", make=True))
    vault.set("bmc", USER, Secret(PASSWORD))
    bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"))
    observations = Observations(lambda: None)
    section = WatchSection(**{"events": ("push",), **settings})
    watcher = Watcher(bmcs, observations, section, chance=random.Random(3))
    listener = EventListener(EventsSection(listen="127.0.0.1:0"), KEY, watcher.heard)
    await listener.start()
    watcher.hear_by(EventFeeds(watcher, section, listener, chance=random.Random(3)))
    watched = WatchedNode(node_id="node_1", driver="redfish", target=TargetRef(bmc.url, "bmc", "none"))
    watcher.take(WatchList(version="1", nodes=[watched]))
    try:
        yield watcher, observations
    finally:
        await watcher.aclose()
        await listener.aclose()
        await bmcs.aclose()


def subscriptions(bmc: RedfishServer) -> list[str]:
    document = bmc.state.document(SUBSCRIPTIONS)
    assert document is not None
    return [member["@odata.id"] for member in document["Members"]]


async def test_a_push_tells_of_a_change_in_seconds_and_the_subscription_goes_with_the_agent(tmp_path: Path) -> None:
    async with RedfishServer(users={USER: PASSWORD}) as bmc:
        async with site(bmc, tmp_path) as (watcher, observations):
            await until(lambda: watcher.counts()["withEvents"] == 1)
            assert len(subscriptions(bmc)) == 1

            bmc.state.set_power("Off")
            await until(lambda: (seen := observations.last("node_1")) is not None and seen.power == "off")

            seen = observations.last("node_1")
            assert seen is not None
            assert seen.how == "push"
        assert subscriptions(bmc) == []
        assert bmc.state.open_sessions == []


async def test_a_subscription_that_a_crash_left_behind_is_used_again(tmp_path: Path) -> None:
    async with RedfishServer(users={USER: PASSWORD}) as bmc:
        async with site(bmc, tmp_path) as (watcher, _):
            await until(lambda: watcher.counts()["withEvents"] == 1)
            left = subscriptions(bmc)
            # As after a kill: nothing is taken away.
            for watched in watcher._watched.values():
                watched.feed._subscription = None  # type: ignore[union-attr]
        assert subscriptions(bmc) == left
        port = bmc.state.document(left[0])["Destination"].split(":")[2].partition("/")[0]  # type: ignore[index]
        assert port.isdecimal()

        async with site(bmc, tmp_path) as (watcher, _):
            await until(lambda: watcher.counts()["withEvents"] == 1)
            # The listener's port is another one here, so that the old subscription is replaced, not kept beside.
            assert len(subscriptions(bmc)) == 1


async def test_a_subscription_that_the_bmc_has_lost_is_made_again(tmp_path: Path) -> None:
    async with (
        RedfishServer(users={USER: PASSWORD}) as bmc,
        site(bmc, tmp_path, slow_interval_seconds=1) as (watcher, _),
    ):
        await until(lambda: watcher.counts()["withEvents"] == 1)
        (path,) = subscriptions(bmc)
        bmc.service.store.remove_member(SUBSCRIPTIONS, path)

        await until(lambda: len(subscriptions(bmc)) == 1)
        assert subscriptions(bmc) != [path]


async def test_where_all_slots_are_taken_the_machine_is_polled_and_the_log_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ServiceOptions(max_subscriptions=0)
    async with (
        RedfishServer(users={USER: PASSWORD}, options=options) as bmc,
        site(bmc, tmp_path, interval_seconds=1) as (watcher, observations),
    ):
        await until(lambda: bool(bmc.journal.entries("POST", "*/Subscriptions")))
        bmc.state.set_power("Off")
        await until(lambda: (seen := observations.last("node_1")) is not None and seen.power == "off")

        assert watcher.counts()["withEvents"] == 0
        seen = observations.last("node_1")
        assert seen is not None
        assert seen.how == "poll"
    assert "All event subscriptions are taken." in capsys.readouterr().out
