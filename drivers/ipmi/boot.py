"""The boot override over the system boot options (IPMI 2.0, 28.12, 28.13 and table 28-14).

Rules, and where they come from:
- Parameter 3 first, so that the BMC keeps the flags beyond 60 seconds; BMCs without it are common (story/2004266,
  OpenBMC), so its refusal is passed over.
- Parameter 5 with valid, persistent and UEFI as bits 0x80, 0x40 and 0x20: clients that send only one of the latter
  two lose the other (ipmitool#163).
- "None" clears the valid bit; an explicit "no override" is written only where the BMC keeps it set (ipmitool#304).
- What is read back is what was written, not what the firmware will do (story/2008241).
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from drivers.driver import Call
from drivers.ipmi import commands
from drivers.ipmi.commands import UNKNOWN_PARAMETER_CODES, refusal
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.device import read_device_id
from drivers.ipmi.quirks import Maker
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.boot import BootDevice, BootMode, BootReading, Override, SetBootDevice, SetBootDeviceResult

__all__ = ["BootFlags", "IpmiBoot", "flags_for", "parse_boot_flags"]

_log = logging.getLogger("drivers.ipmi")

_SET_IN_PROGRESS: Final = 0
_VALID_BIT_CLEARING: Final = 3
_BOOT_FLAGS: Final = 5
_KEEP_AFTER_60_SECONDS: Final = 0x08
_VALID, _PERSISTENT, _UEFI = 0x80, 0x40, 0x20
_IN_USE: Final = 0x81
_IN_USE_PAUSES: Final = (0.5, 1.0, 1.5)

_SELECTORS: Final[dict[BootDevice, int]] = {
    BootDevice.NONE: 0x0,
    BootDevice.PXE: 0x1,
    BootDevice.DISK: 0x2,
    BootDevice.CD: 0x5,
    BootDevice.BIOS: 0x6,
    BootDevice.USB: 0xF,
}
_DEVICES: Final[dict[int, tuple[BootDevice | None, str]]] = {
    0x0: (BootDevice.NONE, "no override"),
    0x1: (BootDevice.PXE, "PXE"),
    0x2: (BootDevice.DISK, "default hard drive"),
    0x3: (BootDevice.DISK, "default hard drive, safe mode"),
    0x4: (None, "diagnostic partition"),
    0x5: (BootDevice.CD, "CD/DVD"),
    0x6: (BootDevice.BIOS, "BIOS setup"),
    0x7: (BootDevice.USB, "remote removable media"),
    0x8: (BootDevice.CD, "remote CD/DVD"),
    0x9: (None, "remote primary media"),
    0xB: (BootDevice.DISK, "remote hard drive"),
    0xF: (BootDevice.USB, "removable media"),
}


@dataclass(frozen=True, slots=True)
class BootFlags:
    """The first two data bytes of parameter 5."""

    flags: int
    selector_byte: int

    @property
    def valid(self) -> bool:
        return bool(self.flags & _VALID)

    @property
    def persistent(self) -> bool:
        return bool(self.flags & _PERSISTENT)

    @property
    def uefi(self) -> bool:
        return bool(self.flags & _UEFI)

    @property
    def selector(self) -> int:
        return self.selector_byte >> 2 & 0xF

    def device(self, maker: Maker) -> tuple[BootDevice | None, str]:
        """The device, and the specification's words for it with both bytes."""
        device, words = _DEVICES.get(self.selector, (None, f"reserved selector {self.selector:#x}"))
        if self.uefi and self.selector_byte & 0x3C == maker.uefi_disk_byte:
            device = BootDevice.DISK
        return device, f"{words} ({self.flags:#04x} {self.selector_byte:#04x})"

    @property
    def data(self) -> bytes:
        return bytes((self.flags, self.selector_byte, 0, 0, 0))


NO_OVERRIDE: Final = BootFlags(0x00, 0x00)
_EXPLICIT_NO_OVERRIDE: Final = BootFlags(_VALID, 0x00)


def parse_boot_flags(data: bytes) -> BootFlags:
    """The answer to Get System Boot Options, parameter 5. Raises ValueError when it is cut short."""
    if len(data) < 4 or data[1] & 0x7F != _BOOT_FLAGS:
        raise ValueError(f"boot flags that cannot be read: {data[:8].hex(' ') or 'no data'}")
    return BootFlags(data[2], data[3])


