"""File systems: which one lies where, and how it takes the room that its partition has gained."""

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from drivers.linux.host import Host
from protocol.errors import ErrorCode, OperationError

__all__ = ["GROWABLE", "file_system_of", "grow", "mounted"]

GROWABLE = ("ext4", "xfs", "btrfs")
_MOUNT_SECONDS = 60.0


def file_system_of(head: bytes) -> str | None:
    """By its superblock; `head`: at least the first 68 KiB of a partition. Pure."""
    if head[1080:1082] == b"\x53\xef":
        return "ext4"
    if head[:4] == b"XFSB":
        return "xfs"
    if head[65600:65608] == b"_BHRfS_M":
        return "btrfs"
    if head[510:512] == b"\x55\xaa" and (head[54:57] == b"FAT" or head[82:85] == b"FAT"):
        return "vfat"
    if head[32769:32774] == b"CD001":
        return "iso9660"
    if head[:6] == b"LUKS\xba\xbe":
        return "luks"
    if head[512:520] == b"LABELONE":
        return "lvm"
    if head[4086:4096] in (b"SWAPSPACE2", b"SWAP-SPACE"):
        return "swap"
    return None


async def grow(host: Host, device: str, kind: str, timeout: float) -> str | None:
    """Grows the file system on `device` to its end; what was left undone and why, in words, or None.

    The programs are the file system's own. That is not fatal: the image is whole, and the installed system may grow
    its root itself when it first starts. Raises OperationError TIMEOUT when a program was stopped in the middle: then
    the file system may be damaged.
    """
    try:
        match kind:
            case "ext4":
                return await _grow_ext4(host, device, timeout)
            case "xfs":
                return await _grow_mounted(host, device, kind, ("xfs_growfs",), timeout)
            case _:
                return await _grow_mounted(host, device, kind, ("btrfs", "filesystem", "resize", "max"), timeout)
    except OperationError as error:
        if error.code is ErrorCode.TIMEOUT:
            raise
        return f"the file system on {device} was not grown: {error.message}"


async def _grow_ext4(host: Host, device: str, timeout: float) -> str | None:
    host.need("resize2fs", "growing ext4")
    # resize2fs insists on a check; 1 and 2 mean that faults were mended (e2fsck(8)).
    checked = await host.run("e2fsck", "-f", "-y", device, timeout=timeout)
    if checked.code not in (0, 1, 2):
        return f"the file system on {device} was not grown, since its check failed: {checked.words}"
    resized = await host.run("resize2fs", device, timeout=timeout)
    return None if not resized.code else f"the file system on {device} was not grown: {_last(resized.err)}"


async def _grow_mounted(host: Host, device: str, kind: str, command: tuple[str, ...], timeout: float) -> str | None:
    host.need(command[0], f"growing {kind}")
    async with mounted(host, device, kind, writable=True) as place:
        resized = await host.run(*command, str(place), timeout=timeout)
    return None if not resized.code else f"the file system on {device} was not grown: {_last(resized.err)}"


@contextlib.asynccontextmanager
async def mounted(
    host: Host, device: str, kind: str, *, writable: bool = False, options: str = ""
) -> AsyncIterator[Path]:
    """The file system's root for the length of a block; `options`: more of them, of its kind.

    Raises OperationError NOT_APPLIED where that fails.
    """
    options = ",".join(filter(None, ("rw" if writable else "ro", "nodev,noexec,nosuid", options)))
    folder = tempfile.mkdtemp(prefix="rackwright-")
    try:
        done = await host.run("mount", "-t", kind, "-o", options, device, folder, timeout=_MOUNT_SECONDS)
        if done.code:
            raise OperationError(ErrorCode.NOT_APPLIED, f"{device} cannot be mounted: {done.words}")
        try:
            yield Path(folder)
        finally:
            undone = await host.run("umount", folder, timeout=_MOUNT_SECONDS)
            if undone.code:
                await host.run("umount", "-l", folder, timeout=_MOUNT_SECONDS)
    finally:
        # The empty folder alone: whatever may still be mounted there is not ours to delete.
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _last(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1] if lines else "it does not say why"
