"""`rackwright bmc`: one operation straight at a BMC, with no control plane."""

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import Coroutine, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
import msgspec
from click.shell_completion import CompletionItem

from drivers.access import (
    Access,
    access_options,
    password_from,
    seconds_of,
    target_of,
)
from drivers.invoke import Drivers, Reply
from drivers.qualification_report import faults_of, report_text, save_report
from drivers.rotation import GivenPassword, Rotation
from drivers.target import Target
from protocol.errors import Issue, OperationError
from protocol.layout import laid_out
from protocol.operation_help import argument_help, explained, explanation
from protocol.operations import CONCERNS, OPERATIONS, Operation, find
from protocol.presentation import Part, Table, printable, sections
from protocol.remarks import remarks
from protocol.validation import arguments_from_text, check

__all__ = ["Assignment", "OperationName", "bmc", "prepared"]

_LONGEST_LINE = 100

if TYPE_CHECKING:
    _TextType = click.ParamType[str]
else:
    # Older releases of click have no parameter here.
    _TextType = click.ParamType


class OperationName(_TextType):
    """`concern.operation`, completed from the table of operations."""

    name = "operation"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [
            CompletionItem(key, help=row.summary) for key, row in OPERATIONS.items() if key.startswith(incomplete)
        ]


class _ConcernOrOperation(OperationName):
    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in CONCERNS and value not in OPERATIONS:
            try:
                find(value)
            except OperationError as error:
                self.fail(error.message, param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        concerns = [CompletionItem(concern) for concern in CONCERNS if concern.startswith(incomplete)]
        return concerns + super().shell_complete(ctx, param, incomplete)


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


_json_option = click.option("--json", "as_json", is_flag=True, help="Print the exact result as JSON.")
_wide_option = click.option("--wide", is_flag=True, help="Show every column, whatever the terminal's width.")


@click.group(no_args_is_help=True)
def bmc() -> None:
    """Drive one BMC directly, with no control plane."""


@bmc.command("invoke", no_args_is_help=True)
@click.argument("operation", type=OperationName())
@click.argument("assignments", metavar="[KEY=VALUE]...", nargs=-1, type=Assignment())
@access_options
@_wide_option
@_json_option
def invoke_command(operation: str, assignments: tuple[str, ...], as_json: bool, wide: bool, **access: Any) -> None:
    """Do one OPERATION, such as: power.setPower action=on

    Values are read by their type; lists and objects are written as JSON, or with a dotted key (image.url=...).
    `rackwright bmc operations` lists what there is; with an operation's name it explains that one.
    """
    _run(operation, assignments, Access(**access), as_json, wide=wide)


@bmc.command("qualify", no_args_is_help=True)
@click.option("--save", metavar="F", help="Save the report in this file too, as JSON.")
@access_options
@_wide_option
@_json_option
def qualify_command(as_json: bool, save: str | None, wide: bool, **access: Any) -> None:
    """Report what this BMC can do, by reading only.

    Each operation is supported, unsupported or unknown, with what was read that says so. Of a Redfish service the
    report also tells whether it meets the mandatory part of OpenStack Ironic's interoperability profile.
    """
    _run("management.qualify", (), Access(**access), as_json, None if save is None else Path(save), wide=wide)


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
    new = password_from(new_password_file, issues, "--new-password-file")
    given = Access(**access)
    if given.user is None:
        issues.append(Issue("--user", "is required"))
    words = (f"user={account or given.user or ''}", f"newCredentialRef={new_password_file}")
    rotation = GivenPassword(new) if new is not None else None
    _run("config.rotatePassword", words, given, as_json, faults=issues, rotation=rotation)


@bmc.command("operations")
@click.argument("name", metavar="[NAME]", required=False, type=_ConcernOrOperation())
@_wide_option
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def operations_command(name: str | None, as_json: bool, wide: bool) -> None:
    """List the operations, all of them or those of the concern NAME, such as: raid

    Where NAME is an operation, such as raid.applyRaid, its arguments are explained, with an example.
    """
    rows = [row for row in OPERATIONS.values() if name in (None, row.concern, row.id)]
    if as_json:
        click.echo(json.dumps([_described(row) for row in rows], indent=2))
    elif name in OPERATIONS:
        width = min(shutil.get_terminal_size().columns, _LONGEST_LINE)
        click.echo(explanation(rows[0], "rackwright bmc invoke", width))
    else:
        cells = [[row.id, _usage(row), _repeat(row), row.summary] for row in rows]
        _show([Table("", ["operation", "arguments", "repeat", "does"], cells)], wide=wide)


def _run(
    operation: str,
    assignments: Iterable[str],
    access: Access,
    as_json: bool,
    save: Path | None = None,
    *,
    wide: bool = False,
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
        _show(sections(reply.result), wide=wide)
        for remark in remarks(row.id, arguments, reply.result):
            click.echo(remark)
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
    row, arguments, told = None, dict[str, object](), list[Issue]()
    try:
        row = find(operation)
    except OperationError as error:
        issues.append(Issue("OPERATION", error.message))
    else:
        arguments, found = arguments_from_text(row.arguments, assignments)
        told = found + check(row.arguments, arguments)[1]
        issues += told
    timeout = seconds_of(access.timeout, issues)
    target = target_of(access, issues)
    if issues or row is None or target is None:
        listed = "\n  - ".join(["the command line has faults:", *map(str, issues)])
        raise click.UsageError(listed + _more_on(row, told))
    return row, arguments, target, timeout


def _more_on(row: Operation | None, faults: list[Issue]) -> str:
    return f"\n`rackwright bmc operations {row.id}` explains its arguments" if row is not None and faults else ""


class _Progress:
    """One line on a terminal that tells what is going on; silent elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None

    def show(self, message: str, percent: float | None) -> None:
        if self._stream is not None:
            share = "" if percent is None else f" {percent:.0f} %"
            shown, room = f"{printable(message)}{share}", max(10, shutil.get_terminal_size().columns - 1)
            self._stream.write(f"\r\x1b[2K{shown if len(shown) <= room else shown[: room - 1] + '…'}")
            self._stream.flush()

    def clear(self) -> None:
        if self._stream is not None:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()


def _show(parts: list[Part], *, wide: bool = False) -> None:
    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_terminal and not wide else None
    click.echo(laid_out(parts, width, _bold if on_terminal else str))


def _bold(text: str) -> str:
    return click.style(text, bold=True)


def _usage(row: Operation) -> str:
    words = [f"{argument.name}={argument.kind}" for argument in argument_help(row.arguments) if argument.required]
    words += [f"[{argument.name}]" for argument in argument_help(row.arguments) if not argument.required]
    return " ".join(words)


def _repeat(row: Operation) -> str:
    once = "" if row.once_when is None else f", once: {'|'.join(sorted(row.once_when[1]))}"
    return row.repeat.value + once


def _described(row: Operation) -> dict[str, object]:
    meanings = {argument.name: argument.meaning for argument in explained(row.arguments)}
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
                "meaning": meanings[argument.name],
            }
            for argument in argument_help(row.arguments)
        ],
        "result": msgspec.json.schema(row.result),
    }
