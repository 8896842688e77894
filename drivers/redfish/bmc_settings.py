"""A BMC's settings as Redfish shows them: reading them, checking what is wanted, planning what to send. Pure.

Sources: DSP2046 (ManagerNetworkProtocol, EthernetInterface, Manager), DSP0266 (PATCH of arrays). `HostName` of
ManagerNetworkProtocol is read-only by its schema and writable on some BMCs, so the interface's is tried first.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

from drivers.redfish.document import Document, boolean, dig, number, text
from drivers.redfish.manners import OemSettings
from protocol.errors import Issue
from protocol.shapes.config import NetworkProtocolConfig, SetConfig

__all__ = [
    "NOW",
    "Change",
    "Wish",
    "faults_of",
    "host_name_wish",
    "merge",
    "moment_of",
    "ntp_of",
    "ntp_wishes",
    "oem_ntp_of",
    "protocol_wishes",
    "protocols_of",
    "time_wishes",
]

NOW = "now"
_BLANK = frozenset({"", "0.0.0.0", "::", "N/A", "none"})  # noqa: S104
"""How fixed slots say that they are empty."""
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_SERVER = re.compile(r"[A-Za-z0-9._:%-]{1,255}")
_OFFSET = re.compile(r"[+-](0\d|1[0-4]):[0-5]\d")
_NOT_A_SWITCH = frozenset({"NTP", "Proxy"})
_CLOCK_TOLERANCE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Change:
    """What is sent to a resource, and how it reads there once it is done."""

    path: str
    body: Document
    holds: Callable[[Document], bool]


@dataclass(frozen=True, slots=True)
class Wish:
    """One field that is to change, and the ways to it, best first; another is tried where one is not writable."""

    field: str
    ways: tuple[Change, ...]


def protocols_of(network: Document | None) -> dict[str, NetworkProtocolConfig]:
    """The protocols that can be switched, under Redfish's names; NTP is a setting of its own."""
    found = {}
    for name, value in (network or {}).items():
        enabled = boolean(value, "ProtocolEnabled")
        if enabled is not None and name not in _NOT_A_SWITCH:
            found[name] = NetworkProtocolConfig(enabled=enabled, port=_port(value))
    return found


def ntp_of(network: Document | None) -> tuple[bool | None, list[str], list[str]]:
    """Whether it is on, the servers that were set, and those that the network supplies."""
    ntp = dig(network, "NTP")
    return (
        boolean(ntp, "ProtocolEnabled"),
        _servers(dig(ntp, "NTPServers")),
        _servers(dig(ntp, "NetworkSuppliedServers")),
    )


def oem_ntp_of(place: OemSettings, document: Document | None) -> tuple[bool | None, list[str], list[str]]:
    """The same from the vendor's own resource."""
    listed = [_at(document, name) for name in place.ntp_servers]
    servers = _servers(listed[0] if len(listed) == 1 else listed)
    switch = _at(document, place.ntp_enabled) if place.ntp_enabled else None
    enabled = None if not isinstance(switch, str) else switch == place.enabled_words[0]
    effective = _servers(_at(document, place.ntp_effective)) if place.ntp_effective else []
    return enabled, servers, [server for server in effective if server not in servers]


def moment_of(words: object) -> datetime | None:
    """A BMC's clock; None where it is none, or without an offset."""
    if not isinstance(words, str):
        return None
    try:
        moment = datetime.fromisoformat(words.strip())
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def faults_of(wanted: SetConfig, protocols: dict[str, NetworkProtocolConfig], own: Iterable[str]) -> list[Issue]:
    """Everything that is wrong with what is wanted. `protocols`: those that the BMC has; `own`: those that carry
    this very connection."""
    issues: list[Issue] = []
    name = wanted.host_name
    if name is not None and (len(name) > 255 or not all(_LABEL.fullmatch(label) for label in name.split("."))):
        issues.append(Issue("hostName", f"{name!r} is no host name", "letters, digits and hyphens between dots"))
    for number_of, server in enumerate(wanted.ntp_servers or ()):
        if not _SERVER.fullmatch(server) or server in _BLANK:
            issues.append(Issue(f"ntpServers[{number_of}]", f"{server!r} is no host name and no IP address"))
    if len(set(wanted.ntp_servers or ())) < len(wanted.ntp_servers or ()):
        issues.append(Issue("ntpServers", "names a server twice"))
    moment = moment_of(wanted.time)
    if wanted.time not in (None, NOW) and (moment is None or not 1970 < moment.year < 2200):
        issues.append(
            Issue("time", f"{wanted.time!r} is no time with an offset", "such as 2030-01-31T12:00:00Z, or now")
        )
    if wanted.time_offset is not None and not _OFFSET.fullmatch(wanted.time_offset):
        issues.append(Issue("timeOffset", f"{wanted.time_offset!r} is no offset", "such as +02:00"))
    issues += _protocol_faults(wanted.protocols or {}, protocols, set(own))
    urls = [destination.url for destination in wanted.event_destinations or ()]
    for number_of, url in enumerate(urls):
        if not _is_listener(url):
            issues.append(Issue(f"eventDestinations[{number_of}].url", f"{url!r} is no http or https address"))
        elif url in urls[:number_of]:
            issues.append(Issue(f"eventDestinations[{number_of}].url", "is given twice"))
    return issues


