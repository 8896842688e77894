"""Keeps a secret out of an error: a BMC may repeat what it was sent, in any of the forms that it travels in."""

import base64
import contextlib
import html
import json
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote, urlsplit

from protocol.errors import BmcMessage, OperationError

__all__ = ["conceal", "forms_of", "hidden", "holds_any", "secrets_in"]

_SHORTEST = 4
"""A shorter secret is a part of many innocent words, so that the BMC's whole text is left out instead."""
_HIDDEN = "(hidden: it repeats the password)"


def forms_of(secret: str) -> tuple[str, ...]:
    """The secret as it is, and as JSON, an address, a web page and base64 write it; the longest first."""
    forms = {secret}
    # A secret with half a surrogate pair has no form on the wire.
    with contextlib.suppress(UnicodeEncodeError):
        forms |= {
            json.dumps(secret)[1:-1],
            json.dumps(secret, ensure_ascii=False)[1:-1],
            quote(secret, safe=""),
            quote_plus(secret),
            html.escape(secret),
            base64.b64encode(secret.encode()).decode(),
        }
    return tuple(sorted(forms, key=len, reverse=True))


def holds_any(words: str, secrets: tuple[str, ...]) -> bool:
    """Whether a text repeats one of the secrets in some form."""
    return any(form in words for secret in secrets if secret for form in forms_of(secret))


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
                found.append(f"?{parts.query}")
    elif isinstance(value, Mapping):
        found = [secret for item in value.values() for secret in secrets_in(item)]
    elif isinstance(value, list | tuple):
        found = [secret for item in value for secret in secrets_in(item)]
    return tuple(dict.fromkeys(found))


def hidden(words: str, *secrets: str) -> str:
    """A text without the secrets; one that is too short to be told from other words is not looked for."""
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            words = _without(words, secret)
    return words


def conceal(error: OperationError, *secrets: str) -> None:
    """Takes the secrets out of everything that the error says, the errors that caused it included."""
    known = tuple(secret for secret in secrets if secret)
    for secret in known:
        if any(holds_any(f"{message.id} {message.text}", (secret,)) for message in error.bmc):
            error.bmc = [BmcMessage(_without(m.id, secret), _without(m.text, secret)) for m in error.bmc]
        if len(secret) >= _SHORTEST and holds_any(f"{error.message} {error.details}", (secret,)):
            error.message = _without(error.message, secret)
            error.details = {key: _cleaned(value, secret) for key, value in error.details.items()}
            error.args = (error.message,)
    for cause in _causes(error):
        if isinstance(cause, OperationError):
            conceal(cause, *known)
        elif holds_any(f"{cause} {cause!r}", tuple(secret for secret in known if len(secret) >= _SHORTEST)):
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


def _cleaned(value: object, secret: str) -> object:
    if isinstance(value, str):
        return _without(value, secret)
    if isinstance(value, list):
        return [_cleaned(item, secret) for item in value]
    if isinstance(value, dict):
        return {key: _cleaned(item, secret) for key, item in value.items()}
    return value


def _without(words: str, secret: str) -> str:
    for form in forms_of(secret):
        if form in words:
            words = words.replace(form, "***") if len(secret) >= _SHORTEST else _HIDDEN
    return words
