"""Keeps a secret out of an error: a BMC may repeat what it was sent, in any of the forms that it travels in.

What counts as a repetition is the rule of `drivers/masking.py`.
"""

import contextlib
from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urlsplit

from drivers.masking import MASK, masked
from protocol.errors import BmcMessage, OperationError

__all__ = ["conceal", "secrets_in"]

_SHORT_QUERY = 3


def secrets_in(value: object) -> tuple[str, ...]:
    """What the addresses in an operation's arguments hold that nobody else may read: their passwords, and what
    follows a `?`, which may be one (a signed address). `value`: any JSON value."""
    found: list[str] = []
    if isinstance(value, str) and "://" in value:
        with contextlib.suppress(ValueError):
            parts = urlsplit(value.strip())
            if parts.password:
                found += [unquote(parts.password), parts.password]
            if parts.query:
                found.append(parts.query if len(parts.query) <= _SHORT_QUERY else f"?{parts.query}")
    elif isinstance(value, Mapping):
        found = [secret for item in value.values() for secret in secrets_in(item)]
    elif isinstance(value, list | tuple):
        found = [secret for item in value for secret in secrets_in(item)]
    return tuple(dict.fromkeys(found))


def conceal(error: OperationError, *secrets: str) -> None:
    """Takes the secrets out of everything that the error says, the errors that caused it included."""
    known = tuple(secret for secret in secrets if secret)
    if not known:
        return
    error.bmc = [
        BmcMessage(masked(said.id, *known), masked(said.text, *known), masked(said.resolution, *known))
        for said in error.bmc
    ]
    error.message = masked(error.message, *known)
    error.details = {key: _cleaned(value, known) for key, value in error.details.items()}
    error.args = (error.message,)
    for cause in _causes(error):
        if isinstance(cause, OperationError):
            conceal(cause, *known)
        elif any(masked(words, *known) != words for words in (str(cause), repr(cause))):
            error.__cause__ = error.__context__ = None
            break


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What an error comes from; an OperationError among them looks after its own."""
    cause = error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        if isinstance(cause, OperationError):
            return
        cause = cause.__cause__ or cause.__context__


def _cleaned(value: object, secrets: tuple[str, ...]) -> object:
    if isinstance(value, str):
        return masked(value, *secrets)
    if isinstance(value, list | tuple):
        return [_cleaned(item, secrets) for item in value]
    if isinstance(value, dict):
        return {key: _cleaned(item, secrets) for key, item in value.items()}
    if isinstance(value, int | float) and not isinstance(value, bool) and str(value) in secrets:
        return MASK
    return value
