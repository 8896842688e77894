"""Certificates of the BMC's web server: from the signing request to the handshake that shows the signed one."""

import datetime
import hashlib
import json
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from drivers.certificates import fingerprint_of, parse_chain, parse_csr, public_key_digest, readable
from drivers.pins import follow_pin, pinned_now
from drivers.redfish import tls
from drivers.redfish.certificate_request import Offer, certificate_of, csr_body, name_text, offer_of, same_serial
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.config import GenerateCsr, KeyAlgorithm
from simulators.redfish import Drop, FaultRule, ServiceOptions, TlsMaterial
from tests.drivers.redfish.harness import Bench, bench, without_waiting
from tests.drivers.redfish.test_config import Recorded
from tests.drivers.redfish.test_mockups import DELL, HPE, LENOVO, SUPERMICRO, TREES

CSR, REPLACE = "*/CertificateService.GenerateCSR", "*/CertificateService.ReplaceCertificate"
HTTPS = "/redfish/v1/Managers/1/NetworkProtocol/HTTPS/Certificates"
NOW = datetime.datetime.now(datetime.UTC)


class Authority:
    """Who signs: a key that is nowhere near the BMC."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test authority")])
        self.certificate = self._signed(self.name, self.key.public_key())

    def sign(self, csr: str) -> str:
        request = x509.load_pem_x509_csr(csr.encode())
        return pem(self._signed(request.subject, request.public_key()))

    def _signed(self, subject: x509.Name, key: Any) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - datetime.timedelta(days=1))
            .not_valid_after(NOW + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=subject == self.name, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )


def pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def digest(text: str) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).hexdigest()


def sent(bmc: Bench, path: str) -> list[Any]:
    return [entry.body for entry in bmc.bmc.journal.entries("POST", path)]


async def signed_for(bmc: Bench) -> str:
    """A certificate for the key that this BMC just made."""
    made = await bmc("config.generateCsr", {"commonName": "bmc7.example"})
    return Authority().sign(made["csr"])


# Reading


def https_certificates(recorded: Recorded) -> list[dict[str, Any]]:
    """What the tree's own files list."""
    manager = recorded.manager()
    network = recorded.linked(manager, "NetworkProtocol")
    listed = recorded.linked(network, "HTTPS", "Certificates").get("Members", [])
    if not listed:
        service = recorded.linked(recorded.at("/redfish/v1"), "CertificateService")
        every = recorded.linked(service, "CertificateLocations").get("Links", {}).get("Certificates", [])
        listed = [link for link in every if "/NetworkProtocol/HTTPS/" in link["@odata.id"]]
    return [recorded.at(link["@odata.id"]) for link in listed]


@pytest.mark.parametrize("tree", TREES)
def test_every_trees_certificates_are_read_as_they_were_recorded(tree: str, shared: Path) -> None:
    expected = https_certificates(Recorded(shared / "mockups" / tree))

    @without_waiting
    async def on_this_tree() -> None:
        async with bench(shared / "mockups" / tree) as bmc:
            if not expected:
                assert (await bmc.fails("config.getCertificates")).code is ErrorCode.UNSUPPORTED
                return
            reading = await bmc("config.getCertificates")
        assert reading["served"] is None
        assert len(reading["certificates"]) == len(expected)
        for found, recorded in zip(reading["certificates"], expected, strict=True):
            assert found["validUntil"] == recorded.get("ValidNotAfter")
            name = recorded.get("Subject", {}).get("CommonName")
            assert (found["subject"] or "").partition(",")[0] == (f"CN={name}" if name else "")
            sha256 = recorded.get("FingerprintHashAlgorithm") == "TPM_ALG_SHA256"
            plain = recorded.get("Fingerprint", "").replace(":", "").lower()
            assert found["fingerprint"] == (plain if sha256 else None)
            assert found["serialNumber"] == recorded.get("SerialNumber")

    on_this_tree()


