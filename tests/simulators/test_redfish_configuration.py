"""What a BMC is set to: its name, its passwords' rules, the certificate that it serves with, Dell's profile."""

import asyncio
import hashlib
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from simulators.redfish import ServiceOptions, TlsMaterial
from tests.simulators.conftest import MANAGER, SYSTEM, Start, basic

ACCOUNT = "/redfish/v1/AccountService/Accounts/1"
NETWORK = f"{MANAGER}/NetworkProtocol"
CERTIFICATES = f"{NETWORK}/HTTPS/Certificates"
SERVICE = "/redfish/v1/CertificateService/Actions/CertificateService"


async def test_the_managers_name_is_one_wherever_it_is_written(start: Start) -> None:
    bmc = await start()
    await bmc.patch(f"{MANAGER}/EthernetInterfaces/1", {"HostName": "bmc-7"})
    assert (await bmc.get(NETWORK)).data["HostName"] == "bmc-7"
    await bmc.patch(NETWORK, {"HostName": "bmc-8"})
    assert (await bmc.get(f"{MANAGER}/EthernetInterfaces/1")).data["HostName"] == "bmc-8"
    host = (await bmc.get(f"{SYSTEM}/EthernetInterfaces/1")).data
    assert host.get("HostName") != "bmc-8"


@pytest.mark.parametrize("password", ["short", "x" * 65, "no-digits-here"])
async def test_a_password_against_the_rules_is_refused_and_repeated_in_the_message(
    start: Start, password: str
) -> None:
    bmc = await start(options=ServiceOptions(password_pattern=r".*\d.*"))
    reply = await bmc.patch(ACCOUNT, {"Password": password})
    assert reply.status == 400
    assert reply.message_ids == ["PropertyValueFormatError"]
    assert password in reply.data["error"]["@Message.ExtendedInfo"][0]["Message"]
    assert (await bmc.get(SYSTEM)).status == 200


async def test_a_changed_password_may_end_the_accounts_sessions(start: Start) -> None:
    bmc = await start(options=ServiceOptions(password_change_ends_sessions=True))
    token = (await bmc.log_in()).headers["X-Auth-Token"]
    await bmc.patch(ACCOUNT, {"Password": "another-1"})
    assert (await bmc.get(SYSTEM, headers={"X-Auth-Token": token})).status == 401
    bmc.headers = basic(password="another-1")
    assert (await bmc.get(SYSTEM)).status == 200


async def test_a_password_that_must_be_changed_names_its_account(start: Start) -> None:
    bmc = await start()
    await bmc.patch(ACCOUNT, {"PasswordChangeRequired": True})
    (told,) = (await bmc.get(SYSTEM)).data["error"]["@Message.ExtendedInfo"]
    assert told["MessageArgs"] == [ACCOUNT]


def signed(csr: str) -> str:
    request, key = x509.load_pem_x509_csr(csr.encode()), ec.generate_private_key(ec.SECP256R1())
    own = x509.load_pem_x509_certificate(TlsMaterial.self_signed().certificate)
    builder = (
        x509.CertificateBuilder()
        .subject_name(request.subject)
        .issuer_name(own.issuer)
        .public_key(request.public_key())
        .serial_number(7)
        .not_valid_before(own.not_valid_before_utc)
        .not_valid_after(own.not_valid_after_utc)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


async def shown(port: int) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    tls: Any = writer.get_extra_info("ssl_object")
    writer.close()
    return hashlib.sha256(tls.getpeercert(binary_form=True)).hexdigest()


def digest(pem: str) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


@pytest.mark.parametrize("late", [False, True])
async def test_a_replaced_certificate_is_served_at_once_or_after_a_restart(start: Start, late: bool) -> None:
    bmc = await start(tls=True, options=ServiceOptions(certificate_needs_restart=late))
    before = await shown(bmc.server.port)
    request = await bmc.post(
        f"{SERVICE}.GenerateCSR", {"CommonName": "bmc7", "CertificateCollection": {"@odata.id": CERTIFICATES}}
    )
    new = signed(request.data["CSRString"])
    body = {
        "CertificateString": new,
        "CertificateType": "PEM",
        "CertificateUri": {"@odata.id": f"{CERTIFICATES}/1"},
    }
    assert (await bmc.post(f"{SERVICE}.ReplaceCertificate", body)).status == 204
    assert await shown(bmc.server.port) == (before if late else digest(new))
    bmc.server.service.manager.go_down(0)
    assert await shown(bmc.server.port) == digest(new)


async def test_a_certificate_for_a_key_that_was_never_here_is_refused(start: Start) -> None:
    bmc = await start(tls=True)
    foreign = TlsMaterial.self_signed().certificate.decode()
    body = {
        "CertificateString": foreign,
        "CertificateType": "PEM",
        "CertificateUri": {"@odata.id": f"{CERTIFICATES}/1"},
    }
    assert (await bmc.post(f"{SERVICE}.ReplaceCertificate", body)).status == 400
    assert await shown(bmc.server.port) != digest(foreign)


async def test_dells_profile_comes_in_place_of_its_task(start: Start, shared: Path) -> None:
    bmc = await start(shared / "mockups" / "dell-r750-idrac9-7.10", options=ServiceOptions(task_seconds=0))
    manager = "/redfish/v1/Managers/iDRAC.Embedded.1"
    export = await bmc.post(
        f"{manager}/Actions/Oem/EID_674_Manager.ExportSystemConfiguration", {"ShareParameters": {"Target": "IDRAC"}}
    )
    assert export.status == 202
    profile = (await bmc.get(export.data["@odata.id"])).data
    (component,) = profile["SystemConfiguration"]["Components"]
    assert component["FQDD"] == "iDRAC.Embedded.1"
    component["Attributes"] = [{"Name": "Time.1.Timezone", "Value": "UTC"}]
    imported = await bmc.post(
        f"{manager}/Actions/Oem/EID_674_Manager.ImportSystemConfiguration", {"ImportBuffer": json.dumps(profile)}
    )
    assert (await bmc.get(imported.data["@odata.id"])).data["TaskState"] == "Completed"
    attributes = (await bmc.get(f"{manager}/Oem/Dell/DellAttributes/iDRAC.Embedded.1")).data["Attributes"]
    assert attributes["Time.1.Timezone"] == "UTC"
