"""Logins that are cut short, refused in odd words, or answered with the password itself."""

import asyncio
import base64
import contextlib
import html
import json
import logging
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from drivers import Drivers, Target
from protocol.errors import ErrorCode, OperationError
from simulators.redfish import Effect, FaultRule
from tests.drivers.redfish.harness import SESSIONS, SYSTEM, bench, without_waiting
from tests.drivers.redfish.raw_bmc import PASSWORD, RESET, Asked, http, raw_bench
from tests.drivers.redfish.test_secrets import everything_said

SLOW_LOGIN = FaultRule(method="POST", path=SESSIONS, answer_late=8.0)


@without_waiting
async def test_a_login_whose_caller_was_cancelled_does_not_spoil_a_later_one() -> None:
    async with bench(faults=[SLOW_LOGIN]) as bmc:
        first = asyncio.create_task(bmc("power.getPower"))
        await asyncio.sleep(2)
        first.cancel()
        await asyncio.wait({first})
        await asyncio.sleep(20)
        assert bmc.bmc.state.sessions_created == 1
        bmc.bmc.state.end_sessions()
        assert (await bmc("power.getPower"))["state"] == "on"
        assert bmc.bmc.state.sessions_created == 2


@without_waiting
async def test_a_session_of_a_login_that_was_under_way_at_the_end_is_ended() -> None:
    async with bench(faults=[SLOW_LOGIN]) as bmc:
        first = asyncio.create_task(bmc("power.getPower"))
        await asyncio.sleep(2)
        first.cancel()
        await bmc.drivers.aclose()
        assert bmc.bmc.state.sessions_created == 1
        assert bmc.bmc.state.open_sessions == []


@without_waiting
async def test_a_caller_with_time_logs_in_where_the_login_of_one_without_failed() -> None:
    busy = FaultRule(method="POST", path=SESSIONS, sequence=(Effect(status=503, headers={"Retry-After": "9"}),))
    async with bench(faults=[busy]) as bmc:
        hasty = asyncio.create_task(bmc("power.getPower", timeout=5))
        await asyncio.sleep(0)
        hasty.cancel()
        patient = asyncio.create_task(bmc("power.getPower", timeout=60))
        await asyncio.wait({hasty})
        assert (await patient)["state"] == "on"


REFUSALS = {
    "iLO's own message": (
        400,
        {"error": {"@Message.ExtendedInfo": [{"MessageId": "iLO.2.UnauthorizedLoginAttempt"}]}},
    ),
    "a plain sentence": (400, {"error": {"code": "X", "message": "Invalid username or password"}}),
    "a general error": (400, {"error": {"code": "Base.1.0.GeneralError", "message": "Authentication failed."}}),
    "a page": (401, "<html>no</html>"),
    "a server error": (500, {"error": {"code": "X", "message": "Login failed: incorrect password"}}),
    "a locked account": (403, {"error": {"code": "X", "message": "The account is locked"}}),
    "a success without a token": (200, {}),
}


@pytest.mark.case("B34")
@pytest.mark.parametrize(("status", "body"), REFUSALS.values(), ids=REFUSALS.keys())
@without_waiting
async def test_a_refused_login_is_tried_once_in_whatever_words_it_was_refused(status: int, body: object) -> None:
    async with bench(faults=[FaultRule(method="POST", path=SESSIONS, status=status, body=body)]) as bmc:
        codes = [(await bmc.fails("power.getPower")).code for _ in range(4)]
        assert codes == [ErrorCode.AUTH_FAILED, *[ErrorCode.AUTH_BLOCKED] * 3]
        assert len(bmc.requests("POST")) == 1


