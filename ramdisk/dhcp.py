"""One DHCP client per interface: busybox' udhcpc, which asks for ever; its script only writes down what it heard."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import structlog

from drivers.linux.host import Host
from ramdisk.leases import SCRIPT, parse_report

__all__ = ["DhcpClient", "end_left_over_clients"]

_log = structlog.get_logger("ramdisk.dhcp")
_MARK = "RACKWRIGHT_LEASES"
_RESTART_SECONDS = 2.0
_VENDOR = "rackwright-ramdisk"
_END_SECONDS = 2.0


class DhcpClient:
    """`folder`: of the leases. Only while the port has a link is there anything to ask."""

    def __init__(self, interface: str, folder: Path) -> None:
        self._interface = interface
        self._folder = folder
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def runs(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_running())

    def renew(self) -> None:
        """The link was away: it may lead to another network now."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGUSR1)

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def report(self) -> dict[str, str]:
        """What the script wrote last; nothing before the first event. `heard` tells one writing from the next, which
        may say the same: each renewal counts, since an address lasts no longer than its lease."""
        file = self._folder / f"{self._interface}.lease"
        try:
            written = file.stat()
            heard = f"{written.st_mtime_ns}-{written.st_ino}"
            return {**parse_report(file.read_text(errors="replace")), "heard": heard}
        except OSError:
            return {}

    async def _keep_running(self) -> None:
        while True:
            try:
                await self._run(await asyncio.to_thread(self._script))
            except OSError as error:
                _log.error("dhcp_client_not_started", interface=self._interface, reason=str(error))
            await asyncio.sleep(_RESTART_SECONDS)

    def _script(self) -> Path:
        script = self._folder / f"{self._interface}.sh"
        script.write_text(SCRIPT)
        script.chmod(0o700)
        return script

    async def _run(self, script: Path) -> None:
        # Three requests two seconds apart, and then again after five: switches with spanning tree are slow.
        words = ["-f", "-i", self._interface, "-s", str(script), "-t", "3", "-T", "2", "-A", "5"]
        options = ["-V", _VENDOR, "-O", "search", "-O", "mtu", "-O", "staticroutes"]
        self._process = process = await asyncio.create_subprocess_exec(
            "busybox",
            "udhcpc",
            *words,
            *options,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": os.defpath + ":/usr/sbin:/sbin", _MARK: str(self._folder)},
        )
        try:
            code = await process.wait()
            _log.warning("dhcp_client_ended", interface=self._interface, code=code)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(process.wait()), _END_SECONDS)


def end_left_over_clients(host: Host, folder: Path) -> int:
    """Clients of an earlier process of the agent, found by their environment: two would fight over one interface."""
    word = f"{_MARK}={folder}".encode()
    count = 0
    for entry in host.proc.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if word in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGTERM)
                    count += 1
    return count
