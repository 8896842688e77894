"""What systemd hears."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import systemd


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@rackwright-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0", 1))
        listening.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listening


def test_words_arrive_one_a_line(manager: socket.socket) -> None:
    assert systemd.notify("READY=1", "STATUS=two\nlines")
    assert manager.recv(4096) == b"READY=1\nSTATUS=two lines"


def test_a_reload_tells_the_monotonic_time(manager: socket.socket) -> None:
    systemd.notify_reloading()
    assert manager.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")


async def test_the_watchdog_is_fed_from_the_loop(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    feeding = asyncio.create_task(systemd.watch())
    for _ in range(3):
        assert await asyncio.to_thread(manager.recv, 4096) == b"WATCHDOG=1"
    feeding.cancel()


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "30000", "WATCHDOG_PID": "1"}])
async def test_without_a_watchdog_for_this_process_nothing_is_fed(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    await asyncio.wait_for(systemd.watch(), 5)


@pytest.mark.parametrize("address", [None, "", "relative", "/nowhere/at/all"])
def test_nobody_who_listens_is_no_error(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert systemd.notify("READY=1") is False
