"""The control plane's settings: a TOML file, every key of which may be left out.

state_dir = "/var/lib/rackwright-control-plane"
worker = "control-1"                      # unique among the workers of one database

[store]
url = "postgresql://rackwright@db.example/rackwright"
password_file = "/etc/rackwright/db-password"

[api]
listen = "127.0.0.1:8440"
tls_certificate = "/etc/rackwright/api.pem"
tls_key = "/etc/rackwright/api.key"

[agents]
listen = "0.0.0.0:8443"
names = ["control.example", "192.0.2.1"]  # what agents call this host; in the server's certificate

[log]
level = "info"
format = "json"

[engine]
enabled = true                            # false: this worker serves the API and agents, and drives no workflows

[metal]                                   # the profile that each verb runs, where a node has none of its own
commission = "commission"
deploy = "deploy"
release = "release"
rescue = "rescue"
remediate = "remediate"
recover = "recover"

[consoles]
ring_bytes = 262144                       # of each console's output, for whoever joins late

[retention]
events = "30d"
commands = "90d"
workflows = "90d"
audit = "730d"
"""

import copy
import ipaddress
import os
import platform
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
from msgspec import Meta

from control_plane.metal.bindings import Bindings
from control_plane.retention import Kept
from control_plane.store import StoreUrlInvalid
from control_plane.store.location import sqlite_path
from protocol.durations import parse_duration
from protocol.errors import Issue, RackwrightError
from protocol.validation import check

__all__ = ["DEFAULT_FILE", "Config", "ConfigError", "Listen", "load", "store_url"]

DEFAULT_FILE = Path("/etc/rackwright/control-plane.toml")
_WORKER = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$(?!\n)"
ProfileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)", max_length=128)]
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


class ConfigError(RackwrightError):
    """The settings cannot be used; each fault with its file and key."""

    def __init__(self, file: Path, issues: list[Issue]) -> None:
        self.file = file
        self.issues = issues
        lines = [f"{file}: {issue}" for issue in issues]
        super().__init__("\n".join(lines))


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class StoreConfig(_Section, frozen=True, kw_only=True):
    url: str = ""
    """Empty: SQLite in the state folder."""
    password_file: str | None = None
    password_env: str | None = None


class ApiConfig(_Section, frozen=True, kw_only=True):
    listen: str = "127.0.0.1:8440"
    tls_certificate: str | None = None
    tls_key: str | None = None


class AgentsConfig(_Section, frozen=True, kw_only=True):
    listen: str = "0.0.0.0:8443"
    names: Annotated[list[str], Meta(max_length=50)] = []
    """Empty: this host's name, localhost and the loopback addresses."""


