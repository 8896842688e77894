"""A secret leaves an error in every form, and takes nothing else with it."""

import pytest

from drivers.concealment import conceal, forms_of, hidden, secrets_in
from protocol.errors import BmcMessage, ErrorCode, OperationError

SECRET = 'pa"ss wörd&'


@pytest.mark.parametrize("form", sorted(forms_of(SECRET)))
def test_every_form_of_a_secret_is_taken_out_of_every_part(form: str) -> None:
    error = OperationError(
        ErrorCode.BMC_ERROR,
        f"it said {form}!",
        bmc=[BmcMessage(f"X.{form}", f"you sent {form}")],
        details={"location": f"/x?{form}", "listed": [form, 1], "inner": {"deep": form}},
    )
    conceal(error, SECRET)
    assert form not in repr(error) + str(error) + str(error.details) + str(error.bmc)
    assert error.message == "it said ***!"
    assert error.details["listed"] == ["***", 1]


def test_a_short_secret_does_not_spoil_our_own_words() -> None:
    error = OperationError(ErrorCode.BMC_ERROR, "a BMC at 10.0.0.1", bmc=[BmcMessage("", "user a is unknown")])
    conceal(error, "a")
    assert error.message == "a BMC at 10.0.0.1"
    assert error.bmc == [BmcMessage("", "(hidden: it repeats the password)")]


def test_a_cause_that_repeats_the_secret_is_cut_off_and_another_is_kept() -> None:
    for words, kept in ((f"bad line {SECRET}", False), ("bad line", True)):
        error = OperationError(ErrorCode.UNREACHABLE, "no answer")
        error.__cause__ = ValueError(words)
        conceal(error, SECRET)
        assert (error.__cause__ is not None) is kept


@pytest.mark.parametrize("secret", ["", "\udcff\udcfe"])
def test_nothing_and_what_is_no_text_hide_nothing(secret: str) -> None:
    error = OperationError(ErrorCode.BMC_ERROR, "as it was")
    conceal(error, secret)
    assert error.message == "as it was"


def test_the_secrets_of_arguments_are_the_passwords_and_queries_of_their_addresses() -> None:
    arguments = {
        "image": "http://reader:p%40ss@h/a.iso",
        "updates": [{"image": "https://h/b?sig=x%3D"}, {"image": "/a/file?name"}],
        "name": "a://[",
        "count": 3,
    }
    assert secrets_in(arguments) == ("p@ss", "p%40ss", "?sig=x%3D")
    assert hidden("got p@ss, as p%40ss", "p@ss", "") == "got ***, as ***"
    assert hidden("a word", "a") == "a word"
