"""The operator's commands: `nodes`, `commands`, `invoke` and the rest, over the control plane's API.

Most are made from the API's table of verbs; those that wait, follow or take an operation's arguments are written out.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem

from control_plane.api.shapes.common import PageRequest
from control_plane.api.verbs import VERBS, Verb, kebab
from protocol.errors import ErrorCode, Failure, Issue, OperationError, RackwrightError, RequestCode, RequestError
from protocol.ids import new_id
from protocol.operation_help import explanation
from protocol.operations import CONCERNS, OPERATIONS, find
from protocol.presentation import sections
from protocol.remarks import remarks
from protocol.secret import Secret
from protocol.validation import arguments_from_text, check
from rackwright.client import Client
from rackwright.doctor_command import doctor
from rackwright.event_commands import EVENT_COMMANDS
from rackwright.following import ask, follow_command
from rackwright.login import Login, connect, store_login
from rackwright.metal_commands import METAL_COMMANDS
from rackwright.paging import rows_of
from rackwright.profile_commands import PROFILE_COMMANDS
from rackwright.tables import table_of
from rackwright.terminal import show
from rackwright.time_words import in_words
from rackwright.verb_command import request_command
from rackwright.workflow_commands import WORKFLOW_COMMANDS

__all__ = ["CommandFailed", "commands"]

_tenant = click.option("--tenant", help="Whose; needed by a token that is good for every tenant.")
_json = click.option("--json", "as_json", is_flag=True, help="The whole answer, as JSON.")
_wide = click.option("--wide", is_flag=True, help="Show every column, whatever the terminal's width.")
_LONGEST_LINE = 100


def _completed_operation(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    # Loaded for completion alone: the operator's commands need no driver.
    from drivers.cli import OperationName

    return OperationName().shell_complete(ctx, param, incomplete)


def _completed_assignment(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from drivers.cli import Assignment

    return Assignment().shell_complete(ctx, param, incomplete)


class CommandFailed(RackwrightError):
    """A command ended without success, by a code that is no operation's: it expired, or was rejected."""


@click.command()
@click.argument("url")
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False), help="Holds the token; - for stdin.")
@click.option(
    "--ca", "ca_file", type=click.Path(exists=True, dir_okay=False, resolve_path=True), help="The CA to trust."
)
@click.option("--pin", help="The SHA-256 of the server's certificate, in place of a CA.")
@click.option("--allow-http", is_flag=True, help="Send the token over plain http:// to another host.")
def login(url: str, token_file: Path | None, ca_file: str | None, pin: str | None, allow_http: bool) -> None:
    """Remember the control plane at URL, and a token for it. Asks for the token unless a file holds it."""
    token = _token(token_file)
    with Client(url, Secret(token), ca_file=ca_file, pin=pin, allow_http=allow_http) as client:
        try:
            client.call("drivers", "operations", {"concern": "power"})
        except RequestError as error:
            # A token that may do little is a good one all the same.
            if error.code is not RequestCode.FORBIDDEN:
                raise
    file = store_login(Login(url, token, ca_file, pin, allow_http))
    click.echo(f"logged in to {url}; the token lies in {file}")


