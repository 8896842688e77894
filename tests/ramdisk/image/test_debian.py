"""Which Debian packages an image is of, and building it again from the same ones."""

import pytest

from protocol.errors import RequestError
from ramdisk.image.debian import Package, encode_packages, parse_chosen, parse_packages

SIMULATED = """Reading package lists...
The following NEW packages will be installed:
  busybox-static libc6
Inst libc6 (2.36-9+deb12u14 Debian:12.12/oldstable, Debian-Security:12/oldstable-security [amd64])
Inst busybox-static (1:1.35.0-4+deb12u1+b1 Debian:12.12/oldstable [amd64])
Inst ca-certificates (20250419~deb12u2 Debian:12.12/oldstable [all])
Conf libc6 (2.36-9+deb12u14 Debian:12.12/oldstable [amd64])
"""


def test_what_apt_has_chosen_is_read_with_its_versions() -> None:
    assert parse_chosen(SIMULATED) == (
        Package("busybox-static", "1:1.35.0-4+deb12u1+b1", "amd64"),
        Package("ca-certificates", "20250419~deb12u2", "all"),
        Package("libc6", "2.36-9+deb12u14", "amd64"),
    )


def test_a_file_is_named_as_apt_names_it() -> None:
    package = Package("busybox-static", "1:1.35.0-4+deb12u1+b1", "amd64")
    assert package.file_name == "busybox-static_1%3a1.35.0-4+deb12u1+b1_amd64.deb"


def test_a_list_of_packages_can_be_read_again() -> None:
    packages = (Package("bash", "1:2", "all", "0" * 64), Package("zstd", "3~4", "arm64", "f" * 64))
    assert parse_packages(encode_packages(reversed(packages))) == packages


def test_every_line_that_is_no_package_is_told() -> None:
    with pytest.raises(RequestError) as caught:
        parse_packages(f"bash 1 all {'0' * 64}\n\nzstd 2 all\nnot at all\n")
    assert [issue.path for issue in caught.value.issues] == ["line 3", "line 4"]


def test_a_list_without_packages_is_refused() -> None:
    with pytest.raises(RequestError, match="there is no package in it"):
        parse_packages("\n")
