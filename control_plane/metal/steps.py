"""The steps `metal.*` that a profile can use."""

from control_plane.engine.registry import StepRegistry
from control_plane.engine.states import RunsOn
from control_plane.metal.image_steps import ConfigDrive, WriteImage, config_drive, write_image
from control_plane.metal.ramdisk_steps import BootRamdisk, boot_ramdisk, eject_ramdisk
from control_plane.metal.service_steps import BootInstalled, BringUp, boot_installed, bring_up

__all__ = ["register"]


def register(registry: StepRegistry) -> None:
    """Adds them. What starts the ramdisk is tidied up after by what takes its medium away."""
    site, ramdisk = RunsOn.SITE, RunsOn.RAMDISK
    registry.step(
        "metal.bootRamdisk",
        with_=BootRamdisk,
        relays=(site,),
        timeout="20m",
        retries=1,
        cleanup="metal.ejectRamdisk",
    )(boot_ramdisk)
    registry.step("metal.ejectRamdisk", with_=BootRamdisk, relays=(site,), timeout="10m", retries=2)(eject_ramdisk)
    registry.step("metal.writeImage", with_=WriteImage, relays=(ramdisk,), timeout="2h")(write_image)
    registry.step("metal.configDrive", with_=ConfigDrive, relays=(ramdisk,), timeout="10m")(config_drive)
    registry.step("metal.bootInstalled", with_=BootInstalled, relays=(ramdisk, site), timeout="25m")(boot_installed)
    registry.step("metal.bringUp", with_=BringUp, relays=(site,), timeout="20m")(bring_up)
