"""The programs that an image is built with, and how their failures are told."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from protocol.errors import RackwrightError

__all__ = ["BuildError", "ToolsMissing", "need_programs", "run"]

_PACKAGES = {
    "mmdebstrap": "mmdebstrap",
    "dpkg-deb": "dpkg",
    "depmod": "kmod",
    "modprobe": "kmod",
    "mksquashfs": "squashfs-tools",
    "zstd": "zstd",
    "xorriso": "xorriso",
    "grub-mkimage": "grub-common",
    "mformat": "mtools",
    "mcopy": "mtools",
    "mmd": "mtools",
}
"""Where Debian has each program."""
_LAST_LINES = 8
_LINE = 300


class BuildError(RackwrightError):
    """An image was not built, and what was there before is as it was. The message says what to do next."""


class ToolsMissing(BuildError):
    """This host lacks what builds an image; the message names the Debian packages."""


def need_programs(names: Iterable[str]) -> None:
    """Raises ToolsMissing that names all Debian packages which are missing here."""
    missing = sorted({_PACKAGES[name] for name in names if shutil.which(name, path=_environment({})["PATH"]) is None})
    if missing:
        raise ToolsMissing(
            f"the image cannot be built without these Debian packages: apt-get install {' '.join(missing)}"
        )


def run(
    words: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    given: bytes | None = None,
    environment: Mapping[str, str] | None = None,
    accept: Sequence[int] = (0,),
) -> str:
    """Runs a program to its end; its output. Raises BuildError with the last lines that it wrote.

    It sees this process's environment, but for what would get into the image: the language and the time zone.
    """
    try:
        ended = subprocess.run(  # noqa: S603 - the words are ours
            [str(word) for word in words],
            cwd=cwd,
            input=given,
            capture_output=True,
            env=_environment(environment or {}),
            check=False,
        )
    except FileNotFoundError:
        raise BuildError(f"{words[0]} is not installed here") from None
    if ended.returncode not in accept:
        said = (ended.stderr + ended.stdout).decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
        listed = "\n  ".join(line.strip()[:_LINE] for line in said if line.strip())
        raise BuildError(f"{Path(str(words[0])).name} failed with exit code {ended.returncode}:\n  {listed}")
    return ended.stdout.decode(errors="replace")


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    # Where root's own programs lie is not on every user's path.
    path = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"
    return {**os.environ, "LC_ALL": "C", "TZ": "UTC", "PATH": path, **more}
