"""What the demo shows: a live table on a terminal, plain lines elsewhere, and the summary at the end."""

import contextlib
import time
from collections.abc import Iterator, Sequence

from bmc import Bmc
from exercise import Outcome, Row, Step, Task
from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from protocol.layout import laid_out
from protocol.presentation import Table, printable

__all__ = ["LiveScreen", "Screen"]

_STYLES = {Outcome.OK: "green", Outcome.WRONG: "bold red", Outcome.NOT_IN_PROTOCOL: "dim"}
_LONGEST_CELL = 60
_COLUMNS = ("machine", "BMC", "operation", "asked", "what the BMC says", "seconds", "ok")


class Screen:
    """Plain lines, as they happen."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._began

    def phase(self, text: str) -> None:
        self._say(f"\n[{self.seconds:4.1f} s] {text}", "bold")

    def note(self, text: str) -> None:
        self._say(f"  {text}")

    def command(self, text: str) -> None:
        """A command as a user would type it."""
        self._say(f"  $ {text}", "dim")

    def failure(self, text: str) -> None:
        self._say(f"\nfailed: {text}", "bold red")

    def begins(self, bmc: Bmc, step: Step) -> None:
        """A step that is under way; lines tell only of its end."""

    def ended(self, row: Row) -> None:
        cells = zip(_cells(row), _WIDTHS, strict=True)
        self._say("  " + "  ".join(f"{cell:<{width}}" for cell, width in cells).rstrip())

    @contextlib.contextmanager
    def driving(self, bmcs: Sequence[Bmc]) -> Iterator[None]:
        """While the machines are driven."""
        yield

    def summary(self, rows: Sequence[Row]) -> None:
        self._say("\n" + laid_out([Table("", list(_COLUMNS), [_cells(row) for row in rows])]))

    def _say(self, text: str, style: str = "") -> None:
        print(text, flush=True)


_WIDTHS = (7, 34, 25, 27, 25, 7, 5)


class LiveScreen(Screen):
    """Colours, and one table that changes: a row for each machine, a column for each task."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        self._bmcs: Sequence[Bmc] = ()
        self._cells: dict[tuple[str, Task], Text] = {}

    def begins(self, bmc: Bmc, step: Step) -> None:
        self._show(bmc, step.task, Text("…", "yellow"))

    def ended(self, row: Row) -> None:
        seconds = "" if row.seconds is None else f" {row.seconds:.1f} s"
        self._show(row.bmc, row.step.task, Text(row.outcome.value + seconds, _STYLES[row.outcome]))

    @contextlib.contextmanager
    def driving(self, bmcs: Sequence[Bmc]) -> Iterator[None]:
        self._bmcs = bmcs
        with Live(self._table(), console=self._console, refresh_per_second=8) as self._live:
            yield
        self._live = None

    def summary(self, rows: Sequence[Row]) -> None:
        table = RichTable(box=None, pad_edge=False, header_style="dim")
        for name in _COLUMNS:
            table.add_column(name, overflow="fold", justify="right" if name == "seconds" else "left")
        for row in rows:
            *cells, outcome = _cells(row)
            table.add_row(*cells, Text(outcome, _STYLES[row.outcome]))
        self._console.print()
        self._console.print(table)

    def _show(self, bmc: Bmc, task: Task, cell: Text) -> None:
        self._cells[bmc.name, task] = cell
        if self._live is not None:
            self._live.update(self._table())

    def _table(self) -> RichTable:
        table = RichTable(header_style="dim")
        for name in ("machine", "BMC", *(task.value for task in Task)):
            table.add_column(name)
        for bmc in self._bmcs:
            cells = [self._cells.get((bmc.name, task), Text("")) for task in Task]
            table.add_row(bmc.name, bmc.peer, *cells)
        return table

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, soft_wrap=True)


def _shortened(text: str) -> str:
    """A long fault, cut: the reason at the end has all of it."""
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


def _cells(row: Row) -> list[str]:
    """A line of the summary. What a BMC says is shown, never obeyed."""
    return [
        row.bmc.name,
        row.bmc.peer,
        row.step.operation,
        row.step.asked,
        _shortened(printable(row.says)),
        "–" if row.seconds is None else f"{row.seconds:.1f}",
        row.outcome.value,
    ]
