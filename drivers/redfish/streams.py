"""Answers of a BMC that go on (server-sent events): beside the requests of operations, in the same session."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import aiohttp

from drivers.driver import Call
from drivers.redfish.idleness import Idleness
from drivers.redfish.transport import Transport
from protocol.errors import OperationError

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["Streams"]

_BEGINNING_SECONDS = 60.0


class Streams:
    """The streams of one connection. The session lives as long as one of them does."""

    def __init__(self, connection: RedfishConnection, transport: Transport, idleness: Idleness) -> None:
        self._connection = connection
        self._transport = transport
        self._idleness = idleness

    @contextlib.asynccontextmanager
    async def open(self, path: str, headers: Mapping[str, str], call: Call) -> AsyncIterator[aiohttp.ClientResponse]:
        """One stream, closed in the end. The call's deadline is for its beginning.

        Raises Refused, and what a `read` of the connection raises.
        """
        connection = self._connection
        connection.check_licence("GET", path)
        self._idleness.streams += 1
        try:
            response = await self._begin(path, headers, call)
            if response.status == 401:
                connection.rejected(await self._transport.end_of_stream(response, path, call.remaining))
                response = await self._begin(path, headers, call)
            if not 200 <= response.status < 300:
                raise connection.refused(await self._transport.end_of_stream(response, path, call.remaining))
            try:
                yield response
            finally:
                response.close()
        finally:
            self._idleness.streams -= 1
            connection.note_use(call)

    async def _begin(self, path: str, headers: Mapping[str, str], call: Call) -> aiohttp.ClientResponse:
        async with self._connection.logged_in(call) as mine:
            # A stream that begins slowly must not keep the operations waiting.
            pass
        try:
            return await self._transport.open_stream(
                path, {**mine, **headers}, min(_BEGINNING_SECONDS, call.remaining)
            )
        except OperationError as error:
            self._connection.hide_secret(error)
            raise
