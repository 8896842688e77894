"""Who this agent is: its key, certificate and the CAs it trusts, in one folder per generation.

    identity/current -> gen-…      what the agent connects with
    identity/next    -> gen-…      a renewed pair that has not connected yet; `current` stays until it has
    identity/gen-…/agent.key       P-256, made here, mode 0600; it never leaves the host
    identity/gen-…/agent.crt, ca.crt, agent.json
    identity/gen-…/join-token      the id of the token that its key joins with; until it has

A generation's key is written first and its link last, each durably: after a crash a generation without a link is
left over. Nothing refers to it, but a join with the same token goes on with its key: the control plane may have taken
that, and takes no other.

cryptography is loaded where it is used: a ramdisk looks for its identity while it has no network yet.
"""

import contextlib
import datetime
import secrets
import shutil
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.errors import IdentityError
from agent.files import make_private_folder, replace_link, sync_folder, write_durably

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["Facts", "Identity", "IdentityStore", "Validity", "certificate_request"]

_KEY, _CERTIFICATE, _CA, _FACTS = "agent.key", "agent.crt", "ca.crt", "agent.json"
_TOKEN = "join-token"  # noqa: S105


class Facts(msgspec.Struct, frozen=True, rename="camel"):
    """What the control plane said of this agent when it joined."""

    agent_id: str
    role: str
    site: str
    control_plane: str
    """As it was joined: the address form of `Endpoint`."""
    node: str = ""
    """The machine that the join token was bound to; empty for a site's agent."""


class Validity(msgspec.Struct, frozen=True):
    """When a certificate holds, as seconds since 1970."""

    begins: float
    ends: float

    def trouble(self, now: float) -> str | None:
        """Why it does not hold now and what to do; None when it does."""
        if now < self.begins:
            return (
                f"this agent's certificate is not valid before {_day(self.begins)}, and the clock of this host says "
                f"{_day(now)}: set the clock (is NTP running?)"
            )
        if now >= self.ends:
            return (
                f"this agent's certificate expired at {_day(self.ends)}: make a new token with `rackwright "
                "control-plane join-token create` and run `rackwright agent join --force URL TOKEN` here "
                f"(if that date lies ahead, the clock of this host, {_day(now)}, is wrong)"
            )
        return None

    def renew_at(self, jitter: float) -> float:
        """Half its life, and up to a tenth of it later: `jitter` from 0 to 1."""
        life = self.ends - self.begins
        return self.begins + life * (0.5 + 0.1 * jitter)


class Identity(msgspec.Struct, frozen=True):
    """One generation as it lies on the disk."""

    folder: Path
    facts: Facts
    validity: Validity
    serial: str

    def context(self) -> ssl.SSLContext:
        """Mutual TLS with this identity, trusting nobody but the control plane's CAs. Raises IdentityError."""
        try:
            context = ssl.create_default_context(cafile=str(self.folder / _CA))
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(self.folder / _CERTIFICATE, self.folder / _KEY)
        except (OSError, ssl.SSLError) as error:
            raise IdentityError(
                f"the identity in {self.folder} cannot be used ({error}): join again with a new token"
            ) from error
        return context


