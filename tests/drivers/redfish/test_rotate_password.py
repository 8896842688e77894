"""Rotating a password: sent once, proven by a login of its own, and never lost, whatever happens in between."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers import Breaker, Drivers, GivenPassword, Target, ainvoke
from drivers.redfish.accounts import account_faults, account_named_in, in_likely_order
from drivers.redfish.failures import Refused
from drivers.redfish.messages import Note
from protocol.errors import ErrorCode, OperationError
from protocol.secret import Secret
from simulators.redfish import Drop, FaultRule, RedfishServer, ServiceOptions
from simulators.redfish.options import Account
from tests.drivers.redfish.harness import PASSWORD, SESSIONS, Bench, bench, without_waiting
from tests.drivers.redfish.test_mockups import TREES

NEW = "Rotated-Pa55word"
ACCOUNTS = "*/Accounts/*"
USER = "admin"


class Keeper:
    """Keeps both passwords, as an agent's vault does; `dies_at` names the step at which the process is gone."""

    def __init__(self, secret: str = NEW, dies_at: str = "") -> None:
        self.secret = Secret(secret)
        self.version = None
        self.steps: list[str] = []
        self.dies_at = dies_at

    async def begin(self) -> None:
        await self._step("begin")

    async def proven(self) -> None:
        await self._step("proven")

    async def withdrawn(self) -> None:
        await self._step("withdrawn")

    async def _step(self, name: str) -> None:
        if self.dies_at == f"before {name}":
            raise asyncio.CancelledError
        self.steps.append(name)
        if self.dies_at == f"after {name}":
            raise asyncio.CancelledError


async def rotate(bmc: Bench, keeper: Keeper, user: str = USER, **options: Any) -> dict[str, Any]:
    return await bmc.drivers.invoke(
        bmc.target, "config.rotatePassword", {"user": user, "newCredentialRef": "new"}, rotation=keeper, **options
    )


async def refused(bmc: Bench, keeper: Keeper, user: str = USER, **options: Any) -> OperationError:
    """The error that the rotation ends in; no password is in any of its words."""
    with pytest.raises(OperationError) as caught:
        await rotate(bmc, keeper, user, **options)
    error = caught.value
    said = f"{error!r} {error} {error.details} {error.bmc} {error.__cause__!r} {error.__context__!r}"
    assert keeper.secret.reveal() not in said
    assert PASSWORD not in said
    return error


def changes(bmc: Bench) -> int:
    return len(bmc.requests("PATCH", ACCOUNTS))


def password_at(bmc: Bench, user: str = USER) -> str:
    return bmc.bmc.service.accounts.logins[user].password


def with_new(bmc: Bench) -> Target:
    return replace(bmc.target, password=NEW)


# The straight way


@without_waiting
async def test_the_new_password_is_sent_once_and_proven_by_a_login_of_its_own() -> None:
    async with bench() as bmc:
        keeper = Keeper()
        assert await rotate(bmc, keeper) == {"user": USER, "proven": True, "changed": True}
        assert keeper.steps == ["begin", "proven"]
        assert password_at(bmc) == NEW
        assert changes(bmc) == 1
        assert len(bmc.requests("POST", SESSIONS)) == 2
        assert len(bmc.requests("DELETE", f"{SESSIONS}/*")) == 1
        # root, login, account service, accounts, the account; its tag, the change; the proof's root, login and end.
        assert len(bmc.requests()) == 10


@pytest.mark.parametrize("tree", TREES)
def test_every_recorded_bmc_has_its_password_rotated(tree: str, shared: Path) -> None:
    @without_waiting
    async def on_this_tree() -> None:
        async with bench(shared / "mockups" / tree) as bmc:
            # HPE Cray's BMC takes twelve characters at most, and a DGX thirteen at least.
            keeper = Keeper("R0tated-Pa55" if tree == "cray-ex235a" else NEW)
            assert (await rotate(bmc, keeper))["proven"] is True
            assert password_at(bmc) == keeper.secret.reveal()
            assert changes(bmc) == 1

    on_this_tree()


