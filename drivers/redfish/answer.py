"""What a BMC answered: its status, its headers, and a body that is read within bounds and forgiven its faults."""

import json
import re
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from multidict import CIMultiDictProxy

from drivers.redfish.document import Document
from protocol.errors import ErrorCode, OperationError

__all__ = ["LARGEST_BODY", "Answer", "content_of"]

LARGEST_BODY = 16 * 1024 * 1024
"""Bytes of one answer; the largest true ones (attribute registries) are 2 to 3 MiB."""
_HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the BMC answered."""

    method: str
    path: str
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def document(self) -> Document:
        """The body as a JSON object, whatever its content type says. Raises OperationError BMC_ERROR."""
        value = _parsed(self.body)
        if isinstance(value, dict):
            return value
        raise OperationError(
            ErrorCode.BMC_ERROR,
            f"{self.method} {self.path}: {_what_it_is(self.body, self.headers.get('Content-Type', ''))}",
            details={"status": self.status},
        )

    def said(self) -> object:
        """The body for its messages: JSON where it is JSON, plain text where it is that, None for anything else."""
        value = _parsed(self.body)
        if value is not None or not self.body or _is_markup(self.body):
            return value
        return self.body[:500].decode("utf-8", "replace")


async def content_of(response: aiohttp.ClientResponse, method: str, path: str) -> bytes:
    """The body, but never more than LARGEST_BODY of it, also when it is compressed."""
    length = response.content_length
    if length is not None and length <= LARGEST_BODY and "Content-Encoding" not in response.headers:
        return await response.read()
    parts: list[bytes] = []
    size = 0
    if length is None or length <= LARGEST_BODY:
        async for part in response.content.iter_chunked(65536):
            parts.append(part)
            size += len(part)
            if size > LARGEST_BODY:
                break
        else:
            return b"".join(parts)
    response.close()
    raise OperationError(
        ErrorCode.BMC_ERROR,
        f"{method} {path}: the answer is larger than {LARGEST_BODY // 1024 // 1024} MiB and was cut off: "
        "is this address a BMC's?",
    )


def _parsed(body: bytes) -> Any:
    """The JSON value, also with a byte order mark, stray bytes or NaN in it; None where it is no JSON."""
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        value = json.loads(body.decode("utf-8-sig", "replace"), strict=False, parse_constant=_nothing)
        if _HALF_A_PAIR.search(body):
            # Half a surrogate pair is no text that could travel on: it becomes a question mark.
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value


def _nothing(_word: str) -> None:
    """NaN and Infinity, which are no JSON, count as absent."""


def _is_markup(body: bytes) -> bool:
    return body[:200].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<"


def _what_it_is(body: bytes, kind: str) -> str:
    if not body.strip():
        return "the answer is empty"
    if _is_markup(body):
        return (
            "the answer is a web page, not Redfish: is the address a BMC's, its Redfish service on, "
            "and no proxy or login page in between?"
        )
    if body.lstrip()[:1] == b"{":
        return f"the answer is broken or cut-off JSON ({len(body)} bytes)"
    return f"the answer is no JSON object ({kind or 'no content type'}, {len(body)} bytes)"
