"""The kernel's modules: names, what they need, what they ask for."""

from pathlib import Path

import pytest

from ramdisk.image.kernel_modules import firmware_names, kernel_version, module_name, parse_insertions
from ramdisk.image.programs import BuildError


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("drivers/net/ethernet/intel/e1000e/e1000e.ko", "e1000e"),
        ("drivers/usb/host/xhci-pci.ko.xz", "xhci_pci"),
        ("nd_pmem", "nd_pmem"),
        ("kernel/arch/x86/crypto/crc32c-intel.ko.zst", "crc32c_intel"),
    ],
)
def test_a_module_is_called_as_the_kernel_calls_it(path: str, name: str) -> None:
    assert module_name(path) == name


def test_modules_are_taken_once_and_in_the_order_of_loading() -> None:
    told = (
        "builtin unix\n"
        "insmod /tree/lib/modules/6.1/kernel/drivers/cdrom/cdrom.ko \n"
        "insmod /tree/lib/modules/6.1/kernel/fs/isofs/isofs.ko \n"
        "insmod /tree/lib/modules/6.1/kernel/drivers/cdrom/cdrom.ko \n"
        "insmod /a folder/lib/modules/6.1/kernel/drivers/scsi/sr_mod.ko.xz option=1.ko\n"
    )
    assert [path.rpartition("/")[2] for path in parse_insertions(told)] == ["cdrom.ko", "isofs.ko", "sr_mod.ko.xz"]


def test_the_firmware_that_a_module_may_ask_for_is_in_its_notes() -> None:
    notes = b"\0license=GPL\0firmware=bnx2/bnx2-mips-09-6.2.1b.fw\0firmware=intel/ice/ddp/ice.pkg\0alias=pci:x\0"
    assert firmware_names(notes) == {"bnx2/bnx2-mips-09-6.2.1b.fw", "intel/ice/ddp/ice.pkg"}


def test_two_kernels_among_the_packages_are_a_fault(tmp_path: Path) -> None:
    for version in ("6.1.0-1-amd64", "6.1.0-2-amd64"):
        (tmp_path / "usr/lib/modules" / version / "kernel").mkdir(parents=True)
    with pytest.raises(BuildError, match="there are 2"):
        kernel_version(tmp_path)
