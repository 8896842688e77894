"""Answers that no HTTP library would give: what is good in them is read, and nothing else does harm."""

import gzip
import json
from collections.abc import Callable

import pytest

from protocol.errors import ErrorCode, OperationError
from tests.drivers.redfish.harness import without_waiting
from tests.drivers.redfish.raw_bmc import COLLECTION, HOST, RESET, ROOT, SESSIONS, SYSTEM, Asked, http, raw_bench

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
BODY = json.dumps(HOST).encode()

READABLE = {
    "HTTP/1.0 without a length": http(HOST, version="HTTP/1.0", length=False),
    "without a content type": http(HOST),
    "as text/html": http(HOST, headers="Content-Type: text/html\r\n"),
    "with a byte order mark": http(b"\xef\xbb\xbf" + BODY),
    "gzip although identity was asked for": http(gzip.compress(BODY), headers="Content-Encoding: gzip\r\n"),
    "in chunks of one byte": CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n",
    "after a 100 Continue": b"HTTP/1.1 100 Continue\r\n\r\n" + http(HOST),
    "after three 103 Early Hints": b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" * 3 + http(HOST),
    "with headers that come twice": http(HOST, headers='ETag: "1"\r\nETag: "2"\r\nServer: a\r\nServer: b\r\n'),
    "with half a surrogate pair": http(BODY[:-1] + b', "Model": "\\ud800x"}'),
    "with a number that is too large": http(BODY[:-1] + b', "x": 1e999, "y": ' + b"9" * 400 + b"}"),
    "with a bare newline in a text": http(BODY[:-1] + b', "Description": "one\ntwo"}'),
}


@pytest.mark.parametrize("answer", READABLE.values(), ids=READABLE.keys())
@without_waiting
async def test_an_odd_answer_is_read_for_what_is_in_it(answer: bytes) -> None:
    async with raw_bench({SYSTEM: answer}) as bmc:
        assert (await bmc("power.getPower"))["state"] == "on"
        json.dumps(await bmc("management.getInfo"), ensure_ascii=False).encode()


BROKEN = {
    "204 for a resource": http(status="204 No Content"),
    "an empty 200": http(),
    "a 200 that holds an error": http({"error": {"code": "X", "message": "the cache is rebuilt"}}),
    "a list": http([1, 2]),
    "brackets to the end of the world": http(b"[" * 200_000),
    "a content encoding that nobody knows": http(b"??", headers="Content-Encoding: br\r\n"),
    "gzip that is none": http(b"{}", headers="Content-Encoding: gzip\r\n"),
    "a bomb of zeros": http(gzip.compress(bytes(64 << 20)), headers="Content-Encoding: gzip\r\n"),
    "a length that is a word": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}",
    "a header without an end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    "another protocol": b"SSH-2.0-dropbear\r\n",
    "a chunk that lies": CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN.keys())
@without_waiting
async def test_a_broken_answer_is_a_typed_error_at_once(answer: bytes) -> None:
    async with raw_bench({SYSTEM: answer}) as bmc:
        error = await bmc.fails("power.getPower")
        assert error.code in (ErrorCode.BMC_ERROR, ErrorCode.UNREACHABLE), error
        assert "failed in the driver" not in error.message


@without_waiting
async def test_the_words_of_an_error_that_was_sent_as_a_success_are_kept() -> None:
    async with raw_bench({SYSTEM: BROKEN["a 200 that holds an error"]}) as bmc:
        for operation in ("power.getPower", "boot.getBoot", "management.getInfo"):
            error = await bmc.fails(operation)
            assert [said.text for said in error.bmc] == ["the cache is rebuilt"], operation
        assert bmc.bmc.paths("POST") == [SESSIONS]


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN.keys())
@without_waiting
async def test_a_broken_answer_to_a_reset_never_sends_it_again(answer: bytes) -> None:
    async with raw_bench({f"POST {RESET}": answer}) as bmc:
        ended: ErrorCode | None = None
        try:
            await bmc("power.setPower", action="reset", wait=False)
        except OperationError as error:
            ended = error.code
        assert ended in (None, ErrorCode.OUTCOME_UNKNOWN)
        assert bmc.bmc.paths("POST").count(RESET) == 1


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
@pytest.mark.parametrize("where", ["http://203.0.113.5/redfish/v1/x", f"{RESET}/", RESET, "//203.0.113.5/", "/login"])
@without_waiting
async def test_a_redirected_reset_is_sent_once_and_followed_nowhere(status: str, where: str) -> None:
    async with raw_bench({f"POST {RESET}": http(status=status, headers=f"Location: {where}\r\n")}) as bmc:
        error = await bmc.fails("power.setPower", action="reset")
        assert error.code is ErrorCode.BMC_ERROR
        assert where in error.message
        assert bmc.bmc.paths("POST").count(RESET) == 1


@without_waiting
async def test_a_body_that_drips_for_ever_ends_with_the_operation() -> None:
    async with raw_bench({SYSTEM: http(HOST)}, drip=5.0) as bmc:
        error = await bmc.fails("power.getPower", timeout=30)
        assert error.code is ErrorCode.UNREACHABLE
        bmc.bmc.drip = 0.0
        assert (await bmc("power.getPower"))["state"] == "on"


