"""Many BMCs in one process, servers beside synchronous code, and what is seen of a server from outside."""

import asyncio
import gc
import json
import ssl
import urllib.request
from pathlib import Path

import aiohttp
import pytest

from simulators.login import DEFAULT_PASSWORD
from simulators.redfish import (
    OWN_TREE,
    Outage,
    PowerState,
    RecordedTree,
    RedfishFleet,
    RedfishServer,
    RedfishServerThread,
    ServiceOptions,
    TlsMaterial,
)
from simulators.redfish.fleet import consecutive_addresses
from tests.simulators.conftest import MANAGER, RESET, SESSIONS, SYSTEM, RedfishClient, Start, basic


async def test_each_bmc_of_a_fleet_has_its_own_state() -> None:
    async with RedfishFleet(count=5) as fleet, aiohttp.ClientSession(headers=basic()) as client:
        assert len(set(fleet.urls)) == 5
        async with client.post(fleet.urls[2] + RESET, json={"ResetType": "ForceOff"}) as answer:
            assert answer.status == 204

        states = [server.state.power() for server in fleet]

    assert states == [PowerState.ON, PowerState.ON, PowerState.OFF, PowerState.ON, PowerState.ON]


async def test_a_fleet_listens_on_addresses_of_its_own_on_one_port() -> None:
    async with RedfishFleet(count=3, first_address="127.9.0.254") as fleet, aiohttp.ClientSession() as client:
        ports = {server.port for server in fleet}
        for url in fleet.urls:
            async with client.get(f"{url}/redfish/v1/") as answer:
                assert answer.status == 200

    assert [server.host for server in fleet] == ["127.9.0.254", "127.9.0.255", "127.9.1.0"]
    assert len(ports) == 1


def test_a_fleet_stays_on_loopback_addresses() -> None:
    with pytest.raises(ValueError, match=r"128\.0\.0\.0 is none"):
        consecutive_addresses("127.255.255.255", 2)


async def test_five_hundred_bmcs_answer_at_once_each_after_its_latency() -> None:
    tree = RecordedTree.load(OWN_TREE)
    async with RedfishFleet(tree, 500, latency=0.2) as fleet:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers=basic()) as client:

            async def read(url: str) -> str:
                async with client.get(url + SYSTEM) as answer:
                    return str((await answer.json())["PowerState"])

            states = await asyncio.gather(*(read(url) for url in fleet.urls))

        assert states == ["On"] * 500
        assert fleet.requests == 500
        shared = {id(server.service.store.tree.find(SYSTEM)) for server in fleet}
        assert len(shared) == 1, "resources that no one changed are parsed and encoded once"


async def test_a_fleet_that_cannot_start_leaves_nothing_behind() -> None:
    async with RedfishServer() as taken:
        fleet = RedfishFleet(count=2, port=taken.port - 1)
        with pytest.raises(OSError, match=r"in use|permitted"):
            await fleet.start()
        assert all(server._listener is None for server in fleet)


def test_a_server_runs_beside_synchronous_code() -> None:
    with RedfishServerThread(tls=True) as bmc:
        assert bmc.server.tls is not None
        context = bmc.server.tls.client_context()
        request = urllib.request.Request(
            bmc.url + RESET, b'{"ResetType": "ForceOff"}', {"Content-Type": "application/json", **basic()}
        )
        with urllib.request.urlopen(request, context=context) as answer:
            assert answer.status == 204
        assert bmc.call(bmc.state.power) is PowerState.OFF
        assert bmc.journal.count("POST", "*/Actions/*", executed_only=True) == 1
    gc.collect()


def test_a_server_thread_that_cannot_start_says_so_and_ends() -> None:
    with (
        RedfishServerThread() as first,
        pytest.raises(OSError, match="in use"),
        RedfishServerThread(port=first.server.port),
    ):
        pytest.fail("two servers cannot share a port")


async def test_a_certificate_of_ones_own_is_used(start: Start, tmp_path: Path) -> None:
    made = TlsMaterial.self_signed(("127.0.0.1",))
    (tmp_path / "cert.pem").write_bytes(made.certificate)
    (tmp_path / "key.pem").write_bytes(made.key)

    bmc = await start(tls=TlsMaterial.from_files(tmp_path / "cert.pem", tmp_path / "key.pem"))
    seen = ssl.get_server_certificate
    shown = await asyncio.to_thread(seen, (bmc.server.host, bmc.server.port))

    assert ssl.PEM_cert_to_DER_cert(shown) == ssl.PEM_cert_to_DER_cert(made.certificate.decode())
    assert len(made.fingerprint) == 64
    assert "PRIVATE" not in repr(made)


async def test_a_client_that_does_not_trust_the_certificate_gets_nothing(start: Start) -> None:
    bmc = await start(tls=True)

    async with aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await client.get(f"{bmc.server.url}/redfish/v1/")

    assert bmc.server.journal.total == 0


