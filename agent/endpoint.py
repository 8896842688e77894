"""Where the control plane is: `https://host[:8443]`, `wss://host[:8443]` or `host[:8443]`; never in clear."""

import re
from urllib.parse import urlsplit

import msgspec

__all__ = ["Endpoint"]

_DEFAULT_PORT = 8443
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_FORMS = "write https://host[:8443], wss://host[:8443] or host:port"


class Endpoint(msgspec.Struct, frozen=True):
    host: str
    port: int = _DEFAULT_PORT

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """Raises ValueError with the accepted forms."""
        stripped = text.strip()
        parts = urlsplit(stripped if "://" in stripped else f"https://{stripped}")
        if parts.scheme in ("http", "ws"):
            raise ValueError(f"{parts.scheme}:// would carry secrets in clear: {_FORMS}")
        if parts.scheme not in ("https", "wss"):
            raise ValueError(f"{parts.scheme}:// is no form of the control plane's address: {_FORMS}")
        if "@" in parts.netloc:
            raise ValueError(f"the control plane's address takes no user or password: {_FORMS}")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError(f"the control plane's address takes no path: {_FORMS}")
        try:
            port = parts.port
        except ValueError:
            raise ValueError(f"the port is a number from 1 to 65535: {_FORMS}") from None
        if not parts.hostname or not _HOST.fullmatch(parts.hostname) or port == 0:
            raise ValueError(f"{text!r} names no usable host: {_FORMS}")
        return cls(parts.hostname, port or _DEFAULT_PORT)

    @property
    def netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def websocket(self, path: str) -> str:
        return f"wss://{self.netloc}{path}"

    def __str__(self) -> str:
        return f"https://{self.netloc}"
