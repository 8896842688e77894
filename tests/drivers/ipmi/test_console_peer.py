"""Serial over LAN against OpenIPMI's `ipmi_sim`, whose machine's serial port is a TCP connection of the test's."""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from drivers import Drivers, Target
from drivers.console import ConsoleStream
from protocol.console_frames import EndReason
from protocol.errors import ErrorCode, OperationError
from tests.drivers.ipmi.conftest import _await_port, free_port

pytestmark = pytest.mark.e2e


@dataclass
class Port:
    """The machine's end of its serial port."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


@dataclass
class Machine:
    target: Target
    process: "subprocess.Popen[bytes]"
    _connected: "asyncio.Queue[Port]"

    async def port(self) -> Port:
        async with asyncio.timeout(20):
            return await self._connected.get()


@pytest.fixture
async def machine(shared: Path, tmp_path: Path) -> AsyncIterator[Machine]:
    program = shutil.which("ipmi_sim")
    settings = shared / "peers" / "ipmi_sim"
    if program is None or not settings.is_dir():
        pytest.skip("no ipmi_sim here: install the package openipmi, and see RACKWRIGHT_SHARED for its settings")
    connected: asyncio.Queue[Port] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await connected.put(Port(reader, writer))

    serial = await asyncio.start_server(serve, "127.0.0.1", 0)
    serial_port = serial.sockets[0].getsockname()[1]
    port = free_port()
    for folder in ("st", "state"):
        (tmp_path / folder).mkdir()
    for name in ("sim.conf", "sim.emu", "chassis.sh"):
        text = (settings / name).read_text().replace("@DIR@", str(tmp_path)).replace("9001", str(port))
        lines = [line for line in text.splitlines() if not line.lstrip().startswith(("serial ", "sol "))]
        if name == "sim.conf":
            lines.insert(-2, f'  sol "tcp:127.0.0.1:{serial_port}" 115200 history=4096')
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    (tmp_path / "chassis.sh").chmod(0o755)
    command = [program, "-c", "sim.conf", "-f", "sim.emu", "-s", "state", "-p", "-n"]
    with (tmp_path / "out").open("wb") as output:
        process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=output, stderr=output)
    try:
        await asyncio.to_thread(_await_port, port, process, tmp_path / "out")
        target = Target(address=f"ipmi://127.0.0.1:{port}", username="admin", password="secret")
        yield Machine(target, process, connected)
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        while not connected.empty():
            connected.get_nowait().writer.close()
        serial.close()


async def opened(drivers: Drivers, machine: Machine, **arguments: object) -> ConsoleStream:
    result = await drivers.invoke(machine.target, "console.openConsole", arguments, timeout=30)
    stream = drivers.environment.consoles.get(str(result["stream"]))
    assert stream is not None
    return stream


async def heard(stream: ConsoleStream, expected: bytes) -> None:
    read = b""
    while expected not in read:
        data = await stream.read()
        assert data, (read, stream.ending)
        read += data


async def test_bytes_go_both_ways_and_the_console_is_given_back(machine: Machine) -> None:
    async with Drivers() as drivers:
        stream = await opened(drivers, machine)
        with contextlib.closing((port := await machine.port()).writer):
            await stream.write(b"root\r")
            assert await port.reader.readexactly(5) == b"root\r"
            await port.write(b"Password: ")
            await heard(stream, b"Password: ")
            pasted = b"0123456789" * 100
            typing = asyncio.create_task(stream.write(pasted))
            assert await port.reader.readexactly(len(pasted)) == pasted
            await typing
            await port.write(pasted)
            await heard(stream, pasted[-10:])
            await stream.aclose()
            again = await opened(drivers, machine)
            await again.write(b"x")
            assert await port.reader.readexactly(1) == b"x"


async def test_a_console_in_use_is_a_conflict_and_can_be_taken_over(machine: Machine) -> None:
    async with Drivers() as drivers, Drivers() as others:
        first = await opened(drivers, machine)
        with pytest.raises(OperationError) as caught:
            await opened(others, machine)
        assert caught.value.code is ErrorCode.CONFLICT
        second = await opened(others, machine, takeOver=True)
        with contextlib.closing((port := await machine.port()).writer):
            await second.write(b"mine")
            assert await port.reader.readexactly(4) == b"mine"
            while await first.read():
                pass
        assert first.ending is not None
        assert first.ending.reason is EndReason.ENDED


async def test_a_bmc_that_is_gone_is_noticed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivers.ipmi.console._KEEPALIVE_SECONDS", 0.2)
    async with Drivers() as drivers:
        stream = await opened(drivers, machine)
        (await machine.port()).writer.close()
        machine.process.kill()
        machine.process.wait()
        while await stream.read():
            pass
        assert stream.ending is not None
        assert stream.ending.reason is EndReason.LOST
