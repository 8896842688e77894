"""The agent's configuration: a TOML file into a frozen struct, every fault at once. An empty file is a good one."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from agent.endpoint import Endpoint
from agent.errors import ConfigError
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


class Config(_Section, frozen=True):
    control_plane: ControlPlane = ControlPlane()
    state_dir: str = "/var/lib/rackwright-agent"
    role: Literal["site", "ramdisk", "daemon"] | None = None
    """Null: the role that the join token gave."""
    log: Log = Log()
    vault: VaultSection = VaultSection()
    limits: Limits = Limits()

    @property
    def state(self) -> Path:
        return Path(self.state_dir)

    @property
    def vault_key_file(self) -> Path:
        return Path(self.vault.key_file) if self.vault.key_file else self.state / "vault.key"


def load(path: Path | None = None) -> Config:
    """The configuration at `path`, or at its usual place, where it may be missing. Raises ConfigError with every
    fault as `file: key: what (hint)`."""
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
    for key, value in (("state_dir", config.state_dir), ("vault.key_file", config.vault.key_file)):
        if value and not value.startswith("/"):
            issues.append(Issue(key, f"{value!r} is not an absolute path"))
    return issues
