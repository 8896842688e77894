"""An image that a simulated BMC fetches by itself, over HTTP or HTTPS: in small pieces, and none of them is kept."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

import aiohttp

from simulators.redfish.documents import Upload
from simulators.redfish.errors import Message

PIECE = 16 * 1024
LIMITS = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)
MOST_REDIRECTS = 3


class FetchFailed(Exception):
    """It could not be fetched whole; `reason` is what the task of the update says."""

    def __init__(self, reason: Message) -> None:
        super().__init__(reason.text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ImageOrder:
    """What SimpleUpdate was told to fetch. `uri` holds no login."""

    uri: str
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def of(cls, uri: str, protocol: object = None, user: object = None, password: object = None) -> "ImageOrder":
        """A login of its own goes before the one in the address; without a scheme, TransferProtocol names it."""
        if "://" not in uri and isinstance(protocol, str):
            uri = f"{protocol.lower()}://{uri}"
        parts = urlsplit(uri)
        bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))
        return cls(
            bare,
            str(user) if user else unquote(parts.username or ""),
            str(password) if password else unquote(parts.password or ""),
        )

    @property
    def name(self) -> str:
        """The last part of its path."""
        return urlsplit(self.uri).path.rpartition("/")[2]

    @property
    def is_fetched(self) -> bool:
        """Whether this BMC fetches it; what comes by any other protocol is taken as if it had."""
        return self.uri.lower().startswith(("http://", "https://"))


async def fetch(order: ImageOrder, progress: Callable[[int], None]) -> Upload:
    """What came: its name, size and checksum. `progress` is told per cent, where the size was announced.

    Raises FetchFailed with a message of DMTF's Base or Update registry.
    """
    headers = {"Accept-Encoding": "identity"}
    if order.user:
        headers["Authorization"] = aiohttp.encode_basic_auth(order.user, order.password)
    try:
        async with (
            aiohttp.ClientSession(timeout=LIMITS) as client,
            client.get(order.uri, ssl=False, max_redirects=MOST_REDIRECTS, headers=headers) as answer,
        ):
            check_status(order, answer.status)
            return await receive(order, answer, progress)
    except aiohttp.ClientPayloadError:
        raise transfer_failed(order, "it ended before the size that was announced") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise FetchFailed(
            Message(
                "CouldNotEstablishConnection",
                f"No connection with the URI '{order.uri}' could be made ({type(error).__name__}).",
                "Critical",
                "Give an address that this manager can reach.",
                (order.uri,),
            )
        ) from error


def check_status(order: ImageOrder, status: int) -> None:
    if status in (401, 403):
        raise FetchFailed(
            Message(
                "ResourceAtUriUnauthorized",
                f"The server of '{order.uri}' did not let this manager in: HTTP {status}.",
                "Critical",
                "Give a user and a password that may read it.",
                (order.uri, f"HTTP {status}"),
            )
        )
    if status != 200:
        raise transfer_failed(order, f"its server answered HTTP {status}")


async def receive(order: ImageOrder, answer: aiohttp.ClientResponse, progress: Callable[[int], None]) -> Upload:
    digest, size, announced = hashlib.sha256(), 0, answer.content_length
    async for piece in answer.content.iter_chunked(PIECE):
        digest.update(piece)
        size += len(piece)
        if announced:
            progress(100 * size // announced)
    if not size:
        raise transfer_failed(order, "it is empty")
    if announced is not None and size != announced:
        raise transfer_failed(order, f"{size} bytes came, and {announced} were announced")
    return Upload(order.name, size, digest.hexdigest())


def transfer_failed(order: ImageOrder, why: str) -> FetchFailed:
    return FetchFailed(
        Message(
            "Update.1.0.TransferFailed",
            f"The transfer of the image '{order.uri}' to this manager failed: {why}.",
            "Critical",
            "None.",
            (order.uri, "the manager"),
        )
    )
