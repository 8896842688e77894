"""The image's /usr, put together from unpacked packages: what is left out, and what stands in for set-up scripts."""

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["BUSYBOX", "SYSTEM_FILES", "add_applets", "add_certificates", "leave_out", "link_tree", "without_matches"]

_CERTIFICATES = "usr/share/ca-certificates/mozilla"
_BUNDLE = "usr/lib/ssl/cert.pem"
"""Where OpenSSL looks first."""
BUSYBOX = "/early/busybox"
SYSTEM_FILES = {
    "etc/passwd": "root:*:0:0:root:/root:/usr/bin/bash\nnobody:*:65534:65534:nobody:/:/usr/bin/false\n",
    "etc/group": "root:*:0:\ntty:*:5:\ndisk:*:6:\nnogroup:*:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nnetworks: files\nservices: files\n",
    "etc/os-release": 'NAME="Rackwright ramdisk"\nID=rackwright-ramdisk\nID_LIKE=debian\n',
}
"""The few settings that the C library and scripts look for."""


def without_matches(paths: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The paths that no pattern matches, nor any folder above them; `!pattern` keeps what others leave out. Pure.

    `*` stands for anything but `/`, `?` for one of these, `[abc]` and `[!abc]` for one of the list.
    """
    drop = _expression(pattern for pattern in patterns if not pattern.startswith("!"))
    keep = _expression(pattern[1:] for pattern in patterns if pattern.startswith("!"))
    return [path for path in paths if keep.match(path) or not drop.match(path)]


def _expression(patterns: Iterable[str]) -> re.Pattern[str]:
    alternatives = "|".join(map(_translated, patterns)) or r"(?!)"
    return re.compile(rf"(?:{alternatives})(?:/|\Z)")


def _translated(pattern: str) -> str:
    pieces = re.findall(r"\[[^\]]+\]|\*|\?|[^*?\[]+", pattern)
    special = {"*": "[^/]*", "?": "[^/]"}
    return "".join(
        special.get(piece) or (f"[{piece[1:-1].replace('!', '^', 1)}]" if piece[0] == "[" else re.escape(piece))
        for piece in pieces
    )


def leave_out(tree: Path, patterns: Sequence[str]) -> list[str]:
    """What of an unpacked tree goes into the image: files and links below `tree`, sorted."""
    found = []
    for folder, names, files in os.walk(tree):
        here = Path(folder).relative_to(tree)
        linked = [name for name in names if (Path(folder) / name).is_symlink()]
        found += [(here / name).as_posix() for name in (*files, *linked)]
    return without_matches(sorted(found), patterns)


def link_tree(tree: Path, paths: Iterable[str], target: Path) -> None:
    """Puts files and links into `target`, as further names of the same files: both must be on one file system.

    Nothing may be written into these files afterwards. No program has more rights than who calls it.
    """
    for path in paths:
        source, copy = tree / path, target / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(os.readlink(source))
        else:
            mode = source.stat().st_mode
            if mode & 0o6000:
                source.chmod(mode & 0o1777)
            os.link(source, copy)


def add_applets(target: Path, names: Iterable[str]) -> None:
    """Gives busybox the names that no package's own program has. It lies beside the first process, once."""
    busybox = target / "usr/bin/busybox"
    busybox.unlink(missing_ok=True)
    busybox.symlink_to(BUSYBOX)
    present = {path.name for folder in ("usr/bin", "usr/sbin") for path in (target / folder).iterdir()}
    for name in names:
        if name not in present:
            (target / "usr/bin" / name).symlink_to("busybox")


def add_certificates(tree: Path, target: Path) -> int:
    """The certificates that Debian trusts, in the one file that OpenSSL reads; how many they are."""
    certificates = sorted((tree / _CERTIFICATES).glob("*.crt"))
    bundle = target / _BUNDLE
    bundle.parent.mkdir(parents=True, exist_ok=True)
    with bundle.open("wb") as file:
        for certificate in certificates:
            with certificate.open("rb") as source:
                shutil.copyfileobj(source, file)
    return len(certificates)
