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


class UpdateManners(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a firmware update goes on. All times in seconds."""

    staged: bool = False  # whatever the apply time, it waits for the next start of the host
    silent: bool = False  # its task completes, and the version stays
    restart_seconds: float = 0.0  # the manager goes away for so long once the image is written
    flaps: int = 0  # how often the versions change between old and new when the manager is back
    flap_seconds: float = 2.0


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
    volume_changes_by_task: bool = False  # volumes are made and deleted by tasks
    volume_properties_required: tuple[str, ...] = ()  # what a request for a volume must hold besides its drives
    volume_properties_refused: tuple[str, ...] = ()  # what it must not hold
    task_kept_seconds: float | None = None  # after its end, or its staging, a task is gone; None: it stays
    update: UpdateManners = UpdateManners()
    session_timeout: float | None = None  # None: what the tree's SessionService says, else 1800
    max_sessions: int = 32
    max_subscriptions: int = 20
    basic_auth: bool = True
    open_reads: bool = False  # every GET without a login, as DMTF's mockup server has it
    lockout_after: int = 0  # failed logins until an account is locked; 0: never
    lockout_seconds: float = 300.0
    password_pattern: str = ""  # what a new password must match whole, as a regular expression
    password_change_ends_sessions: bool = False  # those of the account whose password was changed
    certificate_needs_restart: bool = False  # a replaced certificate is served only after a restart of the manager
    require_etag: bool = False  # PATCH, PUT and DELETE without If-Match are answered 428
    strict_paths: bool = False  # only the exact recorded spelling of a path is answered
