"""Entity tags as BMCs really send them, and what to send back.

Sources: OpenStack sushy's etag notes, ansible-collections/community.general pull requests 6434 and 3268,
stmcginnis/gofish issue 511 (the `-gzip` suffix), ibm-openbmc/bmcweb pull request 833 (two ETag
headers), ansible issue 56050.
"""

import re
from collections.abc import Iterable

__all__ = ["as_sent", "normal", "strong"]

_FORM = re.compile(r'^(?P<weak>W/)?"(?P<opaque>.*)"$|^(?P<bare_weak>W/)(?P<bare>[^"]+)$', re.DOTALL | re.IGNORECASE)
_COMPRESSED = re.compile(r"[-;:]*gzip$", re.IGNORECASE)


def normal(tag: str) -> str | None:
    """One tag in its proper form, `"opaque"` or `W/"opaque"`; None for one that says nothing.

    Doubled quotes and the suffix that a compressing web server adds are taken off; a bare word gets its quotes.
    A tag that no header can carry says nothing.
    """
    tag = tag.strip()
    match = _FORM.match(tag)
    weak = "W/" if match and (match["weak"] or match["bare_weak"]) else ""
    opaque = (match["opaque"] or match["bare"] or "") if match else tag
    opaque = _COMPRESSED.sub("", opaque.strip('"')).strip('"')
    return f'{weak}"{opaque}"' if opaque and opaque.isprintable() and opaque.isascii() else None


def as_sent(headers: Iterable[str], document: object) -> str | None:
    """The tag of an answer: the first header that says something, else the body's `@odata.etag`."""
    for header in headers:
        for part in _split(header):
            tag = normal(part)
            if tag is not None:
                return tag
    body = document.get("@odata.etag") if isinstance(document, dict) else None
    return normal(body) if isinstance(body, str) else None


def strong(tag: str) -> str | None:
    """The strong form of a weak tag, for BMCs that give weak ones and take strong ones; None if it is one."""
    return tag.removeprefix("W/") if tag.startswith("W/") else None


def _split(header: str) -> list[str]:
    """Two ETag headers are joined by a comma on the way; a comma inside quotes is part of a tag."""
    return re.findall(r'(?:[Ww]/)?"[^"]*"|[^,\s][^,]*', header) if '""' not in header else [header]
