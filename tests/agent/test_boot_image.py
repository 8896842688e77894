"""The image of the ramdisk, and a machine's ticket laid over its bytes."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.boot_image import BootImages, overlaid
from protocol.boot_ticket import AREA_SIZE, encode_area, from_json
from protocol.errors import ErrorCode, OperationError
from protocol.frames import TicketRequest
from tests.agent.boot_site import AREA_OFFSET, TicketGiver, make_image


def test_a_built_image_is_opened_with_what_is_in_it(tmp_path: Path) -> None:
    images = BootImages(make_image(tmp_path / "image"))
    image = images.newest()
    assert (image.version, image.size, image.area_offset) == ("0.1.0", 1_000_000, AREA_OFFSET)
    assert images.newest() is image
    images.close()


def test_a_newer_image_is_taken_and_the_earlier_one_stays_for_its_readers(tmp_path: Path) -> None:
    path = make_image(tmp_path / "image")
    images = BootImages(path)
    first = images.newest()
    for file in path.parent.iterdir():
        file.unlink()
    make_image(tmp_path / "image", fill=9)
    second = images.newest()
    assert second.sha256 != first.sha256
    assert images.of(first.sha256) is first
    assert images.of("0" * 64) is None
    images.close()


def _change(**changes: Any) -> Any:
    def change(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _damage(path: Path) -> None:
    iso = path.with_name("ramdisk.iso")
    data = bytearray(iso.read_bytes())
    data[5] ^= 1
    iso.write_bytes(data)


def _fill_area(path: Path) -> None:
    import hashlib

    giver = TicketGiver()
    ticket = giver.answer(TicketRequest(id="1", node_id="node_1")).ticket
    assert ticket is not None
    iso = path.with_name("ramdisk.iso")
    data = bytearray(iso.read_bytes())
    data[AREA_OFFSET : AREA_OFFSET + AREA_SIZE] = encode_area(from_json(ticket))
    iso.write_bytes(data)
    _change(isoSha256=hashlib.sha256(data).hexdigest())(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.write_text("{}"), "does not describe an image"),
        (_change(format=2), "reads format 1"),
        (_change(isoSize=999), "should have 999"),
        (_change(areaOffset=999_999), "lies outside of the ISO"),
        (_change(areaOffset=5), "is not where it says"),
        (_change(kernel="../secret"), "does not describe an image"),
        (_change(kernel="missing"), "missing cannot be read"),
        (_change(initrdSha256="0" * 64), "initrd.zst has another checksum"),
        (_damage, "another checksum"),
        (_fill_area, "holds a ticket"),
    ],
)
def test_an_image_that_cannot_be_used_is_refused_with_what_is_wrong(tmp_path: Path, change: Any, words: str) -> None:
    path = make_image(tmp_path / "image")
    change(path)
    with pytest.raises(OperationError) as failure:
        BootImages(path).newest()
    assert failure.value.code is ErrorCode.CONFLICT
    assert words in failure.value.message
    assert "boot.image in agent.toml" in failure.value.message


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 40), st.integers(0, 20))
def test_what_is_laid_over_stands_exactly_where_it_belongs(start: int, length: int, offset: int, over: int) -> None:
    whole = bytes(range(120))
    patched = whole[:offset] + b"\xff" * over + whole[offset + over :]
    assert overlaid(whole[start : start + length], start, b"\xff" * over, offset) == patched[start : start + length]
