"""A disk that is opened for good is let go of, however that ends."""

import os
from pathlib import Path

import pytest

from drivers.linux.block_device import BlockDevice


def test_a_disk_that_nobody_holds_any_more_is_let_go_of(tmp_path: Path) -> None:
    """As when an erasure is cancelled while a thread still opens its disk: the next one must not find it in use."""
    file = tmp_path / "disk"
    file.write_bytes(bytes(8192))
    device = BlockDevice(str(file), writing=True)
    handle = device.handle
    del device
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
