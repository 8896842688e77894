"""Sections as text: aligned columns, and within a terminal's width where there is one. No input or output."""

import textwrap
import unicodedata
from collections.abc import Callable, Iterable
from itertools import zip_longest

from protocol.presentation import Fields, Part, Quote, Table, printable

__all__ = ["fitted", "laid_out"]

_GAP = 2
_WHOLE = 40
"""A word of no more characters is never broken: names and ids are there to be copied."""
_NARROWEST = 20
_PROSE = 80
"""Characters from which on a cell is something to read and not to look up."""
_LEAST_BESIDE = 20
_NOTHING = ("", "-", "no")

Emphasis = Callable[[str], str]


def laid_out(
    parts: Iterable[Part], width: int | None = None, emphasis: Emphasis = str, *, whole: str = "--wide"
) -> str:
    """The sections as text, without a line's end at the end.

    With a `width`, columns that do not fit are folded or left out, and a line says which, and that the option `whole`
    shows them. `emphasis` is laid over titles and the names of columns.
    """
    return "\n\n".join("\n".join(_lines(part, width, emphasis, whole)) for part in parts)


def fitted(table: Table, width: int) -> tuple[Table, list[str]]:
    """The table with as many of its columns as there is room for, and the names of those that are left out.

    What is prose goes first, then columns that say nothing in most rows, then the last ones; the first two stay.
    """
    natural, least = _natural(table), _least(table)
    kept = list(range(len(table.columns)))
    while len(kept) > 2 and sum(least[index] for index in kept) + _GAP * (len(kept) - 1) > width:
        kept.remove(_least_missed(table, kept[1:], natural))
    columns = [table.columns[index] for index in kept]
    left_out = [name for index, name in enumerate(table.columns) if index not in kept]
    return Table(table.title, columns, [[cells[index] for index in kept] for cells in table.rows]), left_out


def _least_missed(table: Table, indices: list[int], natural: list[int]) -> int:
    prose = [index for index in indices if natural[index] > _PROSE]
    if prose:
        return max(prose, key=lambda index: natural[index])
    quiet = [
        index for index in indices if sum(row[index] not in _NOTHING for row in table.rows) * 4 <= len(table.rows)
    ]
    return (quiet or indices)[-1]


def _lines(part: Part, width: int | None, emphasis: Emphasis, whole: str) -> list[str]:
    title = [emphasis(part.title)] if part.title else []
    if isinstance(part, Quote):
        return title + [
            "\t".join(printable(piece) for piece in line.removesuffix("\r").split("\t"))
            for line in part.text.rstrip("\n").split("\n")
        ]
    indent = "  " if part.title else ""
    if isinstance(part, Fields):
        return title + [indent + line for line in _fields(part, None if width is None else width - len(indent))]
    inner = None if width is None else width - len(indent)
    return title + [indent + line for line in _table(part, inner, emphasis, whole)]


def _fields(part: Fields, width: int | None) -> list[str]:
    names = max(_cells(name) for name, _ in part.rows)
    beside = None if width is None else max(width - names - _GAP, _LEAST_BESIDE)
    lines = []
    for name, value in part.rows:
        folded = [value] if beside is None else _folded(value, beside)
        lines += [_row(list(line), [names, 0]) for line in zip_longest([name], folded, fillvalue="")]
    return lines


def _table(part: Table, width: int | None, emphasis: Emphasis, whole: str) -> list[str]:
    if width is None:
        ordered = _prose_last(part)
        widths = _natural(ordered)
        return [emphasis(_row(ordered.columns, widths)), *(_row(cells, widths) for cells in ordered.rows)]
    shown, left_out = fitted(part, width)
    widths = _shared(shown, width)
    lines = [emphasis(_row(shown.columns, widths))]
    for cells in shown.rows:
        folded = [_folded(cell, size) for cell, size in zip(cells, widths, strict=True)]
        lines += [_row(list(line), widths) for line in zip_longest(*folded, fillvalue="")]
    return [*lines, f"left out: {', '.join(left_out)} ({whole} shows all)"] if left_out else lines


def _prose_last(table: Table) -> Table:
    """What is read comes behind what is looked up, so that short cells stand together."""
    natural = _natural(table)
    order = sorted(range(len(natural)), key=lambda index: natural[index] if natural[index] > _PROSE else 0)
    return Table(
        table.title, [table.columns[index] for index in order], [[cells[i] for i in order] for cells in table.rows]
    )


def _natural(table: Table) -> list[int]:
    return [max(map(_cells, column)) for column in zip(table.columns, *table.rows, strict=True)]


def _least(table: Table) -> list[int]:
    """How narrow each column may become: lines break between words, and within one only where it is a long one."""
    return [_least_of([name, *cells]) for name, *cells in zip(table.columns, *table.rows, strict=True)]


def _least_of(cells: list[str]) -> int:
    longest_word = max((_cells(word) for cell in cells for word in cell.split()), default=0)
    natural = max(map(_cells, cells))
    narrow = _WHOLE if natural > _PROSE else min(natural, _NARROWEST)
    return max(narrow, longest_word if longest_word <= _WHOLE else 0)


def _shared(table: Table, width: int) -> list[int]:
    """Each column's width: the least, and what is left over to those that want more, from the narrowest on."""
    natural, widths = _natural(table), _least(table)
    room = width - sum(widths) - _GAP * (len(widths) - 1)
    for index in sorted(range(len(widths)), key=lambda index: natural[index]):
        more = max(0, min(natural[index] - widths[index], room))
        widths[index] += more
        room -= more
    return widths


def _folded(text: str, width: int) -> list[str]:
    """The text in lines of at most `width`; between words where that can be."""
    if _cells(text) <= width:
        return [text]
    return textwrap.wrap(text, max(1, width), break_on_hyphens=False) or [""]


def _row(cells: list[str], widths: list[int]) -> str:
    padded = (cell + " " * (width - _cells(cell)) for cell, width in zip(cells, widths, strict=True))
    return (" " * _GAP).join(padded).rstrip()


def _cells(text: str) -> int:
    """How many places the text takes: characters of East Asian scripts take two."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(mark) else 2 if unicodedata.east_asian_width(mark) in "WF" else 1 for mark in text
    )
