"""Logging in to BMCs that stray from the specification, or that hold another password."""

import logging

import pytest

from protocol.errors import ErrorCode
from simulators.ipmi.accounts import User
from simulators.ipmi.constants import Privilege
from simulators.ipmi.faults import Phase
from tests.drivers.ipmi.conftest import PASSWORD, USER, Site, StartSite

SET_PRIVILEGE = (0x06, 0x3B)
CLOSE_SESSION = (0x06, 0x3C)


def suites(site: Site) -> list[int]:
    """The cipher suites of the sessions that are open at the BMC."""
    return [session.suite.number for session in site.bmc.sessions.active()]


async def test_suite_17_is_used_where_the_bmc_has_it(site: Site) -> None:
    await site.invoke("power.getPower")
    assert suites(site) == [17]


@pytest.mark.case("B44")
async def test_a_bmc_without_suite_17_is_driven_with_suite_3_and_the_downgrade_is_told_once(
    start_site: StartSite, caplog: pytest.LogCaptureFixture
) -> None:
    site = await start_site(suites=(3,))
    with caplog.at_level(logging.WARNING, "drivers.ipmi"):
        for _ in range(3):
            await site.invoke("power.getPower")
        site.bmc.sessions.close_all()
    assert [record.getMessage() for record in caplog.records if "suite 3" in record.getMessage()] == [
        f"127.0.0.1:{site.server.port} takes no cipher suite 17; suite 3 (SHA-1) is used"
    ]


@pytest.mark.case("B44")
async def test_a_bmc_that_drops_suite_17_in_silence_is_driven_with_suite_3(site: Site, hasty: None) -> None:
    site.fault(Phase.OPEN_SESSION, suite=17, drop=True)
    assert (await site.invoke("power.getPower"))["state"] == "on"
    assert suites(site) == [3]


@pytest.mark.case("B44")
async def test_the_suite_that_was_found_is_used_at_once_the_next_time(site: Site, hasty: None) -> None:
    dropped = site.fault(Phase.OPEN_SESSION, suite=17, drop=True)
    await site.invoke("power.getPower")
    tried = site.bmc.faults.met(dropped)
    site.bmc.sessions.close_all()
    await site.invoke("power.getPower")
    assert site.bmc.faults.met(dropped) == tried


@pytest.mark.case("B44")
async def test_a_bmc_with_neither_suite_says_so(site: Site) -> None:
    site.fault(Phase.OPEN_SESSION, status=0x11)
    error = await site.refused("power.getPower")
    assert error.code is ErrorCode.UNSUPPORTED
    assert "no cipher suite match" in error.message
    assert site.logins() == 0


@pytest.mark.case("B44")
@pytest.mark.parametrize("phase", [Phase.OPEN_SESSION, Phase.RAKP_1])
@pytest.mark.parametrize("status", [0x09, 0x0D])
async def test_a_user_who_is_no_administrator_logs_in_as_operator(site: Site, phase: Phase, status: int) -> None:
    site.fault(phase, privilege=4, status=status)
    assert (await site.invoke("power.setPower", action="off"))["state"] == "off"
    assert site.logins() == 1


@pytest.mark.case("B44")
async def test_an_operator_account_is_driven_whatever_the_bmc_checks_first(start_site: StartSite) -> None:
    site = await start_site(users=[User(USER, PASSWORD.encode(), Privilege.OPERATOR)])
    assert (await site.invoke("power.setPower", action="reset"))["state"] == "on"


@pytest.mark.case("B44")
async def test_a_refused_administrator_level_leads_to_operator_in_the_same_session(site: Site) -> None:
    site.fault(netfn=6, cmd=0x3B, data="04", completion_code=0x81)
    assert (await site.invoke("power.setPower", action="off"))["state"] == "off"
    assert [entry.data for entry in site.asked(*SET_PRIVILEGE)] == [b"\x04", b"\x03"]
    assert site.logins() == 1


async def test_a_user_who_may_only_read_reads_and_is_told_why_he_cannot_change(start_site: StartSite) -> None:
    site = await start_site()
    site.fault(netfn=6, cmd=0x3B, completion_code=0x81)
    assert (await site.invoke("power.getPower"))["state"] == "on"
    error = await site.refused("power.setPower", action="off")
    assert error.code is ErrorCode.AUTH_FAILED
    assert "privilege" in error.message
    assert error.bmc[0].id == "0xd4"


@pytest.mark.case("B44")
async def test_a_wrong_password_is_never_proven_to_the_bmc_and_blocks_until_it_changes(start_site: StartSite) -> None:
    site = await start_site(password="not-the-one")
    assert (await site.refused("power.getPower")).code is ErrorCode.AUTH_FAILED
    steps = len(site.bmc.journal)
    for _ in range(5):
        assert (await site.refused("power.getPower")).code is ErrorCode.AUTH_BLOCKED
    assert len(site.bmc.journal) == steps
    assert len(site.bmc.journal.phase(Phase.RAKP_1)) == 1


