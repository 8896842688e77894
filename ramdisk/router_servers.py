"""The name servers that routers announce over IPv6 (RDNSS, RFC 8106): the kernel takes the addresses and routes of an
advertisement itself, and only hands these on."""

import ipaddress
import socket
import struct

__all__ = ["RouterServers", "servers_of"]

_GROUP_ND_USEROPT = 1 << 19
_NEW_ND_USEROPT = 68
_HEADER, _MESSAGE = 16, 16
_RDNSS = 25
_LARGEST = 1 << 16


class RouterServers:
    """Listens only; nothing is sent. Where the kernel has no such messages, it hears nothing."""

    def __init__(self) -> None:
        self._servers: dict[str, None] = {}
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Before the links are up, since an advertisement may come at once."""
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            self._socket.setblocking(False)
            self._socket.bind((0, _GROUP_ND_USEROPT))
        except OSError:
            self.close()

    def servers(self) -> list[str]:
        """Every one that was announced so far and not taken back."""
        while self._socket is not None:
            try:
                data = self._socket.recv(_LARGEST)
            except OSError:
                break
            for address, lifetime in servers_of(data):
                if lifetime:
                    self._servers[address] = None
                else:
                    self._servers.pop(address, None)
        return list(self._servers)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def servers_of(data: bytes) -> list[tuple[str, int]]:
    """Addresses and their lifetime in seconds, of what the kernel wrote (linux/rtnetlink.h, nduseroptmsg). Pure."""
    found = []
    place = 0
    while place + _HEADER + _MESSAGE <= len(data):
        length, kind = struct.unpack_from("=IH", data, place)
        if length < _HEADER + _MESSAGE or place + length > len(data):
            break
        if kind == _NEW_ND_USEROPT:
            size = struct.unpack_from("=H", data, place + _HEADER + 2)[0]
            scope = struct.unpack_from("=i", data, place + _HEADER + 4)[0]
            start = place + _HEADER + _MESSAGE
            found += _servers(data[start : min(start + size, place + length)], scope)
        place += -(-length // 4) * 4
    return found


def _servers(option: bytes, interface: int) -> list[tuple[str, int]]:
    if len(option) < 24 or option[0] != _RDNSS:
        return []
    lifetime = int.from_bytes(option[4:8])
    size = min(option[1] * 8, len(option))
    found = []
    for place in range(8, size - 15, 16):
        address = ipaddress.IPv6Address(option[place : place + 16])
        if address.is_link_local:
            try:
                found.append((f"{address}%{socket.if_indextoname(interface)}", lifetime))
            except OSError:
                continue
        else:
            found.append((str(address), lifetime))
    return found
