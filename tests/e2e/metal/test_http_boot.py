"""A machine whose firmware fetches the ramdisk itself: its BMC is told an address, and there is no medium and no boot
server of DHCP's (UEFI HTTP boot)."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.metal.full_set import full_set
from tests.e2e.metal.origin import Origin
from tests.e2e.metal.profiles import example
from tests.e2e.metal.site import NODE, SYSTEM, Site
from tests.e2e.processes import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.usefixtures("one_at_a_time"),
    full_set,
]

MACHINE = ("--firmware", "uefi", "--memory", "1024", "--disk-size", "2G")
LOOK = """\
echo "cmdline: $(cat /proc/cmdline)"
echo "modules: $(cat /sys/block/pmem0/device/../mappings)"
echo "options: $(cat /sys/firmware/efi/efivars/Boot*-8be4df61-93ca-11d2-aa0d-00e098032b8c | tr -cd ' -~')"
"""
"""What it was started with; how many memory modules stand behind the disk that the firmware made of the medium; and
the firmware's boot options, which the next system can read as well."""


def test_a_machine_is_commissioned_by_uefi_http_boot_and_its_address_is_good_for_nothing_afterwards(
    ramdisk: Path, tmp_path: Path
) -> None:
    profile = example("commission").change("boot-ramdisk", method="uefiHttp").script("inventory", "look", LOOK)
    nothing_to_install = Origin({})
    site = Site(tmp_path, ramdisk, nothing_to_install, [profile.store(tmp_path)], *MACHINE)
    with site.running():
        code, output = site.watch("nodes", "commission", NODE, "--watch").ends(300)
        assert code == 0, output
        is_available_with_its_inventory(site)
        wait_until("the machine is off", lambda: site.machine.look()["state"] == "off")
        was_started_by_its_firmware_alone(site)
        its_address_is_over_and_was_told_to_nobody_else(site)
    nothing_to_install.stop()


def is_available_with_its_inventory(site: Site) -> None:
    node = site.node()
    assert node["provision"]["state"] == "available"
    assert node["foundLabels"]["system.serial"] == site.machine.look()["serial"]
    # The medium in memory is no disk, neither to be counted nor to be erased.
    assert node["foundLabels"]["disk.count"] == "1"
    assert looked(site, "modules") == "0"
    erased = site.step("deploy.eraseDisks")["result"]
    assert [disk["disk"] for disk in erased["disks"]] == ["vda"]
    assert {"disk": "pmem0", "reason": "is the medium that this machine was started from"} in erased["skipped"]


def was_started_by_its_firmware_alone(site: Site) -> None:
    assert site.machine.resets() == ["On", "ForceOff"]
    assert len(site.machine.boots()) == 1
    assert site.commands("virtual-media.insertMedia") == []
    fetched = [entry for entry in said(site) if entry["event"] == "boot_fetched"]
    assert [(entry["method"], entry["what"], entry["status"]) for entry in fetched] == [
        ("HEAD", "iso", 200),
        ("GET", "iso", 200),
    ]
    # The boot loader has handed the ticket over: Linux looks for it on drives, and the firmware has made none.
    assert "found in the initial ramdisk" in site.machine.serial
    assert "rwj1" not in site.machine.serial
    assert "ticket" not in looked(site, "cmdline")


def its_address_is_over_and_was_told_to_nobody_else(site: Site) -> None:
    address = site.machine.redfish(SYSTEM)["Boot"]["HttpBootUri"]
    secret = address.split("/")[3]
    # Firmware keeps it, and shows it while it loads: so it must not outlive the start.
    assert secret in looked(site, "options")
    assert secret in site.machine.serial
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(address, timeout=30)

    orders = site.commands("boot.setBootDevice")
    assert [order["args"].get("httpBootUri") for order in orders] == ["rackwright:ramdisk", None]
    told = json.dumps([*orders, *site.commands("boot.getBoot")])
    assert secret not in told + site.agent.said() + site.plane.said()


def looked(site: Site, what: str) -> str:
    (look,) = site.commands("task.run")
    lines = dict(line.split(": ", 1) for line in look["result"]["output"].splitlines() if ": " in line)
    return str(lines[what])


def said(site: Site) -> list[dict[str, Any]]:
    """The entries of the agent's log."""
    return [json.loads(line) for line in site.agent.said().splitlines() if line.startswith("{")]
