"""`rackwright bmc`: one operation straight at a BMC, with no control plane."""

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
import msgspec
from click.shell_completion import CompletionItem

from drivers.invoke import Drivers, Reply
from drivers.qualification_report import faults_of, report_text, save_report
from drivers.rotation import GivenPassword, Rotation
from drivers.target import Target
from protocol.addresses import TlsPolicy
from protocol.durations import parse_duration
from protocol.errors import Issue, OperationError
from protocol.operations import CONCERNS, DRIVERS, OPERATIONS, Operation, find
from protocol.presentation import Fields, Table, argument_help, plain, printable, sections
from protocol.secret import Secret
from protocol.validation import arguments_from_text, check

__all__ = ["CREDENTIAL_FILE_VARIABLE", "Access", "Assignment", "OperationName", "access_options", "bmc", "prepared"]

CREDENTIAL_FILE_VARIABLE = "RACKWRIGHT_BMC_PASSWORD_FILE"
_MAX_PASSWORD_LENGTH = 4096

if TYPE_CHECKING:
    _TextType = click.ParamType[str]
else:
    # Older releases of click have no parameter here.
    _TextType = click.ParamType


@dataclass(frozen=True, kw_only=True)
class Access:
    """How the BMC is reached, as the command line says it."""

    address: str | None
    driver: str
    user: str | None
    password_file: str | None
    password_stdin: bool
    verify: str | None
    insecure: bool
    allow_http: bool
    timeout: str | None


class OperationName(_TextType):
    """`concern.operation`, completed from the table of operations."""

    name = "operation"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [
            CompletionItem(key, help=row.summary) for key, row in OPERATIONS.items() if key.startswith(incomplete)
        ]


class Assignment(_TextType):
    """`key=value`, completed from the operation that was named before it."""

    name = "key=value"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        row = OPERATIONS.get(str(ctx.params.get("operation")))
        if row is None:
            return []
        key, separator, _ = incomplete.partition("=")
        offered = []
        for argument in argument_help(row.arguments):
            if separator and argument.name == key:
                offered += [CompletionItem(f"{key}={choice}") for choice in argument.choices]
            elif not separator:
                offered.append(CompletionItem(f"{argument.name}=", help=argument.kind))
        return [item for item in offered if item.value.startswith(incomplete)]


