"""A BMC's password is never lost: wherever the agent dies while it is changed, the next life finds what holds."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import rotation
from agent.bmcs import BmcMemory, Bmcs
from agent.rotation import VaultRotation
from agent.vault import Vault, VaultKey
from drivers.driver import Call
from drivers.redfish.answer import Answer
from drivers.redfish.connection import RedfishConnection
from protocol.commands import Ending, Outcome
from protocol.errors import ErrorCode, OperationError
from protocol.frames import Command
from protocol.ids import new_id
from protocol.secret import Secret
from simulators.redfish import FaultRule, RedfishServer, ServiceOptions
from simulators.redfish.options import Account
from tests.agent.counting_driver import MACHINES
from tests.agent.points import Points
from tests.agent.rig import FakeClock, Ledger
from tests.agent.test_crash import live

OLD, NEW, OTHER = "Present-Pa55word", "Rotated-Pa55word", "M0nitor-Pa55word"
NODE = "node_1"
REF, NEW_REF = "site/bmc", "site/bmc-next"


@pytest.fixture(autouse=True)
def _no_quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The BMC here is never at work on what a dead process sent it. Every step of a rotation is a point to die at."""
    monkeypatch.setattr(rotation, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr("drivers.redfish.config._PROOF_PAUSE", 0.0)
    monkeypatch.setattr("drivers.rotation._SLOW_SECONDS", 0.0)
    for owner, name in ((VaultRotation, "begin"), (VaultRotation, "proven"), (RedfishConnection, "prove_login")):
        _point(monkeypatch, owner, name)
    act = RedfishConnection.act

    async def pointed(
        self: RedfishConnection, method: str, path: str, body: Any, call: Call, *, if_match: str | None = None
    ) -> Answer:
        await MACHINES.pass_by(f"before the {method}")
        answer = await act(self, method, path, body, call, if_match=if_match)
        await MACHINES.pass_by(f"after the {method}")
        return answer

    monkeypatch.setattr(RedfishConnection, "act", pointed)
    yield
    MACHINES.clear()


def _point(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    real = getattr(owner, name)

    async def pointed(self: object, *args: object) -> object:
        await MACHINES.pass_by(f"before {name}")
        result = await real(self, *args)
        await MACHINES.pass_by(f"after {name}")
        return result

    monkeypatch.setattr(owner, name, pointed)


@contextlib.asynccontextmanager
async def a_bmc(*faults: FaultRule) -> AsyncIterator[RedfishServer]:
    users = {"root": Account(OLD), "monitor": Account(OTHER, role="ReadOnly")}
    async with RedfishServer(users=users, options=ServiceOptions(lockout_after=3), faults=faults) as bmc:
        yield bmc


def a_vault(folder: Path) -> Vault:
    folder.mkdir(exist_ok=True)
    vault = Vault(folder / "vault.json", lambda: VaultKey.load(folder / "vault.key", make=True))
    vault.set(REF, "root", Secret(OLD))
    vault.set(NEW_REF, "root", Secret(NEW))
    return vault


def command(bmc: RedfishServer, operation: str = "rotatePassword", node: str = NODE, **args: str) -> Command:
    concern = "config" if operation == "rotatePassword" else "power"
    if operation == "rotatePassword":
        args = {"user": "root", "newCredentialRef": NEW_REF} | args
    return Command(
        id=new_id("cmd"),
        kind="driver.invoke",
        payload={
            "driver": "redfish",
            "concern": concern,
            "operation": operation,
            "args": args,
            "targetNodeId": node,
            "target": {"address": bmc.url, "credentialRef": REF},
        },
        remaining_ms=60_000,
    )


def password_at(bmc: RedfishServer, user: str = "root") -> str:
    return bmc.service.accounts.logins[user].password


def password_in(vault: Vault, node: str = NODE) -> str:
    found = vault.lookup(REF, node)
    assert found is not None
    return found.password.reveal()


def changes(bmc: RedfishServer) -> int:
    return len(bmc.journal.entries("PATCH", "*/Accounts/*"))


def judge(bmc: RedfishServer, vault: Vault, ending: Ending | None, where: str) -> None:
    assert ending is not None, f"{where}: no ending"
    assert not vault.is_staged(REF, NODE), f"{where}: it was left unsettled"
    assert password_in(vault) == password_at(bmc), f"{where}: the vault has a password that the BMC does not take"
    assert changes(bmc) <= 1, f"{where}: the password was sent {changes(bmc)} times"
    assert not bmc.state.is_locked("root"), f"{where}: the account was locked"
    if ending.outcome is Outcome.SUCCEEDED:
        assert password_at(bmc) == NEW, f"{where}: reported done, and was not"
    else:
        assert ending.error is not None
        assert ending.error.code == ErrorCode.INTERRUPTED, f"{where}: {ending}"
        assert password_at(bmc) == OLD, f"{where}: reported as not done, and was"


async def one_life(folder: Path, clock: FakeClock, ledger: Ledger, kill_at: int = 0) -> Points:
    return await live(folder, clock, ledger, kill_at)


async def test_a_rotation_gives_the_reference_its_new_password_at_that_machine_alone(
    tmp_path: Path, clock: FakeClock
) -> None:
    vault = a_vault(tmp_path)
    async with a_bmc() as bmc, a_bmc() as other:
        ledger = Ledger()
        row = ledger.ask(command(bmc))
        await one_life(tmp_path, clock, ledger)
        assert row.ending is not None
        assert row.ending.result == {"user": "root", "proven": True, "changed": True}
        judge(bmc, vault, row.ending, "in peace")
        assert password_in(vault, "node_2") == OLD
        assert [entry.machines for entry in vault.list() if entry.ref == REF] == [[NODE]]
        later = Ledger()
        first, second = later.ask(command(bmc, "getPower")), later.ask(command(other, "getPower", "node_2"))
        await one_life(tmp_path, clock, later)
        assert first.ending is not None
        assert second.ending is not None
        assert (first.ending.outcome, second.ending.outcome) == (Outcome.SUCCEEDED, Outcome.SUCCEEDED)


async def test_wherever_the_agent_dies_the_next_life_has_the_password_that_holds(
    tmp_path: Path, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    killed: list[str] = []
    while True:
        number = len(killed) + 1
        folder = tmp_path / str(number)
        vault = a_vault(folder)
        async with a_bmc() as bmc:
            ledger = Ledger()
            row = ledger.ask(command(bmc))
            points = await one_life(folder, clock, ledger, number)
            if not points.dead.is_set():
                break
            killed.append(points.passed[-1])
            await one_life(folder, clock, ledger)
            judge(bmc, vault, row.ending, f"killed at {number} ({killed[-1]})")
    with capsys.disabled():
        print(f"\n  {len(killed)} kill points, none of which lost a password")  # noqa: T201
    assert {"before begin", "after begin", "before the PATCH", "after the PATCH"} < {*killed}
    assert {"before prove_login", "after prove_login", "before proven", "after proven"} < {*killed}
    assert {"after start", "before finish", "after finish"} < {*killed}


@pytest.mark.parametrize("first", ["after begin", "after the PATCH", "after prove_login"])
async def test_a_second_death_while_it_is_settled_is_no_worse(first: str, tmp_path: Path, clock: FakeClock) -> None:
    number, at = 0, await _number_of(first, tmp_path / "counted", clock)
    while True:
        number += 1
        folder = tmp_path / str(number)
        vault = a_vault(folder)
        async with a_bmc() as bmc:
            ledger = Ledger()
            row = ledger.ask(command(bmc))
            await one_life(folder, clock, ledger, at)
            points = await one_life(folder, clock, ledger, number)
            await one_life(folder, clock, ledger)
            judge(bmc, vault, row.ending, f"killed at {first}, then at {number} ({points.passed[-1]})")
            if not points.dead.is_set():
                break


async def _number_of(place: str, folder: Path, clock: FakeClock) -> int:
    """Where in a whole life a place is passed for the first time."""
    a_vault(folder)
    async with a_bmc() as bmc:
        ledger = Ledger()
        ledger.ask(command(bmc))
        return (await one_life(folder, clock, ledger)).passed.index(place) + 1


async def test_the_next_command_of_any_kind_settles_it_with_one_try_each(tmp_path: Path) -> None:
    """The journal is gone: nothing but the vault tells of the rotation."""
    for applied in (True, False):
        folder = tmp_path / str(applied)
        vault = a_vault(folder)
        new = vault.lookup(NEW_REF)
        assert new is not None
        vault.stage(REF, NODE, new)
        async with a_bmc() as bmc:
            if applied:
                bmc.state.set_password("root", NEW)
            answer = await _alone(folder, vault, command(bmc, "getPower"))
            assert answer["state"] == "on"
            assert password_in(vault) == password_at(bmc) == (NEW if applied else OLD)
            assert not vault.is_staged(REF, NODE)
            refused = [entry for entry in bmc.journal.entries("POST", "*/Sessions") if entry.status == 401]
            assert len(refused) == (0 if applied else 1)


async def test_where_the_bmc_takes_neither_each_is_shown_once_however_often_it_is_asked(tmp_path: Path) -> None:
    vault = a_vault(tmp_path)
    new = vault.lookup(NEW_REF)
    assert new is not None
    vault.stage(REF, NODE, new)
    async with a_bmc() as bmc:
        bmc.state.set_password("root", "S0mething-else")
        for _ in range(3):
            with pytest.raises(OperationError, match="neither the new one nor the old one") as caught:
                # A life of its own each time: the refusals are remembered on the disk.
                await _alone(tmp_path, vault, command(bmc, "getPower"))
            assert caught.value.code is ErrorCode.AUTH_FAILED
            assert f"credentials set {REF}" in caught.value.message
            assert not any(word in str(caught.value) for word in (OLD, NEW))
        assert len(bmc.journal.entries("POST", "*/Sessions")) == 2
        assert not bmc.state.is_locked("root")
        # What the operator then sets ends the doubt.
        vault.set(REF, "root", Secret("S0mething-else"))
        assert (await _alone(tmp_path, vault, command(bmc, "getPower")))["state"] == "on"


async def test_a_bmc_that_cannot_be_asked_leaves_both_kept(tmp_path: Path) -> None:
    vault = a_vault(tmp_path)
    new = vault.lookup(NEW_REF)
    assert new is not None
    vault.stage(REF, NODE, new)
    async with a_bmc() as bmc:
        asked = command(bmc, "getPower")
    with pytest.raises(OperationError) as caught:
        await _alone(tmp_path, vault, asked)
    assert caught.value.code is ErrorCode.UNREACHABLE
    assert vault.is_staged(REF, NODE)


async def test_nobody_logs_in_with_either_password_while_it_is_changed(tmp_path: Path) -> None:
    vault = a_vault(tmp_path)
    slow = FaultRule(method="PATCH", path="*/Accounts/*", answer_late=0.3)
    async with a_bmc(slow) as bmc:
        bmcs = Bmcs(vault, BmcMemory(tmp_path / "bmcs.json"))
        rotating = asyncio.create_task(_with(bmcs, command(bmc)))
        while not changes(bmc):
            await asyncio.sleep(0.01)
        reading = asyncio.create_task(_with(bmcs, command(bmc, "getPower")))
        await rotating
        assert (await reading)["state"] == "on"
        assert [entry.status for entry in bmc.journal.entries("POST", "*/Sessions") if entry.status != 201] == []
        # The one who waited went on with the new password.
        assert bmcs.drivers.environment.breaker.blocked == {}
        await bmcs.aclose()


async def test_another_accounts_password_changes_nothing_in_the_vault(tmp_path: Path, clock: FakeClock) -> None:
    vault = a_vault(tmp_path)
    vault.set(NEW_REF, "monitor", Secret(NEW))
    async with a_bmc() as bmc:
        ledger = Ledger()
        row = ledger.ask(command(bmc, user="monitor"))
        points = await one_life(tmp_path, clock, ledger)
        assert row.ending is not None
        assert row.ending.outcome is Outcome.SUCCEEDED
        assert (password_at(bmc, "monitor"), password_at(bmc)) == (NEW, OLD)
        assert (vault.origin(REF, NODE), password_in(vault)) == (None, OLD)
        place = points.passed.index("after the PATCH") + 1
    async with a_bmc() as bmc:
        folder = tmp_path / "killed"
        a_vault(folder).set(NEW_REF, "monitor", Secret(NEW))
        ledger = Ledger()
        row = ledger.ask(command(bmc, user="monitor"))
        await one_life(folder, clock, ledger, place)
        await one_life(folder, clock, ledger)
        assert row.ending is not None
        assert row.ending.outcome is Outcome.SUCCEEDED
        assert row.ending.observed["settledBy"].startswith("a login")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"newCredentialRef": "nobody/knows"}, "credentials set nobody/knows"),
        ({"newCredentialRef": REF}, "is the credential in use"),
        ({"user": "monitor"}, "is a password of 'root'"),
    ],
)
async def test_what_the_vault_cannot_serve_with_is_refused_before_the_bmc_is_asked(
    args: dict[str, str], said: str, tmp_path: Path
) -> None:
    vault = a_vault(tmp_path)
    async with a_bmc() as bmc:
        with pytest.raises(OperationError, match=said) as caught:
            await _alone(tmp_path, vault, command(bmc, **args))
        assert caught.value.code is ErrorCode.INVALID_ARGUMENT
        assert bmc.journal.entries() == []


