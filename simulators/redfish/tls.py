"""The certificate that a simulated BMC shows: self-signed and made at start, or given as files."""

import datetime
import hashlib
import ipaddress
import os
import ssl
import tempfile
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class TlsMaterial(msgspec.Struct, frozen=True):
    """A certificate with its key, both in PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"TlsMaterial(fingerprint={self.fingerprint!r})"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate in DER, in lower-case hex without separators: what a client pins."""
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(self.certificate.decode())).hexdigest()

    def server_context(self) -> ssl.SSLContext:
        """A context for the server's side; TLS 1.2 or newer (DSP0266, TLS)."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load_into(context)
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Lets a context serve with this certificate from here on."""
        # The ssl module loads keys from files only; this one is readable by the owner, and gone at once.
        descriptor, name = tempfile.mkstemp(suffix=".pem")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(self.key + b"\n" + self.certificate)
            context.load_cert_chain(name)
        finally:
            Path(name).unlink()

    def client_context(self) -> ssl.SSLContext:
        """A context that trusts this certificate and no other."""
        context = ssl.create_default_context(cadata=self.certificate.decode())
        context.check_hostname = False
        return context

    @classmethod
    def from_files(cls, certificate: Path, key: Path) -> "TlsMaterial":
        """Reads PEM files. OSError where one cannot be read, ssl.SSLError later where they do not fit."""
        return cls(certificate.read_bytes(), key.read_bytes())

    @classmethod
    def self_signed(cls, hosts: tuple[str, ...] = ("127.0.0.1", "localhost")) -> "TlsMaterial":
        """A fresh self-signed certificate, valid from yesterday for ten years, as a new BMC has one."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, "simulated BMC"),
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Rackwright simulators"),
            ]
        )
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=3650))
            .add_extension(x509.SubjectAlternativeName([alternative_name(host) for host in hosts]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


def alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
