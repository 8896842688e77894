"""Logins for the servers of images: in the vault, by the server's name, and never in a command.

    rackwright agent credentials set images/files.example:8443 --user reader

Whatever this agent does with an image of that server, it does with that login: fetch it, or tell a BMC to. It goes to
that server alone, wherever it redirects to.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from agent.vault import Credential, Vault

__all__ = ["ImageLogins"]

_REFERENCE = "images/"
_NAMES = frozenset({"image"})
"""Arguments of operations that hold an image's address."""


class ImageLogins:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def header(self, url: str) -> str | None:
        """The header Authorization of a request for this image; None where there is no login for its server.

        Raises OperationError INVALID_ARGUMENT when the vault itself cannot be used.
        """
        found = self._login(url)
        if found is None:
            return None
        from aiohttp import encode_basic_auth

        return encode_basic_auth(found.user, found.password.reveal())

    def arguments(self, args: dict[str, object]) -> dict[str, object]:
        """An operation's arguments as its driver is to have them: with the logins in the images' addresses. These are
        secrets, and are only ever in memory. Raises OperationError as `header` does."""
        found: dict[str, object] = self._with_logins(args)
        return found

    def _with_logins(self, value: Any, name: str = "") -> Any:
        if isinstance(value, str) and name in _NAMES:
            return self._with_login(value)
        if isinstance(value, Mapping):
            return {key: self._with_logins(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._with_logins(item, name) for item in value]
        return value

    def _with_login(self, url: str) -> str:
        found = self._login(url)
        if found is None:
            return url
        parts = urlsplit(url)
        login = f"{quote(found.user, safe='')}:{quote(found.password.reveal(), safe='')}"
        return urlunsplit((parts.scheme, f"{login}@{parts.netloc}", parts.path, parts.query, parts.fragment))

    def _login(self, url: str) -> Credential | None:
        """By host and port, else by the host alone; none where the address has one of its own."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            return None
        if "://" not in url or not host or "@" in parts.netloc:
            return None
        names = ([f"{host}:{port}"] if port is not None else []) + [host]
        return next((found for name in names if (found := self._vault.lookup(_REFERENCE + name)) is not None), None)
