"""A secret leaves an error in every form, and takes nothing else with it."""

import pytest

from drivers.concealment import conceal, secrets_in
from drivers.masking import forms_of, masked
from protocol.errors import BmcMessage, ErrorCode, OperationError

SECRET = 'pa"ss wörd&'


@pytest.mark.parametrize("form", sorted(forms_of(SECRET)))
def test_every_form_of_a_secret_is_taken_out_of_every_part(form: str) -> None:
    error = OperationError(
        ErrorCode.BMC_ERROR,
        f"it said {form}!",
        bmc=[BmcMessage(f"X.{form}", f"you sent {form}", f"send another one than {form}")],
        details={"location": f"/x?{form}", "listed": [form, 1], "inner": {"deep": (form,)}},
    )
    conceal(error, SECRET)
    assert form not in repr(error) + str(error) + str(error.details) + str(error.bmc)
    assert error.message == "it said ***!"
    assert error.details["listed"] == ["***", 1]


@pytest.mark.parametrize("secret", ["a", "calvin", "password", "admin"])
def test_a_secret_that_is_a_word_is_hidden_as_a_value_and_spoils_no_words(secret: str) -> None:
    error = OperationError(
        ErrorCode.BMC_ERROR,
        f"a BMC keeps {secret} in its words",
        bmc=[
            BmcMessage("", f"user {secret} is unknown"),
            BmcMessage("", f"The value {secret} for the property Password is too short.", f"Change '{secret}'."),
        ],
        details={"sent": {"Password": secret}, "words": f"the {secret} of it", secret: "a name"},
    )
    conceal(error, secret)
    assert error.message == f"a BMC keeps {secret} in its words"
    assert error.bmc == [
        BmcMessage("", f"user {secret} is unknown"),
        BmcMessage("", "The value *** for the property Password is too short.", "Change '***'."),
    ]
    assert error.details == {"sent": {"Password": "***"}, "words": f"the {secret} of it", secret: "a name"}


def test_a_pin_is_hidden_as_a_number_too() -> None:
    error = OperationError(ErrorCode.BMC_ERROR, "refused", details={"sent": [4711, 47110, True]})
    conceal(error, "4711")
    assert error.details == {"sent": ["***", 47110, True]}


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
    assert masked("got p@ss, as p%40ss", "p@ss", "") == "got ***, as ***"


def test_a_short_query_is_hidden_where_it_is_one() -> None:
    (query,) = secrets_in({"image": "http://h/b?a"})
    assert masked("cannot fetch http://h/b?a: a fault", query) == "cannot fetch http://h/b?***: a fault"
