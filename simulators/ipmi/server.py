"""UDP skins over the BMC core: one BMC, many BMCs in one process, and a runner for code without an event loop."""

import asyncio
import contextlib
import ipaddress
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar, cast

from simulators.ipmi.bmc import IpmiBmc
from simulators.ipmi.conversation import Outgoing
from simulators.ipmi.journal import JournalEntry
from simulators.ipmi.sessions import Address

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class _Port(asyncio.DatagramProtocol):
    """Carries datagrams between one socket and one BMC, and wakes the BMC when it has work."""

    def __init__(self, bmc: IpmiBmc, loop: asyncio.AbstractEventLoop) -> None:
        self._bmc = bmc
        self._loop = loop
        self._transport: asyncio.DatagramTransport | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._sends: set[asyncio.TimerHandle] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Python 3.11's own datagram transport is no subclass of DatagramTransport.
        self._transport = cast("asyncio.DatagramTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._alarm is not None:
            self._alarm.cancel()
        for handle in self._sends:
            handle.cancel()
        self._sends.clear()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._send(self._bmc.receive(data, (addr[0], addr[1])))
        self.set_alarm()

    def error_received(self, exc: Exception) -> None:
        log.debug("a client's port is closed: %s", exc)

    def set_alarm(self) -> None:
        """Call the BMC again when its next work falls due."""
        due = self._bmc.next_due()
        if due is None or (self._alarm is not None and self._alarm_at <= due):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = due
        self._alarm = self._loop.call_later(max(0.0, due - self._bmc.clock()), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._send(self._bmc.tick())
        self.set_alarm()

    def _send(self, packets: list[Outgoing]) -> None:
        for packet in packets:
            if packet.after <= 0:
                self._send_now(packet)
            else:
                self._send_later(packet)

    def _send_later(self, packet: Outgoing) -> None:
        def send() -> None:
            self._sends.discard(handle)
            self._send_now(packet)

        handle = self._loop.call_later(packet.after, send)
        self._sends.add(handle)

    def _send_now(self, packet: Outgoing) -> None:
        if self._transport is not None:
            self._transport.sendto(packet.packet, packet.peer)


class IpmiServer:
    """One BMC on one UDP port. An async context manager; port 0 lets the system choose."""

    def __init__(self, bmc: IpmiBmc | None = None, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.bmc = bmc or IpmiBmc()
        self.host = host
        self.port = port
        self._transport: asyncio.DatagramTransport | None = None

    @property
    def address(self) -> Address:
        """Where the BMC listens; the real port once it is started."""
        return self.host, self.port

    async def start(self) -> None:
        """Bind the port. Raises OSError where it is taken."""
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_datagram_endpoint(
            lambda: _Port(self.bmc, loop), local_addr=(self.host, self.port)
        )
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]
        self.bmc.port = self.port
        self.bmc.on_work = protocol.set_alarm

    async def stop(self) -> None:
        """Close the port; answers that still wait are not sent."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None
            await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def seen(self, wanted: Callable[[JournalEntry], bool], timeout: float = 10.0) -> JournalEntry:
        """Wait for a journal entry that fits, past ones included. Raises TimeoutError."""
        found: asyncio.Future[JournalEntry] = asyncio.get_running_loop().create_future()

        def look(entry: JournalEntry) -> None:
            if not found.done() and wanted(entry):
                found.set_result(entry)

        self.bmc.journal.on_entry.append(look)
        try:
            for entry in self.bmc.journal:
                look(entry)
            return await asyncio.wait_for(found, timeout)
        finally:
            self.bmc.journal.on_entry.remove(look)


class IpmiFleet:
    """Many BMCs in one process: on consecutive or free ports of one address, or on one port of many addresses.

    With `addresses` the BMCs listen on `host`, `host` + 1, … (127.0.1.1, 127.0.1.2, …), all on `port`.
    Without it they listen on `port`, `port` + 1, …; port 0 takes free ports.
    """

    def __init__(
        self, bmcs: Iterable[IpmiBmc], *, host: str = "127.0.0.1", port: int = 0, addresses: bool = False
    ) -> None:
        first = ipaddress.ip_address(host)
        self.servers: Sequence[IpmiServer] = [
            IpmiServer(
                bmc,
                host=str(first + number) if addresses else host,
                port=port if addresses or not port else port + number,
            )
            for number, bmc in enumerate(bmcs)
        ]
        self._shared_port = addresses

    @property
    def bmcs(self) -> list[IpmiBmc]:
        """The BMCs, in the order of their servers."""
        return [server.bmc for server in self.servers]

    async def start(self) -> None:
        """Bind every port, or none: where one is taken, those bound already are closed again."""
        started: list[IpmiServer] = []
        try:
            for server in self.servers:
                if self._shared_port and started and not server.port:
                    server.port = started[0].port
                await server.start()
                started.append(server)
        except OSError:
            for server in started:
                await server.stop()
            raise

    async def stop(self) -> None:
        """Close every port."""
        for server in self.servers:
            await server.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class IpmiServerThread:
    """Runs servers on an event loop of their own thread, for code that has none. A context manager.

    State that a test reads (power, journal) may be read from any thread; changes go through `call`.
    """

    def __init__(self, servers: IpmiServer | IpmiFleet) -> None:
        self.servers = servers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="ipmi-simulator", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join()

    def call(self, work: Callable[[], Result]) -> Result:
        """Do some work on the servers' own thread, and give its result."""
        if self._loop is None:
            raise RuntimeError("the servers are not started: enter the context manager first")

        async def run() -> Result:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self.servers.start()
        except OSError as error:
            self._failure = error
            return
        finally:
            self._ready.set()
        try:
            await self._stop.wait()
        finally:
            await self.servers.stop()
