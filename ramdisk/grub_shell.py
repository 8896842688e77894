"""GRUB's shell, as far as it decides what is started: its language, its functions, the commands that load something
or lead to other files, and the menu that they make. Pure, but for the files that are read.

Commands that only show something or load GRUB's own modules succeed and do nothing; those that are not known fail, as
they do in a GRUB without that module.
"""

import contextlib
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ramdisk.boot_choice import NoChoice
from ramdisk.boot_entries import BootEntry, entries_of
from ramdisk.grub_script import (
    Command,
    For,
    Function,
    If,
    ScriptError,
    Statement,
    While,
    Word,
    parse_script,
)
from ramdisk.grub_variables import VARIABLE_COMMANDS, Environment
from ramdisk.volumes import Located, Volumes

__all__ = ["DEEPEST", "GrubShell", "Loaded", "MenuEntry", "OtherFile"]

_MOST_COMMANDS = 50_000
DEEPEST = 24
_SILENT = frozenset(
    {
        *("insmod", "rmmod", "export", "echo", "true", "sleep", "terminal_input", "terminal_output", "terminal"),
        *("serial", "loadfont", "background_color", "background_image", "play", "clear", "save_env", "gfxmode"),
        *("recordfail", "normal", "boot", "devicetree", "authenticate", "password", "password_pbkdf2", "clean"),
        *("efi-watchdog", "nativedisk", "cryptomount", "lsefi", "videoinfo", "cutmem", "badram", "increment"),
    }
)
_OTHER_SYSTEMS = frozenset(
    {"chainloader", "multiboot", "multiboot2", "xnu_kernel64", "fwsetup", "halt", "reboot", "exit", "ntldr"}
)
_LINUX = frozenset({"linux", "linux16", "linuxefi"})
_INITRD = frozenset({"initrd", "initrd16", "initrdefi"})


@dataclass(frozen=True)
class MenuEntry:
    """One line of a menu. `body` None: a boot entry of the specification. `positional`: its `$1`, `$2`, …"""

    title: str
    id: str
    body: tuple[Statement, ...] | None
    positional: tuple[str, ...] = ()
    submenu: bool = False
    bls: BootEntry | None = None

    def is_named(self, wanted: str) -> bool:
        return wanted in (self.id, self.title) if self.id else wanted == self.title


class Loaded(NamedTuple):
    kernel: Located
    command_line: str


class _Return(Exception):
    """`return`: ends a function, or the file."""


class _Break(Exception):
    """`break`: ends a loop."""


class OtherFile(Exception):
    """`configfile`: another configuration takes this one's place."""

    def __init__(self, place: Located) -> None:
        self.place = place


