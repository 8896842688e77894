"""A user's keys for SSH: our lines in `authorized_keys`, between two marks; the user's own stay.

The folder belongs to the user, who could put links into it. So nothing is reached by a path from there on: each
folder is opened as itself, and the file put in place by its folder.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from protocol.errors import ErrorCode, OperationError

__all__ = ["set_user_keys", "with_keys"]

_BEGIN, _END = "# begin: kept by rackwright", "# end: kept by rackwright"
_FOLDER, _FILE = ".ssh", "authorized_keys"
_LARGEST = 1 << 20


def set_user_keys(root: Path, name: str, keys: Sequence[str]) -> bool:
    """Whether anything was changed. Blocking. Raises OperationError CONFLICT (no such user), or OSError."""
    user, group, home = _account(root, name)
    with _opened(str(root / home.lstrip("/"))) as home_handle:
        made = _make_folder(home_handle, user, group) if keys else False
        try:
            with _opened(_FOLDER, home_handle) as folder:
                before = _read(folder)
                wanted = with_keys(before, keys)
                if wanted == before:
                    return made
                _replace(folder, wanted, user, group)
                if _read(folder) != wanted:
                    raise OperationError(
                        ErrorCode.NOT_APPLIED, f"{home}/{_FOLDER}/{_FILE} does not hold what was written"
                    )
        except FileNotFoundError:
            # No folder, and no key that would need one.
            return False
    return True


def with_keys(text: str, keys: Sequence[str]) -> str:
    """The file with these lines of ours, and with every line of others'. Pure. Raises OperationError CONFLICT where
    nobody can tell which lines are ours."""
    others: list[str] = []
    ours = False
    lines = text.splitlines()
    marks = [line for line in lines if line in (_BEGIN, _END)]
    if marks != [_BEGIN, _END] * (len(marks) // 2):
        raise OperationError(
            ErrorCode.CONFLICT,
            f"the lines {_BEGIN!r} and {_END!r} of {_FILE} are not in pairs any more: nobody can tell which keys are "
            "the user's own. Mend or remove them by hand",
        )
    for line in lines:
        if line in (_BEGIN, _END):
            ours = line == _BEGIN
        elif not ours:
            others.append(line)
    block = [_BEGIN, *dict.fromkeys(keys), _END] if keys else []
    return "".join(f"{line}\n" for line in [*others, *block])


def _account(root: Path, name: str) -> tuple[int, int, str]:
    for line in (root / "etc" / "passwd").read_text().splitlines():
        fields = line.split(":")
        if len(fields) >= 7 and fields[0] == name:
            return int(fields[2]), int(fields[3]), fields[5]
    raise OperationError(
        ErrorCode.CONFLICT, f"there is no user {name!r} on this host: have the image or cloud-init make it"
    )


@contextlib.contextmanager
def _opened(path: str, folder: int | None = None) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


def _make_folder(home: int, user: int, group: int) -> bool:
    try:
        os.mkdir(_FOLDER, 0o700, dir_fd=home)
    except FileExistsError:
        return False
    os.chown(_FOLDER, user, group, dir_fd=home, follow_symlinks=False)
    return True


def _read(folder: int) -> str:
    try:
        handle = os.open(_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return ""
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise OperationError(ErrorCode.CONFLICT, f"{_FILE} is no ordinary file of a sensible size")
        return file.read().decode(errors="surrogateescape")


def _replace(folder: int, text: str, user: int, group: int) -> None:
    fresh = f".{_FILE}.{secrets.token_hex(8)}"
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchown(file.fileno(), user, group)
            file.write(text.encode(errors="surrogateescape"))
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, _FILE, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=folder)
        raise
