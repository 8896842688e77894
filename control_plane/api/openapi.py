"""The OpenAPI 3.1 document, made from the verb table."""

import functools
from typing import Any

import msgspec

from control_plane.api.shapes.console import CONSOLE_ACTION, OpenConsoleRequest
from control_plane.api.verbs import PREFIX, VERBS, Verb
from protocol import VERSION
from protocol.errors import Issue, RequestCode

__all__ = ["document"]


class _Error(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    code: RequestCode
    message: str
    request_id: str
    issues: list[Issue] = []


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every refusal."""

    error: _Error


_REFUSALS = {
    400: "INVALID_INPUT: the request has faults, all of them listed in issues",
    401: "UNAUTHENTICATED: no token, or one that is wrong, expired or revoked",
    403: "FORBIDDEN: the token is not allowed this",
    404: "NOT_FOUND: no such thing for this tenant",
    409: "CONFLICT or INVALID_STATE: not as things are now",
    413: "TOO_LARGE: the body is over the limit",
    415: "INVALID_INPUT: the body is not JSON",
    426: "INVALID_INPUT: this path is a websocket",
    503: "UNAVAILABLE: the database cannot do it now; try again",
}


@functools.cache
def document() -> bytes:
    """The document as JSON."""
    kinds = [kind for verb in VERBS.values() for kind in (verb.request, verb.response)]
    (*schemas, error_schema), components = msgspec.json.schema_components(
        [*kinds, ErrorBody], schema_hook=any_value, ref_template="#/components/schemas/{name}"
    )
    paths = {
        verb.path: {"post": _operation(verb, schemas[2 * index], schemas[2 * index + 1])}
        for index, verb in enumerate(VERBS.values())
    }
    paths[f"{PREFIX}/events/stream"] = {"get": _stream()}
    paths[f"{PREFIX}/console/{{nodeId}}"] = {"get": _console()}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Rackwright",
                "version": VERSION,
                "description": "Drives bare-metal servers through their BMCs, at many sites.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "security": [{"bearer": []}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
                "responses": {
                    f"Refused{status}": {
                        "description": text,
                        "content": {"application/json": {"schema": error_schema}},
                    }
                    for status, text in _REFUSALS.items()
                },
            },
        }
    )


def any_value(kind: type) -> dict[str, Any]:
    """The schema of `object`: any JSON value."""
    if kind is object:
        return {"description": "any JSON value"}
    raise TypeError(f"{kind} has no JSON schema")


def _operation(verb: Verb, request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": verb.id,
        "summary": verb.summary,
        "tags": [verb.group],
        "x-rackwright-action": verb.action,
        "requestBody": {"required": True, "content": {"application/json": {"schema": request}}},
        "responses": {
            "200": {"description": "done", "content": {"application/json": {"schema": response}}},
            **_refusals(*(status for status in _REFUSALS if status != 426)),
        },
    }


def _refusals(*statuses: int) -> dict[str, Any]:
    return {str(status): {"$ref": f"#/components/responses/Refused{status}"} for status in statuses}


def _console() -> dict[str, Any]:
    """A websocket is none of OpenAPI's things: what it takes and gives is told in words."""
    fields = msgspec.json.schema_components([OpenConsoleRequest])[1]["OpenConsoleRequest"]["properties"]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
        for name in fields
        if name != "nodeId"
    ]
    node = {
        "name": "nodeId",
        "in": "path",
        "required": True,
        "schema": {"type": "string"},
        "description": "Id or name.",
    }
    return {
        "operationId": "console.open",
        "summary": "read and type at a machine's console (a websocket)",
        "description": (
            "Binary messages are the console's bytes, both ways. Text messages are JSON with a type: opened, ready, "
            "writer, gap and ended from the server; take and break from the client."
        ),
        "tags": ["console"],
        "x-rackwright-action": CONSOLE_ACTION,
        "parameters": [node, *parameters],
        "responses": {
            "101": {"description": "the websocket is open"},
            **_refusals(400, 401, 403, 404, 409, 426, 503),
        },
    }


def _stream() -> dict[str, Any]:
    def parameter(name: str, place: str, text: str) -> dict[str, Any]:
        return {"name": name, "in": place, "required": False, "description": text, "schema": {"type": "string"}}

    return {
        "operationId": "events.stream",
        "summary": "follow the events as they happen (server-sent events)",
        "tags": ["events"],
        "parameters": [
            parameter("tenantId", "query", "The tenant; the token's own by default."),
            parameter("after", "query", "Begin behind the event of this number; 0 for the oldest. Default: now."),
            parameter("Last-Event-ID", "header", "Go on behind the event of this number."),
        ],
        "responses": {
            "200": {
                "description": "id: the event's number; event: its type; data: the event as events.list gives it",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            **_refusals(400, 401, 403, 503),
        },
    }
