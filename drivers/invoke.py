"""Calls one operation on one machine: looks it up, validates, waits for the machine's lane, and types every failure.

Per machine one change is under way at a time and a few reads beside it, whoever asks: BMCs are small computers.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from drivers.breaker import Breaker
from drivers.concealment import conceal, secrets_in
from drivers.connections import Connections
from drivers.detect import detect
from drivers.driver import Call, Driver, Environment, FileOffers, ProgressListener, method_name, no_listener
from drivers.image_access import ImageAccess
from drivers.masking import masked
from drivers.registry import load
from drivers.rotation import ProvesLogin, Rotation, takes_login
from drivers.target import Target
from protocol.errors import ErrorCode, OperationError
from protocol.operations import Concern, Operation, Repeat, find
from protocol.shapes import Arguments
from protocol.validation import check

__all__ = ["Drivers", "Reply", "Turn", "ainvoke", "invoke"]

_log = logging.getLogger("drivers.invoke")
_Connect = Callable[[Target, Environment], ProvesLogin]
_READS_PER_MACHINE = 4
_IPMI_KNOWN_SECONDS = 600.0
_GRACE = 5.0
"""Seconds past the deadline before an operation that did not stop by itself is cut off."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An operation's result as JSON values, and what was seen on the way (`Ending.observed`)."""

    result: dict[str, object]
    observed: dict[str, str]


@dataclass(slots=True)
class _Lane:
    change: asyncio.Lock
    reads: asyncio.Semaphore
    users: int = 0


class Turn:
    """A machine's lane, held for one operation: nothing of that kind runs on it beside."""

    def __init__(self, drivers: "Drivers", target: Target, operation: Operation) -> None:
        self._drivers = drivers
        self._target = target
        self._operation = operation

    async def run(
        self,
        arguments: Mapping[str, object],
        *,
        timeout: float | None = None,
        progress: ProgressListener | None = None,
        rotation: Rotation | None = None,
    ) -> Reply:
        """Does it. Raises OperationError only; a cancelled task stays cancelled.

        `timeout`: seconds for the whole operation; the table's default otherwise. After TIMEOUT or OUTCOME_UNKNOWN
        the machine must be looked at before anything is sent again. `rotation`: for `config.rotatePassword`.
        """
        checked = _checked(self._operation, arguments)
        return await self._execute(checked, self._operation.repeat_for(arguments), timeout, progress, rotation)

    def aimed_at(self, target: Target) -> "Turn":
        """The same turn for another credential of the machine: it may have changed while the lane was waited for."""
        return Turn(self._drivers, target, self._operation)

    async def _execute(
        self,
        checked: Arguments,
        repeat: Repeat,
        timeout: float | None,
        progress: ProgressListener | None,
        rotation: Rotation | None = None,
    ) -> Reply:
        operation = self._operation
        seconds = operation.timeout if timeout is None else timeout
        deadline = asyncio.get_running_loop().time() + seconds
        secrets = [self._target.secret.reveal(), *secrets_in(msgspec.to_builtins(checked))]
        if rotation is not None:
            secrets.append(rotation.secret.reveal())
        call = Call(operation.id, deadline, _without_secrets(progress, secrets), rotation=rotation)
        try:
            async with asyncio.timeout(seconds + _GRACE):
                result = await self._call(checked, call, secrets)
        except TimeoutError:
            once = repeat is Repeat.ONCE
            raise OperationError(
                ErrorCode.OUTCOME_UNKNOWN if once else ErrorCode.TIMEOUT,
                f"{operation.id} on {self._target.address} did not end within {seconds:g} s"
                + ("; it may have happened: read the machine's state before repeating it" if once else ""),
            ) from None
        observed = {key: masked(seen, *secrets) for key, seen in call.observed.items()}
        return Reply(msgspec.to_builtins(result), observed)

    async def _call(self, arguments: Arguments, call: Call, secrets: list[str]) -> object:
        """What the driver answers. No error holds one of the secrets, whatever the machine repeats."""
        name = method_name(self._operation)
        try:
            driver = await self._drivers.driver_for(self._target)
            handler = driver.concerns.get(self._operation.concern)
            if handler is None or not hasattr(handler, name):
                hint = getattr(handler, "INSTEAD", {}).get(self._operation.name, "")
                raise OperationError(
                    ErrorCode.UNSUPPORTED,
                    f"the {driver.name} driver has no {self._operation.id}{hint and f': {hint}'}",
                )
            with self._drivers.connections.use(driver, self._target) as connection:
                return await getattr(handler(connection), name)(arguments, call)
        except OperationError as error:
            conceal(error, *secrets)
            raise
        except Exception as error:
            # A fault of ours, or a BMC's answer that no parser foresaw: it must reach the operator as what it is.
            failure = OperationError(
                ErrorCode.BMC_ERROR,
                f"{self._operation.id} on {self._target.address} failed in the driver: "
                f"{type(error).__name__}: {error}",
            )
            failure.__cause__ = error
            conceal(failure, *secrets)
            _log.error("%s", failure.message, exc_info=failure.__cause__)
            raise failure from failure.__cause__


