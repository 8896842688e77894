"""Clients that nobody here wrote, against our BMC: ipmitool, and pyghmi from the venv of peers."""

import contextlib
import json
import os
import pty
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulators.ipmi import BootDevice, ChassisControl, FaultRule, IpmiBmc, IpmiServer, IpmiServerThread, Phase, User
from simulators.ipmi.boot_options import BootOverride

IPMITOOL = shutil.which("ipmitool")
PEER_PYTHON = Path(__file__).resolve().parents[2] / ".peers" / "bin" / "python"

pytestmark = pytest.mark.e2e
needs_ipmitool = pytest.mark.skipif(IPMITOOL is None, reason="ipmitool is not installed: apt-get install ipmitool")
needs_pyghmi = pytest.mark.skipif(not PEER_PYTHON.exists(), reason="no venv of peers at .peers with pyghmi in it")

Tool = Callable[..., str]


@pytest.fixture
def running() -> Iterator[IpmiServerThread]:
    """A BMC with the user admin (secret), served by a thread."""
    with IpmiServerThread(IpmiServer(IpmiBmc(users=[User("admin", b"secret")]))) as thread:
        yield thread


@pytest.fixture
def bmc(running: IpmiServerThread) -> IpmiBmc:
    """The BMC that is served."""
    assert isinstance(running.servers, IpmiServer)
    return running.servers.bmc


def command(bmc: IpmiBmc, suite: str) -> list[str]:
    """ipmitool with all it needs to log in; the password goes by the environment."""
    assert IPMITOOL is not None
    target = ["-H", "127.0.0.1", "-p", str(bmc.port), "-U", "admin", "-E"]
    return [IPMITOOL, "-I", "lanplus", *target, "-C", suite, "-N", "2", "-R", "2"]


def environment(password: str = "secret") -> dict[str, str]:
    """The environment of a client, with its password."""
    return {**os.environ, "IPMI_PASSWORD": password, "LC_ALL": "C", "TZ": "UTC"}


