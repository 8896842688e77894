"""Where the machine's firmware is on this host, and the file of its variables."""

import os
from dataclasses import dataclass
from pathlib import Path

from simulators.machine.boot_plan import BootPlan
from simulators.machine.command_line import FirmwareFiles
from simulators.machine.nvram import NvramError, with_plan
from simulators.machine.process import MachineFault
from simulators.machine.spec import Firmware

# Program and variables of the same build, as the distributions name them: Debian and Ubuntu, Fedora, Arch.
_UEFI = (
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
    ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
    ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
)
_ABSENT = "there is no UEFI firmware on this host: install the package ovmf"


@dataclass(frozen=True, slots=True)
class UefiBuild:
    """One build of UEFI firmware on this host."""

    program: Path
    variables: Path


def find_uefi() -> UefiBuild:
    """The firmware of this host. Raises MachineFault that says what to install."""
    for program, variables in _UEFI:
        if Path(program).is_file() and Path(variables).is_file():
            return UefiBuild(Path(program), Path(variables))
    raise MachineFault(_ABSENT)


def firmware_version(firmware: Firmware) -> str:
    """What Redfish shows as the version of the firmware."""
    return "OVMF (EDK II)" if firmware is Firmware.UEFI else "SeaBIOS"


def prepare(firmware: Firmware, plan: BootPlan, nvram: Path) -> FirmwareFiles:
    """The files for one start: the machine's own variables, made at its first start, with the plan in them.

    The file is replaced as a whole, so that a crash leaves the old one or the new one. Raises MachineFault.
    """
    if firmware is Firmware.BIOS:
        return FirmwareFiles()
    build = find_uefi()
    source = nvram if nvram.exists() else build.variables
    before = source.read_bytes()
    try:
        content = with_plan(before, plan)
    except NvramError as error:
        raise MachineFault(f"{source}: {error}") from error
    if source is not nvram or content != before:
        fresh = nvram.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(nvram)
    return FirmwareFiles(build.program, nvram)