class Drivers:
    """The connections of one process to its machines; as a context manager it logs out everywhere at the end."""

    def __init__(
        self,
        breaker: Breaker | None = None,
        pins: dict[str, str] | None = None,
        *,
        files: FileOffers | None = None,
        images: ImageAccess | None = None,
    ) -> None:
        self.environment = Environment(
            breaker or Breaker(),
            {} if pins is None else pins,
            files=files,
            images=images or ImageAccess(everywhere=True),
        )
        self.connections = Connections(self.environment)
        self._lanes: dict[str, _Lane] = {}
        self._detected: dict[str, tuple[str, float]] = {}

    async def __aenter__(self) -> "Drivers":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends every console and session at its BMC."""
        await self.environment.consoles.aclose()
        await self.connections.aclose()

    async def invoke(
        self,
        target: Target,
        operation: str,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
        progress: ProgressListener | None = None,
        rotation: Rotation | None = None,
    ) -> dict[str, object]:
        """One operation, its result as JSON values. Raises OperationError.

        `timeout` counts the wait for the machine's lane too; when that alone takes it all, the error is BUSY and
        nothing was sent.
        """
        arguments = arguments or {}
        row = find(operation)
        checked, repeat = _checked(row, arguments), row.repeat_for(arguments)
        seconds = row.timeout if timeout is None else timeout
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        async with self.turn(target, operation, arguments, wait=seconds) as turn:
            return (await turn._execute(checked, repeat, max(0.0, deadline - clock()), progress, rotation)).result

    @contextlib.asynccontextmanager
    async def turn(
        self, target: Target, operation: str, arguments: Mapping[str, object], *, wait: float | None = None
    ) -> AsyncIterator[Turn]:
        """Waits for the machine's lane and holds it: first come, first served; reads pass a change under way, but not
        one that is exclusive.

        Raises OperationError BUSY when the lane is not free within `wait` seconds.
        """
        row = find(operation)
        # A console has a session of its own, and is wanted most while a long change is under way.
        beside = row.repeat_for(arguments) is Repeat.READ or row.concern is Concern.CONSOLE
        async with self._held(target, row.id, wait, beside=beside, exclusive=row.exclusive):
            yield Turn(self, target, row)

    @contextlib.asynccontextmanager
    async def hold(self, target: Target, what_for: str, *, wait: float | None = None) -> AsyncIterator[None]:
        """Waits for the machine's lane, and keeps every change of it away: for what is done to it without a driver.

        Raises OperationError BUSY as `turn` does.
        """
        async with self._held(target, what_for, wait, beside=False, exclusive=False):
            yield

    @contextlib.asynccontextmanager
    async def _held(
        self, target: Target, what_for: str, wait: float | None, *, beside: bool, exclusive: bool
    ) -> AsyncIterator[None]:
        lane = self._lanes.get(target.lane_key)
        if lane is None:
            lane = self._lanes[target.lane_key] = _Lane(asyncio.Lock(), asyncio.Semaphore(_READS_PER_MACHINE))
        lane.users += 1
        try:
            places = _places(lane, beside=beside, exclusive=exclusive)
            await _acquire(places, None if lane.users == 1 else wait, what_for, target)
            try:
                yield
            finally:
                for place in places:
                    place.release()
        finally:
            lane.users -= 1
            if not lane.users:
                self._lanes.pop(target.lane_key, None)

    def is_changing(self, target: Target) -> bool:
        """Whether a change of this machine is under way, such as a firmware update: who polls it leaves it alone
        meanwhile. No I/O."""
        lane = self._lanes.get(target.lane_key)
        return lane is not None and lane.change.locked()

    async def takes_login(self, target: Target, *, timeout: float) -> bool:
        """Whether the BMC takes this credential, by at most one login in a session of its own.

        Raises OperationError where it cannot be asked. The caller holds the machine's lane, or does without.
        """
        call = Call("config.rotatePassword", asyncio.get_running_loop().time() + timeout)
        driver = await self.driver_for(target)
        try:
            return await takes_login(cast(_Connect, driver.connect), target, self.environment, call)
        except OperationError as error:
            conceal(error, target.secret.reveal())
            raise

    async def driver_for(self, target: Target) -> Driver:
        """The target's driver; a bare host is asked once which protocol it speaks.

        A host that spoke IPMI alone is asked again after a while: its web server may only have been away.
        """
        name = target.driver_name
        if name is None:
            now = asyncio.get_running_loop().time()
            name, until = self._detected.get(target.endpoint, (None, 0.0))
            if name is None or now >= until:
                name = await detect(target)
                self._detected[target.endpoint] = name, now + _IPMI_KNOWN_SECONDS if name == "ipmi" else math.inf
        return load(name)


def _without_secrets(progress: ProgressListener | None, secrets: list[str]) -> ProgressListener:
    """The listener, told of everything but the secrets: some of the words are the machine's own."""
    if progress is None:
        return no_listener
    return lambda message, percent: progress(masked(message, *secrets), percent)


