"""Which store a URL means, and what is said about one that means none."""

from pathlib import Path

import pytest

from control_plane.store import StoreUrlInvalid, open_store
from control_plane.store.location import sqlite_path


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///var/lib/rackwright/control.db", "/var/lib/rackwright/control.db"),
        ("sqlite:////var/lib/control.db", "/var/lib/control.db"),
        ("sqlite:control.db", "control.db"),
        ("sqlite:///tmp/a%20b.db", "/tmp/a b.db"),
    ],
)
def test_a_sqlite_url_names_a_file(url: str, path: str) -> None:
    assert sqlite_path(url) == Path(path)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("sqlite://:memory:", "name a file"),
        ("sqlite:///:memory:", "name a file"),
        ("sqlite://control.db", "three slashes"),
        ("sqlite://", "names no file"),
        ("sqlite:///x.db?mode=ro", "no options"),
        ("mysql://root:hunter2@host/db", "postgresql://"),
        ("", "postgresql://"),
    ],
)
def test_a_url_that_names_no_store_says_what_to_write(url: str, hint: str) -> None:
    with pytest.raises(StoreUrlInvalid, match=hint) as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)