# Root, login, systems and system, manager, protocols, and the certificates: all in one where the service expands.
@pytest.mark.parametrize("tree", [DELL, LENOVO, SUPERMICRO])
def test_a_reading_costs_no_more_than_the_least(tree: str, shared: Path) -> None:
    @without_waiting
    async def on_this_tree() -> None:
        async with bench(shared / "mockups" / tree) as bmc:
            await bmc("config.getCertificates")
            assert len(bmc.requests()) <= 8

    on_this_tree()


@without_waiting
async def test_what_is_shown_in_the_handshake_is_told_beside_what_is_listed() -> None:
    async with bench(tls=True, verify=False) as bmc:
        reading = await bmc("config.getCertificates")
        assert bmc.bmc.tls is not None
        assert reading["served"] == bmc.bmc.tls.fingerprint
        assert [one["fingerprint"] for one in reading["certificates"]] == [reading["served"]]
        assert reading["certificates"][0]["pem"].startswith("-----BEGIN CERTIFICATE-----")


def test_a_bmc_that_tells_only_the_serial_number_is_completed_by_the_handshake(shared: Path) -> None:
    """Dell lists neither the certificate nor its fingerprint."""

    @without_waiting
    async def on_dell() -> None:
        async with bench(shared / "mockups" / DELL, tls=True, verify=False) as bmc:
            assert bmc.bmc.tls is not None
            shown = x509.load_pem_x509_certificate(bmc.bmc.tls.certificate)
            (resource,) = bmc.bmc.service.store.members(
                "/redfish/v1/Managers/iDRAC.Embedded.1/NetworkProtocol/HTTPS/Certificates"
            )
            (one,) = (await bmc("config.getCertificates"))["certificates"]
            assert one["fingerprint"] is None
            bmc.bmc.state.patch(resource, {"SerialNumber": f"{shown.serial_number:X}"})
            (one,) = (await bmc("config.getCertificates"))["certificates"]
            assert one["fingerprint"] == bmc.bmc.tls.fingerprint

    on_dell()


# Requesting


@without_waiting
async def test_a_signing_request_is_made_by_the_bmc_and_checked() -> None:
    async with bench() as bmc:
        made = await bmc(
            "config.generateCsr", {"commonName": "bmc7.example", "organization": "Example", "country": "DE"}
        )
        request = parse_csr(made["csr"])
        assert request.subject.rfc4514_string() == "C=DE,O=Example,CN=bmc7.example"
        assert made["publicKey"] == public_key_digest(request.public_key())
        (body,) = sent(bmc, CSR)
        assert body["CertificateCollection"] == {"@odata.id": HTTPS}
        assert "PRIVATE" not in json.dumps(made)


@without_waiting
async def test_a_request_whose_answer_is_lost_is_not_made_again() -> None:
    async with bench(faults=[FaultRule(method="POST", path=CSR, drop=Drop.AFTER)]) as bmc:
        error = await bmc.fails("config.generateCsr", {"commonName": "bmc7.example"})
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert len(sent(bmc, CSR)) == 1


@without_waiting
async def test_a_request_that_is_made_by_a_task_is_taken_from_its_monitor() -> None:
    task, monitor = "/redfish/v1/TaskService/Tasks/77", "/redfish/v1/TaskService/TaskMonitors/77"
    state = {"@odata.id": task, "@odata.type": "#Task.v1_4_0.Task", "TaskState": "Completed", "TaskMonitor": monitor}
    async with bench() as bmc:
        csr = (await bmc("config.generateCsr", {"commonName": "bmc7.example"}))["csr"]
        bmc.bmc.state.put(task, state)
        bmc.bmc.faults.add(FaultRule(method="POST", path=CSR, status=202, body=state, headers={"Location": monitor}))
        bmc.bmc.faults.add(FaultRule(method="GET", path=monitor, status=200, body={"CSRString": csr}))
        assert (await bmc("config.generateCsr", {"commonName": "bmc7.example"}))["csr"] == csr


