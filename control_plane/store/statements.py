"""One SQL text for both databases: what is translated, once per text and then remembered.

Everything that one text cannot cover is here:

- Parameters are `:name` on both (PostgreSQL's driver wants `%(name)s`).
- Row locks, `FOR UPDATE` and its kin with `OF table`, `SKIP LOCKED`, `NOWAIT`: left out on SQLite, where writers
  follow one another.
- `column IN EACH(:ids)`, `column NOT IN EACH(:ids)`: the parameter is a list of texts or of numbers, of any length.
- `ROWS(:rows AS r (id TEXT, size BIGINT))` stands for a table: the parameter is a list of rows, each a list of values
  in the order of the columns (TEXT, BIGINT, BOOLEAN or DOUBLE PRECISION). So one statement inserts or updates many
  rows: `INSERT … SELECT … FROM ROWS(…)`, `UPDATE … FROM ROWS(…) WHERE …`.
- `{{serial}}`, `{{bytes}}`: a growing integer key, a column of bytes (for migrations).

And what to write so that nothing needs translation: `BIGINT` for numbers (`INTEGER` has 32 bits on PostgreSQL),
`BOOLEAN` (SQLite gives 0 and 1), `DOUBLE PRECISION`, `TEXT` for JSON, `INSERT … ON CONFLICT`, `RETURNING`, and
`CAST(:x AS TEXT) IS NULL` where a parameter stands alone (PostgreSQL must be able to tell its type). PostgreSQL
refuses the character NUL in a text.
"""

import re
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from control_plane.store.errors import StoreMisuse
from control_plane.store.port import Dialect


class Table(NamedTuple):
    """A parameter of `ROWS`: its name, its columns, and whether its rows go to the database as objects or arrays."""

    name: str
    columns: tuple[str, ...]
    as_objects: bool


class Statement(NamedTuple):
    """A statement in one database's own words; `lists` are the parameters of `IN EACH`, `tables` those of `ROWS`."""

    text: str
    lists: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    around: tuple[str, str] | None = None
    """On SQLite, of a change by the rows of one `ROWS` and nothing else: what stands before and behind `VALUES`."""


