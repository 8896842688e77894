"""Where this host fetches Debian's packages from: its own apt's sources, in both formats (sources.list(5)).

Nobody's mirror is written into this program: whoever builds uses the one that the host was set up with.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ramdisk.image.programs import BuildError

__all__ = ["Mirror", "Source", "choose_mirror", "own_mirror", "parse_deb822", "parse_one_line"]

_APT = Path("/etc/apt")
_RELEASES = frozenset(
    ("bullseye", "bookworm", "trixie", "forky", "oldoldstable", "oldstable", "stable", "testing", "sid", "unstable")
)
"""Debian's own names: other distributions and other makers of packages call theirs otherwise."""
_ONE_LINE = re.compile(r"deb\s+(?:\[[^\]]*\]\s+)?(?P<address>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)")
_NO = frozenset(("no", "false", "off", "0", "without", "disable"))
"""What switches an entry off: apt's own words."""
_MEDIUM = "cdrom:"


@dataclass(frozen=True, slots=True)
class Source:
    """One address with its suites and components, as apt has it. Only of binary packages."""

    address: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mirror:
    """The addresses of Debian's archive and of its security updates; every release lies below both."""

    archive: str
    security: str

    @classmethod
    def at(cls, address: str) -> "Mirror":
        """Both below one host, as Debian lays them out: `…/debian` and `…/debian-security`."""
        archive = address.rstrip("/")
        return cls(archive, f"{archive}-security")


def parse_one_line(text: str) -> tuple[Source, ...]:
    """The sources of a `*.list`. Lines that are none are apt's to complain of. Pure."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    found = filter(None, map(_ONE_LINE.fullmatch, lines))
    return tuple(Source(m["address"], (m["suite"],), tuple(m["components"].split())) for m in found)


def parse_deb822(text: str) -> tuple[Source, ...]:
    """The sources of a `*.sources`. Paragraphs that are none are apt's to complain of. Pure."""
    return tuple(source for fields in _paragraphs(text) for source in _sources(fields))


def _paragraphs(text: str) -> Iterator[dict[str, str]]:
    """The fields of each paragraph, by their names in small letters; a line that begins with a space goes on."""
    fields: dict[str, str] = {}
    name = ""
    for line in (*text.splitlines(), ""):
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0].isspace():
            fields[name] = f"{fields.get(name, '')} {line.strip()}"
        else:
            key, _, value = line.partition(":")
            name = key.strip().lower()
            fields[name] = value.strip()


def _sources(fields: dict[str, str]) -> Iterator[Source]:
    if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in _NO:
        return
    suites, components = (tuple(fields.get(name, "").split()) for name in ("suites", "components"))
    for address in fields.get("uris", "").split():
        yield Source(address, suites, components)


def choose_mirror(sources: Iterable[Source]) -> Mirror | None:
    """Debian's mirror among them, where there is one. Pure.

    An address that also has a release's `-updates` comes before one that only calls a suite as Debian does.
    """
    offered: dict[str, set[str]] = {}
    for source in sources:
        if "main" in source.components and not source.address.startswith(_MEDIUM):
            offered.setdefault(source.address.rstrip("/"), set()).update(source.suites)
    archives = [address for address, suites in offered.items() if suites & _RELEASES]
    archives.sort(key=lambda address: not any(f"{name}-updates" in offered[address] for name in _RELEASES))
    if not archives:
        return None
    security = [
        address for address, suites in offered.items() if any(f"{name}-security" in suites for name in _RELEASES)
    ]
    mirror = Mirror.at(archives[0])
    return Mirror(mirror.archive, security[0]) if security else mirror


def own_mirror(apt: Path = _APT) -> Mirror:
    """This host's. Raises BuildError where its apt has none."""
    found: list[Source] = []
    for file in (apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))):
        parse = {".list": parse_one_line, ".sources": parse_deb822}.get(file.suffix)
        if parse is not None and file.is_file():
            found += parse(file.read_text(encoding="utf-8", errors="replace"))
    mirror = choose_mirror(found)
    if mirror is None:
        raise BuildError(
            f"no mirror of Debian is among this host's package sources ({apt}): name one with --mirror URL"
        )
    return mirror
