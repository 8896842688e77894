"""The UDP skins: one BMC, fleets, the runner for code without an event loop, and the command line."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from simulators.cli import simulate
from simulators.ipmi import FaultRule, IpmiBmc, IpmiFleet, IpmiServer, IpmiServerThread, Phase, User
from simulators.login import DEFAULT_PASSWORD
from tests.simulators.ipmi_remote_console import answer_of, sessionless

PROBE = sessionless(6, 0x38, b"\x8e\x04")


def ask(address: tuple[str, int], datagram: bytes = PROBE, timeout: float = 10.0) -> bytes:
    """Send a datagram from a plain socket; gives the first answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(timeout)
        probe.connect(address)
        probe.send(datagram)
        return probe.recv(1024)


async def test_a_server_answers_on_the_port_it_tells() -> None:
    async with IpmiServer() as server:
        answer = await asyncio.to_thread(ask, server.address)
        assert answer_of(answer)[0] == 0
        assert server.bmc.port == server.port != 0
        entry = await server.seen(lambda entry: entry.phase is Phase.AUTH_CAP)
        assert entry.outcome == 0


async def test_an_answer_that_is_late_comes_and_a_stopped_server_sends_nothing_more() -> None:
    bmc = IpmiBmc(faults=[FaultRule(late=0.05, count=1), FaultRule(late=3600)])
    async with IpmiServer(bmc) as server:
        assert answer_of(await asyncio.to_thread(ask, server.address))[0] == 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.sendto(PROBE, server.address)
            await server.seen(lambda entry: len(bmc.journal) == 2)


async def test_a_delayed_request_is_carried_out_by_the_servers_own_alarm() -> None:
    async with IpmiServer(IpmiBmc(faults=[FaultRule(delay=0.05)])) as server:
        assert answer_of(await asyncio.to_thread(ask, server.address))[0] == 0


async def test_waiting_for_a_journal_entry_that_never_comes_ends() -> None:
    async with IpmiServer() as server:
        with pytest.raises(TimeoutError):
            await server.seen(lambda entry: False, timeout=0.01)


async def test_a_fleet_gives_each_bmc_a_port_and_a_state_of_its_own() -> None:
    async with IpmiFleet(IpmiBmc() for _ in range(20)) as fleet:
        assert len({server.port for server in fleet.servers}) == 20
        fleet.bmcs[3].machine.powered = False
        for server in fleet.servers:
            assert answer_of(await asyncio.to_thread(ask, server.address))[0] == 0
        assert [len(bmc.journal) for bmc in fleet.bmcs] == [1] * 20
        assert sum(bmc.machine.is_on for bmc in fleet.bmcs) == 19


async def test_a_fleet_may_use_one_port_on_many_addresses() -> None:
    async with IpmiFleet([IpmiBmc(), IpmiBmc(), IpmiBmc()], host="127.0.7.9", addresses=True) as fleet:
        assert [server.host for server in fleet.servers] == ["127.0.7.9", "127.0.7.10", "127.0.7.11"]
        assert len({server.port for server in fleet.servers}) == 1
        for server in fleet.servers:
            assert answer_of(await asyncio.to_thread(ask, server.address))[0] == 0


async def test_a_fleet_that_cannot_bind_all_ports_keeps_none() -> None:
    async with IpmiServer(host="127.0.7.21") as taken:
        fleet = IpmiFleet([IpmiBmc(), IpmiBmc()], host="127.0.7.20", port=taken.port, addresses=True)
        with pytest.raises(OSError, match="in use"):
            await fleet.start()
        async with IpmiServer(host="127.0.7.20", port=taken.port):
            pass


def test_the_thread_runner_serves_code_without_an_event_loop() -> None:
    with IpmiServerThread(IpmiServer(IpmiBmc())) as running:
        assert isinstance(running.servers, IpmiServer)
        assert answer_of(ask(running.servers.address))[0] == 0
        bmc = running.servers.bmc
        assert running.call(lambda: bmc.machine.is_on)
        running.call(bmc.restart)
        assert bmc.restarts == 1