@pytest.mark.parametrize(
    "location",
    [
        f"http://203.0.113.5{SESSIONS}/7",
        f"//203.0.113.5{SESSIONS}/7",
        f"http://admin:pw@203.0.113.5{SESSIONS}/7",
        f"http://[::1{SESSIONS}/7",
        f"HTTPS://203.0.113.5:99999{SESSIONS}/7",
        f" {SESSIONS}/7 ",
        f"{SESSIONS}/7?a=1#x",
        f"{SESSIONS}/a b",
        "http://203.0.113.5",
        "javascript:alert(1)",
        "\xff\xfe",
    ],
)
@without_waiting
async def test_wherever_a_session_is_said_to_be_it_is_ended_at_the_bmc_only(location: str) -> None:
    """A token that is sent elsewhere is stolen; a Location that cannot be read must not lose the session either."""
    login = http({}, "201 Created", f"X-Auth-Token: T0ken\r\nLocation: {location}\r\n").replace(
        location.encode(), location.encode("latin-1")
    )
    async with raw_bench({f"POST {SESSIONS}": login}) as bmc:
        assert (await bmc("power.getPower"))["state"] == "on"
        await bmc.drivers.aclose()
        [ended] = [one for one in bmc.bmc.asked if one.method == "DELETE"]
        assert ended.headers["host"] == f"127.0.0.1:{bmc.bmc.port}"
        assert ended.headers["x-auth-token"] == "T0ken"


@pytest.mark.parametrize(
    "link",
    [
        f"http://203.0.113.5{SYSTEM}",
        f"https://[::1{SYSTEM}",
        f"//203.0.113.5{SYSTEM}",
        f"{SYSTEM}/",
        f"{SYSTEM}#/x",
        SYSTEM.upper().replace("/REDFISH/V1", "/redfish/v1"),
    ],
)
@without_waiting
async def test_a_link_to_another_host_is_followed_at_the_bmc_only(link: str) -> None:
    def lenient(asked: Asked) -> bytes:
        return http(HOST)

    special = dict.fromkeys((f"{SYSTEM}/", "/redfish/v1/SYSTEMS/1", f"//203.0.113.5{SYSTEM}"), lenient)
    collection = http({**COLLECTION, "Members": [{"@odata.id": link}]})
    async with raw_bench({"/redfish/v1/Systems": collection, **special}) as bmc:
        assert (await bmc("power.getPower"))["state"] == "on"
        assert {one.headers["host"] for one in bmc.bmc.asked} == {f"127.0.0.1:{bmc.bmc.port}"}


@pytest.mark.parametrize("tag", ['"a\\nb"', "x\r\nX-Evil: 1", '"\u00e9"', '"', "W/", '""', "*"])
@without_waiting
async def test_a_tag_that_no_header_can_carry_does_not_end_the_change(tag: str) -> None:
    light = {**HOST, "IndicatorLED": "Off", "@odata.etag": tag}

    def switched(asked: Asked) -> bytes:
        light["IndicatorLED"] = json.loads(asked.body)["IndicatorLED"]
        return http(light)

    async with raw_bench({f"GET {SYSTEM}": lambda _: http(light), f"PATCH {SYSTEM}": switched}) as bmc:
        assert await bmc("management.setIndicator", state="on") == {"state": "on"}
        assert "x-evil" not in bmc.bmc.asked[-1].headers


@pytest.mark.parametrize(
    "header",
    [
        "Mon, 01 Jan 99999999999 00:00:00 GMT",
        "Mon, 01 Jan 2026 00:00:00 +99999999999999999999",
        "-1e400",
        "١٢",
        "0x10",
        "5, 7",
        ";",
    ],
)
@without_waiting
async def test_a_retry_after_of_nonsense_is_no_reason_to_fail(header: str) -> None:
    busy = [True, True]

    def system(asked: Asked) -> bytes:
        if busy:
            busy.pop()
            return http({}, "503 Service Unavailable", f"Retry-After: {header}\r\n")
        return http(HOST)

    async with raw_bench({SYSTEM: system}) as bmc:
        assert (await bmc("power.getPower", timeout=400))["state"] == "on"


@without_waiting
async def test_a_bmc_that_says_try_at_once_for_ever_is_not_hammered() -> None:
    busy = http({}, "503 Service Unavailable", "Retry-After: 0\r\n")
    async with raw_bench({SYSTEM: busy}) as bmc:
        assert (await bmc.fails("power.getPower", timeout=300)).code is ErrorCode.BUSY
        assert len(bmc.bmc.paths("GET")) < 80


@without_waiting
async def test_a_collection_whose_pages_lead_on_for_ever_ends() -> None:
    log, entries = "/redfish/v1/Systems/1/LogServices/SEL", "/redfish/v1/Systems/1/LogServices/SEL/Entries"
    number = [0]

    def page(asked: Asked) -> bytes:
        number[0] += 1
        entry = {"@odata.id": f"{entries}/{number[0]}", "Id": str(number[0]), "Message": "x" * 100_000}
        return http({"Members": [entry], "Members@odata.nextLink": f"{entries}?skip={number[0]}"})

    special: dict[str, bytes | Callable[[Asked], bytes]] = {
        SYSTEM: http({**HOST, "LogServices": {"@odata.id": f"{SYSTEM}/LogServices"}}),
        f"{SYSTEM}/LogServices": http({"Members": [{"@odata.id": log}]}),
        log: http({"Id": "SEL", "Name": "SEL", "Entries": {"@odata.id": entries}}),
        entries: page,
        **{f"{entries}?skip={skipped}": page for skipped in range(2000)},
    }
    async with raw_bench(special) as bmc:
        result = await bmc("management.getEventLog", timeout=600, limit=5)
        assert len(result["entries"]) == 5
        assert number[0] <= 700
        assert ROOT["@odata.id"] in bmc.bmc.paths("GET")
