"""The login: one session, one attempt per credential, ended when nobody needs it."""

import asyncio

import pytest

from drivers import Breaker, Drivers, Target
from drivers.redfish.connection import RedfishConnection
from protocol.errors import ErrorCode
from simulators.redfish import Drop, Effect, FaultRule, ServiceOptions
from simulators.redfish.accounts import LoginKind
from tests.drivers.redfish.harness import PASSWORD, RESET, SESSIONS, SYSTEM, bench, without_waiting


@without_waiting
async def test_many_callers_share_one_session_and_it_is_ended_at_the_end() -> None:
    async with bench() as bmc:
        await asyncio.gather(*(bmc("power.getPower") for _ in range(20)))
        assert bmc.bmc.state.sessions_created == 1
        assert len(bmc.bmc.state.open_sessions) == 1
        await bmc.drivers.aclose()
        assert bmc.bmc.state.open_sessions == []
        await bmc.drivers.aclose()


@without_waiting
async def test_one_request_is_under_way_at_a_time() -> None:
    under_way: list[int] = []
    async with bench() as bmc:
        bmc.bmc.latency = 0.2
        service = bmc.bmc.service
        answer = service.answer

        def watched(request: object) -> object:
            under_way.append(sum(entry.status is None for entry in bmc.bmc.journal.entries()))
            return answer(request)  # type: ignore[arg-type]

        service.answer = watched  # type: ignore[method-assign, assignment]
        await asyncio.gather(bmc("power.getPower"), bmc("boot.getBoot"), bmc("management.getInfo"))
        assert set(under_way) == {1}


@without_waiting
async def test_an_idle_session_is_ended_and_a_new_one_opened_when_needed() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        await asyncio.sleep(90)
        assert bmc.bmc.state.open_sessions == []
        await bmc("power.getPower")
        assert bmc.bmc.state.sessions_created == 2


@without_waiting
async def test_a_session_that_is_used_stays_open() -> None:
    async with bench() as bmc:
        for _ in range(10):
            await bmc("power.getPower")
            await asyncio.sleep(30)
        assert bmc.bmc.state.sessions_created == 1


@without_waiting
async def test_a_bmc_whose_sessions_end_soon_is_logged_out_of_before_it_does() -> None:
    async with bench(options=ServiceOptions(session_timeout=30)) as bmc:
        bmc.bmc.state.patch("/redfish/v1/SessionService", {"SessionTimeout": 30})
        await bmc("power.getPower")
        await asyncio.sleep(40)
        await bmc("power.getPower")
        await asyncio.sleep(26)
        deleted = [entry.status for entry in bmc.bmc.journal.entries("DELETE", f"{SESSIONS}/*")]
        assert deleted[-1] in (200, 204)
        assert bmc.bmc.state.open_sessions == []


@without_waiting
async def test_a_logout_that_fails_is_let_be() -> None:
    async with bench(faults=[FaultRule(method="DELETE", status=500)]) as bmc:
        await bmc("power.getPower")
    async with bench(faults=[FaultRule(method="DELETE", drop=Drop.BEFORE)]) as bmc:
        await bmc("power.getPower")


@pytest.mark.parametrize(
    "fault",
    [
        FaultRule(method="POST", path=SESSIONS, remove_headers=("Location",)),
        FaultRule(method="POST", path=SESSIONS, headers={"Location": ""}),
        FaultRule(method="GET", path="/redfish/v1", status=401),
        FaultRule(method="GET", path="/redfish/v1", login=LoginKind.NONE, status=401),
        FaultRule(method="GET", path="/redfish/v1", merge={"Links": None}),
        FaultRule(method="GET", path="/redfish/v1", merge={"Links": None, "SessionService": None}),
        FaultRule(method="GET", path="/redfish/v1", set={"/Links": {}}),
        FaultRule(method="GET", path="/redfish/v1/SessionService", merge={"Sessions": None}),
    ],
)
@without_waiting
async def test_a_session_is_found_opened_and_ended_however_little_the_bmc_says(fault: FaultRule) -> None:
    async with bench(faults=[fault]) as bmc:
        assert (await bmc("power.getPower"))["state"] == "on"
        assert len(bmc.bmc.state.open_sessions) == 1
        await bmc.drivers.aclose()
        assert bmc.bmc.state.open_sessions == []


