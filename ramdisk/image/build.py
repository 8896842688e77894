"""Builds an image: the medium, its kernel and initial ramdisk, and what others must know of them."""

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import msgspec

from protocol import VERSION
from ramdisk.image.apt_sources import Mirror, own_mirror
from ramdisk.image.architectures import ARCHITECTURES, Architecture, own_architecture
from ramdisk.image.debian import Package, Wanted, encode_packages, unpack_packages
from ramdisk.image.initrd import compress_usr, first_archive, write_initrd
from ramdisk.image.kernel_modules import SECTIONS, Chosen, choose_modules, copy_firmware, copy_modules, kernel_version
from ramdisk.image.libraries import missing_libraries
from ramdisk.image.lists import parse_list, parse_words, read_file
from ramdisk.image.medium import make_medium
from ramdisk.image.programs import BuildError, need_programs
from ramdisk.image.python_tree import (
    LIBRARY,
    compile_modules,
    copy_rooms,
    install_packages,
    parse_python_version,
    room_files,
    try_imports,
)
from ramdisk.image.system_tree import add_applets, add_certificates, leave_out, link_tree
from ramdisk.iso9660 import Extent

__all__ = [
    "PACKAGE_SECTIONS",
    "BuildOptions",
    "Description",
    "architecture_named",
    "build",
    "built",
    "command_line",
    "made_files",
    "sources_digest",
]

_PROGRAMS = (
    "mmdebstrap",
    "dpkg-deb",
    "depmod",
    "modprobe",
    "mksquashfs",
    "zstd",
    "xorriso",
    "mformat",
    "mcopy",
    "mmd",
)
PACKAGE_SECTIONS = ("image", "kernel", "boot", "firmware", "without")
_BEST, _FAST = 19, 3
_KEPT = 4
"""Images of other sources that stay in a cache: somebody may be using one."""
_NOTES = "usr/lib/rackwright/image"
_ISO = "rackwright-ramdisk.iso"
_KERNEL, _INITRD = "vmlinuz", "initrd.zst"
_COMPILED = ("usr/lib/python{python}", LIBRARY)
_STARTED = ("ramdisk.service", "agent.joining", "agent.service", "ramdisk.kexec")
"""What is loaded in every start."""
_IMPORTED = ("ramdisk/", "drivers/linux/")
"""What must be importable as a whole."""
_FIRST_PROGRAMS = ("bin/kmod", "bin/ip", "bin/python{python}")
_WORD = re.compile(r"[A-Za-z0-9_.,:/=@+-]+")


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """`fast`: compressed less, for tries. `exactly`: the packages of an earlier build. `words`: more of them for the
    kernel's command line. `mirror`: Debian's, else the one of this host's apt. `reuse`: packages that were unpacked
    before will do, whatever Debian has since."""

    architecture: Architecture
    fast: bool = False
    firmware: bool = False
    exactly: tuple[Package, ...] = ()
    words: tuple[str, ...] = ()
    mirror: str | None = None
    reuse: bool = False


