"""The real daemon as a process of its own: started, killed, stopped, asked."""

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from agent.identity import IdentityStore
from agent.joining import join
from drivers.simulated import SCRIPT_VARIABLE, STATE_VARIABLE
from protocol.commands import JournalState, Outcome
from protocol.errors import ErrorCode
from protocol.frames import Command, Finished, Hello, Started
from tests.agent.rig import getting, setting, until
from tests.agent.tls_control_plane import ControlPlane, control_plane

PASSWORD = 'c0rrect-h0rse "battery" staple'


class Daemon:
    """Runs `rackwright agent` against a scripted control plane, with simulated machines that outlive it."""

    def __init__(self, folder: Path, plane: ControlPlane) -> None:
        self.folder = folder
        self.plane = plane
        self.process: Process | None = None
        self.logs: list[str] = []
        self.more: dict[str, str] = {}
        self._reading: asyncio.Task[None] | None = None
        (folder / "agent.toml").write_text(f'state_dir = "{folder}/state"\n[log]\nlevel = "debug"\n')

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            STATE_VARIABLE: str(self.folder / "machines"),
            SCRIPT_VARIABLE: str(self.folder / "script.json"),
            "PYTHONWARNINGS": "error",
        }

    def script(self, **faults: object) -> None:
        (self.folder / "script.json").write_text(json.dumps({"machines": {"*": faults}}))

    async def start(self) -> Hello:
        self.process = await self.spawn("run")
        self._reading = asyncio.create_task(self._read(self.process))
        return cast(Hello, await self.plane.next(Hello))

    async def spawn(self, *words: str, **options: Any) -> Process:
        program = "import sys; from rackwright.cli import main; sys.exit(main())"
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            "agent",
            *words,
            "--config",
            str(self.folder / "agent.toml"),
            env=self.environment | self.more,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            **options,
        )

    async def command(self, *words: str, text: str = "") -> tuple[int, str, str]:
        process = await self.spawn(*words)
        out, err = await process.communicate(text.encode())
        return process.returncode or 0, out.decode(), err.decode()

    async def end(self, number: int) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        code = await self.process.wait()
        if self._reading is not None:
            await self._reading
        return code

    def acts(self, machine: str = "m1") -> list[dict[str, Any]]:
        file = self.folder / "machines" / f"{machine}.acts"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    async def _read(self, process: Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self.logs.append(line.decode())


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with control_plane(tmp_path) as plane:
        daemon = Daemon(tmp_path, plane)
        daemon.script(latency=0)
        (tmp_path / "state").mkdir(mode=0o700)
        await join(plane.url, plane.token(), IdentityStore(tmp_path / "state" / "identity"))
        yield daemon
        if daemon.process is not None:
            await daemon.end(signal.SIGKILL)


@pytest.mark.e2e
async def test_a_process_killed_between_started_and_its_result_has_reset_the_machine_exactly_once(
    daemon: Daemon,
) -> None:
    daemon.script(faults=[{"operation": "power.setPower", "hang": True, "moment": "after", "count": 1}])
    await daemon.start()
    command = setting("reset")
    await daemon.plane.tell(command)
    await daemon.plane.next(Started)
    await until(lambda: len(daemon.acts()) == 1)
    await daemon.end(signal.SIGKILL)

    hello = await daemon.start()
    # The machine is read at once, so the observation may have ended before the hello.
    assert [held.id for held in hello.held] == [command.id]
    assert hello.held[0].state in ("started", "finished")
    finished = cast(Finished, await daemon.plane.next(Finished))
    assert finished.id == command.id
    assert finished.ending.outcome is Outcome.FAILED
    assert finished.ending.error is not None
    assert finished.ending.error.code == ErrorCode.OUTCOME_UNKNOWN
    assert "power is on now" in finished.ending.error.message
    await daemon.plane.tell(command)
    assert await daemon.plane.next(Finished) == finished
    assert len(daemon.acts()) == 1


@pytest.mark.e2e
async def test_a_stop_lets_a_change_end_and_reports_it(daemon: Daemon) -> None:
    daemon.script(faults=[{"operation": "power.setPower", "delay": "500ms", "moment": "after"}])
    await daemon.start()
    await daemon.plane.tell(setting("reset"))
    await daemon.plane.next(Started)
    assert await daemon.end(signal.SIGTERM) == 0
    finished = cast(Finished, await daemon.plane.next(Finished))
    assert finished.ending.outcome is Outcome.SUCCEEDED
    assert len(daemon.acts()) == 1
    # It does not wait for the answer: where that was not read in time, the end is only told once more.
    assert {held.state for held in (await daemon.start()).held} <= {JournalState.FINISHED}
    assert len(daemon.acts()) == 1


@pytest.mark.e2e
async def test_a_stop_does_not_wait_for_a_read(daemon: Daemon) -> None:
    daemon.script(faults=[{"operation": "power.getPower", "hang": True}])
    await daemon.start()
    await daemon.plane.tell(getting(remaining_ms=50_000))
    await daemon.plane.next(Started)
    async with asyncio.timeout(8):
        assert await daemon.end(signal.SIGTERM) == 0


@pytest.mark.e2e
async def test_a_password_is_in_no_log_no_file_no_frame_and_no_process_list(daemon: Daemon, tmp_path: Path) -> None:
    code, out, err = await daemon.command(
        "credentials", "set", "site/m1", "--user", "root", "--stdin", text=PASSWORD + "\n"
    )
    assert (code, err) == (0, "")
    assert out == "site/m1 is set, version 1\n"
    daemon.script(
        faults=[
            {
                "operation": "power.setPower",
                "code": "BMC_ERROR",
                "message": f"the BMC echoes {PASSWORD}",
                "bmc": [{"id": "Base.1.0.Odd", "text": f"value {PASSWORD} is odd"}],
            }
        ]
    )
    await daemon.start()
    command = setting("reset")
    payload = {**command.payload, "target": {"address": "simulated://m1", "credentialRef": "site/m1"}}
    await daemon.plane.tell(
        Command(id=command.id, kind=command.kind, payload=payload, remaining_ms=command.remaining_ms)
    )
    finished = cast(Finished, await daemon.plane.next(Finished))
    assert finished.ending.error is not None
    assert finished.ending.error.code == "BMC_ERROR"
    assert finished.ending.error.message.endswith("echoes ***")
    assert daemon.process is not None
    running = psutil.Process(daemon.process.pid)
    assert running.rlimit(psutil.RLIMIT_CORE) == (0, 0)
    texts = ["\n".join(running.cmdline()), str(running.environ()), repr(finished)]
    assert await daemon.end(signal.SIGTERM) == 0
    texts += daemon.logs
    assert len(daemon.logs) > 3
    assert all(json.loads(line)["event"] for line in daemon.logs)
    texts += [
        path.read_bytes().decode("latin-1")
        for path in (tmp_path / "state").rglob("*")
        if path.is_file() and not path.is_symlink()
    ]
    forms = (PASSWORD, json.dumps(PASSWORD)[1:-1], "c0rrect-h0rse")
    assert [text for text in texts if any(form in text for form in forms)] == []


@pytest.mark.e2e
async def test_status_tells_a_running_connected_agent_from_one_that_is_not(daemon: Daemon) -> None:
    code, out, _ = await daemon.command("status", "--json")
    assert code == 1
    assert json.loads(out)["running"] is False
    await daemon.start()
    code = 1
    while code != 0:
        code, out, _ = await daemon.command("status", "--json")
    report = json.loads(out)
    assert report["link"]["connected"] is True
    assert report["controlPlane"] == daemon.plane.url
    code, out, _ = await daemon.command("status")
    assert "connected:" in out
    code, _, err = await daemon.command("run")
    assert code == 1
    assert "another agent runs on" in err


@pytest.mark.e2e
async def test_an_agent_that_has_not_joined_or_whose_journal_is_damaged_does_not_start(
    daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "state" / "journal.db").write_bytes(b"x" * 5000)
    code, _, err = await daemon.command("run")
    assert code == 1
    assert "JOURNAL_DAMAGED" in err
    assert "OUTCOME_UNKNOWN" in err
    assert (tmp_path / "state" / "journal.db").read_bytes() == b"x" * 5000
    (tmp_path / "state" / "identity" / "current").unlink()
    code, _, err = await daemon.command("run")
    assert code == 1
    assert "rackwright agent join URL TOKEN" in err


@pytest.mark.e2e
async def test_systemd_hears_ready_connected_reloading_and_stopping(daemon: Daemon, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        daemon.more = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "2000000"}
        heard: list[str] = []

        async def hear(word: str) -> None:
            while not any(word in message for message in heard):
                heard.append((await asyncio.get_running_loop().sock_recv(manager, 4096)).decode())

        await daemon.start()
        for word in ("READY=1", "WATCHDOG=1", "STATUS=connected"):
            await hear(word)
        assert daemon.process is not None
        heard.clear()
        daemon.process.send_signal(signal.SIGHUP)
        for word in ("RELOADING=1", "READY=1"):
            await hear(word)
        assert await daemon.end(signal.SIGTERM) == 0
        await hear("STOPPING=1")
