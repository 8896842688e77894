"""The machine that the agent itself runs on, from its ramdisk or its installed system: its disks, its boot entries,
its inventory, and Linux software RAID.

It has no BMC and no address: `Target(address="localhost", driver="linux")`. It needs root, Linux and what is named
where it is used; everything else it reads from the kernel itself.
"""

from collections.abc import Callable, Mapping
from typing import Any

from drivers.driver import Environment
from drivers.linux.connection import ConfigDriveFiles, LinuxConnection
from drivers.linux.host import Host
from drivers.target import Target
from protocol.operations import Concern

__all__ = ["DRIVER", "ConfigDriveFiles", "Host", "LinuxDriver"]


class LinuxDriver:
    """`host`: where the kernel's trees lie. `config_drive_files`: set by a ramdisk's agent before the first
    operation, for `deploy.writeConfigDrive` with `daemon`."""

    name = "linux"
    operations = frozenset(
        (
            *(
                f"deploy.{name}"
                for name in ("getDisks", "eraseDisks", "writeImage", "writeConfigDrive", "setBootEntry")
            ),
            "inspect.getInventory",
            *(f"raid.{name}" for name in ("getRaid", "applyRaid", "createVolume", "deleteVolume", "clearRaid")),
        )
    )
    """Told without loading the concerns: a ramdisk that starts is to be reached first."""

    def __init__(self, host: Host | None = None) -> None:
        self.host = host or Host()
        self.config_drive_files: ConfigDriveFiles | None = None

    @property
    def concerns(self) -> Mapping[Concern, Callable[[Any], object]]:
        from drivers.linux.deploy import LinuxDeploy
        from drivers.linux.inspect import LinuxInspect
        from drivers.linux.raid import LinuxRaid

        return {Concern.DEPLOY: LinuxDeploy, Concern.INSPECT: LinuxInspect, Concern.RAID: LinuxRaid}

    def connect(self, target: Target, environment: Environment) -> LinuxConnection:
        return LinuxConnection(self.host, self.config_drive_files)


DRIVER = LinuxDriver()
