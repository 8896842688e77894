"""Orders from this host's own administrator: to the running control plane, or to its database while it does not run.

Both ways are the API's verbs with its validation and its audit trail; the only right needed is to open the socket, or
the database.
"""

import asyncio
import http.client
import json
import socket
from pathlib import Path
from typing import Any

import msgspec

from control_plane.api.verbs import VERBS, Verb
from control_plane.config import Config
from protocol.errors import Issue, RequestCode, RequestError
from protocol.ids import new_id

__all__ = ["call"]

_TIMEOUT = 60.0


def call(config: Config, verb_id: str, request: dict[str, Any]) -> dict[str, Any]:
    """The verb's answer. Raises RequestError, StoreError, StartFailed."""
    verb = VERBS[verb_id]
    try:
        return _over_socket(config.admin_socket, verb, request)
    except (FileNotFoundError, ConnectionRefusedError):
        # Nobody serves: the database is free.
        return asyncio.run(_directly(config, verb, request))
    except PermissionError as error:
        raise RequestError(
            RequestCode.FORBIDDEN, f"{config.admin_socket} is not yours to open: run this as its owner, or as root"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise RequestError(
            RequestCode.UNAVAILABLE, f"the control plane did not answer on {config.admin_socket}: {error}"
        ) from error


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT)
        self.sock.connect(str(self._path))


def _over_socket(path: Path, verb: Verb, request: dict[str, Any]) -> dict[str, Any]:
    connection = _SocketConnection(path)
    try:
        connection.request("POST", verb.path, json.dumps(request), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    finally:
        connection.close()
    if response.status == 200:
        return answer
    error = answer["error"]
    raise RequestError(
        RequestCode(error["code"]), error["message"], msgspec.convert(error.get("issues", []), list[Issue])
    )


async def _directly(config: Config, verb: Verb, request: dict[str, Any]) -> dict[str, Any]:
    # The server's modules are loaded only where there is no server.
    from control_plane.api.dispatch import Dispatcher
    from control_plane.api.metrics import Metrics
    from control_plane.server import opened
    from control_plane.tokens import LOCAL_OPERATOR

    async with opened(config) as services:
        answer = await Dispatcher(services, Metrics(lambda: 0)).call(verb, request, LOCAL_OPERATOR, new_id("req"))
        built: dict[str, Any] = json.loads(msgspec.json.encode(answer))
        return built