async def test_a_vault_that_cannot_be_written_stops_it_before_the_bmc_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = a_vault(tmp_path)
    async with a_bmc() as bmc:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("agent.vault.write_durably", full)
        with pytest.raises(OperationError, match="the BMC was not asked"):
            await _alone(tmp_path, vault, command(bmc))
        assert changes(bmc) == 0
        assert password_at(bmc) == OLD


async def test_asking_again_after_success_is_harmless(tmp_path: Path) -> None:
    vault = a_vault(tmp_path)
    async with a_bmc() as bmc:
        await _alone(tmp_path, vault, command(bmc))
        assert (await _alone(tmp_path, vault, command(bmc)))["changed"] is False
        assert changes(bmc) == 1


async def test_no_password_reaches_the_disk_in_clear(tmp_path: Path, clock: FakeClock) -> None:
    a_vault(tmp_path)
    async with a_bmc() as bmc:
        ledger = Ledger()
        ledger.ask(command(bmc))
        await one_life(tmp_path, clock, ledger)
    for file in tmp_path.iterdir():
        assert not any(word.encode() in file.read_bytes() for word in (OLD, NEW)), file


async def _alone(folder: Path, vault: Vault, asked: Command) -> dict[str, Any]:
    """One command in a life of its own."""
    bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"))
    try:
        return await _with(bmcs, asked)
    finally:
        await bmcs.aclose()


async def _with(bmcs: Bmcs, asked: Command) -> dict[str, Any]:
    async with bmcs.turn(asked.payload) as work:
        return (await work.run(30, lambda _message, _percent: None)).result
