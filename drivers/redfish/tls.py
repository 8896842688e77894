"""How far a BMC's certificate is trusted, as aiohttp wants to be told; the contexts are shared by all connections."""

import asyncio
import contextlib
import hashlib
import ssl
from functools import lru_cache
from pathlib import Path

import aiohttp

from protocol.addresses import TlsMode, TlsPolicy
from protocol.errors import ErrorCode, OperationError

__all__ = [
    "certificate_fingerprint",
    "certificate_on_the_wire",
    "changed_pin",
    "trust",
    "untrusted",
]

Trust = ssl.SSLContext | aiohttp.Fingerprint | bool


def trust(policy: TlsPolicy, pinned: str | None) -> Trust:
    """aiohttp's `ssl` argument. `pinned`: the certificate taken on first use, or the one that replaced a pinned one.

    Raises OperationError INVALID_ARGUMENT for a CA file that cannot be used.
    """
    if policy.mode is TlsMode.CA:
        return _with_authority(policy.value)
    if policy.mode is TlsMode.PIN:
        return aiohttp.Fingerprint(bytes.fromhex(pinned or policy.value))
    if policy.mode is TlsMode.FIRST_USE and pinned is not None:
        return aiohttp.Fingerprint(bytes.fromhex(pinned))
    if policy.mode is TlsMode.VERIFY:
        return _of_host()
    return False


def untrusted(endpoint: str, reason: str, seen: str | None) -> OperationError:
    """TLS_UNTRUSTED: what is wrong with the certificate, its fingerprint, and how to trust it nevertheless."""
    way = f"; if it is the right one, pin it: sha256:{seen}" if seen else ""
    return OperationError(
        ErrorCode.TLS_UNTRUSTED,
        f"the certificate of {endpoint} is not trusted: {reason}{way}",
        details={"fingerprint": seen} if seen else {},
    )


def changed_pin(endpoint: str, expected: str, seen: str) -> OperationError:
    return OperationError(
        ErrorCode.TLS_UNTRUSTED,
        f"{endpoint} shows another certificate than the one pinned: expected sha256:{expected}, saw sha256:{seen}; "
        "no password was sent. If the BMC's certificate was replaced, pin the new one",
        details={"expected": expected, "fingerprint": seen},
    )


async def certificate_fingerprint(host: str, port: int, timeout: float) -> str:
    """SHA-256 of the certificate that the BMC shows, asked without sending anything. Raises OSError, TimeoutError."""
    return hashlib.sha256(await certificate_on_the_wire(host, port, timeout)).hexdigest()


async def certificate_on_the_wire(host: str, port: int, timeout: float) -> bytes:
    """The certificate that the BMC shows, in DER; the handshake proves that it has the key. Raises OSError,
    TimeoutError."""
    async with asyncio.timeout(timeout):
        _, writer = await asyncio.open_connection(host, port, ssl=_unchecked(), server_hostname="")
        try:
            tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
            certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                await writer.wait_closed()
    if certificate is None:
        raise OSError("the BMC showed no certificate")
    return certificate


@lru_cache(maxsize=1)
def _of_host() -> ssl.SSLContext:
    return ssl.create_default_context()


@lru_cache(maxsize=1)
def _unchecked() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _with_authority(path: str) -> ssl.SSLContext:
    try:
        changed = Path(path).stat().st_mtime_ns
        return _authority(path, changed)
    except (OSError, ssl.SSLError) as error:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"the CA file {path} cannot be used ({error.strerror or error}): give a readable PEM file on this host",
        ) from error


@lru_cache(maxsize=16)
def _authority(path: str, _changed: int) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=path)
