"""`hostConfig`: what the installed system is to be like, brought about item by item.

Each item is brought to what is wanted, and then read back. A fault of one keeps none of the others from being done;
whatever is not named is left alone. Doing it again changes nothing that is as wanted.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import structlog
from msgspec import Meta

from agent.host_name import set_host_name
from agent.host_services import ServiceState, set_service
from agent.host_time import set_time_servers
from agent.host_users import set_user_keys
from drivers.linux.host import Host
from protocol.errors import Issue, OperationError
from protocol.validation import check

__all__ = ["HostConfig", "HostConfigurator", "HostService", "HostTime", "HostUser"]

_log = structlog.get_logger("agent.host_config")
_NAME = r"^[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z"
_KEY = (
    r"^(?:ssh-(?:rsa|ed25519)|ecdsa-sha2-nistp(?:256|384|521)|sk-(?:ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com) "
    r"[A-Za-z0-9+/]+={0,3}(?: [^\r\n]*)?\Z"
)


class _Item(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class HostUser(_Item, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_-]{0,31}\$?\Z")]
    """One that is there already."""
    keys: list[Annotated[str, Meta(pattern=_KEY, max_length=16_384)]] = []
    """The lines of `authorized_keys` that are ours; the user's own stay. An empty list takes ours away."""


class HostTime(_Item, frozen=True, kw_only=True):
    servers: Annotated[list[Annotated[str, Meta(pattern=r"^[A-Za-z0-9.:-]{1,253}\Z")]], Meta(min_length=1)]
    """NTP servers, by name or address."""


class HostService(_Item, frozen=True, kw_only=True):
    enabled: bool | None = None
    """Whether it starts with the system. Null: left as it is."""
    state: Literal["running", "stopped"] | None = None


class HostConfig(_Item, frozen=True, kw_only=True):
    """The fields of a profile's `hostConfig`. Null: left as it is."""

    hostname: Annotated[str, Meta(pattern=_NAME, max_length=253)] | None = None
    users: list[HostUser] = []
    time: HostTime | None = None
    services: dict[Annotated[str, Meta(pattern=r"^[A-Za-z0-9:_.\\@-]{1,255}\Z")], HostService] = {}
    """By the names of systemd's units; without an ending, services."""


class HostConfigurator:
    """`root`: of the system's own files."""

    def __init__(self, host: Host, root: Path = Path("/")) -> None:
        self._host = host
        self._root = root

    async def apply(self, spec: Mapping[str, object]) -> list[Issue]:
        """Every fault of the items that could not be brought about; empty when all is as wanted."""
        issues: list[Issue] = []
        for name, act in self._acts(spec, issues):
            try:
                changed = await act()
            except (OperationError, OSError) as error:
                message = error.message if isinstance(error, OperationError) else str(error)
                issues.append(Issue(name, message))
                _log.error("host_config_fault", item=name, reason=message)
            else:
                _log.info("host_config_item", item=name, changed=changed)
        return issues

    def _acts(
        self, spec: Mapping[str, object], issues: list[Issue]
    ) -> list[tuple[str, Callable[[], Awaitable[bool]]]]:
        """What is to be done, each with its name. What cannot be understood is a fault, and the others go on."""
        acts: list[tuple[str, Callable[[], Awaitable[bool]]]] = []
        for key, value in spec.items():
            config, faults = check(HostConfig, {key: value})
            if config is None:
                issues += faults
                continue
            acts += self._acts_of(config)
        return acts

    def _acts_of(self, config: HostConfig) -> list[tuple[str, Callable[[], Awaitable[bool]]]]:
        host, root = self._host, self._root
        acts: list[tuple[str, Callable[[], Awaitable[bool]]]] = []
        if config.hostname is not None:
            acts.append(("hostname", _call(set_host_name, host, root, config.hostname)))
        for number, user in enumerate(config.users):
            work = _in_thread(set_user_keys, root, user.name, user.keys)
            acts.append((f"users[{number}] {user.name}", work))
        if config.time is not None:
            acts.append(("time", _call(set_time_servers, host, root, config.time.servers)))
        for name, service in config.services.items():
            wanted = ServiceState(service.enabled, None if service.state is None else service.state == "running")
            acts.append((f"services.{name}", _call(set_service, host, name, wanted)))
        return acts


def _call(function: Callable[..., Awaitable[bool]], *arguments: Any) -> Callable[[], Awaitable[bool]]:
    return lambda: function(*arguments)


def _in_thread(function: Callable[..., bool], *arguments: Any) -> Callable[[], Awaitable[bool]]:
    return lambda: asyncio.to_thread(function, *arguments)
