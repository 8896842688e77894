"""A deploy of a real machine while something dies: it ends as it should, and nothing destructive is done twice.

What was done is counted where it happened: resets by the BMC, written bytes by this host's kernel, requests by the
image's origin, boots by the serial port.
"""

import time
from pathlib import Path

import pytest

from tests.e2e.metal.debian_image import OsImage
from tests.e2e.metal.full_set import full_set
from tests.e2e.metal.origin import Origin
from tests.e2e.metal.profiles import Profile, example
from tests.e2e.metal.site import NODE, Site, Watched
from tests.e2e.processes import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.usefixtures("one_at_a_time"),
]

MACHINE = ("--firmware", "bios", "--memory", "1024", "--disk-size", "2G")
HALF = 60_000_000
"""Of the image's bytes: there its origin dies."""
BOOTED, WRITTEN, DEPLOYED = 200.0, 120.0, 400.0
"""Seconds, on a busy host."""
UNFINISHED = b"RACKWRIGHT: THE WRITING OF AN IMAGE TO THIS DISK WAS NOT FINISHED"


KILL_IN_THE_MIDDLE = """\
cat >/run/killer <<'END'
written() { read -r _ _ _ _ _ _ sectors _ </sys/block/vda/stat; echo "$sectors"; }
begun=$(written)
: >/run/killer-runs
while [ $(($(written) - begun)) -lt 200000 ]; do sleep 0.1; done
kill -KILL "$(cat /run/rackwright/agent.pid)"
END
env -i PATH="$PATH" setsid sh /run/killer </dev/null >/dev/null 2>&1 &
while [ ! -e /run/killer-runs ]; do sleep 0.1; done
"""
"""Somebody's script, which does not belong to the agent any more."""
HANG_IN_KEXEC = """\
program=$(command -v kexec)
cp "$program" /run/kexec
cat >/run/hanging-kexec <<'END'
#!/bin/bash
exec /run/kexec "${@/#--command-line=/--command-line=rdinit=/none panic=0 }"
END
chmod 755 /run/hanging-kexec
mount --bind /run/hanging-kexec "$program"
"""
"""The kernel that is jumped into finds no program to start, and stops for good."""


def available_at_once() -> Profile:
    """Nothing is inspected or erased: this is about the deploy alone."""
    return Profile(
        "profile: commission\n"
        "drivers: {management: redfish}\n"
        "steps: [{use: management.getInfo, on: site, retries: 2}]\n"
    )


def new_site(
    folder: Path, ramdisk: Path, origin: Origin, deploy: Profile, machine: tuple[str, ...] = MACHINE
) -> Site:
    profiles = [profile.store(folder) for profile in (available_at_once(), deploy)]
    return Site(folder, ramdisk, origin, profiles, *machine)


def begin(site: Site, sha256: str) -> Watched:
    site.cli("nodes", "commission", NODE, "--watch")
    words = ("--image", site.origin.url("debian.raw.zst"), "--sha256", sha256)
    return site.watch("nodes", "deploy", NODE, *words, "--watch")


@pytest.mark.case("B51")
@pytest.mark.parametrize(
    "seconds", [10, pytest.param(60, marks=full_set)], ids=lambda seconds: f"cut-for-{seconds}-s"
)
def test_a_deploy_outlives_everything_that_dies_around_it(
    seconds: int, ramdisk: Path, os_image: OsImage, origin: Origin, tmp_path: Path
) -> None:
    site = new_site(tmp_path, ramdisk, origin, example("deploy").for_bios())
    with site.running():
        origin.die_at = HALF
        watched = begin(site, os_image.sha256)
        site.wait_for_step("boot-ramdisk", "waiting", 30)
        wait_until("the machine is on", lambda: site.machine.look()["state"] == "on")
        kill_and_start(site.plane)

        # Half of the image is there, and its origin is not.
        assert origin.reached.wait(BOOTED)
        site.wait_for_progress("write", 100 * HALF / os_image.file.stat().st_size - 10, WRITTEN)
        kill_and_start(site.plane)
        kill_and_start(site.agent)
        for door in (site.plane_door, site.boot_door):
            door.cut()
        time.sleep(seconds)
        for door in (site.plane_door, site.boot_door):
            door.mend()
        origin.come_back()

        site.wait_for_step("start-system", "waiting", WRITTEN)
        wait_until("the machine jumps", lambda: not site.agents("ramdisk"), WRITTEN)
        kill_and_start(site.plane)
        code, output = watched.ends(DEPLOYED)
        assert code == 0, output

        assert site.node()["provision"]["state"] == "deployed"
        (daemon,) = site.agents("daemon")
        (boot,) = site.machine.boots()
        assert daemon["session"]["bootId"] != boot
        assert site.machine.resets() == ["On"]
        assert [site.step(name)["attempt"] for name in ("deploy.eraseDisks", "write", "start-system")] == [1, 1, 1]
        for operation in ("deploy.eraseDisks", "deploy.writeImage", "deploy.writeConfigDrive", "boot.kexec"):
            assert [command["state"] for command in site.commands(operation)] == ["succeeded"], operation
        assert site.machine.has_written_once(site.step("write")["result"]["bytes"])
        # What lay on the site's disk when its agent was killed was not fetched again: but for the last few megabytes.
        starts = [asked.start for asked in origin.asked if asked.method == "GET"]
        assert starts[0] == 0
        assert all(start >= HALF - (4 << 20) for start in starts[1:]), starts


