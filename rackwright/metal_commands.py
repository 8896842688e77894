"""`rackwright nodes commission | deploy | release | rescue | abort | recover | maintain`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from protocol.errors import Issue, RequestError
from protocol.presentation import printable
from protocol.shapes.deploy import ImageFormat, RootDeviceHints
from protocol.validation import arguments_from_text
from rackwright.client import Client
from rackwright.login import connect
from rackwright.workflow_commands import watch_to_the_end

__all__ = ["METAL_COMMANDS"]

Json = dict[str, Any]
_FORMATS = [member.value for member in ImageFormat]
_LARGEST_FILE = 256 * 1024

_node = click.argument("node")
_tenant = click.option("--tenant", help="Whose; needed by a token that is good for every tenant.")
_json = click.option("--json", "as_json", is_flag=True, help="The whole answer, as JSON.")


def _starting(command: Callable[..., None]) -> Callable[..., None]:
    """The options that all verbs have which start a workflow."""
    for option in (
        _json,
        _tenant,
        click.option("--watch", is_flag=True, help="Follow the workflow to its end; exit code 1 when it fails."),
        click.option("--version", type=click.IntRange(1), help="Of the profile; the latest where it is left out."),
        click.option("--profile", help="In place of the one that the node, or the settings, bind to this verb."),
    ):
        command = option(command)
    return command


@click.command("commission")
@_node
@_starting
def commission(node: str, **options: Any) -> None:
    """Inspect NODE, and make it ready for a system. Its disks are erased as the profile says."""
    _start("commission", node, {}, **options)


@click.command("deploy")
@_node
@click.option("--image", metavar="URL", help="What is written; the profile's own where it is left out.")
@click.option("--sha256", help="The image's checksum, as its maker publishes it.")
@click.option("--sha512", help="In place of the other one.")
@click.option("--format", "image_format", type=click.Choice(_FORMATS), help="By the address's ending otherwise.")
@click.option(
    "--root-device", multiple=True, metavar="KEY=VALUE", help="Which disk, such as smallest=true; repeatable."
)
@click.option("--user-data", type=click.Path(path_type=Path, dir_okay=False), help="A file for cloud-init.")
@click.option("--meta-data", type=click.Path(path_type=Path, dir_okay=False), help="A file for cloud-init.")
@click.option("--network-data", type=click.Path(path_type=Path, dir_okay=False), help="A file for cloud-init.")
@_starting
def deploy(
    node: str,
    image: str | None,
    sha256: str | None,
    sha512: str | None,
    image_format: str | None,
    root_device: tuple[str, ...],
    user_data: Path | None,
    meta_data: Path | None,
    network_data: Path | None,
    **options: Any,
) -> None:
    """Put a system onto NODE, and bring it into service."""
    described = {"sha256": sha256, "sha512": sha512, "format": image_format}
    given = {name: value for name, value in described.items() if value is not None}
    if image is None and given:
        raise click.UsageError(f"--image is missing, which {' and '.join(given)} would be about")
    request: Json = {} if image is None else {"image": {"url": image, **given}}
    if root_device:
        request["rootDevice"] = _hints(root_device)
    files = {"userData": user_data, "metaData": meta_data, "networkData": network_data}
    request |= {name: _text(name, file) for name, file in files.items() if file is not None}
    _start("deploy", node, request, **options)


@click.command("release")
@_node
@_starting
def release(node: str, **options: Any) -> None:
    """Take NODE out of service, and erase it."""
    _start("release", node, {}, **options)


@click.command("rescue")
@_node
@_starting
def rescue(node: str, **options: Any) -> None:
    """Start the ramdisk on NODE, for whoever looks into it."""
    _start("rescue", node, {}, **options)


@click.command("abort")
@_node
@click.option("--reason", help="Why; it is kept.")
@_tenant
@_json
def abort(node: str, reason: str | None, tenant: str | None, as_json: bool) -> None:
    """End what moves NODE. It cleans up, and the node has failed then; it is as before if nothing was begun."""
    _call("abort", node, {} if reason is None else {"reason": reason}, tenant, as_json)


@click.command("recover")
@_node
@click.option("--as-it-is", is_flag=True, help="It is in service again: my word for it, where no agent shows it.")
@click.option("--watch", is_flag=True, help="Where the machine is started, follow that to its end.")
@_tenant
@_json
def recover(node: str, as_it_is: bool, watch: bool, tenant: str | None, as_json: bool) -> None:
    """Take NODE, failed or in rescue, back to where it stands by what can be seen of it.

    One that was in service and was left in its ramdisk is started from its own disk, by the profile `recover`.
    """
    with connect(tenant) as client:
        answer = _answer(client, "recover", node, {"asItIs": True} if as_it_is else {})
        if answer["state"] == "recovering":
            _follow(client, node, answer, watch, as_json)
        else:
            _show(answer, as_json)


@click.command("maintain")
@_node
@click.argument("switch", metavar="on|off", type=click.Choice(["on", "off"]))
@click.option("--reason", help="Why; it is shown with the node.")
@_tenant
@_json
def maintain(node: str, switch: str, reason: str | None, tenant: str | None, as_json: bool) -> None:
    """Keep everything off NODE, or let it on again."""
    request = {"maintenance": switch, **({} if reason is None else {"reason": reason})}
    _call("maintain", node, request, tenant, as_json)


METAL_COMMANDS = {
    command.name: command
    for command in (commission, deploy, release, rescue, abort, recover, maintain)
    if command.name
}
"""By the name of the subcommand."""


def _start(
    method: str,
    node: str,
    request: Json,
    *,
    profile: str | None,
    version: int | None,
    watch: bool,
    tenant: str | None,
    as_json: bool,
) -> None:
    chosen = {name: value for name, value in (("profile", profile), ("version", version)) if value is not None}
    with connect(tenant) as client:
        _follow(client, node, _answer(client, method, node, {**request, **chosen}), watch, as_json)


def _follow(client: Client, node: str, started: Json, watch: bool, as_json: bool) -> None:
    """To the workflow's end, where that is wanted."""
    workflow_id = started["provision"]["workflowId"]
    if not watch:
        _show(started, as_json)
        if not as_json:
            click.echo(f"follow it: rackwright workflows watch {node} {workflow_id}", err=True)
        return
    if not as_json:
        click.echo(_line(started), err=True)
    last = watch_to_the_end(client, node, started["tenantId"], started["id"], workflow_id, as_json)
    if last["state"] != "succeeded":
        if not as_json:
            click.echo(f"rackwright nodes get {node} shows how it stands", err=True)
        click.get_current_context().exit(1)