def test_the_thread_runner_raises_what_kept_the_server_from_starting() -> None:
    with IpmiServerThread(IpmiServer()) as running:
        assert isinstance(running.servers, IpmiServer)
        other = IpmiServerThread(IpmiServer(port=running.servers.port))
        with pytest.raises(OSError, match="in use"), other:
            pass


def test_a_suite_that_is_not_built_in_is_refused_with_the_choice() -> None:
    with pytest.raises(ValueError, match="choose among 3 and 17"):
        IpmiBmc(suites=(3, 8))


@pytest.mark.parametrize("user", [("a-name-of-17-bytes", b"x"), ("name", b"a password of 21 bytes")])
def test_names_and_passwords_that_ipmi_cannot_carry_are_refused(user: tuple[str, bytes]) -> None:
    with pytest.raises(ValueError, match="shorten it") as raised:
        User(*user)
    assert "password of 21" not in str(raised.value)


@contextmanager
def command_line(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[tuple[str, int]]]]:
    """`rackwright simulate ipmi` as a process, and the addresses that it prints."""
    program = [sys.executable, "-c", "from simulators.cli import simulate; simulate()", "ipmi", *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            count = int(arguments[arguments.index("--count") + 1]) if "--count" in arguments else 1
            lines = [process.stdout.readline().strip() for _ in range(count)]
            assert all(line.startswith("ipmi://") for line in lines)
            lines = [line.removeprefix("ipmi://") for line in lines]
            yield process, [(host, int(port)) for host, port in (line.rsplit(":", 1) for line in lines)]
        finally:
            process.kill()


@pytest.mark.e2e
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_so_many_bmcs_until_a_signal_ends_it(ending: signal.Signals) -> None:
    with command_line("--count", "3", "--suites", "3", "--delay", "1") as (process, addresses):
        assert len(set(addresses)) == 3
        for address in addresses:
            suites = answer_of(ask(address, sessionless(6, 0x54, b"\x0e\x00\x80")))[2:]
            assert [suites[place + 1] for place in range(0, len(suites), 5)] == [3]
        process.send_signal(ending)
        assert process.wait(timeout=20) == 0


@pytest.mark.e2e
def test_the_command_tells_the_login(tmp_path: Path) -> None:
    with command_line() as (process, _):
        assert process.stdout is not None
        assert process.stdout.readline() == f"login admin, password {DEFAULT_PASSWORD}\n"
    (tmp_path / "password").write_text("chosen")
    with command_line("--password-file", str(tmp_path / "password")) as (process, _):
        assert process.stdout is not None
        assert process.stdout.readline() == "login admin\n"


@pytest.mark.e2e
def test_the_command_reads_its_fault_rules_again_on_hangup(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[faults]]\nphase = "auth-cap"\ncompletion_code = 0xc0\n')
    with command_line("--faults", str(rules)) as (process, (address,)):
        assert answer_of(ask(address)) == b"\xc0"
        rules.write_text('[[faults]]\nphase = "auth-cap"\ncompletion_code = 0xc3\n')
        process.send_signal(signal.SIGHUP)
        while answer_of(ask(address)) == b"\xc0":
            pass
        assert answer_of(ask(address)) == b"\xc3"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--suites", "3,8"], ["--suites", "'8'", "3,17"]),
        (["--count", "0"], ["--count"]),
        (["--password-file", "/nonexistent/file"], ["/nonexistent/file", "readable file"]),
        (["--faults", "/nonexistent/rules.toml"], ["--faults", "/nonexistent/rules.toml"]),
        (["--user", "a-name-of-17-bytes"], ["shorten it"]),
        (["--host", "not an address"], ["not an address"]),
    ],
)
def test_a_wrong_option_is_named_with_what_to_do(arguments: list[str], words: list[str]) -> None:
    result = CliRunner().invoke(simulate, ["ipmi", *arguments])
    assert result.exit_code == 2
    text = re.sub(r"\s+", " ", result.output)
    assert all(word in text for word in words), result.output


def test_a_port_that_is_taken_is_told_with_what_to_do() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        result = CliRunner().invoke(simulate, ["ipmi", "--port", str(taken.getsockname()[1])])
    assert result.exit_code == 1
    assert "choose another --host or --port" in result.output