def access_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say how a BMC is reached; they make an `Access`."""
    for option in reversed(
        (
            click.option(
                "--address", metavar="URL", help="https://host, ipmi://host, simulated://name or a bare host."
            ),
            click.option(
                "--driver",
                type=click.Choice(["auto", *DRIVERS]),
                default="auto",
                show_default=True,
                help="Which protocol; auto goes by the address.",
            ),
            click.option("--user", metavar="U", help="The BMC's user name."),
            click.option(
                "--password-file",
                metavar="F",
                help=f"Read the password from this file (or from the one that {CREDENTIAL_FILE_VARIABLE} names).",
            ),
            click.option("--password-stdin", is_flag=True, help="Read the password from standard input."),
            click.option(
                "--verify", metavar="FORM", help="Trust: verify (default), ca:/path.pem, sha256:<hex> or none."
            ),
            click.option("--insecure", is_flag=True, help="Take any certificate: the same as --verify none."),
            click.option("--allow-http", is_flag=True, help="Consent to send the password in clear over http://."),
            click.option("--timeout", metavar="D", help="Such as 90s or 10m; by default what the operation needs."),
        )
    ):
        command = option(command)
    return command


_json_option = click.option("--json", "as_json", is_flag=True, help="Print the exact result as JSON.")


@click.group(no_args_is_help=True)
def bmc() -> None:
    """Drive one BMC directly, with no control plane."""


@bmc.command("invoke", no_args_is_help=True)
@click.argument("operation", type=OperationName())
@click.argument("assignments", metavar="[KEY=VALUE]...", nargs=-1, type=Assignment())
@access_options
@_json_option
def invoke_command(operation: str, assignments: tuple[str, ...], as_json: bool, **access: Any) -> None:
    """Do one OPERATION, such as: power.setPower action=on

    Values are read by their type; lists and objects are written as JSON, or with a dotted key (image.url=...).
    `rackwright bmc operations` lists what there is.
    """
    _run(operation, assignments, Access(**access), as_json)


@bmc.command("qualify", no_args_is_help=True)
@click.option("--save", metavar="F", help="Save the report in this file too, as JSON.")
@access_options
@_json_option
def qualify_command(as_json: bool, save: str | None, **access: Any) -> None:
    """Report what this BMC can do, by reading only.

    Each operation is supported, unsupported or unknown, with what was read that says so. Of a Redfish service the
    report also tells whether it meets the mandatory part of OpenStack Ironic's interoperability profile.
    """
    _run("management.qualify", (), Access(**access), as_json, None if save is None else Path(save))


@bmc.command("rotate-password")
@click.option("--new-password-file", metavar="F", required=True, help="Read the new password from this file.")
@click.option("--account", metavar="U", help="Whose password; by default that of --user.")
@access_options
@_json_option
def rotate_command(as_json: bool, new_password_file: str, account: str | None, **access: Any) -> None:
    """Change an account's password, and prove the new one by a login.

    Keep both until this command has said so: where it cannot tell, either of them may hold.
    """
    issues: list[Issue] = []
    new = _password_from(new_password_file, issues, "--new-password-file")
    given = Access(**access)
    if given.user is None:
        issues.append(Issue("--user", "is required"))
    words = (f"user={account or given.user or ''}", f"newCredentialRef={new_password_file}")
    rotation = GivenPassword(new) if new is not None else None
    _run("config.rotatePassword", words, given, as_json, faults=issues, rotation=rotation)


@bmc.command("operations")
@click.argument("concern", metavar="[CONCERN]", required=False, type=click.Choice(CONCERNS))
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def operations_command(concern: str | None, as_json: bool) -> None:
    """List the operations, all of them or those of one CONCERN."""
    rows = [row for row in OPERATIONS.values() if concern in (None, row.concern)]
    if as_json:
        click.echo(json.dumps([_described(row) for row in rows], indent=2))
        return
    cells = [[row.id, _usage(row), _repeat(row), row.summary] for row in rows]
    _show([Table("", ["operation", "arguments", "repeat", "does"], cells)])


def _run(
    operation: str,
    assignments: Iterable[str],
    access: Access,
    as_json: bool,
    save: Path | None = None,
    *,
    faults: Iterable[Issue] = (),
    rotation: Rotation | None = None,
) -> None:
    faults = [*faults, *([] if save is None else faults_of(save))]
    row, arguments, target, timeout = prepared(operation, assignments, access, faults)
    try:
        reply = asyncio.run(_interruptible(_ask(target, row, arguments, timeout, rotation)))
    except KeyboardInterrupt:
        if row.changes:
            click.echo(f"interrupted: {row.id} may have happened; read the machine's state first", err=True)
        raise
    if as_json:
        click.echo(json.dumps(reply.result, indent=2, ensure_ascii=False))
    else:
        _show(sections(reply.result))
        for name, value in reply.observed.items():
            click.echo(f"{name}: {printable(value)}", err=True)
    if save is not None:
        try:
            save_report(save, report_text(reply.result, str(target.parsed), datetime.now(UTC)))
        except OSError as error:
            raise click.ClickException(f"the report was not saved: {save}: {error.strerror}") from error


async def _interruptible(work: Coroutine[Any, Any, Reply]) -> Reply:
    """Raises KeyboardInterrupt on SIGINT, at once.

    asyncio's own handling can miss a signal that comes just before the loop goes to sleep, until it wakes for another
    reason; a handler of the loop's own wakes it.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _ask(
    target: Target,
    row: Operation,
    arguments: dict[str, object],
    timeout: float | None,
    rotation: Rotation | None = None,
) -> Reply:
    progress = _Progress(sys.stderr)
    try:
        async with Drivers() as drivers, drivers.turn(target, row.id, arguments) as turn:
            return await turn.run(arguments, timeout=timeout, progress=progress.show, rotation=rotation)
    finally:
        progress.clear()


def prepared(
    operation: str, assignments: Iterable[str], access: Access, faults: Iterable[Issue] = ()
) -> tuple[Operation, dict[str, object], Target, float | None]:
    """What the command line asks for. Raises a usage error that lists every fault of it, `faults` among them."""
    issues: list[Issue] = list(faults)
    row, arguments = None, dict[str, object]()
    try:
        row = find(operation)
    except OperationError as error:
        issues.append(Issue("OPERATION", error.message))
    else:
        arguments, found = arguments_from_text(row.arguments, assignments)
        issues += found + check(row.arguments, arguments)[1]
    timeout = _seconds(access.timeout, issues)
    verify = _trust(access, issues)
    password = _password(access, issues)
    target = None
    try:
        if access.address is None:
            issues.append(Issue("--address", "is required", "such as --address https://192.0.2.10"))
        else:
            target = Target(
                address=access.address,
                driver=access.driver,
                username=access.user,
                password=password,
                verify=verify,
                allow_http=access.allow_http,
            )
    except OperationError as error:
        issues.append(Issue("--address", error.message))
    if issues or row is None or target is None:
        raise click.UsageError("\n  - ".join(["the command line has faults:", *map(str, issues)]))
    return row, arguments, target, timeout


def _seconds(text: str | None, issues: list[Issue]) -> float | None:
    if text is None:
        return None
    try:
        seconds = parse_duration(text) / 1000
    except ValueError as error:
        issues.append(Issue("--timeout", str(error)))
        return None
    if seconds <= 0:
        issues.append(Issue("--timeout", "must be more than nothing", "such as 90s"))
        return None
    return seconds


