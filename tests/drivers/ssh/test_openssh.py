"""The SSH console against a real OpenSSH server (Debian package openssh-server)."""

import asyncio
import getpass
import io
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
import pytest

from drivers import Drivers, Target
from drivers.console import ConsoleStream
from protocol.console_frames import EndReason
from protocol.errors import ErrorCode, OperationError

pytestmark = pytest.mark.e2e

_SHELL = """#!/bin/bash
export PATH="{folder}:$PATH" PS1="root@bmc:~# " TERM=dumb
if [ -n "$SSH_ORIGINAL_COMMAND" ]; then exec bash --norc -c "$SSH_ORIGINAL_COMMAND"; fi
exec bash --norc --noprofile -i
"""
_CLIENT = """#!/bin/bash
stty raw -echo
echo $$ > {folder}/console.pid
exec cat
"""


@dataclass
class Sshd:
    folder: Path
    port: int
    process: "subprocess.Popen[bytes]"
    key: str
    """The user's private key, in PEM."""

    def target(self, **more: object) -> Target:
        settings: dict[str, object] = {"username": getpass.getuser(), "password": self.key, "verify": "first-use"}
        return Target(address=f"ssh://127.0.0.1:{self.port}", **(settings | more))  # type: ignore[arg-type]

    def sessions(self) -> list[int]:
        """The server's processes of single connections."""
        listed = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in listed.stdout.split()]


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("no sshd here: install the package openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    user_key = paramiko.ECDSAKey.generate()
    text = io.StringIO()
    user_key.write_private_key(text)
    paramiko.ECDSAKey.generate().write_private_key_file(str(tmp_path / "host_key"))
    (tmp_path / "authorized").write_text(f"{user_key.get_name()} {user_key.get_base64()}\n")
    for name, script in (("shell", _SHELL), ("obmc-console-client", _CLIENT)):
        (tmp_path / name).write_text(script.format(folder=tmp_path))
        (tmp_path / name).chmod(0o755)
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": tmp_path / "host_key",
        "PidFile": "none",
        "AuthorizedKeysFile": tmp_path / "authorized",
        "StrictModes": "no",
        "UsePAM": "no",
        "PermitRootLogin": "yes",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "ForceCommand": tmp_path / "shell",
        "PrintMotd": "no",
        "PrintLastLog": "no",
    }
    config = tmp_path / "sshd_config"
    config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([program, "-D", "-e", "-f", str(config)], stderr=log, stdout=log)
    try:
        _await_port(port, process, tmp_path / "log")
        yield Sshd(tmp_path, port, process, text.getvalue())
    finally:
        process.terminate()
        process.wait()


def _await_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    pytest.fail(f"sshd did not start: {log.read_text()}")


async def opened(drivers: Drivers, sshd: Sshd, **arguments: object) -> ConsoleStream:
    result = await drivers.invoke(sshd.target(), "console.openConsole", arguments)
    stream = drivers.environment.consoles.get(str(result["stream"]))
    assert stream is not None
    return stream


async def heard(stream: ConsoleStream, expected: bytes) -> None:
    read = b""
    while len(read) < len(expected):
        data = await stream.read()
        assert data, (read, stream.ending)
        read += data
    assert read == expected


async def test_an_openbmc_shell_is_recognised_and_its_console_opened(sshd: Sshd) -> None:
    async with Drivers() as drivers:
        stream = await opened(drivers, sshd)
        every_byte = bytes(range(256))
        await stream.write(every_byte)
        await heard(stream, every_byte)
        await stream.send_break()
        pasted = os.urandom(100_000)
        typing = asyncio.create_task(stream.write(pasted))
        await heard(stream, pasted)
        await typing


async def test_a_command_of_ones_own_opens_the_console(sshd: Sshd) -> None:
    async with Drivers() as drivers:
        stream = await opened(drivers, sshd, command="stty raw -echo; echo ready; exec cat")
        await heard(stream, b"ready\n")
        await stream.write(b"\x03\x04x")
        await heard(stream, b"\x03\x04x")


async def test_a_console_that_ends_and_one_that_is_cut_are_told_apart(sshd: Sshd) -> None:
    async with Drivers() as drivers:
        stream = await opened(drivers, sshd, command="echo bye")
        while await stream.read():
            pass
        assert stream.ending is not None
        assert stream.ending.reason is EndReason.ENDED
        await stream.aclose()
        cut = await opened(drivers, sshd)
        for pid in sshd.sessions():
            os.kill(pid, signal.SIGKILL)
        while await cut.read():
            pass
        assert cut.ending is not None
        assert cut.ending.reason is EndReason.LOST


async def test_closing_leaves_no_session_behind(sshd: Sshd) -> None:
    async with Drivers() as drivers:
        stream = await opened(drivers, sshd)
        assert sshd.sessions()
        await stream.aclose()
        while sshd.sessions():
            await asyncio.sleep(0.02)


async def test_the_host_key_is_pinned_and_a_password_is_not_taken(sshd: Sshd) -> None:
    async with Drivers() as drivers:
        await opened(drivers, sshd)
        (pinned,) = drivers.environment.pins.values()
        assert (await drivers.invoke(sshd.target(verify=f"sha256:{pinned}"), "console.getConsole"))["kinds"] == [
            "ssh"
        ]
        with pytest.raises(OperationError) as caught:
            await drivers.invoke(sshd.target(verify=f"sha256:{'0' * 64}"), "console.openConsole")
        assert caught.value.code is ErrorCode.TLS_UNTRUSTED
        with pytest.raises(OperationError) as caught:
            await drivers.invoke(sshd.target(password="a password"), "console.openConsole")
        assert caught.value.code is ErrorCode.UNSUPPORTED
