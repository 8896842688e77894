"""Joining: a join token and a certificate request in, an agent's identity out.

Whoever reaches the port may ask, so nothing of an asker is kept but a count: of the connections open at once, and of
the refusals of the last minute by address. Neither guards the secret, which has 256 random bits; they keep guessers
from using up the database and the memory that the agents need. One who is refused for another's sake is told to wait.
"""

import asyncio
import contextlib
import http
import ipaddress
import logging
from collections import Counter
from collections.abc import Iterator

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Response

from control_plane.authority import Authority, requested_key_sha256
from control_plane.join_tokens import JoinedBefore, keep_answer, redeem_join_token
from control_plane.machine_joining import Ambiguous, bound_node, join_machine
from control_plane.records import AgentRow
from control_plane.sessions import record_certificate
from control_plane.store import Store, Transaction
from protocol.errors import RequestCode, RequestError
from protocol.frames import Joined, JoinRefused, JoinRequest, encode
from protocol.ids import is_id
from protocol.secret import Secret

__all__ = ["Joining"]

_log = logging.getLogger("control_plane.joining")
_REQUEST_TIMEOUT = 10.0
_OPEN_AT_ONCE = 128
_REFUSALS_PER_MINUTE = 30
_ADDRESSES_AT_ONCE = 10_000
_LARGEST_REQUEST = 32 * 1024


class Joining:
    """The `/join` path of one worker."""

    def __init__(self, store: Store, authority: Authority) -> None:
        self._store = store
        self._authority = authority
        self._open = 0
        self._refusals: Counter[str] = Counter()

    def admit(self, connection: ServerConnection) -> Response | None:
        """Before the websocket is opened: None, or the answer that turns it away."""
        if self._open >= _OPEN_AT_ONCE:
            response = connection.respond(
                http.HTTPStatus.SERVICE_UNAVAILABLE, "too many hosts join at this moment: try again in a minute\n"
            )
            response.headers["Retry-After"] = "60"
            return response
        # The limit for agents is a frame's, and as many as may wait unread: too much for strangers.
        connection.protocol.max_message_size = _LARGEST_REQUEST
        return None

    async def serve(self, connection: ServerConnection) -> None:
        """One attempt, answered. Raises StoreError and ConnectionClosed."""
        with self._counted():
            try:
                async with asyncio.timeout(_REQUEST_TIMEOUT):
                    data = await connection.recv()
            except TimeoutError:
                await connection.close(1002, f"no join request came within {_REQUEST_TIMEOUT:g} s")
                return
            answer = await self._answer(data, _network_of(connection))
            await connection.send(encode(answer), text=True)
            await connection.close()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def _answer(self, data: bytes | str, network: str) -> Joined | JoinRefused:
        if self._refusals[network] >= _REFUSALS_PER_MINUTE or len(self._refusals) >= _ADDRESSES_AT_ONCE:
            return JoinRefused(
                message="too many join attempts were refused: wait a minute and try again", code="BUSY"
            )
        try:
            request = msgspec.json.decode(data, type=JoinRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._count_refusal(network)
            return JoinRefused(message=f"the join request cannot be read: {error}", code="UNREADABLE")
        if not is_id(request.token_id, "jtk"):
            self._count_refusal(network)
            return JoinRefused(
                message="this join token is not known here: make a new one and use it whole", code="TOKEN_REFUSED"
            )
        try:
            key = requested_key_sha256(request.csr)
            answer = await self._store.write(_join, self._authority, request, Secret(request.secret), key)
        except RequestError as error:
            unreadable = error.code is RequestCode.INVALID_INPUT
            answer = JoinRefused(message=error.message, code="UNREADABLE" if unreadable else "TOKEN_REFUSED")
        if isinstance(answer, JoinRefused):
            self._count_refusal(network)
            _log.warning(
                "a join was refused: token %s from %s: %s", request.token_id, request.host_name[:255], answer.message
            )
        return answer

    def _count_refusal(self, network: str) -> None:
        self._refusals[network] += 1
        asyncio.get_running_loop().call_later(60, self._forget_refusal, network)

    def _forget_refusal(self, network: str) -> None:
        self._refusals[network] -= 1
        if self._refusals[network] <= 0:
            del self._refusals[network]


def _network_of(connection: ServerConnection) -> str:
    """Who asks: an IPv4 address, or the /64 that an IPv6 host may choose its addresses from."""
    peer = connection.remote_address
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except (ValueError, IndexError, TypeError):
        return ""
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))


def _join(
    tx: Transaction, authority: Authority, request: JoinRequest, secret: Secret, key: str
) -> Joined | JoinRefused:
    token_id, host_name, version = request.token_id, request.host_name, request.version
    joined: AgentRow | JoinedBefore | Ambiguous
    if bound_node(tx, token_id) is not None:
        joined = join_machine(tx, token_id, secret.reveal(), key, host_name, version, request.machine)
    else:
        joined = redeem_join_token(tx, token_id, secret.reveal(), key, host_name, version)
    if isinstance(joined, Ambiguous):
        return JoinRefused(message=joined.message, code="AMBIGUOUS_MACHINE")
    if isinstance(joined, JoinedBefore):
        return _joined(joined.agent, joined.certificate, authority)
    issued = authority.issue_agent(request.csr, joined.id)
    record_certificate(tx, joined.id, issued.serial, issued.not_after_ms)
    keep_answer(tx, token_id, key, issued)
    return _joined(joined, issued.pem, authority)


def _joined(agent: AgentRow, certificate: str, authority: Authority) -> Joined:
    return Joined(
        agent_id=agent.id,
        role=agent.role,
        site=agent.site_id or "",
        certificate=certificate,
        ca=authority.pem,
        node=agent.node_id or "",
    )
