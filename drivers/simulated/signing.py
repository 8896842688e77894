"""Signing requests of a simulated machine; apart, since only they need cryptography."""

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from drivers.certificates import public_key_digest
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.config import GenerateCsrResult

__all__ = ["signing_request"]


def signing_request(common_name: str) -> GenerateCsrResult:
    """A request by a fresh key. Raises OperationError INVALID_ARGUMENT for a name that no certificate takes."""
    try:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    except ValueError as error:
        raise OperationError(ErrorCode.INVALID_ARGUMENT, f"commonName: {error}") from error
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return GenerateCsrResult(
        csr=request.public_bytes(serialization.Encoding.PEM).decode(), public_key=public_key_digest(key.public_key())
    )