class Description(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What lies beside an image as `<iso>.json`. Names are of files in the same folder; sizes are in bytes."""

    format: int = 1
    version: str
    architecture: str
    kernel_version: str
    area_offset: int
    area_size: int
    iso_size: int
    iso_sha256: str
    kernel: str
    kernel_sha256: str
    initrd: str
    initrd_sha256: str
    command_line: str
    """For loaders other than the medium's own."""


def command_line(architecture: Architecture, words: Sequence[str] = ()) -> str:
    """Of the kernel. A machine whose ramdisk has failed for good starts anew after a minute. Pure.

    Raises BuildError for a word that a boot loader would take for something else.
    """
    for word in words:
        if not _WORD.fullmatch(word):
            raise BuildError(
                f"{word!r} cannot stand on the kernel's command line: letters, digits and . , : / = @ + - _"
            )
    consoles = [f"console={console}" for console in architecture.consoles]
    return " ".join([*consoles, "panic=60", "loglevel=4", *words])


def build(output: Path, work: Path, options: BuildOptions, tell: Callable[[str], None], iso: str = _ISO) -> Path:
    """Builds an image into `output`; the path of its description, which is written last.

    `work` keeps what the next build can use: fetched packages, unpacked trees. Nothing in `output` changes until all
    is there. `tell` is told each step, in words. Raises BuildError, and RequestError for faults in the lists.
    """
    need_programs([*_PROGRAMS, *(["grub-mkimage"] if options.architecture.bios else [])])
    words = command_line(options.architecture, options.words)
    lists = parse_list(read_file("packages.txt"), options.architecture.debian, PACKAGE_SECTIONS)
    place = work.resolve() / options.architecture.name
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        # Another build in the same folder is waited for.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _build(output, place, options, tell, iso, words, lists)


def _build(
    output: Path,
    place: Path,
    options: BuildOptions,
    tell: Callable[[str], None],
    iso: str,
    words: str,
    lists: Mapping[str, Sequence[str]],
) -> Path:
    tell("fetching and unpacking Debian's packages")
    tree, packages = _packages(place, lists, options)
    time = int(os.environ.get("SOURCE_DATE_EPOCH") or next(tree.glob("boot/vmlinuz-*")).stat().st_mtime)
    stage = place / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    made = place / "made"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    try:
        tell("putting the system together")
        version, chosen, first_read = _make_system(tree, stage, options, time)
        tell("compressing it")
        level = _FAST if options.fast else _BEST
        compress_usr(stage / "usr", made / "rest.squashfs", without=first_read, level=level, time=time)
        early = [(path, (tree / "usr/lib/modules" / version / path).read_bytes()) for path in chosen.early]
        busybox = (tree / "usr/bin/busybox").read_bytes()
        first = first_archive(stage / "usr", first_read, busybox, early, time)
        write_initrd(made / _INITRD, made / "rest.squashfs", first, level=level, time=time)
        shutil.copyfile(tree / f"boot/vmlinuz-{version}", made / _KERNEL)
        tell("making the bootable medium")
        area = make_medium(
            made / iso,
            kernel=made / _KERNEL,
            initrd=made / _INITRD,
            tree=tree,
            architecture=options.architecture,
            words={"VERSION": VERSION, "WORDS": words},
            work=made,
            time=time,
        )
        _describe(made, iso, packages, area, version, options.architecture, words)
        return _hand_over(made, output, iso)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        shutil.rmtree(made, ignore_errors=True)


def built(cache: Path, work: Path, options: BuildOptions, tell: Callable[[str], None]) -> Path:
    """An image of the present sources, built only where `cache` has none; the path of its description.

    Of Debian it may be as old as the cache is: for tests and measurements.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        # Whoever wants the same image at the same time waits for it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = cache / sources_digest(options)
        description = folder / f"{_ISO}.json"
        if description.is_file():
            return description
        others = sorted(cache.glob("*/"), key=lambda path: path.stat().st_mtime)
        for old in others[:-_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        return build(folder, work, options, tell)


def sources_digest(options: BuildOptions) -> str:
    """Of all that this repository puts into an image, and of the options."""
    digest = hashlib.sha256(repr(options).encode())
    for file in sorted(files("ramdisk.image").iterdir(), key=lambda file: file.name):
        if file.is_file():
            digest.update(file.name.encode() + file.read_bytes())
    for file in sorted(files("ramdisk.image").joinpath("files").iterdir(), key=lambda file: file.name):
        digest.update(file.name.encode() + file.read_bytes())
    for name, path in room_files():
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def _packages(
    place: Path, lists: Mapping[str, Sequence[str]], options: BuildOptions
) -> tuple[Path, tuple[Package, ...]]:
    """The unpacked packages, and which they are."""
    names = [*lists["image"], *lists["kernel"], *lists["boot"], *(lists["firmware"] if options.firmware else ())]
    mirror = own_mirror() if options.mirror is None else Mirror.at(options.mirror)
    wanted = Wanted(names, lists["without"], options.architecture.debian, options.firmware, mirror, options.exactly)
    tree = place / ("packages-" + hashlib.sha256(repr(wanted).encode()).hexdigest()[:16])
    note = tree.with_suffix(".list")
    if options.reuse and note.is_file() and tree.is_dir():
        return tree, msgspec.json.decode(note.read_bytes(), type=tuple[Package, ...])
    note.unlink(missing_ok=True)
    shutil.rmtree(tree, ignore_errors=True)
    packages = unpack_packages(wanted, tree, place / "fetched")
    note.write_bytes(msgspec.json.encode(packages))
    for old in place.glob("packages-*"):
        if old.stem != tree.name:
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink()
    return tree, packages


def _make_system(tree: Path, stage: Path, options: BuildOptions, time: int) -> tuple[str, Chosen, list[str]]:
    """Fills `stage` with the image's /usr; the kernel's version, its modules, and what every start reads."""
    kept = [path for path in leave_out(tree, parse_words(read_file("leave-out.txt"))) if path.startswith("usr/")]
    link_tree(tree, kept, stage)
    add_applets(stage, parse_words(read_file("applets.txt")))
    add_certificates(tree, stage)
    version = kernel_version(tree)
    chosen = choose_modules(
        tree, version, parse_list(read_file("modules.txt"), options.architecture.debian, SECTIONS)
    )
    copy_modules(tree, version, chosen.paths, stage)
    if options.firmware:
        copy_firmware(tree, version, chosen.paths, stage)
    python = parse_python_version(os.listdir(stage / "usr/bin"))
    install_packages(stage, options.architecture, python)
    copy_rooms(stage)
    for name, text in {
        f"{_NOTES}/modules": "".join(f"{name}\n" for name in chosen.always),
        f"{_NOTES}/time": f"{time}\n",
        f"{_NOTES}/version": f"{VERSION}\n",
        f"{_NOTES}/agent": read_file("agent"),
        "usr/bin/rackwright": read_file("launcher"),
    }.items():
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_text(text)
    compile_modules(stage, [folder.format(python=python) for folder in _COMPILED], options.architecture, python)
    _set_modes(stage)
    return version, chosen, _check(stage, options.architecture, python)


def _set_modes(stage: Path) -> None:
    """What this host's umask has to say must not show in the image."""
    for folder, _, names in os.walk(stage):
        Path(folder).chmod(0o755)
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    for name in (f"{_NOTES}/agent", "usr/bin/rackwright"):
        (stage / name).chmod(0o755)


def _check(stage: Path, architecture: Architecture, python: str) -> list[str]:
    """Raises BuildError where a program or a module could not be started for want of another. What every start reads,
    below /usr."""
    missing = missing_libraries(stage / "usr")
    if missing:
        listed = "; ".join(f"{library} (by {users[0]})" for library, users in sorted(missing.items()))
        raise BuildError(
            f"libraries are missing in the image: {listed}. Mend files/packages.txt or files/leave-out.txt"
        )
    modules = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name, _ in room_files()
        if name.startswith(_IMPORTED) and name.endswith(".py")
    ]
    files = try_imports(stage, _STARTED, architecture, python)
    try_imports(stage, modules, architecture, python)
    return [*(name.format(python=python) for name in _FIRST_PROGRAMS), *(file.removeprefix("usr/") for file in files)]


