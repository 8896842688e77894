"""X.509 certificates and signing requests as the config concern shows and checks them: plain functions.

Source: RFC 5280 (certificates), RFC 2986 (signing requests), RFC 7468 (their text form).
"""

import hashlib
import re

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from protocol.errors import ErrorCode, OperationError
from protocol.shapes.config import Certificate

__all__ = [
    "described",
    "fingerprint_of",
    "parse_chain",
    "parse_csr",
    "pem_of",
    "public_key_digest",
    "readable",
    "readable_der",
]

_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_LARGEST = 64 * 1024


def parse_chain(text: str) -> list[x509.Certificate]:
    """The certificates of a PEM text, the BMC's own first. Raises OperationError INVALID_ARGUMENT.

    A private key in it is refused, and not repeated: keys stay where they were made.
    """
    if "PRIVATE KEY" in text:
        raise _invalid("certificate: holds a private key, which must not travel: give the certificate alone")
    blocks = _BLOCK.findall(text) if len(text) <= _LARGEST else []
    if not blocks:
        raise _invalid("certificate: is no PEM text: it begins with -----BEGIN CERTIFICATE-----")
    chain = []
    for number, block in enumerate(blocks, start=1):
        try:
            chain.append(x509.load_pem_x509_certificate(block.encode()))
        except ValueError as error:
            raise _invalid(f"certificate: number {number} of {len(blocks)} cannot be read ({error})") from None
    if len({fingerprint_of(certificate) for certificate in chain}) < len(chain):
        raise _invalid("certificate: holds a certificate twice")
    return chain


def readable(text: object) -> x509.Certificate | None:
    """The first certificate of a text that a BMC shows (Cray puts OpenSSL's description before it); None where there
    is none that can be read."""
    found = _BLOCK.search(text) if isinstance(text, str) and len(text) <= _LARGEST else None
    if found is None:
        return None
    try:
        return x509.load_pem_x509_certificate(found.group().encode())
    except ValueError:
        return None


def readable_der(der: bytes) -> x509.Certificate | None:
    """A certificate as a handshake shows it; None where it keeps too little to the standard to be read."""
    try:
        return x509.load_der_x509_certificate(der)
    except ValueError:
        return None


def parse_csr(text: str) -> x509.CertificateSigningRequest:
    """Raises ValueError for one that cannot be read, or whose signature does not fit its key."""
    try:
        request = x509.load_pem_x509_csr(text.strip().encode())
        is_whole = request.is_signature_valid
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not is_whole:
        raise ValueError("its signature does not fit its key")
    return request


def fingerprint_of(certificate: x509.Certificate) -> str:
    """SHA-256 over the certificate, in lower-case hexadecimal digits."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def public_key_digest(key: PublicKeyTypes) -> str:
    """SHA-256 over the public key: the same for a signing request and the certificate made of it."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def pem_of(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def described(identifier: str, certificate: x509.Certificate) -> Certificate:
    return Certificate(
        id=identifier,
        subject=certificate.subject.rfc4514_string() or None,
        issuer=certificate.issuer.rfc4514_string() or None,
        valid_from=f"{certificate.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}",
        valid_until=f"{certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}",
        serial_number=f"{certificate.serial_number:x}",
        fingerprint=fingerprint_of(certificate),
        pem=pem_of(certificate),
    )


def _invalid(message: str) -> OperationError:
    return OperationError(ErrorCode.INVALID_ARGUMENT, message)
