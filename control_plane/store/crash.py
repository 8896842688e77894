"""A store that dies at a chosen transaction boundary: to rehearse every crash, of our own code and of a plugin's.

Count first, then die at each:

    counting = CrashingStore(store)
    await whole_story(counting)
    for boundary in range(counting.boundaries):
        crashing = CrashingStore(fresh_store(), at=boundary)
        with pytest.raises(Crash):
            await whole_story(crashing)
        await whole_story(crashing.store)  # the restarted process
"""

from collections.abc import Callable
from threading import Lock

from control_plane.store.port import ArgsT, Dialect, ResultT, Store, Transaction


class Crash(BaseException):
    """The process is gone. Not an `Exception`, so that no handler of the code under test survives it."""


class CrashingStore:
    """A `Store` around another one. A process that died does nothing more: all later calls raise `Crash` too.

    Every write that would commit has two boundaries, numbered from 0 in the order in which the writes get there: `2n`
    just before its commit (nothing of it is stored) and `2n + 1` just after (stored, but its caller never hears of
    it; its `after_commit` calls may be made). A write whose function raises has none.
    """

    def __init__(self, store: Store, *, at: int | None = None) -> None:
        self.store = store
        self.at = at
        self.crashed = False
        self._writes = 0
        self._lock = Lock()

    @property
    def boundaries(self) -> int:
        """How many were met so far."""
        return 2 * self._writes

    @property
    def dialect(self) -> Dialect:
        return self.store.dialect

    async def write(self, fn: Callable[[Transaction, *ArgsT], ResultT], *args: *ArgsT) -> ResultT:
        self._live()
        result, number = await self.store.write(self._until_commit, _Number(), fn, args)
        if 2 * number + 1 == self.at:
            self.crashed = True
        self._live()
        return result

    async def read(self, fn: Callable[[Transaction, *ArgsT], ResultT], *args: *ArgsT) -> ResultT:
        self._live()
        return await self.store.read(fn, *args)

    async def notify(self, channel: str, payload: str = "") -> None:
        self._live()
        await self.store.notify(channel, payload)

    def listen(self, channel: str, callback: Callable[[str], object]) -> Callable[[], None]:
        self._live()
        return self.store.listen(channel, lambda payload: None if self.crashed else callback(payload))

    async def close(self) -> None:
        """Does nothing: the store inside outlives the rehearsed process."""

    def _until_commit(
        self, tx: Transaction, number: "_Number", fn: Callable[[Transaction, *ArgsT], ResultT], args: tuple[*ArgsT]
    ) -> tuple[ResultT, int]:
        self._live()
        result = fn(tx, *args)
        with self._lock:
            # A function that is run again keeps the number of its first run.
            if number.value < 0:
                number.value = self._writes
                self._writes += 1
            if 2 * number.value == self.at:
                self.crashed = True
            self._live()
        return result, number.value

    def _live(self) -> None:
        if self.crashed:
            raise Crash(f"the process died at boundary {self.at}")


class _Number:
    """Which write it is; -1 before it first gets to its commit."""

    value = -1