def _protocol_faults(
    wanted: dict[str, NetworkProtocolConfig], present: dict[str, NetworkProtocolConfig], own: set[str]
) -> list[Issue]:
    issues = []
    for name, setting in wanted.items():
        path = f"protocols.{name}"
        there = present.get(name)
        if there is None:
            by_case = {key.lower(): key for key in present}
            close = by_case.get(name.lower()) or next(iter(difflib.get_close_matches(name, present, 1)), None)
            hint = (
                f"did you mean {close}?" if close else f"it has {', '.join(present) or 'none that can be switched'}"
            )
            issues.append(Issue(path, "is not a protocol that this BMC can switch", hint))
            continue
        if setting.port is not None and not 1 <= setting.port <= 65535:
            issues.append(Issue(f"{path}.port", "must be between 1 and 65535"))
        if name in own and not setting.enabled:
            issues.append(Issue(path, "carries this very connection, which switching it off would cut for good"))
        elif name in own and setting.port not in (None, there.port):
            issues.append(
                Issue(
                    f"{path}.port", "is the port of this very connection", "change it at the BMC, and in its address"
                )
            )
    return issues


def protocol_wishes(path: str, network: Document, wanted: dict[str, NetworkProtocolConfig]) -> list[Wish]:
    """A wish for each protocol that differs."""
    present = protocols_of(network)
    wishes = []
    for name, setting in wanted.items():
        there = present[name]
        body: Document = {}
        if setting.enabled != there.enabled:
            body["ProtocolEnabled"] = setting.enabled
        if setting.port is not None and setting.port != there.port:
            body["Port"] = setting.port
        if body:
            wishes.append(Wish(f"protocols.{name}", (Change(path, {name: body}, _protocol_holds(name, setting)),)))
    return wishes


def ntp_wishes(
    wanted: SetConfig,
    network: tuple[str, Document] | None,
    oem: tuple[str, Document, OemSettings] | None,
) -> list[Wish]:
    """What differs of NTP: in the standard's place where the BMC has it, else (or where that is not writable) in the
    vendor's own."""
    standard = network if network is not None and isinstance(dig(network[1], "NTP"), dict) else None
    enabled, servers, _ = ntp_of(standard[1]) if standard else (None, [], [])
    if standard is None and oem is not None:
        enabled, servers, _ = oem_ntp_of(oem[2], oem[1])
    wishes = []
    if wanted.ntp_servers is not None and wanted.ntp_servers != servers:
        ways = [] if standard is None else list(_standard_servers(standard, wanted.ntp_servers))
        if oem is not None:
            ways += _oem_servers(*oem, wanted.ntp_servers)
        wishes.append(Wish("ntpServers", tuple(ways)))
    if wanted.ntp_enabled is not None and wanted.ntp_enabled != enabled:
        switch = wanted.ntp_enabled
        ways = []
        if standard is not None:
            ways.append(
                Change(standard[0], {"NTP": {"ProtocolEnabled": switch}}, lambda now: ntp_of(now)[0] is switch)
            )
        if oem is not None and oem[2].ntp_enabled:
            place = oem[2]
            word = place.enabled_words[0 if switch else 1]
            ways.append(
                Change(oem[0], _body_at(place.ntp_enabled, word), lambda now: oem_ntp_of(place, now)[0] is switch)
            )
        wishes.append(Wish("ntpEnabled", tuple(ways)))
    return wishes


def host_name_wish(
    name: str,
    network: tuple[str, Document] | None,
    interfaces: Sequence[tuple[str, Document]],
    oem: tuple[str, Document, OemSettings] | None,
) -> Wish | None:
    """None where the BMC has that name already."""
    present = text(network[1], "HostName") if network else None
    named = [(path, document) for path, document in interfaces if "HostName" in document]
    named = [pair for pair in named if boolean(pair[1], "InterfaceEnabled") is not False] or named
    # Of several ports (shared ones, the host's own) it is the one that bears the BMC's name.
    named.sort(
        key=lambda pair: text(pair[1], "HostName") != present if present else text(pair[1], "HostName") is None
    )
    written = named[0][1] if named else network[1] if network is not None else None
    if _same_name(text(written, "HostName"), name):
        return None
    ways = [Change(path, {"HostName": name}, _reads("HostName", name)) for path, _ in named[:1]]
    if network is not None and "HostName" in network[1]:
        ways.append(Change(network[0], {"HostName": name}, _reads("HostName", name)))
    if oem is not None and oem[2].host_name:
        place = oem[2].host_name
        ways.append(Change(oem[0], _body_at(place, name), lambda now: _same_name(_at(now, place), name)))
    return Wish("hostName", tuple(ways))