@pytest.mark.case("B44")
async def test_an_unknown_user_blocks_after_one_ladder(start_site: StartSite) -> None:
    site = await start_site(username="nobody")
    error = await site.refused("power.getPower")
    assert error.code is ErrorCode.AUTH_FAILED
    assert (await site.refused("power.getPower")).code is ErrorCode.AUTH_BLOCKED
    assert site.logins() <= 1


async def test_a_bmc_that_refuses_our_proof_blocks_the_credential(site: Site) -> None:
    site.fault(Phase.RAKP_3, status=0x0F)
    error = await site.refused("power.getPower")
    assert error.code is ErrorCode.AUTH_FAILED
    assert "RAKP 3" in error.message
    assert (await site.refused("power.getPower")).code is ErrorCode.AUTH_BLOCKED
    assert site.logins() == 1


async def test_a_bmc_key_is_named_as_the_cause(start_site: StartSite) -> None:
    site = await start_site(k_g=b"k" * 20)
    error = await site.refused("power.getPower")
    assert error.code is ErrorCode.AUTH_FAILED
    assert "K_G" in error.message


@pytest.mark.case("B46")
async def test_a_bmc_without_a_free_session_is_waited_for(site: Site, hasty: None) -> None:
    site.fault(Phase.OPEN_SESSION, status=0x01, count=2)
    assert (await site.invoke("power.getPower"))["state"] == "on"


@pytest.mark.case("B46")
async def test_a_bmc_that_never_has_a_free_session_is_asked_a_few_times_only(site: Site, hasty: None) -> None:
    rule = site.fault(Phase.OPEN_SESSION, status=0x01)
    error = await site.refused("power.getPower")
    assert error.code is ErrorCode.BUSY
    assert "insufficient resources" in error.message
    assert site.bmc.faults.met(rule) == 4


@pytest.mark.parametrize("phase", [Phase.AUTH_CAP, Phase.OPEN_SESSION, Phase.RAKP_1, Phase.RAKP_3])
async def test_a_lost_request_or_answer_of_any_step_is_made_good(site: Site, hasty: None, phase: Phase) -> None:
    for effect in ("drop", "drop_answer"):
        site.bmc.faults.clear()
        site.fault(phase, count=1, **{effect: True})
        assert (await site.invoke("power.getPower"))["state"] == "on"
        await site.drivers.aclose()


@pytest.mark.parametrize("phase", [Phase.AUTH_CAP, Phase.OPEN_SESSION, Phase.RAKP_1, Phase.RAKP_3])
async def test_garbage_and_doubled_answers_at_any_step_do_no_harm(site: Site, hasty: None, phase: Phase) -> None:
    for effect in ({"garbage": "ff00ff", "count": 1}, {"duplicate": 3}, {"truncate": 20, "count": 1}):
        site.bmc.faults.clear()
        site.fault(phase, **effect)
        assert (await site.invoke("power.getPower"))["state"] == "on"
        await site.drivers.aclose()


@pytest.mark.parametrize(
    ("phase", "name"), [(Phase.OPEN_SESSION, "Open Session"), (Phase.RAKP_1, "RAKP 1"), (Phase.RAKP_3, "RAKP 3")]
)
async def test_silence_at_a_step_is_reported_with_the_steps_name(
    site: Site, hasty: None, phase: Phase, name: str
) -> None:
    site.fault(phase, drop=True)
    error = await site.refused("power.getPower")
    assert error.code is ErrorCode.UNREACHABLE
    assert f"no answer to {name}" in error.message


@pytest.mark.parametrize("password", ["", "12345678", "0", "12345678901234567890"])
async def test_empty_numeric_and_longest_passwords_are_used_as_they_are(start_site: StartSite, password: str) -> None:
    site = await start_site(users=[User(USER, password.encode())], password=password)
    assert (await site.invoke("power.getPower"))["state"] == "on"


@pytest.mark.parametrize(
    ("username", "password"), [("admin", "p" * 21), ("u" * 17, "secret"), ("ü" * 9, "s"), ("a\0b", "s")]
)
async def test_a_name_or_password_that_ipmi_cannot_carry_is_refused_before_anything_is_sent(
    start_site: StartSite, username: str, password: str
) -> None:
    site = await start_site(username=username, password=password)
    error = await site.refused("power.getPower")
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert len(site.bmc.journal) == 0


async def test_the_null_user_logs_in_without_a_name(start_site: StartSite) -> None:
    site = await start_site(users=[User("", b"")], username="", password="")
    assert (await site.invoke("power.getPower"))["state"] == "on"


async def test_the_session_is_closed_at_the_bmc_in_the_end(site: Site) -> None:
    await site.invoke("power.getPower")
    await site.drivers.aclose()
    assert len(site.asked(*CLOSE_SESSION)) == 1
    assert site.bmc.sessions.active() == []
