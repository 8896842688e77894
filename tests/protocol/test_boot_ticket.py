"""The boot ticket on its carriers: whole after each journey, refused where it was damaged, and never shown."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.boot_ticket import (
    AREA_SIZE,
    TICKET_NAME,
    BootTicket,
    TicketInterface,
    TicketNetwork,
    decode_area,
    decode_word,
    encode_archive,
    encode_area,
    encode_word,
    from_json,
    to_json,
)
from protocol.join_token import JoinToken
from protocol.secret import Secret

TOKEN = JoinToken.new("ab" * 32)
TICKET = BootTicket(
    node_id="node_1",
    control_plane="https://control.example:8443",
    token=Secret(TOKEN.text()),
    network=TicketNetwork(
        interfaces=[TicketInterface(mac="b8:2a:72:dd:a0:01", vlan=7, addresses=["192.0.2.5/24"], gateway="192.0.2.1")]
    ),
    expires_at=1_800_000_000_000,
)


def test_the_area_brings_the_ticket_whole() -> None:
    area = encode_area(TICKET)
    assert len(area) == AREA_SIZE
    assert area.startswith(b"RACKWRIGHT TICKET 1\n")
    assert decode_area(area) == TICKET


def test_the_area_of_the_base_image_holds_no_ticket() -> None:
    area = encode_area(None)
    assert area.rstrip(b"\0") == b"RACKWRIGHT TICKET 1\n00000000\n"
    assert decode_area(area) is None


def test_an_area_with_a_flipped_bit_is_refused() -> None:
    area = bytearray(encode_area(TICKET))
    area[200] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        decode_area(bytes(area))


def test_an_area_that_was_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="damaged"):
        decode_area(encode_area(TICKET)[:150])


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reading_of_an_area(data: bytes) -> None:
    for candidate in (data, b"RACKWRIGHT TICKET 1\n" + data, b"RACKWRIGHT TICKET 1\n00000005\n" + data):
        with contextlib.suppress(ValueError):
            decode_area(candidate)


def test_a_ticket_that_is_too_long_for_the_area_is_refused() -> None:
    many = [TicketInterface(mac="b8:2a:72:dd:a0:01", dns=["192.0.2.1"] * 20) for _ in range(400)]
    long = BootTicket(node_id="n", control_plane="c:1", token=TICKET.token, network=TicketNetwork(interfaces=many))
    with pytest.raises(ValueError, match="are the most"):
        encode_area(long)


def test_the_word_of_a_command_line_brings_the_ticket_whole() -> None:
    assert decode_word(encode_word(TICKET)) == TICKET
    assert set(encode_word(TICKET)) & set(" =\"'") == set()


def test_a_word_that_was_cut_is_refused() -> None:
    with pytest.raises(ValueError, match=r"damaged|no boot ticket"):
        decode_word(encode_word(TICKET)[:-7])


def test_a_ticket_of_another_version_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="version 2"):
        from_json(to_json(TICKET).replace(b'"version":1', b'"version":2'))


def test_a_ticket_shows_no_token() -> None:
    assert TOKEN.secret.reveal() not in f"{TICKET!r} {TICKET}"
    with pytest.raises(ValueError, match="no join token") as failure:
        from_json(to_json(TICKET).replace(b"rwj1.", b"rwj9."))
    assert TOKEN.secret.reveal() not in str(failure.value)


def test_the_archive_unpacks_to_the_ticket_that_only_its_owner_may_read(tmp_path: Path) -> None:
    if shutil.which("cpio") is None:
        pytest.skip("the program cpio is not installed: apt-get install cpio")
    subprocess.run(["cpio", "-idm", "--quiet"], cwd=tmp_path, input=encode_archive(TICKET), check=True)
    file = tmp_path / TICKET_NAME
    assert from_json(file.read_bytes()) == TICKET
    assert file.stat().st_mode & 0o777 == 0o600


def test_archives_may_stand_in_a_row() -> None:
    assert len(encode_archive(TICKET)) % 512 == 0
