"""Rotating a password over IPMI: the user's own slot, one order, a login with the new password as its proof."""

import asyncio
from dataclasses import replace

import pytest

from drivers import Breaker, Drivers, GivenPassword
from drivers.ipmi.accounts import password_data
from protocol.errors import ErrorCode, OperationError
from protocol.secret import Secret
from simulators.ipmi.accounts import User
from simulators.ipmi.constants import Privilege
from tests.drivers.ipmi.conftest import PASSWORD, USER, IpmiSim, Site, StartSite

SET = (0x06, 0x47)
NEW, LONG = "Rotated-Secret", "Rotated-Secret-of-20"
ORDER = {"user": USER, "newCredentialRef": "new"}


@pytest.fixture(autouse=True)
def _hasty(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivers.rotation._SLOW_SECONDS", 0.0)
    monkeypatch.setattr("drivers.rotation._UNSURE_SECONDS", 0.0)


class Keeper:
    """Keeps both passwords; its steps are told."""

    def __init__(self, secret: str = NEW, dies_at: str = "") -> None:
        self.secret = Secret(secret)
        self.version = None
        self.steps: list[str] = []
        self.dies_at = dies_at

    async def begin(self) -> None:
        self._step("begin")

    async def proven(self) -> None:
        self._step("proven")

    async def withdrawn(self) -> None:
        self._step("withdrawn")

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if self.dies_at == name:
            raise asyncio.CancelledError


async def rotate(site: Site, keeper: Keeper, user: str = USER, timeout: float = 20.0) -> dict[str, object]:
    arguments = {**ORDER, "user": user}
    return await site.drivers.invoke(
        site.target, "config.rotatePassword", arguments, rotation=keeper, timeout=timeout
    )


async def refused(site: Site, keeper: Keeper, user: str = USER) -> OperationError:
    with pytest.raises(OperationError) as caught:
        await rotate(site, keeper, user)
    said = f"{caught.value!r} {caught.value} {caught.value.details} {caught.value.__cause__!r}"
    assert keeper.secret.reveal() not in said
    assert PASSWORD not in said
    return caught.value


def password_of(site: Site, slot: int = 2) -> bytes:
    user = site.bmc.users.slot(slot)
    assert user is not None
    return user.password


@pytest.mark.parametrize("new", ["short", NEW, LONG, "ünï-cødé-16b"])
async def test_a_password_of_up_to_twenty_bytes_is_set_and_proven(site: Site, new: str) -> None:
    keeper = Keeper(new)
    assert await rotate(site, keeper) == {"user": USER, "proven": True, "changed": True}
    assert keeper.steps == ["begin", "proven"]
    assert password_of(site) == new.encode()
    assert len(site.asked(*SET)) == 1
    assert site.logins() == 2
    later = replace(site.target, password=new)
    assert (await site.drivers.invoke(later, "power.getPower"))["state"] == "on"


@pytest.mark.parametrize(("length", "size", "flag"), [(1, 16, 0), (16, 16, 0), (17, 20, 0x80), (20, 20, 0x80)])
def test_the_size_of_a_password_is_named(length: int, size: int, flag: int) -> None:
    data = password_data(3, 2, b"x" * length)
    assert data[:2] == bytes((3 | flag, 2))
    assert data[2:] == b"x" * length + bytes(size - length)


@pytest.mark.parametrize("new", ["twenty-one-bytes-long", "nul\0inside"])
async def test_a_password_that_ipmi_cannot_carry_is_not_sent(site: Site, new: str) -> None:
    keeper = Keeper(new)
    assert (await refused(site, keeper)).code is ErrorCode.INVALID_ARGUMENT
    assert site.asked(*SET) == []
    assert keeper.steps == []


async def test_the_user_is_found_by_name_and_never_by_slot(start_site: StartSite) -> None:
    users = [User("other", b"other-secret"), User("third", b"x"), User(USER, PASSWORD.encode())]
    site = await start_site(users=users)
    await rotate(site, Keeper())
    assert password_of(site, 4) == NEW.encode()
    assert password_of(site, 2) == b"other-secret"


async def test_another_users_password_is_proven_by_that_user(start_site: StartSite) -> None:
    users = [User(USER, PASSWORD.encode()), User("monitor", b"old", privilege=Privilege.OPERATOR)]
    site = await start_site(users=users)
    assert (await rotate(site, Keeper(), "monitor"))["proven"] is True
    assert (password_of(site, 3), password_of(site)) == (NEW.encode(), PASSWORD.encode())


async def test_two_slots_of_one_name_are_told_and_left_alone(start_site: StartSite) -> None:
    site = await start_site(users=[User(USER, PASSWORD.encode()), User(USER, b"second")])
    error = await refused(site, Keeper())
    assert error.code is ErrorCode.CONFLICT
    assert "slots 2, 3" in error.message
    assert site.asked(*SET) == []


async def test_an_unknown_user_is_told_with_those_that_there_are(site: Site) -> None:
    error = await refused(site, Keeper(), "nobody")
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert "it has admin" in error.message


async def test_a_refusal_is_told_in_the_bmcs_words_and_the_old_password_holds(site: Site) -> None:
    site.fault(netfn=SET[0], cmd=SET[1], completion_code=0xD4)
    keeper = Keeper()
    error = await refused(site, keeper)
    assert error.code is ErrorCode.AUTH_FAILED
    assert error.bmc[0].id == "0xd4"
    assert keeper.steps == ["begin", "withdrawn"]
    assert password_of(site) == PASSWORD.encode()


async def test_a_lost_answer_is_made_up_for_by_the_bmcs_own_test_and_not_sent_again(site: Site) -> None:
    site.fault(netfn=SET[0], cmd=SET[1], drop_answer=True, count=1)
    keeper = Keeper()
    assert (await rotate(site, keeper))["proven"] is True
    operations = [entry.data[1] for entry in site.asked(*SET)]
    assert operations == [2, 3]


async def test_an_order_that_was_lost_on_the_way_leaves_the_old_password(site: Site) -> None:
    site.fault(netfn=SET[0], cmd=SET[1], drop=True, count=1)
    keeper = Keeper()
    error = await refused(site, keeper)
    assert error.code is ErrorCode.NOT_APPLIED
    assert keeper.steps == ["begin", "withdrawn"]
    assert [entry.data[1] for entry in site.asked(*SET)].count(2) == 1


async def test_a_yes_that_is_not_true_is_found_by_the_login(site: Site) -> None:
    site.fault(netfn=SET[0], cmd=SET[1], completion_code=0x00)
    keeper = Keeper()
    error = await refused(site, keeper)
    assert error.code is ErrorCode.NOT_APPLIED
    assert "takes the old one" in error.message


@pytest.mark.parametrize("place", ["begin", "proven"])
async def test_after_a_crash_one_of_the_kept_passwords_holds(site: Site, place: str) -> None:
    with pytest.raises(asyncio.CancelledError):
        await rotate(site, Keeper(dies_at=place))
    async with Drivers(Breaker()) as later:
        new = await later.takes_login(replace(site.target, password=NEW), timeout=10)
        assert new is (place == "proven")
        assert new or await later.takes_login(site.target, timeout=10)


@pytest.mark.case("B34")
async def test_b34_the_old_password_is_refused_here_and_not_shown_to_the_bmc_again(site: Site) -> None:
    await rotate(site, Keeper())
    await site.drivers.connections.aclose()
    shown = site.logins()
    with pytest.raises(OperationError) as caught:
        await site.drivers.invoke(site.target, "power.getPower")
    assert caught.value.code is ErrorCode.AUTH_BLOCKED
    assert site.logins() == shown


async def test_what_ipmi_does_not_know_says_where_it_is(site: Site) -> None:
    for operation in ("config.getConfig", "config.getCertificates", "config.exportConfig"):
        error = await site.refused(operation)
        assert error.code is ErrorCode.UNSUPPORTED
        assert "Redfish" in error.message


@pytest.mark.e2e
async def test_openipmis_simulator_takes_the_new_password(ipmi_sim: IpmiSim) -> None:
    async with Drivers() as drivers:
        given = GivenPassword(Secret(NEW))
        result = await drivers.invoke(ipmi_sim.target, "config.rotatePassword", ORDER, rotation=given)
        assert result["proven"] is True
        later = replace(ipmi_sim.target, password=NEW)
        assert (await drivers.invoke(later, "power.getPower"))["state"] == "off"
    async with Drivers() as drivers:
        assert not await drivers.takes_login(ipmi_sim.target, timeout=10)
