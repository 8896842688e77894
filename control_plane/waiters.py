"""Whoever waits for a command to end, in this process.

An ending is told by the SETTLED channel, which is a hint only: every two seconds the table is asked, which is the
truth. Endings that are told together are read together.
"""

import asyncio
from collections.abc import Callable

from control_plane.commands import SETTLED_CHANNEL
from control_plane.records import CommandRow, columns
from control_plane.store import Store, StoreError, Transaction
from protocol.commands import TERMINAL

__all__ = ["Waiters"]

_POLL_SECONDS = 2.0
_ENDED = [state.value for state in TERMINAL]


class Waiters:
    """One for each process. `watch` before the command is stored, so that no ending falls between."""

    def __init__(self, store: Store, *, poll_seconds: float = _POLL_SECONDS) -> None:
        self._store = store
        self._poll_seconds = poll_seconds
        self._futures: dict[str, list[asyncio.Future[CommandRow | None]]] = {}
        self._told: set[str] = set()
        self._wake = asyncio.Event()
        self._stop_listening: Callable[[], None] = lambda: None
        self._reader: asyncio.Task[None] | None = None
        self._closed = False
        self.seen: Callable[[CommandRow], object] = lambda _: None
        """Told of each command that was stored here, and of each ending that somebody here waited for."""

    def start(self) -> None:
        self._stop_listening = self._store.listen(SETTLED_CHANNEL, self._hint)
        self._reader = asyncio.create_task(self._read(), name="waiters")

    async def stop(self) -> None:
        """Lets everybody who waits go on without an ending."""
        self._closed = True
        self._stop_listening()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        for futures in self._futures.values():
            for future in futures:
                if not future.done():
                    future.set_result(None)

    def watch(self, command_id: str) -> "Watch":
        return Watch(self, command_id)

    def resolve(self, row: CommandRow) -> None:
        """This command has ended, durably."""
        waiting = [future for future in self._futures.get(row.id, ()) if not future.done()]
        for future in waiting:
            future.set_result(row)
        if waiting:
            self.seen(row)

    def add(self, command_id: str) -> asyncio.Future[CommandRow | None]:
        future: asyncio.Future[CommandRow | None] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_result(None)
        self._futures.setdefault(command_id, []).append(future)
        return future

    def remove(self, command_id: str, future: asyncio.Future[CommandRow | None]) -> None:
        futures = self._futures.get(command_id, [])
        if future in futures:
            futures.remove(future)
        if not futures:
            self._futures.pop(command_id, None)

    def _hint(self, command_id: str) -> None:
        if not command_id:
            # Hints may have been missed: everything is asked for.
            self._told.update(self._futures)
        elif command_id in self._futures:
            self._told.add(command_id)
        if self._told:
            self._wake.set()

    async def _read(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._poll_seconds):
                    await self._wake.wait()
            except TimeoutError:
                self._told.update(self._futures)
            self._wake.clear()
            told, self._told = self._told, set()
            wanted = [command_id for command_id in told if self._unresolved(command_id)]
            if not wanted:
                continue
            try:
                rows = await self._store.read(_ended, wanted)
            except StoreError:
                # The next poll asks again; whoever waits runs into its own time limit.
                continue
            for row in rows:
                self.resolve(row)

    def _unresolved(self, command_id: str) -> bool:
        return any(not future.done() for future in self._futures.get(command_id, ()))


class Watch:
    """A place in the queue for one command's ending. To be used with `with`."""

    def __init__(self, waiters: Waiters, command_id: str) -> None:
        self._waiters = waiters
        self._command_id = command_id
        self._future: asyncio.Future[CommandRow | None] | None = None

    def __enter__(self) -> "Watch":
        self._future = self._waiters.add(self._command_id)
        return self

    def __exit__(self, *_: object) -> None:
        if self._future is not None:
            self._waiters.remove(self._command_id, self._future)
            self._future = None

    async def ended(self, seconds: float) -> CommandRow | None:
        """The command as it ended; None when it has not within that time, or the process is stopping."""
        if self._future is None:
            raise RuntimeError("a watch is used inside its with block")
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._future)
        except TimeoutError:
            return None


def _ended(tx: Transaction, ids: list[str]) -> list[CommandRow]:
    return tx.all(
        f"SELECT {columns(CommandRow)} FROM commands WHERE id IN EACH(:ids) AND state IN EACH(:ended)",
        {"ids": ids, "ended": _ENDED},
        into=CommandRow,
    )
