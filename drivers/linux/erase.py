"""Erases disks: what describes their contents, or all of it, each by the best way that it offers, with a proof.

One disk's failure stops no other. What was erased, what was not and why is told for each, also in the error.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from drivers.driver import Call
from drivers.linux import ata_security, nvme
from drivers.linux.block_device import BlockDevice
from drivers.linux.contents import clear_places, contents
from drivers.linux.disks import Disk, read_disks, require_same
from drivers.linux.hints import matching, misses
from drivers.linux.host import Host
from drivers.linux.kernel_partitions import forget_partitions
from drivers.linux.records import Records
from drivers.linux.words import gibibytes
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.deploy import (
    DiskErased,
    DiskErasure,
    DiskSkipped,
    DiskStage,
    EraseDisks,
    EraseDisksResult,
    EraseMode,
    RootDeviceHints,
)

__all__ = ["DiskErasing", "Selection", "erase_disks", "select", "stoppable_arrays"]

_AT_ONCE = 16
_PROBES = 256
_STEP = 256 << 20
_PROGRESS_SECONDS = 2.0
_LOOK_SECONDS = 2.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Selection:
    """`in_the_way`: disks that were meant and cannot be touched now."""

    disks: list[Disk]
    skipped: list[DiskSkipped]
    in_the_way: list[Disk] = field(default_factory=list)


def stoppable_arrays(disks: Sequence[Disk], hints: RootDeviceHints | None) -> list[str]:
    """Software arrays that nothing uses and all of whose members are to be erased: they may be stopped. Pure."""
    chosen = {disk.name for disk in matching(disks, hints or RootDeviceHints())}
    found = []
    for array in disks:
        members = {disk.name for disk in disks if array.name in disk.holders}
        idle = not array.mounted and not array.holders
        if array.transport == "md" and idle and members and members <= chosen:
            found.append(array.name)
    return found


def select(disks: Sequence[Disk], hints: RootDeviceHints | None) -> Selection:
    """What is to be erased. Without hints that is every disk: removable ones, those on USB and the boot medium are
    skipped with the reason.

    Raises OperationError where hints are given: INVALID_ARGUMENT (no disk fits), CONFLICT (one that fits may not be
    erased). Pure.
    """
    if hints is None:
        real = [disk for disk in disks if disk.transport != "md" and disk.size_bytes]
        strange = {disk.name: "; ".join(misses(disk, RootDeviceHints())) for disk in real}
        in_the_way = [disk for disk in real if disk.in_the_way and not strange[disk.name]]
        rest = [disk for disk in real if disk not in in_the_way]
        reasons = {disk.name: disk.unsuitable or strange[disk.name] for disk in rest}
        return Selection(
            [disk for disk in rest if not reasons[disk.name]],
            [DiskSkipped(disk=name, reason=reason) for name, reason in reasons.items() if reason],
            in_the_way,
        )
    found = matching(disks, hints)
    barred = [disk for disk in found if disk.unsuitable is not None]
    if barred:
        reasons_ = "; ".join(f"{disk.known_as()} {disk.unsuitable}" for disk in barred)
        raise OperationError(
            ErrorCode.CONFLICT,
            f"{reasons_}: nothing was erased",
            details={"disks": [{"name": disk.name, "reason": disk.unsuitable} for disk in barred]},
        )
    if not found:
        faults = "; ".join(f"{disk.known_as()}: {', '.join(misses(disk, hints))}" for disk in disks)
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT, f"no disk fits the hints: {faults or 'this machine shows none'}"
        )
    return Selection(found, [])


async def erase_disks(host: Host, arguments: EraseDisks, call: Call) -> EraseDisksResult:
    """Raises OperationError as `select` does, and NOT_APPLIED when a disk could not be erased: then `erased`,
    `failed` and `skipped` in its details say which was what. No thread of it goes on afterwards.

    Without hints all that the machine has is meant: a disk that is in use or read-only is one that was not erased,
    and a machine without any disk is CONFLICT, since its disks may only not be seen.
    """
    disks = await asyncio.to_thread(read_disks, host)
    for array in stoppable_arrays(disks, arguments.disks):
        await asyncio.to_thread(_stop_array, host, array)
    chosen = select(await asyncio.to_thread(read_disks, host), arguments.disks)
    places = asyncio.Semaphore(_AT_ONCE)
    alone = _namespaces(chosen.disks, await asyncio.to_thread(read_disks, host))

    async def one(disk: Disk, threads: Executor) -> DiskErased:
        async with places:
            return await DiskErasing(host, disk, arguments.mode, call, threads, alone=disk.name in alone).run()

    # Threads of its own, for hours: on a machine with few cores and many disks there would be none left for what the
    # agent's connection needs one for, such as a name server's answer.
    with ThreadPoolExecutor(_AT_ONCE, "erase") as threads:
        results = await asyncio.gather(*(one(disk, threads) for disk in chosen.disks), return_exceptions=True)
    erased = [result for result in results if isinstance(result, DiskErased)]
    failed = [(disk, OperationError(ErrorCode.CONFLICT, f"it {disk.unsuitable}")) for disk in chosen.in_the_way]
    for disk, result in zip(chosen.disks, results, strict=True):
        if isinstance(result, OperationError):
            failed.append((disk, result))
        elif isinstance(result, BaseException):
            raise result
    if failed:
        raise _failure(erased, failed, chosen.skipped)
    if not erased:
        left = "; ".join(f"{one.disk}: {one.reason}" for one in chosen.skipped)
        raise OperationError(
            ErrorCode.CONFLICT,
            f"this machine shows no disk that could be erased ({left or 'none at all'}): look whether the driver of "
            "its controller is in the ramdisk, or leave the step out",
        )
    return EraseDisksResult(disks=erased, skipped=chosen.skipped)


def _failure(
    erased: list[DiskErased], failed: list[tuple[Disk, OperationError]], skipped: list[DiskSkipped]
) -> OperationError:
    reasons = "; ".join(f"{disk.known_as()}: {error.message}" for disk, error in failed)
    rest = f"; erased: {', '.join(one.disk for one in erased)}" if erased else ""
    codes = {error.code for _, error in failed}
    return OperationError(
        codes.pop() if len(codes) == 1 else ErrorCode.NOT_APPLIED,
        f"{len(failed)} of {len(failed) + len(erased)} disks were not erased: {reasons}{rest}",
        details={
            "erased": [{"disk": one.disk, "method": one.method, "proof": one.proof} for one in erased],
            "failed": [
                {"disk": disk.name, "serial": disk.serial, "code": error.code.value, "reason": error.message}
                for disk, error in failed
            ],
            "skipped": [{"disk": one.disk, "reason": one.reason} for one in skipped],
        },
    )


@dataclass(slots=True)
class DiskErasing:
    """One disk. `alone`: an NVMe controller's only namespace."""

    host: Host
    disk: Disk
    mode: EraseMode
    call: Call
    threads: Executor
    alone: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    done_bytes: int = 0
    obstacles: list[str] = field(default_factory=list)
    """Better ways that were not open, with the reason."""

    async def run(self) -> DiskErased:
        """Raises OperationError: CONFLICT, TIMEOUT, NOT_APPLIED. No thread of it goes on afterwards."""
        begun = time.monotonic()
        # Held open to the end: neither a mount nor an array may take it meanwhile.
        with await asyncio.to_thread(BlockDevice, self.disk.path, writing=True) as device:
            await asyncio.to_thread(require_same, self.host, self.disk)
            self._record(DiskStage.UNDER_WAY)
            try:
                if self.mode is EraseMode.METADATA:
                    method, proof = await self._in_a_thread(lambda: self._metadata(device))
                else:
                    method, proof = await self._full(device)
                await asyncio.to_thread(forget_partitions, device, [part.number for part in self.disk.partitions])
            except BaseException:
                with contextlib.suppress(OperationError):
                    self._record(DiskStage.FAILED)
                raise
        seconds = round(time.monotonic() - begun, 3)
        proof = "; ".join([proof, *self.obstacles])
        self._record(DiskStage.DONE, method, seconds, proof)
        return DiskErased(disk=self.disk.name, method=method, seconds=seconds, proof=proof)

    # Ways

    def _metadata(self, device: BlockDevice) -> tuple[str, str]:
        _, spans = contents(device)
        known = [(part.start, part.size) for part in self.disk.partitions]
        cleared = clear_places(device, [*known, *((span.start, span.size) for span in spans)])
        left, _ = contents(device)
        if left:
            raise OperationError(ErrorCode.NOT_APPLIED, f"it still shows {', '.join(left)} after it was erased")
        return "metadata cleared", f"no signature is left ({gibibytes(cleared)} cleared)"

    async def _full(self, device: BlockDevice) -> tuple[str, str]:
        """The drive's own erasure, else a discard that is seen to have worked, else zeros over all of it."""
        before: dict[int, bytes] = {}
        if self.disk.transport in ("nvme", "sata"):
            before = await self._in_a_thread(lambda: device.traces(_PROBES))
        if self.disk.transport == "nvme":
            found = await self._by_nvme(device, before)
            if found is not None:
                return found
        if self.disk.transport == "sata":
            found = await self._by_ata(device, before)
            if found is not None:
                return found
        return await self._in_a_thread(lambda: self._over(device))

    async def _by_ata(self, device: BlockDevice, before: dict[int, bytes]) -> tuple[str, str] | None:
        try:
            method = await ata_security.erase(self.host, self.disk.path, max(1.0, self.call.remaining))
            return method, await self._own_word(device, before)
        except OperationError as error:
            if error.code in (ErrorCode.CONFLICT, ErrorCode.TIMEOUT):
                raise
            self.obstacles.append(f"no ATA secure erase: {error.message}")
            return None

    async def _by_nvme(self, device: BlockDevice, before: dict[int, bytes]) -> tuple[str, str] | None:
        path = self.disk.path
        try:
            abilities = nvme.parse_controller(await asyncio.to_thread(nvme.submit, path, nvme.identify_controller()))
        except (OperationError, ValueError) as error:
            self.obstacles.append(f"no NVMe erase: {error}")
            return None
        for act in nvme.acts(abilities, alone=self.alone):
            try:
                if act.of_all_namespaces:
                    await self._sanitize(act)
                else:
                    await self._format(act)
                return act.value, await self._own_word(device, before)
            except OperationError as error:
                if error.code is ErrorCode.TIMEOUT:
                    raise
                self.obstacles.append(f"no {act.value}: {error.message}")
        return None

    async def _sanitize(self, act: nvme.Act) -> None:
        """One that an agent has begun which died since is waited for: the drive refuses another meanwhile."""
        state, share = await self._sanitized()
        if state is not nvme.SanitizeState.UNDER_WAY:
            await asyncio.to_thread(nvme.submit, self.disk.path, nvme.sanitize_command(act))
            state, share = await self._sanitized()
        while True:
            if state.is_done:
                return
            if state is not nvme.SanitizeState.UNDER_WAY:
                raise OperationError(ErrorCode.NOT_APPLIED, f"the drive says that it {state.name.lower()}")
            self.call.progress(f"{self.disk.name} erases itself", round(share * 100, 1))
            await self.call.sleep(_LOOK_SECONDS, f"{self.disk.name} erases itself, and goes on with it")
            state, share = await self._sanitized()

    async def _sanitized(self) -> tuple[nvme.SanitizeState, float]:
        return nvme.parse_sanitize(await asyncio.to_thread(nvme.submit, self.disk.path, nvme.sanitize_log()))

    async def _format(self, act: nvme.Act) -> None:
        namespace = self.host.number("block", self.disk.name, "nsid") or 1
        told = await asyncio.to_thread(nvme.submit, self.disk.path, nvme.identify_namespace(namespace))
        command = nvme.format_command(act, namespace, *nvme.lba_format(told))
        await self._in_a_thread(lambda: nvme.submit(self.disk.path, command))

    async def _own_word(self, device: BlockDevice, before: dict[int, bytes]) -> str:
        """What is read back after a drive said that it has erased itself: some leave other patterns than zeros, and
        some have done nothing. `before`: the traces of what it held. Raises OperationError NOT_APPLIED."""
        after = await self._in_a_thread(lambda: device.traces(_PROBES))
        kept = [place for place, digest in before.items() if after.get(place) == digest]
        if kept:
            raise OperationError(
                ErrorCode.NOT_APPLIED,
                f"the drive says that it is erased, and {len(kept)} of {_PROBES} samples read as before",
            )
        left = await self._in_a_thread(lambda: device.probe(_PROBES))
        shown, _ = await self._in_a_thread(lambda: contents(device))
        if shown:
            raise OperationError(
                ErrorCode.NOT_APPLIED, f"the drive says that it is erased, and still shows {', '.join(shown)}"
            )
        said = "the drive says that it is erased"
        return said if left else f"{said}, and {_PROBES} samples read as zeros"

    def _over(self, device: BlockDevice) -> tuple[str, str]:
        if self.disk.discards and self._stepwise(device, device.discard):
            device.sync()
            if device.reads_zero(_PROBES):
                return "discarded", f"{_PROBES} samples read as zeros"
            self.obstacles.append("no erasure by discard: the disk still shows data after it")
        self.done_bytes = 0
        self._stepwise(device, device.zero_out)
        device.sync()
        places = device.probe(_PROBES)
        if places:
            raise OperationError(
                ErrorCode.NOT_APPLIED, f"byte {places[0]} does not read as zero after zeros were written to all of it"
            )
        return "overwritten with zeros", f"{_PROBES} samples read as zeros"

    def _stepwise(self, device: BlockDevice, step: Callable[[int, int], bool]) -> bool:
        """Piece by piece over all of the disk, so that it can be stopped; False where the first piece is refused."""
        offset = 0
        while offset < device.size:
            if self.stop.is_set():
                raise OperationError(
                    ErrorCode.TIMEOUT,
                    f"it was erased up to {gibibytes(offset)} of {gibibytes(device.size)} when the time was over",
                    details={"offset": offset},
                )
            size = min(_STEP, device.size - offset)
            if not step(offset, size):
                return False
            offset += size
            self.done_bytes = offset
        return True

    # Waiting

    async def _in_a_thread(self, work: Callable[[], T]) -> T:
        """Waits for the thread, whatever happens: nobody may hear that it has ended before it has."""
        task = asyncio.get_running_loop().run_in_executor(self.threads, work)
        while not task.done():
            try:
                await asyncio.wait({task}, timeout=_PROGRESS_SECONDS)
            except asyncio.CancelledError:
                self.stop.set()
                while not task.done():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait({task})
                raise
            if self.call.remaining <= 0:
                self.stop.set()
            if self.done_bytes and not task.done():
                share = self.done_bytes / self.disk.size_bytes
                self.call.progress(f"{self.disk.name}: {gibibytes(self.done_bytes)} erased", round(share * 100, 1))
        return task.result()

    def _record(
        self, stage: DiskStage, method: str | None = None, seconds: float | None = None, proof: str | None = None
    ) -> None:
        records = Records(self.host.state)
        before = records.read(self.disk.name, self.disk.serial, self.disk.size_bytes)
        erasure = DiskErasure(stage=stage, mode=self.mode, method=method, seconds=seconds, proof=proof)
        # What was written to it before is gone with the first erased byte.
        fresh = msgspec.structs.replace(before, erasure=erasure, image=None, head=None)
        records.write(self.disk.name, fresh)


def _namespaces(chosen: Sequence[Disk], disks: Sequence[Disk]) -> set[str]:
    """The chosen NVMe disks whose controllers have no other."""
    found = set()
    for disk in chosen:
        controller = disk.name.rpartition("n")[0]
        same = [one.name for one in disks if one.transport == "nvme" and one.name.rpartition("n")[0] == controller]
        if disk.transport == "nvme" and same == [disk.name]:
            found.add(disk.name)
    return found


def _stop_array(host: Host, name: str) -> None:
    """Raises OperationError CONFLICT with the kernel's words (Documentation/admin-guide/md.rst, array_state)."""
    try:
        host.sys.joinpath("block", name, "md", "array_state").write_text("clear\n")
    except OSError as error:
        raise OperationError(ErrorCode.CONFLICT, f"the array {name} cannot be stopped: {error.strerror}") from error