@without_waiting
async def test_a_login_that_is_sent_elsewhere_says_where_to_and_blocks_nothing() -> None:
    moved = FaultRule(method="POST", path=SESSIONS, status=307, headers={"Location": "https://bmc.example/login"})
    async with bench(faults=[moved]) as bmc:
        error = await bmc.fails("power.getPower")
        assert error.code is ErrorCode.BMC_ERROR
        assert "https://bmc.example/login" in error.message
        bmc.bmc.faults.clear()
        assert (await bmc("power.getPower"))["state"] == "on"


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "JSON": lambda secret: json.dumps(secret)[1:-1],
    "JSON with its letters": lambda secret: json.dumps(secret, ensure_ascii=False)[1:-1],
    "an address": lambda secret: quote(secret, safe=""),
    "a form": quote_plus,
    "a page": html.escape,
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("place", ["GET system", "POST login", "POST reset", "location", "status line"])
@without_waiting
async def test_a_password_that_a_bmc_repeats_in_any_form_is_in_no_error_and_no_log(
    form: Callable[[str], str], place: str, caplog: pytest.LogCaptureFixture
) -> None:
    repeated = form(PASSWORD)
    caplog.set_level(logging.DEBUG)
    body = {"error": {"code": f"X.{repeated}", "message": f"got {repeated}"}}
    where = quote(repeated, safe="%/=+&;-._") if not repeated.isascii() else repeated
    special: dict[str, bytes | Callable[[Asked], bytes]] = {
        "GET system": {SYSTEM: http(body, "500 X")},
        "POST login": {f"POST {SESSIONS}": http(body, "400 X")},
        "POST reset": {f"POST {RESET}": http(body, "400 X")},
        "location": {SYSTEM: http({}, "307 X", f"Location: https://h/?p={where}\r\n")},
        "status line": {SYSTEM: f"HTTP/1.1 abc {where}\r\n\r\n".encode()},
    }[place]  # type: ignore[assignment]
    async with raw_bench(special) as bmc:
        error = await bmc.fails("power.setPower", action="reset")
        said = everything_said(error) + caplog.text
        for hidden in (repeated, where, PASSWORD):
            assert hidden not in said


@without_waiting
async def test_a_session_s_token_that_a_bmc_repeats_is_in_no_error() -> None:
    def echo(asked: Asked) -> bytes:
        return http({"error": {"message": f"no right for {asked.headers['x-auth-token']}"}}, "403 Forbidden")

    async with raw_bench({SYSTEM: echo}) as bmc:
        error = await bmc.fails("power.getPower")
        assert "T0ken" not in everything_said(error)
        assert "no right for ***" in str(error)


@pytest.mark.parametrize("verify", ["first-use", "verify", "none"])
async def test_a_port_that_takes_the_connection_and_says_nothing_ends_within_the_deadline(verify: str) -> None:
    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    target = Target(address=f"https://127.0.0.1:{port}", username="admin", password=PASSWORD, verify=verify)
    async with server, Drivers() as drivers:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(4):
                with pytest.raises(Exception, match=r"cannot be reached|did not answer") as caught:
                    await drivers.invoke(target, "power.setPower", {"action": "reset"}, timeout=1)
                assert getattr(caught.value, "code", None) is ErrorCode.UNREACHABLE
                for writer in writers:
                    writer.transport.abort()
                await asyncio.sleep(0)
                return
        raise AssertionError("the operation outlived its deadline")


@pytest.mark.parametrize("operation", ["power.getPower", "virtual-media.listMedia", "management.getSensors"])
@without_waiting
async def test_an_operation_that_is_cancelled_anywhere_leaves_no_session_and_no_lock(operation: str) -> None:
    async with bench() as bmc:
        bmc.bmc.latency = 0.2
        for pause in (0.0, 0.05, 0.15, 0.25, 0.35, 0.45, 0.65, 1.05):
            asking = asyncio.create_task(bmc(operation))
            await asyncio.sleep(pause)
            asking.cancel()
            await asyncio.wait({asking})
        assert (await bmc("power.getPower"))["state"] == "on"
        assert len(bmc.bmc.state.open_sessions) == 1
        await bmc.drivers.aclose()
        assert bmc.bmc.state.open_sessions == []


@without_waiting
async def test_the_end_in_the_middle_of_a_request_ends_the_session_too() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, latency=30.0))
        asking = asyncio.create_task(bmc("power.getPower"))
        await asyncio.sleep(1)
        await bmc.drivers.aclose()
        with pytest.raises(OperationError, match="without an answer"):
            await asking
        assert bmc.bmc.state.open_sessions == []
        assert bmc.bmc.state.sessions_created == 1
