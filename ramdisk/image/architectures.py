"""The machines that an image can be made for: what Debian, firmware and wheels call them."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ARCHITECTURES", "Architecture", "own_architecture"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """`name` is the kernel's own word (`uname -m`), `debian` the packages'."""

    name: str
    debian: str
    efi_name: str
    """What firmware looks for on a removable medium: UEFI specification, 3.5.1.1."""
    shim: str
    grub: str
    """The signed boot loader for removable media, below the packages' tree."""
    loader: str
    """Of programs, below the root."""
    bios: bool
    """Whether there are machines that start in the old way."""
    wheels: tuple[str, ...]
    """The platforms of Python wheels that run on it: PEP 600."""
    consoles: tuple[str, ...]
    """Of the kernel, the last one being the system's own."""

    @property
    def grub_name(self) -> str:
        """What the first boot loader looks for beside itself."""
        return self.efi_name.replace("BOOT", "GRUB").lower()


ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(
        name="x86_64",
        debian="amd64",
        efi_name="BOOTX64.EFI",
        shim="usr/lib/shim/shimx64.efi.signed",
        grub="usr/lib/grub/x86_64-efi-signed/gcdx64.efi.signed",
        loader="usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
        bios=True,
        wheels=("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
        consoles=("ttyS0,115200", "tty0"),
    ),
    "aarch64": Architecture(
        name="aarch64",
        debian="arm64",
        efi_name="BOOTAA64.EFI",
        shim="usr/lib/shim/shimaa64.efi.signed",
        grub="usr/lib/grub/arm64-efi-signed/gcdaa64.efi.signed",
        loader="usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1",
        bios=False,
        wheels=(
            "manylinux_2_34_aarch64",
            "manylinux_2_28_aarch64",
            "manylinux_2_17_aarch64",
            "manylinux2014_aarch64",
        ),
        consoles=("ttyAMA0,115200", "tty0"),
    ),
}


def own_architecture() -> Architecture:
    """This host's. Raises KeyError for one that images cannot be made for."""
    return ARCHITECTURES[platform.machine()]
