"""Answers that are none: each ends in an error that says what was met and what to do, soon and in bounded memory."""

import asyncio
import socket
import tracemalloc
from collections.abc import Iterator

import pytest

from drivers import Drivers, Target
from drivers.redfish.failures import NoAnswer
from drivers.redfish.transport import Transport
from protocol.errors import ErrorCode, OperationError
from simulators.redfish import Drop, Effect, FaultRule, RawAnswer
from tests.drivers.redfish.harness import PASSWORD, RESET, SESSIONS, SYSTEM, bench, without_waiting


async def failure_at(address: str, timeout: float = 60, **options: object) -> OperationError:
    async with Drivers() as drivers:
        target = Target(address=address, username="admin", password=PASSWORD, **options)  # type: ignore[arg-type]
        with pytest.raises(OperationError) as caught:
            await drivers.invoke(target, "power.getPower", timeout=timeout)
        return caught.value


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield int(listening.getsockname()[1])


async def test_a_bmc_that_is_down_is_unreachable_at_once(closed_port: int) -> None:
    error = await failure_at(f"http://127.0.0.1:{closed_port}")
    assert error.code is ErrorCode.UNREACHABLE
    assert "refused" in error.message


async def test_a_name_that_nobody_knows_is_said_so() -> None:
    error = await failure_at("https://no-such-bmc.invalid")
    assert error.code is ErrorCode.UNREACHABLE
    assert "DNS" in error.message


@without_waiting
async def test_a_bmc_that_takes_the_connection_and_never_answers_ends_within_its_time(silent_port: int) -> None:
    clock = asyncio.get_running_loop().time
    started = clock()
    error = await failure_at(f"http://127.0.0.1:{silent_port}", timeout=20)
    assert error.code is ErrorCode.UNREACHABLE
    assert clock() - started < 26


@without_waiting
async def test_a_port_that_speaks_no_tls_is_said_so() -> None:
    async with bench() as bmc:
        error = await failure_at(bmc.bmc.url.replace("http://", "https://"), verify=False)
        assert error.code is ErrorCode.UNREACHABLE
        assert "TLS handshake" in error.message


PAGES = {
    "a login page": Effect(
        status=200, body="<html><form>Log in</form></html>", headers={"Content-Type": "text/html"}
    ),
    "an empty answer": Effect(status=200, raw=RawAnswer(text="", content_type="application/json")),
    "a JSON list": Effect(status=200, body=[1, 2]),
    "JSON that ends too soon": Effect(raw=RawAnswer(text='{"PowerState": "O', content_type="application/json")),
    "plain text": Effect(raw=RawAnswer(text="hello", content_type="text/plain")),
    "bytes that are no text": Effect(raw=RawAnswer(base64="//79/P8=", content_type="application/json")),
    "deeply nested JSON": Effect(raw=RawAnswer(text="[" * 100_000, content_type="application/json")),
}


@pytest.mark.parametrize("effect", PAGES.values(), ids=PAGES.keys())
@pytest.mark.parametrize("path", ["/redfish/v1", "/redfish/v1/Systems", SYSTEM])
@without_waiting
async def test_an_answer_that_is_no_redfish_is_a_bmc_error_that_shows_it(path: str, effect: Effect) -> None:
    async with bench(faults=[FaultRule(method="GET", path=path, sequence=(effect,), count=99)]) as bmc:
        error = await bmc.fails("power.getPower")
        assert error.code is ErrorCode.BMC_ERROR
        assert path in error.message


@pytest.mark.parametrize(
    "raw",
    [
        RawAnswer(text='\ufeff{"PowerState": "On"}', content_type="text/html"),
        RawAnswer(text='{"PowerState": "On", "Reading": NaN}', content_type="application/json"),
        RawAnswer(base64="eyJQb3dlclN0YXRlIjogIk9uIiwgIk5hbWUiOiAi/yJ9", content_type="application/octet-stream"),
    ],
)
@without_waiting
async def test_json_under_a_wrong_type_or_with_stray_bytes_is_read(raw: RawAnswer) -> None:
    async with bench(faults=[FaultRule(method="GET", path=SYSTEM, raw=raw)]) as bmc:
        for _ in range(2):
            assert (await bmc("power.getPower"))["state"] == "on"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@without_waiting
async def test_a_redirect_is_not_followed_and_says_where_it_leads(status: int) -> None:
    away = FaultRule(
        method="GET", path="/redfish/v1", status=status, headers={"Location": "https://203.0.113.5/login"}
    )
    async with bench(faults=[away]) as bmc:
        error = await bmc.fails("power.getPower")
        assert error.code is ErrorCode.BMC_ERROR
        assert "https://203.0.113.5/login" in error.message
        assert bmc.requests("POST") == []


@pytest.mark.case("B59")
@without_waiting
async def test_a_redirect_to_the_other_spelling_of_a_path_is_followed() -> None:
    rule = FaultRule(method="GET", path=SYSTEM, count=1, status=308, headers={"Location": f"{SYSTEM}/"})
    async with bench(faults=[rule]) as bmc:
        assert (await bmc("power.getPower"))["state"] == "on"


@without_waiting
async def test_a_redirected_order_is_not_followed() -> None:
    rule = FaultRule(method="POST", path=RESET, status=307, headers={"Location": f"{SYSTEM}/Actions/Other"})
    async with bench(faults=[rule]) as bmc:
        assert (await bmc.fails("power.setPower", {"action": "reset"})).code is ErrorCode.BMC_ERROR
        assert len(bmc.requests("POST", "/redfish/v1/Systems/*")) == 1


