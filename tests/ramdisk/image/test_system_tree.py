"""What of the packages is in the image, and what libraries its programs need."""

import os
import sys
from pathlib import Path

import pytest

from ramdisk.image.libraries import missing_libraries, needed_libraries
from ramdisk.image.system_tree import add_applets, leave_out, link_tree, without_matches

PATHS = [
    "usr/bin/bash",
    "usr/bin/pydoc3.11",
    "usr/lib/python3.11/asyncio/tasks.py",
    "usr/lib/python3.11/test/support.py",
    "usr/share/doc/bash/README",
    "usr/share/docs/other",
]


def test_a_pattern_leaves_out_a_folder_with_all_that_is_in_it() -> None:
    assert without_matches(PATHS, ["usr/share/doc", "usr/lib/python3.*/test"]) == [
        "usr/bin/bash",
        "usr/bin/pydoc3.11",
        "usr/lib/python3.11/asyncio/tasks.py",
        "usr/share/docs/other",
    ]


def test_a_star_stays_within_one_folder() -> None:
    assert without_matches(PATHS, ["usr/*/pydoc*"]) == [path for path in PATHS if "pydoc" not in path]
    assert without_matches(PATHS, ["usr/*.py"]) == PATHS


def test_letters_in_brackets_are_one_of_them_or_none_of_them() -> None:
    assert without_matches(["a1", "a2", "b1"], ["[a]1"]) == ["a2", "b1"]
    assert without_matches(["a1", "a2", "b1"], ["[!a]1"]) == ["a1", "a2"]


def test_an_exclamation_mark_keeps_what_another_pattern_leaves_out() -> None:
    assert "usr/share/doc/bash/README" in without_matches(PATHS, ["usr/share/doc", "!usr/share/doc/*/README"])


def test_a_tree_is_linked_without_more_rights_than_its_caller_has(tmp_path: Path) -> None:
    tree, target = tmp_path / "tree", tmp_path / "target"
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/mount").write_bytes(b"program")
    (tree / "usr/bin/mount").chmod(0o4755)
    (tree / "usr/bin/sh").symlink_to("bash")
    link_tree(tree, leave_out(tree, []), target)
    assert (target / "usr/bin/mount").stat().st_mode & 0o7777 == 0o755
    assert (target / "usr/bin/mount").read_bytes() == b"program"
    assert os.readlink(target / "usr/bin/sh") == "bash"


def test_busybox_takes_no_real_programs_name(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/sbin").mkdir()
    (tmp_path / "usr/sbin/sysctl").write_bytes(b"real")
    add_applets(tmp_path, ["sysctl", "vi"])
    assert {path.name for path in (tmp_path / "usr/bin").iterdir()} == {"busybox", "vi"}
    assert (tmp_path / "usr/bin/vi").readlink() == Path("busybox")


def test_the_libraries_of_a_program_are_read_from_the_program() -> None:
    data = Path(sys.executable).resolve().read_bytes()
    assert any(name.startswith("libc.") for name in needed_libraries(data))


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01" + bytes(200)])
def test_what_is_no_program_needs_nothing(data: bytes) -> None:
    assert needed_libraries(data) == ()


def test_a_library_that_is_not_in_the_image_is_named_with_who_needs_it(tmp_path: Path) -> None:
    data = Path(sys.executable).resolve().read_bytes()
    for name in needed_libraries(data):
        (tmp_path / name).touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_bytes(data)
    assert missing_libraries(tmp_path) == {}
    lost = needed_libraries(data)[0]
    (tmp_path / lost).unlink()
    assert missing_libraries(tmp_path) == {lost: ["bin/python"]}
