"""The agent's configuration: a TOML file into a frozen struct, every fault at once. An empty file is a good one."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from agent.endpoint import Endpoint
from agent.errors import ConfigError
from drivers.image_access import parse_allowed
from protocol.errors import Issue
from protocol.validation import check

__all__ = ["DEFAULT_PATH", "Config", "load"]

DEFAULT_PATH = Path("/etc/rackwright/agent.toml")


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class ControlPlane(_Section, frozen=True):
    url: str = ""
    """Empty: where this agent joined."""


class Log(_Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "json"


class VaultSection(_Section, frozen=True):
    key_file: str = ""
    """Empty: `vault.key` in the state folder. A systemd credential named vault.key comes before it."""


class Limits(_Section, frozen=True):
    held: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    """Commands held at a time; more are rejected. Each is named in the hello, which is one frame."""
    running: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """Commands under way at a time; more wait."""
    stop_seconds: Annotated[float, Meta(ge=0, le=600)] = 10.0
    """How long a stop waits for changes under way."""


class WatchSection(_Section, frozen=True):
    """How this site's machines are watched."""

    enabled: bool = True
    interval_seconds: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    """Between two looks at a machine whose BMC tells of no events."""
    slow_interval_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 300.0
    """Between two looks beneath events."""
    at_once: Annotated[int, Meta(ge=1, le=1_000)] = 64
    """Looks under way at a time; more wait."""
    events: tuple[Literal["stream", "push"], ...] = ("stream", "push")
    """The ways in which a BMC may tell of events, the best first; an empty list polls only."""


class EventsSection(_Section, frozen=True):
    """Where BMCs push their events to. Without `listen` none is asked to."""

    listen: str = ""
    """host:port on this host."""
    url: str = ""
    """How BMCs reach it, such as https://192.0.2.7:8444. Empty: as `listen` says."""
    tls_certificate: str = ""
    tls_key: str = ""
    """PEM files. HPE's and Dell's BMCs send to https only."""


class ConsolesSection(_Section, frozen=True):
    """The consoles of this site's machines, and the logs of what they wrote."""

    most: Annotated[int, Meta(ge=1, le=1_000)] = 64
    """Open at a time."""
    linger_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 60.0
    """How long a console stays open that nobody reads."""
    backlog_bytes: Annotated[int, Meta(ge=4_096, le=16_777_216)] = 262_144
    """Of a console's output, kept in memory for a reader that was cut off or is slow."""
    log_bytes: Annotated[int, Meta(ge=4_096)] = 10_485_760
    """Of a log file, one per machine, after which the next one is begun."""
    log_files: Annotated[int, Meta(ge=0, le=1_000)] = 5
    """Kept per machine, the present one included; 0: no logs."""


class FilesSection(_Section, frozen=True):
    """Files of this host that operations may use, such as firmware images, and how BMCs fetch them."""

    dir: str = ""
    """Files below it may be used, and no others. Empty: `files` in the state folder."""
    listen: str = ":8445"
    """host:port, or :port for all addresses. Listened on only while a BMC is to fetch something."""
    url: str = ""
    """How BMCs reach it, such as http://192.0.2.7:8445. Empty: this host's address on the way to the BMC."""


class ImagesSection(_Section, frozen=True):
    """Images that this host fetches by itself: to push them to a BMC, or for the site's cache."""

    allow: tuple[str, ...] = ()
    """Addresses and networks, each alone or with a port, that they may come from although they are this host's own
    loopback or link-local, such as 127.0.0.1:8080."""


class BootSection(_Section, frozen=True):
    """What this site's machines start from, and the images that are written to their disks."""

    image: str = ""
    """The `.json` beside the ramdisk's ISO (`rackwright ramdisk build`). Empty: no machine is started from here."""
    listen: str = ":8446"
    """host:port, or :port for all addresses. Listened on from the start where there is an image, else once an image
    of an operating system is offered; empty: never."""
    url: str = ""
    """How BMCs and firmware reach it, such as http://192.0.2.7:8446. Empty: this host's address on the way to the
    BMC."""
    machines_url: str = ""
    """How running ramdisks reach it, where their network is another one than the BMCs'. Empty: as `url` says."""
    control_plane: str = ""
    """Where machines connect to, where it is not what the control plane says of itself, such as a proxy's address."""
    tls_certificate: str = ""
    tls_key: str = ""
    """PEM files, for https. Machines must know the certificate's CA: most BMCs check none, UEFI firmware does."""
    loaders_dir: str = ""
    """Boot loaders that any machine may fetch as /loaders/NAME, such as ipxe.efi. Empty: none."""
    path_hours: Annotated[float, Meta(gt=0, le=720)] = 24.0
    """How long a path is good for."""
    cache_dir: str = ""
    """Images of operating systems. Empty: `images` in the state folder."""
    cache_bytes: Annotated[int, Meta(ge=1 << 20)] = 50_000_000_000


