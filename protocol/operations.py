"""The single list of what can be done to a machine.

Everything else is derived from it: validation of profiles and of `driver.invoke`, the agent's rule after a crash, the
command line's help and completion, the documentation page, the driver × operation matrix.
"""

import difflib
from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from protocol.errors import ErrorCode, OperationError
from protocol.shapes import (
    Arguments,
    Nothing,
    Result,
    bios,
    boot,
    config,
    console,
    deploy,
    firmware,
    management,
    power,
    raid,
    virtual_media,
)
from protocol.shapes import inspect as inspection

__all__ = ["CONCERNS", "DRIVERS", "OPERATIONS", "Concern", "Operation", "Repeat", "find"]


class Concern(StrEnum):
    POWER = "power"
    MANAGEMENT = "management"
    BOOT = "boot"
    DEPLOY = "deploy"
    INSPECT = "inspect"
    VIRTUAL_MEDIA = "virtual-media"
    CONSOLE = "console"
    BIOS = "bios"
    RAID = "raid"
    FIRMWARE = "firmware"
    CONFIG = "config"


CONCERNS = tuple(concern.value for concern in Concern)

DRIVERS: Mapping[str, str] = {
    "redfish": "a BMC's Redfish service, from a site agent",
    "ipmi": "a BMC over IPMI 2.0 (RMCP+), from a site agent",
    "ssh": "a BMC's or host's own shell, from a site agent",
    "linux": "the machine itself, from its ramdisk or installed agent",
    "simulated": "a scripted machine that is not there",
}


