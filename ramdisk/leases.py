"""What a DHCP server has said, as udhcpc's script leaves it in a file. Pure.

The script only writes its variables down (README.udhcp of busybox); what follows from them is decided here.
"""

import ipaddress
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["SCRIPT", "Lease", "Route", "parse_lease", "parse_report"]

_NAMES = "ip subnet mask router dns domain search mtu lease serverid staticroutes message"
SCRIPT = f"""#!/bin/sh
out="$RACKWRIGHT_LEASES/$interface.lease"
umask 077
{{
    echo "event=$1"
    for name in {_NAMES}; do
        eval "value=\\$$name"
        printf '%s=%s\\n' "$name" "$value"
    done
}} >"$out.new" && mv "$out.new" "$out"
"""


class Route(NamedTuple):
    """`gateway` None: on the link itself."""

    network: str
    gateway: str | None


class Lease(NamedTuple):
    """`address` with its prefix. `seconds`: for how long."""

    address: str
    gateways: tuple[str, ...]
    routes: tuple[Route, ...]
    dns: tuple[str, ...]
    search: tuple[str, ...]
    mtu: int | None
    seconds: int | None
    server: str | None


def parse_report(text: str) -> dict[str, str]:
    """The first value of each name: what a server put behind a line feed is none of its own."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator:
            found.setdefault(name, value.strip())
    return found


def parse_lease(report: Mapping[str, str]) -> Lease:
    """Raises ValueError where the server gave no usable address. Whatever else cannot be read is left out."""
    prefix = report.get("mask") or _prefix(report.get("subnet", "")) or "24"
    address = ipaddress.IPv4Interface(f"{report.get('ip', '')}/{prefix}")
    classless = _routes(report.get("staticroutes", ""))
    default = [route.gateway for route in classless if route.network == "0.0.0.0/0" and route.gateway]
    # With classless routes the router option must be ignored (RFC 3442).
    gateways = default if classless else list(_addresses(report.get("router", "")))
    mtu = report.get("mtu", "")
    seconds = report.get("lease", "")
    search = (report.get("search") or report.get("domain") or "").split()
    return Lease(
        address=str(address),
        gateways=tuple(gateways),
        routes=tuple(route for route in classless if route.network != "0.0.0.0/0"),
        dns=tuple(_addresses(report.get("dns", ""))),
        search=tuple(word for word in search if word.replace("-", "").replace(".", "").isalnum()),
        mtu=int(mtu) if mtu.isdecimal() and 576 <= int(mtu) <= 65535 else None,
        seconds=int(seconds) if seconds.isdecimal() else None,
        server=next(iter(_addresses(report.get("serverid", ""))), None),
    )


def _prefix(subnet: str) -> str:
    try:
        return str(ipaddress.IPv4Network(f"0.0.0.0/{subnet}").prefixlen)
    except ValueError:
        return ""


def _addresses(words: str) -> list[str]:
    found = []
    for word in words.split():
        try:
            found.append(str(ipaddress.IPv4Address(word)))
        except ValueError:
            continue
    return found


def _routes(words: str) -> list[Route]:
    """`network/prefix gateway network/prefix gateway …`; the gateway 0.0.0.0 stands for the link itself."""
    pairs = words.split()
    found = []
    for network, gateway in zip(pairs[::2], pairs[1::2], strict=False):
        try:
            parsed = ipaddress.IPv4Network(network, strict=False)
            towards = ipaddress.IPv4Address(gateway)
        except ValueError:
            continue
        found.append(Route(str(parsed), None if towards == ipaddress.IPv4Address(0) else str(towards)))
    return found
