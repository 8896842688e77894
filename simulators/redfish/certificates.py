"""Certificates of the manager: a signing request made here, and the replacement of what the service serves with."""

from collections.abc import Callable

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
HPE_GENERATE = "HpeHttpsCert.GenerateCSR"
HPE_IMPORT = "HpeHttpsCert.ImportCertificate"
Serve = Callable[[bytes, bytes], None]
_SUBJECT = {
    "CommonName": NameOID.COMMON_NAME,
    "Organization": NameOID.ORGANIZATION_NAME,
    "OrganizationalUnit": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "City": NameOID.LOCALITY_NAME,
    "State": NameOID.STATE_OR_PROVINCE_NAME,
    "Country": NameOID.COUNTRY_NAME,
}


class Certificates:
    """The certificate service. The key of a signing request stays here, as on a real BMC.

    `serve(certificate, key)` is set by whoever serves by TLS: both in PEM.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.request_key: ec.EllipticCurvePrivateKey | None = None
        self.serve: Serve | None = None
        self._keys: list[bytes] = []
        self._waiting: tuple[bytes, bytes] | None = None
        machine.at_manager_restart.append(self._serve_waiting)

    def register(self, routes: Routes) -> None:
        routes.actions[GENERATE] = self.generate_request
        routes.actions[REPLACE] = self.replace
        routes.actions[HPE_GENERATE] = self.generate_hpe_request
        routes.actions[HPE_IMPORT] = self.import_hpe

    def show_own(self, pem: bytes, key: bytes) -> None:
        """Shows the certificate that the service itself serves with, where the tree leaves it open.

        A recorded certificate stays: its text belongs to the recording.
        """
        self._keys.append(key)
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
        pem = self._request({name: call.body.get(name) for name in _SUBJECT})
        collection = linked_path(call.body, "CertificateCollection")
        return Answer.of(200, {"CSRString": pem, "CertificateCollection": {"@odata.id": collection}})

    def generate_hpe_request(self, call: Call) -> None:
        """HPE's own action: the request appears in the resource."""
        words = {"Organization": "OrgName", "OrganizationalUnit": "OrgUnit"}
        pem = self._request({name: call.body.get(words.get(name, name)) for name in _SUBJECT})
        self.machine.store.edit(call.path, lambda document: document.update(CertificateSigningRequest=pem))

    def import_hpe(self, call: Call) -> None:
        """HPE's own action. The resource tells of the certificate in a form of its own."""
        pem = str(call.body.get("Certificate") or "")
        certificate = readable_certificate(pem)
        self._take(pem, certificate)
        shown = {
            "Subject": certificate.subject.rfc4514_string(),
            "Issuer": certificate.issuer.rfc4514_string(),
            "SerialNumber": certificate.serial_number.to_bytes(20, "big").hex(":"),
        }
        self.machine.store.edit(call.path, lambda document: document.update(X509CertificateInformation=shown))

    def replace(self, call: Call) -> None:
        """ReplaceCertificate: the resource shows the new certificate. Errors: 400 where it is none."""
        for name in ("CertificateString", "CertificateType", "CertificateUri"):
            if not call.body.get(name):
                raise action_parameter_missing(REPLACE, name)
        target = linked_path(call.body, "CertificateUri")
        if target is None or self.machine.store.find(target) is None:
            raise RedfishError(400, property_missing("CertificateUri"))
        pem = str(call.body["CertificateString"])
        values = certificate_properties(pem)
        if "/networkprotocol/https/" in target.lower():
            self._take(pem, readable_certificate(pem))
        self.machine.store.edit(target, lambda document: document.update(values))

    def _request(self, subject: dict[str, object]) -> str:
        try:
            name = x509.Name(
                [x509.NameAttribute(_SUBJECT[part], str(value)) for part, value in subject.items() if value]
            )
        except ValueError as fault:
            raise RedfishError(400, property_value_error("the subject", str(fault))) from fault
        self.request_key = ec.generate_private_key(ec.SECP256R1())
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self.request_key, hashes.SHA256())
        return request.public_bytes(serialization.Encoding.PEM).decode()

    def _take(self, pem: str, certificate: x509.Certificate) -> None:
        """Serves with it, at once or after a restart. RedfishError 400 where its key was never made here."""
        if self.serve is None:
            return
        keys = list(self._keys)
        if self.request_key is not None:
            keys.append(
                self.request_key.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
            )
        wanted = certificate.public_key()
        found = next(
            (key for key in keys if serialization.load_pem_private_key(key, None).public_key() == wanted), None
        )
        if found is None:
            raise RedfishError(400, property_value_error("CertificateString", "its key is not one of this service"))
        self._keys = [*self._keys, found]
        self._waiting = (pem.encode(), found)
        if not self.machine.options.certificate_needs_restart:
            self._serve_waiting()

    def _serve_waiting(self) -> None:
        if self._waiting is not None and self.serve is not None:
            self.serve(*self._waiting)
        self._waiting = None


def certificate_properties(pem: str) -> JsonObject:
    """What a Certificate resource tells of a PEM certificate. RedfishError 400 where it cannot be read."""
    certificate = readable_certificate(pem)
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


def readable_certificate(pem: str) -> x509.Certificate:
    """The first certificate of a PEM text. RedfishError 400 where there is none."""
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except ValueError as fault:
        raise RedfishError(400, property_value_error("CertificateString", "it is not a PEM certificate")) from fault


def named_parts(name: x509.Name) -> JsonObject:
    parts: JsonObject = {}
    for key, oid in _SUBJECT.items():
        if found := name.get_attributes_for_oid(oid):
            parts[key] = str(found[0].value)
    return parts
