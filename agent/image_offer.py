"""The `site.offerImage` command: an image of an operating system is made ready on the site's own server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from agent.boot_server import BootServer
from agent.endings import interrupted
from agent.handlers import Answer
from agent.tickets import Tickets
from drivers.driver import ProgressListener
from protocol.address_logins import login_faults
from protocol.commands import CommandKind, Ending
from protocol.errors import ErrorCode, Issue, OperationError
from protocol.image_admission import hidden
from protocol.operations import Repeat
from protocol.validation import check

__all__ = ["ImageOffer", "OfferImage"]

_ANSWER_IN_SECONDS = 5.0
"""Left of the command's time for its answer."""


class OfferImage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The payload of `site.offerImage`."""

    url: Annotated[str, Meta(max_length=4096)]
    name: Annotated[str, Meta(min_length=1, max_length=255)]
    """The file's own: its ending tells the format."""
    target_node_id: Annotated[str, Meta(min_length=1)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$(?!\n)")] | None = None
    sha512: Annotated[str, Meta(pattern="^[0-9a-fA-F]{128}$(?!\n)")] | None = None


class ImageOffer:
    """Handles it. A repeated one gives the same address again, with a word in the place of what admits to it."""

    def __init__(self, server: BootServer, tickets: Tickets) -> None:
        self._server = server
        self._tickets = tickets

    def faults(self, payload: Mapping[str, object]) -> list[Issue]:
        wanted, issues = check(OfferImage, payload, "payload")
        if wanted is not None and urlsplit(wanted.url).scheme.lower() not in ("http", "https"):
            issues.append(Issue("payload.url", "is no http or https address"))
        return issues + login_faults(payload.get("url"), "payload.url")

    def repeat(self, payload: Mapping[str, object]) -> Repeat:
        return Repeat.CONVERGE

    @contextlib.asynccontextmanager
    async def turn(self, payload: Mapping[str, object]) -> AsyncIterator["ImageOffer._Work"]:
        yield self._Work(self._server, self._tickets, msgspec.convert(payload, OfferImage))

    class _Work:
        def __init__(self, server: BootServer, tickets: Tickets, wanted: OfferImage) -> None:
            self._server = server
            self._tickets = tickets
            self._wanted = wanted

        async def run(self, timeout: float, progress: ProgressListener) -> Answer:
            """Raises OperationError: CONFLICT with the origin's answer, or where it cannot be kept here; TIMEOUT;
            UNREACHABLE where the control plane did not say what is to admit to it."""
            wanted = self._wanted
            digest = _digest(wanted)
            if digest is None:
                raise OperationError(
                    ErrorCode.UNSUPPORTED,
                    "an image without a checksum is not kept at the site: nobody could tell whether it is still the "
                    "same. Name its sha256 or sha512",
                )
            left = max(1.0, timeout - _ANSWER_IN_SECONDS)
            try:
                async with asyncio.timeout(left):
                    # The control plane's silence is told before it looks like the origin's.
                    admission = await self._tickets.admission(
                        wanted.target_node_id, digest.partition("-")[2], patience=left / 2
                    )
                    token = admission.reveal()
                    url = await self._server.offer_image(
                        wanted.target_node_id, digest, wanted.name, wanted.url, token=token
                    )
            except TimeoutError:
                raise OperationError(
                    ErrorCode.TIMEOUT, "the image's origin has not begun to give it in time"
                ) from None
            return Answer({"url": hidden(url, token)})

        async def observe(self, timeout: float) -> Ending:
            return interrupted(CommandKind.SITE_OFFER_IMAGE.value)


def _digest(wanted: OfferImage) -> str | None:
    if wanted.sha256 is not None:
        return f"sha256-{wanted.sha256.lower()}"
    return f"sha512-{wanted.sha512.lower()}" if wanted.sha512 is not None else None
