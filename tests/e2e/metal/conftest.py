"""What these tests share: the installed system's image, and where it comes from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.metal.debian_image import OsImage, debian_image
from tests.e2e.metal.origin import Origin

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def os_image(tmp_path_factory: pytest.TempPathFactory) -> OsImage:
    return debian_image(tmp_path_factory.mktemp("os-image"))


@pytest.fixture
def origin(os_image: OsImage) -> Iterator[Origin]:
    server = Origin({"debian.raw.zst": os_image.file})
    yield server
    server.come_back()
    server.stop()
