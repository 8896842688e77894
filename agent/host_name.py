"""The host's name: the kernel's, and the one that it starts with."""

import asyncio
import socket
from pathlib import Path

from agent.files import write_durably
from drivers.linux.host import Host
from protocol.errors import ErrorCode, OperationError

__all__ = ["set_host_name", "with_host_name"]

_SECONDS = 30.0
_OWN_ADDRESS = "127.0.1.1"
"""What Debian's installer gives to the host's own name (Debian Policy has no word on it; hosts(5) shows it)."""


async def set_host_name(host: Host, root: Path, name: str) -> bool:
    """Whether anything was changed. Raises OperationError NOT_APPLIED, or OSError."""
    file, table = root / "etc" / "hostname", root / "etc" / "hosts"
    before = await asyncio.to_thread(_read, file)
    hosts = await asyncio.to_thread(_read, table)
    changed = False
    if before.strip() != name:
        await asyncio.to_thread(write_durably, file, f"{name}\n".encode(), 0o644)
        changed = True
    wanted = with_host_name(hosts, name, before.strip())
    if wanted != hosts:
        await asyncio.to_thread(write_durably, table, wanted.encode(), 0o644)
        changed = True
    if _current(host) != name:
        ran = await host.run("hostname", name, timeout=_SECONDS)
        if ran.code or _current(host) != name:
            raise OperationError(ErrorCode.NOT_APPLIED, f"the kernel kept the name {_current(host)!r}: {ran.words}")
        changed = True
    return changed


def with_host_name(table: str, name: str, before: str) -> str:
    """`/etc/hosts` with this host's own line for the name; other lines stay as they are. Pure."""
    short = name.partition(".")[0]
    line = f"{_OWN_ADDRESS}\t{name}" + (f" {short}" if short != name else "")
    lines = table.splitlines()
    own = [index for index, text in enumerate(lines) if text.split()[:1] == [_OWN_ADDRESS]]
    if not own:
        known = {word for text in lines for word in text.partition("#")[0].split()[1:]}
        return table if name in known else "\n".join([*lines, line]) + "\n"
    words = lines[own[0]].split()[1:]
    if words[:1] == [name] and short in words:
        return table
    aliases = [word for word in words if word not in (before, before.partition(".")[0], name, short)]
    lines[own[0]] = line + "".join(f" {alias}" for alias in aliases)
    return "\n".join(lines) + "\n"


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def _current(host: Host) -> str:
    try:
        return (host.proc / "sys" / "kernel" / "hostname").read_text().strip()
    except OSError:
        return socket.gethostname()
