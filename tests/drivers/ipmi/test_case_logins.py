"""Logins at BMCs that refuse or lose any step: the case B44, and others of its kind."""

import pytest

from drivers.ipmi.handshake import STATUS_TEXTS, Status
from protocol.errors import ErrorCode, OperationError
from simulators.ipmi.faults import Phase
from tests.drivers.ends import ended
from tests.drivers.ipmi.conftest import Site

pytestmark = pytest.mark.case("B44")
STEPS = [Phase.OPEN_SESSION, Phase.RAKP_1, Phase.RAKP_3]
STATUSES = [*(status for status in Status if status), 0x13, 0x7F, 0xFF]
NO_JUDGEMENT = {
    Status.INSUFFICIENT_RESOURCES,
    Status.INSUFFICIENT_RESOURCES_FOR_ROLE,
    Status.INVALID_SESSION_ID,
    Status.INACTIVE_SESSION_ID,
}
"""What says nothing of the password, and passes."""
MOST_LOGINS = 12
"""Open Session requests of one ladder, back-off included."""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("status", STATUSES, ids=hex)
async def test_b44_a_step_that_is_always_refused_ends_in_its_own_words_and_shows_one_password_at_most(
    site: Site, hasty: None, step: Phase, status: int
) -> None:
    site.fault(step, status=status)
    error = await site.refused("power.getPower")
    assert f"{int(status):#04x}" in error.message
    assert STATUS_TEXTS.get(status, "") in error.message
    assert error.code is not ErrorCode.OUTCOME_UNKNOWN
    assert "None" not in error.message
    assert site.logins() <= (MOST_LOGINS if status in NO_JUDGEMENT else 1)
    assert len(site.bmc.journal.phase(Phase.OPEN_SESSION)) <= MOST_LOGINS


@pytest.mark.parametrize("step", STEPS[:2])
@pytest.mark.parametrize("status", [0x04, 0x05, 0x06, 0x07, 0x10, 0x11, 0x12])
async def test_b44_a_status_about_suite_17_leads_to_suite_3(
    site: Site, hasty: None, step: Phase, status: int
) -> None:
    site.fault(step, suite=17, status=status)
    assert (await site.invoke("power.getPower"))["state"] == "on"
    assert site.logins() == 1


@pytest.mark.parametrize("step", STEPS[:2])
async def test_b44_suite_17_that_is_dropped_at_any_step_before_the_password_leads_to_suite_3(
    site: Site, hasty: None, step: Phase
) -> None:
    site.fault(step, suite=17, drop=True)
    assert (await site.invoke("power.getPower"))["state"] == "on"
    assert site.logins() == 1


@pytest.mark.parametrize("step", STEPS)
async def test_b44_a_step_that_is_lost_once_is_sent_again(site: Site, hasty: None, step: Phase) -> None:
    site.fault(step, drop=True, count=1)
    assert (await site.invoke("power.getPower"))["state"] == "on"


@pytest.mark.parametrize("step", STEPS)
async def test_b44_a_step_whose_answer_is_lost_once_is_made_up_for(site: Site, hasty: None, step: Phase) -> None:
    site.fault(step, drop_answer=True, count=1)
    assert (await site.invoke("power.getPower"))["state"] == "on"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("garbage", ["", "06", "0600ff07", "0600ff0706c0000000000000000000", "ff" * 64])
async def test_b44_noise_in_place_of_an_answer_is_no_answer(
    site: Site, hasty: None, step: Phase, garbage: str
) -> None:
    site.fault(step, garbage=garbage or "00")
    end = await ended(site.invoke("power.getPower", timeout=8))
    if isinstance(end, OperationError):
        assert end.code in (ErrorCode.UNREACHABLE, ErrorCode.TIMEOUT)
        assert "None" not in end.message


@pytest.mark.parametrize("privilege", [3, 4])
async def test_b44_a_user_who_is_taken_at_neither_level_is_told_so(site: Site, hasty: None, privilege: int) -> None:
    site.fault(Phase.RAKP_1, privilege=4, status=0x09)
    if privilege == 3:
        site.fault(Phase.RAKP_1, privilege=3, status=0x09)
        error = await site.refused("power.getPower")
        assert error.code is ErrorCode.AUTH_FAILED
        assert "OPERATOR" in error.message
    else:
        assert (await site.invoke("power.getPower"))["state"] == "on"
    assert site.logins() <= 1
