"""Fields and tables on the terminal: laid out for people, plain for pipes."""

import sys

import click

from protocol.presentation import Fields, Table, plain

__all__ = ["show"]


def show(parts: list[Fields | Table]) -> None:
    if not sys.stdout.isatty():
        click.echo(plain(parts))
        return
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(highlight=False, markup=False, emoji=False)
    for part in parts:
        if part.title:
            console.print(part.title, style="bold")
        columns = part.columns if isinstance(part, Table) else ["", ""]
        shown = RichTable(box=None, show_header=isinstance(part, Table), pad_edge=False, header_style="dim")
        for column in columns:
            shown.add_column(column, overflow="fold")
        for cells in part.rows:
            shown.add_row(*cells)
        console.print(shown)
