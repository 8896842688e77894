"""An IPMI BMC's own word: by ipmitool, or by what its simulator writes into files."""

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bmc import USER, Login

__all__ = ["ChassisFiles", "IpmitoolWitness", "SimulatorJournal", "boot_selector"]

_SECONDS = 20.0
_CHASSIS, _CONTROL, _SET_BOOT_OPTIONS, _BOOT_FLAGS = 0x00, 0x02, 0x08, 5
_HARD_RESET = 3
# The device selectors of the boot flags (IPMI 2.0, table 28-14, parameter 5), and ipmitool's words for them.
_SELECTORS: Mapping[int, str] = {0x0: "none", 0x1: "pxe", 0x2: "disk", 0x5: "cd", 0x6: "bios", 0xF: "usb"}
_IPMITOOL_WORDS: Mapping[str, str] = {
    "No override": "none",
    "Force PXE": "pxe",
    "Force Boot from default Hard-Drive": "disk",
    "Force Boot from CD/DVD": "cd",
    "Force Boot into BIOS Setup": "bios",
}


def boot_selector(data: bytes) -> str:
    """The device in the data of Set System Boot Options, parameter 5."""
    selector = data[2] >> 2 & 0xF
    return _SELECTORS.get(selector, f"selector {selector:#x}")


@dataclass(frozen=True)
class IpmitoolWitness:
    """`suite`: the cipher suite to log in with. `count_resets` gets a function that runs ipmitool."""

    program: str
    host: str
    port: int
    login: Login
    suite: int
    count_resets: Callable[[Callable[..., str]], int]
    how: str = "ipmitool"

    def power(self) -> str:
        text = self.ask("chassis", "power", "status")
        return text.strip().rpartition(" ")[2].lower()

    def boot(self) -> tuple[str, str]:
        text = self.ask("chassis", "bootparam", "get", "5")
        found = re.search(r"Boot Device Selector\s*:\s*(.+)", text)
        words = found[1].strip() if found else "no boot flags"
        return _IPMITOOL_WORDS.get(words, words), words

    def media(self) -> list[str]:
        return []

    def resets(self) -> int:
        return self.count_resets(self.ask)

    def ask(self, *words: str) -> str:
        """Runs ipmitool; the password goes by a file. Raises OSError with what it said."""
        command = [self.program, "-I", "lanplus", "-H", self.host, "-p", str(self.port), "-U", USER]
        command += ["-f", str(self.login.password_file), "-C", str(self.suite), "-N", "2", "-R", "3", *words]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(f"ipmitool {' '.join(words)}: no end within {_SECONDS:g} s") from error
        if done.returncode:
            raise OSError(f"ipmitool {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout


@dataclass(frozen=True)
class ChassisFiles:
    """The files that the chassis script of `ipmi_sim` keeps: its state, and a line for each call."""

    folder: Path
    how: str = "the chassis script's files"

    def power(self) -> str:
        return {"1": "on", "0": "off"}.get(word := self._read("power"), word)

    def boot(self) -> tuple[str, str]:
        word = self._read("boot")
        return word, word

    def media(self) -> list[str]:
        return []

    def resets(self) -> int:
        log = self.folder / "calls"
        calls: Sequence[str] = log.read_text().splitlines() if log.exists() else []
        return sum(" set reset 1" in call for call in calls)

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text().strip()


@dataclass(frozen=True)
class SimulatorJournal:
    """What `rackwright simulate ipmi --journal` wrote down of the BMC at `address`."""

    file: Path
    address: str
    how: str = "the simulator's journal"

    def power(self) -> str:
        powered = [line["powered"] for line in self._lines() if "powered" in line]
        return "on" if powered[-1] else "off"

    def boot(self) -> tuple[str, str]:
        device = "none"
        for data in self._executed(_SET_BOOT_OPTIONS):
            if data[0] & 0x7F == _BOOT_FLAGS:
                device = boot_selector(data)
        return device, device

    def media(self) -> list[str]:
        return []

    def resets(self) -> int:
        return sum(data[0] & 0xF == _HARD_RESET for data in self._executed(_CONTROL))

    def _executed(self, command: int) -> list[bytes]:
        return [
            bytes.fromhex(line["data"])
            for line in self._lines()
            if line.get("executed") and (line.get("netfn"), line.get("cmd")) == (_CHASSIS, command)
        ]

    def _lines(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [line for line in lines if line["bmc"] == self.address]
