"""`make demo`, as a newcomer runs it: what it shows, what it leaves, and how it fails."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

PLANTED = "Planted7Secret42"
COLUMNS = ["machine", "BMC", "operation", "asked", "what the BMC says", "seconds", "ok"]
POWER_AND_BOOT = {
    ("power.getPower", "–"),
    ("power.setPower", "action=on"),
    ("power.setPower", "action=off"),
    ("power.setPower", "action=reset"),
}
REDFISH = POWER_AND_BOOT | {
    ("boot.setBootDevice", "device=cd"),
    ("virtual-media.insertMedia", "image=…/demo.iso device=cd"),
    ("virtual-media.ejectMedia", "–"),
}
IPMI = POWER_AND_BOOT | {("boot.setBootDevice", "device=pxe")}
_TEST_MARK = "RACKWRIGHT_TEST_OF_DEMO"


@dataclass
class Demo:
    """One run: its output so far, and every command line of its processes that was seen."""

    process: subprocess.Popen[str]
    mark: str
    folder: Path
    output: str = ""
    command_lines: set[str] = field(default_factory=set)

    def read_until(self, words: str) -> None:
        """Reads the output up to a line with these words. Fails where it ends before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            self.command_lines |= {" ".join(found.cmdline()) for found in self.living()}
            if words in line:
                return
        raise AssertionError(f"no line with {words!r}:\n{self.output}")

    def ended(self) -> int:
        """Reads the rest; the exit code."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
        return self.process.wait()

    def living(self) -> Iterator[psutil.Process]:
        """The processes of this run, however deep."""
        for found in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if found.environ().get(_TEST_MARK) == self.mark and found.status() != psutil.STATUS_ZOMBIE:
                    yield found

    def leaves_nothing(self) -> None:
        """No process, and no folder, but what a failure keeps."""
        assert [found.cmdline() for found in self.living()] == []
        assert PLANTED not in self.output
        assert not any(PLANTED in line for line in self.command_lines)
        for file in self.folder.rglob("*"):
            assert not file.is_file() or PLANTED.encode() not in file.read_bytes(), file

    def rows(self) -> list[dict[str, str]]:
        """The summary."""
        lines = self.output.splitlines()
        head = next(index for index, line in enumerate(lines) if re.split(r" {2,}", line) == COLUMNS)
        table = lines[head + 1 : lines.index("", head)]
        return [dict(zip(COLUMNS, re.split(r" {2,}", line), strict=True)) for line in table]

    def done(self) -> dict[str, set[tuple[str, str]]]:
        """For each machine, the operations that its BMC says were done as asked."""
        done: dict[str, set[tuple[str, str]]] = {}
        for row in self.rows():
            if row["ok"] == "ok":
                done.setdefault(row["machine"], set()).add((row["operation"], row["asked"]))
        return done


StartDemo = Callable[..., Demo]


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[StartDemo]:
    """Starts the demo without a terminal, with a planted password; nothing of it outlives the test."""
    password = tmp_path / "bmc-password"
    password.write_text(PLANTED + "\n")
    with contextlib.ExitStack() as stack:

        def start(*options: str, password_file: Path = password) -> Demo:
            mark = uuid.uuid4().hex
            # Not under tmp_path: the demo's sockets want short paths.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rw-")))
            process = subprocess.Popen(
                [sys.executable, "packaging/demo", "--bmc-password-file", str(password_file), *options],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, _TEST_MARK: mark, "TMPDIR": str(folder)},
            )
            demo = Demo(process, mark, folder)
            stack.callback(_end, demo)
            return demo

        yield start


def _end(demo: Demo) -> None:
    for found in demo.living():
        with contextlib.suppress(psutil.Error):
            found.kill()
    demo.process.wait()
    assert demo.process.stdout is not None
    demo.process.stdout.close()


def test_every_operation_is_done_on_redfish_and_ipmi_and_read_back_from_the_bmc(start_demo: StartDemo) -> None:
    demo = start_demo()
    demo.read_until("Every operation on every machine")
    assert demo.ended() == 0, demo.output
    operations = list(demo.done().values())
    assert operations.count(REDFISH) >= 3
    assert operations.count(IPMI) >= 2
    assert len(operations) == operations.count(REDFISH) + operations.count(IPMI), "every machine had everything done"
    assert {row["ok"] for row in demo.rows()} == {"ok", "–"}
    assert {row["what the BMC says"] for row in demo.rows() if row["ok"] == "–"} == {"IPMI has no virtual media"}
    assert {row["what the BMC says"] for row in demo.rows() if row["asked"] == "action=reset"} == {
        "restarted once, on"
    }
    assert "Nothing is left running" in demo.output
    demo.leaves_nothing()
    assert list(demo.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("peer", "is_there", "stand_in"),
    [
        ("sushy-tools' emulator", (REPOSITORY / ".peers/bin/sushy-emulator").exists(), "our Redfish server"),
        ("OpenIPMI's ipmi_sim", shutil.which("ipmi_sim") is not None, "our IPMI peer"),
        ("ipmitool", shutil.which("ipmitool") is not None, "the simulators' own journals"),
    ],
)
def test_what_stands_in_for_a_peer_is_told_with_the_reason(
    start_demo: StartDemo, peer: str, is_there: bool, stand_in: str
) -> None:
    demo = start_demo()
    demo.read_until("A site agent")
    told = re.search(f"{stand_in} stands? in for {peer}: ", demo.output)
    assert (told is None) is is_there, demo.output
    demo.process.send_signal(signal.SIGTERM)
    assert demo.ended() == 130
    demo.leaves_nothing()


def test_two_demos_at_once_pass_with_our_own_simulators_only(start_demo: StartDemo) -> None:
    demos = [start_demo("--own-simulators-only") for _ in range(2)]
    readers = [threading.Thread(target=demo.ended) for demo in demos]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    for demo in demos:
        assert demo.process.returncode == 0, demo.output
        for peer in ("sushy-tools' emulator", "OpenIPMI's ipmi_sim", "ipmitool"):
            assert re.search(f"stands? in for {peer}: --own-simulators-only", demo.output), peer
        assert {"our Redfish server", "our IPMI peer, suite 17"} <= {row["BMC"] for row in demo.rows()}
        assert {frozenset(done) for done in demo.done().values()} == {frozenset(REDFISH), frozenset(IPMI)}
        demo.leaves_nothing()
        assert list(demo.folder.iterdir()) == []


@pytest.mark.parametrize("words", ["A control plane", "A site agent", "Every operation on every machine"])
def test_an_interrupted_demo_leaves_nothing(start_demo: StartDemo, words: str) -> None:
    demo = start_demo("--own-simulators-only")
    demo.read_until(words)
    demo.process.send_signal(signal.SIGINT)
    assert demo.ended() == 130, demo.output
    assert "interrupted" in demo.output
    assert "Nothing is left running" in demo.output
    assert "Traceback" not in demo.output
    demo.leaves_nothing()
    assert list(demo.folder.iterdir()) == []


def test_a_demo_whose_control_plane_dies_says_so_and_keeps_the_logs_without_secrets(start_demo: StartDemo) -> None:
    demo = start_demo("--own-simulators-only")
    demo.read_until("power.getPower")
    (plane,) = (found for found in demo.living() if {"control-plane", "serve"} <= set(found.cmdline()))
    plane.kill()
    assert demo.ended() == 1, demo.output
    assert "failed: " in demo.output
    kept = re.search(r"the logs are kept in (\S+)", demo.output)
    assert kept is not None
    logs = Path(kept[1])
    assert {"control-plane.log", "agent.log"} <= {file.name for file in logs.iterdir()}
    assert [file for file in logs.parent.iterdir() if file != logs] == []
    demo.leaves_nothing()


def test_a_password_that_not_every_peer_takes_is_refused_with_the_rule(start_demo: StartDemo, tmp_path: Path) -> None:
    password = tmp_path / "long-password"
    password.write_text(PLANTED + PLANTED)
    demo = start_demo(password_file=password)
    assert demo.ended() == 1
    assert "failed: the BMCs' password is 1 to 16 letters and digits" in demo.output
    demo.leaves_nothing()
