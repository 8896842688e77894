"""A workflow's failure in words."""

from rackwright.workflow_view import causes


def test_a_cause_is_told_from_the_outside_in_and_the_bmc_s_words_once() -> None:
    said = [
        {"id": "Base.1.0.GeneralError", "text": "No such drive.", "resolution": "Name another drive."},
        {"id": "X.1.0.More", "text": "the bay is empty"},
    ]
    message = "act (raid.createVolume): BMC_ERROR: refused (the BMC said: Base.1.0.GeneralError: No such drive.)"
    error = {"code": "COMMAND_FAILED", "message": message}
    details = {"code": "BMC_ERROR", "message": "refused", "bmc": said}
    assert causes({**error, "details": details}) == [
        f"COMMAND_FAILED: {message}",
        "the BMC said: X.1.0.More: the bay is empty",
        "the BMC advises: Name another drive.",
    ]
    assert causes({**error, "details": None}) == [f"COMMAND_FAILED: {message}"]
    assert causes(None) == []
