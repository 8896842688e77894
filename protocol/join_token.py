"""The one-time token with which an agent joins: `rwj1.<CA sha256>.<id>.<secret>`.

The hash of the control plane's CA certificate (SHA-256 of its DER) is inside, so that the very first connection is
verified already: the agent fetches the CA unverified, compares the hash, and speaks verified TLS from then on.
"""

import re
import secrets

import msgspec

from protocol.ids import is_id, new_id
from protocol.secret import Secret

__all__ = ["JoinToken"]

_PREFIX = "rwj1"
_SECRET = re.compile(r"[A-Za-z0-9_-]{32,128}")


class JoinToken(msgspec.Struct, frozen=True):
    """A parsed token. `text()` is the whole of it: to be shown once, to whoever joins the agent."""

    ca_sha256: str
    id: str
    secret: Secret

    @classmethod
    def new(cls, ca_sha256: str) -> "JoinToken":
        return cls(ca_sha256, new_id("jtk"), Secret(secrets.token_urlsafe(32)))

    @classmethod
    def parse(cls, text: str) -> "JoinToken":
        """Raises ValueError that says what is wrong without repeating the token."""
        parts = text.strip().split(".")
        if parts[0] != _PREFIX:
            raise ValueError(
                f"this is no join token: one begins with {_PREFIX}. "
                "and is made by `rackwright control-plane join-token create`"
            )
        if len(parts) != 4:
            raise ValueError("the join token is not whole: copy all of it, it has four parts joined by dots")
        _, ca_sha256, identifier, secret = parts
        if (
            not re.fullmatch(r"[0-9a-f]{64}", ca_sha256)
            or not is_id(identifier, "jtk")
            or not _SECRET.fullmatch(secret)
        ):
            raise ValueError("the join token is damaged: copy it again, or make a new one")
        return cls(ca_sha256, identifier, Secret(secret))

    def text(self) -> str:
        return f"{_PREFIX}.{self.ca_sha256}.{self.id}.{self.secret.reveal()}"