class IdentityStore:
    """The folder of identities."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def current(self) -> Identity | None:
        """What to connect with, or None before joining. Raises IdentityError when it cannot be read."""
        return self._read("current")

    def waiting(self) -> Identity | None:
        """A renewed pair that has not connected yet."""
        with contextlib.suppress(IdentityError):
            return self._read("next")
        return None

    def unfinished_join(self, token_id: str) -> Path | None:
        """The generation of a join that was begun with this token and that no identity came of."""
        linked = {self._target("current"), self._target("next")}
        for folder in self.folder.glob("gen-*"):
            with contextlib.suppress(FileNotFoundError):
                if folder.name not in linked and (folder / _TOKEN).read_text() == token_id:
                    return folder
        return None

    def begin(self, token_id: str = "") -> tuple[Path, "EllipticCurvePrivateKey"]:
        """A generation with its key on the disk, linked by nothing yet. For a join, named by its token: the one of
        an unfinished join with that token, where there is one; else a new one.
        """
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        kept = self.unfinished_join(token_id) if token_id else None
        if kept is not None:
            try:
                return kept, _read_key(kept)
            except ValueError:
                # Damaged on the disk: with it the token is lost, but not the next one.
                shutil.rmtree(kept)
        make_private_folder(self.folder.parent)
        make_private_folder(self.folder)
        folder = self.folder / f"gen-{secrets.token_hex(8)}"
        make_private_folder(folder)
        key = ec.generate_private_key(ec.SECP256R1())
        encoded = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_durably(folder / _KEY, encoded)
        if token_id:
            write_durably(folder / _TOKEN, token_id.encode())
        return folder, key

    def complete(self, folder: Path, facts: Facts, certificate: str, ca: str, *, renewal: bool) -> Identity:
        """Writes what was issued for the generation's key and links it: as `next` for a renewal, else `current`.

        Raises IdentityError, and links nothing, when the certificate does not belong to the key.
        """
        _check_belongs(folder, certificate)
        write_durably(folder / _CERTIFICATE, certificate.encode(), 0o644)
        write_durably(folder / _CA, ca.encode(), 0o644)
        write_durably(folder / _FACTS, msgspec.json.encode(facts))
        identity = _load(folder)
        identity.context()
        if renewal:
            replace_link(self.folder / "next", folder.name)
        else:
            replace_link(self.folder / "current", folder.name)
            self._unlink("next")
            self.tidy(joined=True)
        return identity

    def adopt(self, identity: Identity) -> None:
        """The renewed pair has connected: it is the current one from now on."""
        replace_link(self.folder / "current", identity.folder.name)
        self._unlink("next")
        self.tidy()

    def give_up_waiting(self) -> None:
        """The renewed pair was refused: the current one stays."""
        self._unlink("next")
        self.tidy()

    def tidy(self, *, joined: bool = False) -> None:
        """Removes generations that nothing refers to; those of unfinished joins only once one has `joined`."""
        linked = {self._target("current"), self._target("next")}
        for generation in self.folder.glob("gen-*"):
            if generation.name in linked:
                (generation / _TOKEN).unlink(missing_ok=True)
            elif joined or not (generation / _TOKEN).exists():
                shutil.rmtree(generation, ignore_errors=True)

    def _read(self, link: str) -> Identity | None:
        target = self._target(link)
        if target is None:
            return None
        try:
            return _load(self.folder / target)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise IdentityError(
                f"the identity in {self.folder / target} cannot be read ({error}): restore it, or join again with a "
                "new token (`rackwright agent join --force URL TOKEN`)"
            ) from error

    def _target(self, link: str) -> str | None:
        try:
            return (self.folder / link).readlink().name
        except FileNotFoundError:
            return None
        except OSError as error:
            raise IdentityError(f"{self.folder / link} cannot be read: {error.strerror}") from error

    def _unlink(self, link: str) -> None:
        (self.folder / link).unlink(missing_ok=True)
        sync_folder(self.folder)


def certificate_request(key: "EllipticCurvePrivateKey", host_name: str) -> str:
    """A CSR as PEM. The control plane decides every name in the certificate; this one is only for its log."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import NameOID

    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, (host_name or "rackwright-agent")[:64])])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


def _load(folder: Path) -> Identity:
    from cryptography import x509

    facts = msgspec.json.decode((folder / _FACTS).read_bytes(), type=Facts)
    certificate = x509.load_pem_x509_certificate((folder / _CERTIFICATE).read_bytes())
    validity = Validity(
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
    )
    return Identity(folder, facts, validity, f"{certificate.serial_number:x}")


def _read_key(folder: Path) -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_pem_private_key((folder / _KEY).read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{folder / _KEY} is not an elliptic-curve key")
    return key


def _check_belongs(folder: Path, certificate: str) -> None:
    from cryptography import x509

    try:
        issued = x509.load_pem_x509_certificate(certificate.encode())
        key = _read_key(folder)
    except (ValueError, OSError) as error:
        raise IdentityError(f"the control plane issued a certificate that cannot be read: {error}") from error
    if issued.public_key() != key.public_key():
        raise IdentityError("the control plane issued a certificate for another key; it is not used")


def _day(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
