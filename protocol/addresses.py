"""How a BMC is addressed, and how far its certificate is trusted; the same forms everywhere.

Addresses: `https://host[:port]`, `http://host[:port]` (to a loopback address, or with consent), `ipmi://host[:623]`,
`ssh://host[:22]`, `simulated://name`, or a bare host, which is tried as Redfish and then as IPMI.

Trust (`tls`): `verify` (the CAs of the agent's host), `ca:/path/on/the/site/host.pem`, `sha256:<hex>` (that one
certificate), `first-use` (take the certificate seen first, then only that one), `none` (no check: visible wherever
the node is shown).
"""

import ipaddress
import re
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

__all__ = ["Address", "Scheme", "TlsMode", "TlsPolicy"]


class Scheme(StrEnum):
    HTTPS = "https"
    HTTP = "http"
    IPMI = "ipmi"
    SSH = "ssh"
    SIMULATED = "simulated"
    ANY = "any"
    """A bare host: which protocol it speaks is found by asking it."""


_DEFAULT_PORTS = {
    Scheme.HTTPS: 443,
    Scheme.HTTP: 80,
    Scheme.IPMI: 623,
    Scheme.SSH: 22,
    Scheme.SIMULATED: 0,
    Scheme.ANY: 0,
}
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
_FORMS = (
    "write https://host[:port], http://host[:port], ipmi://host[:623], ssh://host[:22], simulated://name "
    "or a bare host"
)


class Address(msgspec.Struct, frozen=True):
    """A parsed BMC address. `port` 0 means the default of whichever protocol is found (bare hosts only)."""

    scheme: Scheme
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Raises ValueError with the accepted forms. Credentials in the address are refused, never echoed."""
        stripped = text.strip()
        if not stripped:
            raise ValueError(f"the address is empty: {_FORMS}")
        if "@" in stripped:
            raise ValueError("the address holds a user name or password: give them on their own")
        if "://" not in stripped:
            stripped = f"any://{_bracketed(stripped)}"
        try:
            parts = urlsplit(stripped)
        except ValueError:
            raise ValueError(f"{text!r} names no usable host: {_FORMS}") from None
        try:
            scheme = Scheme(parts.scheme.lower())
        except ValueError:
            raise ValueError(f"{parts.scheme}:// is not an address form: {_FORMS}") from None
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError(f"{text!r} has a path: give only the BMC's host and port")
        try:
            port = parts.port
        except ValueError:
            raise ValueError(f"{text!r} has no usable port: it is a number from 1 to 65535") from None
        if port == 0:
            raise ValueError(f"{text!r} has port 0: it is a number from 1 to 65535")
        if port is not None and scheme is Scheme.SIMULATED:
            raise ValueError(f"{text!r} has a port: a simulated machine has only a name")
        host = parts.hostname or ""
        if not _is_host(host):
            raise ValueError(f"{text!r} names no usable host: {_FORMS}")
        return cls(scheme, host, _DEFAULT_PORTS[scheme] if port is None else port)

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return self.host in ("localhost", "localhost.")

    @property
    def netloc(self) -> str:
        """`host:port`, an IPv6 host in brackets; the port is left out where it is the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return self.netloc if self.scheme is Scheme.ANY else f"{self.scheme}://{self.netloc}"


class TlsMode(StrEnum):
    VERIFY = "verify"
    CA = "ca"
    PIN = "sha256"
    FIRST_USE = "first-use"
    NONE = "none"


class TlsPolicy(msgspec.Struct, frozen=True):
    """How far a BMC's certificate is trusted. `value`: the CA file, or the pinned SHA-256 in lower-case hex."""

    mode: TlsMode
    value: str = ""

    @classmethod
    def parse(cls, text: str) -> "TlsPolicy":
        """Raises ValueError with the accepted forms."""
        word, separator, value = text.strip().partition(":")
        try:
            mode = TlsMode(word)
        except ValueError:
            raise ValueError(
                f"{text!r} is no trust form: write verify, ca:/path.pem, sha256:<hex>, first-use or none"
            ) from None
        if mode is TlsMode.PIN:
            value = value.replace(":", "").lower()
            if not re.fullmatch(r"[0-9a-f]{64}", value):
                raise ValueError("a pinned certificate is sha256: and 64 hexadecimal digits")
        elif mode is TlsMode.CA:
            if not value.startswith("/"):
                raise ValueError("a CA is named by its absolute path on the site host: ca:/etc/rackwright/bmc-ca.pem")
        elif separator:
            raise ValueError(f"{word} takes no value")
        return cls(mode, value)

    def __str__(self) -> str:
        return f"{self.mode}:{self.value}" if self.value else self.mode.value


def _bracketed(text: str) -> str:
    """A bare IPv6 address in brackets, so that its colons are not taken for a port."""
    return f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text


def _is_host(host: str) -> bool:
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return False
        return True
    return len(host) <= 253 and _HOST_NAME.fullmatch(host) is not None
