"""The same chain over a BMC and a machine that nobody here wrote: sushy-tools' emulator and libvirt."""

from pathlib import Path

import pytest

from tests.e2e.metal.debian_image import OsImage
from tests.e2e.metal.full_set import full_set
from tests.e2e.metal.libvirt_machine import LibvirtMachine
from tests.e2e.metal.origin import Origin
from tests.e2e.metal.profiles import example
from tests.e2e.metal.site import NODE, Site, boots_in

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.usefixtures("one_at_a_time"),
    full_set,
]


def test_a_machine_of_libvirts_is_commissioned_and_deployed_through_sushy_tools(
    ramdisk: Path, os_image: OsImage, origin: Origin, tmp_path: Path
) -> None:
    profiles = [example(name).store(tmp_path) for name in ("commission", "deploy")]
    site = Site(tmp_path, ramdisk, origin, profiles)
    peer = LibvirtMachine()
    site.peer, site.address = peer, peer.url
    with site.running():
        code, output = site.watch("nodes", "commission", NODE, "--watch").ends(400)
        assert code == 0, output
        words = ("--image", origin.url("debian.raw.zst"), "--sha256", os_image.sha256)
        code, output = site.watch("nodes", "deploy", NODE, *words, "--watch").ends(600)
        assert code == 0, output
        assert site.node()["provision"]["state"] == "deployed"
        (daemon,) = site.agents("daemon")
        assert len(boots_in(peer.serial)) == 2
        assert daemon["session"]["bootId"] not in boots_in(peer.serial)
