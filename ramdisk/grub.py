"""What GRUB would start: its configuration is executed, and an entry chosen from the menu that it makes. Pure, but
for the files that are read.

A one-time entry (`next_entry`) is followed, and stays: nothing is written.
"""

import posixpath

from ramdisk.boot_choice import BootChoice, NoChoice
from ramdisk.grub_shell import DEEPEST, GrubShell, Loaded, MenuEntry, OtherFile
from ramdisk.volumes import Located, Volumes

__all__ = ["grub_choice"]

_PLACES = ("/boot/grub/grub.cfg", "/boot/grub2/grub.cfg", "/grub/grub.cfg", "/grub2/grub.cfg")
_FEATURES = (
    *("chainloader_bpb", "menuentry_id", "menuentry_options", "ntldr", "platform_search_hint", "200_final"),
    *("default_font_path", "all_video_module", "timeout_style", "blscfg", "nativedisk_cmd"),
)


def grub_choice(
    volumes: Volumes, *, uefi: bool, architecture: str = "x86_64", wanted: str | None = None
) -> BootChoice:
    """Of every configuration that is found, the first that starts a Linux whose files are there: first that of the
    loader on the EFI system partition, then those at their usual places.

    `wanted`: the title or id of an entry. Raises NoChoice with what spoke against each configuration.
    """
    notes = []
    for place in _configurations(volumes, uefi=uefi):
        menu = _Menu(GrubShell(volumes, _environment(place, uefi=uefi, architecture=architecture)))
        try:
            choice = menu.choose(place, wanted)
        except NoChoice as error:
            notes.append(f"{place}: {error}")
            continue
        missing = choice.missing()
        if not missing:
            return choice
        notes.append(f"{place}: {choice.title!r} needs {', '.join(missing)}, which is not there")
    raise NoChoice("; ".join(notes) or f"there is no {' or '.join(_PLACES)}")


def _configurations(volumes: Volumes, *, uefi: bool) -> list[Located]:
    found = []
    system = volumes.system_partition
    if uefi and system is not None:
        vendors = sorted(system.names("/EFI"), key=lambda name: (name.lower() in ("boot", "tools"), name))
        found = [Located(system, f"/EFI/{vendor}/grub.cfg") for vendor in vendors]
    found += [Located(volume, path) for path in _PLACES for volume in volumes.all]
    return [place for place in found if place.volume.is_file(place.path)]


def _environment(place: Located, *, uefi: bool, architecture: str) -> dict[str, str]:
    cpu = {"x86_64": "x86_64" if uefi else "i386", "aarch64": "arm64"}.get(architecture, architecture)
    folder = f"({place.volume.name}){posixpath.dirname(place.path)}"
    return {
        **{f"feature_{name}": "y" for name in _FEATURES},
        "grub_platform": "efi" if uefi else "pc",
        "grub_cpu": cpu,
        "root": place.volume.name,
        "prefix": folder,
        "cmdpath": folder,
        "config_directory": folder,
        "config_file": f"{folder}/{posixpath.basename(place.path)}",
    }


class _Menu:
    """Which entry of a menu is started."""

    def __init__(self, shell: GrubShell) -> None:
        self._shell = shell

    def choose(self, place: Located, wanted: str | None) -> BootChoice:
        """Raises NoChoice."""
        self._shell.run(place)
        if wanted is not None:
            return self._start(self._named(wanted))
        if not self._shell.menu:
            if self._shell.loaded is not None:
                return self._result("", self._shell.loaded)
            raise NoChoice("it has no menu")
        notes = []
        for spec in [self._shell.variables.get("default", "0"), *self._shell.variables.get("fallback", "").split()]:
            try:
                choice = self._start(self._by_spec(spec))
            except NoChoice as error:
                notes.append(str(error))
                continue
            if not choice.missing():
                return choice
            notes.append(f"{choice.title!r} needs {', '.join(choice.missing())}, which is not there")
        raise NoChoice("; ".join(notes))

    def _by_spec(self, spec: str) -> MenuEntry:
        """`2`, an id, a title, or several joined by `>` for a submenu (a `>` of a title is doubled)."""
        names = [part.replace("\0", ">") for part in spec.replace(">>", "\0").split(">")]
        entries = self._shell.menu
        for depth, name in enumerate(names):
            entry = _find(entries, name)
            if entry is None:
                entry = entries[0]
            if not entry.submenu:
                return entry
            entries = self._shell.enter(entry)
            if not entries:
                raise NoChoice(f"the submenu {entry.title!r} is empty")
            if depth == len(names) - 1:
                return self._first(entries)
        return self._first(entries)

    def _first(self, entries: list[MenuEntry]) -> MenuEntry:
        for _ in range(DEEPEST):
            if not entries[0].submenu:
                return entries[0]
            entries = self._shell.enter(entries[0]) or entries[1:]
            if not entries:
                break
        raise NoChoice("its menu leads nowhere")

    def _named(self, wanted: str) -> MenuEntry:
        seen: list[str] = []
        found = self._search(self._shell.menu, wanted, seen, 0)
        if found is None:
            raise NoChoice(f"there is no entry {wanted!r}; there are {', '.join(map(repr, seen)) or 'none'}")
        return found

    def _search(self, entries: list[MenuEntry], wanted: str, seen: list[str], depth: int) -> MenuEntry | None:
        for entry in entries:
            if entry.submenu and depth < DEEPEST:
                inside = self._search(self._shell.enter(entry), wanted, seen, depth + 1)
                if inside is not None:
                    return inside
            else:
                seen.append(entry.title)
                if entry.is_named(wanted) or entry.title == wanted:
                    return entry
        return None

    def _start(self, entry: MenuEntry) -> BootChoice:
        shell = self._shell
        shell.variables["chosen"] = entry.id or entry.title
        if entry.bls is not None:
            return entry.bls.choice("grub", shell.variables)
        try:
            shell.start(entry)
        except OtherFile as other:
            raise NoChoice(f"the entry {entry.title!r} only leads to {other.place}") from None
        if shell.loaded is None:
            why = f": it says {shell.other}" if shell.other else ""
            raise NoChoice(f"the entry {entry.title!r} starts no Linux{why}")
        return self._result(entry.title, shell.loaded)

    def _result(self, title: str, loaded: Loaded) -> BootChoice:
        return BootChoice("grub", title, loaded.kernel, tuple(self._shell.initrds), loaded.command_line)


def _find(entries: list[MenuEntry], name: str) -> MenuEntry | None:
    if name.isdecimal():
        index = int(name)
        return entries[index] if index < len(entries) else None
    # As GRUB does: the id decides, and the title where there is none of that id.
    by_id = next((entry for entry in entries if entry.id and entry.id == name), None)
    return by_id or next((entry for entry in entries if entry.title == name), None)
