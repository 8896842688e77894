"""Which login is tried next: every status at every rung, without a network."""

import pytest

from drivers.ipmi.handshake import SUITE_3, SUITE_17, Privilege
from drivers.ipmi.ladder import Attempt, Ladder, LoginRefused, Phase, Silence
from protocol.errors import ErrorCode, OperationError

ADMINISTRATOR, OPERATOR = Privilege.ADMINISTRATOR, Privilege.OPERATOR


def ladder(start: Attempt | None = None) -> Ladder:
    return Ladder("192.0.2.1:623", start)


def climb(steps: Ladder, refusal: LoginRefused, times: int) -> None:
    for _ in range(times):
        steps.refused(refusal)


def ends(steps: Ladder, phase: Phase, status: int) -> OperationError:
    with pytest.raises(OperationError) as caught:
        steps.refused(LoginRefused(phase, status))
    return caught.value


def test_the_first_rung_is_the_strongest() -> None:
    assert ladder().present == Attempt(SUITE_17, ADMINISTRATOR)


@pytest.mark.case("B44")
@pytest.mark.parametrize("status", [0x04, 0x05, 0x06, 0x07, 0x10, 0x11, 0x12])
def test_a_refused_suite_17_leads_to_suite_3_and_a_refused_suite_3_ends(status: int) -> None:
    steps = ladder()
    steps.refused(LoginRefused(Phase.OPEN_SESSION, status))
    assert steps.present == Attempt(SUITE_3, ADMINISTRATOR)
    error = ends(steps, Phase.OPEN_SESSION, status)
    assert error.code is ErrorCode.UNSUPPORTED
    assert "Open Session" in error.message
    assert f"{status:#04x}" in error.message


@pytest.mark.case("B44")
@pytest.mark.parametrize("phase", [Phase.OPEN_SESSION, Phase.RAKP_1])
@pytest.mark.parametrize("status", [0x09, 0x0A, 0x0D])
def test_a_refused_administrator_leads_to_operator_with_the_same_suite(phase: Phase, status: int) -> None:
    steps = ladder()
    steps.refused(LoginRefused(phase, status))
    assert steps.present == Attempt(SUITE_17, OPERATOR)
    assert ends(steps, phase, status).code is ErrorCode.AUTH_FAILED


@pytest.mark.case("B44")
def test_silence_with_suite_17_leads_to_suite_3_and_then_ends_with_the_step_named() -> None:
    steps = ladder()
    steps.silent(Silence(Phase.OPEN_SESSION, 2.5))
    assert steps.present == Attempt(SUITE_3, ADMINISTRATOR)
    with pytest.raises(OperationError, match="answers IPMI but gave no answer to Open Session") as caught:
        steps.silent(Silence(Phase.OPEN_SESSION, 6.0))
    assert caught.value.code is ErrorCode.UNREACHABLE


@pytest.mark.case("B44")
def test_a_judged_password_is_never_shown_again() -> None:
    for status in (0x09, 0x0D, 0x0F, 0x11, 0x12):
        error = ends(ladder(), Phase.RAKP_3, status)
        assert error.bmc[0].id == f"{status:#04x}"
    with pytest.raises(OperationError):
        ladder().silent(Silence(Phase.RAKP_3, 6.0))


@pytest.mark.case("B46")
def test_a_bmc_without_a_free_session_is_given_time_with_growing_pauses_and_then_reported() -> None:
    steps, pauses = ladder(), []
    for _ in range(5):
        steps.refused(LoginRefused(Phase.OPEN_SESSION, 0x01))
        pauses.append(steps.pause)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0]
    error = ends(steps, Phase.OPEN_SESSION, 0x01)
    assert error.code is ErrorCode.BUSY
    assert "insufficient resources" in error.message


def test_a_set_up_that_the_bmc_forgot_is_begun_again_once() -> None:
    steps = ladder()
    steps.refused(LoginRefused(Phase.RAKP_3, 0x02))
    assert steps.present == Attempt(SUITE_17, ADMINISTRATOR)
    assert ends(steps, Phase.RAKP_3, 0x02).code is ErrorCode.BMC_ERROR


def test_every_status_ends_after_a_few_steps_whatever_the_bmc_says() -> None:
    for status in range(1, 256):
        for phase in Phase:
            with pytest.raises(OperationError):
                climb(ladder(), LoginRefused(phase, status), times=10)


def test_no_answer_at_all_names_what_to_look_at() -> None:
    with pytest.raises(OperationError, match="IPMI over LAN switched on"):
        ladder().silent(Silence(Phase.CAPABILITIES, 6.0))