def _checked(operation: Operation, arguments: Mapping[str, object]) -> Arguments:
    """Raises OperationError INVALID_ARGUMENT that names every fault, so that nobody waits to hear the next one."""
    checked, issues = check(operation.arguments, dict(arguments))
    if checked is None:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"{operation.id}: " + "; ".join(str(issue) for issue in issues),
            details={"issues": [msgspec.to_builtins(issue) for issue in issues]},
        )
    return checked


def _places(lane: _Lane, *, beside: bool, exclusive: bool) -> list[asyncio.Lock | asyncio.Semaphore]:
    """What an operation holds while it is under way; always in this order, so that two never wait for each other.

    `beside`: it may go on beside a change. `exclusive`: nothing may go on beside it.
    """
    if beside:
        return [lane.reads]
    return [lane.change, *([lane.reads] * _READS_PER_MACHINE if exclusive else [])]


async def _acquire(
    places: list[asyncio.Lock | asyncio.Semaphore], wait: float | None, what_for: str, target: Target
) -> None:
    """Waits for its turn, first come, first served; `wait` None has no end."""
    held: list[asyncio.Lock | asyncio.Semaphore] = []
    try:
        async with asyncio.timeout(wait):
            for place in places:
                await place.acquire()
                held.append(place)
    except BaseException as error:
        for place in held:
            place.release()
        if not isinstance(error, TimeoutError):
            raise
        raise OperationError(
            ErrorCode.BUSY,
            f"{what_for} waited {wait:g} s while other operations on {target.address} were under way; "
            "nothing was sent",
        ) from None


async def ainvoke(
    target: Target, operation: str, arguments: Mapping[str, object] | None = None, **options: Any
) -> dict[str, object]:
    """One operation with a connection of its own, closed afterwards. For several, keep a `Drivers`."""
    async with Drivers() as drivers:
        return await drivers.invoke(target, operation, arguments, **options)


def invoke(
    target: Target,
    operation: str,
    arguments: Mapping[str, object] | None = None,
    *,
    timeout: float | None = None,
    progress: ProgressListener | None = None,
    rotation: Rotation | None = None,
) -> dict[str, object]:
    """The same for code without an event loop. Raises OperationError."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(
            ainvoke(target, operation, arguments, timeout=timeout, progress=progress, rotation=rotation)
        )
    raise RuntimeError("an event loop is running here: await drivers.ainvoke(...) instead")
