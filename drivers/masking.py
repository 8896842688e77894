"""Where a known secret stands in a text, and *** in its place.

The rule:

1. A secret of eight characters or more, and one of four or more that looks random (letters of two kinds, letters and
   digits, other characters), is masked wherever it occurs, also within a word.
2. One that everybody uses as a word ("password", "administrator"), a short one that looks like a word or a number
   ("calvin", "0000"), and one of up to three characters would blot out ordinary text, and tell by that what it is. It
   is masked where it stands as a value:
   - as the whole text, or between quotes; but not as the name of a JSON member;
   - between the tags of XML or HTML;
   - after `=`; after `:` without a space before it, or to the end of its line or item; in JSON also as a number;
   - behind a name that tells of a password (`pwd: x y`, `password is x`), and behind an option (`-P x`);
   - in an address: as its user or password, as a part of its path, query or fragment;
   - in a BMC's sentence on a value ("The value x for the property Password …", DSP0266's Base registry).
   Anywhere else it is a word like others, and stays.
3. Encoded (JSON's escapes, percent signs, HTML, base64 alone or as HTTP Basic carries it) it is no word, and masked
   wherever it occurs.
"""

import base64
import binascii
import contextlib
import html
import json
import re
from typing import Final
from urllib.parse import quote, quote_plus

__all__ = ["MASK", "forms_of", "is_a_word", "masked"]

MASK: Final = "***"
_LONG: Final = 8
_SHORT: Final = 4
"""Nothing shorter can be told from the ends and beginnings of words."""
_COMMON: Final = frozenset(
    {
        "adminadmin",
        "administrator",
        "anonymous",
        "changeit",
        "changeme",
        "firmware",
        "hardware",
        "operator",
        "passphrase",
        "password",
        "readonly",
        "superadmin",
        "supermicro",
        "superuser",
        "sysadmin",
        "username",
    }
)
"""Words of eight letters and more that are passwords somewhere, and stand in ordinary text."""
_WORD = re.compile(r"[^\W\d_]?(?:[^\W\d_A-Z]*|[A-Z]*)|\d*")
"""Letters of one case, the first one of any; or digits."""
_BASIC = re.compile(r"(?i:(?<=basic )|(?<=basic\t))[A-Za-z0-9+/_-]{2,}={0,2}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s\"'<>\\]+")
_MEMBER_BEFORE = re.compile(r"[{,](?:\s|\\+[nrt])*$")
_DEEPEST: Final = 200
"""Of an indentation, in characters."""
_MEMBER_AFTER = re.compile(r"\\*[\"']\s*:")
_PASSWORD_NAME = r"(?i:passw(?:or)?d|passphrase|passcode|passwort|pwd)"  # noqa: S105 - a pattern
_SECRET_NAME = r"(?i:pass|pin|pw|secret|token|key|credentials?|community|auth|authorization)"  # noqa: S105


def is_a_word(secret: str) -> bool:
    """Whether a text may hold it and mean something else (part 2 of the rule)."""
    if len(secret) < _SHORT:
        return True
    return _WORD.fullmatch(secret) is not None and (len(secret) < _LONG or secret.lower() in _COMMON)


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
            (encoded := base64.b64encode(secret.encode()).decode()),
        }
        if len(secret) >= _SHORT:
            forms.add(encoded.rstrip("="))
    return tuple(sorted(forms, key=len, reverse=True))


def masked(words: str, *secrets: str) -> str:
    """The text without the secrets, as the rule says; an empty secret is none."""
    for secret in secrets:
        if secret:
            words = _without(words, secret)
    return words


def _without(words: str, secret: str) -> str:
    words = _without_basic(words, secret)
    if not is_a_word(secret):
        for form in forms_of(secret):
            words = words.replace(form, MASK)
        return words
    for form in forms_of(secret):
        if form != secret:
            words = words.replace(form, MASK)
    return _without_value(words, secret) if secret in words else words


def _without_basic(words: str, secret: str) -> str:
    def cleaned(found: re.Match[str]) -> str:
        text = found[0].rstrip("=")
        try:
            login = base64.b64decode(text + "=" * (-len(text) % 4), altchars=None).decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            return found[0]
        return MASK if login == secret or login.endswith(f":{secret}") else found[0]

    return _BASIC.sub(cleaned, words)


def _without_value(words: str, secret: str) -> str:
    """Part 2 of the rule."""
    if words.strip() == secret:
        return words.replace(secret, MASK)
    words = _URL.sub(lambda url: _without_part(url[0], secret), words)
    plain = re.escape(secret)
    end = r"(?!\w|\.\d)"
    words = re.sub(rf"(\\*[\"'`]){plain}(?=\\*[\"'`])", _unless_a_member, words)
    # What stands between JSON's brackets without quotes must be JSON after this too.
    if secret.isdigit():
        words = re.sub(rf"((\\*[\"'])\s*:\s*){plain}(?=\s*(?:[,}}\]]|\\+[nrt]|$))", rf"\1\2{MASK}\2", words)
    for before, after in (
        (r">\s*", r"(?=\s*<)"),
        (r"=\s*", end),
        (r"\S:", end),
        (r":\s+", r"(?=\s*(?:$|[,;&}\])\r\n\"']|\\+[nrt\"']))"),
        (rf"{_PASSWORD_NAME}[\"']?(?:\s*(?:[:=(]|=>)\s*|\s+(?:is|was)\s+|\s+)", end),
        (rf"{_SECRET_NAME}[\"']?\s*(?:[:=(]|=>)\s*", end),
        (r"(?<!\S)(?:--?[A-Za-z][\w-]*\s+|-[A-Za-z])", end),
        (r"(?i:\b(?:values?|strings?)\s+(?:is\s+)?)", end),
    ):
        words = re.sub(rf"({before}){plain}{after}", rf"\1{MASK}", words, flags=re.MULTILINE)
    return words


def _unless_a_member(found: re.Match[str]) -> str:
    """What is quoted, masked; but not a name in a JSON object."""
    text = found.string
    is_name = _MEMBER_AFTER.match(text, found.end()) and _MEMBER_BEFORE.search(
        text, max(0, found.start() - _DEEPEST), found.start()
    )
    return found[0] if is_name else f"{found[1]}{MASK}"


def _without_part(url: str, secret: str) -> str:
    plain = re.escape(secret)
    return re.sub(rf"(?<=[/?&#:=@]){plain}(?=[/?&#:=@]|$|[.,;:!)\]}}]+$)", MASK, url)
