"""The certificates of the BMC's web server: read, requested, and replaced once the new one is seen on the wire."""

import asyncio
import hashlib
from dataclasses import dataclass, field

import msgspec
from cryptography import x509

from drivers import certificates
from drivers.driver import Call
from drivers.redfish import tls
from drivers.redfish.answer import Answer
from drivers.redfish.boot import unproven
from drivers.redfish.certificate_request import (
    Offer,
    certificate_of,
    csr_body,
    oem_csr_body,
    offer_of,
    same_serial,
)
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, action, action_info_uri, dig, link, link_target, links
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.manners import OemCertificate
from drivers.redfish.tasks import Outcome, follow_task, task_named_by, words_about
from drivers.redfish.walking import each, read_collection
from protocol.addresses import Scheme
from protocol.errors import ErrorCode, Issue, OperationError
from protocol.shapes.config import (
    Certificate,
    Certificates,
    GenerateCsr,
    GenerateCsrResult,
    ReplaceCertificate,
    ReplaceCertificateResult,
)

__all__ = ["HttpsCertificates", "settle_certificate", "shows_already"]

_GENERATE = "CertificateService.GenerateCSR"
_REPLACE = "CertificateService.ReplaceCertificate"
_HANDSHAKE_SECONDS = 10.0
_SERVED_SECONDS = 180.0
"""How long a web server may need to come back with its new certificate."""
_SHOWN_SECONDS = 20.0
"""After so long a BMC that lists the new certificate and shows the old one is taken to wait for its restart."""
_REQUEST_SECONDS = 600.0
"""HPE: a signing request may take ten minutes."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the web server's certificates are."""

    resources: list[Document] = field(default_factory=list)
    collection: str | None = None
    service: Document = field(default_factory=dict)
    oem: tuple[OemCertificate, Document] | None = None


