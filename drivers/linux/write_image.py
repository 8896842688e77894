"""Writes an image to a disk: fetched, hashed, decompressed and written in one pass, and seen whole before it shows.

In this order, so that whatever stops it leaves a disk that says so and starts nothing: the record says "under way";
both ends of the disk are covered up; the image is written but for its first MiB; checksum, length and samples agree
and the disk says that it has everything; the partition table is fitted to the disk, its backup written, and then the
first MiB; the root file system grows; the record says "done".
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from drivers.driver import Call
from drivers.linux.block_device import ALIGNMENT, BlockDevice
from drivers.linux.decoding import DecodingError, format_of
from drivers.linux.disk_writer import HEAD, DiskWriter, cover_up, finished_head, reveal
from drivers.linux.disks import Disk, require_same
from drivers.linux.filesystems import GROWABLE, file_system_of, grow
from drivers.linux.host import Host
from drivers.linux.image_source import ImageChangedError, ImageSource, shown_address
from drivers.linux.kernel_partitions import forget_partitions, show_partitions
from drivers.linux.partitioning import Layout, check_head, lay_out
from drivers.linux.pipeline import Meter, Reader, Sink, Transfer, Transferred
from drivers.linux.qcow2 import Qcow2, parse_header
from drivers.linux.records import DiskRecord, Records
from drivers.linux.words import gibibytes
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.deploy import DiskImage, DiskStage, Image, ImageFormat, WriteImage, WriteImageResult

__all__ = ["ImageWriting"]

_ATTEMPTS = 3
"""How often an image is fetched from its beginning because it came complete and was not what was published."""
_PROGRESS_SECONDS = 1.0
_NODE_SECONDS = 10.0
_DISCARD_STEP = 16 << 30
_SHORTEST_TO_DISCARD = 64 << 20
_MIB = 1 << 20


@dataclass(slots=True)
class ImageWriting:
    """One image on its way to one disk."""

    host: Host
    disk: Disk
    arguments: WriteImage
    call: Call
    form: ImageFormat = ImageFormat.RAW
    stop: threading.Event = field(default_factory=threading.Event)
    meter: Meter = field(default_factory=Meter)
    begun: float = field(default_factory=time.monotonic)
    _deadline: float = 0.0
    _touched: bool = False
    _tell: Callable[[str], object] = field(default=lambda _words: None, repr=False)
    _reason: OperationError | None = None
    _transfer: Transfer | None = None
    _source: ImageSource | None = None

    async def run(self) -> WriteImageResult:
        """Raises OperationError: INVALID_ARGUMENT (address, format, checksum, size: it fails again unless the request
        or the image is changed), UNREACHABLE, TIMEOUT, CONFLICT (the disk is in use), NOT_APPLIED (the disk failed).

        When it raises, no thread of it writes any more. The disk is then as it was, or says that it is half written.
        """
        try:
            self.form = format_of(self.arguments.image)
        except ValueError as error:
            raise OperationError(ErrorCode.INVALID_ARGUMENT, f"image: {error}") from None
        self._deadline = self.begun + self.call.remaining
        loop = asyncio.get_running_loop()
        self._tell = lambda words: loop.call_soon_threadsafe(self.call.progress, words, None)
        self._open_source()
        try:
            written = await self._in_a_thread()
            try:
                return await self._grown(*written)
            except BaseException:
                self._hide()
                raise
        except BaseException:
            if self._touched:
                with contextlib.suppress(OperationError):
                    self._record(DiskStage.FAILED)
            raise

    @property
    def image(self) -> Image:
        return self.arguments.image

    @property
    def expected(self) -> tuple[str, str] | None:
        """The published digest's name and value."""
        if self.image.sha256 is not None:
            return "sha256", self.image.sha256.lower()
        return ("sha512", self.image.sha512.lower()) if self.image.sha512 is not None else None

    # The event loop's side

    async def _in_a_thread(self) -> tuple[Layout, Transferred, str, int]:
        """Waits for the writing thread, whatever happens: nobody may hear that it has ended before it has."""
        work = asyncio.create_task(asyncio.to_thread(self._write))
        try:
            while True:
                done, _ = await asyncio.wait({work}, timeout=min(_PROGRESS_SECONDS, self.call.remaining + 0.05))
                if done:
                    return work.result()
                if self.call.remaining <= 0:
                    self._abort(OperationError(ErrorCode.TIMEOUT, self._too_late()))
                    break
                self._show()
            await asyncio.wait({work})
            return work.result()
        except asyncio.CancelledError:
            self._abort(OperationError(ErrorCode.CANCELLED, "the writing of the image was cancelled"))
            while not work.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({work})
            if not work.cancelled():
                work.exception()
            raise

    def _abort(self, reason: OperationError) -> None:
        self._reason = reason
        self.stop.set()
        if self._transfer is not None:
            self._transfer.abort(reason)

    def _show(self) -> None:
        source, received = self._source, self.meter.received
        size = source.size if source is not None else None
        seconds = max(0.001, time.monotonic() - self.meter.begun)
        rate = self.meter.written / seconds / _MIB
        if not size:
            self.call.progress(f"{gibibytes(self.meter.written)} written to {self.disk.name}, {rate:.0f} MiB/s", None)
            return
        share = min(1.0, received / size)
        left = "" if not received else f", {seconds / share * (1 - share):.0f} s left"
        self.call.progress(
            f"{gibibytes(self.meter.written)} written to {self.disk.name}, {gibibytes(received)} of "
            f"{gibibytes(size)} fetched, {rate:.0f} MiB/s{left}",
            round(share * 100, 1),
        )

    def _too_late(self) -> str:
        source = self._source
        size = source.size if source is not None else None
        of = f" of {gibibytes(size)}" if size else ""
        return (
            f"{gibibytes(self.meter.received)}{of} of the image had come within the time that was given, "
            f"{time.monotonic() - self.begun:.0f} s: the disk {self.disk.name} is marked as half written"
        )

    async def _grown(self, layout: Layout, sent: Transferred, proof: str, skipped: int) -> WriteImageResult:
        notes = [layout.note] if layout.note else []
        if layout.root is not None and layout.grown:
            note = await self._grow(layout)
            notes += [note] if note else []
        checksum = sent.digests[self.expected[0] if self.expected else "sha256"]
        result = WriteImageResult(
            disk=self.disk.name,
            bytes=sent.written,
            seconds=round(time.monotonic() - self.begun, 3),
            checksum=checksum,
            partition=None if layout.root is None else self.disk.partition_name(layout.root.number),
            proof=proof + (f", {gibibytes(skipped)} of zeros were there already" if skipped else ""),
            notes=notes,
        )
        await asyncio.to_thread(self._record, DiskStage.DONE, result)
        return result

    def _hide(self) -> None:
        """What was to grow may be half grown, and starts no more than what is half written."""
        with contextlib.suppress(OperationError), BlockDevice(self.disk.path, writing=True) as device:
            cover_up(device, self._mark)

    @property
    def _mark(self) -> bytes:
        return f"{shown_address(self.image.url)}\n".encode()

    async def _grow(self, layout: Layout) -> str | None:
        root = layout.root
        if root is None:
            return None
        device = self.host.dev / self.disk.partition_name(root.number)
        until = time.monotonic() + _NODE_SECONDS
        while not device.exists():
            if time.monotonic() > until:
                return f"the file system was not grown: the kernel shows no {device}"
            await asyncio.sleep(0.1)
        kind = file_system_of(await asyncio.to_thread(_read_head, str(device)))
        if kind not in GROWABLE:
            return f"the file system on {device} was not grown: it is {kind or 'of a kind that is not known'}"
        self.call.progress(f"growing {kind} on {device.name}", 100.0)
        return await grow(self.host, str(device), kind, max(1.0, self.call.remaining))

    # The threads' side

    def _write(self) -> tuple[Layout, Transferred, str, int]:
        with BlockDevice(self.disk.path, writing=True) as device:
            require_same(self.host, self.disk)
            self._record(DiskStage.UNDER_WAY)
            self._touched = True
            cover_up(device, self._mark)
            forget_partitions(device, [part.number for part in self.disk.partitions])
            known_zero = self._discarded(device)
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    writer, sent = self._attempt(device, known_zero)
                    break
                except (ImageChangedError, DecodingError) as error:
                    if attempt == _ATTEMPTS or self.stop.is_set():
                        raise self._refused(error, attempt) from error
                    self._tell(f"{error}: it is fetched once more from its beginning")
            proof = writer.finish(self._check_going_on)
            layout = self._laid_out(device, writer.head)
            if layout.backup is not None:
                device.write_bytes(*layout.backup)
            device.sync()
            reveal(device, layout.head)
            with contextlib.suppress(OSError):
                # A kernel that shows no partition is told of where one is looked for.
                show_partitions(device, layout.spans)
            agreed = f"{self.expected[0]} of what was fetched agrees, " if self.expected else ""
            return layout, sent, agreed + proof, writer.skipped

    def _attempt(self, device: BlockDevice, known_zero: bool) -> tuple[DiskWriter, Transferred]:
        """The image from its beginning to its end. Raises DecodingError where it is not what was published."""
        self.meter.begun = time.monotonic()
        source = self._source = self._open_source()
        writer = DiskWriter(
            device,
            known_zero=known_zero,
            whole_check=self.expected is None,
            check_head=lambda head: self._check_head(device, head),
        )
        try:
            if self.form is ImageFormat.QCOW2:
                return writer, self._by_spool(device, source, writer)
            return writer, self._pass(source, self.form, writer)
        finally:
            source.close()

    def _open_source(self) -> ImageSource:
        return ImageSource(self.image.url, deadline=self._deadline, has_checksum=self.expected is not None)

    def _pass(self, reader: Reader, form: ImageFormat, sink: Sink, *, check: bool = True) -> Transferred:
        names = ((self.expected or ("sha256",))[0],) if check else ()
        transfer = self._transfer = Transfer(reader, form, sink, self.meter, names)
        self._check_going_on()
        sent = transfer.run()
        self._transfer = None
        if check and self.expected is not None and sent.digests[self.expected[0]] != self.expected[1]:
            raise DecodingError(
                f"its {self.expected[0]} is {sent.digests[self.expected[0]]}, not {self.expected[1]} "
                f"({sent.received} bytes came)"
            )
        return sent

    def _by_spool(self, device: BlockDevice, source: ImageSource, writer: DiskWriter) -> Transferred:
        """A qcow2 file goes to the end of the disk first, as it is, and from there to its beginning: its tables may
        follow its data, and its checksum is known only at its end. Needs no memory and no other disk."""
        spool = _Spool(device, source)
        fetched = self._pass(source, ImageFormat.RAW, spool)
        image = Qcow2(spool.read)
        self._source = None
        sent = self._pass(image, ImageFormat.RAW, writer, check=False)
        device.zero_out(spool.offset, device.size - spool.offset)
        return Transferred(fetched.received, sent.written, fetched.digests)

    def _check_going_on(self) -> None:
        """Raises the reason for which it was stopped."""
        if self.stop.is_set():
            raise self._reason or OperationError(ErrorCode.CANCELLED, "the writing of the image was stopped")

    def _laid_out(self, device: BlockDevice, head: bytes) -> Layout:
        try:
            return lay_out(head, device.sector, device.size, grow=self.arguments.grow_root)
        except ValueError as error:
            return Layout(head, note=f"the partition table was left as it is: {error}")

    def _check_head(self, device: BlockDevice, head: bytes) -> None:
        try:
            check_head(head, device.sector, device.size)
        except ValueError as error:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT, f"the image cannot be used on {self.disk.name}: {error}"
            ) from error

    def _discarded(self, device: BlockDevice) -> bool:
        """Has the disk forget what it held, where it can. Whether it reads as zeros then, as far as was probed."""
        if not self.disk.discards or device.size < _SHORTEST_TO_DISCARD:
            return False
        offset, end = HEAD, (device.size - HEAD) // ALIGNMENT * ALIGNMENT
        while offset < end and not self.stop.is_set():
            count = min(_DISCARD_STEP, end - offset)
            if not device.discard(offset, count):
                return False
            offset += count
        # The first place holds the mark.
        return set(device.probe()) <= {0}

    def _refused(self, error: Exception, attempts: int) -> OperationError:
        return OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"{shown_address(self.image.url)} is not the image that was asked for, in {attempts} attempts: {error}. "
            f"The disk {self.disk.name} is marked as half written",
        )

    def _record(self, stage: DiskStage, result: WriteImageResult | None = None) -> None:
        """`result`: with a write that is done."""
        records = Records(self.host.state)
        before = records.read(self.disk.name, self.disk.serial, self.disk.size_bytes)
        head = None
        if result is not None:
            with BlockDevice(self.disk.path) as device:
                head = finished_head(device)
        record = DiskRecord(
            serial=self.disk.serial,
            size_bytes=self.disk.size_bytes,
            head=head,
            image=DiskImage(
                stage=stage,
                image=shown_address(self.image.url),
                expected=None if self.expected is None else self.expected[1],
                checksum=None if result is None else result.checksum,
                bytes=None if result is None else result.bytes,
                seconds=None if result is None else result.seconds,
                partition=None if result is None else result.partition,
            ),
            erasure=before.erasure,
        )
        records.write(self.disk.name, record)