@without_waiting
async def test_the_account_is_found_by_its_name_and_never_by_its_slot() -> None:
    async with _users(root=Account(PASSWORD), admin=Account(PASSWORD)) as bmc:
        await rotate(bmc, Keeper())
        (path,) = bmc.requests("PATCH", ACCOUNTS)
        assert bmc.bmc.state.document(path)["UserName"] == USER  # type: ignore[index]
        assert password_at(bmc, "root") == PASSWORD


@without_waiting
async def test_fixed_slots_are_read_until_the_user_is_found(shared: Path) -> None:
    tree = shared / "mockups" / "dell-r750-idrac9-7.10"
    async with _users(tree, admin=Account(PASSWORD), znkmc_kjyrr=Account("0ld-Password")) as bmc:
        await rotate(bmc, Keeper(), "znkmc_kjyrr")
        slots = [path.rpartition("/")[2] for path in bmc.requests("GET", "/redfish/v1/AccountService/Accounts/*")]
        # The tag is read once more before the change. Slot 1 is nobody's.
        assert slots == ["2", "3", "3"]
        assert bmc.requests("PATCH", ACCOUNTS) == ["/redfish/v1/AccountService/Accounts/3"]


@without_waiting
async def test_the_password_of_another_account_is_rotated_and_proven_by_that_account() -> None:
    async with _users(admin=Account(PASSWORD), monitor=Account("Old-M0nitor", role="ReadOnly")) as bmc:
        keeper = Keeper()
        assert (await rotate(bmc, keeper, "monitor"))["proven"] is True
        assert password_at(bmc, "monitor") == NEW
        assert password_at(bmc) == PASSWORD
        assert bmc.bmc.journal.entries("POST", SESSIONS)[-1].body["UserName"] == "monitor"


@without_waiting
async def test_a_bmc_that_ends_the_sessions_of_the_account_is_no_hindrance() -> None:
    async with bench(options=ServiceOptions(password_change_ends_sessions=True)) as bmc:
        assert (await rotate(bmc, Keeper()))["proven"] is True
        assert await bmc.drivers.invoke(with_new(bmc), "power.getPower")


@without_waiting
async def test_a_bmc_without_sessions_is_asked_for_a_proof_by_basic_login() -> None:
    rules = [FaultRule(method="POST", path=SESSIONS, status=405)]
    async with bench(faults=rules) as bmc:
        assert (await rotate(bmc, Keeper()))["proven"] is True
        assert password_at(bmc) == NEW


@without_waiting
async def test_a_change_goes_with_the_accounts_tag() -> None:
    async with bench(options=ServiceOptions(require_etag=True)) as bmc:
        await rotate(bmc, Keeper())
        (patch,) = bmc.bmc.journal.entries("PATCH", ACCOUNTS)
        assert "If-Match" in patch.headers


# Factory passwords


@without_waiting
async def test_a_factory_password_is_changed_in_the_session_that_allows_nothing_else() -> None:
    async with bench() as bmc:
        bmc.bmc.service.accounts.logins[USER].must_change_password = True
        locked = await bmc.fails("power.getPower")
        assert "password changed" in locked.message
        keeper = Keeper()
        assert (await rotate(bmc, keeper))["proven"] is True
        assert keeper.steps == ["begin", "proven"]
        assert await bmc.drivers.invoke(with_new(bmc), "power.getPower")


def test_the_account_is_named_in_the_refusal_by_an_argument_or_in_its_text() -> None:
    path = "/redfish/v1/AccountService/Accounts/admin"
    for note in (
        Note("Base.1.8.PasswordChangeRequired", "Change it.", (path,)),
        Note("Base.1.8.PasswordChangeRequired", f"PATCH the Password property located at '{path}' to go on."),
    ):
        refusal = Refused.from_answer(403, [note], "GET x")
        assert account_named_in(refusal) == path
    assert account_named_in(Refused.from_answer(403, [Note("Base.1.8.AccessDenied", path)], "GET x")) is None


