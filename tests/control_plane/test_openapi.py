"""The OpenAPI document says what the server does."""

from typing import Any

import msgspec
import pytest

from control_plane.api.openapi import document
from control_plane.api.verbs import PREFIX, VERBS, Verb
from tests.control_plane.api_harness import Api
from tests.control_plane.test_api_access import sound_request, things_of

DOCUMENT: dict[str, Any] = msgspec.json.decode(document())


def test_every_verb_is_described_and_nothing_else() -> None:
    others = {f"{PREFIX}/events/stream", f"{PREFIX}/console/{{nodeId}}"}
    assert set(DOCUMENT["paths"]) == {verb.path for verb in VERBS.values()} | others
    operations = [place["post"]["operationId"] for place in DOCUMENT["paths"].values() if "post" in place]
    assert operations == list(VERBS)


def test_every_reference_is_resolved() -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [found for item in value.values() for found in references(item)]
        return [found for item in value for found in references(item)] if isinstance(value, list) else []

    for reference in references(DOCUMENT):
        place: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.id)
def test_requests_refuse_unknown_fields_and_answers_allow_new_ones(verb: Verb) -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas[verb.request.__name__]["additionalProperties"] is False
    assert "additionalProperties" not in schemas[verb.response.__name__]


async def test_answers_have_the_shape_that_is_described(sqlite_api: Api) -> None:
    things = await things_of(sqlite_api, sqlite_api.token)
    for verb in VERBS.values():
        if verb.mutation and verb.subject:
            continue
        answer = await sqlite_api.ok(verb.id, sound_request(verb, things.get(verb.subject or "", "")))
        described = DOCUMENT["components"]["schemas"][verb.response.__name__]
        assert set(answer) == set(described["properties"]), verb.id
        assert set(described["required"]) <= set(answer)


async def test_the_document_is_served(sqlite_api: Api) -> None:
    answer = await sqlite_api.http("GET", "/openapi.json", token="-")
    assert answer.body == document()
