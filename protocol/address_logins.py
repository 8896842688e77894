"""Logins in addresses: none may lie in a command, whose arguments are stored and shown."""

import re
from collections.abc import Mapping

from protocol.errors import Issue

__all__ = ["login_faults"]

_WITH_LOGIN = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s@]*:[^/?#\s]*@")
_DEEPEST = 20
"""Of arguments; what is nested deeper is refused by their types."""


def login_faults(value: object, path: str, depth: int = 0) -> list[Issue]:
    """A fault for every address with a password in a JSON value; its text repeats nothing of it."""
    if isinstance(value, str):
        return [Issue(path, _MESSAGE, _HINT)] if _WITH_LOGIN.match(value) else []
    if depth > _DEEPEST:
        return []
    if isinstance(value, Mapping):
        items = [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{path}[{place}]", item) for place, item in enumerate(value)]
    else:
        return []
    return [issue for where, item in items for issue in login_faults(item, where, depth + 1)]


_MESSAGE = "holds a user and password, which would be kept with the command"
_HINT = (
    "write the address without them; for an image, store them in the vault of the site's agent: rackwright agent "
    "credentials set images/HOST --user U (HOST as in the address, with its port or without)"
)
