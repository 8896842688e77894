"""Profiles over the API: stored in versions, checked as a whole, compared."""

from typing import Any

from tests.control_plane.api_harness import Api


def document(name: str = "deploy", **changes: Any) -> dict[str, Any]:
    step = {"id": "restart", "use": "power.setPower", "on": "site", "with": {"action": "reset"}}
    return {"profile": name, "drivers": {"power": "redfish"}, "steps": [step, {"use": "boot.kexec"}], **changes}


async def test_a_profile_is_stored_shown_and_listed(api: Api) -> None:
    made = await api.ok("profiles.create", {"document": document(description="first")})
    assert (made["name"], made["version"], made["changed"], made["usedAt"]) == ("deploy", 1, True, None)
    assert made["id"].startswith("prof_")
    changed = await api.ok("profiles.create", {"document": document(description="second")})
    assert (changed["id"], changed["version"]) == (made["id"], 2)
    again = await api.ok("profiles.create", {"document": document(description="second")})
    assert (again["version"], again["changed"]) == (2, False)

    shown = await api.ok("profiles.get", {"profileId": "deploy"})
    assert (shown["version"], shown["document"]) == (2, document(description="second"))
    first = await api.ok("profiles.get", {"profileId": made["id"], "version": 1})
    assert first["document"]["description"] == first["description"] == "first"
    (listed,) = (await api.ok("profiles.list"))["items"]
    assert listed == {name: value for name, value in shown.items() if name != "document"}


async def test_creating_is_in_the_audit_trail(api: Api) -> None:
    made = await api.ok("profiles.create", {"document": document()})
    line = (await api.ok("audit.list", {"limit": 1}))["items"][0]
    assert (line["action"], line["resource"]) == ("compute:profiles:manage", f"compute-profile/{made['id']}")
    assert line["detail"] == {"verb": "profiles.create", "name": "deploy", "version": 1, "changed": True}


async def test_every_fault_is_told_and_nothing_stored(api: Api) -> None:
    faulty = document(steps=[{"use": "power.setPowr"}, {"use": "boot.kexec", "on": "site", "retries": -1}])
    refused = await api.call("profiles.create", {"document": faulty})
    assert (refused.status, refused.code) == (400, "INVALID_INPUT")
    assert refused.message == "the profile has 3 faults"
    assert set(refused.faults) == {"steps[0].use", "steps[1].retries", "steps[1].on"}
    assert (await api.ok("profiles.list"))["items"] == []


async def test_validating_lists_the_faults_or_the_steps(sqlite_api: Api) -> None:
    api = sqlite_api
    answer = await api.ok("profiles.validate", {"document": document(drivers={})})
    assert (answer["valid"], answer["steps"]) == (False, [])
    (issue,) = answer["issues"]
    assert issue["path"] == "steps[0].use"
    assert issue["hint"] == "add it to drivers, such as power: redfish"

    answer = await api.ok("profiles.validate", {"document": document()})
    assert (answer["valid"], answer["issues"]) == (True, [])
    restart, kexec = answer["steps"]
    assert restart == {
        "id": "restart",
        "phase": "main",
        "action": "power.setPower",
        "runsOn": "site",
        "driver": "redfish",
        "timeoutMs": 600_000,
        "retries": 0,
        "onFailure": "fail",
        "awaitRejoin": False,
        "when": None,
    }
    assert (kexec["runsOn"], kexec["awaitRejoin"]) == ("ramdisk", True)
    assert (await api.ok("profiles.list"))["items"] == []


async def test_a_document_is_an_object(sqlite_api: Api) -> None:
    faulty: list[dict[str, Any]] = [{}, {"document": []}, {"document": None}, {"document": "profile: x"}]
    for wrong in faulty:
        answer = await sqlite_api.call("profiles.validate", wrong)
        assert (answer.status, list(answer.faults)) == (400, ["document"])


async def test_versions_go_page_by_page_newest_first(api: Api) -> None:
    for number in range(1, 6):
        await api.ok("profiles.create", {"document": document(description=f"{number}")})
    seen, cursor = [], None
    while True:
        request = {"profileId": "deploy", "limit": 2} | ({} if cursor is None else {"cursor": cursor})
        answer = await api.ok("profiles.versions", request)
        seen += [(item["version"], item["description"]) for item in answer["items"]]
        cursor = answer["cursor"]
        if cursor is None:
            break
    assert seen == [(number, f"{number}") for number in (5, 4, 3, 2, 1)]
    for wrong in ("xx", "!", "YWJj"):
        assert (await api.call("profiles.versions", {"profileId": "deploy", "cursor": wrong})).status == 400


async def test_profiles_go_page_by_page(api: Api) -> None:
    for name in ("a", "b", "c"):
        await api.ok("profiles.create", {"document": document(name)})
    first = await api.ok("profiles.list", {"limit": 2})
    rest = await api.ok("profiles.list", {"limit": 2, "cursor": first["cursor"]})
    assert [item["name"] for item in first["items"] + rest["items"]] == ["a", "b", "c"]
    assert rest["cursor"] is None


async def test_a_diff_shows_what_changed(api: Api) -> None:
    await api.ok("profiles.create", {"document": document()})
    await api.ok("profiles.create", {"document": document(drivers={"power": "ipmi"}, cleanup=[{"use": "task.run"}])})
    request = {"profileId": "deploy", "before": 1, "after": 2}
    answer = await api.ok("profiles.diff", request)
    assert (answer["name"], answer["before"], answer["after"]) == ("deploy", 1, 2)
    assert answer["changes"] == [
        {"path": "drivers.power", "kind": "changed", "before": "redfish", "after": "ipmi"},
        {"path": "cleanup[task.run]", "kind": "added", "before": None, "after": {"use": "task.run"}},
    ]
    assert (await api.ok("profiles.diff", {**request, "after": 1}))["changes"] == []
    assert (await api.call("profiles.diff", {**request, "after": 3})).code == "NOT_FOUND"
    assert (await api.call("profiles.diff", {**request, "after": 0})).code == "INVALID_INPUT"
