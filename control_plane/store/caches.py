"""What a store learns once per statement: its translation, and how its rows become records."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from control_plane.store.errors import StoreMisuse
from control_plane.store.port import Dialect, Params
from control_plane.store.rows import RowDecoder, json_text
from control_plane.store.statements import Statement, Table, translate

_CHUNKS = (64, 8, 1)
"""Rows of one statement: few sizes, so that each text is compiled once."""
_MOST_STATEMENTS = 4096
"""Statements are texts of the program, some hundreds. Beyond this somebody builds them out of values."""


class StatementCache:
    """Translations and decoders by statement. One for each connection's thread, so it needs no lock."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.statements: dict[str, Statement] = {}
        self._chunk_texts: dict[str, dict[int, str] | None] = {}
        self._decoders: dict[tuple[str, type], Callable[[Sequence[Any]], Any]] = {}

    def statement(self, sql: str) -> Statement:
        """The statement in the database's own words."""
        return self.statements.get(sql) or self._translated(sql)

    def _translated(self, sql: str) -> Statement:
        if len(self.statements) >= _MOST_STATEMENTS:
            self.statements.clear()
            self._chunk_texts.clear()
            self._decoders.clear()
        statement = self.statements[sql] = translate(sql, self._dialect)
        return statement

    def chunk_texts(self, sql: str) -> dict[int, str] | None:
        """Of a change that SQLite makes by `VALUES`: its text for so many rows, the most first. None of any other."""
        try:
            return self._chunk_texts[sql]
        except KeyError:
            statement = self.statement(sql)
            texts = None if statement.around is None else {rows: _for_rows(statement, rows) for rows in _CHUNKS}
            self._chunk_texts[sql] = texts
            return texts

    def decoder(self, sql: str, record: type, description: Sequence[Sequence[Any]] | None) -> Callable[[Any], Any]:
        """What makes records of `record` out of this statement's rows."""
        decode = self._decoders.get((sql, record))
        if decode is None:
            if description is None:
                raise StoreMisuse(f"the statement answers no rows: {sql}")
            decode = self._decoders[sql, record] = RowDecoder(record, [column[0] for column in description])
        return decode


def _for_rows(statement: Statement, rows: int) -> str:
    before, behind = statement.around or ("", "")
    row = f"({', '.join('?' * len(statement.tables[0].columns))})"
    return f"{before}{', '.join([row] * rows)}{behind}"


def in_chunks(texts: dict[int, str], params: Params, table: Table) -> Iterator[tuple[str, list[Any]]]:
    """The statements that make a change by all of the rows, in their order, each with its values."""
    rows, at = table_rows(params, table), 0
    for size, text in texts.items():
        while len(rows) - at >= size:
            yield text, list(chain.from_iterable(rows[at : at + size]))
            at += size


def list_params(params: Params, statement: Statement, convert: Callable[[list[Any]], object]) -> Mapping[str, object]:
    """The parameters with the lists of `IN EACH` and the rows of `ROWS` as the database takes them."""
    lists = {name: convert(_list(params, name)) for name in statement.lists}
    return {**params, **lists, **{table.name: _rows_text(params, table) for table in statement.tables}}


def table_rows(params: Params, table: Table) -> list[Any]:
    """The rows of a parameter of `ROWS`, each with a value for each column."""
    rows, width = _list(params, table.name), len(table.columns)
    if rows and set(map(len, rows)) != {width}:
        raise StoreMisuse(f"each row of :{table.name} needs a value for each of {', '.join(table.columns)}")
    return rows


def _rows_text(params: Params, table: Table) -> str:
    rows = table_rows(params, table)
    if not table.as_objects:
        return json_text(rows)
    return json_text([dict(zip(table.columns, row, strict=True)) for row in rows])


def _list(params: Params, name: str) -> list[Any]:
    value = params.get(name)
    if not isinstance(value, list | tuple | set | frozenset):
        raise StoreMisuse(f"the parameter :{name} must be a list, not {type(value).__name__}")
    return list(cast("list[Any]", value))
