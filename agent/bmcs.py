"""The machines' BMCs: from a command's payload to a `Target` with its password, and the `driver.invoke` handler.

Refused logins and certificates taken on first use are kept over a restart, so that an agent which restarts in a loop
does not lock an account, and does not trust a second certificate.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from agent import rotation
from agent.consoles import CLOSE, OPEN, Consoles
from agent.files import write_durably
from agent.handlers import Answer
from agent.image_logins import ImageLogins
from agent.rotation import OPERATION as ROTATE
from agent.rotation import VaultRotation, machine_of, rotation_ending, settle
from agent.vault import Credential, Vault
from drivers import Breaker, Drivers, Target, Turn
from drivers.driver import FileOffers, ProgressListener
from drivers.image_access import ImageAccess
from protocol.commands import CommandKind, DriverInvoke, Ending, TargetRef, repeat_of
from protocol.errors import ErrorCode, Issue, OperationError
from protocol.frames import WatchedNode
from protocol.operations import Repeat, find

if TYPE_CHECKING:
    from agent.ramdisk_boot import RamdiskBoot
    from agent.site_images import SiteImages

__all__ = ["IN_BAND_DRIVER", "BmcMemory", "Bmcs"]

_log = structlog.get_logger("agent.bmcs")
IN_BAND_DRIVER = "linux"
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

    def __init__(
        self,
        vault: Vault,
        memory: BmcMemory,
        files: FileOffers | None = None,
        *,
        in_band: bool = False,
        images: ImageAccess | None = None,
    ) -> None:
        """`in_band`: the agent is on the machine itself (ramdisk or daemon), so that the linux driver's operations
        are for it. A site agent refuses them: they would be done to its own host. `images`: from where this host
        fetches them by itself."""
        self._in_band = in_band
        self._vault = vault
        self._memory = memory
        self.image_logins = ImageLogins(vault)
        self.drivers = Drivers(memory.breaker, memory.pins, files=files, images=images or ImageAccess())
        self._rotated_at = time.monotonic()
        """When a rotation may last have been cut off: by the end of an earlier process, or by a cancel."""
        self._consoles: Consoles | None = None
        self.ramdisk_boot: RamdiskBoot | None = None
        """Where this is a site's agent: it puts an address in the place of `rackwright:ramdisk`."""
        self.site_images: SiteImages | None = None
        """Where this is a ramdisk's agent: it puts what admits to an image in the place of `rackwright:admission`."""
        self.after_change: Callable[[str], None] = lambda _node_id: None
        """Told of each machine that an operation may have changed, once its lane is free again."""

    def faults(self, payload: Mapping[str, object]) -> list[Issue]:
        """Nothing beyond what `payload_faults` finds: a missing credential is a failure, which can be mended."""
        return []

    def repeat(self, payload: Mapping[str, object]) -> Repeat:
        return repeat_of(CommandKind.DRIVER_INVOKE, payload)

    def keep_consoles(self, consoles: Consoles) -> None:
        """From now on an opened console's bytes go to the control plane."""
        self._consoles = consoles

    @contextlib.asynccontextmanager
    async def turn(self, payload: Mapping[str, object]) -> AsyncIterator["_Invocation"]:
        """Waits for the machine's lane. Raises OperationError when the target or its credential is unusable.

        A password that was being changed when an earlier process died is settled first.
        """
        invoke = msgspec.convert(payload, DriverInvoke)
        try:
            async with contextlib.AsyncExitStack() as lane:
                while True:
                    await self._settle_rotation(invoke)
                    turn = await lane.enter_async_context(
                        self.drivers.turn(self._target(invoke), invoke.operation_id, invoke.args)
                    )
                    if not self._is_rotating(invoke.target, invoke.target_node_id):
                        break
                    await lane.aclose()
                # It may have changed while the lane was waited for.
                target = self.target(invoke)
                yield _Invocation(self, self._memory, invoke, target, turn.aimed_at(target), self._consoles)
        finally:
            if self.repeat(payload) is not Repeat.READ:
                self.after_change(invoke.target_node_id)

    def watched(self, node: WatchedNode, before: Target | None) -> Target:
        """The BMC of a watched machine, in the same lane and session as its commands; `before` itself where neither
        way nor credential has changed since. Raises OperationError INVALID_ARGUMENT, and BUSY while its password is
        being changed."""
        self._check_rotation(node.target, node.node_id)
        credential = self._credential(node.target, node.node_id)
        version = credential.version if credential else None
        if before is not None and before.credential_version == version:
            return before
        return _target(node.driver, node.target, credential, node.node_id)

    async def saved(self) -> None:
        """Returns when blocks and pins are on the disk."""
        await self._memory.saved()

    def target(self, invoke: DriverInvoke) -> Target:
        """The BMC with its password out of the vault. Raises OperationError INVALID_ARGUMENT, and BUSY while its
        password is being changed."""
        self._check_rotation(invoke.target, invoke.target_node_id)
        return self._target(invoke)

    @contextlib.contextmanager
    def rotating(self, invoke: DriverInvoke) -> Iterator[VaultRotation | None]:
        """The new password, where the command rotates one. Raises OperationError INVALID_ARGUMENT."""
        if invoke.operation_id != ROTATE or invoke.target is None:
            yield None
            return
        try:
            yield VaultRotation.of(self._vault, invoke, self._credential(invoke.target, invoke.target_node_id))
        finally:
            self._rotated_at = time.monotonic()

    async def rotation_ending(self, invoke: DriverInvoke, target: Target) -> Ending:
        """How a rotation ended that an earlier process began."""
        return await rotation_ending(self._vault, self.drivers, invoke, target)

    async def _settle_rotation(self, invoke: DriverInvoke) -> None:
        if not self._is_rotating(invoke.target, invoke.target_node_id):
            return
        async with self.drivers.turn(self._target(invoke), ROTATE, {}):
            # What is left of one by now was cut off, and the BMC may be at work on it still.
            if self._is_rotating(invoke.target, invoke.target_node_id):
                await asyncio.sleep(max(0.0, self._rotated_at + rotation.QUIET_SECONDS - time.monotonic()))
                await settle(self._vault, self.drivers, invoke, self._target(invoke), self._memory.saved)

    def _check_rotation(self, target: TargetRef | None, node_id: str) -> None:
        if self._is_rotating(target, node_id):
            raise OperationError(ErrorCode.BUSY, "the password of this machine's BMC is being changed")

    def _is_rotating(self, target: TargetRef | None, node_id: str) -> bool:
        """Whether two passwords are kept for the machine, of which only the BMC can tell which one holds."""
        ref = target.credential_ref if target is not None else None
        return ref is not None and self._vault.is_staged(ref, machine_of(target, node_id))

    def _target(self, invoke: DriverInvoke) -> Target:
        if invoke.driver == IN_BAND_DRIVER and self._in_band:
            return Target(address="localhost", driver=invoke.driver)
        if invoke.driver == IN_BAND_DRIVER:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT,
                f"{invoke.operation_id} by the {invoke.driver} driver is done to the machine that the agent runs on, "
                "and this is a site agent: send it to the agent on the machine itself, its ramdisk or daemon",
            )
        if invoke.target is None:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT,
                f"{invoke.operation_id} by the {invoke.driver} driver needs a BMC, and the command names none: "
                "give the node a BMC address, or send it to the agent on the machine itself",
            )
        credential = self._credential(invoke.target, invoke.target_node_id)
        return _target(invoke.driver, invoke.target, credential, invoke.target_node_id)

    def _credential(self, target: TargetRef, node_id: str) -> Credential | None:
        """None where the BMC is reached without one. Raises OperationError INVALID_ARGUMENT."""
        reference = target.credential_ref
        if reference is None:
            return None
        credential = self._vault.lookup(reference, machine_of(target, node_id))
        if credential is None:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT,
                f"the vault of this agent has no credential {reference!r}: "
                f"run rackwright agent credentials set {reference} on {os.uname().nodename}",
            )
        return credential

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


