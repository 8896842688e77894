"""What is masked of a text, as a rule over all secrets, and not by example alone."""

import base64
import json
import string
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drivers.masking import MASK, forms_of, is_a_word, masked

PATIENT = settings(deadline=None)
WORDS = [
    "a",
    "on",
    "x9",
    "admin",
    "ADMIN",
    "root",
    "calvin",
    "Calvin",
    "0000",
    "1234",
    "password",
    "Password",
    "changeme",
]
RANDOM = ["Pl4nted-Secret", "hunter2", "x7Q!", "P4ss", "zZz9", "correcthorse", "12345678", "pa ss", "?sig=abc"]
VALUES = [
    "{}",
    "  {}\n",
    "'{}'",
    '"{}"',
    "`{}`",
    '{{"Password": "{}"}}',
    '{{"a":"{}","b":["{}", "{}"]}}',
    '{{\\"Password\\": \\"{}\\"}}',
    "{{'UserName': 'x', 'Password': '{}'}}",
    "Password: {}",
    "password={}",
    "PASSWORD = {} and more",
    "pwd: {} is wrong",
    "the password is {}",
    "set iDRAC.Users.2.Password {}",
    "newPassword => {}",
    "api_key: {} expired",
    "Secret({})",
    "X-Auth-Token: {}\r\nHost: h",
    "Cookie: sessionKey={}; Path=/",
    "name: {}, age: 3",
    "https://user:{}@host/path",
    "see https://{}@host/.",
    "http://host/x?{}",
    "http://host/x?p={}&q={}",
    "http://host/x#{}",
    "http://host/{}/image.iso",
    "(http://host/files/{})",
    "root:{}",
    "ipmitool -U root -P {} chassis status",
    "ipmitool -P{} chassis",
    "tool --password {} --verbose",
    "tool --password={}",
    "['tool', '--password', '{}']",
    "<Password>{}</Password>",
    '<Attribute Name="Users.2#Password"> {} </Attribute>',
    "The value {} for the property Password is not acceptable.",
    "The value '{}' for the property Password is not acceptable.",
    "The string {} exceeds the length limit 16.",
]
"""Where a secret stands as a value."""
PROSE = [
    "this BMC takes {} as it comes",
    "The property {} is missing.",
    "the {} account, the {}s and their {}ing",
    "no {} was found in /redfish/v1/AccountService",
    "{} and others may try again",
    "({} may be another one)",
    "it keeps {}: nothing was changed",
    "pre{}fix and {}_suffix",
    '{{"{}": "another"}}',
    '{{"a": 1, \n "{}": [2]}}',
    '{{\\"a\\": 1,\\n \\"{}\\": 2}}',
]
"""Where a word is a word."""
words = st.one_of(
    st.sampled_from(WORDS),
    st.text(string.ascii_lowercase, min_size=1, max_size=7),
    st.text(string.digits, min_size=4, max_size=7),
)
alphabet = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="*")
randoms = st.one_of(
    st.sampled_from(RANDOM), st.text(alphabet, min_size=4, max_size=20).filter(lambda text: not is_a_word(text))
)


def count(template: str, secret: str) -> str:
    """The template with the secret in each of its places."""
    return template.format(*[secret] * template.count("{}"))


@pytest.mark.parametrize("secret", WORDS)
def test_which_secrets_may_be_words(secret: str) -> None:
    assert is_a_word(secret)


@pytest.mark.parametrize("secret", RANDOM)
def test_which_secrets_are_nothing_else(secret: str) -> None:
    assert not is_a_word(secret)


@PATIENT
@given(secret=randoms, before=st.text(alphabet, max_size=20), after=st.text(alphabet, max_size=20))
def test_what_is_long_or_looks_random_is_masked_wherever_it_stands(secret: str, before: str, after: str) -> None:
    assume(all(form not in before + MASK + after for form in forms_of(secret)))
    for form in forms_of(secret):
        shown = masked(before + form + after, secret)
        assert all(other not in shown for other in forms_of(secret))


@PATIENT
@given(secret=words, template=st.sampled_from(VALUES))
def test_a_word_is_masked_wherever_it_stands_as_a_value(secret: str, template: str) -> None:
    assume(secret not in count(template, ""))
    assert masked(count(template, secret), secret) == count(template, MASK)


@PATIENT
@given(secret=words, template=st.sampled_from(PROSE))
def test_a_word_stays_where_it_is_one(secret: str, template: str) -> None:
    assume(secret not in count(template, ""))
    assert masked(count(template, secret), secret) == count(template, secret)


@PATIENT
@given(secret=words | randoms, text=st.sampled_from(VALUES + PROSE))
def test_masking_again_changes_nothing(secret: str, text: str) -> None:
    once = masked(count(text, secret), secret)
    assert masked(once, secret) == once


def values_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [each for item in value.values() for each in values_of(item)]
    if isinstance(value, list):
        return [each for item in value for each in values_of(item)]
    return [value]


def names_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(each for item in value.values() for each in names_of(item))]
    if isinstance(value, list):
        return [each for item in value for each in names_of(item)]
    return []


@PATIENT
@given(data=st.data(), secret=st.sampled_from(WORDS), level=st.integers(0, 2), indent=st.sampled_from([None, 1]))
def test_no_value_of_a_json_document_is_the_secret_and_every_name_stays(
    data: st.DataObject, secret: str, level: int, indent: int | None
) -> None:
    leaf = st.sampled_from([secret, "other", 5, None, True, *([int(secret)] if secret in ("1234",) else [])])
    name = st.sampled_from([secret, "Password", "Name"])
    tree = st.recursive(leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(name, inner, max_size=3))
    document = data.draw(st.dictionaries(name, tree, max_size=3))
    lists_a_number = any(str(value) == secret and not isinstance(value, str) for value in _in_lists(document))
    assume(not lists_a_number)
    text = json.dumps(document, indent=indent)
    # An answer of a BMC is JSON, and a part of an error that is JSON in the log.
    for _ in range(level):
        text = json.dumps(text)
    shown = masked(text, secret)
    for _ in range(level):
        shown = json.loads(shown)
    found = json.loads(shown)
    assert secret not in [str(value) for value in values_of(found)]
    assert names_of(found) == names_of(document)


def _in_lists(value: Any) -> list[Any]:
    """What stands in a list itself, at any depth."""
    if isinstance(value, dict):
        return [each for item in value.values() for each in _in_lists(item)]
    if isinstance(value, list):
        return [*value, *(each for item in value for each in _in_lists(item))]
    return []


@PATIENT
@given(secret=words | randoms, user=st.text(string.ascii_letters, min_size=1, max_size=8))
def test_http_basic_does_not_carry_it_out(secret: str, user: str) -> None:
    carried = base64.b64encode(f"{user}:{secret}".encode()).decode()
    assert masked(f"Authorization: Basic {carried}\r\n", secret) == f"Authorization: Basic {MASK}\r\n"


@pytest.mark.parametrize("secret", ["", "\udcff\udcfe", "\udcffab"])
def test_nothing_and_what_is_no_text_hide_nothing_else(secret: str) -> None:
    assert masked("as it was", secret) == "as it was"


def test_it_takes_no_longer_than_the_text_is_long() -> None:
    parts = [
        '"',
        "{ ",
        "password ",
        "http://",
        "-a ",
        "a.",
        "a",
        "=",
        ": ",
        "\\",
        '"admin" ',
        ',"admin":',
        "basic ",
        "> ",
    ]
    for part in parts:
        masked(part * 20_000 + "admin", "admin")