def flags_for(device: BootDevice, mode: BootMode, persistent: bool, maker: Maker) -> BootFlags:
    """What to write for a device."""
    flags = _VALID | (_PERSISTENT if persistent else 0) | (_UEFI if mode is BootMode.UEFI else 0)
    selector_byte = _SELECTORS[device] << 2
    if device is BootDevice.DISK and mode is BootMode.UEFI and maker.uefi_disk_byte is not None:
        selector_byte = maker.uefi_disk_byte
    return BootFlags(flags, selector_byte)


class IpmiBoot:
    """The boot concern. After a crash between the writes, setting it again is harmless and settles it."""

    def __init__(self, connection: IpmiConnection) -> None:
        self._connection = connection

    async def get_boot(self, _arguments: Nothing, call: Call) -> BootReading:
        """The flags as the BMC keeps them. Raises UNSUPPORTED where it keeps none."""
        maker = (await read_device_id(self._connection, call)).maker
        flags = await self._read(call)
        device, words = flags.device(maker)
        return BootReading(
            target=device if flags.valid else BootDevice.NONE,
            raw_target=words,
            enabled=_enabled(flags),
            mode=_mode(flags) if flags.valid else None,
            allowed_targets=[device.value for device in _SELECTORS],
            allowed_modes=[mode.value for mode in BootMode],
        )

    async def set_boot_device(self, arguments: SetBootDevice, call: Call) -> SetBootDeviceResult:
        """Writes the flags and reads them back.

        Without a `mode` the present override's mode is kept; where there is none, UEFI is asked for, since IPMI does
        not tell how a machine boots. A BMC that keeps the device and gives 0x00 for all flags (OpenIPMI's
        `ipmi_sim`), or that cannot be asked for them, cannot be read back: `observed["bootReadBack"]` tells so, and
        what was written is returned. Any other difference raises NOT_APPLIED.
        """
        if arguments.device is BootDevice.UEFI_HTTP or arguments.http_boot_uri is not None:
            raise OperationError(
                ErrorCode.UNSUPPORTED, "IPMI has no boot device for UEFI HTTP: use the redfish driver, or pxe"
            )
        maker = (await read_device_id(self._connection, call)).maker
        wanted = NO_OVERRIDE
        if arguments.device is not BootDevice.NONE:
            mode = arguments.mode or await self._present_mode(call)
            wanted = flags_for(arguments.device, mode, arguments.persistent, maker)
        async with self._set_in_progress(call):
            if arguments.device is not BootDevice.NONE:
                await self._write_softly(_VALID_BIT_CLEARING, bytes((_KEEP_AFTER_60_SECONDS,)), call)
            await self._write(_BOOT_FLAGS, wanted.data, call)
        return await self._read_back(wanted, maker, call)

    async def _read_back(self, wanted: BootFlags, maker: Maker, call: Call) -> SetBootDeviceResult:
        try:
            read = await self._read(call)
        except OperationError as error:
            if error.code not in (ErrorCode.UNSUPPORTED, ErrorCode.BMC_ERROR):
                raise
            return self._unreadable(wanted, maker, f"the BMC does not give the boot flags: {error.message}", call)
        if not wanted.valid:
            if read.valid and read.selector:
                await self._write(_BOOT_FLAGS, _EXPLICIT_NO_OVERRIDE.data, call)
                read = await self._read(call)
            if read.valid and read.selector:
                raise self._not_applied(wanted, read, maker)
            return SetBootDeviceResult(
                target=BootDevice.NONE, raw_target=read.device(maker)[1], enabled=Override.DISABLED
            )
        if read.selector != wanted.selector:
            raise self._not_applied(wanted, read, maker)
        if read.flags == 0:
            return self._unreadable(wanted, maker, "the BMC keeps the device and does not give its flags", call)
        if not read.valid or read.uefi != wanted.uefi:
            raise self._not_applied(wanted, read, maker)
        device, words = read.device(maker)
        return SetBootDeviceResult(
            target=device,
            raw_target=words,
            enabled=_enabled(read),
            mode=_mode(read),
            persistent_supported=read.persistent if wanted.persistent else None,
        )

    def _unreadable(self, written: BootFlags, maker: Maker, why: str, call: Call) -> SetBootDeviceResult:
        call.observed["bootReadBack"] = why
        device, words = written.device(maker)
        if not written.valid:
            device = BootDevice.NONE
        mode = _mode(written) if written.valid else None
        return SetBootDeviceResult(target=device, raw_target=words, enabled=_enabled(written), mode=mode)

    def _not_applied(self, wanted: BootFlags, read: BootFlags, maker: Maker) -> OperationError:
        return OperationError(
            ErrorCode.NOT_APPLIED,
            f"{self._connection.endpoint} took the boot flags {wanted.device(maker)[1]} and reads back "
            f"{read.device(maker)[1]}",
        )

    async def _present_mode(self, call: Call) -> BootMode:
        try:
            flags = await self._read(call)
        except OperationError as error:
            if error.code not in (ErrorCode.UNSUPPORTED, ErrorCode.BMC_ERROR):
                raise
            return BootMode.UEFI
        return _mode(flags) if flags.valid else BootMode.UEFI

    async def _read(self, call: Call) -> BootFlags:
        command = commands.GET_BOOT_OPTIONS.with_data(bytes((_BOOT_FLAGS, 0, 0)))
        answer = await self._connection.ask(command, call)
        if answer.completion_code:
            meanings = dict.fromkeys(UNKNOWN_PARAMETER_CODES, ErrorCode.UNSUPPORTED)
            raise refusal(command, answer, self._connection.endpoint, meanings)
        try:
            return parse_boot_flags(answer.data)
        except ValueError as error:
            raise OperationError(ErrorCode.BMC_ERROR, f"{self._connection.endpoint} sent {error}") from error

    async def _write(self, parameter: int, data: bytes, call: Call) -> None:
        command = commands.SET_BOOT_OPTIONS.with_data(bytes((parameter,)) + data)
        answer = await self._connection.ask(command, call)
        if answer.completion_code:
            meanings = {0x80: ErrorCode.UNSUPPORTED, _IN_USE: ErrorCode.CONFLICT, 0x82: ErrorCode.UNSUPPORTED}
            raise refusal(command, answer, self._connection.endpoint, meanings)

    async def _write_softly(self, parameter: int, data: bytes, call: Call) -> int:
        """Writes a parameter that the BMC need not have; gives the completion code."""
        command = commands.SET_BOOT_OPTIONS.with_data(bytes((parameter,)) + data)
        answer = await self._connection.ask(command, call)
        code = answer.completion_code
        if code and code not in UNKNOWN_PARAMETER_CODES and code != _IN_USE:
            raise refusal(command, answer, self._connection.endpoint)
        return code

    @asynccontextmanager
    async def _set_in_progress(self, call: Call) -> AsyncIterator[None]:
        """Holds parameter 0, the BMC's own lock, where it has one.

        A client that died while it held the lock leaves it taken for ever, so after three seconds it is broken open.
        """
        code = await self._write_softly(_SET_IN_PROGRESS, b"\x01", call)
        for pause in _IN_USE_PAUSES:
            if code != _IN_USE:
                break
            await call.sleep(pause, "waiting for another client to end its change of the boot options")
            code = await self._write_softly(_SET_IN_PROGRESS, b"\x01", call)
        if code == _IN_USE:
            await self._write_softly(_SET_IN_PROGRESS, b"\x00", call)
            await self._write(_SET_IN_PROGRESS, b"\x01", call)
            code = 0
        try:
            yield
        finally:
            if not code:
                # Shielded: a cancelled call must not leave the lock taken.
                await asyncio.shield(self._release(call))

    async def _release(self, call: Call) -> None:
        """A failure here must not hide how the change itself ended; the next client breaks the lock open."""
        try:
            await self._write_softly(_SET_IN_PROGRESS, b"\x00", call)
        except OperationError as error:
            _log.warning("%s: the lock of the boot options stays taken: %s", self._connection.endpoint, error)


def _enabled(flags: BootFlags) -> Override:
    if not flags.valid or not flags.selector:
        return Override.DISABLED
    return Override.CONTINUOUS if flags.persistent else Override.ONCE


def _mode(flags: BootFlags) -> BootMode:
    return BootMode.UEFI if flags.uefi else BootMode.BIOS