def _describe(
    made: Path,
    iso: str,
    packages: Sequence[Package],
    area: Extent,
    version: str,
    architecture: Architecture,
    words: str,
) -> None:
    sums = {}
    for name in (iso, _KERNEL, _INITRD):
        with (made / name).open("rb") as file:
            sums[name] = hashlib.file_digest(file, "sha256").hexdigest()
    description = Description(
        version=VERSION,
        architecture=architecture.name,
        kernel_version=version,
        area_offset=area.offset,
        area_size=area.size,
        iso_size=(made / iso).stat().st_size,
        iso_sha256=sums[iso],
        kernel=_KERNEL,
        kernel_sha256=sums[_KERNEL],
        initrd=_INITRD,
        initrd_sha256=sums[_INITRD],
        command_line=words,
    )
    (made / f"{iso}.json").write_bytes(msgspec.json.format(msgspec.json.encode(description)) + b"\n")
    (made / f"{iso}.packages").write_text(encode_packages(packages))


def _hand_over(made: Path, output: Path, iso: str) -> Path:
    """Moves the files to where they are wanted, the description last: an agent that reads it finds all of them."""
    output.mkdir(parents=True, exist_ok=True)
    description = output / f"{iso}.json"
    description.unlink(missing_ok=True)
    for name in (_KERNEL, _INITRD, f"{iso}.packages", iso, f"{iso}.json"):
        target = output / name
        fresh = target.with_name(target.name + ".new")
        with suppress(FileNotFoundError):
            fresh.unlink()
        shutil.move(made / name, fresh)
        fresh.chmod(0o644)
        fresh.replace(target)
    return description


def made_files(description: Path) -> list[Path]:
    """What lies beside an image's description, and it: the medium first."""
    iso, folder = description.with_suffix(""), description.parent
    return [iso, folder / _KERNEL, folder / _INITRD, iso.with_name(f"{iso.name}.packages"), description]


def architecture_named(name: str | None) -> Architecture:
    """By the kernel's name or Debian's; None: this host's. Raises BuildError that lists those there are."""
    by_name = {**ARCHITECTURES, **{entry.debian: entry for entry in ARCHITECTURES.values()}}
    try:
        return own_architecture() if name is None else by_name[name]
    except KeyError as error:
        raise BuildError(
            f"there is no image for {error.args[0]}: there is one for {', '.join(ARCHITECTURES)}"
        ) from None
