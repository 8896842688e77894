"""Logins: sessions and basic credentials, their expiry and limits, lock-out, roles and password changes."""

import pytest

from simulators.redfish import Account, ServiceOptions
from tests.simulators.conftest import MANAGER, PASSWORD, SESSIONS, SYSTEM, USER, FakeClock, Start, basic

ACCOUNTS = "/redfish/v1/AccountService/Accounts"


async def test_a_session_opens_with_token_and_location_and_ends_by_delete(start: Start) -> None:
    bmc = await start()
    bmc.headers = {}

    login = await bmc.log_in()
    used = await bmc.get(SYSTEM)
    listed = await bmc.get(SESSIONS)
    ended = await bmc.delete(login.headers["Location"])
    after = await bmc.get(SYSTEM)

    assert login.status == 201
    assert login.data["UserName"] == USER
    assert login.data["Password"] is None
    assert used.status == 200
    assert [member["@odata.id"] for member in listed.data["Members"]] == [login.headers["Location"]]
    assert ended.status == 204
    assert after.status == 401
    assert bmc.server.state.open_sessions == []


@pytest.mark.parametrize(
    "path", ["/redfish", "/redfish/v1", "/redfish/v1/", "/redfish/v1/odata", "/redfish/v1/$metadata"]
)
async def test_the_standard_documents_need_no_login(start: Start, path: str) -> None:
    bmc = await start()
    bmc.headers = {}

    assert (await bmc.get(path)).status == 200


async def test_everything_else_needs_a_login(start: Start) -> None:
    bmc = await start()
    bmc.headers = {}

    replies = [
        await bmc.get(SYSTEM),
        await bmc.get("/redfish/v1/Nowhere"),
        await bmc.patch(SYSTEM, {"AssetTag": "x"}),
        await bmc.reset("ForceOff"),
        await bmc.delete(f"{SESSIONS}/1"),
    ]

    assert {reply.status for reply in replies} == {401}
    assert replies[0].headers["WWW-Authenticate"].startswith("Basic")
    assert replies[0].message_ids == ["NoValidSession"]
    assert bmc.server.state.resets == []


@pytest.mark.parametrize(
    "headers",
    [
        basic(password="wrong"),
        basic(user="nobody"),
        {"Authorization": "Basic ???"},
        {"Authorization": "Bearer abc"},
        {"X-Auth-Token": "0" * 32},
    ],
)
async def test_false_credentials_are_refused(start: Start, headers: dict[str, str]) -> None:
    bmc = await start()
    bmc.headers = headers

    assert (await bmc.get(SYSTEM)).status == 401


async def test_a_session_ends_after_its_time_of_silence(start: Start, clock: FakeClock) -> None:
    bmc = await start(options=ServiceOptions(session_timeout=60), clock=clock)
    await bmc.log_in()

    clock.move(50)
    assert (await bmc.get(SYSTEM)).status == 200
    clock.move(50)
    assert (await bmc.get(SYSTEM)).status == 200, "each use starts the time anew"
    clock.move(61)

    assert (await bmc.get(SYSTEM)).status == 401
    assert bmc.server.state.open_sessions == []


async def test_the_session_timeout_is_the_one_that_the_service_shows(start: Start, clock: FakeClock) -> None:
    bmc = await start(clock=clock)
    await bmc.log_in()
    assert (await bmc.patch("/redfish/v1/SessionService", {"SessionTimeout": 30})).status == 200

    clock.move(31)

    assert (await bmc.get(SYSTEM)).status == 401


async def test_a_login_beyond_the_limit_is_refused_until_a_session_ends(start: Start) -> None:
    bmc = await start(options=ServiceOptions(max_sessions=2))
    first = await bmc.log_in()
    await bmc.log_in()

    full = await bmc.log_in()
    await bmc.delete(first.headers["Location"])
    again = await bmc.log_in()

    assert full.status == 503
    assert full.message_ids == ["SessionLimitExceeded"]
    assert again.status == 201


async def test_an_account_locks_after_failed_logins_and_opens_with_time(start: Start, clock: FakeClock) -> None:
    bmc = await start(options=ServiceOptions(lockout_after=3, lockout_seconds=120), clock=clock)

    for _ in range(3):
        assert (await bmc.log_in(password="wrong")).status == 401
    locked = await bmc.log_in()
    assert bmc.server.state.is_locked(USER)
    clock.move(121)
    opened = await bmc.log_in()

    assert locked.status == 401
    assert opened.status == 201


async def test_basic_logins_can_be_switched_off(start: Start) -> None:
    bmc = await start(options=ServiceOptions(basic_auth=False))

    assert (await bmc.get(SYSTEM)).status == 401
    assert (await bmc.log_in()).status == 201