@pytest.mark.parametrize(
    "words", ["no request", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----"]
)
@without_waiting
async def test_an_answer_without_a_usable_request_is_a_failure(words: str) -> None:
    async with bench(faults=[FaultRule(method="POST", path=CSR, status=200, body={"CSRString": words})]) as bmc:
        error = await bmc.fails("config.generateCsr", {"commonName": "bmc7.example"})
        assert error.code in (ErrorCode.NOT_APPLIED, ErrorCode.BMC_ERROR)


def test_every_fault_of_a_request_is_told_at_once() -> None:
    offer = Offer(frozenset({"CommonName", "City", "KeyPairAlgorithm"}), {"KeyPairAlgorithm": ["TPM_ALG_RSA"]})
    wanted = GenerateCsr(
        common_name=" ", country="Germany", key_algorithm=KeyAlgorithm.EC, key_bits=2048, key_curve="p1"
    )
    _, issues = csr_body(wanted, "/c", offer)
    assert [issue.path for issue in issues] == [
        "commonName",
        "country",
        "keyBits",
        "keyAlgorithm",
        "keyCurve",
        "city",
        "keyAlgorithm",
    ]


def test_the_key_is_the_bmcs_choice_unless_it_asks() -> None:
    wanted = GenerateCsr(common_name="a")
    assert "KeyPairAlgorithm" not in csr_body(wanted, "/c", Offer())[0]
    asked = Offer(frozenset({"KeyPairAlgorithm"}), {"KeyPairAlgorithm": ["TPM_ALG_RSA", "TPM_ALG_ECDSA"]})
    assert csr_body(wanted, "/c", asked)[0]["KeyPairAlgorithm"] == "TPM_ALG_RSA"
    lenovo = Offer(choices={"KeyPairAlgorithm": ["TPM_ALG_ECDH", "TPM_ALG_RSA"], "KeyCurveId": ["TPM_ECC_NIST_P384"]})
    body, issues = csr_body(
        GenerateCsr(common_name="a", key_algorithm=KeyAlgorithm.EC, key_curve="P384"), "/c", lenovo
    )
    assert (body["KeyPairAlgorithm"], body["KeyCurveId"], issues) == ("TPM_ALG_ECDH", "TPM_ECC_NIST_P384", [])


def test_what_an_action_offers_is_read_from_both_places() -> None:
    action = {"target": "/x", "CertificateType@Redfish.AllowableValues": ["PEM"]}
    info = {
        "Parameters": [{"Name": "City", "Required": True}, {"Name": "KeyUsage", "AllowableValues": ["A", 3]}, None]
    }
    offer = offer_of(action, info)
    assert offer.required == {"City"}
    assert offer.choices == {"CertificateType": ["PEM"], "KeyUsage": ["A"]}
    assert offer_of({}, None) == Offer()


# Replacing


@without_waiting
async def test_from_the_request_to_a_handshake_that_shows_the_signed_certificate() -> None:
    async with bench(tls=True, verify=False) as bmc:
        signed = await signed_for(bmc)
        replaced = await bmc("config.replaceCertificate", {"certificate": signed})
        assert replaced == {"fingerprint": digest(signed), "changed": True, "served": True, "resetOwed": False}
        shown = await tls.certificate_fingerprint("127.0.0.1", bmc.bmc.port, 5)
        assert shown == digest(signed)
        assert (await bmc("config.getCertificates"))["served"] == shown
        assert (await bmc("config.replaceCertificate", {"certificate": signed}))["changed"] is False
        assert len(sent(bmc, REPLACE)) == 1


@without_waiting
async def test_a_pin_follows_only_once_the_new_certificate_was_seen() -> None:
    old = TlsMaterial.self_signed()
    pins: dict[str, str] = {}
    async with bench(tls=old, verify=f"sha256:{old.fingerprint}", pins=pins) as bmc:
        signed = await signed_for(bmc)
        with FailingOnce(bmc, status=400):
            await bmc.fails("config.replaceCertificate", {"certificate": signed})
        assert pins == {}
        async with bmc.drivers.turn(bmc.target, "config.replaceCertificate", {}) as turn:
            reply = await turn.run({"certificate": signed})
        assert reply.observed == {"tlsFingerprint": digest(signed), "tlsFingerprintReplaced": old.fingerprint}
        # The node's record may still name the old pin for a moment.
        assert await bmc("power.getPower")


@without_waiting
async def test_after_first_use_the_new_certificate_is_the_known_one() -> None:
    pins: dict[str, str] = {}
    async with bench(tls=True, verify="first-use", pins=pins) as bmc:
        signed = await signed_for(bmc)
        await bmc("config.replaceCertificate", {"certificate": signed})
        assert pins == {bmc.target.endpoint: digest(signed)}
        assert await bmc("power.getPower")


@without_waiting
async def test_after_a_crash_the_replaced_certificate_is_found_in_place_of_the_pinned_one() -> None:
    """The process died between the replacement and the pin."""
    old = TlsMaterial.self_signed()
    async with bench(tls=old, verify=f"sha256:{old.fingerprint}") as bmc:
        signed = await signed_for(bmc)
        await bmc.drivers.connections.aclose()
        service = bmc.bmc.service.certificates
        service._take(signed, x509.load_pem_x509_certificate(signed.encode()))
        refused = await bmc.fails("power.getPower")
        assert refused.code is ErrorCode.TLS_UNTRUSTED
        replaced = await bmc("config.replaceCertificate", {"certificate": signed})
        assert (replaced["changed"], replaced["served"]) == (False, True)
        assert sent(bmc, REPLACE) == []
        assert await bmc("power.getPower")


@without_waiting
async def test_a_lost_answer_is_made_up_for_by_the_handshake() -> None:
    async with bench(tls=True, verify=False, faults=[FaultRule(method="POST", path=REPLACE, drop=Drop.AFTER)]) as bmc:
        signed = await signed_for(bmc)
        assert (await bmc("config.replaceCertificate", {"certificate": signed}))["served"] is True
        assert len(sent(bmc, REPLACE)) == 1


@without_waiting
async def test_a_server_error_from_a_web_server_that_restarts_is_made_up_for_by_the_handshake() -> None:
    rule = FaultRule(method="POST", path=REPLACE, status=502, execute=True)
    async with bench(tls=True, verify=False, faults=[rule]) as bmc:
        signed = await signed_for(bmc)
        assert (await bmc("config.replaceCertificate", {"certificate": signed}))["served"] is True
        assert len(sent(bmc, REPLACE)) == 1


@without_waiting
async def test_a_yes_after_which_nothing_shows_is_not_applied() -> None:
    async with bench(tls=True, verify=False, faults=[FaultRule(method="POST", path=REPLACE, status=204)]) as bmc:
        signed = await signed_for(bmc)
        assert (await bmc.fails("config.replaceCertificate", {"certificate": signed})).code is ErrorCode.NOT_APPLIED


@without_waiting
async def test_a_bmc_that_shows_it_only_after_a_restart_says_that_one_is_owed() -> None:
    pins: dict[str, str] = {}
    options = ServiceOptions(certificate_needs_restart=True)
    async with bench(tls=True, verify="first-use", pins=pins, options=options) as bmc:
        signed = await signed_for(bmc)
        before = dict(pins)
        replaced = await bmc("config.replaceCertificate", {"certificate": signed})
        assert (replaced["changed"], replaced["served"], replaced["resetOwed"]) == (True, False, True)
        again = await bmc("config.replaceCertificate", {"certificate": signed})
        assert (again["changed"], again["resetOwed"]) == (False, True)
        assert pins == before
        bmc.bmc.service.manager.go_down(0)
        # Asked once more after the restart, it is seen, and the pin follows.
        assert (await bmc("config.replaceCertificate", {"certificate": signed}))["served"] is True
        assert pins == {bmc.target.endpoint: digest(signed)}
        assert len(sent(bmc, REPLACE)) == 1


@without_waiting
async def test_rules_that_do_not_trust_the_new_certificate_are_told_though_it_is_in_place(tmp_path: Path) -> None:
    old = TlsMaterial.self_signed()
    (tmp_path / "ca.pem").write_bytes(old.certificate)
    async with bench(tls=old, verify=f"ca:{tmp_path}/ca.pem") as bmc:
        signed = await signed_for(bmc)
        error = await bmc.fails("config.replaceCertificate", {"certificate": signed})
        assert error.code is ErrorCode.TLS_UNTRUSTED
        assert "shows its new certificate" in error.message


@without_waiting
async def test_a_certificate_for_another_key_is_refused_in_the_bmcs_words() -> None:
    async with bench(tls=True, verify=False) as bmc:
        error = await bmc.fails("config.replaceCertificate", {"certificate": pem(Authority().certificate)})
        assert error.code is ErrorCode.BMC_ERROR
        assert "its key is not one of this service" in str(error)


@without_waiting
async def test_the_issuers_go_along_where_the_bmc_takes_them() -> None:
    authority = Authority()
    async with bench(tls=True, verify=False) as bmc:
        made = await bmc("config.generateCsr", {"commonName": "bmc7.example"})
        chain = authority.sign(made["csr"]) + pem(authority.certificate)
        assert (await bmc("config.replaceCertificate", {"certificate": chain}))["served"]
        (body,) = sent(bmc, REPLACE)
        assert body["CertificateType"] == "PEMchain"
        assert body["CertificateString"].count("BEGIN CERTIFICATE") == 2


@without_waiting
async def test_over_plain_http_what_is_listed_is_the_only_proof() -> None:
    async with bench() as bmc:
        certificate = pem(Authority().certificate)
        replaced = await bmc("config.replaceCertificate", {"certificate": certificate})
        assert (replaced["changed"], replaced["served"]) == (True, False)
        assert (await bmc("config.replaceCertificate", {"certificate": certificate}))["changed"] is False


@pytest.mark.parametrize(
    "tree", [DELL, LENOVO, SUPERMICRO, "openbmc-stock", "nvidia-dgx-h100-ami", "dmtf-rackmount1"]
)
def test_every_tree_with_the_standards_actions_is_given_a_certificate(tree: str, shared: Path) -> None:
    everything = {
        "commonName": "bmc7.example",
        "organization": "Example",
        "organizationalUnit": "Racks",
        "city": "Berlin",
        "state": "Berlin",
        "country": "DE",
        "email": "racks@example.net",
    }

    @without_waiting
    async def on_this_tree() -> None:
        async with bench(shared / "mockups" / tree, tls=True, verify=False) as bmc:
            made = await bmc("config.generateCsr", everything)
            signed = Authority().sign(made["csr"])
            assert (await bmc("config.replaceCertificate", {"certificate": signed}))["served"] is True

    on_this_tree()


def test_hpes_own_resource_serves_where_the_standard_has_none(shared: Path) -> None:
    path = "/redfish/v1/Managers/1/SecurityService/HttpsCert"
    actions = {
        f"#HpeHttpsCert.{name}": {"target": f"{path}/Actions/HpeHttpsCert.{name}"}
        for name in ("GenerateCSR", "ImportCertificate")
    }
    resource = {
        "@odata.id": path,
        "@odata.type": "#HpeHttpsCert.v1_0_0.HpeHttpsCert",
        "Id": "HttpsCert",
        "CertificateSigningRequest": None,
        "X509CertificateInformation": {"Subject": "CN=iLO", "Issuer": "CN=Default Issuer", "SerialNumber": "2B"},
        "Actions": actions,
    }

    @without_waiting
    async def on_hpe() -> None:
        async with bench(shared / "mockups" / HPE, tls=True, verify=False) as bmc:
            bmc.bmc.state.put(path, resource)
            assert (await bmc("config.getCertificates"))["certificates"][0]["subject"] == "CN=iLO"
            error = await bmc.fails("config.generateCsr", {"commonName": "ilo7", "email": "x@example.net"})
            assert "email" in error.message
            made = await bmc("config.generateCsr", {"commonName": "ilo7", "organization": "Example"})
            ((body),) = sent(bmc, f"{path}/*GenerateCSR")
            assert body == {"CommonName": "ilo7", "OrgName": "Example"}
            signed = Authority().sign(made["csr"])
            assert (await bmc("config.replaceCertificate", {"certificate": signed}))["served"] is True

    on_hpe()


@without_waiting
async def test_a_bmc_without_certificate_actions_says_so() -> None:
    async with bench() as bmc:
        bmc.bmc.state.remove("/redfish/v1/CertificateService")
        for operation, arguments in (
            ("config.generateCsr", {"commonName": "a"}),
            ("config.replaceCertificate", {"certificate": pem(Authority().certificate)}),
        ):
            assert (await bmc.fails(operation, arguments)).code is ErrorCode.UNSUPPORTED


# Texts


def test_a_private_key_is_refused_and_not_repeated() -> None:
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(OperationError) as caught:
        parse_chain(pem(Authority().certificate) + key.decode())
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert "BEGIN" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "A" * 70_000]
)
def test_a_text_that_is_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(OperationError, match="INVALID_ARGUMENT"):
        parse_chain(text)
    assert readable(text) is None


