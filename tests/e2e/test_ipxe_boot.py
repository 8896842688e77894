"""A machine that starts over the network: real iPXE under real QEMU gets its script, kernel, ramdisk and ticket.

QEMU's own DHCP names the address of the script, as the example for dnsmasq does; its BIOS starts iPXE from the NIC.
"""

import asyncio
import gzip
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from protocol.boot_ticket import TICKET_NAME, to_json
from tests.agent.boot_site import BootSite
from tests.simulators.tiny_guest import tiny_files

# Waiting for one's turn is not part of the time.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300, func_only=True), pytest.mark.usefixtures("one_at_a_time")]

MAC = "52:54:00:12:34:56"
BOOT_SECONDS = 120
INIT = f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
echo "ticket=$(sha256sum /{TICKET_NAME} | cut -c1-64) mode=$(stat -c %a /{TICKET_NAME})"
echo "words=$(cat /proc/cmdline)"
poweroff -f
"""


def _initrd(folder: Path) -> bytes:
    (folder / "bin").mkdir(parents=True)
    (folder / "proc").mkdir()
    (folder / "dev").mkdir()
    shutil.copy(shutil.which("busybox") or "", folder / "bin" / "busybox")
    (folder / "init").write_text(INIT)
    (folder / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    command = ["cpio", "-o", "-H", "newc", "--quiet"]
    made = subprocess.run(command, cwd=folder, input=names.encode(), check=True, capture_output=True)
    return gzip.compress(made.stdout, 1)


def _with_real_kernel(site: BootSite, folder: Path) -> None:
    """The site's image gets a kernel that starts, and a ramdisk that tells what it has found."""
    kernel, _ = tiny_files()
    shutil.copy(kernel, site.image.with_name("vmlinuz"))
    site.image.with_name("initrd.zst").write_bytes(_initrd(folder))
    # Written anew, so that it is read anew.
    site.image.write_text(json.dumps(json.loads(site.image.read_text())))


async def test_a_machine_starts_its_ramdisk_by_ipxe_with_its_own_ticket(tmp_path: Path) -> None:
    site = BootSite.make(tmp_path)
    _with_real_kernel(site, tmp_path / "root")
    site.giver.machines[MAC] = "node_1"
    port = (await site.server.offer_medium("node_9", "media")).split("/")[2].rpartition(":")[2]
    await site.server.arm_ipxe("node_1")
    log = tmp_path / "serial.log"
    script = f"http://10.0.2.2:{port}/ipxe/${{net0/mac:hexhyp}}"
    command = [
        *("qemu-system-x86_64", "-accel", "tcg", "-m", "768", "-display", "none", "-no-reboot"),
        *("-serial", f"file:{log}", "-boot", "n"),
        *("-netdev", f"user,id=n,bootfile={script}", "-device", f"virtio-net-pci,netdev=n,mac={MAC}"),
    ]
    machine = await asyncio.create_subprocess_exec(*command)
    try:
        async with asyncio.timeout(BOOT_SECONDS):
            await machine.wait()
    finally:
        if machine.returncode is None:
            machine.kill()
            await machine.wait()
    said = log.read_text(errors="replace")
    ticket = site.giver.given[-1]
    assert f"ticket={hashlib.sha256(to_json(ticket)).hexdigest()} mode=600" in said, said[-2000:]
    (words,) = [line for line in said.splitlines() if line.startswith("words=")]
    assert "rwj1" not in words
    assert ticket.token.reveal() not in said
    await site.server.aclose()
