"""The control plane's process: its start, its doors, its end."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from control_plane import systemd
from control_plane.config import Config
from control_plane.housekeeping import Housekeeping
from control_plane.local import call
from control_plane.logs import scrub
from control_plane.retention import Kept, prune_all
from control_plane.server import ControlPlane, StartFailed
from control_plane.store import StoreBusy, Transaction
from control_plane.store.migrate import FOLDER
from protocol.commands import CommandState
from protocol.errors import RequestError
from tests.control_plane.ledger import Ledger
from tests.control_plane.running import config_for


@contextlib.asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[ControlPlane]:
    async with ControlPlane(config_for(folder, **options)) as plane:
        yield plane


async def ask(plane: ControlPlane, request: bytes) -> bytes:
    """One HTTP exchange by hand."""
    reader, writer = await asyncio.open_connection("127.0.0.1", plane.api_port)
    writer.write(request)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


def order(config: Config, verb: str, request: dict[str, Any]) -> Any:
    return asyncio.to_thread(call, config, verb, request)


async def test_the_first_start_makes_everything_and_the_next_one_finds_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state) as plane:
        answer = await ask(plane, b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"\r\nserver:" not in answer.lower()
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        assert stat.S_IMODE((state / "admin.sock").stat().st_mode) == 0o600
        await order(plane.config, "sites.create", {"name": "lab", "tenantId": "acme"})
    assert not (state / "admin.sock").exists()
    async with running(state) as plane:
        assert len((await order(plane.config, "sites.list", {"tenantId": "acme"}))["items"]) == 1


async def test_an_order_is_the_same_verb_whether_the_control_plane_runs_or_not(tmp_path: Path) -> None:
    config = config_for(tmp_path / "state")
    made = await order(config, "sites.create", {"name": "lab", "tenantId": "acme"})
    async with running(tmp_path / "state") as plane:
        assert await order(plane.config, "sites.get", {"siteId": "lab", "tenantId": "acme"}) == made
        with pytest.raises(RequestError, match="there is a site named 'lab' already"):
            await order(plane.config, "sites.create", {"name": "lab", "tenantId": "acme"})
        audit = (await order(plane.config, "audit.list", {}))["items"]
    assert [(line["actor"], line["detail"]["verb"]) for line in audit] == [("local", "sites.create")]
    with pytest.raises(RequestError) as caught:
        await order(config, "sites.create", {"nam": "lab"})
    assert {issue.path for issue in caught.value.issues} == {"nam", "name"}


async def test_a_stop_answers_who_waits_and_lets_the_database_go(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as plane:
        config = plane.config
        await order(config, "joinTokens.create", {"siteId": "lab", "createSite": True, "tenantId": "acme"})
        node = {"name": "n1", "siteId": "lab", "bmc": {"address": "simulated://n1"}, "tenantId": "acme"}
        await order(config, "nodes.create", node)
        await plane.store.write(_serve)
        invoke = {"nodeId": "n1", "operation": "power.getPower", "tenantId": "acme", "waitMs": 60_000}
        waiting = asyncio.create_task(order(config, "drivers.invoke", invoke))
        async with asyncio.timeout(10):
            while not (await plane.store.read(_commands)):
                await asyncio.sleep(0.01)
    assert (await waiting)["state"] == "queued"
    # The file is free again.
    assert len((await order(config, "commands.list", {"tenantId": "acme"}))["items"]) == 1


async def test_one_process_holds_a_sqlite_file_and_another_is_told_which(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/shared.db"
    async with running(tmp_path / "first", store_url=url):
        with pytest.raises(StoreBusy, match=f"in use by another process .pid {os.getpid()}"):
            async with running(tmp_path / "second", store_url=url):
                pass


async def test_a_port_that_is_taken_names_the_setting(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            StartFailed, match=re.escape(f"api.listen = '{place}': Address already in use: stop what")
        ):
            async with running(tmp_path / "state", listen=place):
                pass
    # What was begun was ended: the next start is free to go.
    async with running(tmp_path / "state"):
        pass


async def test_tables_that_are_behind_are_not_touched_by_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "state"):
        pass
    newer = tmp_path / "migrations"
    newer.mkdir()
    for file in FOLDER.glob("*.sql"):
        (newer / file.name).write_text(file.read_text())
    (newer / "0099_more.sql").write_text("CREATE TABLE more (id TEXT PRIMARY KEY);")
    count = len(list(FOLDER.glob("*.sql")))
    (newer / "0099_more.sql").rename(newer / f"{count + 1:04}_more.sql")
    monkeypatch.setattr("control_plane.server.verify.__defaults__", (newer,))
    with pytest.raises(StartFailed, match="run `rackwright control-plane migrate`"):
        async with running(tmp_path / "state"):
            pass


async def test_a_wrong_certificate_names_the_setting_and_the_file(tmp_path: Path) -> None:
    missing, junk = tmp_path / "missing.pem", tmp_path / "junk.pem"
    junk.write_text("junk")
    with pytest.raises(StartFailed, match=re.escape(f"api.tls_key: {missing} cannot be read: No such file")):
        async with running(tmp_path / "state", tls_certificate=str(junk), tls_key=str(missing)):
            pass
    with pytest.raises(StartFailed, match=r"api\.tls_certificate and api\.tls_key are no certificate and its key"):
        async with running(tmp_path / "state", tls_certificate=str(junk), tls_key=str(junk)):
            pass


async def test_the_real_program_tells_systemd_serves_and_ends_with_0_on_sigterm(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        f'state_dir = "{tmp_path}/state"\n[api]\nlisten = "127.0.0.1:0"\n[agents]\nlisten = "127.0.0.1:0"\n'
    )
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(f"\0rackwright-test-{os.getpid()}")
    manager.settimeout(30)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rackwright", "control-plane", "serve", "--config", str(config)),
        env={**os.environ, "NOTIFY_SOCKET": f"@rackwright-test-{os.getpid()}"},
        stderr=asyncio.subprocess.PIPE,
    )
    ready = (await asyncio.to_thread(manager.recv, 4096)).decode()
    assert ready.startswith("READY=1\nSTATUS=API on port ")
    process.send_signal(signal.SIGTERM)
    _, log = await process.communicate()
    assert process.returncode == 0, log
    assert manager.recv(4096).decode().startswith("STOPPING=1")
    manager.close()
    lines = [msgspec.json.decode(line) for line in log.splitlines()]
    assert [line["message"] for line in lines if line["logger"] == "control_plane.server"][-1] == "stopped"


def test_nobody_is_told_where_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert systemd.notify(ready="1") is False
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert systemd.notify(ready="1") is False


def test_the_watchdog_is_fed_twice_as_often_as_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    assert systemd.watchdog_seconds() is None
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    assert systemd.watchdog_seconds() == 15
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert systemd.watchdog_seconds() is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("token rwt_" + "0" * 26 + "_s3cret-x y", "token rwt_" + "0" * 26 + "_*** y"),
        ("rwj1." + "a" * 64 + ".jtk_" + "0" * 26 + ".s3cret", "rwj1." + "a" * 64 + ".jtk_" + "0" * 26 + ".***"),
        ("postgresql://me:hunter2@db/x failed", "postgresql://me:***@db/x failed"),
        ("https://host:8440/path@x is fine", "https://host:8440/path@x is fine"),
    ],
)
def test_a_log_line_is_scrubbed_of_what_looks_like_a_secret(text: str, shown: str) -> None:
    assert scrub(text) == shown


async def test_housekeeping_goes_on_after_the_store_was_away(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control_plane.housekeeping._EXPIRE_SECONDS", 0.01)
    row = await ledger.command(lasts_ms=1)
    ledger.clock.pass_by(10)
    real, calls = ledger.store.write, 0

    async def failing_once(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreBusy("locked")
        return await real(*arguments)

    monkeypatch.setattr(ledger.store, "write", failing_once)
    task = asyncio.create_task(Housekeeping(ledger.store, Kept()).run())
    async with asyncio.timeout(10):
        while (await ledger.row(row.id)).state is not CommandState.EXPIRED:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_only_what_is_old_and_ended_is_removed(ledger: Ledger) -> None:
    session, _ = await ledger.connect()
    ended, unended = await ledger.command(), await ledger.command(lasts_ms=10**12)
    await ledger.settle(ended.id)
    await ledger.connect()
    ledger.clock.pass_by(40 * 86_400_000)
    young = await ledger.command()
    await ledger.settle(young.id)
    kept = Kept(commands_ms=30 * 86_400_000)
    assert await prune_all(ledger.store, kept) > 0
    left = await ledger.store.read(_left)
    assert left["commands"] == {unended.id, young.id}
    assert session.id not in left["sessions"]
    assert len(left["sessions"]) == 1
    assert {subject for _, subject in await ledger.events()} == {f"command/{young.id}"}
    assert await prune_all(ledger.store, kept) == 0


def _serve(tx: Transaction) -> None:
    tx.run(
        "INSERT INTO agents (id, tenant_id, role, host_name, version, drivers, created_at) "
        "VALUES ('agent_x', 'acme', 'site', 'h', '0', '{}', 0)"
    )
    tx.run("UPDATE sites SET agent_id = 'agent_x'")


def _commands(tx: Transaction) -> list[Any]:
    return tx.all("SELECT id FROM commands")


def _left(tx: Transaction) -> dict[str, set[str]]:
    tables = ("commands", "sessions")
    return {table: {row[0] for row in tx.all(f"SELECT id FROM {table}")} for table in tables}
