"""What a simulated BMC can be told about itself: delays, limits and manners."""

from enum import StrEnum

import msgspec


class Outage(StrEnum):
    """How the service looks from outside while its manager restarts."""

    UNAVAILABLE = "unavailable"  # it answers 503 with Retry-After
    REFUSED = "refused"  # nobody listens on its port


class Account(msgspec.Struct, frozen=True):
    """A login. `role` is one of Administrator, Operator, ReadOnly."""

    password: str
    role: str = "Administrator"

    def __repr__(self) -> str:
        return f"Account(role={self.role!r})"


class ServiceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All times in seconds; zero means at once."""

    power_on_seconds: float = 0.0
    power_off_seconds: float = 0.0
    graceful_off_seconds: float = 0.0
    ignores_graceful_off: bool = False
    ignores_restart: bool = False
    manager_reset_seconds: float = 0.0
    manager_reset_outage: Outage = Outage.UNAVAILABLE
    task_seconds: float = 0.0
    session_timeout: float | None = None  # None: what the tree's SessionService says, else 1800
    max_sessions: int = 32
    basic_auth: bool = True
    open_reads: bool = False  # every GET without a login, as DMTF's mockup server has it
    lockout_after: int = 0  # failed logins until an account is locked; 0: never
    lockout_seconds: float = 300.0
    require_etag: bool = False  # PATCH, PUT and DELETE without If-Match are answered 428
    strict_paths: bool = False  # only the exact recorded spelling of a path is answered
