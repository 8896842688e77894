"""A secret shows itself nowhere."""

import copy
import logging
import pickle

import msgspec
import pytest

from protocol.secret import Secret

SECRET = Secret("hunter2")


def test_no_text_of_a_secret_holds_its_value(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("%s %r", SECRET, SECRET)
    shown = f"{SECRET} {SECRET!r} {SECRET:>20} {[SECRET]} {caplog.text}"
    assert "hunter2" not in shown


def test_a_secret_is_neither_pickled_nor_copied_nor_encoded() -> None:
    for attempt in (pickle.dumps, copy.copy, msgspec.json.encode):
        with pytest.raises(TypeError) as caught:
            attempt(SECRET)
        assert "hunter2" not in str(caught.value)


def test_secrets_compare_by_value_and_serve_as_no_key() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    with pytest.raises(TypeError):
        hash(SECRET)


def test_an_empty_secret_is_false_and_only_reveal_gives_the_value() -> None:
    assert not Secret("")
    assert SECRET
    assert SECRET.reveal() == "hunter2"
