"""The Debian packages of the image: chosen by apt, fetched and unpacked by mmdebstrap, never installed.

Unpacking alone (mmdebstrap's variant `extract`) needs neither root nor a processor of the same kind, and no script
of a package can put the time of day or a random number into the image.
"""

import hashlib
import re
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import Issue, RequestError
from ramdisk.image.apt_sources import Mirror
from ramdisk.image.programs import BuildError, ToolsMissing, run

__all__ = ["SUITE", "Package", "encode_packages", "parse_chosen", "parse_packages", "unpack_packages"]

SUITE = "bookworm"
"""The release whose Python is the one that the locked wheels are for."""
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_CHOSEN = re.compile(r"Inst (?P<name>\S+) \((?P<version>\S+) .*\[(?P<architecture>[a-z0-9]+)\]\)")
_LINE = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9.+-]+) (?P<version>\S+) (?P<architecture>[a-z0-9]+) (?P<sha256>[0-9a-f]{64})"
)
_ARCHIVES = "var/cache/apt/archives"
_PROVIDED = {"initramfs-tools": "linux-initramfs-tool", "mawk": "awk"}
"""What packages ask for without saying whose it shall be."""
_LINKS = ("bin", "lib", "sbin")


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """One package as it was unpacked. `sha256` is the file's own."""

    name: str
    version: str
    architecture: str
    sha256: str = ""

    @property
    def file_name(self) -> str:
        """What apt calls the file that it has fetched."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


def parse_chosen(text: str) -> tuple[Package, ...]:
    """What `apt-get --simulate install` would install, sorted. Pure."""
    return tuple(sorted(Package(**found.groupdict()) for found in _CHOSEN.finditer(text)))


def encode_packages(packages: Iterable[Package]) -> str:
    """The list that lies beside an image, of which the same image can be built again. Pure."""
    return "".join(f"{p.name} {p.version} {p.architecture} {p.sha256}\n" for p in sorted(packages))


def parse_packages(text: str) -> tuple[Package, ...]:
    """The reverse. Raises RequestError that names every line which is none."""
    found, issues = [], []
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line.strip())
        if match is not None:
            found.append(Package(**match.groupdict()))
        elif line.strip():
            issues.append(Issue(f"line {number}", "this is no package", "name, version, architecture, SHA-256"))
    if issues or not found:
        raise RequestError.invalid(issues or [Issue("", "there is no package in it")], "the list of packages")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Wanted:
    """`names`: what is asked for. `without`: what counts as installed already, and so does not come.
    `exactly`: these versions alone, where an image is built again."""

    names: Sequence[str]
    without: Sequence[str]
    architecture: str
    firmware: bool
    mirror: Mirror
    exactly: Sequence[Package] = ()


def unpack_packages(wanted: Wanted, tree: Path, fetched: Path) -> tuple[Package, ...]:
    """Unpacks into `tree`, which must not be there yet; what is in it. `/bin`, `/sbin`, `/lib*` lead into `/usr`.

    `fetched` keeps the packages' files, so that the next time only newer ones are fetched. Raises BuildError.
    """
    if not _KEYRING.is_file():
        raise ToolsMissing("Debian's keys are not here: apt-get install debian-archive-keyring")
    fetched.mkdir(parents=True, exist_ok=True)
    tree.parent.mkdir(parents=True, exist_ok=True)
    names = [_exact(package, fetched) for package in wanted.exactly] or list(wanted.names)
    work = tree.with_name(tree.name + ".work")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        (work / "debian.sources").write_text(_sources(wanted.mirror, wanted.firmware))
        (work / "absent").write_text("".join(map(_absent, wanted.without)))
        try:
            _mmdebstrap(wanted.architecture, names, tree, work, fetched)
        except BuildError as error:
            hint = ". Where a version is not found, name a mirror that has it: --mirror" if wanted.exactly else ""
            raise BuildError(f"the Debian packages were not unpacked: {error}{hint}") from error
        archives = tree / _ARCHIVES
        for file in archives.glob("*.deb"):
            if not (fetched / file.name).exists():
                shutil.move(file, fetched / file.name)
        found = tuple(_summed(package, fetched) for package in _chosen(wanted.architecture, names, tree, work))
        shutil.rmtree(archives)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _compare(found, wanted.exactly)
    return found


def _exact(package: Package, fetched: Path) -> str:
    """For apt: the file where it was kept (mirrors only have the newest version), else name and version."""
    file = (fetched / package.file_name).resolve()
    return str(file) if file.is_file() else f"{package.name}={package.version}"


def _mmdebstrap(architecture: str, names: Sequence[str], tree: Path, work: Path, fetched: Path) -> None:
    """Raises BuildError."""
    archives = f'"$1"/{_ARCHIVES}'
    links = (*_LINKS, *_library_links(architecture))
    prepare = [
        *(f'mkdir -p "$1"/usr/{link} && ln -s usr/{link} "$1"/{link}' for link in links),
        f'cat {shlex.quote(str(work / "absent"))} >>"$1"/var/lib/dpkg/status',
        f"mkdir -p {archives} && find {shlex.quote(str(fetched))} -name '*.deb' -exec cp -t {archives} {{}} +",
    ]
    run(
        [
            *("mmdebstrap", "--variant=extract", "--mode=chrootless", "--format=directory", "--skip=cleanup"),
            f"--architectures={architecture}",
            *(f"--setup-hook={hook}" for hook in prepare),
            *(f"--include={name}" for name in names),
            *(SUITE, tree, work / "debian.sources"),
        ]
    )


def _chosen(architecture: str, names: Sequence[str], tree: Path, work: Path) -> tuple[Package, ...]:
    """What apt has chosen: mmdebstrap does not tell, so apt is asked once more, of the same lists."""
    settings = work / "apt.conf"
    settings.write_text(
        f'APT::Architecture "{architecture}";\nAPT::Architectures {{ "{architecture}"; }};\n'
        f'APT::Install-Recommends "false";\nDir "{tree}";\nDir::State::status "{tree}/var/lib/dpkg/status";\n'
    )
    words = ["apt-get", "--simulate", "--yes", "--no-install-recommends", "install", *names]
    return parse_chosen(run(words, environment={"APT_CONFIG": str(settings)}))


def _library_links(architecture: str) -> tuple[str, ...]:
    """Where the ABI wants its loader."""
    return ("lib64",) if architecture == "amd64" else ()


def _sources(mirror: Mirror, firmware: bool) -> str:
    """Where apt looks."""
    components = "main non-free-firmware" if firmware else "main"
    return "".join(
        f"Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: {components}\nSigned-By: {_KEYRING}\n\n"
        for uri, suites in (
            (mirror.archive, f"{SUITE} {SUITE}-updates"),
            (mirror.security, f"{SUITE}-security"),
        )
    )


def _absent(name: str) -> str:
    """A package that counts as installed, in a version that is never too low."""
    provides = f"Provides: {_PROVIDED[name]}\n" if name in _PROVIDED else ""
    return (
        f"Package: {name}\nStatus: install ok installed\nArchitecture: all\nMulti-Arch: foreign\nVersion: 9999:0\n"
        f"Maintainer: nobody\nDescription: left out\n{provides}\n"
    )


def _summed(package: Package, fetched: Path) -> Package:
    """Raises BuildError where apt named a package and has not fetched it."""
    try:
        with (fetched / package.file_name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BuildError(f"the package {package.file_name} was not fetched: {error.strerror}") from error
    return Package(package.name, package.version, package.architecture, digest)


def _compare(found: Sequence[Package], exactly: Sequence[Package]) -> None:
    """Raises BuildError where an image that is built again would be another one."""
    if exactly and (differs := set(found) ^ set(exactly)):
        listed = ", ".join(sorted({f"{package.name} {package.version}" for package in differs}))
        raise BuildError(f"the packages are not those of the list: {listed}")
