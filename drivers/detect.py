"""Which protocol a bare host speaks: asked without credentials, so that nothing can be locked."""

import asyncio
import os
import ssl
from typing import TYPE_CHECKING, Final

from drivers.target import Target
from protocol.addresses import Address
from protocol.errors import ErrorCode, OperationError

if TYPE_CHECKING:
    import aiohttp

__all__ = ["detect"]

_REDFISH_SECONDS: Final = 10.0
_IPMI_SECONDS: Final = 1.0
_IPMI_TRIES: Final = 3
_BODY_BYTES: Final = 1 << 16

_PRESENCE_PING: Final = bytes.fromhex("0600ff06 000011be 80000000")
"""Source: IPMI 2.0 revision 1.1, 13.2.3."""
_ASK_AUTHENTICATION: Final = bytes.fromhex("0600ff07 00 00000000 00000000 09 20 18 c8 81 00 38 8e 04 b5")
"""Get Channel Authentication Capabilities, outside any session, for BMCs that give no pong. Source: 22.13."""


async def detect(target: Target) -> str:
    """`redfish` or `ipmi`; Redfish goes first where a BMC speaks both.

    A port in the address is where both are asked. Certificates are not checked here: nothing secret is sent, and the
    driver that is chosen checks them. Raises OperationError UNREACHABLE that tells what each attempt met.
    """
    address = target.parsed
    redfish, ipmi = await asyncio.gather(_redfish_fault(address), _ipmi_fault(address))
    if redfish is None:
        return "redfish"
    if ipmi is None:
        return "ipmi"
    raise OperationError(
        ErrorCode.UNREACHABLE,
        f"{address} speaks neither Redfish ({redfish}) nor IPMI ({ipmi}): check the address, "
        "or name the protocol with https:// or ipmi://",
        details={"redfish": redfish, "ipmi": ipmi},
    )


async def _redfish_fault(address: Address) -> str | None:
    """Why this is no Redfish service; None when it is one. DSP0266 lets its root be read without a login."""
    import aiohttp  # a program that names its protocols never needs it here
    from yarl import URL

    port = address.port or 443
    url = URL.build(scheme="https", host=address.host, port=port, path="/redfish/v1/")
    timeout = aiohttp.ClientTimeout(total=_REDFISH_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, ssl=_any_tls(), allow_redirects=False) as answer,
        ):
            return await _answer_fault(answer)
    except TimeoutError:
        return f"no answer from https port {port} within {_REDFISH_SECONDS:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return f"https port {port}: {_reason(error)}"


async def _answer_fault(answer: "aiohttp.ClientResponse") -> str | None:
    # Some BMCs want a login even for the root, against the specification.
    if answer.status in (401, 403):
        return None
    if 300 <= answer.status < 400 and "/redfish/" in answer.headers.get("Location", ""):
        return None
    body = b""
    while len(body) < _BODY_BYTES and (part := await answer.content.read(_BODY_BYTES)):
        body += part
    if answer.status == 200 and (b'"RedfishVersion"' in body or b"ServiceRoot" in body):
        return None
    return f"/redfish/v1/ answered {answer.status} and no service root"


def _any_tls() -> ssl.SSLContext:
    """Takes whatever an old BMC offers: only the question goes over it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


class _Ear(asyncio.DatagramProtocol):
    """Waits for the first datagram that an IPMI BMC could send."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, _addr: object) -> None:
        if _is_ipmi(data) and not self.heard.done():
            self.heard.set_result(True)

    def error_received(self, exc: Exception) -> None:
        if not self.heard.done():
            self.heard.set_exception(exc)


async def _ipmi_fault(address: Address) -> str | None:
    """Why no IPMI BMC is here; None when one is."""
    port = address.port or 623
    loop = asyncio.get_running_loop()
    try:
        transport, ear = await loop.create_datagram_endpoint(_Ear, remote_addr=(address.host, port))
        try:
            for _ in range(_IPMI_TRIES):
                transport.sendto(_PRESENCE_PING)
                transport.sendto(_ASK_AUTHENTICATION)
                await asyncio.wait([ear.heard], timeout=_IPMI_SECONDS)
                if ear.heard.done():
                    break
            return None if ear.heard.done() and ear.heard.result() else f"no answer from UDP port {port}"
        finally:
            transport.close()
    except OSError as error:
        return f"UDP port {port}: {_reason(error)}"


def _reason(error: Exception) -> str:
    """The system's own words, without the addresses and objects that libraries put around them."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _is_ipmi(data: bytes) -> bool:
    """An IPMI message, or a pong whose supported entities name IPMI (13.2.4: bit 7)."""
    if len(data) < 4 or data[0] != 0x06:
        return False
    if data[3] & 0x1F == 0x07:
        return True
    return data[3] & 0x1F == 0x06 and len(data) > 20 and data[8] == 0x40 and bool(data[20] & 0x80)
