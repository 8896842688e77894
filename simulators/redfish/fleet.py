"""Many simulated BMCs in one process, from one tree: each with its own state, on its own port or address."""

import asyncio
import ipaddress
import resource
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from simulators.redfish.behaviour import Behaviour
from simulators.redfish.options import Account, ServiceOptions
from simulators.redfish.server import DEFAULT_USERS, RedfishServer
from simulators.redfish.timeline import Clock
from simulators.redfish.tls import TlsMaterial
from simulators.redfish.tree import OWN_TREE, RecordedTree

FILES_PER_BMC = 4  # its listener, and room for a few connections


class RedfishFleet:
    """`count` BMCs that share one parsed tree and one certificate.

    Without `first_address` all listen on `host`, each on a free port (or on `port`, `port` + 1, …).
    With it, they listen on consecutive addresses (`127.1.0.1`, …), all on the same port; `port` 0 then
    takes whichever is free on the first address. Journals are short; set `journal_size` for more.
    """

    def __init__(
        self,
        tree: Path | str | RecordedTree | None = None,
        count: int = 1,
        *,
        users: Mapping[str, str | Account] = DEFAULT_USERS,
        tls: bool | TlsMaterial = False,
        host: str = "127.0.0.1",
        port: int = 0,
        first_address: str | None = None,
        latency: float = 0.0,
        options: ServiceOptions | None = None,
        behaviour: Behaviour | str | None = None,
        journal_size: int = 50,
        control: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        if count < 1:
            raise ValueError(f"a fleet needs one BMC or more, not {count}")
        self.tree = tree if isinstance(tree, RecordedTree) else RecordedTree.load(Path(tree or OWN_TREE))
        self.tls = (TlsMaterial.self_signed((first_address or host, "localhost")) if tls is True else tls) or None
        # One alone may have its certificate replaced; many share theirs, and show what the tree has recorded.
        context = self.tls.server_context() if self.tls and count > 1 else None
        hosts = consecutive_addresses(first_address, count) if first_address else [host] * count
        self._same_port = first_address is not None
        self.servers = [
            RedfishServer(
                self.tree,
                users=users,
                host=hosts[number],
                port=port if self._same_port or port == 0 else port + number,
                latency=latency,
                options=options,
                behaviour=behaviour,
                journal_size=journal_size,
                control=control,
                clock=clock,
                tls=self.tls if count == 1 and self.tls else False,
                ssl_context=context,
            )
            for number in range(count)
        ]

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    @property
    def requests(self) -> int:
        """How many requests all BMCs have received."""
        return sum(server.journal.total for server in self.servers)

    def __iter__(self) -> Iterator[RedfishServer]:
        return iter(self.servers)

    def __len__(self) -> int:
        return len(self.servers)

    def __getitem__(self, number: int) -> RedfishServer:
        return self.servers[number]

    async def start(self) -> None:
        """Starts all; where one cannot start, those that did are stopped and the error is raised."""
        raise_file_limit(len(self.servers) * FILES_PER_BMC + 256)
        try:
            for server in self.servers:
                if self._same_port and server.port == 0:
                    server.port = self.servers[0].port
                await server.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self.servers))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def consecutive_addresses(first: str, count: int) -> list[str]:
    """`count` addresses from `first` on. ValueError where they would leave the loopback network."""
    start = ipaddress.ip_address(first)
    addresses = [start + number for number in range(count)]
    outside = [str(address) for address in addresses if not address.is_loopback]
    if outside:
        raise ValueError(f"simulated BMCs live on loopback addresses only; {outside[0]} is none")
    return [str(address) for address in addresses]


def raise_file_limit(wanted: int) -> None:
    """Raises the soft limit of open files as far as the hard limit lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
