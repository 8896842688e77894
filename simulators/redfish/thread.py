"""A simulated BMC beside synchronous code: a server with its own event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from simulators.redfish.faults import FaultBook
from simulators.redfish.journal import RequestJournal
from simulators.redfish.server import RedfishServer
from simulators.redfish.state import MachineState

T = TypeVar("T")


class RedfishServerThread:
    """Takes what RedfishServer takes. A context manager: it serves inside, and its thread is gone after.

    `journal`, `faults` and `state` may be read from any thread; a change that must not meet a request
    goes through `call`, which runs it in the server's loop.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.server = RedfishServer(*args, **settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def journal(self) -> RequestJournal:
        return self.server.journal

    @property
    def faults(self) -> FaultBook:
        return self.server.faults

    @property
    def state(self) -> MachineState:
        return self.server.state

    def call(self, function: Callable[[], T]) -> T:
        """Runs `function` in the server's loop and returns what it returns. RuntimeError before it serves."""

        async def run() -> T:
            return function()

        return self._await(run())

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="redfish-simulator", daemon=True)
        self._thread.start()
        try:
            self._await(self.server.start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._await(self.server.stop())
            self._await(end_of_what_is_left())
        finally:
            self._end()

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise RuntimeError("the server does not run: use it as a context manager")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None


async def end_of_what_is_left() -> None:
    """Requests whose client is gone may be delayed still."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
