"""Small files that must survive a crash whole: written beside, made durable, then put in place."""

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["give_to_owner_of", "make_private_folder", "replace_link", "sync_folder", "write_durably"]


def write_durably(path: Path, data: bytes, mode: int = 0o600, *, durable: bool = True) -> None:
    """Puts `data` at `path` in one step: a reader, or a crash, sees the old file or the new one, never a part.

    Where root writes into another user's folder (an operator who runs a command beside the daemon), the file is
    given to that user, so that the daemon can read it. `durable` False leaves out the fsync.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            give_to_owner_of(path.parent, file.fileno())
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    if durable:
        sync_folder(path.parent)


def make_private_folder(path: Path) -> None:
    """A folder of mode 0700, made with its parents; one that is there already is left as it is."""
    if path.is_dir():
        return
    make_parents = path.parent
    make_parents.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        owner = make_parents.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
    sync_folder(make_parents)


def replace_link(link: Path, target: str) -> None:
    """Points the symbolic link at `target` (a name in the same folder) in one durable step."""
    beside = link.with_name(f".{link.name}.new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(link)
    sync_folder(link.parent)


def sync_folder(folder: Path) -> None:
    """Makes the folder's own entries durable: a rename is not, before this."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def give_to_owner_of(folder: Path, handle: int) -> None:
    """A file that root made for another user's folder becomes that user's, so that the daemon can use it."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.fchown(handle, owner.st_uid, owner.st_gid)