class HttpsCertificates:
    """What can be done with them. `manager` and `network` are the BMC's own resources as they were just read."""

    def __init__(self, connection: RedfishConnection, manager: Document, network: Document | None) -> None:
        self._connection = connection
        self._manager = manager
        self._network = network

    async def read(self, call: Call) -> Certificates:
        """Those that the BMC lists, or the one that it shows. Raises UNSUPPORTED where there is neither."""
        place = await self._find(call, with_service=False)
        der = await _shown(self._connection, call)
        wire = None if der is None else certificates.readable_der(der)
        listed = [_described(document) for document in place.resources]
        if place.oem is not None:
            listed = [certificate_of(place.oem[1], dig(place.oem[1], place.oem[0].shown))]
        if der is None and not listed:
            raise OperationError(ErrorCode.UNSUPPORTED, "this BMC lists no certificate of its web server")
        if wire is not None:
            listed = _completed(listed, wire)
        return Certificates(certificates=listed, served=None if der is None else hashlib.sha256(der).hexdigest())

    async def request(self, wanted: GenerateCsr, call: Call) -> GenerateCsrResult:
        """Has the BMC make a key and a signing request; sent once. Raises UNSUPPORTED, INVALID_ARGUMENT with every
        fault, OUTCOME_UNKNOWN where the answer is lost: a new request makes that one void."""
        place = await self._find(call)
        offered = action(place.service, _GENERATE)
        if offered is not None and place.collection is not None:
            info = await self._connection.find(action_info_uri(offered), call)
            body, issues = csr_body(wanted, place.collection, offer_of(offered, info))
            _raise_for(issues)
            target = link_target(offered) or ""
            answer = await self._connection.order(target, body, call, look=link(place.service) or target)
            words = await self._request_in(answer, call)
        elif place.oem is not None and action(place.oem[1], place.oem[0].generate) is not None:
            body, issues = oem_csr_body(wanted, place.oem[0])
            _raise_for(issues)
            words, answer = await self._oem_request(*place.oem, body, call)
        else:
            raise OperationError(ErrorCode.UNSUPPORTED, "this BMC makes no signing requests for its web server")
        if words is None:
            raise OperationError(
                ErrorCode.NOT_APPLIED,
                "the BMC took the request, and gave no signing request",
                bmc=await words_about(self._connection, answer, call),
            )
        try:
            request = certificates.parse_csr(words)
        except ValueError as error:
            raise OperationError(ErrorCode.BMC_ERROR, f"the BMC's signing request cannot be used: {error}") from error
        return GenerateCsrResult(csr=words, public_key=certificates.public_key_digest(request.public_key()))

    async def replace(self, wanted: ReplaceCertificate, call: Call) -> ReplaceCertificateResult:
        """Brings the web server to show this certificate. The known pin changes only once a handshake has shown it.

        Raises OperationError: INVALID_ARGUMENT, UNSUPPORTED, the BMC's refusal, NOT_APPLIED, OUTCOME_UNKNOWN;
        TLS_UNTRUSTED where the new certificate is in place and this connection's own rules do not trust it.
        """
        chain = certificates.parse_chain(wanted.certificate)
        print_ = certificates.fingerprint_of(chain[0])
        place = await self._find(call)
        if any(_described(document).fingerprint == print_ for document in place.resources):
            by_tls = self._connection.target.parsed.scheme is Scheme.HTTPS
            return ReplaceCertificateResult(fingerprint=print_, changed=False, served=False, reset_owed=by_tls)
        answer = await self._give(place, chain, call)
        if self._connection.target.parsed.scheme is not Scheme.HTTPS:
            return await self._without_a_handshake(print_, answer, call)
        served = await self._until_served(print_, call)
        if not served:
            if print_ in await self._listed(call):
                return ReplaceCertificateResult(fingerprint=print_, changed=True, served=False, reset_owed=True)
            words = await words_about(self._connection, answer, call)
            raise unproven(answer, "the certificate", "it neither shows nor lists it", words)
        await settle_certificate(self._connection, print_, call)
        return ReplaceCertificateResult(fingerprint=print_, changed=True, served=True)

    async def _give(self, place: _Place, chain: list[x509.Certificate], call: Call) -> Answer | NoAnswer:
        pem = "".join(certificates.pem_of(certificate) for certificate in chain)
        offered = action(place.service, _REPLACE)
        if offered is not None and place.resources:
            info = await self._connection.find(action_info_uri(offered), call)
            body = {
                "CertificateString": pem,
                "CertificateType": _type_for(chain, offer_of(offered, info)),
                "CertificateUri": {
                    "@odata.id": _present(place.resources, await _fingerprint(self._connection, call))
                },
            }
        elif place.oem is not None and (offered := action(place.oem[1], place.oem[0].replace)) is not None:
            body = {place.oem[0].certificate: pem}
        else:
            raise OperationError(
                ErrorCode.UNSUPPORTED, "this BMC does not let its web server's certificate be replaced"
            )
        target = link_target(offered) or ""
        look = link(place.service) or link(self._manager) or target
        try:
            return await self._connection.order(target, body, call, look=look)
        except NoAnswer as failure:
            # A web server that restarts with its new certificate may cut its own answer off.
            return failure
        except Refused as refused:
            # Or what stands before it says 502.
            if refused.certainly_not_done:
                raise
            return refused.as_lost()

    async def _until_served(self, wanted: str, call: Call) -> bool:
        """Whether the handshake comes to show it; a BMC that lists it and goes on showing the old one is not waited
        for to the end."""
        clock = asyncio.get_running_loop().time
        begun, pause = clock(), 0.5
        until = min(begun + _SERVED_SECONDS, call.deadline - _HANDSHAKE_SECONDS)
        looked = False
        while True:
            seen = await _fingerprint(self._connection, call)
            if seen == wanted:
                return True
            if clock() >= until:
                return False
            if seen is not None and not looked and clock() - begun >= _SHOWN_SECONDS:
                looked = True
                if wanted in await self._listed(call):
                    return False
            call.progress("waiting for the BMC to show its new certificate", None)
            await asyncio.sleep(min(pause, max(0.0, until - clock())))
            pause = min(pause * 1.5, 5.0)

    async def _without_a_handshake(
        self, wanted: str, answer: Answer | NoAnswer, call: Call
    ) -> ReplaceCertificateResult:
        if wanted not in await self._listed(call):
            words = await words_about(self._connection, answer, call)
            raise unproven(answer, "the certificate", "it does not list it", words)
        return ReplaceCertificateResult(fingerprint=wanted, changed=True, served=False)

    async def _listed(self, call: Call) -> list[str | None]:
        """The fingerprints that the BMC lists now; none where it cannot be asked."""
        try:
            place = await self._find(call, with_service=False)
        except OperationError:
            return []
        return [_described(document).fingerprint for document in place.resources]

    async def _request_in(self, answer: Answer, call: Call) -> str | None:
        """The signing request out of the answer, or out of what its task's monitor answers in the end."""
        words = text_of_request(answer.said())
        name = task_named_by(answer)
        if words is not None or answer.status != 202 or name is None:
            return words
        ending = await follow_task(self._connection, answer, call, staged_ends=False)
        if ending.outcome is Outcome.FAILED:
            raise OperationError(
                ErrorCode.NOT_APPLIED, "the BMC's task for the signing request failed", bmc=ending.words
            )
        for path in (name.monitor, name.task):
            words = text_of_request(await self._connection.find(path, call))
            if words is not None:
                return words
        return None

    async def _oem_request(
        self, place: OemCertificate, resource: Document, body: Document, call: Call
    ) -> tuple[str | None, Answer]:
        """The property's old request stays until the new one is there."""
        path, before = link(resource) or "", text_of(resource, place.request)
        offered = action(resource, place.generate)
        target = link_target(offered) if offered is not None else None
        answer = await self._connection.order(target or "", body, call, look=path)
        clock = asyncio.get_running_loop().time
        until, pause = min(clock() + _REQUEST_SECONDS, call.deadline - 1.0), 1.0
        while clock() < until:
            now = text_of(await self._connection.find(path, call), place.request)
            if now is not None and now != before:
                return now, answer
            call.progress("the BMC makes the key", None)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 10.0)
        return None, answer

    async def _find(self, call: Call, *, with_service: bool = True) -> _Place:
        connection = self._connection
        service_path = link(await connection.root(call), "CertificateService")
        collection = link(self._network, "HTTPS", "Certificates")
        resources = await read_collection(connection, collection, call)
        service: Document = {}
        if with_service or (not resources and service_path is not None):
            service = await connection.find(service_path, call) or {}
        if not resources and service:
            # HPE Cray lists them in CertificateLocations only.
            locations = await connection.find(link(service, "CertificateLocations"), call)
            own = (link(self._manager, "NetworkProtocol") or "?").lower()
            paths = [path for path in links(locations, "Links", "Certificates") if path.lower().startswith(own)]
            resources = await each(connection, paths, call)
            collection = collection or (paths[0].rpartition("/")[0] if paths else None)
        oem = None
        if not resources and (place := connection.service.manners.oem_certificate) is not None:
            document: Document | None = self._manager
            for step in place.way:
                document = await connection.find(link(document, *step), call)
            oem = None if document is None else (place, document)
        return _Place(resources, collection, service, oem)


