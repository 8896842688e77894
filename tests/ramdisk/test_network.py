"""The network on real interfaces of the kernel, in a namespace of their own: links, DHCP, VLANs, static addresses."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from drivers.linux.host import Host
from protocol.boot_ticket import TicketInterface, TicketNetwork
from ramdisk.network import global_addresses
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.e2e

MACS = ("52:54:00:aa:00:01", "52:54:00:aa:00:02")


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Wires:
    """Two namespaces: `machine` has the ports p0 and p1, and at their other ends `site` has s0 and s1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine, self.site = f"rwm{os.getpid()}", f"rws{os.getpid()}"
        self.server: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        for name in (self.machine, self.site):
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
            if made.returncode:
                pytest.skip(f"this kernel gives no network namespace: {made.stderr.strip()}")
        for number, mac in enumerate(MACS):
            near, far = ("name", f"p{number}", "netns", self.machine), ("name", f"s{number}", "netns", self.site)
            ip("link", "add", *near, "address", mac, "type", "veth", "peer", *far)
            ip("-n", self.site, "link", "set", f"s{number}", "up")

    def remove(self) -> None:
        self.stop_serving()
        for name in (self.machine, self.site):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def serve(self, interface: str, *options: str) -> None:
        """A DHCP server of busybox at the site's end."""
        ip("-n", self.site, "addr", "add", "192.0.2.1/24", "dev", interface)
        config = self.folder / "udhcpd.conf"
        leases = self.folder / "udhcpd.leases"
        leases.touch()
        lines = ["start 192.0.2.50", "end 192.0.2.60", f"interface {interface}", f"lease_file {leases}"]
        lines += [f"pidfile {self.folder}/udhcpd.pid", "opt subnet 255.255.255.0", *(f"opt {one}" for one in options)]
        config.write_text("\n".join(lines) + "\n")
        words = ["ip", "netns", "exec", self.site, "busybox", "udhcpd", "-f", str(config)]
        self.server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop_serving(self) -> None:
        if self.server is not None:
            self.server.terminate()
            self.server.wait()
            self.server = None

    def shown(self, *words: str) -> list[str]:
        return ip("-n", self.machine, *words).split()


