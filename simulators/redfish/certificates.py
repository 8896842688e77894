"""Certificates of the manager: a signing request made here, and the replacement of what a resource shows."""

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from simulators.redfish.documents import Answer, JsonObject, linked_path
from simulators.redfish.errors import (
    RedfishError,
    action_parameter_missing,
    property_missing,
    property_value_error,
)
from simulators.redfish.machine import Machine
from simulators.redfish.routes import Call, Routes

GENERATE = "CertificateService.GenerateCSR"
REPLACE = "CertificateService.ReplaceCertificate"
_SUBJECT = {
    "CommonName": NameOID.COMMON_NAME,
    "Organization": NameOID.ORGANIZATION_NAME,
    "OrganizationalUnit": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "City": NameOID.LOCALITY_NAME,
    "State": NameOID.STATE_OR_PROVINCE_NAME,
    "Country": NameOID.COUNTRY_NAME,
}


class Certificates:
    """The certificate service. The key of a signing request stays here, as on a real BMC."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.request_key: ec.EllipticCurvePrivateKey | None = None

    def register(self, routes: Routes) -> None:
        routes.actions[GENERATE] = self.generate_request
        routes.actions[REPLACE] = self.replace

    def show_own(self, pem: bytes) -> None:
        """Shows the certificate that the service itself serves with, where the tree leaves it open.

        A recorded certificate stays: its text belongs to the recording.
        """
        values = certificate_properties(pem.decode())
        for resource in list(self.machine.store.of_schema("Certificate")):
            document = resource.document or {}
            if "CertificateString" in document and document["CertificateString"] is None:
                self.machine.store.edit(resource.path, lambda body: body.update(values))

    def generate_request(self, call: Call) -> Answer:
        """GenerateCSR: 200 with the request in PEM. Errors: 400 for a missing parameter."""
        for name in ("CommonName", "CertificateCollection"):
            if not call.body.get(name):
                raise action_parameter_missing(GENERATE, name)
        try:
            subject = x509.Name(
                [
                    x509.NameAttribute(oid, str(call.body[name]))
                    for name, oid in _SUBJECT.items()
                    if call.body.get(name)
                ]
            )
        except ValueError as fault:
            raise RedfishError(400, property_value_error("the subject", str(fault))) from fault
        self.request_key = ec.generate_private_key(ec.SECP256R1())
        request = (
            x509.CertificateSigningRequestBuilder().subject_name(subject).sign(self.request_key, hashes.SHA256())
        )
        collection = linked_path(call.body, "CertificateCollection")
        pem = request.public_bytes(serialization.Encoding.PEM).decode()
        return Answer.of(200, {"CSRString": pem, "CertificateCollection": {"@odata.id": collection}})

    def replace(self, call: Call) -> None:
        """ReplaceCertificate: the resource shows the new certificate. Errors: 400 where it is none."""
        for name in ("CertificateString", "CertificateType", "CertificateUri"):
            if not call.body.get(name):
                raise action_parameter_missing(REPLACE, name)
        target = linked_path(call.body, "CertificateUri")
        if target is None or self.machine.store.find(target) is None:
            raise RedfishError(400, property_missing("CertificateUri"))
        values = certificate_properties(str(call.body["CertificateString"]))
        self.machine.store.edit(target, lambda document: document.update(values))


def certificate_properties(pem: str) -> JsonObject:
    """What a Certificate resource tells of a PEM certificate. RedfishError 400 where it cannot be read."""
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
    except ValueError as fault:
        raise RedfishError(400, property_value_error("CertificateString", "it is not a PEM certificate")) from fault
    return {
        "CertificateString": pem,
        "CertificateType": "PEM",
        "Subject": named_parts(certificate.subject),
        "Issuer": named_parts(certificate.issuer),
        "ValidNotBefore": certificate.not_valid_before_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "ValidNotAfter": certificate.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "SerialNumber": certificate.serial_number.to_bytes(20, "big").hex(":"),
        "Fingerprint": certificate.fingerprint(hashes.SHA256()).hex(":"),
        "FingerprintHashAlgorithm": "TPM_ALG_SHA256",
    }


def named_parts(name: x509.Name) -> JsonObject:
    parts: JsonObject = {}
    for key, oid in _SUBJECT.items():
        if found := name.get_attributes_for_oid(oid):
            parts[key] = str(found[0].value)
    return parts
