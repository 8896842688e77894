"""Every operation of the Redfish driver, with arguments that suit the BMC before it: for tests of them all."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from drivers import GivenPassword, operations_of
from drivers.redfish import DRIVER
from protocol.errors import ErrorCode, OperationError
from protocol.operations import OPERATIONS
from protocol.secret import Secret
from simulators.redfish.tree import RecordedTree
from tests.drivers.redfish.harness import PASSWORD, Bench
from tests.drivers.redfish.test_certificates import Authority

__all__ = ["CHANGES", "OWN", "READS", "Unprepared", "perform", "recorded"]

OWN = operations_of(DRIVER)
"""What the driver has, in the table's order."""
READS = [operation for operation in OWN if not OPERATIONS[operation].changes]
CHANGES = [operation for operation in OWN if OPERATIONS[operation].changes]

ISO = "http://192.0.2.1/images/ramdisk.iso"
NEW_PASSWORD = "R0tated-Pa55w"
"""Long enough for a DGX, which wants thirteen characters."""
SHORT_PASSWORD = "R0tated-Pa55"
"""HPE Cray's BMC takes twelve characters at most."""
PROFILE: dict[str, Any] = {"SystemConfiguration": {"Components": []}}
SUBJECT = {
    "commonName": "bmc7.example",
    "organization": "Example",
    "organizationalUnit": "Racks",
    "city": "Bern",
    "state": "Bern",
    "country": "CH",
}
_NO_CONTROLLER: dict[str, Any] = {"id": "none", "levels": []}


class Unprepared(OperationError):
    """What has to be there before the operation can be tried could not be made."""


@cache
def recorded(folder: Path | None) -> RecordedTree | None:
    """A tree, parsed once for all tests; our own one where none is named."""
    return None if folder is None else RecordedTree.load(folder)


async def perform(operation: str, bmc: Bench, *, image: Path) -> dict[str, Any]:
    """Does it once, and returns its result. Raises OperationError as the operation does, and Unprepared.

    What to ask for is read first, so that every BMC is asked for something that it has. `image`: a firmware image.
    """
    if operation == "config.rotatePassword":
        return await _rotate_password(bmc)
    return await bmc(operation, await _arguments(operation, bmc, image))


async def _arguments(operation: str, bmc: Bench, image: Path) -> Mapping[str, Any]:
    match operation:
        case "power.setPower":
            return {"action": "off" if (await bmc("power.getPower"))["state"] == "on" else "on"}
        case "management.setIndicator":
            return {"state": "on"}
        case "boot.setBootDevice":
            return {"device": "pxe"}
        case "boot.setBootOrder":
            return {"order": (await _read(bmc, "boot.getBoot")).get("order", [])[::-1] or ["Boot0001"]}
        case "boot.setSecureBoot":
            return {"enabled": not (await _read(bmc, "boot.getSecureBoot")).get("enabled")}
        case "virtual-media.insertMedia":
            return {"image": ISO}
        case "virtual-media.ejectMedia":
            await _prepare(bmc, "virtual-media.insertMedia", {"image": ISO})
            return {}
        case "bios.setBios":
            return {"attributes": await _bios_change(bmc)}
        case "raid.applyRaid" | "raid.createVolume" | "raid.deleteVolume" | "raid.clearRaid":
            return await _raid(operation.partition(".")[2], bmc)
        case "firmware.updateFirmware":
            return await _firmware_update(bmc, image)
        case "config.setConfig":
            return await _config_change(bmc)
        case "config.generateCsr":
            return SUBJECT
        case "config.replaceCertificate":
            made = await _prepare(bmc, "config.generateCsr", SUBJECT)
            return {"certificate": Authority().sign(made["csr"])}
        case "config.importConfig":
            return {"document": json.dumps(PROFILE)}
        case _:
            return {}


async def _read(bmc: Bench, operation: str) -> dict[str, Any]:
    """The reading; empty where this BMC does not offer it, so that the change itself says so."""
    try:
        return await bmc(operation)
    except OperationError as error:
        if error.code is not ErrorCode.UNSUPPORTED:
            raise
        return {}