@pytest.fixture(params=["3", "17"])
def ipmitool(request: pytest.FixtureRequest, bmc: IpmiBmc) -> Tool:
    """Runs ipmitool with one cipher suite; gives what it prints. `fails=True` where it must fail."""
    if IPMITOOL is None:
        pytest.skip("ipmitool is not installed: apt-get install ipmitool")

    def run(words: str, *, fails: bool = False, password: str = "secret") -> str:
        done = subprocess.run(
            [*command(bmc, request.param), *words.split()],
            env=environment(password),
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_ipmitool_power(ipmitool: Tool, bmc: IpmiBmc) -> None:
    assert "Chassis Power is on" in ipmitool("power status")
    ipmitool("power off")
    assert "Chassis Power is off" in ipmitool("power status")
    assert "not supported in present state" in ipmitool("power cycle", fails=True)
    ipmitool("power on")
    ipmitool("power cycle")
    ipmitool("power reset")
    ipmitool("power diag")
    ipmitool("power soft")
    assert "Chassis Power is off" in ipmitool("power status")
    accepted = [order.action for order in bmc.machine.orders if order.accepted]
    assert accepted == [
        ChassisControl.POWER_DOWN,
        ChassisControl.POWER_UP,
        ChassisControl.POWER_CYCLE,
        ChassisControl.HARD_RESET,
        ChassisControl.DIAGNOSTIC_INTERRUPT,
        ChassisControl.SOFT_SHUTDOWN,
    ]
    assert bmc.sessions.active() == [], "every run of ipmitool closed its session"


def test_ipmitool_boot_device(ipmitool: Tool, bmc: IpmiBmc) -> None:
    ipmitool("chassis bootdev pxe options=efiboot")
    text = ipmitool("chassis bootparam get 5")
    assert "Boot Flag Valid" in text
    assert "Force PXE" in text
    assert "BIOS EFI boot" in text
    ipmitool("power reset")
    assert bmc.machine.boots[-1].override == BootOverride(BootDevice.PXE, uefi=True, persistent=False)
    assert "Boot Flag Invalid" in ipmitool("chassis bootparam get 5")


def test_ipmitool_event_log(ipmitool: Tool) -> None:
    assert "Power Supply AC lost | Asserted" in ipmitool("sel list")
    assert "Entries          : 3" in ipmitool("sel info")
    ipmitool("sel clear")
    assert "SEL has no entries" in ipmitool("sel list")


def test_ipmitool_sensors(ipmitool: Tool) -> None:
    text = ipmitool("sdr elist")
    assert "24 degrees C" in text
    assert "8400 RPM" in text
    assert "12.06 Volts" in text
    assert "Presence detected" in text
    assert "1000.000  | 2000.000" in ipmitool("sensor")


def test_ipmitool_inventory(ipmitool: Tool) -> None:
    text = ipmitool("fru")
    assert "Product Serial        : RWSIM000001" in text
    assert "Simulated PSU 800W" in text
    assert "checksum" not in text.lower()


def test_ipmitool_controller_users_and_sessions(ipmitool: Tool) -> None:
    assert "IPMI Version              : 2.0" in ipmitool("mc info")
    assert "ADMINISTRATOR" in ipmitool("user list 1")
    assert "console ip                    : 127.0.0.1" in ipmitool("session info active")
    assert "Enabled                         : true" in ipmitool("sol info 1")
    assert "hmac_sha256" in ipmitool("channel getciphers ipmi 1")
    assert "RMCP+ Cipher Suites     : 3,17" in ipmitool("lan print 1")
    assert "Selftest: passed" in ipmitool("mc selftest")
    assert "chassis power" in ipmitool("chassis restart_cause")


def test_ipmitool_with_a_wrong_password(ipmitool: Tool, bmc: IpmiBmc) -> None:
    assert "RAKP 2 HMAC is invalid" in ipmitool("-v power status", fails=True, password="wrong")
    assert "wrong" not in repr(list(bmc.journal))
    assert bmc.sessions.active() == []


def test_ipmitool_is_refused_by_a_bmc_whose_sessions_are_taken(ipmitool: Tool, bmc: IpmiBmc) -> None:
    bmc.faults.add(FaultRule(phase=Phase.OPEN_SESSION, status=0x01))
    assert "insufficient resources" in ipmitool("power status", fails=True)


@needs_ipmitool
@pytest.mark.parametrize("suite", ["3", "17"])
def test_ipmitool_console_carries_what_is_typed_and_what_the_machine_writes(bmc: IpmiBmc, suite: str) -> None:
    bmc.console.script = bytes.upper
    pid, terminal = pty.fork()
    if pid == 0:
        arguments = [*command(bmc, suite), "sol", "activate"]
        os.execve(arguments[0], arguments, environment())
    try:
        assert "operational" in read_until(terminal, "operational")
        os.write(terminal, b"hello machine\r")
        assert "HELLO MACHINE" in read_until(terminal, "HELLO MACHINE")
        os.write(terminal, b"~.")
        read_until(terminal, "the end of the program")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    # The terminal turns CR into LF where the line is typed before ipmitool has made it raw.
    assert bytes(bmc.console.received).strip() == b"hello machine"
    assert bmc.sol is None


def read_until(terminal: int, wanted: str) -> str:
    """What the terminal shows until the wanted text, or until 20 seconds of silence."""
    seen = ""
    while wanted not in seen:
        readable, _, _ = select.select([terminal], [], [], 20)
        if not readable:
            return seen
        try:
            seen += os.read(terminal, 4096).decode(errors="replace")
        except OSError:
            return seen
    return seen


PYGHMI = """
import json, os, sys
from pyghmi.ipmi.command import Command
bmc = Command(bmc="127.0.0.1", port=int(sys.argv[1]), userid="admin", password=os.environ["IPMI_PASSWORD"])
out = {"before": bmc.get_power(), "off": bmc.set_power("off", wait=True), "on": bmc.set_power("on", wait=True)}
out["set"] = bmc.set_bootdev("network", uefiboot=True)
out["get"] = bmc.get_bootdev()
out["sensors"] = {reading.name: [reading.value, reading.states] for reading in bmc.get_sensor_data()}
out["events"] = [event["event"] for event in bmc.get_event_log()]
out["inventory"] = {name: (data or {}).get("Serial Number") for name, data in bmc.get_inventory()}
bmc.ipmi_session.logout()
print(json.dumps(out))
"""


def pyghmi(bmc: IpmiBmc) -> dict[str, object]:
    """Run the script of pyghmi calls; gives what they returned."""
    done = subprocess.run(
        [str(PEER_PYTHON), "-c", PYGHMI, str(bmc.port)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


@needs_pyghmi
def test_pyghmi_power_boot_sensors_events_and_inventory(bmc: IpmiBmc) -> None:
    result = pyghmi(bmc)
    assert result["before"] == {"powerstate": "on"}
    assert result["off"] == {"powerstate": "off"}
    assert result["on"] == {"powerstate": "on"}
    assert result["get"] == {"bootdev": "network", "persistent": False, "uefimode": True}
    sensors = result["sensors"]
    assert isinstance(sensors, dict)
    assert sensors["CPU1 Temp"] == [52.0, []]
    assert sensors["PSU1 Status"] == [None, ["Present"]]
    assert isinstance(result["events"], list)
    assert "Power input lost" in result["events"]
    assert result["inventory"] == {"System": "RWSIM000001", "System Board": "RWSIM000001", "PSU1": "RWSIM000001-P1"}


@needs_pyghmi
@pytest.mark.case("B44")
def test_pyghmi_falls_back_to_suite_3_and_to_operator(bmc: IpmiBmc) -> None:
    bmc.faults.replace(
        [
            FaultRule(phase=Phase.OPEN_SESSION, suite=17, status=0x11),
            FaultRule(phase=Phase.RAKP_1, privilege=4, status=0x09),
        ]
    )
    assert pyghmi(bmc)["before"] == {"powerstate": "on"}
    (session_levels,) = {entry.data for entry in bmc.journal.executed(6, 0x3B)}
    assert session_levels == b"\x03"
