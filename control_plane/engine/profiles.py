"""The store of profiles: a name has versions 1, 2, 3 and so on, and a version never changes.

The first workflow that uses a version marks it as used; nothing here updates or removes a document, used or not.
"""

import msgspec

from control_plane.engine.expansion import Expansion, expand
from control_plane.engine.profile import document_of, document_text
from control_plane.engine.registry import StepRegistry
from control_plane.engine.timing import Timing
from control_plane.store import Transaction
from protocol.errors import RequestCode, RequestError
from protocol.ids import is_id, new_id

__all__ = [
    "Created",
    "ProfileVersion",
    "create_profile",
    "find_profile",
    "list_profiles",
    "list_versions",
    "mark_used",
    "require_sound",
]

_COLUMNS = (
    "profiles.id AS profile_id, profiles.tenant_id AS tenant_id, profiles.name AS name, "
    "profile_versions.version AS version, profile_versions.document AS document, "
    "profile_versions.created_at AS created_at, profile_versions.created_by AS created_by, "
    "profile_versions.used_at AS used_at"
)
_VERSIONS = f"SELECT {_COLUMNS} FROM profiles JOIN profile_versions ON profile_versions.profile_id = profiles.id"
_LATEST = (
    "profile_versions.version = (SELECT MAX(version) FROM profile_versions AS others "
    "WHERE others.profile_id = profiles.id)"
)


class ProfileVersion(msgspec.Struct, frozen=True):
    """One version of a profile."""

    profile_id: str
    tenant_id: str
    name: str
    version: int
    document: dict[str, object]
    created_at: int
    created_by: str
    used_at: int | None
    """When the first workflow used it; None while none has."""

    @property
    def id(self) -> str:
        return self.profile_id


class Created(msgspec.Struct, frozen=True):
    """The present version of the name; `changed` is false where it held the same document before."""

    version: ProfileVersion
    changed: bool


def create_profile(
    tx: Transaction, registry: StepRegistry, timing: Timing, tenant_id: str, document: object, created_by: str
) -> Created:
    """Stores a new version of the name that the document has, unless its latest version says the same.

    Raises RequestError INVALID_INPUT with every fault.
    """
    profile = require_sound(expand(document, registry, timing)).profile
    assert profile is not None
    made = document_of(profile)
    _insert_name(tx, tenant_id, profile.profile)
    # The profile's row orders those who make a version of it at the same moment.
    row = tx.one(
        "SELECT id FROM profiles WHERE tenant_id = :tenant_id AND name = :name FOR UPDATE",
        {"tenant_id": tenant_id, "name": profile.profile},
    )
    assert row is not None
    profile_id = str(row[0])
    latest = tx.one(f"{_VERSIONS} WHERE profiles.id = :id AND {_LATEST}", {"id": profile_id}, into=ProfileVersion)
    if latest is not None and document_text(latest.document) == document_text(made):
        return Created(latest, changed=False)
    version = ProfileVersion(
        profile_id=profile_id,
        tenant_id=tenant_id,
        name=profile.profile,
        version=1 if latest is None else latest.version + 1,
        document=made,
        created_at=tx.now(),
        created_by=created_by,
        used_at=None,
    )
    tx.run(
        """
        INSERT INTO profile_versions (profile_id, version, document, created_at, created_by, used_at)
        VALUES (:profile_id, :version, :document, :created_at, :created_by, NULL)
        """,
        {
            "profile_id": version.profile_id,
            "version": version.version,
            "document": msgspec.json.encode(made).decode(),
            "created_at": version.created_at,
            "created_by": created_by,
        },
    )
    return Created(version, changed=True)


def find_profile(tx: Transaction, tenant_id: str, name_or_id: str, version: int | None = None) -> ProfileVersion:
    """A version by the profile's id or name; the latest where none is named.

    Raises RequestError NOT_FOUND, the same for another tenant's profile.
    """
    column = "id" if is_id(name_or_id, "prof") else "name"
    wanted = _LATEST if version is None else "profile_versions.version = CAST(:version AS BIGINT)"
    found = tx.one(
        f"{_VERSIONS} WHERE profiles.tenant_id = :tenant_id AND profiles.{column} = :name AND {wanted}",
        {"tenant_id": tenant_id, "name": name_or_id} | ({} if version is None else {"version": version}),
        into=ProfileVersion,
    )
    if found is None:
        which = f"profile {name_or_id!r}" if version is None else f"version {version} of a profile {name_or_id!r}"
        raise RequestError(RequestCode.NOT_FOUND, f"there is no {which}")
    return found


def list_profiles(tx: Transaction, tenant_id: str, after: str, limit: int) -> list[ProfileVersion]:
    """The latest version of each profile, by the profile's id, behind the id `after`."""
    return tx.all(
        f"{_VERSIONS} WHERE profiles.tenant_id = :tenant_id AND profiles.id > :after AND {_LATEST} "
        "ORDER BY profiles.id LIMIT :limit",
        {"tenant_id": tenant_id, "after": after, "limit": limit},
        into=ProfileVersion,
    )


def list_versions(
    tx: Transaction, tenant_id: str, name_or_id: str, before: int | None, limit: int
) -> list[ProfileVersion]:
    """A profile's versions, newest first, older than the version `before`. Raises RequestError NOT_FOUND."""
    profile = find_profile(tx, tenant_id, name_or_id)
    return tx.all(
        f"{_VERSIONS} WHERE profiles.id = :id AND profile_versions.version < CAST(:before AS BIGINT) "
        "ORDER BY profile_versions.version DESC LIMIT :limit",
        {"id": profile.profile_id, "before": profile.version + 1 if before is None else before, "limit": limit},
        into=ProfileVersion,
    )


def mark_used(tx: Transaction, version: ProfileVersion) -> None:
    """A workflow uses it now. The first one counts."""
    tx.run(
        "UPDATE profile_versions SET used_at = :now "
        "WHERE profile_id = :profile_id AND version = :version AND used_at IS NULL",
        {"now": tx.now(), "profile_id": version.profile_id, "version": version.version},
    )


def require_sound(expansion: Expansion) -> Expansion:
    """The expansion itself. Raises RequestError INVALID_INPUT with all its issues where there are any."""
    if expansion.issues:
        raise RequestError.invalid(expansion.issues, "the profile")
    return expansion


def _insert_name(tx: Transaction, tenant_id: str, name: str) -> None:
    tx.run(
        "INSERT INTO profiles (id, tenant_id, name, created_at) VALUES (:id, :tenant_id, :name, :now) "
        "ON CONFLICT DO NOTHING",
        {"id": new_id("prof"), "tenant_id": tenant_id, "name": name, "now": tx.now()},
    )