async def _prepare(bmc: Bench, operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return await bmc(operation, arguments)
    except OperationError as error:
        raise Unprepared(error.code, f"{operation} comes before it: {error.message}", bmc=error.bmc) from error


async def _config_change(bmc: Bench) -> dict[str, Any]:
    """Of what the BMC shows of its configuration, the first that can be set to something else."""
    now = await _read(bmc, "config.getConfig")
    if now.get("ntpServers") or now.get("ntpEnabled") is not None:
        return {"ntpServers": ["192.0.2.123"]}
    for name, setting in now.get("protocols", {}).items():
        if name not in ("HTTP", "HTTPS"):
            return {"protocols": {name: {"enabled": not setting["enabled"]}}}
    return {"hostName": "bmc7"}


async def _rotate_password(bmc: Bench) -> dict[str, Any]:
    """To a password that this BMC takes: some want longer ones than others allow."""
    for password in (NEW_PASSWORD, SHORT_PASSWORD):
        try:
            result = await bmc.drivers.invoke(
                bmc.target,
                "config.rotatePassword",
                {"user": bmc.target.username, "newCredentialRef": "new"},
                rotation=GivenPassword(Secret(password)),
            )
        except OperationError as error:
            if error.code is not ErrorCode.INVALID_ARGUMENT or password == SHORT_PASSWORD:
                raise
        else:
            assert bmc.bmc.service.accounts.logins["admin"].password == password != PASSWORD
            return result
    raise AssertionError("every password was tried")


async def _bios_change(bmc: Bench) -> dict[str, Any]:
    """Another choice for the first attribute that has one and may be changed; without a registry by its value."""
    attributes = (await _read(bmc, "bios.getBios")).get("attributes", [])
    for attribute in attributes:
        others = [choice for choice in attribute["choices"] if choice != attribute["value"]]
        if others and not attribute["readOnly"] and not attribute["hidden"]:
            return {attribute["name"]: others[0]}
    for attribute in attributes:
        if attribute["value"] in ("Enabled", "Disabled"):
            return {attribute["name"]: "Enabled" if attribute["value"] == "Disabled" else "Disabled"}
        if attribute["value"] in (0, 1) and attribute["kind"] in (None, "integer"):
            return {attribute["name"]: 1 - attribute["value"]}
    return {"QuietBoot": "Enabled"}


async def _raid(name: str, bmc: Bench) -> Mapping[str, Any]:
    """The first controller that makes volumes, with drives that it has."""
    reading = await _read(bmc, "raid.getRaid") or {"controllers": [], "drives": [], "volumes": []}
    fit = [controller for controller in reading["controllers"] if controller["unsuitable"] is None]
    usable = [c for c in fit if any(drive["controller"] == c["id"] for drive in reading["drives"])] or fit
    controller = next(iter(usable or reading["controllers"]), _NO_CONTROLLER)
    drives = [drive for drive in reading["drives"] if drive["controller"] == controller["id"]]
    volumes = [v for v in reading["volumes"] if v["controller"] == controller["id"] and not v["raw"]]
    levels = [level for level in controller["levels"] if level in ("RAID0", "RAID1")] or ["RAID0"]
    level = levels[0]
    chosen = [drive["id"] for drive in drives if drive["state"] == "ready"][:2]
    if name == "clearRaid":
        return {"controller": controller["id"]}
    if name == "deleteVolume":
        if not volumes:
            made = await _prepare(
                bmc,
                "raid.createVolume",
                {"controller": controller["id"], "level": level, "drives": chosen or ["none"]},
            )
            return {"controller": controller["id"], "volume": made["volume"] or "none"}
        return {"controller": controller["id"], "volume": volumes[0]["id"]}
    if not chosen and volumes:
        chosen = volumes[0]["drives"]
        if name == "createVolume":
            await _prepare(bmc, "raid.deleteVolume", {"controller": controller["id"], "volume": volumes[0]["id"]})
    if name == "createVolume":
        return {"controller": controller["id"], "level": level, "drives": chosen or ["none"]}
    volume = {"level": level, "drives": chosen or ["none"], "name": "proof"}
    return {"controller": controller["id"], "volumes": [volume], "deleteOthers": True}


async def _firmware_update(bmc: Bench, image: Path) -> dict[str, Any]:
    """A file, or an address where the BMC takes no pushed image; for a component that it lists, if any."""
    components = (await _read(bmc, "firmware.getFirmware")).get("components", [])
    fit = [item for item in components if item["updateable"] and item["active"] and item["id"]]
    target = {"targets": [fit[0]["id"]], "expectVersion": "2.14.0"} if fit else {}
    service = bmc.bmc.state.document("/redfish/v1/UpdateService") or {}
    pushes = any(service.get(name) for name in ("HttpPushUri", "MultipartHttpPushUri"))
    where = f"file://{image}" if pushes or not service else f"http://192.0.2.1/{image.name}"
    return {"image": where, **target}
