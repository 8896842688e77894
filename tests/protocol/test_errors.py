"""The error tree: typed by what the caller can do next, and whole after a journey."""

import msgspec
import pytest

from protocol.errors import (
    Advice,
    BmcMessage,
    ErrorCode,
    Failure,
    Issue,
    OperationError,
    RackwrightError,
    RequestCode,
    RequestError,
)


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_says_what_can_help(code: ErrorCode) -> None:
    assert code.advice in Advice
    assert code.retryable is (code.advice is Advice.RETRY)


def test_codes_after_which_something_may_have_happened_are_never_called_retryable() -> None:
    for code in (ErrorCode.TIMEOUT, ErrorCode.OUTCOME_UNKNOWN, ErrorCode.CANCELLED, ErrorCode.NOT_APPLIED):
        assert code.advice is Advice.LOOK


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_is_the_same_after_its_journey(code: ErrorCode) -> None:
    error = OperationError(code, "it failed", bmc=[BmcMessage("Base.1.0.X", "no")], details={"slot": "Cd.1"})
    arrived = OperationError.from_failure(msgspec.json.decode(msgspec.json.encode(error.as_failure()), type=Failure))
    assert (arrived.code, arrived.message, arrived.bmc, arrived.details) == (
        error.code,
        error.message,
        error.bmc,
        error.details,
    )


def test_a_code_of_a_newer_peer_keeps_its_name() -> None:
    arrived = OperationError.from_failure(Failure("TOO_HOT", "98 degrees"))
    assert arrived.code is ErrorCode.BMC_ERROR
    assert arrived.message == "TOO_HOT: 98 degrees"
    assert arrived.details == {"unknownCode": "TOO_HOT"}


def test_the_text_holds_the_bmcs_own_words() -> None:
    error = OperationError(
        ErrorCode.BUSY, "not now", bmc=[BmcMessage("Base.1.0.Busy", "in use"), BmcMessage("", "wait")]
    )
    assert str(error) == "BUSY: not now (the BMC said: Base.1.0.Busy: in use; wait)"


def test_what_the_message_quotes_already_is_not_said_again() -> None:
    said = [BmcMessage("Base.1.0.Busy", "In use."), BmcMessage("", "wait"), BmcMessage("X.1.0.Wait", "wait")]
    assert (
        str(OperationError(ErrorCode.BUSY, "it says: In use", bmc=said))
        == "BUSY: it says: In use (the BMC said: wait)"
    )
    assert str(OperationError(ErrorCode.BUSY, "In use, wait", bmc=said)) == "BUSY: In use, wait"


def test_what_the_bmc_advises_travels_and_nothing_where_it_advises_nothing() -> None:
    failure = Failure("BUSY", "not now", bmc=[BmcMessage("a", "b", "Try later."), BmcMessage("c", "d")])
    wire = msgspec.json.encode(failure)
    assert wire.count(b"resolution") == 1
    assert msgspec.json.decode(wire, type=Failure) == failure


def test_a_refused_request_lists_every_fault() -> None:
    error = RequestError.invalid(
        [Issue("name", "is required"), Issue("tls", "is unknown", "write verify")], "the node"
    )
    assert isinstance(error, RackwrightError)
    assert error.code is RequestCode.INVALID_INPUT
    assert str(error) == (
        "INVALID_INPUT: the node has 2 faults\n  - name: is required\n  - tls: is unknown (write verify)"
    )