class Config(_Section, frozen=True):
    control_plane: ControlPlane = ControlPlane()
    state_dir: str = "/var/lib/rackwright-agent"
    role: Literal["site", "ramdisk", "daemon"] | None = None
    """Null: the role that the join token gave."""
    log: Log = Log()
    vault: VaultSection = VaultSection()
    limits: Limits = Limits()
    consoles: ConsolesSection = ConsolesSection()
    watch: WatchSection = WatchSection()
    events: EventsSection = EventsSection()
    files: FilesSection = FilesSection()
    images: ImagesSection = ImagesSection()
    boot: BootSection = BootSection()

    @property
    def state(self) -> Path:
        return Path(self.state_dir)

    @property
    def files_dir(self) -> Path:
        return Path(self.files.dir) if self.files.dir else self.state / "files"

    @property
    def image_cache_dir(self) -> Path:
        return Path(self.boot.cache_dir) if self.boot.cache_dir else self.state / "images"

    @property
    def vault_key_file(self) -> Path:
        return Path(self.vault.key_file) if self.vault.key_file else self.state / "vault.key"


def load(path: Path | None = None) -> Config:
    """The configuration at `path`, or at its usual place, where it may be missing. Raises ConfigError with every
    fault as `file: key: what (hint)`."""
    import tomllib

    where = path or DEFAULT_PATH
    try:
        values = tomllib.loads(where.read_text())
    except FileNotFoundError:
        if path is not None:
            raise ConfigError(f"there is no configuration file {where}") from None
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not TOML: {error}") from error
    config, issues = check(Config, values)
    if config is not None:
        issues = _further(config)
    if config is None or issues:
        raise ConfigError("\n".join(f"{where}: {issue}" for issue in issues), issues)
    return config


def _further(config: Config) -> list[Issue]:
    """What the types cannot say."""
    issues = []
    if config.control_plane.url:
        try:
            Endpoint.parse(config.control_plane.url)
        except ValueError as error:
            issues.append(Issue("control_plane.url", str(error)))
    paths = (
        ("state_dir", config.state_dir),
        ("vault.key_file", config.vault.key_file),
        ("files.dir", config.files.dir),
        ("boot.image", config.boot.image),
        ("boot.cache_dir", config.boot.cache_dir),
        ("boot.loaders_dir", config.boot.loaders_dir),
    )
    for key, value in paths:
        if value and not value.startswith("/"):
            issues.append(Issue(key, f"{value!r} is not an absolute path"))
    issues += _events_faults(config.events) + _files_faults(config.files) + _boot_faults(config.boot)
    return issues + _images_faults(config.images)


def _images_faults(images: ImagesSection) -> list[Issue]:
    issues = []
    for place, text in enumerate(images.allow):
        try:
            parse_allowed(text)
        except ValueError as error:
            issues.append(Issue(f"images.allow[{place}]", str(error)))
    return issues


def _files_faults(files: FilesSection) -> list[Issue]:
    issues = []
    if not _is_listen(files.listen):
        issues.append(Issue("files.listen", f"{files.listen!r} is not host:port"))
    if files.url and not _is_http(files.url):
        issues.append(Issue("files.url", f"{files.url!r} is no http address"))
    return issues


def _boot_faults(boot: BootSection) -> list[Issue]:
    issues = []
    if boot.listen and not _is_listen(boot.listen):
        issues.append(Issue("boot.listen", f"{boot.listen!r} is not host:port"))
    issues += [
        Issue(f"boot.{key}", f"{value!r} is no http address")
        for key, value in (("url", boot.url), ("machines_url", boot.machines_url))
        if value and not _is_http(value)
    ]
    if boot.control_plane:
        try:
            Endpoint.parse(boot.control_plane)
        except ValueError as error:
            issues.append(Issue("boot.control_plane", str(error)))
    if bool(boot.tls_certificate) != bool(boot.tls_key):
        issues.append(Issue("boot.tls_key", "a certificate and its key belong together: give both, or none"))
    return issues


def _is_listen(text: str) -> bool:
    _, separator, port = text.rpartition(":")
    return bool(separator) and port.isdecimal() and int(port) < 65_536


def _is_http(text: str) -> bool:
    return text.startswith(("http://", "https://")) and text.rstrip("/").count("/") == 2


def _events_faults(events: EventsSection) -> list[Issue]:
    issues = []
    host, _, port = events.listen.rpartition(":")
    if events.listen and not (host and port.isdecimal() and int(port) < 65_536):
        issues.append(Issue("events.listen", f"{events.listen!r} is not host:port"))
    if not events.listen and (events.url or events.tls_certificate or events.tls_key):
        issues.append(Issue("events.listen", "is missing: without it nobody listens"))
    if bool(events.tls_certificate) != bool(events.tls_key):
        issues.append(Issue("events.tls_key", "a certificate and its key belong together: give both, or none"))
    wanted = "https://" if events.tls_certificate else ("https://", "http://")
    if events.url and not (events.url.startswith(wanted) and events.url.rstrip("/").count("/") == 2):
        issues.append(
            Issue("events.url", f"{events.url!r} is no {'https' if events.tls_certificate else 'http'} address")
        )
    if not events.url and host.strip("[]") in ("0.0.0.0", "::", "*"):  # noqa: S104
        issues.append(Issue("events.url", "is missing: BMCs need an address, and events.listen names none"))
    return issues