@without_waiting
async def test_an_absolute_location_is_ended_at_the_bmc_and_nowhere_else() -> None:
    async with bench() as bmc:
        elsewhere = FaultRule(
            method="POST", path=SESSIONS, headers={"Location": f"https://203.0.113.9{SESSIONS}/not-mine"}
        )
        bmc.bmc.faults.add(elsewhere)
        await bmc("power.getPower")
        await bmc.drivers.aclose()
        assert bmc.requests("DELETE") == [f"{SESSIONS}/not-mine"]


@pytest.mark.parametrize("status", [404, 405, 501])
@without_waiting
async def test_a_bmc_without_sessions_is_spoken_to_by_basic(status: int) -> None:
    async with bench(faults=[FaultRule(path="/redfish/v1/SessionService*", status=status)]) as bmc:
        assert (await bmc("power.getPower"))["state"] == "on"
        assert [entry.login for entry in bmc.bmc.journal.entries("GET", SYSTEM)] == ["basic"]


@pytest.mark.case("B34")
@without_waiting
async def test_a_refused_login_is_tried_once_and_blocked_until_the_credential_changes() -> None:
    breaker = Breaker()
    async with bench(password="wrong", breaker=breaker, options=ServiceOptions(lockout_after=3)) as bmc:
        error = await bmc.fails("power.getPower")
        assert error.code is ErrorCode.AUTH_FAILED
        for operation in ("power.getPower", "boot.getBoot", "management.getInfo"):
            assert (await bmc.fails(operation)).code is ErrorCode.AUTH_BLOCKED
        assert len(bmc.requests("POST", SESSIONS)) == 1
        assert not bmc.bmc.state.is_locked("admin")
        async with Drivers(breaker) as others:
            target = Target(address=bmc.bmc.url, username="admin", password="wrong")
            with pytest.raises(Exception, match="AUTH_BLOCKED"):
                await others.invoke(target, "power.getPower")
            right = Target(address=bmc.bmc.url, username="admin", password=PASSWORD)
            assert (await others.invoke(right, "power.getPower"))["state"] == "on"
        assert len(bmc.requests("POST", SESSIONS)) == 2


@pytest.mark.case("B34")
@without_waiting
async def test_callers_at_once_with_a_wrong_password_make_one_attempt() -> None:
    async with bench(password="wrong") as bmc:
        ends = await asyncio.gather(*(bmc.fails("power.getPower") for _ in range(4)))
        assert {end.code for end in ends} == {ErrorCode.AUTH_FAILED, ErrorCode.AUTH_BLOCKED}
        assert len(bmc.requests("POST", SESSIONS)) == 1


@pytest.mark.case("B34")
@without_waiting
async def test_a_rotated_password_ends_the_session_s_use_after_one_refused_login() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        bmc.bmc.state.set_password("admin", "another")
        assert (await bmc("power.getPower"))["state"] == "on"
        bmc.bmc.state.end_sessions()
        assert (await bmc.fails("power.getPower")).code is ErrorCode.AUTH_FAILED
        assert (await bmc.fails("power.getPower")).code is ErrorCode.AUTH_BLOCKED
        assert len(bmc.requests("POST", SESSIONS)) == 2


REFUSALS = {
    "401": Effect(status=401),
    "403": Effect(status=403, body={"error": {"code": "Base.1.8.InsufficientPrivilege", "message": "no"}}),
    "400 of iLO 4": Effect(status=400, body={"Messages": [{"MessageID": "iLO.0.10.UnauthorizedLoginAttempt"}]}),
    "200 without a token, as old Supermicro boards say no": Effect(status=200, body={"Status": "fail"}),
    "201 without a token": Effect(remove_headers=("X-Auth-Token",)),
}