@pytest.mark.parametrize("path", ["/redfish/v1", SYSTEM])
async def test_an_answer_of_a_hundred_megabytes_is_cut_off_in_little_memory(path: str) -> None:
    async with bench(faults=[FaultRule(method="GET", path=path, raw=RawAnswer(megabytes=100))]) as bmc:
        tracemalloc.start()
        error = await bmc.fails("power.getPower")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert error.code is ErrorCode.BMC_ERROR
        assert "16 MiB" in error.message
        assert peak < 64 * 1024 * 1024


@without_waiting
async def test_a_read_whose_answer_is_cut_off_is_asked_once_more() -> None:
    cut = RawAnswer(truncate_at=40)
    async with bench(faults=[FaultRule(method="GET", path=SYSTEM, count=1, raw=cut)]) as bmc:
        assert (await bmc("power.getPower"))["state"] == "on"
    async with bench(faults=[FaultRule(method="GET", path=SYSTEM, raw=cut)]) as bmc:
        error = await bmc.fails("power.getPower")
        assert error.code is ErrorCode.UNREACHABLE
        assert "cut its answer off" in error.message
        assert len(bmc.requests("GET", SYSTEM)) == 2


@without_waiting
async def test_a_read_on_a_connection_that_the_bmc_closed_is_asked_once_more() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, count=1, drop=Drop.BEFORE))
        assert (await bmc("power.getPower"))["state"] == "on"
        bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, drop=Drop.BEFORE))
        before = len(bmc.requests("GET", SYSTEM))
        assert (await bmc.fails("power.getPower")).code is ErrorCode.UNREACHABLE
        assert len(bmc.requests("GET", SYSTEM)) == before + 2


@without_waiting
async def test_a_bmc_that_closes_kept_connections_gets_a_new_one_for_each_request() -> None:
    async with bench() as bmc:
        for _ in range(3):
            await bmc("power.getPower")
            bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, count=1, drop=Drop.BEFORE))
            await bmc("power.getPower")
        before = len(bmc.bmc.journal)
        await bmc("power.getPower")
        (entry,) = list(bmc.bmc.journal)[before:]
        assert entry.headers["Connection"] == "close"


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("drop", [Drop.BEFORE, Drop.AFTER])
@without_waiting
async def test_a_change_is_never_sent_twice_by_itself(method: str, drop: Drop) -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        bmc.bmc.faults.add(FaultRule(method=method, path="/redfish/v1/Systems/*", drop=drop))
        operation, arguments = {
            "POST": ("power.setPower", {"action": "off"}),
            "PATCH": ("boot.setBootDevice", {"device": "pxe"}),
        }[method]
        if drop is Drop.AFTER:
            await bmc(operation, arguments)
        else:
            assert (await bmc.fails(operation, arguments)).code is ErrorCode.OUTCOME_UNKNOWN
        assert len(bmc.requests(method, "/redfish/v1/Systems/*")) == 1


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST", "PATCH"])
@without_waiting
async def test_one_exchange_is_one_request_whatever_the_method(method: str) -> None:
    async with bench(faults=[FaultRule(path="/redfish/v1/Systems/*", drop=Drop.BEFORE)]) as bmc:
        transport = Transport(bmc.target, bmc.target.endpoint, {})
        for fresh in (False, True):
            with pytest.raises(NoAnswer):
                await transport.exchange(method, SYSTEM, {}, 10, None, fresh=fresh)
        await transport.aclose()
        assert bmc.requests(method, SYSTEM) == [SYSTEM, SYSTEM]


@without_waiting
async def test_a_lost_login_answer_is_unreachable_and_not_sent_again() -> None:
    async with bench(faults=[FaultRule(method="POST", path=SESSIONS, drop=Drop.AFTER)]) as bmc:
        assert (await bmc.fails("power.getPower")).code is ErrorCode.UNREACHABLE
        assert len(bmc.requests("POST", SESSIONS)) == 1


@without_waiting
async def test_a_bmc_that_sends_compressed_only_is_asked_for_that() -> None:
    rule = FaultRule(method="GET", path=SYSTEM, match_headers={"Accept-Encoding": "identity"}, status=406)
    async with bench(faults=[rule]) as bmc:
        assert (await bmc("power.getPower"))["state"] == "on"
        encodings = [entry.headers["Accept-Encoding"] for entry in bmc.bmc.journal.entries("GET", SYSTEM)]
        assert encodings == ["identity", "gzip, deflate"]


@without_waiting
async def test_each_request_says_which_protocol_it_speaks() -> None:
    async with bench() as bmc:
        await bmc("power.setPower", {"action": "off"})
        for entry in bmc.bmc.journal.entries():
            assert entry.headers["OData-Version"] == "4.0"
            assert entry.headers["Accept"] == "application/json"


@without_waiting
async def test_an_address_with_no_redfish_behind_it_is_said_so() -> None:
    async with bench(faults=[FaultRule(status=404, body="<html>not found</html>")]) as bmc:
        error = await bmc.fails("power.getPower")
        assert error.code is ErrorCode.BMC_ERROR
        assert "no Redfish service" in error.message
        assert bmc.requests("POST") == []


@without_waiting
async def test_the_whole_operation_ends_with_its_time_however_slow_the_bmc() -> None:
    clock = asyncio.get_running_loop().time
    async with bench() as bmc:
        await bmc("power.getPower")
        bmc.bmc.latency = 4
        started = clock()
        error = await bmc.fails("management.qualify", timeout=30)
        assert error.code in (ErrorCode.TIMEOUT, ErrorCode.UNREACHABLE)
        assert clock() - started < 32
