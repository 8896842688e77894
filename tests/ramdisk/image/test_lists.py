"""The lists that say what is in the image: how they are read, and that the real ones hold together."""

import pytest

from protocol.errors import RequestError
from ramdisk.image.architectures import ARCHITECTURES
from ramdisk.image.build import PACKAGE_SECTIONS
from ramdisk.image.kernel_modules import SECTIONS
from ramdisk.image.lists import parse_list, parse_words, read_file

PACKAGES = """
# a comment
[image]
busybox-static   # why it is there
mdadm

[boot]
grub-pc-bin [amd64]
grub-efi-arm64-signed [arm64]
both [amd64 arm64]
"""


def test_a_list_keeps_its_order_and_leaves_comments_out() -> None:
    assert parse_list(PACKAGES, "amd64", ("image", "boot"))["image"] == ("busybox-static", "mdadm")


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [("amd64", ("grub-pc-bin", "both")), ("arm64", ("grub-efi-arm64-signed", "both"))],
)
def test_an_entry_is_for_the_architectures_that_it_names(architecture: str, expected: tuple[str, ...]) -> None:
    assert parse_list(PACKAGES, architecture, ("image", "boot"))["boot"] == expected


def test_all_faults_of_a_list_are_told_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        parse_list("early\n[image]\nmdadm\nmdadm\ntwo words\n[kernle]\nlinux\n", "amd64", ("image", "kernel"))
    assert [issue.path for issue in caught.value.issues] == ["line 1", "line 4", "line 5", "line 6"]
    assert "there are image, kernel" in str(caught.value)


@pytest.mark.parametrize("architecture", [entry.debian for entry in ARCHITECTURES.values()])
def test_no_package_is_wanted_and_left_out_at_once(architecture: str) -> None:
    lists = parse_list(read_file("packages.txt"), architecture, PACKAGE_SECTIONS)
    wanted = {name for section, names in lists.items() if section != "without" for name in names}
    assert wanted & set(lists["without"]) == set()
    assert len(lists["kernel"]) == 1


@pytest.mark.parametrize("architecture", [entry.debian for entry in ARCHITECTURES.values()])
def test_the_modules_that_the_boot_medium_needs_are_on_the_list(architecture: str) -> None:
    lists = parse_list(read_file("modules.txt"), architecture, SECTIONS)
    assert lists["early"] == ("loop", "squashfs", "overlay")
    assert {"sr_mod", "isofs", "usb_storage", "sd_mod"} <= set(lists["always"])
    assert {"nfit", "nd_pmem", "vfat", "efivarfs", "virtio_net"} <= set(lists["loadable"])


def test_busybox_gets_each_name_once() -> None:
    names = parse_words(read_file("applets.txt"))
    assert len(names) == len(set(names))
    assert {"udhcpc", "tar", "poweroff"} <= set(names)


def test_scripts_run_in_a_shell_that_runs_the_real_programs() -> None:
    # busybox's own shell takes its own `ip` for iproute2's.
    assert "sh" not in parse_words(read_file("applets.txt"))
    assert {"dash", "bash"} <= set(parse_list(read_file("packages.txt"), "amd64", PACKAGE_SECTIONS)["image"])
