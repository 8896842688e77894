"""What a boot loader would start: the words that its parsers share. Pure."""

import re
from dataclasses import dataclass
from typing import Literal

from ramdisk.volumes import Located

__all__ = ["BootChoice", "Loader", "NoChoice", "compare_versions"]

Loader = Literal["grub", "systemd-boot", "bls"]


class NoChoice(ValueError):
    """This loader's configuration starts no Linux; it says why."""


@dataclass(frozen=True, slots=True)
class BootChoice:
    """One kernel with all that belongs to it. `unified`: the kernel's file is a unified image, which holds the initrd
    and the command line as well."""

    loader: Loader
    title: str
    kernel: Located
    initrds: tuple[Located, ...]
    command_line: str
    unified: bool = False

    def missing(self) -> list[str]:
        """Files that are named and not there."""
        return [str(place) for place in (self.kernel, *self.initrds) if place.file is None]


def compare_versions(one: str, other: str) -> int:
    """Negative, zero or positive (UAPI.10, Version Format Specification)."""
    while True:
        one, other = _IGNORED.sub("", one), _IGNORED.sub("", other)
        if (mark := _by_mark("~", one, other)) is not None:
            if mark:
                return mark
            one, other = one[1:], other[1:]
            continue
        if not one or not other:
            return bool(one) - bool(other)
        for separator in "-^.":
            if (mark := _by_mark(separator, one, other)) is not None:
                break
        if mark is not None:
            if mark:
                return mark
            one, other = one[1:], other[1:]
            continue
        kind = _DIGITS if one[0].isdecimal() or other[0].isdecimal() else _LETTERS
        mine, theirs = _prefix(kind, one), _prefix(kind, other)
        numbers = kind is _DIGITS and mine and theirs
        order = int(mine) - int(theirs) if numbers else (mine > theirs) - (mine < theirs)
        if order:
            return order
        one, other = one[len(mine) :], other[len(theirs) :]


_IGNORED = re.compile(r"^[^a-zA-Z0-9~^.-]+")
_DIGITS, _LETTERS = re.compile(r"[0-9]*"), re.compile(r"[a-zA-Z]*")


def _prefix(kind: re.Pattern[str], text: str) -> str:
    match = kind.match(text)
    return match[0] if match else ""


def _by_mark(mark: str, one: str, other: str) -> int | None:
    """Whichever begins with the mark is lower; 0 where both do, None where neither does."""
    mine, theirs = one.startswith(mark), other.startswith(mark)
    return theirs - mine if mine or theirs else None
