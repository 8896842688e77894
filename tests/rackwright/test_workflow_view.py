"""A workflow's failure in words."""

from rackwright.workflow_view import causes, line_of


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


def test_an_attempt_under_way_says_how_far_it_is_and_why_the_last_one_failed() -> None:
    step = {
        "event": "step",
        "stepId": "write",
        "phase": "main",
        "action": "metal.writeImage",
        "runsOn": "control-plane",
        "state": "waiting",
        "attempt": 2,
        "attempts": 2,
        "elapsedMs": 1000,
        "error": {"code": "DRIVER_ERROR", "message": "INVALID_ARGUMENT: its server answers 404"},
        "progress": {"message": "512 MiB written to vda", "percent": 40.0},
    }
    why = "attempt 1 failed: DRIVER_ERROR: INVALID_ARGUMENT: its server answers 404"
    line = "main: write (metal.writeImage on control-plane) waiting, attempt 2 of 2"
    assert line_of(step) == f"{line}: 40 % 512 MiB written to vda; {why}"
    assert line_of({**step, "state": "pending", "progress": None}) == f"{line.replace('waiting', 'pending')}: {why}"
    assert line_of({**step, "error": None}) == f"{line}: 40 % 512 MiB written to vda"