# What the BMC refuses


@without_waiting
async def test_a_password_against_the_rules_is_told_in_the_bmcs_words_without_the_password() -> None:
    async with bench(options=ServiceOptions(password_pattern=".*[!?].*")) as bmc:
        keeper = Keeper()
        error = await refused(bmc, keeper)
        assert error.code is ErrorCode.BMC_ERROR
        assert [message.id for message in error.bmc] == ["Base.1.18.PropertyValueFormatError"]
        assert "rules for passwords" in error.bmc[0].text
        assert keeper.steps == ["begin", "withdrawn"]
        assert password_at(bmc) == PASSWORD
        assert changes(bmc) == 1
        assert await bmc("power.getPower")


@without_waiting
async def test_a_password_of_the_wrong_length_is_not_sent() -> None:
    async with bench() as bmc:
        keeper = Keeper("abc-123")
        error = await refused(bmc, keeper)
        assert "shorter than the 8 characters" in error.message
        assert (changes(bmc), keeper.steps) == (0, [])


def test_what_makes_a_change_pointless_is_told_all_at_once() -> None:
    account = {"Enabled": False, "Locked": True}
    service = {"MinPasswordLength": 12, "MaxPasswordLength": 0}
    assert len(account_faults(account, service, "u", Secret("abc-123"))) == 3
    assert account_faults({}, {"MaxPasswordLength": 20, "MinPasswordLength": None}, "u", Secret("x" * 20)) == []


def test_the_account_that_bears_the_users_name_is_looked_at_first_and_slot_one_last() -> None:
    assert in_likely_order(["/A/1", "/A/2", "/A/Root"], "root") == ["/A/Root", "/A/2", "/A/1"]
    assert in_likely_order(["/A/1", "/A/2"], "root") == ["/A/1", "/A/2"]


@without_waiting
async def test_an_unknown_user_is_told_with_those_that_there_are() -> None:
    async with bench() as bmc:
        error = await refused(bmc, Keeper(), "nobody")
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert "it has admin" in error.message


@without_waiting
async def test_a_yes_that_is_not_true_leaves_the_old_password_in_force() -> None:
    async with bench(faults=[FaultRule(method="PATCH", path=ACCOUNTS, status=204)]) as bmc:
        keeper = Keeper()
        error = await refused(bmc, keeper)
        assert error.code is ErrorCode.NOT_APPLIED
        assert "takes the old one" in error.message
        assert keeper.steps == ["begin", "withdrawn"]
        # Each password was shown once for this: the first login, the refused new one, the old one.
        assert len(bmc.requests("POST", SESSIONS)) == 3


@without_waiting
async def test_an_earlier_refusal_of_the_new_password_does_not_stand_in_the_way_once_it_is_set() -> None:
    async with bench(faults=[FaultRule(method="PATCH", path=ACCOUNTS, status=204, count=1)]) as bmc:
        await refused(bmc, Keeper())
        assert (await rotate(bmc, Keeper()))["proven"] is True


# Lost answers and crashes


@pytest.mark.parametrize("drop", [Drop.BEFORE, Drop.AFTER])
@without_waiting
async def test_a_lost_answer_is_made_up_for_by_logging_in_and_the_change_is_not_sent_again(drop: Drop) -> None:
    async with bench(faults=[FaultRule(method="PATCH", path=ACCOUNTS, drop=drop)]) as bmc:
        keeper = Keeper()
        if drop is Drop.AFTER:
            assert (await rotate(bmc, keeper))["proven"] is True
            assert keeper.steps == ["begin", "proven"]
        else:
            error = await refused(bmc, keeper)
            assert error.code is ErrorCode.NOT_APPLIED
            assert keeper.steps == ["begin", "withdrawn"]
        assert changes(bmc) == 1


