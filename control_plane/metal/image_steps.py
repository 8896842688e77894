"""The steps that bring what an operator has asked for onto the machine's disk: the image, and the configuration."""

import json
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from control_plane.engine.context import DriverError, StepContext, StepFailed
from control_plane.engine.states import RunsOn
from control_plane.metal.machine import Machine
from control_plane.store import Transaction
from protocol.commands import CommandKind
from protocol.errors import ErrorCode
from protocol.shapes.deploy import Image, RootDeviceHints

__all__ = ["ConfigDrive", "WriteImage", "config_drive", "daemon_ticket_wanted", "write_image"]

_OFFER_MS = 60_000
"""How long the site's agent may take to say under which address it has an image."""


class WriteImage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What is written where the deploy itself does not say it."""

    image: Image | None = None
    root_device: RootDeviceHints | None = None
    grow_root: bool = True
    via_site: bool = True
    """Through the site's cache, so that the origin gives it once for all machines of a site."""


class ConfigDrive(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What is written where the deploy itself does not say it (NoCloud)."""

    user_data: str | None = None
    meta_data: str | None = None
    """Null names the instance by the workflow, and its host by the node."""
    network_data: str | None = None
    daemon: bool = False
    """The installed system's agent finds its ticket on the drive, and joins with it."""


async def write_image(context: StepContext, arguments: WriteImage) -> dict[str, object]:
    """Writes the image that was asked for, else the profile's, to the machine's disk."""
    machine = await Machine.of(context)
    image = machine.seen.asked.image or arguments.image
    if image is None:
        raise StepFailed("no image was asked for, and the profile names none", code="INVALID_INPUT")
    root_device = machine.seen.asked.root_device or arguments.root_device
    address, notes = await _address(machine, image) if arguments.via_site else (image.url, [])
    args: dict[str, object] = {
        "image": _json(msgspec.structs.replace(image, url=address, format=image.format)),
        "growRoot": arguments.grow_root,
    }
    if root_device is not None:
        args["rootDevice"] = _json(root_device)
    try:
        result = await machine.ramdisk("deploy.writeImage", args, key="write")
    except DriverError as error:
        # Why it did not come through the site is part of why it did not come.
        raise DriverError("; ".join([error.message, *notes]), error.cause) from None
    told = result.get("notes")
    return {**result, "notes": [*(told if isinstance(told, list) else []), *notes]}


async def config_drive(context: StepContext, arguments: ConfigDrive) -> dict[str, object]:
    """Writes the configuration drive, with the ticket of the installed system's agent where that is wanted."""
    machine = await Machine.of(context)
    asked = machine.seen.asked
    args: dict[str, object] = {
        "userData": asked.user_data if asked.user_data is not None else arguments.user_data,
        "metaData": asked.meta_data or arguments.meta_data or _meta_data(machine),
        "networkData": asked.network_data if asked.network_data is not None else arguments.network_data,
        "daemon": arguments.daemon,
    }
    given = {name: value for name, value in args.items() if value not in (None, False)}
    return await machine.ramdisk("deploy.writeConfigDrive", given, key="write")


def daemon_ticket_wanted(tx: Transaction, node_id: str) -> bool:
    """Whether a step that is under way wants a daemon's ticket on the configuration drive: only then is one made."""
    row = tx.one(
        """
        SELECT plans.spec FROM workflows
            JOIN workflow_steps AS steps ON steps.workflow_id = workflows.id AND steps.seq = workflows.step_seq
            JOIN step_plans AS plans ON plans.workflow_id = workflows.id AND plans.seq = workflows.step_seq
        WHERE workflows.node_id = :node AND workflows.state IN ('pending', 'running', 'paused')
            AND plans.action IN ('metal.configDrive', 'deploy.writeConfigDrive')
            AND steps.state IN ('running', 'waiting')
        """,
        {"node": node_id},
    )
    return row is not None and msgspec.json.decode(row[0], type=_Spec).with_.get("daemon") is True


async def _address(machine: Machine, image: Image) -> tuple[str, list[str]]:
    """Where the ramdisk is to fetch the image, and what to note of it.

    A site that has no cache, or no way to the origin, is no failure: the machine may have one. What is wrong with the
    image itself is one: the machine would only find the same, and each of the site's machines would.
    """
    payload: dict[str, object] = {
        "url": image.url,
        "sha256": image.sha256,
        "sha512": image.sha512,
        "name": _name(image),
    }
    try:
        offered = await machine.command(
            CommandKind.SITE_OFFER_IMAGE, payload, RunsOn.SITE, key="offer", timeout_ms=_OFFER_MS
        )
    except DriverError as error:
        if error.cause == ErrorCode.INVALID_ARGUMENT:
            raise
        return image.url, [f"straight from its origin, not through the site: {error.message}"]
    address = offered.get("url")
    return (address, []) if isinstance(address, str) and address else (image.url, [])


def _name(image: Image) -> str:
    """The file's name: its ending tells the format."""
    name = urlsplit(image.url).path.rpartition("/")[2] or "image"
    return name if image.format is None or name.endswith(f".{image.format}") else f"{name}.{image.format}"


def _meta_data(machine: Machine) -> str:
    """Another instance with each deploy, so that cloud-init runs anew. JSON is YAML too."""
    values = {"instance-id": machine.context.workflow_id, "local-hostname": machine.seen.name}
    return json.dumps(values) + "\n"


def _json(value: msgspec.Struct) -> Mapping[str, object]:
    """As JSON values, without what is not said."""
    values: dict[str, object] = msgspec.to_builtins(value)
    return {name: item for name, item in values.items() if item is not None}


class _Spec(msgspec.Struct):
    with_: dict[str, object] = msgspec.field(default_factory=dict, name="with")
