"""`rackwright workflows`: to see, follow and steer what runs on a node."""

import json
import sys
from collections.abc import Callable, Iterator
from time import sleep
from typing import Any, NamedTuple

import click

from protocol.errors import RequestCode, RequestError
from protocol.ids import is_id
from protocol.presentation import Table, printable
from rackwright.client import Client
from rackwright.login import connect
from rackwright.terminal import show
from rackwright.workflow_view import COLUMNS, ENDED, causes, changes, headline, line_of, overview, span, window

__all__ = ["WORKFLOW_COMMANDS", "watch_to_the_end"]

_LOOK_SECONDS = 1.0
_BESIDE_THE_STEPS = 4
"""Lines of the terminal: the title, the columns' names, and where the cursor stands."""
_RECENT = 100
"""How far back a workflow is looked for that was not named."""
_STYLES = {"failed": "red", "running": "cyan", "waiting": "cyan", "succeeded": "green", "skipped": "dim"}
_STYLES |= {"pending": "dim", "cancelled": "yellow"}
_ACTIVE = ("pending", "running", "paused")

_node = click.argument("node")
_workflow = click.argument("workflow", required=False)
_tenant = click.option("--tenant", help="Whose; the node's own where it is left out.")
_json = click.option("--json", "as_json", is_flag=True, help="The whole answer, as JSON.")


class _Place(NamedTuple):
    """A node, as every request about its workflows names it."""

    tenant_id: str
    node_id: str

    def request(self, **more: Any) -> dict[str, Any]:
        return {"tenantId": self.tenant_id, "nodeId": self.node_id, **more}


@click.command("list")
@_node
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Rows at most.")
@click.option("--all", "every", is_flag=True, help="Every row.")
@_tenant
@_json
def list_workflows(node: str, limit: int, every: bool, tenant: str | None, as_json: bool) -> None:
    """List the workflows of NODE, newest first."""
    with connect(tenant) as client:
        items, cursor = _recent(client, _place(client, node, tenant), None if every else limit)
    if as_json:
        click.echo(json.dumps({"items": items, "cursor": cursor}, indent=2, ensure_ascii=False))
        return
    rows = [
        [
            item["id"],
            item["state"] + (f" ({item['ending']})" if item["ending"] else ""),
            f"{item['profileId']} v{item['profileVersion']}",
            printable(item["stepId"] or "-"),
            item["createdAt"],
            span(item["elapsedMs"]),
            item["error"]["code"] if item["error"] else "-",
        ]
        for item in items
    ]
    columns = ["id", "state", "profile", "step", "created", "took", "error"]
    show([Table("", columns, rows) if rows else Table("", ["none"], [])])
    if cursor:
        click.echo("there are more: --limit N or --all", err=True)


@click.command("get")
@_node
@_workflow
@_tenant
@_json
def get_workflow(node: str, workflow: str | None, tenant: str | None, as_json: bool) -> None:
    """Show a workflow of NODE with its steps; the active or else the latest one where none is named."""
    with connect(tenant) as client:
        place = _place(client, node, tenant)
        found = client.call("workflows", "get", place.request(workflowId=workflow or _latest(client, place)))
    _present(found, as_json)


@click.command("pause")
@_node
@_workflow
@_tenant
@_json
def pause_workflow(node: str, workflow: str | None, tenant: str | None, as_json: bool) -> None:
    """Start no more steps on NODE until it is resumed; the step under way ends."""
    _steer("pause", node, workflow, tenant, as_json, _only("pause", ("running",)))


@click.command("resume")
@_node
@_workflow
@_tenant
@_json
def resume_workflow(node: str, workflow: str | None, tenant: str | None, as_json: bool) -> None:
    """Go on with what was paused on NODE."""
    _steer("resume", node, workflow, tenant, as_json, _only("resume", ("paused",)))


@click.command("abort")
@_node
@_workflow
@click.option("--reason", help="Why; it is kept.")
@_tenant
@_json
def abort_workflow(node: str, workflow: str | None, reason: str | None, tenant: str | None, as_json: bool) -> None:
    """End a workflow of NODE: its command is stopped, and clean-up runs. The active one where none is named."""
    more = {} if reason is None else {"reason": reason}
    _steer("abort", node, workflow, tenant, as_json, _only("abort", _ACTIVE), **more)


@click.command("retry")
@_node
@_workflow
@click.option("--from-step", help="A main step; by default the first that was not done.")
@_tenant
@_json
def retry_workflow(node: str, workflow: str | None, from_step: str | None, tenant: str | None, as_json: bool) -> None:
    """Run a failed workflow of NODE again. Where several have failed, name it."""
    more = {} if from_step is None else {"fromStep": from_step}
    _steer("retry", node, workflow, tenant, as_json, _only("retry", ("failed",)), **more)


@click.command("watch")
@_node
@_workflow
@_tenant
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for each change.")
def watch_workflow(node: str, workflow: str | None, tenant: str | None, as_json: bool) -> None:
    """Follow a workflow of NODE to its end; the active or else the latest one where none is named.

    Exit code 0 when it succeeds, 1 when it fails or is cancelled.
    """
    with connect(tenant) as client:
        place = _place(client, node, tenant)
        workflow_id = workflow or _latest(client, place)
        last = watch_to_the_end(client, node, place.tenant_id, place.node_id, workflow_id, as_json)
    if last["state"] != "succeeded":
        click.get_current_context().exit(1)


