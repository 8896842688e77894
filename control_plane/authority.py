"""The control plane's own certificate authority: it signs the agents' certificates and its own server's.

Files in one folder, all 0600: `ca.key`, `ca.pem` (made once, ten years), `server.key`, `server.pem` (made anew when
near its end or when the public names change). Workers on one PostgreSQL share the folder's content. An agent's
identity is the URI `spiffe://rackwright/agent/<id>` in its certificate, which is good for client authentication only.
"""

import datetime
import hashlib
import hmac
import ipaddress
import logging
import os
import ssl
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protocol.errors import RequestCode, RequestError
from protocol.ids import is_id
from protocol.secret import Secret

__all__ = ["AGENT_URI", "Authority", "IssuedCertificate", "agent_of", "requested_key_sha256"]

_log = logging.getLogger("control_plane.authority")
AGENT_URI = "spiffe://rackwright/agent/"
_CA_LIFE = datetime.timedelta(days=3650)
_SERVER_LIFE = datetime.timedelta(days=90)
_AGENT_LIFE = datetime.timedelta(days=30)
_BACKDATE = datetime.timedelta(hours=1)
"""Certificates are valid from an hour ago on, since the clocks of sites differ."""


class IssuedCertificate(NamedTuple):
    pem: str
    serial: str
    not_after_ms: int