class _Spool:
    """The end of a disk, used as the place of a file until it was read."""

    def __init__(self, device: BlockDevice, source: ImageSource) -> None:
        self._device = device
        self._source = source
        self._position = 0
        self.offset = 0

    def begin(self, expected: int | None) -> None:
        """Nothing is known before the first part."""

    def put(self, data: memoryview) -> None:
        if not self._position:
            self._place(data)
        rest = -len(data) % ALIGNMENT
        if rest:
            self._device.write_bytes(self.offset + self._position, bytes(data) + bytes(rest))
        else:
            self._device.write(self.offset + self._position, data)
        self._position += len(data)

    def read(self, offset: int, size: int) -> bytes:
        return self._device.read_bytes(self.offset + offset, size)

    def _place(self, data: memoryview) -> None:
        """Where it has room: behind everything that it will become. Raises OperationError INVALID_ARGUMENT."""
        try:
            virtual = parse_header(bytes(data[:512])).size
        except ValueError as error:
            raise OperationError(ErrorCode.INVALID_ARGUMENT, f"the image cannot be used: {error}") from error
        length = self._source.size
        if length is None:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT,
                "the server does not say how long the qcow2 image is: publish it as raw.zst",
            )
        self.offset = (self._device.size - length - ALIGNMENT) // _MIB * _MIB
        if self.offset < virtual:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT,
                f"the qcow2 image becomes {gibibytes(virtual)}, and on its way it needs {gibibytes(length)} more "
                f"than that, which {self._device.path} with its {gibibytes(self._device.size)} has not got: "
                "publish it as raw.zst, or choose a larger disk",
            )


def _read_head(path: str) -> bytes:
    with BlockDevice(path) as device:
        return device.read_bytes(0, 68 << 10)
