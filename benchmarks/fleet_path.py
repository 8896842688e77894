"""The deploy that a fleet goes through, and how long each part of it takes on each simulated machine."""

import random
from collections.abc import Mapping
from typing import Final

__all__ = ["BOOTS", "PROFILE", "durations", "path_seconds"]

PROFILE: Final[dict[str, object]] = {
    "profile": "fleet",
    "drivers": {
        "power": "redfish",
        "boot": "redfish",
        "virtual-media": "redfish",
        "management": "redfish",
        "inspect": "linux",
        "deploy": "linux",
    },
    "steps": [
        {"id": "off", "use": "power.setPower", "on": "site", "with": {"action": "off"}},
        {"use": "virtual-media.insertMedia", "on": "site", "with": {"image": "https://images.example/ramdisk.iso"}},
        {"use": "boot.setBootDevice", "on": "site", "with": {"device": "cd", "mode": "uefi"}},
        {"id": "on", "use": "power.setPower", "on": "site", "with": {"action": "on"}, "await": "rejoin"},
        {"use": "inspect.getInventory", "on": "ramdisk"},
        {"use": "deploy.eraseDisks", "on": "ramdisk", "with": {"mode": "metadata"}},
        {
            "use": "deploy.writeImage",
            "on": "ramdisk",
            "with": {
                "image": {"url": "https://images.example/debian-12.raw.zst", "sha256": "0" * 64},
                "rootDevice": {"smallest": True},
            },
        },
        {"use": "deploy.writeConfigDrive", "on": "ramdisk", "with": {"userData": "#cloud-config\n"}},
        {"use": "deploy.setBootEntry", "on": "ramdisk", "with": {"label": "Debian"}},
        {"use": "virtual-media.ejectMedia", "on": "site"},
        {"use": "boot.kexec", "on": "ramdisk", "await": "rejoin"},
        {"use": "management.getHealth", "on": "site"},
    ],
}
"""Twelve steps: six by the site's agent, six by the machine's own; two await that the machine comes back."""

_SECONDS: Final[Mapping[str, float]] = {
    "off": 2.0,
    "insertMedia": 3.0,
    "setBootDevice": 2.0,
    "on": 2.0,
    "boot": 10.0,
    "getInventory": 3.0,
    "eraseDisks": 4.0,
    "writeImage": 18.0,
    "writeConfigDrive": 2.0,
    "setBootEntry": 2.0,
    "ejectMedia": 2.0,
    "boot.kexec": 1.0,
    "kexec boot": 7.0,
    "getHealth": 2.0,
}
"""A minute in all: a real deploy with everything that is the machine's own made about ten times faster."""
_SPREAD = 0.3
"""Each part of each machine takes up to this much more or less."""
BOOTS: Final[Mapping[str, str]] = {"on": "boot", "boot.kexec": "kexec boot"}
"""What follows these before the machine's agent connects."""


def durations(machine: int) -> dict[str, float]:
    """Seconds of each part; the same for the same machine in every process."""
    luck = random.Random(machine)
    return {part: seconds * luck.uniform(1 - _SPREAD, 1 + _SPREAD) for part, seconds in _SECONDS.items()}


def path_seconds(machine: int) -> float:
    """What the machine alone would take, with a control plane that costs nothing."""
    return sum(durations(machine).values())