@without_waiting
async def test_a_server_error_may_have_done_it_and_the_login_tells() -> None:
    async with bench(faults=[FaultRule(method="PATCH", path=ACCOUNTS, status=500, execute=True)]) as bmc:
        keeper = Keeper()
        assert (await rotate(bmc, keeper))["proven"] is True
        assert changes(bmc) == 1


@without_waiting
async def test_a_bmc_that_ends_the_session_in_its_answer_may_have_done_it_and_the_login_tells() -> None:
    async with bench(faults=[FaultRule(method="PATCH", path=ACCOUNTS, status=401, execute=True, count=1)]) as bmc:
        keeper = Keeper()
        assert (await rotate(bmc, keeper))["proven"] is True
        assert keeper.steps == ["begin", "proven"]
        assert password_at(bmc) == NEW
        assert changes(bmc) == 1


@without_waiting
async def test_a_bmc_that_is_away_for_the_proof_is_waited_for() -> None:
    rules = [FaultRule(method="POST", path=SESSIONS, after=1, count=3, drop=Drop.BEFORE)]
    async with bench(faults=rules) as bmc:
        keeper = Keeper()
        assert (await rotate(bmc, keeper))["proven"] is True
        assert changes(bmc) == 1


@without_waiting
async def test_without_a_proof_both_passwords_are_kept_and_the_outcome_is_unknown() -> None:
    rules = [FaultRule(method="POST", path=SESSIONS, after=1, drop=Drop.BEFORE)]
    async with bench(faults=rules) as bmc:
        keeper = Keeper()
        error = await refused(bmc, keeper, timeout=60)
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert "both passwords are kept" in error.message
        assert keeper.steps == ["begin"]


@without_waiting
async def test_a_bmc_that_refuses_both_is_asked_for_each_once() -> None:
    async with bench(faults=[FaultRule(method="POST", path=SESSIONS, after=1, status=401)]) as bmc:
        keeper = Keeper()
        error = await refused(bmc, keeper)
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert "both the new password and the old one" in error.message
        assert keeper.steps == ["begin"]
        assert len(bmc.requests("POST", SESSIONS)) == 3


CRASHES = ["before begin", "after begin", "before proven", "after proven"]


@pytest.mark.parametrize("place", CRASHES)
@without_waiting
async def test_after_a_crash_at_any_point_one_of_the_kept_passwords_holds(place: str) -> None:
    async with bench(options=ServiceOptions(lockout_after=3)) as bmc:
        keeper = Keeper(dies_at=place)
        with pytest.raises(asyncio.CancelledError):
            await rotate(bmc, keeper)
        async with Drivers(Breaker()) as later:
            takes_new = await later.takes_login(with_new(bmc), timeout=30)
            takes_old = takes_new or await later.takes_login(bmc.target, timeout=30)
        assert takes_new is (place in ("before proven", "after proven"))
        assert takes_old
        assert not bmc.bmc.state.is_locked(USER)
        # A password that only the BMC knows would be lost: it is written only once both are kept.
        assert "begin" in keeper.steps or changes(bmc) == 0


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
@without_waiting
async def test_a_process_that_ends_at_any_request_leaves_a_password_that_holds(method: str) -> None:
    for number in range(1, 12):
        async with bench(options=ServiceOptions(lockout_after=3)) as bmc:
            keeper = Keeper()
            task = asyncio.create_task(rotate(bmc, keeper))
            seen = 0
            while not task.done():
                await asyncio.sleep(0)
                if len(bmc.requests()) != seen:
                    seen = len(bmc.requests())
                    if len(bmc.requests(method)) == number:
                        task.cancel()
                        break
            with contextlib.suppress(asyncio.CancelledError):
                await task
            if not task.cancelled():
                return
            assert changes(bmc) <= 1
            assert "begin" in keeper.steps or changes(bmc) == 0
            async with Drivers(Breaker()) as later:
                holds = [await later.takes_login(t, timeout=30) for t in (with_new(bmc), bmc.target)]
            assert any(holds)
            assert not bmc.bmc.state.is_locked(USER)


