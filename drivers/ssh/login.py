"""One SSH login, by paramiko, whose blocking calls run in threads. Its errors leave as our own."""

import asyncio
import contextlib
import io
import logging
import socket
from dataclasses import dataclass
from typing import Final

import paramiko

from drivers.driver import Environment
from drivers.ssh.trust import check_host_key, known_hosts_files
from drivers.target import Target
from protocol.errors import ErrorCode, OperationError
from protocol.secret import Secret

__all__ = ["DEFAULT_PORT", "LoggedIn", "log_in", "place_of"]

# It logs each cut connection as an error with a traceback; what matters of it leaves as an error of ours.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)

DEFAULT_PORT: Final = 22
_PEM_BEGINS: Final = "-----BEGIN "
_KEY_KINDS: Final = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)
_DEAD_AFTER_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class LoggedIn:
    transport: paramiko.Transport
    fingerprint: str
    """SHA-256 of the host key, in hexadecimal."""


def place_of(target: Target) -> str:
    """`host:port` with the port that is spoken to: a bare host has none of its own."""
    return f"{target.parsed.host}:{target.parsed.port or DEFAULT_PORT}"


async def log_in(target: Target, environment: Environment, seconds: float) -> LoggedIn:
    """A connection that has shown a good host key and taken the credential.

    Threads do what blocks; blocks and pins are touched here alone. Raises OperationError: UNREACHABLE, TLS_UNTRUSTED,
    AUTH_FAILED, AUTH_BLOCKED, UNSUPPORTED, INVALID_ARGUMENT.
    """
    place, breaker = place_of(target), environment.breaker
    breaker.check(target)
    credential = _credential(target.secret)
    connecting = asyncio.ensure_future(asyncio.to_thread(_connect, target, place, seconds))
    try:
        met = await asyncio.shield(connecting)
    except asyncio.CancelledError:
        # The thread cannot be stopped: what it brings is put away when it comes.
        connecting.add_done_callback(_put_away)
        raise
    try:
        seen = check_host_key(target, place, met.key, known=met.known, pins=environment.pins)
        await asyncio.to_thread(_authenticate, met.transport, target, credential, place)
    except _Refused as refused:
        met.transport.close()
        breaker.refused(target, refused.reason)
        raise OperationError(
            ErrorCode.AUTH_FAILED, f"{place} {refused.reason}; no further login is tried until the credential changes"
        ) from refused.__cause__
    except BaseException:
        met.transport.close()
        raise
    breaker.accepted(target)
    return LoggedIn(met.transport, seen)


class _Refused(Exception):
    """The server has judged the credential."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Met:
    """A server that has shown its host key, and to which nothing secret was said yet."""

    transport: paramiko.Transport
    key: bytes
    known: bool


def _connect(target: Target, place: str, seconds: float) -> _Met:
    transport = paramiko.Transport(_dial(target, place, seconds))
    try:
        transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = seconds
        transport.start_client(timeout=seconds)
        key = transport.get_remote_server_key()
        return _Met(transport, key.asbytes(), _is_known(target, key))
    except (paramiko.SSHException, OSError, EOFError) as error:
        transport.close()
        raise _unreachable(f"{place} does not speak SSH as it should", error) from error


def _dial(target: Target, place: str, seconds: float) -> socket.socket:
    address = target.parsed
    try:
        connected = socket.create_connection((address.host, address.port or DEFAULT_PORT), timeout=seconds)
    except OSError as error:
        raise _unreachable(f"{place} cannot be reached by SSH", error) from error
    # A BMC that restarts says no goodbye: the kernel asks, and gives the connection up.
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", _DEAD_AFTER_MS),
    ):
        with contextlib.suppress(OSError, AttributeError):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return connected


def _credential(secret: Secret) -> str | paramiko.PKey:
    """A password, or the private key that a credential in PEM holds. Raises OperationError INVALID_ARGUMENT."""
    text = secret.reveal()
    if not text.startswith(_PEM_BEGINS):
        return text
    for kind in _KEY_KINDS:
        try:
            return kind.from_private_key(io.StringIO(text))
        except paramiko.PasswordRequiredException:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT, "the private key is protected by a passphrase: give one without"
            ) from None
        except (paramiko.SSHException, ValueError, IndexError, UnicodeDecodeError):
            continue
    raise OperationError(
        ErrorCode.INVALID_ARGUMENT,
        "the private key cannot be read: give an Ed25519, ECDSA or RSA key in PEM or OpenSSH form",
    )


def _authenticate(transport: paramiko.Transport, target: Target, credential: str | paramiko.PKey, place: str) -> None:
    """Raises _Refused, or OperationError where the server has judged nothing."""
    user = target.username or ""
    what = "password" if isinstance(credential, str) else "key"
    try:
        if isinstance(credential, str):
            # Falls back to keyboard-interactive, which many BMCs ask for in place of a password.
            left = transport.auth_password(user, credential)
        else:
            left = transport.auth_publickey(user, credential)
    except paramiko.BadAuthenticationType as error:
        allowed = ", ".join(error.allowed_types)
        raise OperationError(
            ErrorCode.UNSUPPORTED, f"{place} takes no {what} from user {user!r}, only: {allowed}"
        ) from error
    except paramiko.AuthenticationException as error:
        if "timeout" in str(error).lower():
            raise _unreachable(f"{place} did not answer the login", error) from error
        raise _Refused(f"refused user {user!r} with this {what}") from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise _unreachable(f"{place} broke off the login", error) from error
    if left:
        raise OperationError(
            ErrorCode.UNSUPPORTED, f"{place} wants more than a {what} from user {user!r}: {', '.join(left)}"
        )


def _is_known(target: Target, key: paramiko.PKey) -> bool:
    """Whether this host's known_hosts files have the key for the address."""
    address = target.parsed
    port = address.port or DEFAULT_PORT
    name = address.host if port == DEFAULT_PORT else f"[{address.host}]:{port}"
    for file in known_hosts_files():
        hosts = paramiko.HostKeys()
        with contextlib.suppress(OSError, paramiko.SSHException):
            hosts.load(str(file))
            if hosts.check(name, key):
                return True
    return False


def _put_away(connecting: "asyncio.Future[_Met]") -> None:
    with contextlib.suppress(OperationError, asyncio.CancelledError):
        connecting.result().transport.close()


def _unreachable(message: str, error: Exception) -> OperationError:
    return OperationError(ErrorCode.UNREACHABLE, f"{message}: {_words(error)}", details={"cause": _words(error)})


def _words(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
