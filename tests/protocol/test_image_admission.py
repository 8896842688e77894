"""The word that stands for what admits to an image, and its place in an address."""

import pytest

from protocol.image_admission import ADMISSION, admitted, checksum_of, hidden

TOKEN = "0123456789" * 4


@pytest.mark.parametrize("checksum", ["ab" * 32, "cd" * 64])
def test_what_is_hidden_is_put_in_again(checksum: str) -> None:
    address = f"http://192.0.2.1:8446/images/{TOKEN}/{checksum}/debian-12.raw.zst"
    shown = hidden(address, TOKEN)
    assert TOKEN not in shown
    assert ADMISSION in shown
    assert checksum_of(shown) == checksum
    assert admitted(shown, TOKEN) == address


@pytest.mark.parametrize(
    "address",
    [
        f"https://images.example/images/{TOKEN}/{'ab' * 32}/debian.raw",
        f"https://images.example/{ADMISSION}/{'ab' * 32}/debian.raw",
        f"https://images.example/images/{ADMISSION}/{'ab' * 31}/debian.raw",
        "https://images.example/debian.raw",
    ],
    ids=["has its admission", "is no path of images", "has no checksum", "is an origin's"],
)
def test_any_other_address_stays_as_it_is(address: str) -> None:
    assert checksum_of(address) is None
    assert admitted(address, TOKEN) == address
