"""msgspec's words for a wrong value, as an operator would say them."""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from protocol.fault_words import fault_words


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (list[str], "x", "a list is wanted, this is a text"),
        (dict[str, int], [1], "an object is wanted, this is a list"),
        (bool, "yes", "true or false is wanted, this is a text"),
        (int, 1.5, "a whole number is wanted, this is a number"),
        (int | None, "x", "a whole number or nothing (null) is wanted, this is a text"),
        (
            str | int | bool | float | None,
            [1],
            "true or false, a number, a text or nothing (null) is wanted, this is a list",
        ),
        (Annotated[float, Meta(gt=0)], 0, "must be more than 0"),
        (Annotated[int, Meta(ge=1)], 0, "must be 1 or more"),
        (Annotated[int, Meta(le=5)], 9, "must be 5 or less"),
        (Annotated[float, Meta(lt=2.5)], 3, "must be less than 2.5"),
        (Annotated[int, Meta(multiple_of=2)], 3, "must be a multiple of 2"),
        (Annotated[str, Meta(min_length=1)], "", "must have 1 character or more"),
        (Annotated[str, Meta(max_length=2)], "abc", "may have 2 characters at the most"),
        (Annotated[list[int], Meta(max_length=1)], [1, 2], "may have 1 entry at the most"),
        (tuple[int, int], [1], "must have 2 entries, no more and no fewer"),
        (
            Annotated[str, Meta(pattern="^a")],
            "b",
            "does not have the form that is wanted here (the regular expression '^a')",
        ),
        (Annotated[float, Meta(gt=0)] | Literal["max"], "min", "'min' is not one of the words that are known here"),
        (datetime, "x", "invalid RFC3339 encoded datetime"),
    ],
)
def test_a_fault_is_told_in_the_users_words(kind: Any, value: object, words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(value, kind)
    assert fault_words(str(raised.value)) == words
