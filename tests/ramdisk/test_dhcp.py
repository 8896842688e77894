"""What the DHCP client's script writes, and what becomes of it, without a network."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from drivers.linux.host import Ran
from protocol.boot_ticket import TicketNetwork
from ramdisk.consoles import Announcer
from ramdisk.dhcp import DhcpClient
from ramdisk.leases import SCRIPT
from ramdisk.network import Network
from ramdisk.network_plan import Port
from tests.drivers.linux.machine import FakeHost

LEASE = {"ip": "192.0.2.50", "mask": "24", "router": "192.0.2.1", "lease": "3600"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "leases").mkdir()
    return tmp_path / "leases"


def hear(folder: Path, event: str) -> None:
    """The client calls its script."""
    environment = {"PATH": "/usr/bin:/bin", "RACKWRIGHT_LEASES": str(folder), "interface": "p0", **LEASE}
    subprocess.run(["sh", "-c", SCRIPT, "script", event], env=environment, check=True)


async def test_each_renewal_lengthens_the_address_though_the_server_says_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(tmp_path / "sys", tmp_path / "proc", tmp_path / "dev")
    host.programs["ip"] = lambda _words: Ran(0, "", "")
    host.proc.mkdir()
    port = host.sys / "class" / "net" / "p0"
    port.mkdir(parents=True)
    (port / "carrier").write_text("1\n")
    monkeypatch.setattr(DhcpClient, "start", lambda _client: None)
    monkeypatch.setattr("ramdisk.network._SLOW_SECONDS", 0.01)
    network = Network(
        host,
        folder,
        Announcer(host),
        resolver=tmp_path / "resolv.conf",
        ports=lambda: [Port("p0", "52:54:00:aa:00:01")],
    )
    network.configure(TicketNetwork())
    keeping = asyncio.create_task(network.run())

    async def applied(times: int) -> None:
        wanted = ("ip", "addr", "replace", "192.0.2.50/24", "dev", "p0", "valid_lft", "3600", "preferred_lft", "3600")
        while host.ran.count(wanted) < times:
            await asyncio.sleep(0.01)

    try:
        while not any("up" in words for words in host.ran):
            await asyncio.sleep(0.01)
        for number, event in enumerate(["bound", "renew", "renew", "renew"], 1):
            hear(folder, event)
            await asyncio.wait_for(applied(number), 10)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
