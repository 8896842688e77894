"""The `daemon.upgrade` command: the installed system's agent is replaced by another version of its Debian packages.

The packages are fetched, checked, and installed by a unit of its own, which goes on when the agent is restarted in
the middle. What came of it is told by the next process: only the version that it is itself proves anything.
"""

import asyncio
import contextlib
import hashlib
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import msgspec
import structlog

from agent.endings import broken_off, outcome_unknown
from agent.files import make_private_folder, write_durably
from agent.handlers import CURRENT_COMMAND, Answer
from agent.own_machine import OwnMachine
from agent.reboot import has_systemd
from drivers.driver import ProgressListener
from drivers.linux.image_source import ImageChangedError, ImageSource, shown_address
from protocol import VERSION
from protocol.commands import Ending, Outcome
from protocol.errors import ErrorCode, Failure, Issue, OperationError
from protocol.operations import Repeat
from protocol.shapes.machine import DaemonPackage, DaemonUpgrade, DaemonUpgradeResult
from protocol.validation import check

__all__ = ["Upgrade", "is_version"]

_log = structlog.get_logger("agent.upgrade")
_UNIT = "rackwright-upgrade"
_PACKAGES = ("rackwright", "rackwright-agent", "rackwright-daemon")
_READ_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_LARGEST = 512 << 20
_PIECE = 1 << 20


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    command: str
    before: str
    wanted: str


class Upgrade:
    """Handles `daemon.upgrade`. `restart`: ends this process in good order, so that its service manager starts the
    new version."""

    def __init__(
        self, machine: OwnMachine, restart: Callable[[], None], *, version: str = VERSION, systemd: bool | None = None
    ) -> None:
        self.machine = machine
        self.restart = restart
        self.version = version
        self.systemd = has_systemd() if systemd is None else systemd

    def faults(self, payload: Mapping[str, object]) -> list[Issue]:
        return check(DaemonUpgrade, payload, "payload")[1]

    def repeat(self, payload: Mapping[str, object]) -> Repeat:
        return Repeat.ONCE

    @contextlib.asynccontextmanager
    async def turn(self, payload: Mapping[str, object]) -> AsyncIterator["_Replacing"]:
        async with self.machine.lane("daemon.upgrade"):
            yield _Replacing(self, msgspec.convert(payload, DaemonUpgrade))


