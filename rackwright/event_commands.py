"""`rackwright events list | watch`."""

import json
from typing import Any

import click

from protocol.presentation import printable
from rackwright.client import Client
from rackwright.login import connect
from rackwright.paging import rows_of
from rackwright.tables import facts_of, table_of
from rackwright.terminal import show

__all__ = ["EVENT_COMMANDS"]

_node = click.option("--node", help="Only what is about this machine, by name or id.")
_kind = click.option("--kind", help="Only of this type, such as node.power, or this beginning, such as command.")
_tenant = click.option("--tenant", help="Whose; of all where the token is good for all and this is left out.")


@click.command("list")
@_node
@_kind
@click.option("--since", metavar="D", help="Only those of the last 90s, 15m, 2h or 3d.")
@click.option("--oldest-first", is_flag=True, help="In the order in which they happened.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Rows at most.")
@click.option("--all", "every", is_flag=True, help="Every row.")
@click.option("--wide", is_flag=True, help="Show every column, whatever the terminal's width.")
@_tenant
@click.option("--json", "as_json", is_flag=True, help="The whole answer, as JSON.")
def list_events(
    node: str | None,
    kind: str | None,
    since: str | None,
    oldest_first: bool,
    limit: int,
    every: bool,
    wide: bool,
    tenant: str | None,
    as_json: bool,
) -> None:
    """List the events, newest first."""
    wanted = {"nodeId": node, "kind": kind, "since": since}
    request = {name: value for name, value in wanted.items() if value is not None}
    request["order"] = "oldest" if oldest_first else "newest"
    with connect(tenant) as client:
        answer = rows_of(client, "events", "list", request, None if every else limit)
        now = client.now()
    if as_json:
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    show([table_of("events.list", answer["items"], now)], wide=wide)
    if answer["cursor"] and len(answer["items"]) == limit and not every:
        click.echo("there may be more: --limit N or --all", err=True)


@click.command("watch")
@_node
@_kind
@click.option("--after", type=int, help="Begin behind the event of this number; 0 for the oldest. Default: now.")
@_tenant
@click.option("--json", "as_json", is_flag=True, help="The whole answer, as JSON.")
def watch_events(node: str | None, kind: str | None, after: int | None, tenant: str | None, as_json: bool) -> None:
    """Show events as they happen, until interrupted."""
    with connect(tenant) as client:
        node_id = None if node is None else _id_of(client, node)
        for event in client.follow_events(after):
            if not _fits(event, node_id, kind):
                continue
            if as_json:
                click.echo(json.dumps(event))
                continue
            click.echo(f"{event['at']}  {event['type']:<22}  {printable(event['subject'])}  {facts_of(event)}")


def _id_of(client: Client, node: str) -> str:
    return str(client.call("nodes", "get", {"nodeId": node})["id"])


def _fits(event: dict[str, Any], node_id: str | None, kind: str | None) -> bool:
    of_node = node_id is None or node_id in (event["data"].get("nodeId"), event["subject"].removeprefix("node/"))
    return of_node and (kind is None or event["type"] == kind or event["type"].startswith(f"{kind}."))


EVENT_COMMANDS = {"list": list_events, "watch": watch_events}
"""By the name of the subcommand."""
