"""The simulated driver serves the whole table of operations, with results of the table's own shapes."""

import re

import msgspec
import pytest

from drivers import Drivers, Target, ainvoke, operations_of, simulated
from protocol.operations import OPERATIONS, Repeat

MACHINE = Target(address="simulated://rack-1-u3")

_CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBGTCBv6ADAgECAgEHMAoGCCqGSM49BAMCMBYxFDASBgNVBAMMC2JtYy5leGFt
cGxlMB4XDTI0MDEwMTAwMDAwMFoXDTQ0MDEwMTAwMDAwMFowFjEUMBIGA1UEAwwL
Ym1jLmV4YW1wbGUwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARkmm4Hw+X2UGS4
iXj9C7GYaXNn2VkPrm5fbkwOXbOyLZFj6uyxBpFXrFLkJN4iVdof51kmSLsRRGUQ
nejPr0UDMAoGCCqGSM49BAMCA0kAMEYCIQCENlaVLWx1rCPO2FAIv33I1dIrzLDg
a8DKthlubzubiwIhAIiIpC620TMUaKmvpHDZRy2QDT43gskHslDm2CV/iG8g
-----END CERTIFICATE-----
"""
_ARGUMENTS: dict[str, dict[str, object]] = {
    "power.setPower": {"action": "reset"},
    "management.setIndicator": {"state": "blink"},
    "boot.setBootDevice": {"device": "pxe"},
    "boot.setBootOrder": {"order": ["Boot0001", "Boot0000", "Boot0002", "Boot0003"]},
    "boot.setSecureBoot": {"enabled": True},
    "virtual-media.insertMedia": {"image": "https://images.example/a.iso"},
    "console.closeConsole": {"stream": "strm_none"},
    "bios.setBios": {"attributes": {"AssetTag": "A-1"}},
    "raid.applyRaid": {"volumes": [{"level": "RAID1", "name": "system", "drives": {"count": 2, "media": "ssd"}}]},
    "raid.createVolume": {"controller": "RAID.1", "level": "RAID5", "drives": ["Disk.2", "Disk.3", "Disk.4"]},
    "raid.deleteVolume": {"controller": "RAID.1", "volume": "Volume.0"},
    "raid.clearRaid": {"controller": "RAID.1"},
    "firmware.updateFirmware": {"image": "https://images.example/bmc-4.0.1.bin"},
    "config.setConfig": {"ntpEnabled": True, "ntpServers": ["192.0.2.1"]},
    "config.rotatePassword": {"user": "admin", "newCredentialRef": "rack-1/u3"},
    "config.generateCsr": {"commonName": "bmc.example"},
    "config.replaceCertificate": {"certificate": _CERTIFICATE},
    "config.importConfig": {"document": '{"format": "rackwright-simulated-v1", "bios": {"AssetTag": "B-2"}}'},
    "deploy.eraseDisks": {"mode": "metadata"},
    "deploy.writeImage": {"image": {"url": "https://images.example/a.raw", "sha256": "ab" * 32}},
    "deploy.writeConfigDrive": {"userData": "#cloud-config"},
}


def test_every_operation_of_the_table_is_served() -> None:
    assert operations_of(simulated.DRIVER) == list(OPERATIONS)


async def test_every_operation_answers_in_the_shape_that_the_table_names() -> None:
    async with Drivers() as drivers:
        for operation, row in OPERATIONS.items():
            result = await drivers.invoke(MACHINE, operation, _ARGUMENTS.get(operation, {}))
            assert msgspec.to_builtins(msgspec.convert(result, row.result)) == result, operation


async def test_only_changing_operations_are_counted_as_acts() -> None:
    async with Drivers() as drivers:
        for operation in OPERATIONS:
            await drivers.invoke(MACHINE, operation, _ARGUMENTS.get(operation, {}))
    changing = {operation for operation, row in OPERATIONS.items() if row.repeat is not Repeat.READ}
    assert simulated.act_counts("rack-1-u3") == dict.fromkeys(changing, 1)


async def test_a_machine_is_made_of_its_name() -> None:
    first = await ainvoke(MACHINE, "management.getInfo")
    simulated.clear()
    assert await ainvoke(MACHINE, "management.getInfo") == first
    other = await ainvoke(Target(address="simulated://rack-1-u4"), "management.getInfo")
    assert other["serial"] != first["serial"]
    assert other["uuid"] != first["uuid"]


async def test_the_identity_is_the_same_in_the_info_and_in_the_inventory() -> None:
    info = await ainvoke(MACHINE, "management.getInfo")
    inventory = msgspec.convert(
        await ainvoke(MACHINE, "inspect.getInventory"), OPERATIONS["inspect.getInventory"].result
    )
    system = msgspec.to_builtins(inventory)["system"]
    assert (system["serial"], system["uuid"]) == (info["serial"], info["uuid"])
    macs = [nic["mac"] for nic in msgspec.to_builtins(inventory)["nics"]]
    assert len(set(macs)) == len(macs)
    # Locally administered and not multicast: no real card has such an address.
    assert all(re.fullmatch(r"02(:[0-9a-f]{2}){5}", mac) for mac in macs)


async def test_qualify_says_what_the_script_refuses_for_good() -> None:
    simulated.script("rack-*", faults=[{"operation": "raid.*", "code": "UNSUPPORTED"}])
    report = await ainvoke(MACHINE, "management.qualify")
    support = {
        row["operation"]: row["support"] for row in msgspec.convert(report["operations"], list[dict[str, str]])
    }
    assert list(support) == list(OPERATIONS)
    assert {operation for operation, word in support.items() if word == "unsupported"} == {
        operation for operation in OPERATIONS if operation.startswith("raid.")
    }


@pytest.mark.parametrize("address", ["simulated://rack:1", "simulated://", "simulated://a/b"])
def test_a_simulated_machine_has_only_a_name(address: str) -> None:
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        Target(address=address)
