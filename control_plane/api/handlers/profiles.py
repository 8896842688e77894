"""Profiles."""

import msgspec

from control_plane.api.call import Call
from control_plane.api.handlers.paging import page
from control_plane.api.profile_validation import validation
from control_plane.api.shapes.common import decode_cursor, encode_cursor, instant, of
from control_plane.api.shapes.profiles import (
    ChangeView,
    CreateProfile,
    DiffProfile,
    GetProfile,
    ListProfiles,
    ListVersions,
    ProfileCreated,
    ProfileDiff,
    ProfileList,
    ProfileSummary,
    ProfileValidation,
    ProfileView,
    ValidateProfile,
)
from control_plane.engine.expansion import expand
from control_plane.engine.profile import Profile
from control_plane.engine.profile_diff import profile_changes
from control_plane.engine.profiles import (
    ProfileVersion,
    create_profile,
    find_profile,
    list_profiles,
    list_versions,
)
from control_plane.store import Transaction

__all__ = ["audited", "create", "diff", "get", "list_", "validate", "versions"]


def create(tx: Transaction, call: Call, request: CreateProfile) -> ProfileCreated:
    services = call.services
    created = create_profile(tx, services.registry, services.timing, call.tenant, request.document, call.principal.id)
    summary = msgspec.structs.asdict(_summary(created.version))
    return ProfileCreated(**summary, document=created.version.document, changed=created.changed)


def audited(answer: ProfileCreated) -> tuple[str, dict[str, object]]:
    return answer.id, {"name": answer.name, "version": answer.version, "changed": answer.changed}


def validate(tx: Transaction, call: Call, request: ValidateProfile) -> ProfileValidation:
    """Nothing is read from the store."""
    return validation(expand(request.document, call.services.registry, call.services.timing))


def get(tx: Transaction, call: Call, request: GetProfile) -> ProfileView:
    found = find_profile(tx, call.tenant, request.profile_id, request.version)
    return ProfileView(**msgspec.structs.asdict(_summary(found)), document=found.document)


def list_(tx: Transaction, call: Call, request: ListProfiles) -> ProfileList:
    rows, cursor = page(request, lambda after, limit: list_profiles(tx, call.tenant, after, limit))
    return ProfileList(items=[_summary(row) for row in rows], cursor=cursor)


def versions(tx: Transaction, call: Call, request: ListVersions) -> ProfileList:
    before = int(decode_cursor(request.cursor)) if request.cursor is not None else None
    rows = list_versions(tx, call.tenant, request.profile_id, before, request.limit + 1)
    shown = rows[: request.limit]
    cursor = encode_cursor(str(shown[-1].version)) if len(rows) > len(shown) else None
    return ProfileList(items=[_summary(row) for row in shown], cursor=cursor)


def diff(tx: Transaction, call: Call, request: DiffProfile) -> ProfileDiff:
    before = find_profile(tx, call.tenant, request.profile_id, request.before)
    after = find_profile(tx, call.tenant, request.profile_id, request.after)
    changes = profile_changes(msgspec.convert(before.document, Profile), msgspec.convert(after.document, Profile))
    return ProfileDiff(
        id=before.profile_id,
        name=before.name,
        before=before.version,
        after=after.version,
        changes=[ChangeView(**msgspec.structs.asdict(change)) for change in changes],
    )


def _summary(row: ProfileVersion) -> ProfileSummary:
    return ProfileSummary(
        id=row.profile_id,
        tenant_id=row.tenant_id,
        name=row.name,
        version=row.version,
        description=str(row.document.get("description", "")),
        created_at=instant(row.created_at),
        created_by=row.created_by,
        used_at=of(row.used_at),
    )
