"""Recorded trees: every resource of every vendor is served as recorded, under any spelling of its path."""

import json
from pathlib import Path

import pytest

from simulators.redfish import OWN_TREE, RecordedTree, ServiceOptions, TreeError
from simulators.redfish.documents import JsonObject, Request, path_key
from simulators.redfish.service import RedfishService
from simulators.redfish.vendors import detect_behaviour
from tests.simulators.conftest import SYSTEM, Start, basic

# Vendor behaviour that each recorded tree is served with.
BEHAVIOUR_OF = {
    "cray-ex235a": "generic",
    "dell-r750-idrac9-6.00": "dell-idrac",
    "dell-r750-idrac9-7.10": "dell-idrac",
    "dmtf-catfish": "generic",
    "dmtf-rackmount1": "generic",
    "dmtf-tower": "generic",
    "gigabyte-h262-megarac": "generic",
    "hpe-dl380a-ilo6": "hpe-ilo",
    "hpe-dl385-ilo5": "hpe-ilo",
    "intel-s2600bpb": "generic",
    "lenovo-sr670v2-xcc": "lenovo-xcc",
    "nvidia-bluefield3": "generic",
    "nvidia-dgx-h100-ami": "generic",
    "nvidia-gh200-openbmc": "generic",
    "openbmc-stock": "generic",
    "supermicro-821ge": "supermicro",
    "supermicro-x10": "supermicro",
}
# Errors that were recorded in place of resources, and the status that their message stands for.
RECORDED_ERRORS = {403, 404}


@pytest.mark.parametrize("name", BEHAVIOUR_OF)
def test_every_resource_of_a_recorded_tree_is_served_as_recorded(shared: Path, name: str) -> None:
    tree = RecordedTree.load(shared / "mockups" / name)
    service = RedfishService(tree, users={}, options=ServiceOptions(open_reads=True))
    files = list((shared / "mockups" / name).rglob("index.json"))

    for file in files:
        path = "/" + file.parent.relative_to(shared / "mockups" / name).as_posix()
        recorded = json.loads(file.read_bytes())
        answer, _ = service.answer(Request("GET", path))
        if set(recorded) == {"error"}:
            assert answer.status in RECORDED_ERRORS, path
        else:
            assert answer.status == 200, path
            assert answer.headers["ETag"] == recorded.get("@odata.etag", answer.headers["ETag"])
        assert json.loads(answer.body) == recorded, path
    assert len(files) > 30
    assert service.behaviour.name == BEHAVIOUR_OF[name]


@pytest.mark.parametrize("name", BEHAVIOUR_OF)
def test_a_login_and_a_power_cycle_work_on_every_recorded_tree(shared: Path, name: str) -> None:
    tree = RecordedTree.load(shared / "mockups" / name)
    service = RedfishService(tree, users={"admin": "password"})
    system = service.machine.systems()[0]
    actions = (service.store.document(system) or {})["Actions"]
    target = actions["#ComputerSystem.Reset"]["target"]
    credentials = json.dumps({"UserName": "admin", "Password": "password"}).encode()

    login, _ = service.answer(Request("POST", service.sessions.collection, body=credentials))
    token = login.headers["X-Auth-Token"]
    statuses = []
    for reset_type in ("ForceOff", "On"):
        request = Request("POST", target, body=json.dumps({"ResetType": reset_type}).encode())
        request.headers["X-Auth-Token"] = token  # type: ignore[index]
        statuses.append(service.answer(request)[0].status)

    assert login.status == 201
    assert statuses in ([204, 204], [400, 400], [204, 400])
    if 204 in statuses:
        assert service.machine.history.resets[-1].resource == system


def test_our_own_tree_has_no_dangling_link() -> None:
    tree = RecordedTree.load(OWN_TREE)
    dangling = [
        (resource.path, link)
        for resource in tree
        for link in links_of(resource.document or {})
        if tree.find(link.partition("#")[0]) is None
    ]

    assert dangling == []


def test_our_own_tree_counts_its_members_right() -> None:
    tree = RecordedTree.load(OWN_TREE)

    for resource in tree:
        document = resource.document or {}
        if "Members" in document:
            assert document["Members@odata.count"] == len(document["Members"]), resource.path
        if "@odata.id" in document:
            assert path_key(document["@odata.id"]) == path_key(resource.path)


@pytest.mark.case("B59")
@pytest.mark.parametrize("path", [SYSTEM, f"{SYSTEM}/", SYSTEM.lower(), SYSTEM.upper().replace("V1", "v1") + "/"])
async def test_any_spelling_of_a_path_answers_directly(start: Start, path: str) -> None:
    bmc = await start()

    reply = await bmc.get(path, allow_redirects=False)

    assert reply.status == 200
    assert reply.data["@odata.id"] == SYSTEM