async def settle_certificate(connection: RedfishConnection, fingerprint: str, call: Call) -> None:
    """The new certificate was seen: from here on it is the known one, and a request must go through with it."""
    try:
        await connection.take_certificate(fingerprint, call)
    except OperationError as error:
        if error.code is ErrorCode.TLS_UNTRUSTED:
            error.message = (
                f"the BMC shows its new certificate, and this address' own rules refuse it: {error.message}"
            )
        raise


async def shows_already(
    connection: RedfishConnection, certificate: str, call: Call
) -> ReplaceCertificateResult | None:
    """The result where the BMC shows the certificate before anything was asked of it; nothing is logged in for that.

    After a crash it may already be so, while the pin still names the one before.
    """
    wanted = certificates.fingerprint_of(certificates.parse_chain(certificate)[0])
    if await _fingerprint(connection, call) != wanted:
        return None
    await settle_certificate(connection, wanted, call)
    return ReplaceCertificateResult(fingerprint=wanted, changed=False, served=True)


def text_of_request(said: object) -> str | None:
    found = text_of(said, "CSRString")
    return found if found is not None and "CERTIFICATE REQUEST" in found else None


def text_of(said: object, name: str) -> str | None:
    """A long text, whole."""
    found = dig(said, name)
    return found if isinstance(found, str) and found.strip() else None


def _described(document: Document) -> Certificate:
    found = certificates.readable(document.get("CertificateString") or document.get("Certificate"))
    told = certificate_of(document)
    return told if found is None else certificates.described(told.id, found)


def _completed(listed: list[Certificate], wire: x509.Certificate) -> list[Certificate]:
    """What a BMC does not tell of the certificate that it shows (Dell: text and fingerprint), from the handshake."""
    whole = certificates.described("served", wire)
    if any(one.fingerprint == whole.fingerprint for one in listed):
        return listed
    for number, one in enumerate(listed):
        if one.fingerprint is None and same_serial(one.serial_number, wire.serial_number):
            listed[number] = msgspec.structs.replace(whole, id=one.id)
            return listed
    return listed or [whole]


def _present(resources: list[Document], served: str | None) -> str:
    """The resource of the certificate in use: the one that is shown, else the one that says it serves."""

    def likelihood(document: Document) -> tuple[bool, bool]:
        usage = document.get("KeyUsage")
        serves = "ServerAuthentication" in (usage if isinstance(usage, list) else [usage])
        return served is not None and _described(document).fingerprint == served, serves

    return link(max(resources, key=likelihood)) or ""


def _type_for(chain: list[x509.Certificate], offer: Offer) -> str:
    choices = offer.choices.get("CertificateType", [])
    if len(chain) == 1:
        return "PEM"
    if choices and "PEMchain" not in choices:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"certificate: this BMC takes one certificate alone ({', '.join(choices)}): leave the issuers' out",
        )
    return "PEMchain"


def _raise_for(issues: list[Issue]) -> None:
    if issues:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            "; ".join(str(issue) for issue in issues),
            details={"issues": [msgspec.to_builtins(issue) for issue in issues]},
        )


async def _shown(connection: RedfishConnection, call: Call) -> bytes | None:
    """The certificate that the BMC shows now; None without TLS, or while it cannot be reached."""
    address = connection.target.parsed
    if address.scheme is not Scheme.HTTPS:
        return None
    try:
        seconds = min(_HANDSHAKE_SECONDS, max(0.1, call.remaining))
        return await tls.certificate_on_the_wire(address.host, address.port, seconds)
    except (OSError, TimeoutError):
        return None


async def _fingerprint(connection: RedfishConnection, call: Call) -> str | None:
    der = await _shown(connection, call)
    return None if der is None else hashlib.sha256(der).hexdigest()
