"""FRU areas: text in four encodings, areas that are missing, blank or broken."""

import pytest

from drivers.ipmi.fru import Fru, FruError, area_end, area_offsets, parse_areas


def field(text: str, kind: int = 3) -> bytes:
    return bytes((kind << 6 | len(text),)) + text.encode("latin-1")


def area(*fields: bytes, head: bytes) -> bytes:
    body = b"\x01\x00" + head + b"".join(fields) + b"\xc1"
    padded = body.ljust(-(-(len(body) + 1) // 8) * 8 - 1, b"\0") + b"\0"
    return padded[:1] + bytes((len(padded) // 8,)) + padded[2:]


def board(*fields: bytes, language: int = 0) -> bytes:
    return area(*fields, head=bytes((language, 0, 0, 0)))


def product(*fields: bytes, language: int = 25) -> bytes:
    return area(*fields, head=bytes((language,)))


def test_the_areas_identify_the_machine() -> None:
    fru = parse_areas(
        area(field("CH-1"), field("CHSER"), head=b"\x17"),
        board(field("ACME"), field("BOARD"), field("BSER"), field("BPART")),
        product(field("Acme Inc"), field("Model 1"), field("P-1"), field("v2"), field("PSER"), field("TAG")),
    )
    assert fru == Fru(
        "CH-1", "CHSER", "ACME", "BOARD", "BSER", "BPART", "Acme Inc", "Model 1", "P-1", "v2", "PSER", "TAG"
    )
    assert (fru.maker, fru.model, fru.serial) == ("Acme Inc", "Model 1", "PSER")


def test_where_the_product_area_is_missing_the_board_and_chassis_stand_in() -> None:
    fru = parse_areas(b"", board(field("ACME"), field("BOARD"), field("BSER")), b"")
    assert (fru.maker, fru.model, fru.serial) == ("ACME", "BOARD", "BSER")
    assert parse_areas(b"", b"", b"") == Fru()


@pytest.mark.parametrize("blank", [field(""), field("   "), field("\0\0\0"), field("\0\0", kind=0)])
def test_blank_fields_are_none(blank: bytes) -> None:
    assert parse_areas(b"", board(blank), b"").board_maker is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (bytes((0x02, 0x1A, 0x2B)), "1a2b"),
        (bytes((0x42, 0x12, 0x3B)), "123-"),
        (bytes((0x83, 0x29, 0xDC, 0xA6)), "IPMI"),
        (b"\xc4ACME", "ACME"),
    ],
)
def test_binary_bcd_six_bit_and_latin_texts_are_read(data: bytes, text: str) -> None:
    assert parse_areas(b"", board(data), b"").board_maker == text


def test_other_languages_are_utf_16_or_plain_bytes_where_makers_set_none() -> None:
    wide = "機械".encode("utf-16-le")
    named = product(bytes((0xC0 | len(wide),)) + wide, language=13)
    assert parse_areas(b"", b"", product(field("Dell"), language=13)).product_maker == "Dell"
    assert parse_areas(b"", b"", named).product_maker is not None


def test_an_area_that_is_cut_off_gives_what_is_there() -> None:
    whole = board(field("ACME"), field("BOARD"))
    assert parse_areas(b"", whole[:8], b"").board_maker == "A"
    for length in range(len(whole)):
        parse_areas(b"", whole[:length], b"")


@pytest.mark.parametrize("header", [b"", b"\x01\x00", b"\xff" * 8, bytes(8)])
def test_a_blank_or_short_header_is_an_error(header: bytes) -> None:
    with pytest.raises(FruError):
        area_offsets(header)


def test_offsets_and_lengths_count_eight_bytes() -> None:
    assert area_offsets(bytes.fromhex("0100020305000000")) == (16, 24, 40)
    assert area_end(16, b"\x01\x03") == 40
    assert area_end(16, b"") == 16