@pytest.mark.case("B34")
@pytest.mark.parametrize("effect", REFUSALS.values(), ids=REFUSALS.keys())
@without_waiting
async def test_every_way_to_refuse_a_login_is_one(effect: Effect) -> None:
    async with bench(faults=[FaultRule(method="POST", path=SESSIONS, sequence=(effect,) * 9)]) as bmc:
        assert (await bmc.fails("power.getPower")).code is ErrorCode.AUTH_FAILED
        assert (await bmc.fails("power.getPower")).code is ErrorCode.AUTH_BLOCKED
        assert len(bmc.requests("POST", SESSIONS)) == 1
        assert "basic" not in {entry.login for entry in bmc.bmc.journal.entries()}


@without_waiting
async def test_a_password_that_must_be_changed_is_said_and_not_blocked() -> None:
    body = {
        "error": {"@Message.ExtendedInfo": [{"MessageId": "Base.1.8.PasswordChangeRequired", "Message": "change"}]}
    }
    async with bench(faults=[FaultRule(method="GET", path="/redfish/v1/Systems*", status=403, body=body)]) as bmc:
        for _ in range(2):
            error = await bmc.fails("power.getPower")
            assert error.code is ErrorCode.AUTH_FAILED
            assert "password changed" in error.message
        assert bmc.bmc.state.sessions_created == 1


@without_waiting
async def test_basic_with_a_wrong_password_is_one_attempt_too() -> None:
    async with bench(password="wrong", faults=[FaultRule(path="/redfish/v1/SessionService*", status=404)]) as bmc:
        assert (await bmc.fails("power.getPower")).code is ErrorCode.AUTH_FAILED
        assert (await bmc.fails("power.getPower")).code is ErrorCode.AUTH_BLOCKED
        assert sum(entry.status == 401 for entry in bmc.bmc.journal.entries()) == 1


@without_waiting
async def test_without_a_user_no_login_is_tried() -> None:
    async with bench() as bmc:
        bmc.target = Target(address=bmc.bmc.url)
        error = await bmc.fails("power.getPower")
        assert error.code is ErrorCode.AUTH_FAILED
        assert "give the BMC's user and password" in error.message
        assert bmc.requests("POST") == []


@pytest.mark.case("B32")
@without_waiting
async def test_a_session_that_ended_is_replaced_once_and_the_read_repeated() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        bmc.bmc.state.end_sessions()
        assert (await bmc("power.getPower"))["state"] == "on"
        assert bmc.bmc.state.sessions_created == 2


@pytest.mark.case("B32")
@without_waiting
async def test_a_session_that_the_bmc_rejects_but_keeps_is_deleted_after_the_new_login() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        (old,) = bmc.bmc.state.open_sessions
        bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, count=1, status=401))
        assert (await bmc("power.getPower"))["state"] == "on"
        assert old not in bmc.bmc.state.open_sessions
        assert len(bmc.bmc.state.open_sessions) == 1


@pytest.mark.case("B32")
@without_waiting
async def test_a_resource_that_is_always_401_is_asked_twice_and_blocks_nobody() -> None:
    async with bench(faults=[FaultRule(method="GET", path=SYSTEM, status=401)]) as bmc:
        assert (await bmc.fails("power.getPower")).code is ErrorCode.AUTH_FAILED
        assert len(bmc.requests("GET", SYSTEM)) == 2
        bmc.bmc.faults.clear()
        assert (await bmc("power.getPower"))["state"] == "on"


@pytest.mark.case("B32")
@without_waiting
async def test_a_reset_that_meets_an_ended_session_is_given_after_a_new_look() -> None:
    async with bench(faults=[FaultRule(method="POST", path=RESET, count=1, status=401)]) as bmc:
        assert (await bmc("power.setPower", {"action": "reset"}))["verbUsed"] == "ForceRestart"
        assert len(bmc.bmc.state.resets) == 1
        journal = [(entry.method, entry.path) for entry in bmc.bmc.journal.entries()]
        first = journal.index(("POST", f"{SYSTEM}/Actions/ComputerSystem.Reset"))
        second = journal.index(("POST", f"{SYSTEM}/Actions/ComputerSystem.Reset"), first + 1)
        assert ("GET", SYSTEM) in journal[first:second]