def watch_to_the_end(
    client: Client, node: str, tenant_id: str, node_id: str, workflow_id: str, as_json: bool
) -> dict[str, Any]:
    """Shows a workflow's changes until it has ended, then why it did not succeed; its last look.

    `node` is what the user calls it.
    """
    looks = _looks(client, _Place(tenant_id, node_id).request(workflowId=workflow_id))
    try:
        if as_json:
            last = _follow(looks, lambda event: json.dumps(event, ensure_ascii=False))
        elif sys.stdout.isatty():
            last = _follow_table(looks)
        else:
            last = _follow(looks, line_of)
    except KeyboardInterrupt:
        click.echo(f"the workflow goes on: rackwright workflows watch {node} {workflow_id}", err=True)
        raise
    if last["state"] != "succeeded" and not as_json:
        for line in causes(last["error"]):
            click.echo(line, err=True)
    return last


WORKFLOW_COMMANDS = {
    command.name: command
    for command in (
        list_workflows,
        get_workflow,
        watch_workflow,
        abort_workflow,
        retry_workflow,
        pause_workflow,
        resume_workflow,
    )
    if command.name
}
"""By the name of the subcommand."""


def _steer(
    method: str,
    node: str,
    workflow: str | None,
    tenant: str | None,
    as_json: bool,
    choose: Callable[[Client, _Place], str],
    **more: str,
) -> None:
    with connect(tenant) as client:
        place = _place(client, node, tenant)
        workflow_id = workflow or choose(client, place)
        steered = client.call("workflows", method, place.request(workflowId=workflow_id, **more))
    if as_json:
        _present(steered, as_json)
    else:
        click.echo(headline(steered))


def _present(workflow: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(workflow, indent=2, ensure_ascii=False))
    else:
        show(overview(workflow))


def _place(client: Client, node: str, tenant: str | None) -> _Place:
    """The node by name or id. Raises RequestError."""
    if tenant is not None and is_id(node, "node"):
        return _Place(tenant, node)
    found = client.call("nodes", "get", {"nodeId": node})
    return _Place(found["tenantId"], found["id"])


def _recent(client: Client, place: _Place, most: int | None) -> tuple[list[dict[str, Any]], str | None]:
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while most is None or len(items) < most:
        size = _RECENT if most is None else min(_RECENT, most - len(items))
        more = {} if cursor is None else {"cursor": cursor}
        page = client.call("workflows", "list", place.request(limit=size, **more))
        items += page["items"]
        cursor = page["cursor"]
        if cursor is None:
            break
    return items, cursor


def _latest(client: Client, place: _Place) -> str:
    """The active one, else the newest. Raises RequestError NOT_FOUND."""
    items, _ = _recent(client, place, _RECENT)
    if not items:
        raise RequestError(RequestCode.NOT_FOUND, "no workflow has ever run on this node")
    active = next((item for item in items if item["state"] in _ACTIVE), items[0])
    return str(active["id"])


def _only(method: str, states: tuple[str, ...]) -> Callable[[Client, _Place], str]:
    """Picks the one workflow that the verb can be meant for, and says which it is."""

    def choose(client: Client, place: _Place) -> str:
        items, _ = _recent(client, place, _RECENT)
        fitting = [str(item["id"]) for item in items if item["state"] in states]
        if len(fitting) > 1:
            listed = ", ".join(fitting[:5]) + (", …" if len(fitting) > 5 else "")
            raise click.UsageError(f"there are {len(fitting)} workflows to {method}: name one of {listed}")
        if not fitting:
            raise RequestError(
                RequestCode.NOT_FOUND, f"this node has no workflow to {method}: none is {' or '.join(states)}"
            )
        click.echo(f"{method} {fitting[0]}", err=True)
        return fitting[0]

    return choose


def _looks(client: Client, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The workflow as it is, again and again until it has ended. A control plane that is away is waited for."""
    seen = away = False
    while True:
        try:
            workflow = client.call("workflows", "get", request)
        except RequestError as error:
            if not seen or error.code is not RequestCode.UNAVAILABLE:
                raise
            if not away:
                click.echo(f"{error.message}; the workflow goes on, and is looked at again", err=True)
            away = True
        else:
            seen, away = True, False
            yield workflow
            if workflow["state"] in ENDED:
                return
        sleep(_LOOK_SECONDS)


def _follow(looks: Iterator[dict[str, Any]], word: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """A line for each change; the last look."""
    before: dict[str, Any] | None = None
    for workflow in looks:
        for event in changes(before, workflow):
            click.echo(word(event))
        before = workflow
    assert before is not None
    return before


def _follow_table(looks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """A table that changes in its place; the last look."""
    from rich.console import Console
    from rich.live import Live

    last: dict[str, Any] | None = None
    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False) as live:
        for workflow in looks:
            live.update(_table(workflow, max(5, console.height - _BESIDE_THE_STEPS)), refresh=True)
            last = workflow
    assert last is not None
    return last


def _table(workflow: dict[str, Any], most: int) -> Any:
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, pad_edge=False, header_style="dim", title=headline(workflow), title_justify="left")
    for column in COLUMNS:
        shown.add_column(column, overflow="fold", no_wrap=column != "news")
    for row in window(workflow, most):
        shown.add_row(
            *(Text(cell, style=_STYLES.get(row[4], "") if index == 4 else "") for index, cell in enumerate(row))
        )
    return shown