def test_a_certificate_behind_a_description_is_read() -> None:
    certificate = Authority().certificate
    found = readable(f"Certificate:\n  Data:\n{pem(certificate)}")
    assert found is not None
    assert fingerprint_of(found) == fingerprint_of(certificate)
    with pytest.raises(OperationError, match="twice"):
        parse_chain(pem(certificate) * 2)


def test_half_broken_resources_tell_what_they_have() -> None:
    assert certificate_of({}).id == ""
    assert certificate_of({"@odata.id": "/a/7", "Subject": "CN=x ", "Fingerprint": "AA:BB"}).subject == "CN=x"
    assert name_text({"Country": None, "CommonName": 3}) == "CN=3"
    assert name_text([]) is None
    assert same_serial("6E:DF", 0x6EDF)
    assert not same_serial("zz", 1)
    assert not same_serial(None, 1)


# Pins


def test_a_pin_leads_to_the_certificate_that_replaced_it_and_back_again() -> None:
    a, b, c = ("a" * 64, "b" * 64, "c" * 64)
    pins: dict[str, str] = {}
    follow_pin(pins, "h:1", a, b)
    follow_pin(pins, "h:1", a, c)
    assert pinned_now(pins, "h:1", a) == c
    assert pinned_now(pins, "h:1", b) == c
    assert pinned_now(pins, "h:2", a) == a
    follow_pin(pins, "h:1", c, a)
    assert pinned_now(pins, "h:1", c) == a
    assert pinned_now(pins, "h:1", a) == a