@pytest.mark.case("B59")
async def test_b59_every_path_answers_directly_with_a_slash_at_its_end_and_without(start: Start) -> None:
    bmc = await start()

    for resource in RecordedTree.load(OWN_TREE):
        for path in (resource.path.rstrip("/"), f"{resource.path.rstrip('/')}/"):
            assert (await bmc.get(path, allow_redirects=False)).status == 200, path


@pytest.mark.parametrize(
    ("path", "status"), [(SYSTEM, 200), (f"{SYSTEM}/", 404), (SYSTEM.lower(), 404), ("/redfish/v1/", 200)]
)
async def test_the_strict_mode_answers_the_recorded_spelling_only(start: Start, path: str, status: int) -> None:
    bmc = await start(options=ServiceOptions(strict_paths=True))

    assert (await bmc.get(path)).status == status


async def test_a_link_in_another_case_leads_to_its_resource(start: Start, shared: Path) -> None:
    bmc = await start(shared / "mockups" / "hpe-dl385-ilo5")

    settings = (await bmc.get("/redfish/v1/Systems/1/Bios")).data["@Redfish.Settings"]["SettingsObject"]["@odata.id"]

    assert settings == "/redfish/v1/systems/1/bios/settings/"
    assert (await bmc.get(settings)).status == 200


async def test_writes_never_reach_the_files(start: Start, shared: Path) -> None:
    folder = shared / "mockups" / "dmtf-catfish"
    before = {file: file.read_bytes() for file in folder.rglob("index.json")}
    bmc = await start(folder)

    assert (await bmc.patch(SYSTEM, {"AssetTag": "changed"})).status == 200
    await bmc.reset("ForceOff")

    assert {file: file.read_bytes() for file in folder.rglob("index.json")} == before
    assert RecordedTree.load(folder).document(SYSTEM)["PowerState"] == "On"


def test_a_folder_that_is_no_tree_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="has no folder 'redfish'"):
        RecordedTree.load(tmp_path)


def test_all_unreadable_files_of_a_tree_are_named_at_once(tmp_path: Path) -> None:
    for name, content in (("Systems", "{"), ("Chassis", "[]")):
        file = tmp_path / "redfish" / "v1" / name / "index.json"
        file.parent.mkdir(parents=True)
        file.write_text(content)

    with pytest.raises(TreeError) as caught:
        RecordedTree.load(tmp_path)

    for expected in (
        "Systems/index.json: not valid JSON",
        "Chassis/index.json: a resource must be",
        "service root is missing",
    ):
        assert expected in str(caught.value)


def test_a_vendor_is_known_by_its_own_marks_only(shared: Path) -> None:
    """An HPE Cray EX blade names HPE as manufacturer, and has no iLO."""
    assert detect_behaviour(RecordedTree.load(shared / "mockups" / "cray-ex235a")).name == "generic"


def test_logins_are_shown_in_the_account_slots_of_the_vendor(shared: Path) -> None:
    tree = RecordedTree.load(shared / "mockups" / "dell-r750-idrac9-6.00")
    service = RedfishService(tree, users={"operator7": "secret"})
    request = Request("GET", service.accounts.logins["operator7"].path)
    request.headers.update(basic("operator7", "secret"))  # type: ignore[union-attr]

    answer, principal = service.answer(request)

    assert principal.user == "operator7"
    assert json.loads(answer.body)["UserName"] == "operator7"
    assert b"secret" not in answer.body


def links_of(document: object) -> list[str]:
    if isinstance(document, dict):
        own = [document["@odata.id"]] if isinstance(document.get("@odata.id"), str) else []
        return own + [link for value in document.values() for link in links_of(value)]
    if isinstance(document, list):
        return [link for value in document for link in links_of(value)]
    return []


def test_reading_one_bmc_of_a_tree_shows_nothing_of_another() -> None:
    tree = RecordedTree.load(OWN_TREE)
    first, second = (RedfishService(tree, users={}, options=ServiceOptions(open_reads=True)) for _ in range(2))

    def change(document: JsonObject) -> None:
        document["AssetTag"] = "mine"
        document["Boot"]["BootOrder"].clear()

    first.store.edit(SYSTEM, change)

    assert (first.store.document(SYSTEM) or {})["AssetTag"] == "mine"
    assert (second.store.document(SYSTEM) or {})["AssetTag"] == ""
    assert len((second.store.document(SYSTEM) or {})["Boot"]["BootOrder"]) == 4
