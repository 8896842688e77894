"""The kernel's modules of the image, with all that they need, and the firmware that they ask for."""

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import Issue, RequestError
from ramdisk.image.programs import BuildError, run

__all__ = [
    "SECTIONS",
    "Chosen",
    "choose_modules",
    "copy_firmware",
    "copy_modules",
    "firmware_names",
    "kernel_version",
    "module_name",
    "parse_insertions",
]

SECTIONS = ("early", "always", "loadable")
_SUFFIX = re.compile(r"\.ko(\.(xz|zst|gz))?$")
_INSERTED = re.compile(r"^insmod (/.*?\.ko(?:\.\w+)?)(?:\s|$)", re.MULTILINE)
_FIRMWARE = re.compile(rb"\0firmware=([^\0]+)(?=\0)")
_INDEXES = re.compile(r"modules\.(alias|dep|symbols|builtin|builtin\.alias)\.bin|modules\.(softdep|devname)")
"""What kmod reads; the rest of depmod's files are the same in words."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Paths below /usr/lib/modules/<version>/, sorted; `early`: in the order in which they are to be loaded."""

    paths: tuple[str, ...]
    early: tuple[str, ...]
    always: tuple[str, ...]
    """Names."""


def module_name(path: str) -> str:
    """`drivers/net/e1000e.ko` is e1000e; the kernel does not tell `-` from `_` in names."""
    return _SUFFIX.sub("", path.rpartition("/")[2]).replace("-", "_")


def parse_insertions(text: str) -> tuple[str, ...]:
    """The files that `modprobe --show-depends` would insert, in its order, each once. Pure."""
    return tuple(dict.fromkeys(_INSERTED.findall(text)))


def firmware_names(module: bytes) -> frozenset[str]:
    """The files that a module may ask for, below /usr/lib/firmware, from its own notes (`modinfo`). Pure."""
    return frozenset(name.decode() for name in _FIRMWARE.findall(module))


def kernel_version(tree: Path) -> str:
    """Of the one kernel in a tree. Raises BuildError where there is none, or several."""
    versions = [folder.name for folder in (tree / "usr/lib/modules").glob("*") if (folder / "kernel").is_dir()]
    if len(versions) != 1:
        raise BuildError(f"there must be one kernel among the packages, and there are {len(versions)}")
    return versions[0]


def choose_modules(tree: Path, version: str, wanted: Mapping[str, Sequence[str]]) -> Chosen:
    """What the list of each of the SECTIONS comes to. Raises RequestError that names every entry without a module."""
    folder = tree / "usr/lib/modules" / version
    run(["depmod", "-b", tree, version])
    known = {module_name(str(path)): path for path in sorted((folder / "kernel").rglob("*.ko*"))}
    builtin = set(map(module_name, (folder / "modules.builtin").read_text().splitlines()))
    names: dict[str, list[str]] = {}
    issues = []
    for section, entries in wanted.items():
        names[section] = []
        for entry in entries:
            found = _matching(entry, folder / "kernel", known, builtin)
            if found is None:
                issues.append(Issue(section, f"the kernel {version} has no module {entry}"))
            names[section] += found or []
    if issues:
        raise RequestError.invalid(issues, "the list of modules")
    paths = _needed(tree, version, [name for section in names.values() for name in section])
    return Chosen(tuple(sorted(paths)), _needed(tree, version, names["early"]), tuple(names["always"]))


def _matching(entry: str, kernel: Path, known: Mapping[str, Path], builtin: set[str]) -> list[str] | None:
    """The modules of an entry; none for a built-in one. None: there is no such thing."""
    if entry.endswith("/"):
        return [module_name(str(path)) for path in sorted((kernel / entry).rglob("*.ko*"))] or None
    name = module_name(entry)
    return [name] if name in known else [] if name in builtin else None


def _needed(tree: Path, version: str, names: Sequence[str]) -> tuple[str, ...]:
    """With dependencies, in the order of loading, below the version's folder."""
    if not names:
        return ()
    told = run(
        ["modprobe", "-C", os.devnull, "-d", tree, "-S", version, "--all", "--show-depends", *dict.fromkeys(names)]
    )
    root = f"/lib/modules/{version}/"
    return tuple(path.partition(root)[2] for path in parse_insertions(told))


def copy_modules(tree: Path, version: str, paths: Iterable[str], target: Path) -> None:
    """Copies modules from the packages' tree into the image's (`target` is its root) and makes their indexes."""
    source, folder = tree / "usr/lib/modules" / version, target / "usr/lib/modules" / version
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, folder / path)
    for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        shutil.copyfile(source / name, folder / name)
    link = target / "lib"
    if not link.is_symlink():
        link.symlink_to("usr/lib")
    run(["depmod", "-b", target, version])
    for file in folder.iterdir():
        if file.is_file() and not _INDEXES.fullmatch(file.name):
            file.unlink()


def copy_firmware(tree: Path, version: str, paths: Iterable[str], target: Path) -> int:
    """Copies what the modules ask for and the packages have; the number of files."""
    wanted: set[str] = set()
    for path in paths:
        wanted |= firmware_names((tree / "usr/lib/modules" / version / path).read_bytes())
    source, folder, count = tree / "usr/lib/firmware", target / "usr/lib/firmware", 0
    for name in sorted(wanted):
        # A name may be a pattern, where the module makes it up of what it finds in the device.
        for file in sorted(source.glob(name)):
            if file.is_file():
                copy = folder / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
                count += 1
    return count
