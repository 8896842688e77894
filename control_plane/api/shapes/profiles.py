"""Profiles: what is to be done to machines, in versions that never change."""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from control_plane.api.shapes.common import PageRequest, Reference, Request, View, id_cursor, number_cursor
from protocol.errors import Issue

__all__ = [
    "ChangeView",
    "CreateProfile",
    "DiffProfile",
    "GetProfile",
    "ListProfiles",
    "ListVersions",
    "PlannedStep",
    "ProfileCreated",
    "ProfileDiff",
    "ProfileList",
    "ProfileSummary",
    "ProfileValidation",
    "ProfileView",
    "ValidateProfile",
]

Version = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class CreateProfile(Request, frozen=True, kw_only=True):
    document: dict[str, Any]
    """The profile; its name is in it. The faults' paths begin inside of it."""


class ValidateProfile(Request, frozen=True, kw_only=True):
    document: dict[str, Any]


class GetProfile(Request, frozen=True, kw_only=True):
    profile_id: Reference
    version: Version | None = None
    """The latest where it is left out."""


class ListProfiles(PageRequest, frozen=True, kw_only=True):
    checks = {"cursor": id_cursor("prof")}


class ListVersions(PageRequest, frozen=True, kw_only=True):
    profile_id: Reference

    checks = {"cursor": number_cursor}


class DiffProfile(Request, frozen=True, kw_only=True):
    profile_id: Reference
    before: Version
    after: Version


class ProfileSummary(View, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    name: str
    version: int
    description: str
    created_at: datetime
    created_by: str
    used_at: datetime | None
    """When a workflow used this version for the first time."""


class ProfileView(ProfileSummary, frozen=True, kw_only=True):
    document: dict[str, Any]


class ProfileCreated(ProfileView, frozen=True, kw_only=True):
    changed: bool
    """False where the latest version held the same document: that one is shown, and nothing was stored."""


class ProfileList(View, frozen=True, kw_only=True):
    items: list[ProfileSummary]
    cursor: str | None


class PlannedStep(View, frozen=True, kw_only=True):
    """A row that a workflow of the profile would have."""

    id: str
    phase: Literal["main", "on-failure", "cleanup"]
    action: str
    runs_on: str
    driver: str | None
    timeout_ms: int
    retries: int
    on_failure: str
    await_rejoin: bool
    when: str | None


class ProfileValidation(View, frozen=True, kw_only=True):
    valid: bool
    issues: list[Issue]
    steps: list[PlannedStep]
    """In the order in which they run; empty while there are faults."""


class ChangeView(View, frozen=True, kw_only=True):
    path: str
    """A step is named by its id: `steps[write].timeout`."""
    kind: Literal["added", "removed", "changed", "moved"]
    before: Any = None
    after: Any = None


class ProfileDiff(View, frozen=True, kw_only=True):
    id: str
    name: str
    before: int
    after: int
    changes: list[ChangeView] = msgspec.field(default_factory=list)