@pytest.mark.case("B34")
async def test_a_rotated_password_leaves_open_sessions_but_no_new_login(start: Start) -> None:
    bmc = await start()
    await bmc.log_in()

    bmc.server.state.set_password(USER, "another")

    assert (await bmc.get(SYSTEM)).status == 200
    assert (await bmc.log_in()).status == 401
    assert (await bmc.log_in(password="another")).status == 201


async def test_a_password_is_changed_through_the_account(start: Start) -> None:
    bmc = await start()

    reply = await bmc.patch(f"{ACCOUNTS}/1", {"Password": "a-new-one"})

    assert reply.status == 200
    assert reply.data["Password"] is None
    assert "a-new-one" not in reply.body.decode()
    assert (await bmc.get(SYSTEM)).status == 401
    bmc.headers = basic(password="a-new-one")
    assert (await bmc.get(SYSTEM)).status == 200


async def test_an_account_is_created_used_and_deleted(start: Start) -> None:
    bmc = await start()

    created = await bmc.post(ACCOUNTS, {"UserName": "eve", "Password": "eves-password", "RoleId": "Operator"})
    as_eve = await bmc.get(SYSTEM, headers=basic("eve", "eves-password"))
    deleted = await bmc.delete(created.headers["Location"])
    gone = await bmc.get(SYSTEM, headers=basic("eve", "eves-password"))

    assert created.status == 201
    assert "eves-password" not in created.body.decode()
    assert as_eve.status == 200
    assert deleted.status == 204
    assert gone.status == 401


@pytest.mark.parametrize(
    "body",
    [
        {"UserName": "eve"},
        {"UserName": USER, "Password": "x" * 8, "RoleId": "Operator"},
        {"UserName": "e", "Password": "x", "RoleId": "King"},
    ],
)
async def test_a_wrong_account_is_refused(start: Start, body: object) -> None:
    bmc = await start()

    assert (await bmc.post(ACCOUNTS, body)).status == 400


async def test_roles_decide_what_an_account_may_do(start: Start) -> None:
    bmc = await start(
        users={USER: PASSWORD, "op": Account("op-pass", "Operator"), "ro": Account("ro-pass", "ReadOnly")}
    )
    operator, reader = basic("op", "op-pass"), basic("ro", "ro-pass")
    manager_reset = f"{MANAGER}/Actions/Manager.Reset"

    assert (await bmc.get(SYSTEM, headers=reader)).status == 200
    assert (await bmc.patch(SYSTEM, {"AssetTag": "x"}, headers=reader)).status == 403
    assert (await bmc.patch(SYSTEM, {"AssetTag": "x"}, headers=operator)).status == 200
    assert (await bmc.post(manager_reset, {"ResetType": "ForceRestart"}, headers=operator)).status == 403
    assert (await bmc.post(ACCOUNTS, {"UserName": "z"}, headers=operator)).status == 403
    assert (await bmc.patch(f"{ACCOUNTS}/3", {"Password": "ro-new-pass"}, headers=reader)).status == 200
    changed = basic("ro", "ro-new-pass")
    assert (await bmc.patch(f"{ACCOUNTS}/1", {"Password": "stolen"}, headers=changed)).status == 403


async def test_a_password_that_must_be_changed_blocks_all_else(start: Start) -> None:
    bmc = await start()
    new = {"UserName": "new", "Password": "first-pass", "RoleId": "Administrator", "PasswordChangeRequired": True}
    path = (await bmc.post(ACCOUNTS, new)).headers["Location"]
    bmc.headers = basic("new", "first-pass")

    blocked = await bmc.get(SYSTEM)
    changed = await bmc.patch(path, {"Password": "second-pass"})
    bmc.headers = basic("new", "second-pass")
    free = await bmc.get(SYSTEM)

    assert blocked.status == 403
    assert blocked.message_ids == ["PasswordChangeRequired"]
    assert changed.status == 200
    assert free.status == 200


async def test_a_restart_of_the_manager_ends_every_session_and_the_host_runs_on(
    start: Start, clock: FakeClock
) -> None:
    bmc = await start(options=ServiceOptions(manager_reset_seconds=40), clock=clock)
    await bmc.log_in()

    reply = await bmc.post(f"{MANAGER}/Actions/Manager.Reset", {"ResetType": "GracefulRestart"})
    away = await bmc.get("/redfish/v1/")
    clock.move(41)
    back = await bmc.get("/redfish/v1/")

    assert reply.status == 204
    assert away.status == 503
    assert away.headers["Retry-After"] == "40"
    assert back.status == 200
    assert (await bmc.get(SYSTEM)).status == 401
    assert bmc.server.state.boots == []
    assert [reset.reset_type for reset in bmc.server.state.manager_resets] == ["GracefulRestart"]
