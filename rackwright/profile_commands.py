"""`rackwright profiles`: the commands that take a file, or show one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from protocol.durations import format_duration
from protocol.errors import Issue, RequestError
from protocol.presentation import Table, printable
from rackwright.login import connect
from rackwright.terminal import show

__all__ = ["PROFILE_COMMANDS"]

_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
_profile = click.argument("profile")
_tenant = click.option("--tenant", help="Whose; needed by a token that is good for every tenant.")
_json = click.option("--json", "as_json", is_flag=True, help="The whole answer, as JSON.")


@click.command()
@_file
@_tenant
@_json
def create(file: Path, tenant: str | None, as_json: bool) -> None:
    """Store the profile in FILE (YAML or JSON; - for stdin), as a new version of its name.

    The same document again makes no new version.
    """
    document = _document(file)
    with connect(tenant) as client:
        made = client.call("profiles", "create", {"document": document})
    if as_json:
        _show_json(made)
        return
    said = "" if made["changed"] else ": it says the same, so nothing was stored"
    click.echo(f"{made['name']} version {made['version']} ({made['id']}){said}")


@click.command()
@_file
@click.option("--offline", is_flag=True, help="By the steps of this installation; asks no control plane.")
@_json
def validate(file: Path, offline: bool, as_json: bool) -> None:
    """List every fault of the profile in FILE (YAML or JSON; - for stdin), or the steps that it makes."""
    document = _document(file)
    if offline:
        answer = _validated_here(document)
    else:
        with connect(None) as client:
            answer = client.call("profiles", "validate", {"document": document})
    if as_json:
        _show_json(answer)
    if not answer["valid"]:
        from rackwright.profiles import file_name

        raise RequestError.invalid(msgspec.convert(answer["issues"], list[Issue]), file_name(file))
    if not as_json:
        show([_plan(answer["steps"])])


@click.command()
@_profile
@click.option("--version", type=click.IntRange(1), help="The latest by default.")
@_tenant
@_json
def get(profile: str, version: int | None, tenant: str | None, as_json: bool) -> None:
    """Show a profile as YAML, to be kept in a file, changed and created anew."""
    request: dict[str, Any] = {"profileId": profile} | ({} if version is None else {"version": version})
    with connect(tenant) as client:
        found = client.call("profiles", "get", request)
    if as_json:
        _show_json(found)
        return
    from rackwright.profiles import profile_to_yaml

    used = f"used since {found['usedAt']}" if found["usedAt"] else "not used yet"
    click.echo(f"# version {found['version']} of {found['createdAt']} by {printable(found['createdBy'])}, {used}")
    click.echo(profile_to_yaml(found["document"]), nl=False)


@click.command()
@_profile
@click.argument("before", type=click.IntRange(1))
@click.argument("after", type=click.IntRange(1))
@_tenant
@_json
def diff(profile: str, before: int, after: int, tenant: str | None, as_json: bool) -> None:
    """Show what differs between the versions BEFORE and AFTER. Steps are named by their id."""
    with connect(tenant) as client:
        answer = client.call("profiles", "diff", {"profileId": profile, "before": before, "after": after})
    if as_json:
        _show_json(answer)
    elif not answer["changes"]:
        click.echo("they say the same")
    else:
        rows = [
            [printable(change["path"]), change["kind"], _value(change["before"]), _value(change["after"])]
            for change in answer["changes"]
        ]
        show([Table("", ["path", "", "before", "after"], rows)])


@click.command()
def schema() -> None:
    """Print the JSON Schema of a profile, for editors.

    \b
    In a profile's first line:
    # yaml-language-server: $schema=./profile.schema.json
    """
    from control_plane.engine.profile_schema import profile_schema
    from control_plane.engine.registry import default_registry

    _show_json(profile_schema(default_registry()))


PROFILE_COMMANDS: Mapping[str, click.Command] = {
    "create": create,
    "validate": validate,
    "get": get,
    "diff": diff,
    "schema": schema,
}
"""They stand beside those that are made from the API's table, or in their place."""


def _document(file: Path) -> dict[str, Any]:
    """What the file holds. Raises RequestError with every fault of its text."""
    from rackwright.profiles import file_name, profile_from_file

    document = profile_from_file(file)
    if not isinstance(document, dict):
        raise RequestError.invalid(
            [Issue("", "a profile is an object with the fields profile and steps")], file_name(file)
        )
    return document


def _validated_here(document: dict[str, Any]) -> dict[str, Any]:
    from control_plane.api.profile_validation import validation
    from control_plane.engine.expansion import expand
    from control_plane.engine.registry import default_registry
    from control_plane.engine.timing import Timing

    answer: dict[str, Any] = msgspec.to_builtins(validation(expand(document, default_registry(), Timing())))
    return answer


def _plan(steps: list[dict[str, Any]]) -> Table:
    rows = [
        [
            printable(step["id"]),
            step["phase"],
            printable(step["action"]),
            step["runsOn"] + (f" ({step['driver']})" if step["driver"] else ""),
            format_duration(step["timeoutMs"]),
            str(step["retries"]),
            "rejoin" if step["awaitRejoin"] else "-",
            printable(step["when"] or "-"),
        ]
        for step in steps
    ]
    return Table("", ["id", "phase", "action", "on", "timeout", "retries", "await", "when"], rows)


def _value(value: object) -> str:
    return "-" if value is None else printable(json.dumps(value, ensure_ascii=False))


def _show_json(answer: object) -> None:
    click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
