"""Which host key an SSH server may show: the same forms as for certificates (`protocol.addresses.TlsPolicy`).

`sha256:<hex>` is the SHA-256 of the key's public half as SSH sends it (RFC 4253, 6.6), in hexadecimal; `verify` means
the host keys that this host knows.
"""

import hashlib
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from drivers.target import Target
from protocol.addresses import TlsMode
from protocol.errors import ErrorCode, OperationError

__all__ = ["check_host_key", "fingerprint", "known_hosts_files"]

_SYSTEM_FILE: Final = Path("/etc/ssh/ssh_known_hosts")


def fingerprint(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def check_host_key(target: Target, place: str, key: bytes, *, known: bool, pins: MutableMapping[str, str]) -> str:
    """The key's fingerprint, once it is found good; a first one is pinned. `place`: `host:port`; `known`: this host's
    known_hosts has the key.

    Raises OperationError TLS_UNTRUSTED, or INVALID_ARGUMENT for a CA, which no host key is signed by here.
    """
    seen, policy = fingerprint(key), target.tls
    if policy.mode is TlsMode.NONE:
        return seen
    if policy.mode is TlsMode.CA:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT, "a CA does not vouch for SSH host keys: use first-use, sha256:<hex> or verify"
        )
    if policy.mode is TlsMode.VERIFY:
        if not known:
            raise _untrusted(f"the host key of {place} (sha256:{seen}) is not among this host's known hosts")
        return seen
    expected = policy.value if policy.mode is TlsMode.PIN else pins.setdefault(place, seen)
    if expected != seen:
        raise _untrusted(
            f"{place} shows another host key (sha256:{seen}) than the pinned one (sha256:{expected}): it was "
            "replaced, or it is another machine"
        )
    return seen


def known_hosts_files(home: Path | None = None) -> list[Path]:
    """The files with this host's known host keys."""
    return [_SYSTEM_FILE, (home or Path.home()) / ".ssh" / "known_hosts"]


def _untrusted(message: str) -> OperationError:
    return OperationError(ErrorCode.TLS_UNTRUSTED, message)
