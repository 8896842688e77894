"""The readable lists that say what is in the image. Pure.

A list has sections in square brackets, one entry a line, and comments from `#` on. `name [amd64]` is for that
architecture alone, by Debian's name for it, as in Debian's own lists.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

from protocol.errors import Issue, RequestError

__all__ = ["parse_list", "parse_words", "read_file"]

_SECTION = re.compile(r"\[(?P<name>[a-z-]+)\]")
_ENTRY = re.compile(r"(?P<name>[A-Za-z0-9*+][A-Za-z0-9_.+*?/@:\[\]-]*?)(?:\s+\[(?P<only>[a-z0-9 ]+)\])?")


def read_file(name: str) -> str:
    """A file that comes with this package."""
    return files("ramdisk.image").joinpath("files", name).read_text(encoding="utf-8")


def parse_list(text: str, architecture: str, sections: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """The entries of each of the `sections` for one architecture, in the order of the list.

    Raises RequestError that names every fault: an unknown section, an entry before the first one, an entry twice.
    """
    found: dict[str, list[str]] = {section: [] for section in sections}
    seen: set[tuple[str, str]] = set()
    issues: list[Issue] = []
    current: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        where = f"line {number}"
        if heading := _SECTION.fullmatch(words):
            current = heading["name"]
            if current not in found:
                issues.append(Issue(where, f"there is no section {current}", f"there are {', '.join(sections)}"))
                found[current] = []
            continue
        entry = _ENTRY.fullmatch(words)
        if entry is None:
            issues.append(Issue(where, f"{words!r} is no entry", "write one name a line"))
        elif current is None:
            issues.append(Issue(where, f"{entry['name']} stands before the first section"))
        elif (current, words) in seen:
            issues.append(Issue(where, f"{words} is there twice"))
        else:
            seen.add((current, words))
            if entry["only"] is None or architecture in entry["only"].split():
                found[current].append(entry["name"])
    if issues:
        raise RequestError.invalid(issues, "the list")
    return {section: tuple(found[section]) for section in sections}


def parse_words(text: str) -> tuple[str, ...]:
    """A list without sections: the words of all lines but the comments."""
    return tuple(word for line in text.splitlines() for word in line.partition("#")[0].split())
