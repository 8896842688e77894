"""The operator's commands: `nodes`, `commands`, `invoke` and the rest, over the control plane's API.

Most are made from the API's table of verbs; those that wait, follow or take an operation's arguments are written out.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem

from control_plane.api.shapes.common import PageRequest
from control_plane.api.verbs import VERBS, Verb, kebab
from protocol.commands import TERMINAL
from protocol.errors import ErrorCode, Failure, Issue, OperationError, RackwrightError, RequestCode, RequestError
from protocol.ids import new_id
from protocol.operations import OPERATIONS, find
from protocol.presentation import Fields, Table, printable, sections
from protocol.secret import Secret
from protocol.validation import arguments_from_text, check
from rackwright.client import Client
from rackwright.doctor_command import doctor
from rackwright.login import Login, connect, store_login
from rackwright.metal_commands import METAL_COMMANDS
from rackwright.profile_commands import PROFILE_COMMANDS
from rackwright.terminal import show
from rackwright.verb_command import request_command
from rackwright.workflow_commands import WORKFLOW_COMMANDS

__all__ = ["CommandFailed", "commands"]

_PAGE = 100
_WAIT_MS = 30_000
_ENDED = {state.value for state in TERMINAL}
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "sites.list": ("name", "id", "agentId"),
    "agents.list": ("hostName", "id", "siteId", "role", "version", "connected", "revokedAt"),
    "joinTokens.list": ("id", "siteId", "role", "expiresAt", "usedAt", "usedBy"),
    "tokens.list": ("name", "id", "tenantId", "permissions", "expiresAt", "revokedAt"),
    "nodes.list": ("name", "id", "state", "power", "health", "seenAt", "siteId", "bmc", "labels"),
    "commands.list": ("id", "nodeId", "operation", "state", "createdAt", "finishedAt", "error"),
    "profiles.list": ("name", "version", "id", "description", "createdAt", "usedAt"),
    "profiles.versions": ("version", "description", "createdAt", "createdBy", "usedAt"),
    "events.list": ("seq", "at", "type", "subject", "data"),
    "audit.list": ("at", "actor", "action", "resource", "decision"),
    "drivers.matrix": ("hostName", "agentId", "siteId", "version", "drivers"),
    "drivers.operations": ("id", "repeat", "timeoutMs", "summary"),
}
_tenant = click.option("--tenant", help="Whose; needed by a token that is good for every tenant.")
_json = click.option("--json", "as_json", is_flag=True, help="The whole answer, as JSON.")


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
    tenant: str | None,
    as_json: bool,
) -> None:
    """Do one OPERATION on NODE, such as: power.setPower action=on

    Values are read by their type; lists and objects are written as JSON, or with a dotted key (image.url=...).
    `rackwright drivers operations` lists what there is.
    """
    request: dict[str, Any] = {"nodeId": node, "operation": operation, "args": _arguments(operation, assignments)}
    request |= {name: value for name, value in (("driver", driver), ("timeout", timeout), ("key", key)) if value}
    request.setdefault("key", new_id("req"))
    with connect(tenant) as client:
        command = _asked(client, request)
        if not no_wait:
            command = _waited(client, command)
    _show_command(command, as_json, whole=no_wait)


@click.command()
@click.argument("command_id", metavar="COMMAND")
@_tenant
@_json
def watch_command(command_id: str, tenant: str | None, as_json: bool) -> None:
    """Wait for a command's end, and show it."""
    with connect(tenant) as client:
        command = _waited(client, client.call("commands", "get", {"commandId": command_id}))
    _show_command(command, as_json, whole=True)


@click.command()
@click.option("--after", type=int, help="Begin behind the event of this number; 0 for the oldest. Default: now.")
@_tenant
@_json
def watch_events(after: int | None, tenant: str | None, as_json: bool) -> None:
    """Show events as they happen, until interrupted."""
    with connect(tenant) as client:
        for event in client.follow_events(after):
            if as_json:
                click.echo(json.dumps(event))
                continue
            facts = " ".join(f"{name}={_word(value)}" for name, value in event["data"].items())
            click.echo(f"{event['at']}  {event['type']:<22}  {event['subject']}  {facts}")


