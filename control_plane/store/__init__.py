"""The store: one port, SQLite for one process, PostgreSQL for several workers.

`open_store(url)` gives a `Store`; its `write` and `read` run plain functions over a `Transaction`. Tables come from
the numbered files in `migrations/`.
"""

from control_plane.store.backup import backup
from control_plane.store.errors import (
    BackupFailed,
    CommitUnknown,
    Constraint,
    ConstraintViolated,
    MigrationEdited,
    SchemaAhead,
    SchemaBehind,
    SchemaError,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreMisuse,
    StoreReadOnly,
    StoreUnavailable,
    StoreUrlInvalid,
)
from control_plane.store.location import open_store
from control_plane.store.migrate import migrate, pending, verify
from control_plane.store.port import Dialect, Params, Row, Store, Transaction
from control_plane.store.rows import json_text, params_of

__all__ = [
    "BackupFailed",
    "CommitUnknown",
    "Constraint",
    "ConstraintViolated",
    "Dialect",
    "MigrationEdited",
    "Params",
    "Row",
    "SchemaAhead",
    "SchemaBehind",
    "SchemaError",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreMisuse",
    "StoreReadOnly",
    "StoreUnavailable",
    "StoreUrlInvalid",
    "Transaction",
    "backup",
    "json_text",
    "migrate",
    "open_store",
    "params_of",
    "pending",
    "verify",
]
