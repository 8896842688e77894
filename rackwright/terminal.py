"""What is shown on the terminal: laid out for people within its width, plain for pipes; and one line that lives."""

import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

import click

from protocol.layout import laid_out
from protocol.presentation import Part, printable

__all__ = ["NewsLine", "show"]


def show(parts: Sequence[Part], *, wide: bool | None = None) -> None:
    """On standard output. `wide`: every column, also where the terminal is too narrow for them.

    None: the command offers no such option.
    """
    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_terminal and not wide else None
    whole = "--json" if wide is None else "--wide"
    click.echo(laid_out(parts, width, _bold if on_terminal else str, whole=whole))


class NewsLine:
    """What is going on: one line that changes on a terminal, a line for each change elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lives = stream.isatty()
        self._told = ""

    @property
    def is_begun(self) -> bool:
        """Whether anything was shown."""
        return bool(self._told)

    def tell(self, news: str, beside: str = "") -> None:
        """`beside` changes all the time, so that only a living line shows it."""
        if self._lives:
            self._live(f"{news}  {beside}" if beside else news)
        elif news != self._told:
            self._write(f"{printable(news)}\n")
        self._told = news

    def end(self, ending: str) -> None:
        """Leaves a living line's place to what follows; elsewhere the ending is a line, if others were before."""
        if self._lives:
            self._write("\r\x1b[2K" if self._told else "")
        elif self._told:
            self._write(f"{printable(ending)}\n")

    def _live(self, words: str) -> None:
        room = max(10, shutil.get_terminal_size().columns - 1)
        shown = printable(words)
        self._write(f"\r\x1b[2K{shown if len(shown) <= room else shown[: room - 1] + '…'}")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _bold(text: str) -> str:
    return click.style(text, bold=True)
