"""Joining: from a one-time token to an identity, over a connection that is verified from its first secret on.

The token holds the hash of the control plane's CA. So the CA itself may be fetched from anybody: it is used only when
its hash is that one, and the token's secret goes only to a server with a certificate of that CA.
(The same design as k3s' "K10" tokens and kubeadm's discovery by CA hash.)

A token is used up when the control plane commits, and its answer may be lost after that. So the key stays until there
is an answer. Joining again with the same token asks for the same key, and the control plane repeats its answer.
"""

import asyncio
import contextlib
import hashlib
import http.client
import os
import shutil
import ssl

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from agent.endpoint import Endpoint
from agent.errors import IdentityError, JoinFailed
from agent.identity import Facts, Identity, IdentityStore, certificate_request
from protocol import VERSION
from protocol.errors import ProtocolError
from protocol.frames import (
    JOIN_SUBPROTOCOL,
    MAX_FRAME_BYTES,
    Joined,
    JoinRefused,
    JoinRequest,
    decode_join_answer,
    encode,
)
from protocol.join_token import JoinToken
from protocol.machine_facts import MachineFacts

__all__ = ["join"]

_TIMEOUT = 20.0
_LARGEST_CA = 256 * 1024
_BUSY = "BUSY"
"""The one refusal that says nothing of the token: an earlier request with it may have been taken."""


async def join(
    url: str, token_text: str, store: IdentityStore, *, force: bool = False, machine: MachineFacts | None = None
) -> Identity:
    """Joins and returns the new identity, which is durable then. Raises JoinFailed or IdentityError.

    `machine`: which one this is, where the token is bound to a machine.
    With `force` an identity that is there is replaced, but only once the new one is whole. After a crash, or where no
    answer came, joining again with the same token goes on where this was cut off, until the token expires.
    """
    try:
        endpoint, token = Endpoint.parse(url), JoinToken.parse(token_text)
    except ValueError as error:
        raise JoinFailed(str(error)) from None
    if not force and store.current() is not None:
        raise IdentityError(f"this agent has joined already ({store.folder}): add --force to replace its identity")
    authority = _pinned(await asyncio.to_thread(_fetch_ca, endpoint), token.ca_sha256, endpoint)
    folder, key = store.begin(token.id)
    request = JoinRequest(
        token_id=token.id,
        secret=token.secret.reveal(),
        csr=certificate_request(key, os.uname().nodename),
        host_name=os.uname().nodename,
        version=VERSION,
        machine=machine,
    )
    answer = await _ask(endpoint, authority, request)
    if isinstance(answer, JoinRefused):
        if answer.code != _BUSY:
            shutil.rmtree(folder, ignore_errors=True)
        raise JoinFailed(f"the control plane refused: {answer.message}", answer.code)
    facts = Facts(answer.agent_id, answer.role, answer.site, str(endpoint), answer.node)
    return store.complete(folder, facts, answer.certificate, answer.ca, renewal=False)


def _fetch_ca(endpoint: Endpoint) -> bytes:
    """`/ca.pem`, from whoever answers: its hash is what is trusted."""
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(endpoint.host, endpoint.port, timeout=_TIMEOUT, context=unverified)
    try:
        connection.request("GET", "/ca.pem", headers={"Accept": "application/x-pem-file"})
        response = connection.getresponse()
        data = response.read(_LARGEST_CA + 1)
    except (OSError, http.client.HTTPException) as error:
        raise JoinFailed(
            f"{endpoint} cannot be reached ({_said(error)}): check the address, the port (8443 unless it was "
            "changed) and that the control plane runs"
        ) from error
    finally:
        connection.close()
    if response.status != 200 or len(data) > _LARGEST_CA:
        raise JoinFailed(
            f"{endpoint}/ca.pem answered {response.status}: this is not the agents' port of a control plane"
        )
    return data


def _pinned(pem: bytes, sha256: str, endpoint: Endpoint) -> x509.Certificate:
    """The one certificate that the token names."""
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except ValueError:
        certificates = []
    for certificate in certificates:
        if hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest() == sha256:
            return certificate
    raise JoinFailed(
        f"{endpoint} is not the control plane that made this token: its CA has another fingerprint. "
        "Either the address is wrong, or somebody is in between. The token was not sent"
    )


async def _ask(endpoint: Endpoint, authority: x509.Certificate, request: JoinRequest) -> Joined | JoinRefused:
    context = ssl.create_default_context(cadata=authority.public_bytes(Encoding.PEM).decode())
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        connection = await connect(
            endpoint.websocket("/join"),
            ssl=context,
            subprotocols=[Subprotocol(JOIN_SUBPROTOCOL)],
            proxy=None,
            compression=None,
            max_size=MAX_FRAME_BYTES,
            open_timeout=_TIMEOUT,
        )
    except ssl.SSLCertVerificationError as error:
        raise JoinFailed(
            f"the certificate of {endpoint} does not hold ({error.verify_message}): use a host name that is in it, "
            "and check the clock of this host. The token was not sent"
        ) from error
    except (OSError, InvalidHandshake, TimeoutError) as error:
        raise JoinFailed(f"{endpoint} takes no join ({_said(error)}). The token was not sent") from error
    try:
        async with asyncio.timeout(_TIMEOUT):
            await connection.send(encode(request), text=True)
            return decode_join_answer(await connection.recv(decode=False))
    except (ConnectionClosed, TimeoutError, OSError) as error:
        raise JoinFailed(
            f"the connection to {endpoint} broke before it answered ({_said(error)}). It may have taken the token, "
            "but this host has kept its key: the same join (the same command) can be repeated until the token expires"
        ) from error
    except ProtocolError as error:
        raise JoinFailed(f"{endpoint} speaks another version of joining: {error.message}") from error
    finally:
        with contextlib.suppress(Exception):
            await connection.close()


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