async def test_nobody_listens_while_the_manager_restarts_where_so_chosen(start: Start) -> None:
    options = ServiceOptions(manager_reset_seconds=0.4, manager_reset_outage=Outage.REFUSED)
    bmc = await start(options=options)
    back = asyncio.Event()
    listen = bmc.server._listen

    async def listen_and_tell(http: object) -> None:
        await listen(http)  # type: ignore[arg-type]
        back.set()

    bmc.server._listen = listen_and_tell  # type: ignore[method-assign]

    reply = await bmc.post(f"{MANAGER}/Actions/Manager.Reset", {"ResetType": "ForceRestart"})
    async with aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get(f"{bmc.server.url}/redfish/v1/")
        await back.wait()
        async with client.get(f"{bmc.server.url}/redfish/v1/") as answer:
            assert answer.status == 200

    assert reply.status == 204


async def test_the_journal_holds_every_request_and_no_secret(start: Start) -> None:
    bmc = await start()

    await bmc.log_in()
    await bmc.patch("/redfish/v1/AccountService/Accounts/1", {"Password": "planted-secret-1"})
    await bmc.post(
        f"{MANAGER}/VirtualMedia/Cd/Actions/VirtualMedia.InsertMedia",
        {"Image": "http://x.example/a.iso", "Password": "planted-secret-2"},
    )
    token = bmc.headers["X-Auth-Token"]

    entries = list(bmc.server.journal)
    kept = repr(entries)
    assert [entry.method for entry in entries] == ["POST", "PATCH", "POST"]
    assert [entry.status for entry in entries] == [201, 200, 204]
    assert entries[1].login == "session"
    assert entries[1].user == "admin"
    assert entries[1].session in bmc.server.state.open_sessions
    assert entries[0].body == {"UserName": "admin", "Password": "(hidden)"}
    for secret in (token, "planted-secret", basic()["Authorization"]):
        assert secret not in kept


async def test_the_journal_is_searched_by_method_and_path(start: Start) -> None:
    bmc = await start(journal_size=3)
    for path in (SYSTEM, "/redfish/v1/Chassis/1", f"{SYSTEM}/", "/redfish/v1/Chassis"):
        await bmc.get(path)

    journal = bmc.server.journal
    assert journal.total == 4
    assert len(journal) == 3, "only the newest are kept"
    assert journal.count("GET", "*/chassis*") == 2
    assert journal.count("POST") == 0
    journal.clear()
    assert (journal.total, len(journal)) == (0, 0)


async def test_a_server_that_stopped_leaves_no_task_and_no_port() -> None:
    before = asyncio.all_tasks()
    async with RedfishServer(options=ServiceOptions(power_on_seconds=60)) as server, RedfishClient(server) as client:
        await client.reset("PowerCycle")
        port = server.port
    await asyncio.sleep(0)

    assert asyncio.all_tasks() - before == set()
    async with RedfishServer(port=port) as again:
        assert again.port == port


async def test_power_moves_by_itself_when_its_time_has_come(start: Start) -> None:
    bmc = await start(options=ServiceOptions(power_on_seconds=0.05))
    bmc.server.state.set_power("Off")
    moved = asyncio.Event()
    bmc.server.service.machine.at_host_start.append(lambda _system: moved.set())

    await bmc.reset("On")
    await moved.wait()

    assert bmc.server.state.power() is PowerState.ON


async def test_a_session_of_one_bmc_is_worth_nothing_at_another() -> None:
    async with RedfishFleet(count=2) as fleet, aiohttp.ClientSession() as client:
        login = json.dumps({"UserName": "admin", "Password": DEFAULT_PASSWORD})
        headers = {"Content-Type": "application/json"}
        async with client.post(fleet.urls[0] + SESSIONS, data=login, headers=headers) as answer:
            token = {"X-Auth-Token": answer.headers["X-Auth-Token"]}
        statuses = []
        for url in fleet.urls:
            async with client.get(url + SYSTEM, headers=token) as read:
                statuses.append(read.status)

    assert statuses == [200, 401]


def test_a_server_thread_that_does_not_run_says_so() -> None:
    bmc = RedfishServerThread()

    with pytest.raises(RuntimeError, match="use it as a context manager"):
        bmc.call(bmc.state.power)


async def test_the_certificate_in_use_is_the_one_that_the_service_shows(start: Start) -> None:
    bmc = await start(tls=True)

    shown = (await bmc.get(f"{MANAGER}/NetworkProtocol/HTTPS/Certificates/1")).data

    assert bmc.server.tls is not None
    assert shown["CertificateString"].encode() == bmc.server.tls.certificate
    assert shown["Fingerprint"].replace(":", "") == bmc.server.tls.fingerprint
