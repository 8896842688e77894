"""Sections as text: aligned, within a terminal's width, and documents as they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.layout import fitted, laid_out
from protocol.presentation import Fields, Part, Quote, Table

HELP = "Specifies how the system reacts after the power is back. " * 5
ATTRIBUTES = Table(
    "attributes",
    ["name", "value", "help", "kind", "minimum", "choices"],
    [
        ["BootMode", "Uefi", HELP, "enumeration", "-", "Bios, Uefi"],
        ["Delay", "120", HELP, "integer", "120", "-"],
        ["UserDefinedName", "x", HELP, "string", "-", "-"],
        ["Numa", "Enabled", HELP, "enumeration", "-", "Enabled, Disabled"],
    ],
)


def test_columns_and_fields_are_aligned() -> None:
    parts: list[Part] = [
        Fields("", [("a", "1"), ("long", "2")]),
        Table("t", ["id", "name"], [["1", "x"], ["22", "y"]]),
    ]
    assert laid_out(parts) == "a     1\nlong  2\n\nt\n  id  name\n  1   x\n  22  y"


def test_an_empty_result_is_an_empty_text() -> None:
    assert laid_out([]) == ""


def test_titles_and_names_of_columns_are_emphasised() -> None:
    text = laid_out([Table("t", ["id"], [["1"]])], emphasis=lambda words: f"*{words}*")
    assert text == "*t*\n  *id*\n  1"


def test_without_a_width_what_is_prose_stands_last_and_pads_nothing() -> None:
    lines = laid_out([ATTRIBUTES]).splitlines()
    assert lines[1].split() == ["name", "value", "kind", "minimum", "choices", "help"]
    assert [len(line) for line in lines[2:]] == [lines[1].index("help") + len(HELP.rstrip())] * 4


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (400, []),
        (90, ["help"]),
        (60, ["help", "minimum"]),
        (40, ["help", "minimum", "choices"]),
        (10, ["help", "kind", "minimum", "choices"]),
    ],
)
def test_prose_then_what_says_little_then_the_last_columns_are_left_out(width: int, left_out: list[str]) -> None:
    assert fitted(ATTRIBUTES, width)[1] == left_out


def test_what_is_left_out_is_told_with_the_way_to_see_it() -> None:
    text = laid_out([ATTRIBUTES], 60)
    assert text.endswith("left out: help, minimum (--wide shows all)")
    assert laid_out([ATTRIBUTES], 60, whole="--json").endswith("(--json shows all)")
    assert max(map(len, text.splitlines())) <= 60


def test_words_are_folded_and_a_name_that_is_to_be_copied_is_not() -> None:
    table = Table(
        "", ["id", "model"], [["node_01m8n57kan8p56ns3fpatry7h2", "Intel(R) Xeon(R) Gold 6354 CPU @ 3.00GHz"]]
    )
    assert laid_out([table], 60).splitlines() == [
        "id                               model",
        "node_01m8n57kan8p56ns3fpatry7h2  Intel(R) Xeon(R) Gold 6354",
        "                                 CPU @ 3.00GHz",
    ]


def test_long_values_are_folded_beside_their_name() -> None:
    assert laid_out([Fields("", [("trouble", "one two three four five six seven")])], 30) == (
        "trouble  one two three four\n         five six seven"
    )


def test_characters_that_take_two_places_are_counted_so() -> None:
    assert laid_out([Table("", ["a", "b"], [["漢字", "x"], ["y", "z"]])]) == "a     b\n漢字  x\ny     z"


def test_a_document_is_neither_folded_nor_indented_and_cannot_steer_the_terminal() -> None:
    pem = "-----BEGIN CERTIFICATE-----\r\n" + "M" * 64 + "\r\n\tx\x1b[2J\n"
    assert laid_out([Quote("pem", pem)], 20).split("\n") == [
        "pem",
        "-----BEGIN CERTIFICATE-----",
        "M" * 64,
        "\tx\\x1b[2J",
    ]


_words = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=60)


@given(st.integers(8, 200), st.lists(st.lists(_words, min_size=3, max_size=3), min_size=1, max_size=5))
def test_no_cell_of_a_column_that_is_kept_is_lost(width: int, rows: list[list[str]]) -> None:
    table = Table("", ["a", "b", "c"], rows)
    shown, left_out = fitted(table, width)
    text = laid_out([table], width).replace("\n", "").replace(" ", "")
    assert sorted([*shown.columns, *left_out]) == ["a", "b", "c"]
    for column, name in enumerate(shown.columns):
        for cells in shown.rows:
            assert all(mark in text for mark in cells[column]), name