def _run(verb: Verb, request: dict[str, Any], presentation: dict[str, Any]) -> None:
    """Any other verb: called, and its answer shown."""
    with connect(presentation.get("tenant")) as client:
        if issubclass(verb.request, PageRequest):
            answer = _pages(client, verb, request, None if presentation["every"] else presentation["limit"])
        else:
            answer = client.call(verb.group, verb.method, request)
    if presentation["as_json"]:
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    if "items" in answer:
        show([_table(verb, answer["items"])])
        # The cursor of the events is there at their end too: it is where the next ones will follow.
        full = len(answer["items"]) == presentation.get("limit") and not presentation["every"]
        if answer.get("cursor") and (full or verb.id != "events.list"):
            click.echo("there may be more: --limit N or --all", err=True)
        return
    show(sections(answer))


def _pages(client: Client, verb: Verb, request: dict[str, Any], most: int | None) -> dict[str, Any]:
    """The rows of as many pages as it takes."""
    items: list[Any] = []
    cursor: str | None = None
    while most is None or len(items) < most:
        size = _PAGE if most is None else min(_PAGE, most - len(items))
        page = client.call(
            verb.group, verb.method, {**request, "limit": size, **({"cursor": cursor} if cursor else {})}
        )
        items += page["items"]
        cursor = page["cursor"]
        if cursor is None or not page["items"]:
            break
    return {"items": items, "cursor": cursor}


def _asked(client: Client, request: dict[str, Any]) -> dict[str, Any]:
    """The command as it was recorded, at once: whoever interrupts the waiting for its end must know its id."""
    try:
        return client.call("drivers", "invoke", {**request, "waitMs": 0})
    except (KeyboardInterrupt, RequestError) as error:
        if isinstance(error, KeyboardInterrupt) or error.code is RequestCode.UNAVAILABLE:
            click.echo(f"it may have been taken: repeated with --key {request['key']} it is the same one", err=True)
        raise


def _waited(client: Client, command: dict[str, Any]) -> dict[str, Any]:
    """The command once it has ended. An interrupt or a lost connection leaves it going on, and says so."""
    told = ""
    try:
        while command["state"] not in _ENDED:
            progress = command.get("progress") or {}
            news = f"{command['state']}: {printable(progress.get('message', ''))}" if progress else command["state"]
            if sys.stderr.isatty() and news != told:
                click.echo(news, err=True)
                told = news
            command = client.call("commands", "get", {"commandId": command["id"], "waitMs": _WAIT_MS})
    except (KeyboardInterrupt, RequestError):
        click.echo(f"the command goes on: rackwright commands watch {command['id']}", err=True)
        raise
    return command


def _show_command(command: dict[str, Any], as_json: bool, *, whole: bool) -> None:
    """Its result, or all of it. Raises what it failed with."""
    if as_json:
        click.echo(json.dumps(command, indent=2, ensure_ascii=False))
    elif command["state"] == "succeeded" and not whole:
        show(sections(command["result"] or {}))
    elif command["error"] is None:
        show(sections(command))
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
        raise RequestError.invalid(issues, f"the call of {operation}")
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


def _table(verb: Verb, items: list[dict[str, Any]]) -> Fields | Table:
    columns = _COLUMNS.get(verb.id)
    if not items:
        return Table("", ["none"], [])
    if columns is None:
        columns = tuple(items[0])
    return Table("", list(columns), [[_word(item.get(name)) for name in columns] for item in items])


def _word(value: Any) -> str:
    if value is None or value in ({}, []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        if "code" in value and "message" in value:
            return str(value["code"])
        return " ".join(
            f"{name}={len(item) if isinstance(item, list) else printable(str(item))}"
            for name, item in value.items()
            if item is not None
        )
    if isinstance(value, list):
        return " ".join(_word(item) for item in value)
    return printable(str(value))


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
    groups["events"].add_command(watch_events, "watch")
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
_BY_HAND = {"drivers.invoke", "doctor.findings", *(f"nodes.{method}" for method in _METAL)}
_BY_HAND |= {verb.id for verb in VERBS.values() if verb.group == "workflows"}
"""Verbs whose commands are written out."""

commands: Mapping[str, click.Command] = {"login": login, "invoke": invoke, "doctor": doctor, **_groups()}
"""Every operator's command by its name."""