def _trust(access: Access, issues: list[Issue]) -> bool | str:
    if access.insecure and access.verify is not None:
        issues.append(Issue("--insecure", "is given beside --verify: leave one of the two out"))
    if access.verify == "first-use":
        issues.append(
            Issue("--verify", "first-use needs an agent that remembers the certificate", "pin it with sha256:<hex>")
        )
        return True
    if access.insecure or access.verify is None:
        return not access.insecure
    try:
        TlsPolicy.parse(access.verify)
    except ValueError as error:
        issues.append(Issue("--verify", str(error)))
        return True
    return access.verify


def _password(access: Access, issues: list[Issue]) -> Secret | None:
    """From a file, from standard input, or typed in; never from the command line, which others can read."""
    file = access.password_file
    if file is None and access.user is not None and not access.password_stdin:
        file = os.environ.get(CREDENTIAL_FILE_VARIABLE)
    given = [
        name
        for name, value in (("--password-file", access.password_file), ("--password-stdin", access.password_stdin))
        if value
    ]
    if len(given) > 1:
        issues.append(Issue("--password-stdin", "is given beside --password-file: leave one of the two out"))
        return None
    if given and access.user is None:
        issues.append(Issue("--user", f"is required with {given[0]}"))
        return None
    if file is not None:
        return _password_from(file, issues)
    if access.password_stdin:
        try:
            text = sys.stdin.read(_MAX_PASSWORD_LENGTH + 1)
        except UnicodeDecodeError:
            issues.append(Issue("--password-stdin", "is not UTF-8 text"))
            return None
        return _line(text, "--password-stdin", issues)
    if access.user is None:
        return None
    if not sys.stdin.isatty():
        issues.append(
            Issue(
                "--user", "needs a password", f"give --password-file, --password-stdin or {CREDENTIAL_FILE_VARIABLE}"
            )
        )
        return None
    if issues:
        # Nobody should type a password for a command line that is refused anyway.
        return None
    return Secret(click.prompt(f"Password of {access.user}", hide_input=True, err=True))


def _password_from(file: str, issues: list[Issue], option: str = "--password-file") -> Secret | None:
    try:
        with Path(file).open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(_MAX_PASSWORD_LENGTH + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        issues.append(Issue(option, f"{file}: {reason}"))
        return None
    if stat.S_ISREG(mode) and mode & 0o077:
        click.echo(f"warning: {file} is readable by others: chmod 600 {file}", err=True)
    return _line(text, option, issues)


def _line(text: str, option: str, issues: list[Issue]) -> Secret | None:
    """One line's text; the line's end is not a part of the password."""
    password = text.removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password:
        issues.append(Issue(option, "must give the password alone, on one line"))
        return None
    if any("\ud800" <= mark <= "\udfff" for mark in password):
        # So Python keeps the bytes of standard input that are no UTF-8.
        issues.append(Issue(option, "is not UTF-8 text"))
        return None
    if len(text) > _MAX_PASSWORD_LENGTH:
        issues.append(Issue(option, f"gives more than {_MAX_PASSWORD_LENGTH} characters: is it the right file?"))
        return None
    return Secret(password)


class _Progress:
    """One line on a terminal that tells what is going on; silent elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None

    def show(self, message: str, percent: float | None) -> None:
        if self._stream is not None:
            share = "" if percent is None else f" {percent:.0f} %"
            self._stream.write(f"\r\x1b[2K{printable(message)}{share}")
            self._stream.flush()

    def clear(self) -> None:
        if self._stream is not None:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()


def _show(parts: list[Fields | Table]) -> None:
    if not sys.stdout.isatty():
        click.echo(plain(parts))
        return
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(highlight=False, markup=False, emoji=False)
    for number, part in enumerate(parts):
        if number:
            console.print()
        if part.title:
            console.print(part.title, style="bold")
        columns = part.columns if isinstance(part, Table) else ["", ""]
        shown = RichTable(box=None, show_header=isinstance(part, Table), pad_edge=False, header_style="dim")
        for column in columns:
            shown.add_column(column, overflow="fold")
        for cells in part.rows:
            shown.add_row(*cells)
        console.print(shown)


def _usage(row: Operation) -> str:
    words = [f"{argument.name}={argument.kind}" for argument in argument_help(row.arguments) if argument.required]
    words += [f"[{argument.name}]" for argument in argument_help(row.arguments) if not argument.required]
    return " ".join(words)


def _repeat(row: Operation) -> str:
    once = "" if row.once_when is None else f", once: {'|'.join(sorted(row.once_when[1]))}"
    return row.repeat.value + once


def _described(row: Operation) -> dict[str, object]:
    return {
        "operation": row.id,
        "concern": row.concern.value,
        "summary": row.summary,
        "repeat": row.repeat.value,
        "onceWhen": {row.once_when[0]: sorted(row.once_when[1])} if row.once_when else None,
        "timeoutSeconds": row.timeout,
        "arguments": [
            {
                "name": argument.name,
                "kind": argument.kind,
                "choices": argument.choices,
                "required": argument.required,
                "default": argument.default,
            }
            for argument in argument_help(row.arguments)
        ],
        "result": msgspec.json.schema(row.result),
    }