def _target(driver: str, target: TargetRef, credential: Credential | None, node_id: str) -> Target:
    return Target(
        address=target.address,
        driver=driver,
        username=credential.user if credential else None,
        password=credential.password if credential else None,
        verify=target.tls,
        credential_version=credential.version if credential else None,
        lane=node_id or None,
    )


class _Invocation:
    """One operation whose turn has come."""

    def __init__(
        self,
        bmcs: Bmcs,
        memory: BmcMemory,
        invoke: DriverInvoke,
        target: Target,
        turn: Turn,
        consoles: Consoles | None,
    ) -> None:
        self._bmcs = bmcs
        self._drivers = bmcs.drivers
        self._consoles = consoles
        self._memory = memory
        self._invoke = invoke
        self._target = target
        self._turn = turn

    async def run(self, timeout: float, progress: ProgressListener) -> Answer:
        operation = find(self._invoke.operation_id)

        async def do() -> Answer:
            ramdisk = self._bmcs.ramdisk_boot
            puts_in = ramdisk or self._bmcs.site_images
            args = self._invoke.args if puts_in is None else await puts_in.arguments(self._invoke)
            args = self._bmcs.image_logins.arguments(args)
            told = progress if ramdisk is None else ramdisk.telling(progress)
            with self._bmcs.rotating(self._invoke) as new:
                try:
                    reply = await self._turn.run(
                        args, timeout=min(timeout, operation.timeout), progress=told, rotation=new
                    )
                except OperationError as error:
                    if ramdisk is not None:
                        ramdisk.conceal(error)
                    raise
            if ramdisk is None:
                return Answer(reply.result, reply.observed)
            # An address is known, and left out, for as long as it is good.
            shown = ramdisk.shown(self._invoke, reply.result)
            await ramdisk.succeeded(self._invoke)
            return Answer(shown, reply.observed)

        try:
            with self._in_the_log():
                return await self._done(do)
        finally:
            # Before anybody hears of it: a crash after that must not lead to one more login, nor another first use.
            await self._memory.saved()

    async def _done(self, do: Callable[[], Awaitable[Answer]]) -> Answer:
        """What the operation answers; a console that is open already is not opened a second time."""
        invoke, consoles = self._invoke, self._consoles
        if consoles is not None and invoke.operation_id == OPEN:
            return await consoles.open(invoke, lambda: self._bmcs.target(invoke), do)
        if consoles is not None and invoke.operation_id == CLOSE and await consoles.close(str(invoke.args["stream"])):
            return Answer({"stream": invoke.args["stream"], "closed": True})
        return await do()

    async def observe(self, timeout: float) -> Ending:
        from agent.observing import observe

        async def read(operation: str) -> dict[str, object]:
            reading = await self._drivers.invoke(
                self._target, operation, timeout=min(max(timeout, _LEAST_OBSERVATION), find(operation).timeout)
            )
            ramdisk = self._bmcs.ramdisk_boot
            return reading if ramdisk is None else ramdisk.shown(self._invoke, reading)

        with self._in_the_log():
            if self._invoke.operation_id == ROTATE:
                return await self._bmcs.rotation_ending(self._invoke, self._target)
            return await observe(self._invoke, read, timeout)

    @contextlib.contextmanager
    def _in_the_log(self) -> Iterator[None]:
        with structlog.contextvars.bound_contextvars(
            node=self._invoke.target_node_id, operation=self._invoke.operation_id
        ):
            yield
