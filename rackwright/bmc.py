"""`rackwright bmc`: the drivers' commands, and a BMC's console on the operator's terminal, with no control plane."""

import asyncio
from pathlib import Path
from typing import Any

import click

from drivers import Drivers, Target
from drivers.access import Access, access_options
from drivers.cli import bmc, prepared
from drivers.console import ConsoleStream
from protocol.errors import ErrorCode, Issue, OperationError
from protocol.secret import Secret
from protocol.shapes.console import ConsoleKind
from rackwright.console_command import escape_option, stay_option
from rackwright.console_session import Bytes, Closed, Notice, run_console

__all__ = ["bmc", "console"]

_LONGEST_KEY = 65_536


@bmc.command("console", no_args_is_help=True)
@access_options
@click.option(
    "--key-file", metavar="F", help="ssh: log in with the private key in this file, in place of a password."
)
@click.option("--take-over", is_flag=True, help="End a session that somebody else holds.")
@click.option("--kind", type=click.Choice([kind.value for kind in ConsoleKind]), help="sol (IPMI) or ssh.")
@click.option("--command", metavar="C", help="ssh: what opens the console on a command line that is not known here.")
@escape_option
@stay_option
def console(
    key_file: str | None,
    take_over: bool,
    kind: str | None,
    command: str | None,
    escape: bytes | None,
    stay: float | None,
    **access: Any,
) -> None:
    """Be at the machine's serial console: --address ipmi://host or ssh://host.

    On a terminal: Ctrl-] . ends it, Ctrl-] b sends a break, Ctrl-] ? helps.
    """
    words = [f"takeOver={'true' if take_over else 'false'}"]
    words += [f"{name}={value}" for name, value in (("kind", kind), ("command", command)) if value is not None]
    faults: list[Issue] = []
    key = None if key_file is None else _key(key_file, access, faults)
    if key_file is not None:
        access["user"], user = None, access["user"]
    row, arguments, target, timeout = prepared("console.openConsole", words, Access(**access), faults)
    if key is not None:
        target = _with_key(target, user, key)

    async def run() -> int:
        async with Drivers() as drivers:
            result = await drivers.invoke(target, row.id, arguments, timeout=timeout)
            stream = drivers.environment.consoles.get(str(result["stream"]))
            if stream is None:
                raise OperationError(ErrorCode.UNSUPPORTED, f"{target.address} opens consoles without bytes")
            far = _Straight(stream)
            return await run_console(far, title=f"console of {target.address}", escape=escape, stay=stay)

    click.get_current_context().exit(asyncio.run(run()))


class _Straight:
    """A BMC's own stream as the far end."""

    def __init__(self, stream: ConsoleStream) -> None:
        self._stream = stream

    async def next(self) -> Notice:
        data = await self._stream.read()
        if data:
            return Bytes(data)
        ending = self._stream.ending
        message = "it ended" if ending is None else ending.message
        return Closed(OperationError(ErrorCode.INTERRUPTED, f"the console is over: {message}"))

    async def type(self, keys: bytes) -> None:
        await self._if_open(self._stream.write(keys))

    async def send_break(self) -> None:
        await self._if_open(self._stream.send_break())

    async def take_writer(self) -> None:
        """Nobody else is here."""

    async def _if_open(self, work: Any) -> None:
        try:
            await work
        except OperationError:
            # What ended it is told by `next`.
            return


def _key(file: str, access: dict[str, Any], issues: list[Issue]) -> Secret | None:
    if access["password_file"] or access["password_stdin"]:
        issues.append(Issue("--key-file", "is given beside a password: leave one of the two out"))
    if access["user"] is None:
        issues.append(Issue("--user", "is required with --key-file"))
    try:
        text = Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        issues.append(Issue("--key-file", f"{file}: {reason}"))
        return None
    if not text.startswith("-----BEGIN ") or len(text) > _LONGEST_KEY:
        issues.append(Issue("--key-file", f"{file} holds no private key in PEM"))
        return None
    return Secret(text)


def _with_key(target: Target, user: str | None, key: Secret) -> Target:
    return Target(
        address=target.address,
        driver=target.driver,
        username=user,
        password=key,
        verify=target.verify,
        allow_http=target.allow_http,
    )
