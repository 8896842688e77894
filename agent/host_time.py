"""The time servers of the program that keeps the clock here: chrony, or systemd's own."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agent.files import write_durably
from agent.host_services import is_active
from drivers.linux.host import Host
from protocol.errors import ErrorCode, OperationError

__all__ = ["set_time_servers", "with_servers"]

_SECONDS = 60.0
_BEGIN, _END = "# begin: kept by rackwright", "# end: kept by rackwright"


class _Program(NamedTuple):
    """`settings`: the file that shows that it is installed. `ours`: the one with our servers, which may be the same.
    `inside`: our lines stand between marks in a file that has others."""

    unit: str
    settings: str
    ours: str
    inside: bool


_PROGRAMS = (
    # Debian's chrony reads every *.sources of that folder (chrony.conf(5), sourcedir); RHEL's has one file only.
    _Program("chrony.service", "etc/chrony/chrony.conf", "etc/chrony/sources.d/rackwright.sources", False),
    _Program("chronyd.service", "etc/chrony.conf", "etc/chrony.conf", True),
    _Program(
        "systemd-timesyncd.service",
        "usr/lib/systemd/systemd-timesyncd",
        "etc/systemd/timesyncd.conf.d/50-rackwright.conf",
        False,
    ),
)


async def set_time_servers(host: Host, root: Path, servers: Sequence[str]) -> bool:
    """Whether anything was changed. Raises OperationError: UNSUPPORTED where nothing keeps the clock, NOT_APPLIED
    where it does not run afterwards; or OSError."""
    program = next((one for one in _PROGRAMS if (root / one.settings).exists()), None)
    if program is None:
        raise OperationError(
            ErrorCode.UNSUPPORTED,
            "neither chrony nor systemd-timesyncd is installed on this host: add one to its image",
        )
    file = root / program.ours
    before = await asyncio.to_thread(_read, file)
    wanted = with_servers(before, servers, program)
    if wanted != before:
        await asyncio.to_thread(file.parent.mkdir, 0o755, parents=True, exist_ok=True)
        await asyncio.to_thread(write_durably, file, wanted.encode(), 0o644)
    running = await is_active(host, program.unit)
    if wanted == before and running:
        return False
    ran = await host.run("systemctl", "restart", program.unit, timeout=_SECONDS)
    if ran.code or not await is_active(host, program.unit):
        raise OperationError(ErrorCode.NOT_APPLIED, f"{program.unit} does not run with these servers: {ran.words}")
    return True


def with_servers(text: str, servers: Sequence[str], program: _Program) -> str:
    """With these servers. Pure. Raises OperationError CONFLICT where nobody can tell which lines are ours."""
    if program.unit == "systemd-timesyncd.service":
        return f"{_BEGIN}\n[Time]\nNTP={' '.join(servers)}\n{_END}\n"
    lines = [_BEGIN, *(f"server {server} iburst" for server in servers), _END]
    if not program.inside:
        return "".join(f"{line}\n" for line in lines)
    kept: list[str] = []
    ours = False
    marks = [line for line in text.splitlines() if line in (_BEGIN, _END)]
    if marks != [_BEGIN, _END] * (len(marks) // 2):
        raise OperationError(
            ErrorCode.CONFLICT,
            f"the lines {_BEGIN!r} and {_END!r} of /{program.ours} are not in pairs any more: mend them by hand",
        )
    for line in text.splitlines():
        if line in (_BEGIN, _END):
            ours = line == _BEGIN
        elif not ours:
            # The distribution's own sources would be asked beside ours.
            kept.append(f"# {line}" if line.split()[:1] in (["server"], ["pool"]) else line)
    return "".join(f"{line}\n" for line in [*kept, *lines])


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
