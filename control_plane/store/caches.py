"""What a store learns once per statement: its translation, and how its rows become records."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from control_plane.store.errors import StoreMisuse
from control_plane.store.port import Dialect, Params
from control_plane.store.rows import RowDecoder, json_text
from control_plane.store.statements import Statement, Table, translate

_MOST_STATEMENTS = 4096
"""Statements are texts of the program, some hundreds. Beyond this somebody builds them out of values."""


class StatementCache:
    """Translations and decoders by statement. One for each connection's thread, so it needs no lock."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.statements: dict[str, Statement] = {}
        self._decoders: dict[tuple[str, type], Callable[[Sequence[Any]], Any]] = {}

    def statement(self, sql: str) -> Statement:
        """The statement in the database's own words."""
        return self.statements.get(sql) or self._translated(sql)

    def _translated(self, sql: str) -> Statement:
        if len(self.statements) >= _MOST_STATEMENTS:
            self.statements.clear()
            self._decoders.clear()
        statement = self.statements[sql] = translate(sql, self._dialect)
        return statement

    def decoder(self, sql: str, record: type, description: Sequence[Sequence[Any]] | None) -> Callable[[Any], Any]:
        """What makes records of `record` out of this statement's rows."""
        decode = self._decoders.get((sql, record))
        if decode is None:
            if description is None:
                raise StoreMisuse(f"the statement answers no rows: {sql}")
            decode = self._decoders[sql, record] = RowDecoder(record, [column[0] for column in description])
        return decode


def list_params(params: Params, statement: Statement, convert: Callable[[list[Any]], object]) -> Mapping[str, object]:
    """The parameters with the lists of `IN EACH` and the rows of `ROWS` as the database takes them."""
    lists = {name: convert(_list(params, name)) for name in statement.lists}
    return {**params, **lists, **{table.name: _rows_text(params, table) for table in statement.tables}}


def _rows_text(params: Params, table: Table) -> str:
    rows = _list(params, table.name)
    if any(len(row) != len(table.columns) for row in rows):
        raise StoreMisuse(f"each row of :{table.name} needs a value for each of {', '.join(table.columns)}")
    if not table.as_objects:
        return json_text(rows)
    return json_text([dict(zip(table.columns, row, strict=True)) for row in rows])


def _list(params: Params, name: str) -> list[Any]:
    value = params.get(name)
    if not isinstance(value, list | tuple | set | frozenset):
        raise StoreMisuse(f"the parameter :{name} must be a list, not {type(value).__name__}")
    return list(cast("list[Any]", value))
