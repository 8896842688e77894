"""Which mirror of Debian an image is built from: the one that this host's apt was set up with."""

from pathlib import Path

import pytest

from ramdisk.image.apt_sources import Mirror, Source, choose_mirror, own_mirror, parse_deb822, parse_one_line
from ramdisk.image.programs import BuildError

ONE_LINE = """
# deb http://old.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://mirror.example/debian/ bookworm main contrib  # ours
deb http://mirror.example/debian bookworm-updates main
deb-src http://sources.example/debian bookworm main
nonsense
"""
DEB822 = """
# Written by the installer.
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm
 bookworm-updates
# a comment between the lines
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://security.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
Enabled: No
URIs: http://off.example/debian
Suites: trixie
Components: main

Types: deb-src
URIs: http://sources.example/debian
Suites: trixie
Components: main
"""


def test_lines_are_read_with_and_without_options() -> None:
    assert parse_one_line(ONE_LINE) == (
        Source("http://mirror.example/debian/", ("bookworm",), ("main", "contrib")),
        Source("http://mirror.example/debian", ("bookworm-updates",), ("main",)),
    )


def test_paragraphs_are_read_and_those_that_are_switched_off_are_not() -> None:
    assert parse_deb822(DEB822) == (
        Source("http://mirror.example/debian", ("bookworm", "bookworm-updates"), ("main",)),
        Source("http://security.example/debian-security", ("bookworm-security",), ("main",)),
    )


def test_a_host_of_any_release_names_a_mirror_that_has_them_all() -> None:
    trixie = Source("http://mirror.example/debian", ("trixie", "trixie-updates"), ("main",))
    assert choose_mirror([trixie]) == Mirror.at("http://mirror.example/debian/")


def test_security_updates_come_from_where_the_host_has_them() -> None:
    assert choose_mirror(parse_deb822(DEB822)) == Mirror(
        "http://mirror.example/debian", "http://security.example/debian-security"
    )
    assert choose_mirror(parse_one_line(ONE_LINE)) == Mirror(
        "http://mirror.example/debian", "http://mirror.example/debian-security"
    )


def test_somebody_elses_packages_for_a_release_are_not_taken_for_debian() -> None:
    other = Source("http://tools.example/apt", ("bookworm",), ("main",))
    debian = Source("http://mirror.example/debian", ("bookworm", "bookworm-updates"), ("main",))
    assert choose_mirror([other, debian]) == Mirror.at("http://mirror.example/debian")


@pytest.mark.parametrize(
    "source",
    [
        Source("http://archive.example/ubuntu", ("noble", "noble-updates"), ("main", "universe")),
        Source("http://containers.example/linux/debian", ("bookworm",), ("stable",)),
        Source("http://database.example/apt", ("bookworm-pgdg",), ("main",)),
        Source("cdrom:[Debian GNU/Linux 12]/", ("bookworm",), ("main",)),
    ],
)
def test_what_is_no_mirror_of_debian_is_passed_over(source: Source) -> None:
    assert choose_mirror([source]) is None


def test_both_formats_of_a_hosts_sources_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("# see sources.list.d\n")
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/a.save").write_text("deb http://old.example/debian bookworm main\n")
    (tmp_path / "sources.list.d/b.list").write_text("deb http://tools.example/apt stable main\n")
    (tmp_path / "sources.list.d/debian.sources").write_text(DEB822)
    assert own_mirror(tmp_path).archive == "http://mirror.example/debian"


def test_a_host_without_debian_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="name one with --mirror URL"):
        own_mirror(tmp_path)