class Repeat(StrEnum):
    """What doing it twice means."""

    READ = "read"
    """Changes nothing."""
    CONVERGE = "converge"
    """Asks for a state: repeating is harmless, and reading settles it."""
    ONCE = "once"
    """An act: never repeated unless it was provably not done."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    concern: Concern
    name: str
    summary: str
    arguments: type[Arguments]
    result: type[Result]
    repeat: Repeat
    timeout: float = 600.0
    """Seconds that the whole operation may take unless the caller says otherwise."""
    once_when: tuple[str, frozenset[str]] | None = None
    """A field of the arguments and those of its values that make a converging operation an act."""
    exclusive: bool = False
    """Nothing else is done on the machine meanwhile, not even a reading: its login or its certificate changes."""

    @property
    def id(self) -> str:
        return f"{self.concern}.{self.name}"

    @property
    def changes(self) -> bool:
        return self.repeat is not Repeat.READ

    def repeat_for(self, arguments: Mapping[str, object]) -> Repeat:
        """What repeating this very call means: power `on` converges, power `reset` is an act."""
        if self.once_when is not None:
            field, acts = self.once_when
            word = arguments.get(field)
            if isinstance(word, str) and word in acts:
                return Repeat.ONCE
        return self.repeat


def _rows() -> Iterator[Operation]:
    def row(
        identifier: str,
        summary: str,
        arguments: type[Arguments],
        result: type[Result],
        repeat: Repeat,
        timeout: float = 600.0,
        once_when: tuple[str, frozenset[str]] | None = None,
        exclusive: bool = False,
    ) -> Operation:
        concern, _, name = identifier.partition(".")
        return Operation(
            concern=Concern(concern),
            name=name,
            summary=summary,
            arguments=arguments,
            result=result,
            repeat=repeat,
            timeout=timeout,
            once_when=once_when,
            exclusive=exclusive,
        )

    read, converge, once = Repeat.READ, Repeat.CONVERGE, Repeat.ONCE
    none = Nothing

    yield row("power.getPower", "read the power state", none, power.PowerReading, read, 60)
    yield row(
        "power.setPower",
        "change the power state",
        power.SetPower,
        power.SetPowerResult,
        converge,
        600,
        ("action", frozenset({"reset", "cycle", "nmi"})),
    )

    yield row("management.getInfo", "say what the machine and its BMC are", none, management.BmcInfo, read, 120)
    yield row("management.getHealth", "read the health of the machine", none, management.MachineHealth, read, 120)
    yield row("management.getSensors", "read the sensors", none, management.Sensors, read, 300)
    yield row("management.getEventLog", "read the event log", management.GetEventLog, management.EventLog, read, 300)
    yield row("management.clearEventLog", "empty the event log", none, management.EventLogCleared, converge, 120)
    yield row(
        "management.setIndicator",
        "switch the locating light",
        management.SetIndicator,
        management.IndicatorReading,
        converge,
        60,
    )
    yield row("management.getIndicator", "read the locating light", none, management.IndicatorReading, read, 60)
    yield row("management.resetBmc", "restart the BMC", management.ResetBmc, management.ResetBmcResult, once, 900)
    yield row(
        "management.qualify",
        "say what this BMC can do, by reading",
        none,
        management.Qualification,
        read,
        300,
    )

    yield row("boot.getBoot", "read the boot override and order", none, boot.BootReading, read, 60)
    yield row(
        "boot.setBootDevice",
        "set the boot override",
        boot.SetBootDevice,
        boot.SetBootDeviceResult,
        converge,
        180,
    )
    yield row("boot.setBootOrder", "set the boot order", boot.SetBootOrder, boot.SetBootOrderResult, converge, 180)
    yield row("boot.getSecureBoot", "read Secure Boot", none, boot.SecureBootReading, read, 60)
    yield row("boot.setSecureBoot", "switch Secure Boot", boot.SetSecureBoot, boot.SecureBootReading, converge, 180)

    media = virtual_media
    yield row("virtual-media.listMedia", "list the media slots", none, media.MediaSlots, read, 120)
    yield row(
        "virtual-media.insertMedia",
        "insert an image",
        media.InsertMedia,
        media.InsertMediaResult,
        converge,
        300,
    )
    yield row("virtual-media.ejectMedia", "eject images", media.EjectMedia, media.EjectMediaResult, converge, 300)

    yield row("console.getConsole", "say which consoles there are", none, console.ConsoleOptions, read, 60)
    yield row("console.openConsole", "open the console", console.OpenConsole, console.ConsoleOpened, once, 60)
    yield row("console.closeConsole", "close the console", console.CloseConsole, console.ConsoleClosed, once, 60)

    yield row("inspect.getInventory", "read the inventory", none, inspection.Inventory, read, 900)

    yield row("bios.getBios", "read the BIOS attributes", bios.GetBios, bios.BiosReading, read, 300)
    yield row("bios.setBios", "set BIOS attributes", bios.SetBios, bios.SetBiosResult, converge, 1800)
    yield row("bios.resetBios", "set the BIOS to its defaults", none, bios.ResetBiosResult, once, 600)

    yield row("raid.getRaid", "read controllers, drives and volumes", none, raid.RaidReading, read, 300)
    yield row(
        "raid.applyRaid",
        "make the volumes that are asked",
        raid.ApplyRaid,
        raid.ApplyRaidResult,
        converge,
        7200,
    )
    yield row("raid.createVolume", "make one volume", raid.CreateVolume, raid.VolumeTask, once, 3600)
    yield row("raid.deleteVolume", "delete one volume", raid.DeleteVolume, raid.RaidTask, once, 3600)
    yield row("raid.clearRaid", "delete a controller's configuration", raid.ClearRaid, raid.RaidTask, once, 3600)

    yield row("firmware.getFirmware", "read the firmware versions", none, firmware.FirmwareReading, read, 600)
    yield row(
        "firmware.updateFirmware",
        "replace firmware",
        firmware.UpdateFirmware,
        firmware.UpdateFirmwareResult,
        once,
        7200,
    )

    yield row("config.getConfig", "read the BMC's configuration", none, config.BmcConfig, read, 120)
    yield row(
        "config.setConfig",
        "change the BMC's configuration",
        config.SetConfig,
        config.SetConfigResult,
        converge,
    )
    yield row(
        "config.rotatePassword",
        "change a BMC account's password",
        config.RotatePassword,
        config.RotatePasswordResult,
        once,
        exclusive=True,
    )
    yield row(
        "config.getCertificates",
        "read the certificates of the BMC's web server",
        none,
        config.Certificates,
        read,
        120,
    )
    yield row(
        "config.generateCsr",
        "have the BMC make a key and a signing request",
        config.GenerateCsr,
        config.GenerateCsrResult,
        once,
    )
    yield row(
        "config.replaceCertificate",
        "give the BMC's web server a signed certificate",
        config.ReplaceCertificate,
        config.ReplaceCertificateResult,
        converge,
        exclusive=True,
    )
    yield row(
        "config.exportConfig",
        "export the vendor's profile",
        config.ExportConfig,
        config.ExportConfigResult,
        read,
        1800,
    )
    yield row(
        "config.importConfig",
        "import a vendor's profile",
        config.ImportConfig,
        config.ImportConfigResult,
        once,
        3600,
    )

    yield row("deploy.getDisks", "list the disks and what was done to them", none, deploy.Disks, read, 120)
    yield row("deploy.eraseDisks", "erase disks", deploy.EraseDisks, deploy.EraseDisksResult, once, 86_400)
    yield row(
        "deploy.writeImage",
        "write an image to a disk",
        deploy.WriteImage,
        deploy.WriteImageResult,
        once,
        7200,
    )
    yield row(
        "deploy.writeConfigDrive",
        "write the configuration drive",
        deploy.WriteConfigDrive,
        deploy.ConfigDriveResult,
        converge,
    )
    yield row(
        "deploy.setBootEntry",
        "make the EFI boot entry",
        deploy.SetBootEntry,
        deploy.SetBootEntryResult,
        converge,
    )


OPERATIONS: Mapping[str, Operation] = {operation.id: operation for operation in _rows()}


def find(identifier: str) -> Operation:
    """The row of `<concern>.<operation>`. Raises OperationError INVALID_ARGUMENT that names close matches."""
    try:
        return OPERATIONS[identifier]
    except KeyError:
        close = difflib.get_close_matches(identifier, OPERATIONS, 3, 0.5)
        concern = identifier.partition(".")[0]
        if not close and concern in CONCERNS:
            close = [key for key in OPERATIONS if key.startswith(f"{concern}.")]
        hint = f"did you mean {' or '.join(close)}?" if close else f"concerns: {', '.join(CONCERNS)}"
        raise OperationError(ErrorCode.INVALID_ARGUMENT, f"there is no operation {identifier!r}: {hint}") from None