class GrubShell:
    """One execution: its variables, its functions, its menu, and what an entry has loaded."""

    def __init__(self, volumes: Volumes, variables: dict[str, str]) -> None:
        self._environment = Environment(volumes, variables)
        self.variables = variables
        self._functions: dict[str, tuple[Statement, ...]] = {}
        self._positional: tuple[str, ...] = ()
        self.menu: list[MenuEntry] = []
        self.loaded: Loaded | None = None
        self.initrds: list[Located] = []
        self.other: str | None = None
        self._status = True
        self._commands = 0
        self._depth = 0

    def run(self, place: Located) -> None:
        """Executes a file and those that it leads to; afterwards `menu` is what is shown. Raises NoChoice."""
        for _ in range(DEEPEST):
            try:
                self._execute(self._parsed(place))
            except _Return:
                return
            except OtherFile as other:
                place = other.place
                self.menu = []
                folder = f"({place.volume.name}){posixpath.dirname(place.path)}"
                self.variables["config_directory"] = folder
                self.variables["config_file"] = f"{folder}/{posixpath.basename(place.path)}"
            else:
                return
        raise NoChoice("its files lead to each other without end")

    def enter(self, entry: MenuEntry) -> list[MenuEntry]:
        """A submenu's own entries; the variables are what they are when it is entered."""
        outer, self.menu = self.menu, []
        try:
            self._call(entry)
            return self.menu
        finally:
            self.menu = outer

    def start(self, entry: MenuEntry) -> None:
        """Executes an entry; `loaded`, `initrds` and `other` then say what it loads. Raises NoChoice, OtherFile."""
        self.loaded, self.initrds, self.other = None, [], None
        self._call(entry)

    def _call(self, entry: MenuEntry) -> None:
        outer, self._positional = self._positional, entry.positional
        try:
            with contextlib.suppress(_Return):
                self._execute(entry.body or ())
        finally:
            self._positional = outer

    def _parsed(self, place: Located) -> tuple[Statement, ...]:
        data = place.volume.read(place.path)
        if data is None:
            raise NoChoice(f"{place} cannot be read")
        try:
            return parse_script(data.decode(errors="replace"))
        except ScriptError as error:
            raise NoChoice(f"{place} cannot be understood: {error}") from error

    # The language

    def _execute(self, statements: tuple[Statement, ...]) -> None:
        self._depth += 1
        if self._depth > DEEPEST * 4:
            raise NoChoice("it calls itself without end")
        try:
            for statement in statements:
                self._one(statement)
        finally:
            self._depth -= 1

    def _one(self, statement: Statement) -> None:
        self._count()
        match statement:
            case Command():
                self._command(statement)
            case If(branches, otherwise):
                for condition, body in branches:
                    self._execute(condition)
                    if self._status:
                        self._execute(body)
                        return
                self._status = True
                self._execute(otherwise)
            case For() | While():
                with contextlib.suppress(_Break):
                    self._loop(statement)
            case Function(name, body):
                self._functions[name] = body

    def _count(self) -> None:
        self._commands += 1
        if self._commands > _MOST_COMMANDS:
            raise NoChoice("it does not come to an end")

    def _loop(self, statement: For | While) -> None:
        if isinstance(statement, For):
            for value in [text for word in statement.words for text in self._filled(word)]:
                self.variables[statement.variable] = value
                self._execute(statement.body)
            return
        self._execute(statement.condition)
        while self._status != statement.until:
            # Also a round without a command is one.
            self._count()
            self._execute(statement.body)
            self._execute(statement.condition)

    def _command(self, command: Command) -> None:
        words = [text for word in command.words for text in self._filled(word)]
        negated = False
        while words and words[0] == "!":
            words, negated = words[1:], not negated
        if not words:
            self._status = True
            return
        name, arguments = words[0], words[1:]
        if name in self._functions:
            outer, self._positional = self._positional, tuple(arguments)
            try:
                self._execute(self._functions[name])
            except _Return:
                pass
            finally:
                self._positional = outer
        elif name in ("menuentry", "submenu"):
            self._add_entry(name, arguments, command.block or ())
        else:
            self._status = self._built_in(name, arguments)
        if negated:
            self._status = not self._status

    def _built_in(self, name: str, arguments: list[str]) -> bool:
        if (handler := _HANDLERS.get(name)) is not None:
            return handler(self, arguments)
        if (by_variables := VARIABLE_COMMANDS.get(name)) is not None:
            return by_variables(self._environment, arguments)
        if name in _OTHER_SYSTEMS:
            self.other = " ".join([name, *arguments])
        assigned, separator, value = name.partition("=")
        if separator and assigned.isidentifier():
            self.variables[assigned] = value
            return True
        return name in _SILENT or name in _OTHER_SYSTEMS

    def _filled(self, word: Word) -> list[str]:
        """With its variables' values; those that stand without quotes are split at blanks, and vanish when empty."""
        pieces: list[str] = []
        current: str | None = None
        for part in word.parts:
            value = part.value if part.kind == "text" else self._value(part.value)
            if part.quoted or part.kind == "text":
                current = (current or "") + value
                continue
            split = value.split()
            if split and not value[0].isspace():
                current = (current or "") + split.pop(0)
            for text in split:
                if current is not None:
                    pieces.append(current)
                current = text
        if current is not None:
            pieces.append(current)
        return pieces

    def _value(self, name: str) -> str:
        if name.isdecimal():
            index = int(name) - 1
            return self._positional[index] if 0 <= index < len(self._positional) else ""
        if name in ("@", "*"):
            return " ".join(self._positional)
        if name == "#":
            return str(len(self._positional))
        if name == "?":
            return "0" if self._status else "1"
        return self.variables.get(name, "")

    # The commands

    def _add_entry(self, kind: str, arguments: list[str], block: tuple[Statement, ...]) -> None:
        names, identifier = [], ""
        rest = iter(arguments)
        for word in rest:
            if word == "--id":
                identifier = next(rest, "")
            elif word.startswith("--id="):
                identifier = word.removeprefix("--id=")
            elif word in ("--class", "--users", "--hotkey", "--source"):
                next(rest, None)
            elif not word.startswith("--"):
                names.append(word)
        title = names[0] if names else ""
        self.menu.append(MenuEntry(title, identifier, block, tuple(names), kind == "submenu"))
        self._status = True

    def _linux(self, arguments: list[str]) -> bool:
        place = self._environment.located(arguments[0]) if arguments else None
        if place is None:
            path = arguments[0] if arguments else ""
            raise NoChoice(
                f"{path} lies on {self.variables.get('root', '')!r}, which is none of the file systems here"
            )
        self.loaded = Loaded(place, " ".join(arguments[1:]))
        return True

    def _initrd(self, arguments: list[str]) -> bool:
        found = [self._environment.located(path) for path in arguments]
        self.initrds = [place for place in found if place is not None]
        return len(found) == len(self.initrds)

    def _source(self, arguments: list[str]) -> bool:
        place = self._environment.located(arguments[0]) if arguments else None
        if place is None or not place.volume.is_file(place.path):
            return False
        self._execute(self._parsed(place))
        return True

    def _configfile(self, arguments: list[str]) -> bool:
        place = self._environment.located(arguments[0]) if arguments else None
        if place is None or not place.volume.is_file(place.path):
            return False
        raise OtherFile(place)

    def _blscfg(self, _arguments: list[str]) -> bool:
        """The entries of the volume that is the root now, or of the one that this configuration lies on."""
        folder = self._environment.located(self.variables.get("blsdir", ""))
        root = self._environment.volumes.named(self.variables.get("root", ""))
        found: list[BootEntry] = []
        if self.variables.get("blsdir") and folder is not None:
            found = entries_of([folder.volume], [folder.path])
        for volumes in ([root] if root is not None else [], self._environment.volumes.all):
            found = found or entries_of(volumes)
        for entry in found:
            if entry.linux is not None and not entry.unified:
                self.menu.append(MenuEntry(entry.shown, entry.id, None, bls=entry))
        return bool(found)

    def _setparams(self, arguments: list[str]) -> bool:
        self._positional = tuple(arguments)
        return True

    def _eval(self, arguments: list[str]) -> bool:
        try:
            self._execute(parse_script(" ".join(arguments)))
        except ScriptError:
            return False
        return self._status

    def _return(self, _arguments: list[str]) -> bool:
        raise _Return

    def _break(self, _arguments: list[str]) -> bool:
        raise _Break


_Handler = Callable[[GrubShell, list[str]], bool]
_HANDLERS: Mapping[str, _Handler] = {
    "source": GrubShell._source,
    ".": GrubShell._source,
    "configfile": GrubShell._configfile,
    "blscfg": GrubShell._blscfg,
    "bls_import": GrubShell._blscfg,
    "setparams": GrubShell._setparams,
    "eval": GrubShell._eval,
    "return": GrubShell._return,
    "break": GrubShell._break,
    **dict.fromkeys(_LINUX, GrubShell._linux),
    **dict.fromkeys(_INITRD, GrubShell._initrd),
    "cpuid": lambda _run, _words: True,
}
