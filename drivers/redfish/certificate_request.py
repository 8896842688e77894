"""What is sent for a signing request and for a certificate, checked against what the BMC offers. Pure.

Source: DSP2046, CertificateService.GenerateCSR and ReplaceCertificate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from drivers.redfish.document import Document, allowed_values, dig, link, text
from drivers.redfish.manners import OemCertificate
from protocol.errors import Issue
from protocol.shapes.config import Certificate, GenerateCsr, KeyAlgorithm

__all__ = ["Offer", "certificate_of", "csr_body", "name_text", "oem_csr_body", "offer_of", "same_serial"]

_PARAMETERS = {
    "CommonName": "commonName",
    "AlternativeNames": "alternativeNames",
    "Organization": "organization",
    "OrganizationalUnit": "organizationalUnit",
    "City": "city",
    "State": "state",
    "Country": "country",
    "Email": "email",
    "KeyPairAlgorithm": "keyAlgorithm",
    "KeyBitLength": "keyBits",
    "KeyCurveId": "keyCurve",
}
"""Redfish's parameters, and what they are called here."""
_ALGORITHMS = {
    KeyAlgorithm.RSA: ("TPM_ALG_RSA",),
    # Lenovo XCC and OpenBMC offer elliptic curves under the name of the key agreement.
    KeyAlgorithm.EC: ("TPM_ALG_ECDSA", "TPM_ALG_ECDH", "EC"),
}
_CURVES = {"p256": "TPM_ECC_NIST_P256", "p384": "TPM_ECC_NIST_P384", "p521": "TPM_ECC_NIST_P521"}
_NAME_PARTS = (
    ("CommonName", "CN"),
    ("OrganizationalUnit", "OU"),
    ("Organization", "O"),
    ("City", "L"),
    ("State", "ST"),
    ("Country", "C"),
)


@dataclass(frozen=True, slots=True)
class Offer:
    """What an action takes: the parameters that it needs, and the values of those that have a list."""

    required: frozenset[str] = frozenset()
    choices: Mapping[str, list[str]] = field(default_factory=dict)


def offer_of(action: Document, info: Document | None) -> Offer:
    """From the action's annotations, and its ActionInfo where it has one."""
    choices = {
        key.partition("@")[0]: allowed_values(action, key.partition("@")[0])
        for key in action
        if key.endswith("@Redfish.AllowableValues")
    }
    required = set()
    listed = dig(info, "Parameters")
    for parameter in listed if isinstance(listed, list) else []:
        name = text(parameter, "Name")
        if name is None:
            continue
        if parameter.get("Required") is True:
            required.add(name)
        values = parameter.get("AllowableValues")
        if isinstance(values, list) and values:
            choices[name] = [value for value in values if isinstance(value, str)]
    return Offer(frozenset(required), choices)


def csr_body(wanted: GenerateCsr, collection: str, offer: Offer) -> tuple[Document, list[Issue]]:
    """The body of GenerateCSR, and everything that speaks against sending it."""
    body: Document = {"CertificateCollection": {"@odata.id": collection}}
    values: Document = {
        "CommonName": wanted.common_name,
        "AlternativeNames": wanted.alternative_names or None,
        "Organization": wanted.organization,
        "OrganizationalUnit": wanted.organizational_unit,
        "City": wanted.city,
        "State": wanted.state,
        "Country": wanted.country,
        "Email": wanted.email,
        "KeyBitLength": wanted.key_bits,
    }
    body |= {name: value for name, value in values.items() if value is not None}
    issues = _subject_faults(wanted)
    algorithms = offer.choices.get("KeyPairAlgorithm", [])
    if wanted.key_algorithm is not None:
        names = _ALGORITHMS[wanted.key_algorithm]
        found = next((name for name in names if name in algorithms), None if algorithms else names[0])
        if found is None:
            issues.append(
                Issue("keyAlgorithm", f"this BMC does not offer {wanted.key_algorithm}", _listed(algorithms))
            )
        else:
            body["KeyPairAlgorithm"] = found
    elif "KeyPairAlgorithm" in offer.required and algorithms:
        body["KeyPairAlgorithm"] = algorithms[0]
    if wanted.key_curve is not None:
        curve = _CURVES.get(wanted.key_curve.lower())
        curves = offer.choices.get("KeyCurveId", [])
        if curve is None:
            issues.append(Issue("keyCurve", f"there is no curve {wanted.key_curve!r} here", _listed(_CURVES)))
        elif curves and curve not in curves:
            issues.append(Issue("keyCurve", f"this BMC does not offer {wanted.key_curve}", _listed(curves)))
        else:
            body["KeyCurveId"] = curve
    issues += [
        Issue(_PARAMETERS.get(name, name), "is required by this BMC") for name in sorted(offer.required - body.keys())
    ]
    return body, issues


def oem_csr_body(wanted: GenerateCsr, place: OemCertificate) -> tuple[Document, list[Issue]]:
    """The same for a vendor's own action, which knows the subject and nothing of the key."""
    body, issues = csr_body(wanted, "", Offer())
    known = {"CommonName", "City", "State", "Country", *place.words}
    for name in body.keys() - known - {"CertificateCollection"}:
        issues.append(Issue(_PARAMETERS[name], "is nothing that this BMC's own action takes: leave it out"))
    return {place.words.get(name, name): value for name, value in body.items() if name in known}, issues


def certificate_of(document: Document, shown: Document | None = None) -> Certificate:
    """What a resource tells of its certificate without the certificate itself."""
    told = document if shown is None else shown
    is_sha256 = text(told, "FingerprintHashAlgorithm") == "TPM_ALG_SHA256"
    fingerprint = (text(told, "Fingerprint") or "").replace(":", "").lower()
    return Certificate(
        id=text(document, "Id") or (link(document) or "").rstrip("/").rpartition("/")[2],
        subject=name_text(dig(told, "Subject")),
        issuer=name_text(dig(told, "Issuer")),
        valid_from=text(told, "ValidNotBefore"),
        valid_until=text(told, "ValidNotAfter"),
        serial_number=text(told, "SerialNumber"),
        fingerprint=fingerprint if is_sha256 and len(fingerprint) == 64 else None,
    )


def name_text(name: object) -> str | None:
    """A subject or issuer as one text: CN=bmc7, O=Example."""
    if isinstance(name, dict):
        parts = [f"{short}={value}" for key, short in _NAME_PARTS if (value := text(name, key)) is not None]
        return ", ".join(parts) or None
    return name.strip() or None if isinstance(name, str) else None


def same_serial(one: str | None, other: int) -> bool:
    """Whether a serial number as a BMC writes it (with colons or without) is this one."""
    try:
        return one is not None and int(one.replace(":", "").replace(" ", ""), 16) == other
    except ValueError:
        return False


def _subject_faults(wanted: GenerateCsr) -> list[Issue]:
    issues = []
    if not wanted.common_name.strip():
        issues.append(Issue("commonName", "must not be empty"))
    if wanted.country is not None and not (len(wanted.country) == 2 and wanted.country.isalpha()):
        issues.append(Issue("country", f"{wanted.country!r} is no country", "two letters, such as DE"))
    if wanted.key_bits is not None and wanted.key_algorithm is KeyAlgorithm.EC:
        issues.append(Issue("keyBits", "goes with RSA only", "give keyCurve"))
    if wanted.key_curve is not None and wanted.key_algorithm is KeyAlgorithm.RSA:
        issues.append(Issue("keyCurve", "goes with an EC key only", "give keyBits"))
    return issues


def _listed(names: object) -> str:
    return f"it has {', '.join(map(str, names))}" if isinstance(names, list | dict) and names else ""
