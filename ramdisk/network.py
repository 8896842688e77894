"""The machine's network: every port is brought up, and set as the ticket says or by DHCP, for as long as it runs.

Links are brought up before it is known how they are set, since they take seconds. Nothing here gives up: ports appear
late, cables are plugged in, servers are started. What is missing is said on the consoles, again when it has changed.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from agent.files import write_durably
from drivers.linux.host import Host
from drivers.linux.network_ports import boot_macs, network_ports
from drivers.linux.pci import PciNames
from protocol.boot_ticket import TicketNetwork
from protocol.errors import OperationError
from ramdisk.consoles import Announcer
from ramdisk.dhcp import DhcpClient, end_left_over_clients
from ramdisk.leases import Lease, parse_lease
from ramdisk.network_plan import (
    Port,
    Settings,
    commands_for_lease,
    commands_for_static,
    make_plan,
    port_order,
    resolver_text,
)
from ramdisk.router_servers import RouterServers

__all__ = ["Network", "global_addresses"]

_log = structlog.get_logger("ramdisk.network")
_SETTINGS = "settings.json"
_QUICK_SECONDS, _SLOW_SECONDS = 0.2, 1.0
_IP_SECONDS = 10.0
_COMPLAINT_SECONDS = 20.0
_NOT_READY = 0x40 | 0x08
"""Tentative, or refused as a duplicate (linux/if_addr.h)."""


class Network:
    """`folder`: for leases, in memory. `resolver`: the file with the name servers."""

    def __init__(
        self,
        host: Host,
        folder: Path,
        announcer: Announcer,
        *,
        resolver: Path = Path("/etc/resolv.conf"),
        ports: Callable[[], list[Port]] | None = None,
    ) -> None:
        self._host = host
        self._folder = folder
        self._announcer = announcer
        self._resolver = resolver
        self._read_ports = ports or self._hardware_ports
        self._names: list[str] = []
        self._routers = RouterServers()
        self._ports: dict[str, Port] = {}
        self._wanted: TicketNetwork | None = None
        self._settings: dict[str, Settings] = {}
        self._clients: dict[str, DhcpClient] = {}
        self._done: dict[str, object] = {}
        self._leases: dict[str, Lease] = {}
        self._links: dict[str, bool] = {}
        self._resolver_text = ""
        self._began = time.monotonic()
        self._planned = True
        self.ready = asyncio.Event()
        """An address is there, so that it makes sense to try."""

    def configure(self, network: TicketNetwork) -> None:
        """How it is to be set. Before this only the links are brought up."""
        if network != self._wanted:
            self._wanted = network
            self._planned = False

    def remembered(self) -> TicketNetwork:
        """How an earlier process of this boot was told to set it; by DHCP where that is not known. Blocking."""
        try:
            return msgspec.json.decode((self._folder / _SETTINGS).read_bytes(), type=TicketNetwork)
        except (OSError, msgspec.DecodeError):
            return TicketNetwork()

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.to_thread(self._prepare)
        self._routers.open()
        try:
            while True:
                await self._look()
                await asyncio.sleep(_SLOW_SECONDS if self.ready.is_set() else _QUICK_SECONDS)
        finally:
            for client in self._clients.values():
                await client.aclose()
            self._routers.close()

    def state(self) -> str:
        """Each port with what it has, for a message."""
        if not self._ports:
            return "no network port was found: is its driver in this image?"
        return "; ".join(f"{port.known_as}: {self._state_of(port)}" for port in self._ports.values())

    def _prepare(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ended = end_left_over_clients(self._host, self._folder)
        if ended:
            _log.info("dhcp_clients_ended", count=ended)
        for left in self._folder.glob("*.lease"):
            left.unlink(missing_ok=True)

    async def _look(self) -> None:
        await self._find_ports()
        if not self._planned and self._wanted is not None:
            await self._plan(self._wanted)
        for settings in list(self._settings.values()):
            await self._keep(settings)
        self._write_resolver()
        if not self.ready.is_set():
            self._see_whether_ready()

    async def _find_ports(self) -> None:
        names = self._host.names("class", "net")
        if names == self._names:
            return
        self._names = names
        found = await asyncio.to_thread(self._read_ports)
        if found == list(self._ports.values()):
            return
        for port in found:
            if port.name not in self._ports:
                self._announcer.say(f"network port {port.known_as} found")
                # Before it is up: an advertisement that comes at once must be taken.
                self._take_advertisements(port.name)
                await self._ip("link", "set", "dev", port.name, "up")
        self._ports = {port.name: port for port in found}
        self._planned = self._wanted is None

    def _hardware_ports(self) -> list[Port]:
        shown = network_ports(self._host, PciNames())
        names = {port.name: mac for port in shown if (mac := port.permanent_mac or port.mac)}
        return port_order(names, boot_macs(self._host))

    def _take_advertisements(self, name: str) -> None:
        """Router advertisements are taken although this machine forwards nothing (ip-sysctl.rst)."""
        folder = self._host.proc / "sys" / "net" / "ipv6" / "conf" / name
        for setting, value in (("disable_ipv6", "0"), ("accept_ra", "2"), ("autoconf", "1"), ("forwarding", "0")):
            with contextlib.suppress(OSError):
                (folder / setting).write_text(value)

    async def _plan(self, wanted: TicketNetwork) -> None:
        plan = make_plan(list(self._ports.values()), wanted)
        for fault in plan.faults:
            self._announcer.say(fault, about=f"plan {fault}")
        fresh = {settings.interface: settings for settings in plan.settings}
        for interface, client in list(self._clients.items()):
            if fresh.get(interface) != self._settings.get(interface):
                await client.aclose()
                del self._clients[interface]
                self._leases.pop(interface, None)
        self._done = {name: done for name, done in self._done.items() if fresh.get(name) == self._settings.get(name)}
        self._settings = fresh
        self._planned = True
        await asyncio.to_thread(self._remember, wanted)

    def _remember(self, wanted: TicketNetwork) -> None:
        try:
            write_durably(self._folder / _SETTINGS, msgspec.json.encode(wanted), durable=False)
        except OSError as error:
            _log.warning("network_not_remembered", reason=str(error))

    async def _keep(self, settings: Settings) -> None:
        """One interface: its VLAN, its address, its client."""
        if settings.vlan is not None and not await self._make_vlan(settings):
            return
        link = self._host.number("class", "net", settings.port.name, "carrier") == 1
        if link != self._links.get(settings.interface):
            self._link_changed(settings, link)
        if settings.how == "static":
            if self._done.get(settings.interface) != settings and await self._apply(commands_for_static(settings)):
                self._done[settings.interface] = settings
                self._announcer.say(f"{settings.interface}: {', '.join(settings.addresses)} as the ticket says")
        elif settings.interface in self._clients:
            await self._take_lease(settings)

    def _link_changed(self, settings: Settings, link: bool) -> None:
        known = settings.interface in self._links
        self._links[settings.interface] = link
        if link and settings.how == "dhcp":
            client = self._clients.get(settings.interface)
            if client is None:
                client = self._clients[settings.interface] = DhcpClient(settings.interface, self._folder)
            if client.runs:
                client.renew()
            client.start()
        speed = self._host.number("class", "net", settings.port.name, "speed")
        if link:
            shown = f" ({speed} Mb/s)" if speed is not None and speed > 0 else ""
            asks = ", asking for an address by DHCP" if settings.how == "dhcp" else ""
            self._announcer.say(f"{settings.interface}: link is up{shown}{asks}")
        elif known:
            self._announcer.say(f"{settings.interface}: link is down")

    async def _take_lease(self, settings: Settings) -> None:
        report = self._clients[settings.interface].report()
        match report.get("event"):
            case "bound" | "renew":
                try:
                    lease = parse_lease(report)
                except ValueError as error:
                    self._announcer.say(
                        f"{settings.interface}: the DHCP server's answer is of no use ({error})",
                        about=settings.interface,
                    )
                    return
                if self._done.get(settings.interface) != report and await self._apply(
                    commands_for_lease(settings, lease)
                ):
                    self._done[settings.interface] = report
                    self._leases[settings.interface] = lease
                    self._announcer.say(_told(settings.interface, lease), about=settings.interface)
            case "deconfig":
                if self._leases.pop(settings.interface, None) is not None:
                    self._done.pop(settings.interface, None)
                    await self._ip("-4", "addr", "flush", "dev", settings.interface, "scope", "global")
                    self._announcer.say(f"{settings.interface}: the lease has ended", about=settings.interface)
            case "leasefail" | "nak":
                self._announcer.say(
                    f"{settings.interface}: no DHCP server answers; still asking", about=settings.interface
                )

    async def _make_vlan(self, settings: Settings) -> bool:
        if (self._host.sys / "class" / "net" / settings.interface).exists():
            return True
        parent = settings.port.name
        words = ("link", "add", "link", parent, "name", settings.interface, "type", "vlan", "id", str(settings.vlan))
        if not await self._ip(*words):
            return False
        self._take_advertisements(settings.interface)
        return await self._ip("link", "set", "dev", settings.interface, "up")

    async def _apply(self, commands: Sequence[tuple[str, ...]]) -> bool:
        results = [await self._ip(*words) for words in commands]
        return all(results)

    async def _ip(self, *words: str) -> bool:
        """A failure is told, and tried again with the next look."""
        try:
            ran = await self._host.run("ip", *words, timeout=_IP_SECONDS)
        except OperationError as error:
            self._announcer.say(error.message, about="ip")
            return False
        if ran.code:
            self._announcer.say(f"ip {' '.join(words)}: {ran.words}", about=f"ip {words}")
        return ran.code == 0

    def _write_resolver(self) -> None:
        ordered = sorted(self._settings.values(), key=lambda one: one.metric)
        static = [server for settings in ordered for server in settings.dns]
        leases = [lease for settings in ordered if (lease := self._leases.get(settings.interface)) is not None]
        servers = [*static, *(server for lease in leases for server in lease.dns), *self._routers.servers()]
        text = resolver_text(servers, (word for lease in leases for word in lease.search))
        if text and text != self._resolver_text:
            try:
                self._resolver.write_text(text)
            except OSError as error:
                self._announcer.say(f"{self._resolver} cannot be written: {error.strerror}", about="resolver")
            else:
                self._resolver_text = text

    def _see_whether_ready(self) -> None:
        static = any(
            self._done.get(one.interface) == one and self._links.get(one.interface)
            for one in self._settings.values()
            if one.how == "static"
        )
        routed = self._wanted is not None and bool(global_addresses(self._host, self._interfaces()))
        if static or self._leases or routed:
            self.ready.set()
        elif self._wanted is not None and time.monotonic() - self._began > _COMPLAINT_SECONDS:
            self._began = time.monotonic()
            self._announcer.say(f"no network yet. {self.state()}")

    def _interfaces(self) -> list[str]:
        return list(self._settings)

    def _state_of(self, port: Port) -> str:
        mine = [one for one in self._settings.values() if one.port.name == port.name]
        if self._host.number("class", "net", port.name, "carrier") != 1:
            return "no link (cable, switch port, or driver)"
        for settings in mine:
            if settings.interface in self._leases:
                return self._leases[settings.interface].address
            if settings.how == "static":
                return ", ".join(settings.addresses)
        return "link is up, no address yet" if mine else "link is up, not used"


def global_addresses(host: Host, interfaces: Sequence[str]) -> list[str]:
    """The IPv6 addresses beyond the link that these interfaces have and may use (proc_net, if_inet6)."""
    found = []
    try:
        lines = (host.proc / "net" / "if_inet6").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        fields = line.split()
        if len(fields) == 6 and fields[3] == "00" and fields[5] in interfaces and not int(fields[4], 16) & _NOT_READY:
            found.append(":".join(fields[0][place : place + 4] for place in range(0, 32, 4)))
    return found


def _told(interface: str, lease: Lease) -> str:
    server = f" from {lease.server}" if lease.server else ""
    gateway = f", gateway {lease.gateways[0]}" if lease.gateways else ", no gateway"
    return f"{interface}: {lease.address}{server}{gateway}"
