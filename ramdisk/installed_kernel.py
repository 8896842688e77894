"""Which kernel an installed disk would start: by the boot loader that its firmware would run. Pure, but for the files
that are read."""

from ramdisk.boot_choice import BootChoice, Loader, NoChoice
from ramdisk.boot_entries import systemd_boot_choice
from ramdisk.grub import grub_choice
from ramdisk.volumes import Volumes

__all__ = ["installed_kernel"]


def installed_kernel(
    volumes: Volumes,
    *,
    uefi: bool,
    architecture: str,
    wanted: str | None = None,
    efi_default: str | None = None,
) -> BootChoice:
    """GRUB's choice or systemd-boot's, whichever of them the disk has; entries of the Boot Loader Specification also
    where no loader of their own is found. Raises NoChoice with what speaks against each."""
    notes = []
    has_systemd_boot = uefi and _has_loader(volumes, "systemd-boot")
    by_grub_first = not has_systemd_boot or _has_loader(volumes, "grub")
    for loader in ("grub", "entries") if by_grub_first else ("entries", "grub"):
        try:
            if loader == "grub":
                return grub_choice(volumes, uefi=uefi, architecture=architecture, wanted=wanted)
            name: Loader = "systemd-boot" if has_systemd_boot else "bls"
            choice = systemd_boot_choice(volumes, name, wanted, efi_default)
        except NoChoice as error:
            notes.append(f"{loader}: {error}")
            continue
        if not (missing := choice.missing()):
            return choice
        notes.append(f"{loader}: {choice.title!r} needs {', '.join(missing)}, which is not there")
    raise NoChoice("; ".join(notes))


def _has_loader(volumes: Volumes, program: str) -> bool:
    """Whether the EFI system partition has a program of that name for some architecture."""
    system = volumes.system_partition
    if system is None:
        return False
    return any(
        name.lower().startswith(program) and name.lower().endswith(".efi")
        for vendor in system.names("/EFI")
        for name in system.names(f"/EFI/{vendor}")
    )
