"""From a payload to a target; and what must not be forgotten over a restart."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from agent.bmcs import BmcMemory, Bmcs
from agent.vault import Vault, VaultKey
from drivers import Target
from protocol.commands import DriverInvoke, TargetRef
from protocol.errors import ErrorCode, OperationError
from protocol.secret import Secret
from tests.agent.counting_driver import Machines


@pytest.fixture
def vault(folder: Path) -> Vault:
    vault = Vault(folder / "vault.json", lambda: VaultKey.load(folder / "vault.key", make=True))
    vault.set("bmc/a", "root", Secret("secret-1"))
    return vault


def invoke(target: TargetRef | None, driver: str = "redfish") -> DriverInvoke:
    return DriverInvoke(driver, "power", "getPower", {}, "node_1", target)


async def test_the_target_holds_the_password_the_policy_and_the_machines_lane(folder: Path, vault: Vault) -> None:
    bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"))
    target = bmcs.target(invoke(TargetRef("https://192.0.2.1", "bmc/a", "sha256:" + "ab" * 32)))
    assert (target.username, target.secret.reveal()) == ("root", "secret-1")
    assert str(target.tls) == "sha256:" + "ab" * 32
    assert target.lane_key == "node_1"
    assert target.credential_version is not None
    assert target.credential_version.startswith("bmc/a#")
    assert "secret-1" not in repr(target)


async def test_a_target_without_a_credential_has_none(folder: Path, vault: Vault) -> None:
    target = Bmcs(vault, BmcMemory(folder / "bmcs.json")).target(invoke(TargetRef("https://192.0.2.1")))
    assert target.username is None
    assert not target.secret


@pytest.mark.parametrize(
    ("target", "driver", "said"),
    [
        (None, "redfish", "needs a BMC"),
        (None, "linux", "this is a site agent"),
        (TargetRef("https://192.0.2.1"), "linux", "this is a site agent"),
        (TargetRef("https://192.0.2.1", "bmc/b"), "redfish", "no credential 'bmc/b'.*credentials set bmc/b"),
        (TargetRef("http://192.0.2.1", "bmc/a"), "redfish", "in clear"),
        (TargetRef("ipmi://192.0.2.1", "bmc/a"), "redfish", "cannot speak to"),
    ],
)
async def test_an_unusable_target_says_what_to_do(
    target: TargetRef | None, driver: str, said: str, folder: Path, vault: Vault
) -> None:
    with pytest.raises(OperationError, match=said) as failure:
        Bmcs(vault, BmcMemory(folder / "bmcs.json")).target(invoke(target, driver))
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT
    assert "secret-1" not in str(failure.value)


async def test_on_the_machine_itself_the_linux_driver_needs_no_bmc(folder: Path, vault: Vault) -> None:
    target = Bmcs(vault, BmcMemory(folder / "bmcs.json"), in_band=True).target(invoke(None, "linux"))
    assert (target.driver_name, target.address) == ("linux", "localhost")
    # One machine, one lane: also for what is done to it without a driver, such as a reboot.
    assert target.lane_key == Target(address="localhost", driver="linux").lane_key


async def test_a_refused_login_stays_refused_over_a_restart_until_the_credential_changes(
    folder: Path, vault: Vault
) -> None:
    reference = TargetRef("https://192.0.2.1", "bmc/a")
    bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"))
    bmcs.drivers.environment.breaker.refused(bmcs.target(invoke(reference)), "401")
    await bmcs.aclose()
    assert "secret-1" not in (folder / "bmcs.json").read_text()

    bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"))
    assert bmcs.blocked() == {"192.0.2.1:443": ["401"]}
    with pytest.raises(OperationError) as failure:
        bmcs.drivers.environment.breaker.check(bmcs.target(invoke(reference)))
    assert failure.value.code is ErrorCode.AUTH_BLOCKED
    vault.set("bmc/a", "root", Secret("secret-2"))
    bmcs.drivers.environment.breaker.check(bmcs.target(invoke(reference)))


async def test_a_certificate_taken_on_first_use_is_known_after_a_restart(folder: Path, vault: Vault) -> None:
    bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"))
    bmcs.drivers.environment.pins["192.0.2.1:443"] = "ab" * 32
    bmcs.drivers.environment.pins.setdefault("192.0.2.1:443", "cd" * 32)
    await bmcs.aclose()
    bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"))
    assert bmcs.drivers.environment.pins == {"192.0.2.1:443": "ab" * 32}
    assert bmcs.drivers.environment.pins.setdefault("192.0.2.2:443", "cd" * 32) == "cd" * 32
    await bmcs.aclose()
    assert set(BmcMemory(folder / "bmcs.json").pins) == {"192.0.2.1:443", "192.0.2.2:443"}


async def test_changes_that_come_together_are_written_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent import bmcs

    writes = []
    monkeypatch.setattr(bmcs, "write_durably", lambda path, data: writes.append(msgspec.json.decode(data)))
    memory = BmcMemory(folder / "bmcs.json")
    for number in range(500):
        memory.pins[f"192.0.2.1:{number}"] = "ab" * 32
        memory.breaker.refused(Target(address=f"https://192.0.2.1:{number + 1}", credential_version="1"), "401")
    await memory.close()
    assert len(writes) == 1
    assert len(writes[0]["pins"]) == 500


def test_a_damaged_memory_stops_the_start_since_a_pin_must_not_be_forgotten(folder: Path) -> None:
    (folder / "bmcs.json").write_text("{")
    with pytest.raises(OperationError, match=r"damaged.*trust each BMC's present certificate anew"):
        BmcMemory(folder / "bmcs.json")


async def test_every_session_is_logged_out_at_the_end(folder: Path, vault: Vault, machines: Machines) -> None:
    bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"))
    payload = {
        "driver": "simulated",
        "concern": "power",
        "operation": "getPower",
        "args": {},
        "targetNodeId": "n",
        "target": {"address": "simulated://m1", "credentialRef": "bmc/a"},
    }
    async with bmcs.turn(payload) as work:
        answer = await asyncio.wait_for(work.run(5, lambda _message, _percent: None), 5)
    assert answer.result["state"] == "on"
    await bmcs.aclose()
    assert machines.logouts == 1
    assert json.loads(json.dumps(answer.result)) == answer.result
