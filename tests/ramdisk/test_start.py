"""What a ramdisk's agent loads before it asks for an address: each module more is time in which nobody reaches it."""

import subprocess
import sys

import pytest

PRINTS_MODULES = "import sys, ramdisk.service; print(*sys.modules)"


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """By a process that has loaded nothing else."""
    run = subprocess.run([sys.executable, "-c", PRINTS_MODULES], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "later",
    [
        *("agent.service", "agent.joining", "agent.executor", "agent.vault", "websockets", "cryptography"),
        *(
            "drivers.linux.deploy",
            "drivers.linux.inspect",
            "drivers.linux.raid",
            "ramdisk.grub",
            "tomllib",
            "sqlite3",
        ),
    ],
)
def test_what_is_needed_later_is_loaded_later(later: str, loaded: set[str]) -> None:
    assert later not in loaded


@pytest.mark.parametrize("never", ["aiohttp", "paramiko", "click", "drivers.redfish", "drivers.ipmi"])
def test_what_only_a_sites_agent_needs_is_not_loaded_at_all(never: str) -> None:
    needed = "import ramdisk.service, agent.joining, agent.service, ramdisk.kexec, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", needed], capture_output=True, text=True, check=True)
    assert never not in run.stdout.split()
