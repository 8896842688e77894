"""Configuration of the BMC itself."""

from protocol.shapes import Arguments, Result

__all__ = [
    "BmcConfig",
    "EventDestination",
    "ExportConfigResult",
    "ImportConfig",
    "ImportConfigResult",
    "NetworkProtocolConfig",
    "RotatePassword",
    "RotatePasswordResult",
    "SetConfig",
    "SetConfigResult",
]


class NetworkProtocolConfig(Arguments, frozen=True, kw_only=True):
    enabled: bool
    port: int | None = None


class EventDestination(Arguments, frozen=True, kw_only=True):
    url: str
    context: str | None = None


class BmcConfig(Result, frozen=True, kw_only=True):
    host_name: str | None = None
    ntp_enabled: bool | None = None
    ntp_servers: list[str] = []
    time: str | None = None
    protocols: dict[str, NetworkProtocolConfig] = {}
    event_destinations: list[EventDestination] = []


class SetConfig(Arguments, frozen=True, kw_only=True):
    """Only the fields that are given are changed."""

    host_name: str | None = None
    ntp_enabled: bool | None = None
    ntp_servers: list[str] | None = None
    time: str | None = None
    protocols: dict[str, NetworkProtocolConfig] | None = None
    event_destinations: list[EventDestination] | None = None


class SetConfigResult(Result, frozen=True, kw_only=True):
    changed: list[str]


class RotatePassword(Arguments, frozen=True, kw_only=True):
    user: str
    new_credential_ref: str
    """The agent's vault holds the new password under this name; it never travels."""


class RotatePasswordResult(Result, frozen=True, kw_only=True):
    user: str
    proven: bool
    """A login with the new password succeeded before the old one was forgotten."""


class ExportConfigResult(Result, frozen=True, kw_only=True):
    document: str
    format: str


class ImportConfig(Arguments, frozen=True, kw_only=True):
    document: str


class ImportConfigResult(Result, frozen=True, kw_only=True):
    task: str | None = None
