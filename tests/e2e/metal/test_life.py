"""From bare metal to a running system and back, through the real chain: workflow, site agent, BMC, virtual media,
firmware, our ramdisk, disk, kexec, installed Debian, its agent."""

import asyncio
import json
from base64 import b64decode
from pathlib import Path

import pytest

from agent.errors import JoinFailed
from agent.identity import IdentityStore
from agent.joining import join
from protocol.boot_ticket import AREA_SIZE, BootTicket, decode_area
from tests.e2e.metal.debian_image import OsImage
from tests.e2e.metal.full_set import full_set
from tests.e2e.metal.origin import Origin
from tests.e2e.metal.profiles import Profile, example
from tests.e2e.metal.site import NODE, Site
from tests.e2e.processes import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.usefixtures("one_at_a_time"),
]

MACHINE = ("--memory", "1024", "--disk-size", "2G")
# What the ramdisk shows of itself to whoever has got into it. The ticket's area is read from its own boot medium.
LOOK = """\
area() {{ dd if=/dev/sr0 bs=2048 skip={area} count=32 2>/dev/null; }}
echo "cmdline: $(cat /proc/cmdline)"
cd /proc/net
for table in tcp tcp6 udp udp6; do
    tail -n +2 $table | while read -r _ local _ state _; do echo "socket: $table $local $state"; done
done
echo "area: $(area | head -c 4096 | base64 | tr -d '\\n')"
token=$(area | grep -ao 'rwj1[^"]*')
exec 2>/dev/null
find /run /etc /tmp /var /root /rackwright -xdev -type f -exec grep -laF -e "$token" {{}} + | sed 's/^/kept: /'
grep -aqF -e "$token" /proc/cmdline && echo "kept: cmdline"
dmesg | grep -qF -e "$token" && echo "kept: dmesg"
exit 0
"""


def looking(profile: Profile, ramdisk: Path) -> Profile:
    area = json.loads(ramdisk.read_bytes())["areaOffset"] // 2048
    return profile.script("inventory", "look", LOOK.format(area=area))


@pytest.mark.parametrize("firmware", ["uefi", pytest.param("bios", marks=full_set)])
def test_a_machine_is_commissioned_deployed_and_released(
    firmware: str, ramdisk: Path, os_image: OsImage, origin: Origin, tmp_path: Path
) -> None:
    profiles = [looking(example("commission"), ramdisk), example("deploy"), example("release")]
    if firmware == "bios":
        profiles = [profile.for_bios() for profile in profiles]
    stored = [profile.store(tmp_path) for profile in profiles]
    site = Site(tmp_path, ramdisk, origin, stored, "--firmware", firmware, *MACHINE)
    with site.running():
        commission(site)
        deploy(site, os_image)
        release(site)
        for program in (site.agent, site.plane, site.machine):
            assert program.stop() == 0, program.said()[-2000:]


def commission(site: Site) -> None:
    code, output = site.watch("nodes", "commission", NODE, "--watch").ends(200)
    assert code == 0, output
    node = site.node()
    assert node["provision"]["state"] == "available"
    assert node["foundLabels"]["disk.count"] == "1"
    assert site.machine.resets() == ["On", "ForceOff"]
    wait_until("the machine is off", lambda: site.machine.look()["state"] == "off")
    (look,) = site.commands("task.run")
    shows_no_secret(look["result"]["output"], site)


def shows_no_secret(output: str, site: Site) -> None:
    said = [tuple(line.split(": ", 1)) for line in output.splitlines() if ": " in line]
    assert [what for name, what in said if name == "kept"] == []
    (command_line,) = [what for name, what in said if name == "cmdline"]
    assert "ticket" not in command_line
    listening = [what for name, what in said if name == "socket" and what.endswith((" 0A", " 07"))]
    assert listening == []

    (area,) = [what for name, what in said if name == "area"]
    ticket = ticket_in(area)
    (site.folder / "thief").mkdir()
    with pytest.raises(JoinFailed, match="used up") as failure:
        asyncio.run(
            join(
                f"wss://127.0.0.1:{site.plane.agents_port}",
                ticket.token.reveal(),
                IdentityStore(site.folder / "thief"),
                force=True,
            )
        )
    assert failure.value.refusal == "TOKEN_REFUSED"


def ticket_in(area: str) -> BootTicket:
    """`area`: its beginning; the rest is zeros."""
    ticket = decode_area(b64decode(area).ljust(AREA_SIZE, b"\0"))
    assert ticket is not None
    return ticket


def deploy(site: Site, image: OsImage) -> None:
    before = len(site.machine.resets())
    words = ("--image", site.origin.url("debian.raw.zst"), "--sha256", image.sha256)
    code, output = site.watch("nodes", "deploy", NODE, *words, "--watch").ends(400)
    assert code == 0, output
    assert site.node()["provision"]["state"] == "deployed"
    (daemon,) = site.agents("daemon")
    assert daemon["session"]["bootId"] not in site.machine.boots()
    started = site.step("start-system")["result"]
    assert (started["means"], started["bootId"]) == ("kexec", daemon["session"]["bootId"])
    # Off already; on; and kexec needs no BMC.
    assert site.machine.resets()[before:] == ["On"]
    assert site.machine.redfish("/redfish/v1/Managers/1/VirtualMedia/Cd")["Inserted"] is False
    written = site.step("write")["result"]
    assert written["checksum"] == image.sha256
    assert site.machine.has_written_once(written["bytes"])
    assert [asked.start for asked in site.origin.asked if asked.method == "GET"] == [0]


def release(site: Site) -> None:
    before = len(site.machine.resets())
    code, output = site.watch("nodes", "release", NODE, "--watch").ends(400)
    assert code == 0, output
    assert site.node()["provision"]["state"] == "available"
    assert site.machine.resets()[before:] == ["GracefulShutdown", "On", "ForceOff"]
    (erased,) = site.step("erase")["result"]["disks"]
    assert erased["proof"]
    wait_until("the machine is off", lambda: site.machine.look()["state"] == "off")
    assert not any_data(site.machine.disk)


def any_data(disk: Path) -> bool:
    with disk.open("rb") as file:
        while piece := file.read(1 << 24):
            if piece.count(0) != len(piece):
                return True
    return False
