"""The example for dnsmasq: its own check takes it, and its addresses are those of the boot server."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.config import BootSection

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "dnsmasq" / "rackwright.conf"


def test_dnsmasq_takes_the_example() -> None:
    if shutil.which("dnsmasq") is None:
        pytest.skip("dnsmasq is not installed: apt-get install dnsmasq-base")
    done = subprocess.run(
        ["dnsmasq", "--test", f"--conf-file={EXAMPLE}"], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (0, "dnsmasq: syntax check OK.")


def test_its_addresses_are_those_of_the_boot_server() -> None:
    addresses = re.findall(r"^dhcp-boot=.*?(http://\S+)$", EXAMPLE.read_text(), re.MULTILINE)
    port = BootSection().listen
    assert addresses == [
        f"http://192.0.2.7{port}/loaders/ipxe.efi",
        f"http://192.0.2.7{port}/ipxe/${{net0/mac:hexhyp}}",
    ]
