"""The store of profiles: versions that never change."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import control_plane
from control_plane.engine.profile import Profile, parse
from control_plane.engine.profile_diff import Change, profile_changes
from control_plane.engine.profiles import (
    Created,
    ProfileVersion,
    create_profile,
    find_profile,
    list_profiles,
    list_versions,
)
from control_plane.engine.start import Start, start
from control_plane.store import Transaction
from protocol.errors import RequestCode, RequestError
from tests.control_plane.engine.rig import TENANT, Rig, work

OTHER = "globex"


def document(name: str = "deploy", **changes: Any) -> dict[str, Any]:
    return {"profile": name, "steps": [work("first")], **changes}


async def create(rig: Rig, made: object, tenant_id: str = TENANT) -> Created:
    return await rig.store.write(create_profile, rig.registry, rig.timing, tenant_id, made, "tok_1")


async def find(rig: Rig, name: str, version: int | None = None, tenant_id: str = TENANT) -> ProfileVersion:
    return await rig.store.read(find_profile, tenant_id, name, version)


async def test_a_new_document_is_a_new_version_of_its_name(rig: Rig) -> None:
    first = await create(rig, document())
    second = await create(rig, document(description="better"))
    assert (first.changed, first.version.version) == (True, 1)
    assert (second.changed, second.version.version) == (True, 2)
    assert first.version.profile_id == second.version.profile_id
    assert (await find(rig, "deploy")).document["description"] == "better"
    assert await find(rig, "deploy", 1) == first.version
    assert await find(rig, first.version.profile_id) == second.version
    assert second.version.created_at == rig.clock.now


async def test_the_same_document_again_is_the_version_that_is_there(rig: Rig) -> None:
    first = await create(rig, document())
    again = await create(rig, {"cleanup": [], **document(description="")})
    assert again == Created(first.version, changed=False)
    await create(rig, document(description="better"))
    # What an older version said is new again.
    assert (await create(rig, document())).version.version == 3


async def test_a_profile_is_its_tenants_own(rig: Rig) -> None:
    ours = (await create(rig, document())).version
    theirs = (await create(rig, document(), OTHER)).version
    assert (theirs.version, theirs.profile_id == ours.profile_id) == (1, False)
    with pytest.raises(RequestError) as refused:
        await find(rig, ours.profile_id, tenant_id=OTHER)
    assert refused.value.code is RequestCode.NOT_FOUND


@pytest.mark.line("A05")
@pytest.mark.parametrize(("name", "version"), [("nothing", None), ("deploy", 2), ("deploy", 0)])
async def test_an_unknown_profile_or_version_is_not_found(sqlite_rig: Rig, name: str, version: int | None) -> None:
    await create(sqlite_rig, document())
    with pytest.raises(RequestError) as refused:
        await find(sqlite_rig, name, version)
    assert refused.value.code is RequestCode.NOT_FOUND


async def test_a_document_with_faults_is_not_stored_and_all_of_them_are_told(rig: Rig) -> None:
    with pytest.raises(RequestError) as refused:
        await create(rig, document(steps=[{"use": "plane.wrk"}, {"use": "plane.work", "retries": -1}]))
    assert refused.value.code is RequestCode.INVALID_INPUT
    assert [issue.path for issue in refused.value.issues] == ["steps[0].use", "steps[1].retries"]
    with pytest.raises(RequestError):
        await find(rig, "deploy")


async def test_lists_go_page_by_page(rig: Rig) -> None:
    for name in ("a", "b", "c"):
        await create(rig, document(name))
    for number in range(4):
        await create(rig, document("b", description=f"{number}"))
    everything = await rig.store.read(list_profiles, TENANT, "", 10)
    assert [(row.name, row.version) for row in everything] == [("a", 1), ("b", 5), ("c", 1)]
    rest = await rig.store.read(list_profiles, TENANT, everything[0].id, 1)
    assert [row.name for row in rest] == ["b"]
    newest = await rig.store.read(list_versions, TENANT, "b", None, 2)
    assert [row.version for row in newest] == [5, 4]
    older = await rig.store.read(list_versions, TENANT, "b", 4, 10)
    assert [row.version for row in older] == [3, 2, 1]


async def test_many_who_create_at_once_get_different_versions(rig: Rig) -> None:
    made = await asyncio.gather(*(create(rig, document(description=f"{number}")) for number in range(12)))
    assert sorted(created.version.version for created in made) == list(range(1, 13))
    assert len({created.version.profile_id for created in made}) == 1


async def test_many_who_create_the_same_at_once_make_one_version(rig: Rig) -> None:
    made = await asyncio.gather(*(create(rig, document()) for _ in range(8)))
    assert {created.version.version for created in made} == {1}
    assert sum(created.changed for created in made) == 1


@pytest.mark.line("A03")
async def test_a_used_version_is_marked_once_and_no_version_ever_changes(rig: Rig) -> None:
    first = (await create(rig, document())).version
    assert first.used_at is None
    await rig.start(work("first"))
    began = rig.clock.now
    wanted = Start(tenant_id=TENANT, profile_id="deploy")
    await rig.store.write(start, rig.registry, rig.timing, wanted)
    rig.clock.pass_by(1000)
    await rig.store.write(start, rig.registry, rig.timing, wanted)
    used = await find(rig, "deploy", 1)
    assert used.used_at == began
    await create(rig, document(description="edited"))
    assert await find(rig, "deploy", 1) == used
    assert (await find(rig, "deploy", 2)).used_at is None


def test_no_statement_of_the_store_changes_a_document() -> None:
    room = Path(control_plane.__file__).parent
    texts = [file.read_text() for file in room.rglob("*.py")]
    statements = [text.split("UPDATE profile_versions SET ")[1:] for text in texts]
    updates = [statement[:20] for found in statements for statement in found]
    assert updates
    assert all(update.startswith("used_at = :now") for update in updates)
    assert not any("DELETE FROM profile_versions" in text or "DELETE FROM profiles" in text for text in texts)


async def test_a_rolled_back_creation_leaves_nothing(rig: Rig) -> None:
    class Undone(Exception):
        pass

    def undone(tx: Transaction) -> None:
        create_profile(tx, rig.registry, rig.timing, TENANT, document(), "tok_1")
        raise Undone

    with pytest.raises(Undone):
        await rig.store.write(undone)
    assert await rig.store.read(list_profiles, TENANT, "", 10) == []


def profile(*steps: dict[str, Any], **more: Any) -> Profile:
    made = parse({"profile": "p", "steps": list(steps), **more}).profile
    assert made is not None
    return made


def test_a_diff_names_steps_by_their_id_and_values_by_their_path() -> None:
    before = profile(
        {"id": "a", "use": "x", "with": {"keep": 1, "mode": {"deep": 1}}, "timeout": "1m"},
        {"use": "y"},
        {"id": "gone", "use": "z"},
        drivers={"power": "redfish"},
        hostConfig={"hostname": "n"},
    )
    after = profile(
        {"id": "new", "use": "x"},
        {"use": "y", "retries": 1},
        {"id": "a", "use": "x", "with": {"keep": 1, "mode": {"deep": True}}},
        drivers={"power": "ipmi"},
        description="d",
        cleanup=[{"use": "x"}],
    )
    changes = profile_changes(before, after)
    assert changes == [
        Change(path="description", kind="added", after="d"),
        Change(path="drivers.power", kind="changed", before="redfish", after="ipmi"),
        Change(path="steps[a].with.mode.deep", kind="changed", before=1, after=True),
        Change(path="steps[a].timeout", kind="removed", before="1m"),
        Change(path="steps[y].retries", kind="added", after=1),
        Change(path="steps[gone]", kind="removed", before={"id": "gone", "use": "z"}),
        Change(path="steps[new]", kind="added", after={"id": "new", "use": "x"}),
        Change(path="steps", kind="moved", before=["a", "y"], after=["y", "a"]),
        Change(path="cleanup[x]", kind="added", after={"use": "x"}),
        Change(path="hostConfig", kind="removed", before={"hostname": "n"}),
    ]
    assert profile_changes(before, after) == changes


def test_documents_that_say_the_same_have_no_differences() -> None:
    assert profile_changes(profile({"use": "x"}), profile({"use": "x", "with": {}}, cleanup=[])) == []