class _Replacing:
    def __init__(self, upgrade: Upgrade, asked: DaemonUpgrade) -> None:
        self._upgrade = upgrade
        self._host = upgrade.machine.host
        self._asked = asked
        self._folder = upgrade.machine.state / "upgrade"
        self._command = CURRENT_COMMAND.get()

    async def run(self, timeout: float, progress: ProgressListener) -> Answer:
        """Returns only where there is nothing to do: otherwise the next process says how it ended.

        Raises OperationError: UNSUPPORTED (no systemd, no dpkg), BUSY (one that was begun before still goes on),
        INVALID_ARGUMENT (no such package, or another one), UNREACHABLE, TIMEOUT, NOT_APPLIED (dpkg's own words). This
        version goes on then.
        """
        upgrade, asked = self._upgrade, self._asked
        if asked.version is not None and is_version(asked.version, upgrade.version):
            return _same(upgrade.version)
        if not upgrade.systemd:
            raise OperationError(ErrorCode.UNSUPPORTED, "this host is not run by systemd, and the upgrade needs it")
        for program in ("dpkg", "dpkg-deb", "systemd-run"):
            self._host.need(program, "an upgrade of the agent")
        if await self._is_installing():
            raise OperationError(
                ErrorCode.BUSY,
                "an earlier upgrade is still being installed, from files that must stay until it has ended; nothing "
                "was begun: ask again then",
            )
        await asyncio.to_thread(self._clear)
        deadline = time.monotonic() + timeout
        files = [
            await self._fetch(package, number, deadline, progress) for number, package in enumerate(asked.packages)
        ]
        wanted = await self._check(files)
        if is_version(wanted, upgrade.version):
            return _same(upgrade.version)
        progress(f"installing version {wanted}", None)
        record = _Record(command=self._command, before=upgrade.version, wanted=wanted)
        await asyncio.to_thread(write_durably, self._folder / "record.json", msgspec.json.encode(record))
        await self._install(files, max(1.0, deadline - time.monotonic()))
        # dpkg has restarted this service by now, or does so; where it leaves that to others, it is done here.
        upgrade.restart()
        await asyncio.sleep(max(1.0, deadline - time.monotonic()))
        raise OperationError(
            ErrorCode.TIMEOUT,
            f"version {wanted} is installed, and this process of {upgrade.version} was not restarted",
        )

    async def observe(self, timeout: float) -> Ending:
        """A later process: which version it is says all."""
        record = _read(self._folder / "record.json")
        if record is None or record.command != self._command:
            return broken_off("the agent stopped before the new version was installed; asking again is safe", {})
        version = self._upgrade.version
        if is_version(record.wanted, version):
            result = DaemonUpgradeResult(before=record.before, after=version, changed=True)
            return Ending(Outcome.SUCCEEDED, result=msgspec.to_builtins(result), observed={"version": version})
        deadline = time.monotonic() + timeout
        while await self._is_installing():
            # It restarts this process once it is done.
            if time.monotonic() >= deadline:
                return outcome_unknown(f"version {record.wanted} is still being installed; this is {version}")
            await asyncio.sleep(_LOOK_SECONDS)
        said = await asyncio.to_thread(_last_words, self._folder / "log")
        code = ErrorCode.NOT_APPLIED
        return Ending(
            Outcome.FAILED,
            error=Failure(
                code.value, f"this is still version {version}, and not {record.wanted}: {said}", code.retryable
            ),
        )

    async def _is_installing(self) -> bool:
        ran = await self._host.run("systemctl", "is-active", _UNIT, timeout=_READ_SECONDS)
        return ran.out.strip() in ("active", "activating")

    def _clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        make_private_folder(self._folder)

    async def _fetch(self, package: DaemonPackage, number: int, deadline: float, progress: ProgressListener) -> Path:
        shown = shown_address(package.url)
        progress(f"fetching {shown}", None)
        target = self._folder / f"{number}.deb"
        try:
            digest = await asyncio.to_thread(_download, package.url, target, deadline)
        except ImageChangedError as error:
            raise OperationError(ErrorCode.CONFLICT, f"{shown} was replaced while it was fetched") from error
        except OSError as error:
            raise OperationError(ErrorCode.NOT_APPLIED, f"{target} cannot be written: {error.strerror}") from error
        if digest != package.sha256.lower():
            raise OperationError(
                ErrorCode.CONFLICT,
                f"{shown} has another checksum than the command says (sha256 {digest}): nothing was installed",
            )
        return target

    async def _check(self, files: list[Path]) -> str:
        """The version of packages that are ours and belong together."""
        versions = set()
        for file in files:
            ran = await self._host.run("dpkg-deb", "--field", str(file), "Package", "Version", timeout=_READ_SECONDS)
            fields = dict(line.split(": ", 1) for line in ran.out.splitlines() if ": " in line)
            if ran.code or fields.get("Package") not in _PACKAGES:
                raise OperationError(
                    ErrorCode.INVALID_ARGUMENT,
                    f"the file is no package of this agent ({fields.get('Package') or ran.words}); those are "
                    f"{', '.join(_PACKAGES)}",
                )
            versions.add(fields.get("Version", ""))
        asked = self._asked.version
        if len(versions) != 1 or (asked is not None and not is_version(asked, next(iter(versions)))):
            told = ", ".join(sorted(versions))
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT, f"the packages have the versions {told}, and {asked or 'one'} is wanted"
            )
        return versions.pop()

    async def _install(self, files: list[Path], timeout: float) -> None:
        """In a unit of its own: dpkg restarts this one, and would be ended with it."""
        log = self._folder / "log"
        words = shlex.join(["dpkg", "--force-confold", "--install", *map(str, files)])
        script = f"exec {words} >{shlex.quote(str(log))} 2>&1"
        ran = await self._host.run(
            *("systemd-run", "--unit", _UNIT, "--collect", "--wait", "--quiet", "--property=Type=oneshot"),
            *("--setenv=DEBIAN_FRONTEND=noninteractive", "/bin/sh", "-c", script),
            timeout=timeout,
        )
        if ran.code:
            said = await asyncio.to_thread(_last_words, log)
            raise OperationError(ErrorCode.NOT_APPLIED, f"dpkg did not install it: {said or ran.words}")


def is_version(wanted: str, version: str) -> bool:
    """Whether a Debian version is of this upstream version: `1.2.3-1` and `1.2.3+deb12u1` are of `1.2.3`. Pure."""
    shorter, longer = sorted((wanted, version), key=len)
    return wanted == version or (longer.startswith(shorter) and longer[len(shorter)] in "-+")


def _same(version: str) -> Answer:
    return Answer(msgspec.to_builtins(DaemonUpgradeResult(before=version, after=version, changed=False)))


def _download(url: str, target: Path, deadline: float) -> str:
    """The SHA-256 of what was fetched. Blocking."""
    source = ImageSource(url, deadline=deadline, has_checksum=True)
    digest = hashlib.sha256()
    try:
        with target.open("wb") as file, memoryview(bytearray(_PIECE)) as piece:
            while count := source.read_into(piece):
                if source.position > _LARGEST:
                    raise OperationError(
                        ErrorCode.INVALID_ARGUMENT, f"{shown_address(url)} is larger than {_LARGEST >> 20} MiB"
                    )
                digest.update(piece[:count])
                file.write(piece[:count])
    finally:
        source.close()
    return digest.hexdigest()


def _read(file: Path) -> _Record | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError):
        return None


def _last_words(log: Path) -> str:
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "dpkg left no log"
    return " / ".join(lines[-3:])[:600]