def _call(method: str, node: str, request: Json, tenant: str | None, as_json: bool) -> None:
    with connect(tenant) as client:
        _show(_answer(client, method, node, request), as_json)


def _answer(client: Client, method: str, node: str, request: Json) -> Json:
    return client.call("nodes", method, {"nodeId": node, **request})


def _show(node: Json, as_json: bool) -> None:
    click.echo(json.dumps(node, indent=2, ensure_ascii=False) if as_json else _line(node))


def _line(node: Json) -> str:
    """`n1: deploying, by wf_…`"""
    provision = node["provision"]
    told = [f"{node['name']}: {provision['state']}"]
    if provision["state"].endswith("ing"):
        told.append(f"by {provision['workflowId']}" + (" (being aborted)" if provision["aborting"] else ""))
    if provision["behindMaintenance"]:
        told.append(f"in place of {provision['behindMaintenance']}")
    if provision["maintenanceReason"]:
        told.append(printable(provision["maintenanceReason"]))
    if provision["error"]:
        told.append(printable(provision["error"]["message"]))
    return ", ".join(told)


def _hints(words: tuple[str, ...]) -> Json:
    """Raises RequestError with every fault."""
    hints, issues = arguments_from_text(RootDeviceHints, words)
    if issues:
        raise RequestError.invalid(issues, "--root-device")
    return dict(hints)


def _text(name: str, file: Path) -> str:
    """Raises RequestError."""
    option = {"userData": "--user-data", "metaData": "--meta-data", "networkData": "--network-data"}[name]
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise RequestError.invalid([Issue(option, f"{file} is larger than {_LARGEST_FILE} bytes")])
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RequestError.invalid([Issue(option, f"{file} is not UTF-8 text")]) from error
    except OSError as error:
        raise RequestError.invalid([Issue(option, f"{file} cannot be read: {error.strerror}")]) from error
