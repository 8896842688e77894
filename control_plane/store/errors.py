"""What can go wrong in the store, one type for each thing that the caller can do next.

Statements are named parameters only, so a statement's text never carries a value; messages of the database that
quote values (PostgreSQL's DETAIL line) are left out, so that no secret leaves by an error.
"""

from enum import Enum
from typing import Self

NOTHING_STORED = "nothing was stored"


class StoreError(Exception):
    """Anything that the store could not do."""


class StoreMisuse(StoreError):
    """The calling code is wrong: a statement, a parameter or a row type. Trying again never helps."""


class StoreUrlInvalid(StoreError):
    """The store's URL cannot be used; the message says how it must look. It never shows a password."""


class StoreClosed(StoreError):
    """The store is closed, or is being closed: nothing was stored."""


class Constraint(Enum):
    """The kind of rule that a statement broke."""

    UNIQUE = "unique"
    FOREIGN_KEY = "foreign key"
    NOT_NULL = "not null"
    CHECK = "check"
    OTHER = "constraint"


class ConstraintViolated(StoreError):
    """A row broke a rule of its table; the transaction is undone.

    `kind` says which rule. `name` is what the database calls it: on PostgreSQL the constraint's name
    (`nodes_pkey`), on SQLite the columns (`nodes.id`), or an empty text where it tells nothing.
    """

    def __init__(self, kind: Constraint, name: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.name = name


class StoreUnavailable(StoreError):
    """The database cannot do it now. Nothing of the transaction was stored; try again later.

    `cause` keeps the database's own words, `advice` says what an operator can do. The store recovers by itself
    once the cause is gone.
    """

    def __init__(self, what: str, *, cause: str = "", advice: str = "") -> None:
        super().__init__(". ".join(part.rstrip(". ") for part in (what, cause, advice) if part))
        self.what = what
        self.cause = cause
        self.advice = advice

    def again(self, *, outcome: str = "") -> Self:
        """The same error for another caller, with what became of that caller's transaction."""
        what = f"{self.what}; {outcome}" if outcome and not self.what.endswith(outcome) else self.what
        error = type(self)(what, cause=self.cause, advice=self.advice)
        error.__cause__ = self.__cause__
        return error


class StoreFull(StoreUnavailable):
    """No room on the disk."""


class StoreReadOnly(StoreUnavailable):
    """The database, its file or its file system does not take writes."""


class StoreBusy(StoreUnavailable):
    """Somebody else holds a lock that was not given back in time."""


class StoreCorrupt(StoreUnavailable):
    """The database's content is damaged. Only a restored backup helps."""


class CommitUnknown(StoreUnavailable):
    """The answer to a COMMIT was lost: the transaction is either stored whole or not at all.

    The caller finds out which; it must not assume either. A plain read may come too early, since a server that is
    cut off may still be finishing the COMMIT: look with a write that meets the same rows (a lock, a unique key).
    """


class BackupFailed(StoreError):
    """No backup was made; no file was left behind."""


class SchemaError(StoreError):
    """The database's tables are not those that this program was written for."""


class SchemaBehind(SchemaError):
    """Migrations are still to be applied."""


class SchemaAhead(SchemaError):
    """A newer version of the program has migrated this database."""


class MigrationEdited(SchemaError):
    """A migration that was applied has another text today, or the files themselves are inconsistent."""