@click.command(no_args_is_help=True)
@click.argument("node")
@click.argument("operation", shell_complete=_completed_operation)
@click.argument("assignments", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=_completed_assignment)
@click.option("--driver", help="In place of the node's own.")
@click.option("--timeout", help="How long it may take, such as 90s.")
@click.option("--key", help="An idempotency key: the same key gives the same command.")
@click.option("--no-wait", is_flag=True, help="Show the command at once, do not wait for its end.")
@_wide
@_tenant
@_json
def invoke(
    node: str,
    operation: str,
    assignments: tuple[str, ...],
    driver: str | None,
    timeout: str | None,
    key: str | None,
    no_wait: bool,
    wide: bool,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Do one OPERATION on NODE, such as: power.setPower action=on

    Values are read by their type; lists and objects are written as JSON, or with a dotted key (image.url=...).
    `rackwright drivers operations` lists what there is; with an operation's name it explains that one.
    """
    request: dict[str, Any] = {"nodeId": node, "operation": operation, "args": _arguments(operation, assignments)}
    request |= {name: value for name, value in (("driver", driver), ("timeout", timeout), ("key", key)) if value}
    request.setdefault("key", new_id("req"))
    with connect(tenant) as client:
        command = ask(client, request)
        if not no_wait:
            command = follow_command(client, command)
        now = client.now()
    _show_command(command, now, as_json, whole=no_wait, wide=wide)


@click.command()
@click.argument("command_id", metavar="COMMAND")
@_wide
@_tenant
@_json
def watch_command(command_id: str, wide: bool, tenant: str | None, as_json: bool) -> None:
    """Wait for a command's end, and show it."""
    with connect(tenant) as client:
        command = follow_command(client, client.call("commands", "get", {"commandId": command_id}))
        now = client.now()
    _show_command(command, now, as_json, whole=True, wide=wide)


@click.command()
@click.argument("name", required=False, shell_complete=_completed_operation)
@click.option("--concern", type=click.Choice(CONCERNS), help="Only this concern's.")
@_wide
@_json
def list_operations(name: str | None, concern: str | None, wide: bool, as_json: bool) -> None:
    """List what can be done to a machine; of the concern NAME, such as raid, or explain the operation NAME.

    An operation, such as raid.applyRaid, is explained with its arguments and an example.
    """
    if name is not None and name not in CONCERNS:
        row = find(name)
        click.echo(explanation(row, "rackwright invoke NODE", min(get_terminal_size().columns, _LONGEST_LINE)))
        return
    chosen = concern or name
    with connect(None) as client:
        answer = client.call("drivers", "operations", {} if chosen is None else {"concern": chosen})
        now = client.now()
    if as_json:
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        show([table_of("drivers.operations", answer["items"], now)], wide=wide)


def _run(verb: Verb, request: dict[str, Any], presentation: dict[str, Any]) -> None:
    """Any other verb: called, and its answer shown."""
    with connect(presentation.get("tenant")) as client:
        if issubclass(verb.request, PageRequest):
            most = None if presentation["every"] else presentation["limit"]
            answer = rows_of(client, verb.group, verb.method, request, most)
        else:
            answer = client.call(verb.group, verb.method, request)
        now = client.now()
    if presentation["as_json"]:
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    if "items" in answer:
        show([table_of(verb.id, answer["items"], now)], wide=presentation.get("wide"))
        if answer.get("cursor"):
            click.echo("there may be more: --limit N or --all", err=True)
        return
    show(sections(in_words(answer, now)))


def _show_command(command: dict[str, Any], now: datetime, as_json: bool, *, whole: bool, wide: bool) -> None:
    """Its result, or all of it. Raises what it failed with."""
    if as_json:
        click.echo(json.dumps(command, indent=2, ensure_ascii=False))
    elif command["state"] == "succeeded" and not whole:
        show(sections(command["result"] or {}), wide=wide)
    elif command["error"] is None:
        facts = {name: value for name, value in command.items() if name != "result"}
        show(sections(in_words(facts, now)) + sections(command["result"] or {}, "result"), wide=wide)
    if not as_json and command["state"] == "succeeded":
        for remark in remarks(command["operation"] or "", command["args"], command["result"] or {}):
            click.echo(remark)
    if command["error"] is not None:
        failure = msgspec.convert(command["error"], Failure)
        if failure.code in ErrorCode.__members__:
            raise OperationError.from_failure(failure)
        raise CommandFailed(f"{failure.code}: {failure.message} ({command['id']})")


def _arguments(operation: str, assignments: Iterable[str]) -> dict[str, object]:
    """The operation's arguments. Raises OperationError, RequestError with every fault of them."""
    row = OPERATIONS.get(operation) or find(operation)
    arguments, issues = arguments_from_text(row.arguments, assignments)
    issues += check(row.arguments, arguments)[1]
    if issues:
        refused = RequestError.invalid(issues, f"the call of {operation}")
        more = f"`rackwright drivers operations {operation}` explains its arguments"
        raise RequestError(refused.code, f"{refused.message}; {more}", issues)
    return arguments


def _token(file: Path | None) -> str:
    if file is None:
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask on: give --token-file FILE, or - for standard input")
        text: str = click.prompt("Token", hide_input=True, err=True)
    elif str(file) == "-":
        text = sys.stdin.readline()
    else:
        try:
            text = file.read_text()
        except OSError as error:
            issue = Issue("--token-file", f"{file} cannot be read: {error.strerror}")
            raise RequestError.invalid([issue], "the command line") from error
    if not text.strip():
        raise RequestError.invalid([Issue("--token-file", "holds no token")], "the command line")
    return text.strip()


def _groups() -> dict[str, click.Group]:
    groups: dict[str, click.Group] = {}
    for verb in VERBS.values():
        if verb.id in _BY_HAND:
            continue
        name = kebab(verb.group)
        if name not in groups:
            groups[name] = click.Group(name, help=f"{_ABOUT[name]}", no_args_is_help=True)
        groups[name].add_command(request_command(verb, _run))
    groups["commands"].add_command(watch_command, "watch")
    groups["drivers"].add_command(list_operations, "operations")
    for name, command in EVENT_COMMANDS.items():
        groups.setdefault("events", click.Group("events", help=_ABOUT["events"], no_args_is_help=True)).add_command(
            command, name
        )
    for name, command in PROFILE_COMMANDS.items():
        groups["profiles"].add_command(command, name)
    for name, command in METAL_COMMANDS.items():
        groups["nodes"].add_command(command, name)
    groups["workflows"] = click.Group(
        "workflows", commands=dict(WORKFLOW_COMMANDS), help=_ABOUT["workflows"], no_args_is_help=True
    )
    return groups


_ABOUT = {
    "sites": "The places with machines.",
    "agents": "The agents that have joined.",
    "join-tokens": "Tokens with which agents join.",
    "tokens": "Who may use the API, and for what.",
    "nodes": "The machines.",
    "drivers": "What can be done to machines.",
    "commands": "What agents were asked to do, and how it ended.",
    "profiles": "What is to be done to machines, step by step.",
    "workflows": "What runs on a node, step by step.",
    "events": "What has happened.",
    "audit": "Who changed what, and who was refused.",
}

_METAL = ("commission", "deploy", "release", "rescue", "abort", "recover", "maintain")
_BY_HAND = {
    "drivers.invoke",
    "drivers.operations",
    "doctor.findings",
    "events.list",
    *(f"nodes.{method}" for method in _METAL),
}
_BY_HAND |= {verb.id for verb in VERBS.values() if verb.group == "workflows"}
"""Verbs whose commands are written out."""

commands: Mapping[str, click.Command] = {"login": login, "invoke": invoke, "doctor": doctor, **_groups()}
"""Every operator's command by its name."""