# Repeating it


@pytest.mark.case("B34")
@without_waiting
async def test_b34_a_rotation_that_was_done_before_is_found_by_one_try_of_the_new_password() -> None:
    async with bench(options=ServiceOptions(lockout_after=3)) as bmc:
        bmc.bmc.state.set_password(USER, NEW)
        keeper = Keeper()
        assert await rotate(bmc, keeper) == {"user": USER, "proven": True, "changed": False}
        assert keeper.steps == ["begin", "proven"]
        assert changes(bmc) == 0
        assert len(bmc.requests("POST", SESSIONS)) == 2


@pytest.mark.case("B34")
@without_waiting
async def test_b34_a_wrong_password_is_shown_once_and_blocks_every_caller_until_it_changes() -> None:
    async with bench(options=ServiceOptions(lockout_after=3)) as bmc:
        bmc.bmc.state.set_password(USER, "S0mething-else")
        for _ in range(3):
            error = await refused(bmc, Keeper())
            assert error.code is ErrorCode.AUTH_FAILED
            assert "neither the present password" in error.message
        assert len(bmc.requests("POST", SESSIONS)) == 2
        assert not bmc.bmc.state.is_locked(USER)


@pytest.mark.case("B34")
@without_waiting
async def test_b34_a_cached_session_does_not_stand_for_a_password() -> None:
    """The old session still serves after the change; a caller with the new password has one of its own."""
    async with bench() as bmc:
        await bmc("power.getPower")
        await rotate(bmc, Keeper())
        await bmc("power.getPower")
        await bmc.drivers.invoke(with_new(bmc), "power.getPower")
        users = [entry.body["Password"] != "" for entry in bmc.bmc.journal.entries("POST", SESSIONS)]
        assert len(users) == 3


@without_waiting
async def test_the_password_that_is_there_already_is_proven_and_not_sent() -> None:
    async with bench() as bmc:
        assert await rotate(bmc, Keeper(PASSWORD)) == {"user": USER, "proven": True, "changed": False}
        assert changes(bmc) == 0


# How the new password comes


@without_waiting
async def test_without_a_new_password_nothing_is_asked_of_the_bmc() -> None:
    async with bench() as bmc:
        error = await bmc.fails("config.rotatePassword", {"user": USER, "newCredentialRef": "x"})
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert "--new-password-file" in error.message
        assert bmc.requests() == []


@without_waiting
async def test_as_a_library_the_caller_gives_it_beside_the_arguments() -> None:
    async with bench() as bmc:
        arguments = {"user": USER, "newCredentialRef": "mine"}
        given = GivenPassword(Secret(NEW))
        assert (await ainvoke(bmc.target, "config.rotatePassword", arguments, rotation=given))["proven"]
        assert NEW not in repr(given)


@without_waiting
async def test_nothing_else_is_done_on_the_machine_meanwhile() -> None:
    async with bench(faults=[FaultRule(method="PATCH", path=ACCOUNTS, answer_late=5)]) as bmc:
        await bmc("power.getPower")
        rotation = asyncio.create_task(rotate(bmc, Keeper()))
        while not changes(bmc):
            await asyncio.sleep(0.01)
        reading = asyncio.create_task(bmc("power.getPower"))
        await rotation
        await reading
        entries = bmc.bmc.journal.entries()
        proof = max(i for i, entry in enumerate(entries) if entry.method == "POST")
        last_read = max(i for i, entry in enumerate(entries) if entry.path.startswith("/redfish/v1/Systems"))
        assert last_read > proof


@contextlib.asynccontextmanager
async def _users(tree: Path | None = None, **users: Account) -> AsyncIterator[Bench]:
    server = RedfishServer(tree, users=users, clock=asyncio.get_running_loop().time)
    async with server as bmc, Drivers() as drivers:
        yield Bench(bmc, drivers, Target(address=bmc.url, username=USER, password=PASSWORD))