def time_wishes(path: str, manager: Document, wanted: SetConfig, clock: Callable[[], float]) -> list[Wish]:
    """`clock`: seconds that only ever go forward, so that the time that passes meanwhile is allowed for."""
    wishes = []
    offset = wanted.time_offset
    if offset is not None and text(manager, "DateTimeLocalOffset") != offset:
        ways = (Change(path, {"DateTimeLocalOffset": offset}, _reads("DateTimeLocalOffset", offset)),)
        wishes.append(Wish("timeOffset", ways if "DateTimeLocalOffset" in manager else ()))
    aim = datetime.now(UTC) if wanted.time == NOW else moment_of(wanted.time)
    shown = moment_of(manager.get("DateTime"))
    if aim is None or (shown is not None and abs(shown - aim) <= timedelta(seconds=2)):
        return wishes
    zone = _zone(offset) or (shown.tzinfo if shown is not None else None) or UTC
    begun, meant = clock(), aim

    def holds(now: Document) -> bool:
        read = moment_of(now.get("DateTime"))
        return read is not None and abs(read - meant - timedelta(seconds=clock() - begun)) <= _CLOCK_TOLERANCE

    words = aim.astimezone(zone).isoformat(timespec="seconds")
    if str(manager.get("DateTime")).endswith("Z"):
        words = words.replace("+00:00", "Z")
    clock_ways = (Change(path, {"DateTime": words}, holds),) if "DateTime" in manager else ()
    return [*wishes, Wish("time", clock_ways)]


def _standard_servers(network: tuple[str, Document], wanted: list[str]) -> Iterable[Change]:
    """The list as it is; where it is to become shorter, also with the rest named as gone, in the two forms in which
    services with fixed slots want that (null by DSP0266, else blank)."""
    path, document = network

    def holds(now: Document) -> bool:
        return ntp_of(now)[1] == wanted

    listed = dig(document, "NTP", "NTPServers")
    surplus = len(listed) - len(wanted) if isinstance(listed, list) else 0
    yield Change(path, {"NTP": {"NTPServers": wanted}}, holds)
    if surplus > 0:
        yield Change(path, {"NTP": {"NTPServers": [*wanted, *[None] * surplus]}}, holds)
        yield Change(path, {"NTP": {"NTPServers": [*wanted, *[""] * surplus]}}, holds)


def _oem_servers(path: str, document: Document, place: OemSettings, wanted: list[str]) -> list[Change]:
    slots = len(place.ntp_servers)
    if slots == 1:
        listed = _at(document, place.ntp_servers[0])
        slots = len(listed) if isinstance(listed, list) else len(wanted)
    if len(wanted) > slots:
        return []
    padded = [*wanted, *[""] * (slots - len(wanted))]
    body: Document = {}
    for name, value in zip(place.ntp_servers, [padded] if len(place.ntp_servers) == 1 else padded, strict=True):
        merge(body, _body_at(name, value))
    return [Change(path, body, lambda now: oem_ntp_of(place, now)[1] == wanted)]


def merge(body: Document, more: Document) -> None:
    """Adds the properties of one request to those of another, in place."""
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(body.get(name), dict):
            merge(body[name], value)
        else:
            body[name] = value


def _servers(listed: object) -> list[str]:
    """Names and addresses in their order; blank slots and strange types are left out (DGX writes " 192.0.2.7")."""
    found = [item.strip() for item in listed if isinstance(item, str)] if isinstance(listed, list) else []
    return [server for server in found if server not in _BLANK]


def _protocol_holds(name: str, setting: NetworkProtocolConfig) -> Callable[[Document], bool]:
    def holds(now: Document) -> bool:
        there = protocols_of(now).get(name)
        return there is not None and there.enabled is setting.enabled and setting.port in (None, there.port)

    return holds


def _reads(name: str, value: str) -> Callable[[Document], bool]:
    return lambda now: _same_name(text(now, name), value)


def _same_name(one: object, other: str) -> bool:
    return isinstance(one, str) and one.strip().lower() == other.lower()


def _port(value: object) -> int | None:
    found = number(value, "Port")
    return int(found) if found is not None and 0 < found < 65536 else None


def _at(document: Document | None, place: str) -> Any:
    return dig(document, *place.split("/"))


def _body_at(place: str, value: object) -> Document:
    for step in reversed(place.split("/")):
        value = {step: value}
    return value if isinstance(value, dict) else {}


def _zone(offset: str | None) -> timezone | None:
    if offset is None:
        return None
    sign = -1 if offset[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(offset[1:3]), minutes=int(offset[4:6])))


def _is_listener(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return False