@pytest.mark.case("B32")
@pytest.mark.parametrize(
    ("operation", "arguments", "path"),
    [
        ("management.resetBmc", {}, "*/Actions/Manager.Reset"),
        ("management.clearEventLog", {}, "*/Actions/LogService.ClearLog"),
        ("virtual-media.insertMedia", {"image": "http://192.0.2.1/a.iso"}, "*/VirtualMedia.InsertMedia"),
    ],
)
@without_waiting
async def test_an_action_that_meets_an_ended_session_is_done_once(
    operation: str, arguments: dict[str, object], path: str
) -> None:
    async with bench(options=ServiceOptions(manager_reset_seconds=20)) as bmc:
        bmc.bmc.faults.add(FaultRule(method="POST", path=path, count=1, status=401))
        await bmc(operation, arguments)
        assert [entry.executed for entry in bmc.bmc.journal.entries("POST", path)] == [False, True]


@pytest.mark.case("B32")
@pytest.mark.parametrize("method", ["POST", "PATCH"])
@without_waiting
async def test_a_change_that_is_always_401_makes_few_logins(method: str) -> None:
    async with bench(faults=[FaultRule(method=method, path="/redfish/v1/Systems/*", status=401)]) as bmc:
        operation = {"POST": "power.setPower", "PATCH": "boot.setBootDevice"}[method]
        arguments = {"POST": {"action": "off"}, "PATCH": {"device": "pxe"}}[method]
        assert (await bmc.fails(operation, arguments)).code is ErrorCode.AUTH_FAILED
        assert bmc.bmc.state.sessions_created <= 3


@pytest.mark.case("B32")
@pytest.mark.parametrize(
    "busy",
    [
        Effect(status=503),
        Effect(status=503, headers={"Retry-After": "7"}),
        Effect(status=400, body={"error": {"@Message.ExtendedInfo": [{"MessageId": "IDRAC.1.6.RAC0218"}]}}),
        Effect(status=429, headers={"Retry-After": "Fri, 01 Jan 2021 00:00:00 GMT"}),
    ],
)
@without_waiting
async def test_a_login_that_the_bmc_is_too_busy_for_is_asked_again_and_never_becomes_basic(busy: Effect) -> None:
    async with bench(faults=[FaultRule(method="POST", path=SESSIONS, sequence=(busy, busy))]) as bmc:
        assert (await bmc("power.getPower"))["state"] == "on"
        assert len(bmc.requests("POST", SESSIONS)) == 3
        assert "basic" not in {entry.login for entry in bmc.bmc.journal.entries()}


@without_waiting
async def test_a_bmc_with_no_free_session_is_busy_and_says_what_to_do() -> None:
    async with bench(options=ServiceOptions(max_sessions=0)) as bmc:
        error = await bmc.fails("power.getPower", timeout=20)
        assert error.code is ErrorCode.BUSY
        assert "end sessions that others have left open" in error.message


@pytest.mark.parametrize(("header", "least"), [("12", 12.0), (None, 1.0), ("nonsense", 1.0)])
@without_waiting
async def test_a_busy_bmc_is_left_alone_as_long_as_it_asks(header: str | None, least: float) -> None:
    headers = {} if header is None else {"Retry-After": header}
    clock = asyncio.get_running_loop().time
    async with bench(faults=[FaultRule(method="GET", path=SYSTEM, count=1, status=503, headers=headers)]) as bmc:
        started = clock()
        await bmc("power.getPower")
        assert least <= clock() - started < least + 5


@without_waiting
async def test_a_busy_bmc_that_asks_for_more_time_than_there_is_ends_busy_at_once() -> None:
    rule = FaultRule(method="GET", path=SYSTEM, status=503, headers={"Retry-After": "3600"})
    clock = asyncio.get_running_loop().time
    async with bench(faults=[rule]) as bmc:
        started = clock()
        assert (await bmc.fails("power.getPower", timeout=30)).code is ErrorCode.BUSY
        assert clock() - started < 5


