"""Boot entries after the Boot Loader Specification (UAPI.1), as systemd-boot reads them, and the GRUB of Fedora and
RHEL. Pure, but for the files that are read."""

import fnmatch
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ramdisk.boot_choice import BootChoice, Loader, NoChoice, compare_versions
from ramdisk.unified_image import is_unified_image
from ramdisk.volumes import Located, Volume, Volumes

__all__ = ["BootEntry", "choose_entry", "entries_of", "parse_entry", "parse_settings", "systemd_boot_choice"]

_COUNTER = re.compile(r"\+(\d+)(-\d+)?$")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_FOLDERS = ("/loader/entries", "/boot/loader/entries")


@dataclass(frozen=True, slots=True)
class BootEntry:
    """One file of `loader/entries`, or one unified image. `tries_left`: by boot counting; 0 is a bad entry."""

    id: str
    volume: Volume
    title: str = ""
    version: str = ""
    machine_id: str = ""
    sort_key: str = ""
    linux: str | None = None
    initrds: tuple[str, ...] = ()
    options: str = ""
    unified: bool = False
    tries_left: int | None = None
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        return f"{self.id}.{'efi' if self.unified else 'conf'}"

    @property
    def shown(self) -> str:
        return self.title or self.id

    def choice(self, loader: Loader, variables: Mapping[str, str] | None = None) -> BootChoice:
        """`variables`: GRUB's, for the `$kernelopts` of older Fedoras. Raises NoChoice where it starts no Linux."""
        if self.linux is None:
            raise NoChoice(f"the entry {self.shown!r} starts no Linux")
        known = variables or {}
        initrds = [_filled(path, known) for path in self.initrds]
        return BootChoice(
            loader=loader,
            title=self.shown,
            kernel=Located(self.volume, _filled(self.linux, known)),
            initrds=tuple(Located(self.volume, path) for line in initrds for path in line.split()),
            command_line=" ".join(_filled(self.options, known).split()),
            unified=self.unified,
        )


def parse_entry(text: str, id_: str, volume: Volume) -> BootEntry:
    """One `.conf` file; `id_` without its ending. A key that is not known is kept aside."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        if not key or key.startswith("#"):
            continue
        key, _, more = key.partition("\t")
        found.setdefault(key.lower(), []).append(f"{more} {value}".strip().strip("\"'"))
    counter = _COUNTER.search(id_)
    single = {key: values[-1] for key, values in found.items()}
    efi = single.get("uki") or (single.get("efi") if is_unified_image(volume, single.get("efi")) else None)
    return BootEntry(
        id=_COUNTER.sub("", id_),
        volume=volume,
        title=single.get("title", ""),
        version=single.get("version", ""),
        machine_id=single.get("machine-id", ""),
        sort_key=single.get("sort-key", ""),
        linux=single.get("linux") or efi,
        initrds=tuple(found.get("initrd", ())),
        options=" ".join(found.get("options", ())),
        unified=efi is not None and "linux" not in single,
        tries_left=int(counter[1]) if counter else None,
        others={key: value for key, value in single.items() if key.startswith("grub_")},
    )


def parse_settings(text: str) -> dict[str, str]:
    """`loader.conf`: the last value of each key."""
    found = {}
    for line in text.splitlines():
        words = line.split(None, 1)
        if words and not words[0].startswith("#"):
            found[words[0].lower()] = words[1].strip() if len(words) > 1 else ""
    return found


def entries_of(volumes: Iterable[Volume], folders: Iterable[str] = _FOLDERS) -> list[BootEntry]:
    """Every entry of these volumes, the one that comes first in a menu first."""
    found = []
    for volume in volumes:
        for folder in folders:
            for name in volume.names(folder):
                data = volume.read(f"{folder}/{name}") if name.endswith(".conf") else None
                if data is not None:
                    found.append(parse_entry(data.decode(errors="replace"), name.removesuffix(".conf"), volume))
        found += _unified_entries(volume)
    return sorted(found, key=functools.cmp_to_key(_before))


def choose_entry(entries: list[BootEntry], wanted: str | None) -> BootEntry | None:
    """By id (also with `.conf`, also a pattern, as `default` in loader.conf), by title, or the first one."""
    if not wanted:
        return entries[0] if entries else None
    names = {wanted, wanted.removesuffix(".conf")}
    for entry in entries:
        if entry.id in names or entry.title == wanted:
            return entry
    return next(
        (one for one in entries if any(fnmatch.fnmatchcase(name, wanted) for name in (one.id, f"{one.id}.conf"))),
        None,
    )


def systemd_boot_choice(
    volumes: Volumes, loader: Loader, wanted: str | None = None, efi_default: str | None = None
) -> BootChoice:
    """What systemd-boot would start. `efi_default`: what its EFI variable names (LoaderEntryDefault), which goes
    before loader.conf. Raises NoChoice."""
    entries = entries_of(volumes.all)
    if not entries:
        raise NoChoice("there is no boot entry in /loader/entries and no image in /EFI/Linux")
    if wanted is not None:
        entry = choose_entry(entries, wanted)
        if entry is None:
            raise NoChoice(f"there is no entry {wanted!r}; there are {', '.join(one.shown for one in entries)}")
        return entry.choice(loader)
    settings: dict[str, str] = {}
    for volume in volumes.all:
        settings = parse_settings((volume.read("/loader/loader.conf") or b"").decode(errors="replace")) or settings
    for preferred in (efi_default, settings.get("default")):
        if preferred and preferred != "@saved" and (entry := choose_entry(entries, preferred)) is not None:
            return entry.choice(loader)
    return next((one for one in entries if one.linux is not None), entries[0]).choice(loader)


def _unified_entries(volume: Volume) -> list[BootEntry]:
    found = []
    for name in volume.names("/EFI/Linux"):
        path = f"/EFI/Linux/{name}"
        if name.lower().endswith(".efi") and is_unified_image(volume, path):
            id_ = name[: -len(".efi")]
            counter = _COUNTER.search(id_)
            plain = _COUNTER.sub("", id_)
            tries = int(counter[1]) if counter else None
            found.append(BootEntry(plain, volume, version=plain, linux=path, unified=True, tries_left=tries))
    return found


def _before(one: BootEntry, other: BootEntry) -> int:
    """UAPI.1, "Sorting": bad ones last; those with a sort key first, by it; the newest version first."""
    if (bad := (one.tries_left == 0) - (other.tries_left == 0)) != 0:
        return bad
    if bool(one.sort_key) != bool(other.sort_key):
        return -1 if one.sort_key else 1
    if one.sort_key:
        mine, theirs = (one.sort_key, one.machine_id), (other.sort_key, other.machine_id)
        if mine != theirs:
            return -1 if mine < theirs else 1
        if (newer := compare_versions(other.version, one.version)) != 0:
            return newer
    # By their whole names, with the ending: `arch.conf` comes before `arch-fallback.conf`.
    return compare_versions(other.file, one.file)


def _filled(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], ""), text) if "$" in text else text