class Keeper:
    """The network of a ramdisk, as a process in the machine's namespace."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.said: list[str] = []

    async def until(self, key: str, words: str = "") -> str:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if not line.startswith(b"{"):
                # A line of the log.
                continue
            told = json.loads(line)
            if "said" in told:
                self.said.append(told["said"])
            if key in told and words in told[key]:
                return str(told[key])
        raise AssertionError(f"it ended, and said {self.said}")


@pytest.fixture
async def wires(tmp_path: Path) -> AsyncIterator[Wires]:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("busybox") is None:
        pytest.skip("network namespaces need root, ip and busybox")
    wires = Wires(tmp_path)
    try:
        wires.make()
        yield wires
    finally:
        wires.remove()


@asynccontextmanager
async def keeping(
    wires: Wires, *interfaces: TicketInterface, ports: tuple[str, ...] = ("p0", "p1")
) -> AsyncIterator[Keeper]:
    asked = msgspec.json.encode(TicketNetwork(interfaces=list(interfaces))).decode()
    process = await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", wires.machine, sys.executable, "-m", "tests.ramdisk.namespace_network"),
        str(wires.folder),
        asked,
        *ports,
        cwd=REPOSITORY,
        stdin=PIPE,
        stdout=PIPE,
    )
    try:
        yield Keeper(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def test_a_port_with_a_link_gets_its_address_by_dhcp_and_one_without_is_told_of(wires: Wires) -> None:
    ip("-n", wires.site, "link", "set", "s1", "down")
    wires.serve("s0", "router 192.0.2.1", "dns 192.0.2.3 192.0.2.4", "domain site.example")
    async with keeping(wires) as keeper:
        state = await keeper.until("ready")
        assert "p0 (52:54:00:aa:00:01): 192.0.2.5" in state
        assert "p1 (52:54:00:aa:00:02): no link" in state
        assert any("p0: link is up" in line and "DHCP" in line for line in keeper.said)
        routes = " ".join(wires.shown("route"))
        assert "default via 192.0.2.1 dev p0 metric 100" in routes
        expected = "search site.example\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n"
        assert (wires.folder / "resolv.conf").read_text() == expected


async def test_a_server_that_comes_late_is_waited_for(wires: Wires) -> None:
    async with keeping(wires, ports=("p0",)) as keeper:
        await keeper.until("said", "no DHCP server answers")
        wires.serve("s0", "router 192.0.2.1")
        assert "192.0.2.5" in await keeper.until("ready")


async def test_a_port_that_is_plugged_in_late_is_used(wires: Wires) -> None:
    ip("-n", wires.site, "link", "set", "s0", "down")
    wires.serve("s0")
    async with keeping(wires, ports=("p0",)) as keeper:
        await keeper.until("said", "network port p0")
        ip("-n", wires.site, "link", "set", "s0", "up")
        await keeper.until("ready")
        assert "p0: link is up" in " ".join(keeper.said)


async def test_a_port_is_set_as_the_ticket_says_and_the_others_are_left_alone(wires: Wires) -> None:
    asked = TicketInterface(
        mac=MACS[1],
        addresses=["198.51.100.5/24", "2001:db8:7::5/64"],
        gateway="198.51.100.1",
        dns=["198.51.100.3"],
    )
    async with keeping(wires, asked) as keeper:
        await keeper.until("ready")
        shown = wires.shown("addr", "show", "dev", "p1")
        assert {"198.51.100.5/24", "2001:db8:7::5/64"} <= set(shown)
        assert "default via 198.51.100.1 dev p1" in " ".join(wires.shown("route"))
        assert (wires.folder / "resolv.conf").read_text() == "nameserver 198.51.100.3\n"
        assert "inet" not in wires.shown("addr", "show", "dev", "p0")


async def test_a_vlan_is_made_on_its_port(wires: Wires) -> None:
    words = ["link", "add", "link", "p0", "name", "try", "type", "vlan", "id", "9"]
    tried = subprocess.run(["ip", "-n", wires.machine, *words], capture_output=True)
    if tried.returncode:
        pytest.skip("this kernel has no VLANs")
    asked = TicketInterface(mac=MACS[1], vlan=7, addresses=["198.51.100.5/24"])
    async with keeping(wires, asked) as keeper:
        await keeper.until("ready")
        assert "198.51.100.5/24" in wires.shown("addr", "show", "dev", "p1.7")
        assert "7" in wires.shown("-d", "link", "show", "dev", "p1.7")


async def test_a_restarted_process_leaves_one_client_per_port(wires: Wires) -> None:
    wires.serve("s0")
    async with keeping(wires, ports=("p0",)) as keeper:
        await keeper.until("ready")
        keeper.process.kill()
        await keeper.process.wait()
    async with keeping(wires, ports=("p0",)) as keeper:
        await keeper.until("ready")
        word = f"RACKWRIGHT_LEASES={wires.folder}/network".encode()
        assert clients(word) == 1
    assert clients(word) == 0


def clients(word: bytes) -> int:
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            count += entry.name.isdecimal() and word in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
    return count


def test_only_addresses_that_may_be_used_beyond_the_link_count(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "if_inet6").write_text(
        "fe800000000000005054 00fffe000001 02 40 20 80 eth0\n"
        "fe80000000000000505400fffe000001 02 40 20 80     eth0\n"
        "20010db8000000000000000000000005 02 40 00 80     eth0\n"
        "20010db8000000000000000000000006 02 40 00 c0     eth0\n"
        "20010db8000000000000000000000007 03 40 00 80     eth1\n"
    )
    assert global_addresses(Host(proc=tmp_path), ["eth0"]) == ["2001:0db8:0000:0000:0000:0000:0000:0005"]