class Authority:
    """The CA of one control plane. `open` makes what is missing; only the server's pair is ever overwritten."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, folder: Path) -> None:
        self._key = key
        self._certificate = certificate
        self._folder = folder

    @classmethod
    def open(cls, folder: Path) -> "Authority":
        """Loads the CA, or makes one where the folder has none. Raises RequestError when only half of it is there."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key_file, certificate_file = folder / "ca.key", folder / "ca.pem"
        if not key_file.exists() and not certificate_file.exists():
            key, certificate = _make_ca()
            # The certificate last: a crash in between leaves a key that no agent trusts yet, and a clear error.
            _write(key_file, _key_pem(key))
            _write(certificate_file, certificate.public_bytes(serialization.Encoding.PEM))
        for file, other in ((key_file, certificate_file), (certificate_file, key_file)):
            if not file.exists():
                raise RequestError(
                    RequestCode.INVALID_STATE,
                    f"{file} is missing while {other.name} is there: restore it from a backup, or, if no agent has "
                    f"joined yet, remove {other} and start again",
                )
        loaded = serialization.load_pem_private_key(key_file.read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise RequestError(RequestCode.INVALID_STATE, f"{key_file} is not an elliptic-curve key")
        return cls(loaded, x509.load_pem_x509_certificate(certificate_file.read_bytes()), folder)

    @property
    def pem(self) -> str:
        """The CA's certificate, for whoever is to trust it."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def sha256(self) -> str:
        """SHA-256 of the CA certificate's DER: what a join token carries."""
        return hashlib.sha256(self._certificate.public_bytes(serialization.Encoding.DER)).hexdigest()

    @property
    def image_key(self) -> Secret:
        """Hexadecimal. What admits to images is made of it; it is derived, so nothing more has to be kept, and every
        worker that has the CA has it."""
        number = self._key.private_numbers().private_value
        secret = number.to_bytes((self._key.key_size + 7) // 8, "big")
        return Secret(hmac.digest(secret, b"rackwright: admission to images", hashlib.sha256).hex())

    def issue_agent(self, csr_pem: str, agent_id: str) -> IssuedCertificate:
        """Signs an agent's key. Only the key is taken from the request; the name is ours to give.

        Raises RequestError INVALID_INPUT when the request is damaged or not signed by its own key.
        """
        certificate = self._sign(
            _requested_key(csr_pem),
            agent_id,
            _AGENT_LIFE,
            ExtendedKeyUsageOID.CLIENT_AUTH,
            [x509.UniformResourceIdentifier(AGENT_URI + agent_id)],
        )
        return IssuedCertificate(
            certificate.public_bytes(serialization.Encoding.PEM).decode(),
            f"{certificate.serial_number:x}",
            int(certificate.not_valid_after_utc.timestamp() * 1000),
        )

    def server_context(self, names: Sequence[str]) -> ssl.SSLContext:
        """TLS for the agents' port, for these public names.

        Client certificates of this CA are asked for, not forced: an agent that joins has none yet. TLS 1.3 only, as
        every agent speaks it; it knows no renegotiation.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=self.pem)
        context.verify_mode = ssl.CERT_OPTIONAL
        # A session ticket would outlive a revocation check, and costs memory per connection.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        self.renew_server(context, names)
        return context

    def renew_server(self, context: ssl.SSLContext, names: Sequence[str]) -> None:
        """Loads the server's pair into the context, made anew when near its end or not for these names.

        Raises OSError when a pair that is needed cannot be written; the one in use stays as it is then.
        """
        key_file, certificate_file = self._folder / "server.key", self._folder / "server.pem"
        if not _serves(certificate_file, names, _SERVER_LIFE / 3):
            try:
                self._make_server_pair(key_file, certificate_file, names)
            except OSError as error:
                # A full disk must not take away a certificate that is good for weeks.
                if not _serves(certificate_file, names, datetime.timedelta(0)):
                    raise
                _log.error("the server's certificate could not be renewed, the old one stays in use: %s", error)
        context.load_cert_chain(certificate_file, key_file)

    def _make_server_pair(self, key_file: Path, certificate_file: Path, names: Sequence[str]) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(
            key.public_key(), names[0], _SERVER_LIFE, ExtendedKeyUsageOID.SERVER_AUTH, _general_names(names)
        )
        # Both are on the disk before either takes its place.
        new_key, new_certificate = key_file.with_suffix(".key.new"), certificate_file.with_suffix(".pem.new")
        _write(new_key, _key_pem(key))
        _write(new_certificate, certificate.public_bytes(serialization.Encoding.PEM))
        # The old certificate must not stand beside a new key: without it, the pair is made anew next time.
        certificate_file.unlink(missing_ok=True)
        new_key.replace(key_file)
        new_certificate.replace(certificate_file)

    def _sign(
        self,
        public_key: ec.EllipticCurvePublicKey,
        name: str,
        life: datetime.timedelta,
        usage: x509.ObjectIdentifier,
        names: Iterable[x509.GeneralName],
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATE)
            .not_valid_after(min(now + life, self._certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def requested_key_sha256(csr_pem: str) -> str:
    """SHA-256 of the public key (DER of its SubjectPublicKeyInfo) that is asked for, by whoever has the private one.

    Raises RequestError INVALID_INPUT as `Authority.issue_agent` does.
    """
    key = _requested_key(csr_pem)
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).hexdigest()


def _requested_key(csr_pem: str) -> ec.EllipticCurvePublicKey:
    try:
        request = x509.load_pem_x509_csr(csr_pem.encode())
        public_key = request.public_key()
        signed = isinstance(public_key, ec.EllipticCurvePublicKey) and request.is_signature_valid
    except (ValueError, InvalidSignature) as error:
        raise RequestError(RequestCode.INVALID_INPUT, f"the certificate request cannot be read: {error}") from None
    if not signed or not isinstance(public_key, ec.EllipticCurvePublicKey):
        raise RequestError(
            RequestCode.INVALID_INPUT, "the certificate request must hold an elliptic-curve key and be signed by it"
        )
    return public_key


def agent_of(certificate: object) -> str | None:
    """The agent id in a verified peer certificate (as `ssl.getpeercert()` gives it), or None."""
    if not isinstance(certificate, dict):
        return None
    for kind, value in certificate.get("subjectAltName", ()):
        if kind == "URI" and value.startswith(AGENT_URI) and is_id(value.removeprefix(AGENT_URI), "agent"):
            return str(value.removeprefix(AGENT_URI))
    return None


def _make_ca() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Rackwright control plane CA")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + _CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_names(names: Sequence[str]) -> list[x509.GeneralName]:
    general: list[x509.GeneralName] = []
    for name in names:
        try:
            general.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            general.append(x509.DNSName(name))
    return general


def _serves(certificate_file: Path, names: Sequence[str], least: datetime.timedelta) -> bool:
    """Whether the server certificate is for these names and has more than `least` of its life left."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        present = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return left > least and set(present) == set(_general_names(names))


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(file: Path, content: bytes) -> None:
    """Whole or not at all, readable by us alone."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