def kill_and_start(program: object) -> None:
    program.kill()  # type: ignore[attr-defined]
    program.start()  # type: ignore[attr-defined]


@pytest.mark.case("B53")
def test_an_image_that_is_not_what_was_published_is_not_called_written(
    ramdisk: Path, os_image: OsImage, origin: Origin, tmp_path: Path
) -> None:
    deploy = example("deploy").for_bios()
    deploy.step("write")["retries"] = 0
    site = new_site(tmp_path, ramdisk, origin, deploy)
    with site.running():
        code, output = begin(site, "ab" * 32).ends(BOOTED + WRITTEN)
        assert code == 1, output
        node = site.node()["provision"]
        assert node["state"] == "failed"
        assert "checksum" in node["error"]["message"]
        assert os_image.sha256 in node["error"]["message"]
        assert [command["state"] for command in site.commands("deploy.writeImage")] == ["failed"]
        wait_until("the machine is off", lambda: site.machine.look()["state"] == "off")
        assert site.machine.resets() == ["On", "ForceOff"]
        with site.machine.disk.open("rb") as disk:
            assert UNFINISHED in disk.read(1 << 20)


@pytest.mark.case("B53")
@full_set
def test_an_image_that_does_not_fit_is_refused_with_both_sizes(
    ramdisk: Path, os_image: OsImage, origin: Origin, tmp_path: Path
) -> None:
    machine = (*MACHINE[:-1], "400M")
    site = new_site(tmp_path, ramdisk, origin, example("deploy").for_bios(), machine)
    with site.running():
        code, output = begin(site, os_image.sha256).ends(BOOTED + WRITTEN)
        assert code == 1, output
        node = site.node()["provision"]
        assert node["state"] == "failed"
        assert "/dev/vda has only 0.3906 GiB: choose a larger disk" in node["error"]["message"]
        assert site.machine.resets() == ["On", "ForceOff"]
        assert not starts_a_system(site.machine.disk)


@pytest.mark.case("B52")
@full_set
def test_a_ramdisk_agent_that_is_killed_and_a_kexec_that_hangs_cost_an_attempt_and_a_reset(
    ramdisk: Path, os_image: OsImage, origin: Origin, tmp_path: Path
) -> None:
    deploy = example("deploy").for_bios()
    deploy.script("deploy.eraseDisks", "plan-a-kill", KILL_IN_THE_MIDDLE)
    deploy.script("config-drive", "plan-a-hang", HANG_IN_KEXEC)
    deploy.change("start-system", patience="2m")
    site = new_site(tmp_path, ramdisk, origin, deploy)
    with site.running():
        code, output = begin(site, os_image.sha256).ends(2 * DEPLOYED)
        assert code == 0, output
        assert site.node()["provision"]["state"] == "deployed"
        writes = site.commands("deploy.writeImage")
        assert [write["state"] for write in writes] == ["failed", "succeeded"]
        assert writes[0]["error"]["code"] == "INTERRUPTED"
        assert "the agent ended with exit code 137" in site.machine.serial
        assert site.step("start-system")["result"]["means"] == "reset"
        assert [command["state"] for command in site.commands("boot.kexec")] == ["succeeded"]
        assert site.machine.resets() == ["On", "ForceOff", "On"]
        assert len(site.machine.boots()) == 1


@full_set
def test_a_machine_that_somebody_switches_off_fails_at_once_and_is_deployed_anew(
    ramdisk: Path, os_image: OsImage, origin: Origin, tmp_path: Path
) -> None:
    site = new_site(tmp_path, ramdisk, origin, example("deploy").for_bios())
    with site.running():
        origin.die_at = HALF
        watched = begin(site, os_image.sha256)
        assert origin.reached.wait(BOOTED)
        site.wait_for_progress("write", 20, WRITTEN)
        site.machine.act("pull-plug")
        code, output = watched.ends(60)
        assert code == 1, output
        node = site.node()["provision"]
        assert (node["state"], node["error"]["code"]) == ("failed", "POWER_LOST")
        assert not starts_a_system(site.machine.disk)
        assert site.machine.look()["state"] == "off"

        origin.come_back()
        words = ("--image", origin.url("debian.raw.zst"), "--sha256", os_image.sha256)
        code, output = site.watch("nodes", "deploy", NODE, *words, "--watch").ends(DEPLOYED)
        assert code == 0, output
        assert site.node()["provision"]["state"] == "deployed"
        assert site.machine.resets() == ["On", "On"]


def starts_a_system(disk: Path) -> bool:
    """Whether a BIOS would start from it, or firmware would find a table."""
    with disk.open("rb") as file:
        head = file.read(1 << 20)
    return UNFINISHED not in head and any(head)