class LogConfig(_Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    """auto: console on a terminal, else JSON."""


class EngineConfig(_Section, frozen=True, kw_only=True):
    enabled: bool = True
    """Whether this worker drives workflows. Some worker of the database must."""


class MetalConfig(_Section, frozen=True, kw_only=True):
    """Each verb's profile, by name."""

    commission: ProfileName = "commission"
    deploy: ProfileName = "deploy"
    release: ProfileName = "release"
    rescue: ProfileName = "rescue"
    remediate: ProfileName = "remediate"
    recover: ProfileName = "recover"

    @property
    def bindings(self) -> Bindings:
        return Bindings(**msgspec.structs.asdict(self))


class ConsolesConfig(_Section, frozen=True, kw_only=True):
    ring_bytes: Annotated[int, Meta(ge=4_096, le=16_777_216)] = 262_144
    """Of each console's output, kept in memory for whoever joins late or is slow."""
    linger_seconds: Annotated[float, Meta(ge=0, le=3_600)] = 20.0
    """How long a console is still followed after its last reader has left."""


class RetentionConfig(_Section, frozen=True, kw_only=True):
    events: str | int = "30d"
    commands: str | int = "90d"
    """Ended commands of no workflow; with one its idempotency key is forgotten too."""
    workflows: str | int = "90d"
    """Ended workflows, with their steps and commands."""
    audit: str | int = "730d"
    """The audit trail; never shorter than the rest, since it tells who did what to it."""

    @property
    def kept(self) -> Kept:
        """Raises ValueError for what is no duration."""
        return Kept(
            events_ms=parse_duration(self.events),
            commands_ms=parse_duration(self.commands),
            workflows_ms=parse_duration(self.workflows),
            audit_ms=parse_duration(self.audit),
        )


class Config(_Section, frozen=True, kw_only=True):
    """The settings, sound."""

    state_dir: str = "/var/lib/rackwright-control-plane"
    worker: Annotated[str, Meta(pattern=_WORKER)] | None = None
    store: StoreConfig = StoreConfig()
    api: ApiConfig = ApiConfig()
    agents: AgentsConfig = AgentsConfig()
    log: LogConfig = LogConfig()
    engine: EngineConfig = EngineConfig()
    retention: RetentionConfig = RetentionConfig()
    consoles: ConsolesConfig = ConsolesConfig()
    metal: MetalConfig = MetalConfig()

    @property
    def state(self) -> Path:
        return Path(self.state_dir)

    @property
    def worker_name(self) -> str:
        return self.worker or re.sub(r"[^A-Za-z0-9._-]", "-", platform.node())[:63] or "worker"

    @property
    def admin_socket(self) -> Path:
        return self.state / "admin.sock"

    @property
    def public_names(self) -> list[str]:
        if self.agents.names:
            return self.agents.names
        names = [platform.node(), "localhost", "127.0.0.1", "::1"]
        return [name for name in names if _HOST_NAME.fullmatch(name) or name == "::1"]

    @property
    def agent_url(self) -> str:
        """Where an agent connects to, as far as this host can tell."""
        name, port = self.public_names[0], Listen.parse(self.agents.listen).port
        return f"wss://{f'[{name}]' if ':' in name else name}:{port}"


class Listen(msgspec.Struct, frozen=True):
    """Where to listen; port 0 means any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Listen":
        """`host:port`, an IPv6 address in brackets. Raises ValueError."""
        host, separator, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r} is no place to listen: write host:port, such as 127.0.0.1:8440 or [::1]:8440")
        if not _is_name(host):
            raise ValueError(f"{host!r} is neither an address nor a host name")
        return cls(host, int(port))


def load(file: Path | None) -> Config:
    """The settings of the file; of the default file where none is named, which need not be there.

    Raises ConfigError with every fault.
    """
    named = file or DEFAULT_FILE
    try:
        raw = tomllib.loads(named.read_text())
    except FileNotFoundError:
        if file is None:
            return Config()
        raise ConfigError(named, [Issue("", "there is no such file")]) from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(named, [Issue("", f"cannot be read: {why}")]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(named, [Issue("", f"is not TOML: {error}")]) from None
    config, issues = check(Config, raw)
    # What is faulty by its type is left out, so that the rest is looked at as well.
    sound = config or check(Config, _without(raw, issues))[0]
    if sound is not None:
        issues += _faults(sound)
    if config is None or issues:
        raise ConfigError(named, issues)
    return config


def _without(raw: Mapping[str, Any], issues: Iterable[Issue]) -> dict[str, Any]:
    """The settings without the keys that the issues name."""
    kept = copy.deepcopy(dict(raw))
    for issue in issues:
        *sections, key = issue.path.partition("[")[0].split(".")
        section: Any = kept
        for name in sections:
            section = section.get(name) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(key, None)
    return kept


def store_url(config: Config) -> str:
    """The store's URL with its password, which must be shown nowhere. Raises ConfigError when it cannot be read."""
    url = config.store.url or f"sqlite://{config.state.absolute()}/rackwright.db"
    password = _password(config.store)
    if password is None:
        return url
    parts = urlsplit(url)
    user, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{place}"))


def _password(store: StoreConfig) -> str | None:
    if store.password_env is not None:
        password = os.environ.get(store.password_env)
        if password is None:
            issue = Issue("store.password_env", f"the environment has no {store.password_env}")
            raise ConfigError(Path("environment"), [issue])
        return password
    if store.password_file is not None:
        try:
            return Path(store.password_file).read_text().rstrip("\n")
        except OSError as error:
            issue = Issue("store.password_file", f"cannot be read: {error.strerror}")
            raise ConfigError(Path(store.password_file), [issue]) from None
    return None


def _faults(config: Config) -> Iterator[Issue]:
    if not Path(config.state_dir).is_absolute():
        yield Issue("state_dir", "must be an absolute path")
    yield from _store_faults(config.store)
    for key, text in (("api.listen", config.api.listen), ("agents.listen", config.agents.listen)):
        yield from _parsed(key, Listen.parse, text)
    if (config.api.tls_certificate is None) != (config.api.tls_key is None):
        yield Issue("api.tls_key", "tls_certificate and tls_key go together: give both or neither")
    for index, name in enumerate(config.agents.names):
        if not _is_name(name):
            yield Issue(f"agents.names[{index}]", f"{name!r} is neither an address nor a host name")
    yield from _retention_faults(config.retention)


def _retention_faults(retention: RetentionConfig) -> Iterator[Issue]:
    faults = [
        issue
        for key in ("events", "commands", "workflows", "audit")
        for issue in _parsed(f"retention.{key}", _kept_long_enough, getattr(retention, key))
    ]
    yield from faults
    if not faults:
        kept = retention.kept
        if kept.audit_ms < max(kept.events_ms, kept.commands_ms, kept.workflows_ms):
            yield Issue("retention.audit", "must be at least as long as events, commands and workflows are kept")


def _store_faults(store: StoreConfig) -> Iterator[Issue]:
    if store.password_file is not None and store.password_env is not None:
        yield Issue("store.password_env", "give either password_file or password_env")
    if not store.url:
        return
    parts = urlsplit(store.url)
    if parts.scheme == "sqlite":
        try:
            sqlite_path(store.url)
        except StoreUrlInvalid as error:
            yield Issue("store.url", str(error))
    elif parts.scheme not in ("postgresql", "postgres"):
        yield Issue("store.url", "must begin with sqlite: or postgresql:")
    elif ":" in parts.netloc.rpartition("@")[0] or "password" in parts.query:
        yield Issue("store.url", "holds a password: put it into a file and name that as store.password_file")
    elif (store.password_file or store.password_env) and not parts.username:
        yield Issue("store.url", "names no user for the password: postgresql://user@host/database")


def _parsed(key: str, parse: Callable[[str], object], text: str | int) -> Iterator[Issue]:
    try:
        parse(text)  # type: ignore[arg-type]
    except ValueError as error:
        yield Issue(key, str(error))


def _kept_long_enough(text: str | int) -> None:
    if parse_duration(text) < 3_600_000:
        raise ValueError("must be at least 1h")


def _is_name(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None
    return True
