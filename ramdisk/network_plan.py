"""What is done to each port: decided from the ticket and from what DHCP says, as words of the program ip. Pure."""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from protocol.boot_ticket import TicketInterface, TicketNetwork
from ramdisk.leases import Lease

__all__ = [
    "Plan",
    "Port",
    "Settings",
    "commands_for_lease",
    "commands_for_static",
    "make_plan",
    "port_order",
    "resolver_text",
]

Command = tuple[str, ...]
_FIRST_METRIC = 100
_METRIC_STEP = 10


class Port(NamedTuple):
    """A port with hardware behind it. `order`: 0 for the one that the firmware would start from first."""

    name: str
    mac: str
    order: int = 0

    @property
    def known_as(self) -> str:
        return f"{self.name} ({self.mac})"


class Settings(NamedTuple):
    """How one network interface is set: the port itself, or a VLAN on it."""

    interface: str
    port: Port
    how: Literal["dhcp", "static"]
    vlan: int | None = None
    addresses: tuple[str, ...] = ()
    gateway: str | None = None
    dns: tuple[str, ...] = ()

    @property
    def metric(self) -> int:
        """The port that comes first is preferred for the way out."""
        return _FIRST_METRIC + _METRIC_STEP * self.port.order


class Plan(NamedTuple):
    settings: tuple[Settings, ...]
    faults: tuple[str, ...]
    """What the ticket asks for and cannot be had, in words."""


def make_plan(ports: Sequence[Port], network: TicketNetwork) -> Plan:
    """DHCP on every port where the ticket names none. Where it names only ports that this machine does not have (a
    replaced card), DHCP is tried on every port as well, since a machine that is reached can be told."""
    by_mac = {port.mac.lower(): port for port in ports}
    settings, faults = [], []
    for asked in network.interfaces:
        port = by_mac.get(asked.mac.lower())
        if port is None:
            faults.append(f"the ticket names the port {asked.mac}, which this machine does not have")
            continue
        found, wrong = _settings(port, asked)
        faults += wrong
        if found is not None:
            settings.append(found)
    if not settings:
        settings = [Settings(port.name, port, "dhcp") for port in ports]
        if network.interfaces and ports:
            faults.append("no port of the ticket can be used: every port is asked for an address by DHCP")
    return Plan(tuple(settings), tuple(faults))


def _settings(port: Port, asked: TicketInterface) -> tuple[Settings | None, list[str]]:
    faults = []
    addresses: list[str] = []
    for text in asked.addresses:
        try:
            addresses.append(str(ipaddress.ip_interface(text)))
        except ValueError:
            faults.append(f"{text!r} for {port.known_as} is no address with a prefix, such as 192.0.2.5/24")
    gateway = asked.gateway
    if gateway is not None and not _is_address(gateway):
        faults.append(f"{gateway!r} is no gateway's address")
        gateway = None
    dns = tuple(server for server in asked.dns if _is_address(server))
    faults += [f"{server!r} is no name server's address" for server in asked.dns if server not in dns]
    if asked.addresses and not addresses:
        return None, faults
    # A kernel's name for an interface has 15 letters.
    suffix = "" if asked.vlan is None else f".{asked.vlan}"
    interface = port.name[: 15 - len(suffix)] + suffix
    how: Literal["dhcp", "static"] = "static" if addresses else "dhcp"
    return Settings(interface, port, how, asked.vlan, tuple(addresses), gateway, dns), faults


def commands_for_static(settings: Settings) -> list[Command]:
    """Each may be repeated."""
    commands: list[Command] = [
        ("addr", "replace", address, "dev", settings.interface) for address in settings.addresses
    ]
    if settings.gateway is not None:
        commands += _default(settings, settings.gateway, _is_on_link(settings.gateway, settings.addresses))
    return commands


def commands_for_lease(settings: Settings, lease: Lease) -> list[Command]:
    """Each may be repeated."""
    commands: list[Command] = []
    if lease.mtu is not None:
        commands.append(("link", "set", "dev", settings.interface, "mtu", str(lease.mtu)))
    life = ("valid_lft", str(lease.seconds), "preferred_lft", str(lease.seconds)) if lease.seconds else ()
    commands.append(("addr", "replace", lease.address, "dev", settings.interface, *life))
    for route in lease.routes:
        via = () if route.gateway is None else ("via", route.gateway)
        commands.append(
            ("route", "replace", route.network, *via, "dev", settings.interface, "metric", str(settings.metric))
        )
    gateway = settings.gateway or next(iter(lease.gateways), None)
    if gateway is not None:
        commands += _default(settings, gateway, _is_on_link(gateway, (lease.address,)))
    return commands


def _default(settings: Settings, gateway: str, on_link: bool) -> list[Command]:
    """A gateway outside of the address' own network (a /32, a link-local one) is reached on the link itself."""
    family = ("-6",) if ":" in gateway else ("-4",)
    where = ("dev", settings.interface, *(() if on_link else ("onlink",)))
    return [(*family, "route", "replace", "default", "via", gateway, *where, "metric", str(settings.metric))]


def resolver_text(servers: Iterable[str], search: Iterable[str] = ()) -> str:
    """`resolv.conf`: three servers are all that resolvers read (resolv.conf(5))."""
    names = list(dict.fromkeys(servers))[:3]
    domains = list(dict.fromkeys(search))[:6]
    lines = [f"search {' '.join(domains)}"] if domains else []
    return "".join(f"{line}\n" for line in [*lines, *(f"nameserver {server}" for server in names)])


def port_order(names: Mapping[str, str], boot: Sequence[str]) -> list[Port]:
    """Ports by name and MAC address, in the order in which the firmware starts from them. Pure."""
    ranked = sorted(
        names.items(), key=lambda item: (boot.index(item[1]) if item[1] in boot else len(boot), len(item[0]), item[0])
    )
    return [Port(name, mac, order) for order, (name, mac) in enumerate(ranked)]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_on_link(gateway: str, addresses: Iterable[str]) -> bool:
    towards = ipaddress.ip_address(gateway)
    return any(towards in ipaddress.ip_interface(address).network for address in addresses)
