"""The machines' BMCs: from a command's payload to a `Target` with its password, and the `driver.invoke` handler.

Refused logins and certificates taken on first use are kept over a restart, so that an agent which restarts in a loop
does not lock an account, and does not trust a second certificate.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import msgspec
import structlog

from agent.files import write_durably
from agent.handlers import Answer
from agent.recovery import observe
from agent.vault import Vault
from drivers import Breaker, Drivers, Target, Turn
from drivers.driver import ProgressListener
from protocol.commands import CommandKind, DriverInvoke, Ending, repeat_of
from protocol.errors import ErrorCode, Issue, OperationError
from protocol.operations import Repeat, find

__all__ = ["BmcMemory", "Bmcs"]

_log = structlog.get_logger("agent.bmcs")
_SAVE_AFTER = 0.02
_LEAST_OBSERVATION = 30.0


class _Memory(msgspec.Struct, frozen=True):
    blocked: dict[str, dict[str, str]] = {}
    pins: dict[str, str] = {}


class _WatchedPins(dict[str, str]):
    """The pins as the drivers write them."""

    def __init__(self, pins: Mapping[str, str], memory: "BmcMemory") -> None:
        super().__init__(pins)
        self._memory = memory

    def __setitem__(self, endpoint: str, fingerprint: str) -> None:
        if self.get(endpoint) != fingerprint:
            super().__setitem__(endpoint, fingerprint)
            self._memory.changed()

    def setdefault(self, endpoint: str, fingerprint: str = "") -> str:
        """A dict's own would pass the watch by."""
        if endpoint not in self:
            self[endpoint] = fingerprint
        return self[endpoint]

    def __delitem__(self, endpoint: str) -> None:
        super().__delitem__(endpoint)
        self._memory.changed()


class BmcMemory:
    """Blocks and pins in one file.

    Changes that come together are written together, shortly after; `saved` waits for that, `close` writes what is
    left. A file that cannot be read stops the start: forgetting a pin would mean trusting whoever answers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        found = self.read(path)
        self.breaker = Breaker(self.changed)
        self.breaker.blocked.update(found.blocked)
        self.pins: dict[str, str] = _WatchedPins(found.pins, self)
        self._saving: asyncio.Task[None] | None = None
        self._dirty = False

    @staticmethod
    def read(path: Path) -> _Memory:
        """Raises OperationError CONFLICT that names the file when it is damaged."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Memory)
        except FileNotFoundError:
            return _Memory()
        except msgspec.DecodeError as error:
            raise OperationError(
                ErrorCode.CONFLICT,
                f"{path} is damaged ({error}): it holds the BMC certificates taken on first use and the refused "
                "logins. Restore it, or remove it to trust each BMC's present certificate anew",
            ) from error

    def changed(self) -> None:
        self._dirty = True
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._save_soon())

    async def saved(self) -> None:
        """Returns when every change so far is on the disk, or could not be written (which is logged)."""
        if self._saving is not None and not self._saving.done():
            await asyncio.shield(self._saving)

    async def close(self) -> None:
        if self._saving is not None:
            await self._saving
        self._save()

    async def _save_soon(self) -> None:
        while self._dirty:
            await asyncio.sleep(_SAVE_AFTER)
            data = self._snapshot()
            try:
                await asyncio.to_thread(write_durably, self.path, data)
            except OSError as error:
                _log.error("bmc_memory_not_written", path=str(self.path), reason=str(error))

    def _save(self) -> None:
        if self._dirty:
            with contextlib.suppress(OSError):
                write_durably(self.path, self._snapshot())

    def _snapshot(self) -> bytes:
        self._dirty = False
        return msgspec.json.encode(_Memory(self.breaker.blocked, dict(self.pins)))


class Bmcs:
    """Handles `driver.invoke`. One per process: it owns every BMC session and lane."""

    def __init__(self, vault: Vault, memory: BmcMemory) -> None:
        self._vault = vault
        self._memory = memory
        self.drivers = Drivers(memory.breaker, memory.pins)

    def faults(self, payload: Mapping[str, object]) -> list[Issue]:
        """Nothing beyond what `payload_faults` finds: a missing credential is a failure, which can be mended."""
        return []

    def repeat(self, payload: Mapping[str, object]) -> Repeat:
        return repeat_of(CommandKind.DRIVER_INVOKE, payload)

    @contextlib.asynccontextmanager
    async def turn(self, payload: Mapping[str, object]) -> AsyncIterator["_Invocation"]:
        """Waits for the machine's lane. Raises OperationError when the target or its credential is unusable."""
        invoke = msgspec.convert(payload, DriverInvoke)
        target = self.target(invoke)
        async with self.drivers.turn(target, invoke.operation_id, invoke.args) as turn:
            yield _Invocation(self.drivers, self._memory, invoke, target, turn)

    def target(self, invoke: DriverInvoke) -> Target:
        """The BMC with its password out of the vault. Raises OperationError INVALID_ARGUMENT."""
        if invoke.target is None:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT,
                f"{invoke.operation_id} by the {invoke.driver} driver needs a BMC, and the command names none: "
                "give the node a BMC address, or send it to the agent on the machine itself",
            )
        reference = invoke.target.credential_ref
        credential = None
        if reference is not None:
            credential = self._vault.lookup(reference)
            if credential is None:
                raise OperationError(
                    ErrorCode.INVALID_ARGUMENT,
                    f"the vault of this agent has no credential {reference!r}: "
                    f"run rackwright agent credentials set {reference} on {os.uname().nodename}",
                )
        return Target(
            address=invoke.target.address,
            driver=invoke.driver,
            username=credential.user if credential else None,
            password=credential.password if credential else None,
            verify=invoke.target.tls,
            credential_version=credential.version if credential else None,
            lane=invoke.target_node_id or None,
        )

    def blocked(self) -> dict[str, list[str]]:
        """Endpoints whose logins are stopped, each with the reasons."""
        return {
            endpoint: sorted(set(reasons.values()))
            for endpoint, reasons in self._memory.breaker.blocked.items()
            if reasons
        }

    async def aclose(self) -> None:
        """Logs out of every BMC and writes what must survive."""
        await self.drivers.aclose()
        await self._memory.close()


class _Invocation:
    """One operation whose turn has come."""

    def __init__(self, drivers: Drivers, memory: BmcMemory, invoke: DriverInvoke, target: Target, turn: Turn) -> None:
        self._drivers = drivers
        self._memory = memory
        self._invoke = invoke
        self._target = target
        self._turn = turn

    async def run(self, timeout: float, progress: ProgressListener) -> Answer:
        operation = find(self._invoke.operation_id)
        try:
            with self._in_the_log():
                reply = await self._turn.run(
                    self._invoke.args, timeout=min(timeout, operation.timeout), progress=progress
                )
        finally:
            # Before anybody hears of it: a crash after that must not lead to one more login, nor another first use.
            await self._memory.saved()
        return Answer(reply.result, reply.observed)

    async def observe(self, timeout: float) -> Ending:
        async def read(operation: str) -> dict[str, object]:
            return await self._drivers.invoke(
                self._target, operation, timeout=min(max(timeout, _LEAST_OBSERVATION), find(operation).timeout)
            )

        with self._in_the_log():
            return await observe(self._invoke, read)

    @contextlib.contextmanager
    def _in_the_log(self) -> Iterator[None]:
        with structlog.contextvars.bound_contextvars(
            node=self._invoke.target_node_id, operation=self._invoke.operation_id
        ):
            yield