@without_waiting
async def test_a_bmc_that_shows_the_pinned_certificate_again_is_right() -> None:
    """An operator put the old one back; the record of the replacement must not stand in the way."""
    old = TlsMaterial.self_signed()
    pins: dict[str, str] = {}
    async with bench(tls=old, verify=f"sha256:{old.fingerprint}", pins=pins) as bmc:
        follow_pin(pins, bmc.target.endpoint, old.fingerprint, "b" * 64)
        assert await bmc("power.getPower")
        assert pins == {}


@without_waiting
async def test_the_old_pin_and_the_new_one_share_a_session_meanwhile() -> None:
    old = TlsMaterial.self_signed()
    async with bench(tls=old, verify=f"sha256:{old.fingerprint}") as bmc:
        signed = await signed_for(bmc)
        await bmc("config.replaceCertificate", {"certificate": signed})
        logins = len(bmc.requests("POST", "*/Sessions"))
        told = replace(bmc.target, verify=f"sha256:{digest(signed)}")
        await bmc.drivers.invoke(told, "power.getPower")
        await bmc("power.getPower")
        assert len(bmc.requests("POST", "*/Sessions")) == logins


class FailingOnce:
    """One refusal of a replacement."""

    def __init__(self, bmc: Bench, *, status: int) -> None:
        self._bmc, self._status = bmc, status

    def __enter__(self) -> None:
        self._bmc.bmc.faults.add(FaultRule(name="once", method="POST", path=REPLACE, status=self._status, count=1))

    def __exit__(self, *_: object) -> None:
        self._bmc.bmc.faults.remove("once")
