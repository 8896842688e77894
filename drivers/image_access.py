"""From where this host fetches images by itself, and from where it does not: decision D54.

An operator of the control plane names the address, and the site's host can reach more than the operator can: its own
services, and what a cloud tells its hosts at a link-local address. So these are not fetched from, unless the site's
own configuration says so. What counts is the address that is connected to, each time: a name may lead to another one
than it did a moment ago, and a server may redirect to anywhere.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin, urlsplit

from protocol.errors import ErrorCode, OperationError

if TYPE_CHECKING:
    import aiohttp

__all__ = ["ForbiddenAddress", "ImageAccess", "parse_allowed"]

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_AddressInfo = tuple[Any, Any, int, str, tuple[Any, ...]]
_THIS_HOST: Final = ipaddress.IPv4Network("0.0.0.0/8")
"""Linux takes it for loopback (RFC 1122, 3.2.1.3: this host on this network)."""
_TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv4 by a translator (RFC 6052)."""


class ForbiddenAddress(OSError):
    """A connection that was not made. The text says why, and what to configure where it is meant."""


class ImageAccess:
    """`allow`: networks that are fetched from although they are this host or link-local, each alone or with a port.
    `everywhere`: nothing is asked, for a program that a user of this very host has started."""

    def __init__(self, allow: Iterable[str] = (), *, everywhere: bool = False) -> None:
        """Raises ValueError as `parse_allowed`."""
        self._allowed = [parse_allowed(text) for text in allow]
        self._everywhere = everywhere

    def check(self, url: str) -> None:
        """By what the address itself says; nothing is asked of the network. Raises ForbiddenAddress."""
        parts = urlsplit(url)
        if parts.scheme.lower() not in ("http", "https"):
            raise ForbiddenAddress("images are fetched over http and https only")
        if parts.hostname is not None and _literal(parts.hostname) is not None:
            self._check_address(parts.hostname, parts.port or (443 if parts.scheme.lower() == "https" else 80))

    def session(self, *, proxies: Mapping[str, str] | None = None, **options: Any) -> aiohttp.ClientSession:
        """A client whose connections, those of redirects too, lead nowhere else: they end in ForbiddenAddress, alone
        or as the cause of a ClientError. `proxies`: those of the environment, which the site's admin has set; they
        are connected to, and what lies behind them is theirs to decide."""
        import aiohttp

        if self._everywhere:
            return aiohttp.ClientSession(**options)
        known = set(_endpoints(proxies or {}))

        def open_socket(info: _AddressInfo) -> socket.socket:
            family, kind, protocol, _, place = info
            if (str(place[0]), int(place[1])) not in known:
                self._check_address(str(place[0]), int(place[1]))
            return socket.socket(family, kind, protocol)

        async def redirected(_session: object, _context: object, told: aiohttp.TraceRequestRedirectParams) -> None:
            location = told.response.headers.get("Location") or told.response.headers.get("URI") or ""
            self.check(urljoin(str(told.url), location))

        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(redirected)
        connector = aiohttp.TCPConnector(socket_factory=open_socket)
        return aiohttp.ClientSession(connector=connector, trace_configs=[trace], **options)

    def refusal(self, error: BaseException, shown: str) -> OperationError | None:
        """What an operator is told, where an error of the client comes from a forbidden address. `shown`: the image,
        as an operator may see it."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ForbiddenAddress):
            cause = getattr(cause, "os_error", None) or cause.__cause__ or cause.__context__
        if cause is None:
            return None
        return OperationError(ErrorCode.INVALID_ARGUMENT, f"{shown} is not fetched: {cause}")

    def _check_address(self, text: str, port: int) -> None:
        address = _literal(text)
        if address is None:
            raise ForbiddenAddress(f"{text} is no address of the internet protocol")
        meant = _meant(address)
        why = _why_not(meant)
        if why is None or self._everywhere:
            return
        for network, only_port in self._allowed:
            if any(one.version == network.version and one in network for one in (meant, address)) and only_port in (
                None,
                port,
            ):
                return
        raise ForbiddenAddress(
            f"{meant} is {why}, where images do not come from unless the site says so: where it is meant, set "
            f'[images] allow = ["{meant}"] in agent.toml on the site host'
        )


def parse_allowed(text: str) -> tuple[_Network, int | None]:
    """`192.0.2.7`, `192.0.2.0/24`, `192.0.2.7:8080`, `::1` or `[::1]:8080`: a network, and the port where only that
    one is meant. Raises ValueError."""
    host, port = text.strip(), None
    if host.startswith("["):
        host, bracket, rest = host[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(_FORMS.format(text))
        port = rest[1:] if rest else None
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    try:
        network = ipaddress.ip_network(host, strict=False)
    except ValueError:
        raise ValueError(_FORMS.format(text)) from None
    if port is not None and not (port.isdecimal() and 0 < int(port) < 65_536):
        raise ValueError(_FORMS.format(text))
    return network, None if port is None else int(port)


_FORMS: Final = "{!r} is no address or network: write 192.0.2.7, 192.0.2.0/24, 192.0.2.7:8080 or [::1]:8080"


def _literal(host: str) -> _Address | None:
    """None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


def _meant(address: _Address) -> _Address:
    """The IPv4 address that an IPv6 one stands for."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return inner or address
    return address


def _why_not(address: _Address) -> str | None:
    if address.is_loopback or address.is_unspecified or (address.version == 4 and address in _THIS_HOST):
        return "the site host itself"
    if address.is_link_local:
        return "a link-local address"
    return None


def _endpoints(proxies: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Where the proxies are; one that is named is among this host's own only as `localhost`."""
    for scheme, address in proxies.items():
        parts = urlsplit(address if "://" in address else f"http://{address}")
        port = parts.port or (443 if scheme == "https" else 80)
        hosts = ("127.0.0.1", "::1") if parts.hostname == "localhost" else (parts.hostname or "",)
        yield from ((host, port) for host in hosts)