@pytest.mark.case("B35")
@pytest.mark.parametrize(
    "note",
    [
        {"MessageId": "SMC.1.0.OemLicenseNotPassed", "Message": "Not licensed to perform this request: DCMS"},
        {"MessageId": "", "Message": "Not licensed to perform this request. The following licenses DCMS are needed."},
        {"MessageId": "iLO.2.14.LicenseKeyRequired", "Message": "x"},
    ],
)
@without_waiting
async def test_a_missing_licence_is_said_so_makes_no_new_login_and_is_not_asked_for_again(
    note: dict[str, str],
) -> None:
    body = {"error": {"code": "Base.v1_4_0.GeneralError", "@Message.ExtendedInfo": [note]}}
    path = f"{SYSTEM}/SecureBoot"
    async with bench(faults=[FaultRule(path=path, status=403, body=body)]) as bmc:
        for _ in range(3):
            assert (await bmc.fails("boot.getSecureBoot")).code is ErrorCode.LICENSE_REQUIRED
        assert len(bmc.requests("GET", path)) == 1
        assert bmc.bmc.state.sessions_created == 1
        assert (await bmc("power.getPower"))["state"] == "on"


@pytest.mark.case("B35")
@without_waiting
async def test_a_licence_is_asked_for_again_after_a_while() -> None:
    body = {"error": {"@Message.ExtendedInfo": [{"MessageId": "SMC.1.0.OemLicenseNotPassed"}]}}
    path = f"{SYSTEM}/SecureBoot"
    async with bench(faults=[FaultRule(path=path, count=1, status=403, body=body)]) as bmc:
        assert (await bmc.fails("boot.getSecureBoot")).code is ErrorCode.LICENSE_REQUIRED
        await asyncio.sleep(700)
        assert (await bmc("boot.getSecureBoot"))["enabled"] is False


@pytest.mark.case("B35")
@without_waiting
async def test_a_403_for_a_privilege_is_no_login_fault() -> None:
    body = {"error": {"@Message.ExtendedInfo": [{"MessageId": "Base.1.8.InsufficientPrivilege", "Message": "role"}]}}
    async with bench(faults=[FaultRule(path=f"{SYSTEM}/SecureBoot", status=403, body=body)]) as bmc:
        error = await bmc.fails("boot.getSecureBoot")
        assert error.code is ErrorCode.AUTH_FAILED
        assert "privilege" in error.message
        assert error.bmc[0].text == "role"
        assert (await bmc("power.getPower"))["state"] == "on"
        assert bmc.bmc.state.sessions_created == 1


@without_waiting
async def test_over_a_thousand_operations_one_session_slot_is_enough() -> None:
    async with bench(options=ServiceOptions(max_sessions=1)) as bmc:
        for _ in range(250):
            await asyncio.gather(*(bmc("power.getPower") for _ in range(4)))
        assert bmc.bmc.state.sessions_created == 1


@without_waiting
async def test_a_cancelled_operation_leaves_no_session_behind() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        bmc.bmc.latency = 30
        task = asyncio.create_task(bmc("management.getInfo"))
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        bmc.bmc.latency = 0
        await bmc.drivers.aclose()
        assert bmc.bmc.state.open_sessions == []


@without_waiting
async def test_a_login_whose_caller_is_cancelled_leaves_no_session_behind() -> None:
    async with bench(faults=[FaultRule(method="POST", path=SESSIONS, answer_late=3)]) as bmc:
        task = asyncio.create_task(bmc("power.getPower"))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await bmc("power.getPower"))["state"] == "on"
        assert bmc.bmc.state.sessions_created == 1
        await bmc.drivers.aclose()
        assert bmc.bmc.state.open_sessions == []


@without_waiting
async def test_a_connection_that_is_closed_during_its_login_leaves_no_session_behind() -> None:
    async with bench(faults=[FaultRule(method="POST", path=SESSIONS, answer_late=3)]) as bmc:
        task = asyncio.create_task(bmc("power.getPower"))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await bmc.drivers.aclose()
        assert bmc.bmc.state.sessions_created == 1
        assert bmc.bmc.state.open_sessions == []


@without_waiting
async def test_a_connection_that_is_used_after_it_was_closed_still_ends_its_session() -> None:
    async with bench() as bmc:
        driver = await bmc.drivers.driver_for(bmc.target)
        connection = bmc.drivers.connections.get(driver, bmc.target)
        assert isinstance(connection, RedfishConnection)
        await bmc("power.getPower")
        await connection.aclose()
        await bmc("power.getPower")
        await asyncio.sleep(5)
        assert bmc.bmc.state.open_sessions == []
