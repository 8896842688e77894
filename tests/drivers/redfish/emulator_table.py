"""How each operation ends at sushy-tools' emulator; `test_sushy_emulator.py` holds it against the real one."""

from typing import Any

from protocol.errors import ErrorCode
from simulators.redfish import TlsMaterial
from tests.drivers.ends import Ends, refuses, shows

__all__ = ["EMULATOR", "ISO"]

ISO = "(an image that can be fetched)"
VOLUME = {"controller": "1", "level": "RAID0", "drives": ["a"]}
NO_STORAGE: dict[str, Any] = {"code": ErrorCode.BMC_ERROR, "words": "HTTP 500"}
EMULATOR: dict[str, Ends] = {
    "power.getPower": shows(state="off", raw="Off"),
    "power.setPower": shows({"action": "on"}, state="on", changed=True, verbUsed="On"),
    "management.getInfo": shows(vendor="Sushy Emulator", uuid="27946b59-9e44-4fa7-8e91-f3527a1ef094"),
    "management.getHealth": shows(rollup="ok"),
    "management.getSensors": shows(),
    "management.getEventLog": refuses(),
    "management.clearEventLog": refuses(),
    "management.setIndicator": shows({"state": "on"}, state="on"),
    "management.getIndicator": shows(state="on"),
    "management.resetBmc": refuses(),
    "management.qualify": shows(),
    "boot.getBoot": shows(mode="uefi", httpBootUri=None, allowedTargets=["Pxe", "Cd", "Hdd", "UefiHttp"]),
    "boot.setBootDevice": shows({"device": "pxe", "mode": "bios"}, target="pxe", rawTarget="Pxe", mode="bios"),
    "boot.setBootOrder": refuses({"order": ["Boot0001"]}),
    "boot.getSecureBoot": shows(enabled=False, pending=None),
    "boot.setSecureBoot": shows({"enabled": True}, enabled=True),
    "virtual-media.listMedia": shows(),
    "virtual-media.insertMedia": shows({"image": ISO}, slot="Cd", changed=True),
    "virtual-media.ejectMedia": shows(ejected=["Cd"]),
    "console.getConsole": shows(kinds=[]),
    "inspect.getInventory": shows(),
    "bios.getBios": refuses(),
    "bios.setBios": refuses({"attributes": {"a": 1}}),
    "bios.resetBios": refuses(),
    "raid.getRaid": refuses(**NO_STORAGE),
    "raid.applyRaid": refuses({"volumes": [{"level": "RAID0", "drives": ["a"]}]}, **NO_STORAGE),
    "raid.createVolume": refuses(VOLUME, **NO_STORAGE),
    "raid.deleteVolume": refuses({"controller": "1", "volume": "1"}, **NO_STORAGE),
    "raid.clearRaid": refuses({"controller": "1"}, **NO_STORAGE),
    "firmware.getFirmware": shows(),
    "firmware.updateFirmware": refuses(
        {"image": "http://192.0.2.1/a.bin", "transport": "simple"},
        code=ErrorCode.BMC_ERROR,
        words="Missing ImageURI and/or Targets.",
    ),
    "config.getConfig": shows(ntpServers=[], protocols={}),
    "config.setConfig": refuses({"ntpServers": ["192.0.2.1"]}),
    "config.rotatePassword": refuses({"user": "admin", "newCredentialRef": "new"}),
    "config.getCertificates": refuses(),
    "config.generateCsr": refuses({"commonName": "bmc7.example"}),
    "config.replaceCertificate": refuses(
        {"certificate": TlsMaterial.self_signed(("bmc7.example",)).certificate.decode()}
    ),
    "config.exportConfig": refuses(),
    "config.importConfig": refuses({"document": "{}"}),
}
