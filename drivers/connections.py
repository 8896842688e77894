"""The open connections of one process: one per BMC and driver, so that a BMC sees one session and one owner."""

import asyncio
import contextlib
from collections.abc import Iterator

from drivers.driver import Connection, Driver, Environment
from drivers.pins import pinned_now
from drivers.target import Target
from protocol.addresses import TlsMode, TlsPolicy

__all__ = ["Connections"]


class _Held:
    """A connection, what it was made with, and how many operations use it now."""

    __slots__ = ("connection", "credential", "tls", "users")

    def __init__(self, connection: Connection, target: Target) -> None:
        self.connection = connection
        self.credential = target.credential_key
        self.tls = target.tls
        self.users = 0


class Connections:
    """Hands out connections. A changed credential or trust makes a new one; the old one is logged out once the last
    operation that uses it has ended."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._held: dict[tuple[str, str], _Held] = {}
        self._replaced: set[_Held] = set()
        """Each in use still."""
        self._closing: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def use(self, driver: Driver, target: Target) -> Iterator[Connection]:
        """The connection for one operation: it is not logged out before the block ends."""
        held = self._find(driver, target)
        held.users += 1
        try:
            yield held.connection
        finally:
            held.users -= 1
            if not held.users and held in self._replaced:
                self._replaced.discard(held)
                self._log_out(held.connection)

    def get(self, driver: Driver, target: Target) -> Connection:
        """The connection, for whoever looks at it between operations."""
        return self._find(driver, target).connection

    async def aclose(self) -> None:
        """Ends every session at its BMC, also those of replaced connections, whoever uses them still."""
        held, self._held, self._replaced = [*self._held.values(), *self._replaced], {}, set()
        await asyncio.gather(*(one.connection.aclose() for one in held), *self._closing)

    def _find(self, driver: Driver, target: Target) -> _Held:
        place = (driver.name, target.endpoint)
        held = self._held.get(place)
        if held is not None and held.credential == target.credential_key and self._trusts_the_same(held.tls, target):
            return held
        fresh = self._held[place] = _Held(driver.connect(target, self._environment), target)
        if held is not None and held.users:
            self._replaced.add(held)
        elif held is not None:
            self._log_out(held.connection)
        return fresh

    def _trusts_the_same(self, tls: TlsPolicy, target: Target) -> bool:
        """Also after `first-use` became the very certificate that was seen, and where two pins stand for one
        certificate: that is no reason for a new login."""
        if tls == target.tls:
            return True
        if tls.mode is target.tls.mode is TlsMode.PIN:
            known = self._environment.pins
            return pinned_now(known, target.endpoint, tls.value) == pinned_now(
                known, target.endpoint, target.tls.value
            )
        pinned = self._environment.pins.get(target.endpoint)
        return tls.mode is TlsMode.FIRST_USE and target.tls == TlsPolicy(TlsMode.PIN, pinned or "")

    def _log_out(self, connection: Connection) -> None:
        task = asyncio.get_running_loop().create_task(connection.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
