"""The other way onto a machine: power and boot flags by IPMI, the ramdisk over the network by iPXE."""

import json
from pathlib import Path

import pytest

from tests.e2e.metal.debian_image import OsImage
from tests.e2e.metal.full_set import full_set
from tests.e2e.metal.origin import Origin
from tests.e2e.metal.profiles import example
from tests.e2e.metal.site import NODE, Site
from tests.e2e.processes import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.usefixtures("one_at_a_time"),
    full_set,
]


def test_a_machine_with_ipmi_alone_is_commissioned_and_deployed_over_the_network(
    ramdisk: Path, os_image: OsImage, origin: Origin, tmp_path: Path
) -> None:
    profiles = [example(name).by_ipmi().store(tmp_path) for name in ("commission", "deploy")]
    site = Site(tmp_path, ramdisk, origin, profiles, "--firmware", "bios", "--memory", "1024", "--disk-size", "2G")
    site.boot_from_network()
    site.address = f"ipmi://127.0.0.1:{site.machine.ipmi_port}"
    with site.running():
        # By its UUID the machine is known when it asks for its script.
        found = json.loads(site.cli("invoke", NODE, "inspect.getInventory", "--json"))
        assert found["result"]["system"]["uuid"] == site.machine.look()["uuid"]

        code, output = site.watch("nodes", "commission", NODE, "--watch").ends(300)
        assert code == 0, output
        wait_until("the machine is off", lambda: site.machine.look()["state"] == "off")
        words = ("--image", origin.url("debian.raw.zst"), "--sha256", os_image.sha256)
        code, output = site.watch("nodes", "deploy", NODE, *words, "--watch").ends(400)
        assert code == 0, output
        (daemon,) = site.agents("daemon")
        assert daemon["session"]["bootId"] not in site.machine.boots()
        assert site.machine.resets() == []
        assert "rwj1" not in site.machine.serial
