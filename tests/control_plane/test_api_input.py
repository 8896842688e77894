"""What the API says to requests that are wrong, and to HTTP that is not its own."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control_plane.api.app import MAX_BODY_BYTES
from control_plane.api.verbs import VERBS
from control_plane.store import StoreUnavailable
from protocol.ids import new_id
from tests.control_plane.api_harness import Api
from tests.control_plane.test_api_access import sound_request


@pytest.fixture
def api(sqlite_api: Api) -> Api:
    return sqlite_api


async def test_every_fault_of_a_request_is_told_at_once_with_a_hint(api: Api) -> None:
    request = {
        "nam": "n1",
        "siteId": "-lab",
        "bmc": {"address": "http://192.0.2.1/redfish", "tls": "maybe", "user": "root", "driver": "redfsh"},
        "labels": {"ok": 1},
        "drivers": {"powr": "ipmi", "boot": "ipm"},
    }
    answer = await api.call("nodes.create", request)
    assert (answer.status, answer.code) == (400, "INVALID_INPUT")
    assert set(answer.faults) == {
        "nam",
        "name",
        "siteId",
        "bmc.address",
        "bmc.tls",
        "bmc.user",
        "bmc.driver",
        "labels.ok",
        "drivers.powr",
        "drivers.boot",
    }
    assert answer.message == "the request has 10 faults"
    hints = {issue["path"]: issue.get("hint") for issue in answer.json["error"]["issues"]}
    assert hints["nam"] == "did you mean 'name'?"
    assert hints["drivers.powr"].startswith("concerns: power, ")


async def test_an_operations_name_and_arguments_are_checked_before_anything_is_looked_for(api: Api) -> None:
    answer = await api.call("drivers.invoke", {"nodeId": "nowhere", "operation": "power.setPowr"})
    assert answer.json["error"]["issues"][0]["hint"].startswith("did you mean power.setPower")
    wrong = {"nodeId": "nowhere", "operation": "power.setPower", "args": {"action": "of", "wait": 3, "x": 1}}
    assert set((await api.call("drivers.invoke", wrong)).faults) == {"args.action", "args.wait", "args.x"}
    sound = {"nodeId": "nowhere", "operation": "power.setPower", "args": {"action": "off"}}
    assert (await api.call("drivers.invoke", sound)).code == "NOT_FOUND"


async def test_plain_http_to_a_bmc_wants_consent(api: Api) -> None:
    await api.site()
    plain = {"name": "n1", "siteId": "lab", "bmc": {"address": "http://192.0.2.1"}}
    assert "consent with tls: none" in (await api.call("nodes.create", plain)).faults["bmc.tls"]
    assert await api.ok("nodes.create", {**plain, "bmc": {"address": "http://127.0.0.1:8000"}})
    assert await api.ok(
        "nodes.create", {**plain, "name": "n2", "bmc": {"address": "http://192.0.2.1", "tls": "none"}}
    )
    change = {"nodeId": "n2", "bmc": {"tls": "verify"}}
    assert "consent with tls: none" in (await api.call("nodes.update", change)).faults["bmc.tls"]


async def test_a_password_in_an_address_is_refused_and_not_repeated(api: Api) -> None:
    await api.site()
    request = {"name": "n1", "siteId": "lab", "bmc": {"address": "https://root:calvin@192.0.2.1"}}
    answer = await api.call("nodes.create", request)
    assert answer.status == 400
    assert b"calvin" not in answer.body


@pytest.mark.parametrize("tenant", ["", "a b", "a" * 129, "ümlaut", "a\n", "*"])
async def test_a_tenants_id_has_a_form(api: Api, tenant: str) -> None:
    assert "tenantId" in (await api.call("nodes.list", {"tenantId": tenant})).faults


@pytest.mark.parametrize("length", [26, 52])
async def test_a_commands_id_of_the_right_form_is_looked_for(api: Api, length: int) -> None:
    assert (await api.call("commands.get", {"commandId": f"cmd_{'0' * length}"})).code == "NOT_FOUND"


@pytest.mark.parametrize(
    "body", ["0" * 25, "0" * 53, "i" * 26, "l" * 26, "o" * 26, "u" * 26, "A" * 26, "0" * 26 + "\n"]
)
async def test_a_commands_id_of_another_form_is_refused_before_it_is_looked_for(api: Api, body: str) -> None:
    assert "commandId" in (await api.call("commands.get", {"commandId": f"cmd_{body}"})).faults


@pytest.mark.parametrize(
    ("limit", "taken"), [(1, True), (100, True), (0, False), (101, False), (1.5, False), ("5", False)]
)
async def test_a_page_has_one_to_a_hundred_rows(api: Api, limit: object, taken: bool) -> None:
    for verb in VERBS.values():
        if verb.method in ("list", "matrix") and verb.subject is None:
            assert ((await api.call(verb.id, {"limit": limit})).status == 200) is taken


async def test_a_cursor_that_is_not_the_lists_own_is_refused(api: Api) -> None:
    for verb in VERBS.values():
        if verb.method not in ("list", "matrix") or verb.subject is not None:
            continue
        for cursor in ("?", "AAAA", "x" * 257, "bm9kZV8", ""):
            assert set((await api.call(verb.id, {"cursor": cursor})).faults) == {"cursor"}, (verb.id, cursor)


async def test_texts_have_limits(api: Api) -> None:
    command = new_id("cmd")
    assert (await api.call("commands.cancel", {"commandId": command, "reason": "r" * 512})).code == "NOT_FOUND"
    assert set((await api.call("commands.cancel", {"commandId": command, "reason": "r" * 513})).faults) == {"reason"}
    assert set((await api.call("commands.cancel", {"commandId": command, "reason": "a\x00b"})).faults) == {"reason"}
    invoke = {"nodeId": "n1", "operation": "power.getPower"}
    for name, value in (("waitMs", 60_001), ("waitMs", -1), ("timeout", "8d"), ("timeout", "soon"), ("key", "a b")):
        assert set((await api.call("drivers.invoke", {**invoke, name: value})).faults) == {name}


async def test_a_name_must_not_look_like_an_id(api: Api) -> None:
    assert set((await api.call("sites.create", {"name": new_id("site")})).faults) == {"name"}


# HTTP


async def test_only_post_is_taken_and_the_answer_says_so(api: Api) -> None:
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        answer = await api.http(method, "/api/compute/nodes/list")
        assert (answer.status, answer.headers["allow"]) == (405, "POST, OPTIONS")
        assert answer.message == "this path takes POST only"
    answer = await api.http("OPTIONS", "/api/compute/nodes/list")
    assert (answer.status, answer.headers["allow"], answer.body) == (204, "POST, OPTIONS", b"")


async def test_an_unknown_verb_names_close_ones(api: Api) -> None:
    answer = await api.call("nodes.lst")
    assert (answer.status, answer.code) == (404, "NOT_FOUND")
    assert "nodes.list" in answer.message
    answer = await api.http("GET", "/nothing/here")
    assert (answer.status, answer.code) == (404, "NOT_FOUND")


async def test_a_body_that_is_not_json_is_told_apart_from_one_that_says_it_is_not(api: Api) -> None:
    path = "/api/compute/nodes/list"
    form = await api.http("POST", path, b"a=b", headers={"content-type": "application/x-www-form-urlencoded"})
    assert (form.status, form.code) == (415, "INVALID_INPUT")
    assert "Content-Type: application/json" in form.message
    for body in (b"", b"{", b"\xff", b'{"a": NaN}', b"[" * 100_000, b'"\\ud800"'):
        answer = await api.http("POST", path, body)
        assert (answer.status, answer.code) == (400, "INVALID_INPUT"), body[:10]
    charset = await api.http("POST", path, b"{}", headers={"content-type": "application/json; charset=utf-8"})
    assert charset.status == 200


async def test_a_body_over_the_limit_is_refused_however_it_comes(api: Api) -> None:
    path = "/api/compute/nodes/list"
    told = await api.http("POST", path, b"{}", headers={"content-length": str(MAX_BODY_BYTES + 1)})
    sent = await api.http("POST", path, b" " * (MAX_BODY_BYTES + 1))
    for answer in (told, sent):
        assert (answer.status, answer.code) == (413, "TOO_LARGE")
    assert (await api.http("POST", path, b"{}".ljust(MAX_BODY_BYTES))).status == 200


async def test_a_requests_id_is_ones_own_when_it_is_sound(api: Api) -> None:
    path = "/api/compute/nodes/get"
    own = await api.http("POST", path, b"{}", headers={"x-request-id": "deploy-42"})
    assert own.json["error"]["requestId"] == own.headers["x-request-id"] == "deploy-42"
    made = await api.http("POST", path, b"{}", headers={"x-request-id": "not one\x7f"})
    assert made.headers["x-request-id"].startswith("req_")


async def test_a_store_that_cannot_answer_is_unavailable_and_says_why(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.ok("nodes.list")

    async def full(*_: object) -> None:
        raise StoreUnavailable(
            "no room for the database /x/y.db", cause="database or disk is full", advice="Free some"
        )

    monkeypatch.setattr(api.store, "write", full)
    answer = await api.call("sites.create", {"name": "lab"})
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "UNAVAILABLE", "2")
    assert "no room for the database" in answer.message


async def test_a_bug_shows_nothing_of_the_inside(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.ok("nodes.list")

    async def broken(*_: object) -> None:
        raise ZeroDivisionError("secret inside")

    monkeypatch.setattr(api.store, "write", broken)
    answer = await api.call("sites.create", {"name": "lab"})
    assert (answer.status, answer.code) == (500, "INTERNAL")
    assert answer.json["error"]["requestId"] in answer.message
    assert b"secret" not in answer.body


async def test_health_readiness_and_metrics(api: Api) -> None:
    assert (await api.http("GET", "/healthz", token="-")).json == {"status": "ok"}
    assert (await api.http("HEAD", "/healthz")).status == 200
    assert (await api.http("GET", "/readyz")).json == {"status": "ready"}
    api.not_ready = "the database does not answer"
    answer = await api.http("GET", "/readyz")
    assert (answer.status, answer.message) == (503, "the database does not answer")
    await api.call("nodes.list")
    await api.call("nodes.nonsense")
    metrics = (await api.http("GET", "/metrics")).body.decode()
    assert 'rackwright_api_requests_total{status="200",verb="nodes.list"} 1.0' in metrics
    assert 'rackwright_api_requests_total{status="404",verb="unknown"} 1.0' in metrics
    assert "rackwright_connected_agents 0.0" in metrics


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = sorted({field.encode_name for verb in VERBS.values() for field in msgspec.structs.fields(verb.request)})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    verb=st.sampled_from(sorted(VERBS)),
    noise=st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=4),
    sound=st.booleans(),
)
async def test_no_json_at_all_makes_the_server_fail(api: Api, verb: str, noise: dict[str, Any], sound: bool) -> None:
    request = (sound_request(VERBS[verb], new_id("node")) if sound else {}) | noise
    if isinstance(request.get("waitMs"), int):
        request["waitMs"] = 0
    answer = await api.call(verb, request)
    assert answer.status < 500, answer.body


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(verb=st.sampled_from(sorted(VERBS)), body=st.binary(max_size=60))
async def test_no_bytes_at_all_make_the_server_fail(api: Api, verb: str, body: bytes) -> None:
    assert (await api.http("POST", VERBS[verb].path, body)).status < 500