_WORDS: dict[str, dict[Dialect, str]] = {
    "serial": {
        "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "postgresql": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    },
    "bytes": {"sqlite": "BLOB", "postgresql": "BYTEA"},
}
_TOKEN = re.compile(
    r"""
    (?P<opaque> '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ | :: )
    | (?P<each> \b(?P<not>NOT\s+)?IN\s+EACH\s*\(\s*:(?P<list>[A-Za-z_]\w*)\s*\) )
    | (?P<rows> \bROWS\s*\(\s*:(?P<table>[A-Za-z_]\w*)\s+AS\s+(?P<alias>\w+)\s*\((?P<columns>[\w\s,]+)\)\s*\) )
    | :(?P<name> [A-Za-z_]\w* )
    | (?P<lock> \s*\bFOR\s+(?:NO\s+KEY\s+UPDATE|UPDATE|KEY\s+SHARE|SHARE)\b
        (?:\s+OF\s+\w+(?:\s*,\s*\w+)*)? (?:\s+(?:SKIP\s+LOCKED|NOWAIT)\b)? )
    | \{\{(?P<word> \w+ )\}\}
    | (?P<end> ; )
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_CHANGE_BY_ROWS = re.compile(
    r"""
    (?P<before> \s*(?:UPDATE|INSERT)\b.*? \s+FROM\s+ )
    ROWS\s*\(\s*:\w+\s+AS\s+(?P<alias>\w+)\s*\([\w\s,]+\)\s*\)
    (?P<behind> (?:\s+WHERE\b.*?)? ) (?: \s+ORDER\s+BY\s+ (?:\w+\.)? \w+ )? \s*
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_OF_ALL_ROWS = re.compile(
    r"\b(?:DISTINCT|GROUP|HAVING|ORDER|LIMIT|OVER|AVG|COUNT|MAX|MIN|SUM|TOTAL)\b", re.IGNORECASE
)
"""Words that ask for all of the rows together, where a change in pieces would be another one."""
_FIRST_WORD = re.compile(r"(?:\s++|--[^\n]*+|/\*.*?\*/)*+(\w+)", re.DOTALL)
_OF_THE_STORE_ALONE = {"ABORT", "ATTACH", "BEGIN", "COMMIT", "DETACH", "END", "LISTEN", "PRAGMA", "RELEASE"} | {
    "ROLLBACK",
    "SAVEPOINT",
    "START",
    "UNLISTEN",
    "VACUUM",
}


def translate(sql: str, dialect: Dialect) -> Statement:
    """The statement as `dialect` wants it. Raises `StoreMisuse` for what only the store itself may say."""
    first = _FIRST_WORD.match(sql)
    if first is None:
        raise StoreMisuse("the statement is empty")
    if first[1].upper() in _OF_THE_STORE_ALONE:
        raise StoreMisuse(f"{first[1].upper()} is the store's own business: a function never ends its transaction")
    lists: list[str] = []
    tables: list[Table] = []
    pieces: list[str] = []
    at = 0
    for token in _TOKEN.finditer(sql):
        pieces.append(_plain(sql[at : token.start()], dialect))
        if token["rows"] is not None:
            table, text = _table(token, dialect)
            tables.append(table)
            pieces.append(text)
        else:
            pieces.append(_translated(token, dialect, lists))
        at = token.end()
    pieces.append(_plain(sql[at:], dialect))
    around = _around(sql, tables[0]) if dialect == "sqlite" and len(tables) == 1 else None
    return Statement("".join(pieces), tuple(lists), tuple(tables), around)


def _around(sql: str, table: Table) -> tuple[str, str] | None:
    """None where there is more in the change than its rows, or it is not made row by row. SQLite takes the rows of
    `VALUES` in their order."""
    change = _CHANGE_BY_ROWS.fullmatch(sql)
    if change is None:
        return None
    others = change["before"] + change["behind"]
    if _OF_ALL_ROWS.search(others) or any(token["opaque"] is None for token in _TOKEN.finditer(others)):
        return None
    picked = ", ".join(f"column{place} AS {name}" for place, name in enumerate(table.columns, 1))
    return f"{change['before']}(SELECT {picked} FROM (VALUES ", f")) AS {change['alias']}{change['behind']}"


def _plain(text: str, dialect: Dialect) -> str:
    return text.replace("%", "%%") if dialect == "postgresql" else text


def _translated(token: re.Match[str], dialect: Dialect, lists: list[str]) -> str:
    if token["name"] is not None:
        return f"%({token['name']})s" if dialect == "postgresql" else token[0]
    if token["each"] is not None:
        name = token["list"]
        lists.append(name)
        if dialect == "postgresql":
            return f"<> ALL(%({name})s)" if token["not"] else f"= ANY(%({name})s)"
        return f"{token['not'] or ''}IN (SELECT value FROM json_each(:{name}))"
    if token["lock"] is not None:
        return token[0] if dialect == "postgresql" else ""
    if token["word"] is not None:
        try:
            return _WORDS[token["word"]][dialect]
        except KeyError:
            known = ", ".join("{{" + word + "}}" for word in _WORDS)
            raise StoreMisuse(f"{token[0]} is not known in a statement; there are {known}") from None
    return _plain(token[0], dialect)


def _table(token: re.Match[str], dialect: Dialect) -> tuple[Table, str]:
    """A parameter's JSON array as a table expression with named and typed columns.

    PostgreSQL reads the whole text once for `json_to_recordset`; picking each column out of an array's text would
    read that array once for each. SQLite remembers what it has parsed, and picks by position.
    """
    columns = [column.split(None, 1) for column in token["columns"].split(",")]
    if any(len(column) != 2 for column in columns):
        raise StoreMisuse(f"each column of {token[0]} needs a name and a type")
    name, alias = token["table"], token["alias"]
    table = Table(name, tuple(column.lower() for column, _ in columns), as_objects=dialect == "postgresql")
    if dialect == "postgresql":
        typed = ", ".join(f"{column} {kind}" for column, kind in columns)
        return table, f"json_to_recordset(CAST(%({name})s AS json)) AS {alias} ({typed})"
    picked = ", ".join(f"json_extract(value, '$[{i}]') AS {column}" for i, (column, _) in enumerate(columns))
    return table, f"(SELECT {picked} FROM json_each(:{name})) AS {alias}"


def split(script: str) -> Iterator[str]:
    """The statements of a script, without their semicolons. Triggers and dollar-quoted bodies stay whole."""
    start = 0
    for token in _TOKEN.finditer(script):
        if token["end"] is None or not sqlite3.complete_statement(script[start : token.end()]):
            continue
        yield from _if_any(script[start : token.start()])
        start = token.end()
    yield from _if_any(script[start:])


def _if_any(statement: str) -> Iterator[str]:
    if _FIRST_WORD.match(statement):
        yield statement.strip()
