"""Dell's server configuration profile: exported without its secrets, imported once, its job's end told."""

import json
from pathlib import Path
from typing import Any

import pytest

from drivers.redfish.server_profile import MASK, importable, is_secret, masked, profile_action
from protocol.errors import ErrorCode, OperationError
from simulators.redfish import Drop, FaultRule, ServiceOptions
from tests.drivers.redfish.harness import Bench, bench, without_waiting
from tests.drivers.redfish.test_mockups import TREES

EXPORT, IMPORT = "*ExportSystemConfiguration", "*ImportSystemConfiguration"
DELLS = [tree for tree in TREES if tree.startswith("dell-")]
BIOS = "/redfish/v1/Systems/System.Embedded.1/Bios"
ATTRIBUTES = "/redfish/v1/Managers/iDRAC.Embedded.1/Oem/Dell/DellAttributes/iDRAC.Embedded.1"


def profile(*attributes: tuple[str, str], component: str = "iDRAC.Embedded.1") -> str:
    listed = [{"Name": name, "Value": value} for name, value in attributes]
    return json.dumps({"SystemConfiguration": {"Components": [{"FQDD": component, "Attributes": listed}]}})


def test_half_a_character_in_a_profile_stays_as_the_bmc_escaped_it() -> None:
    half = '"Value": "\\ud800"'
    document = profile(("Users.2#UserName", "x"), ("Users.2#Password", "calvin")).replace('"Value": "x"', half)
    hidden, names = masked(document)
    assert (names, half in hidden) == (["Users.2#Password"], True)


def attributes_of(document: str, component: str | None = None) -> dict[str, str]:
    """Of every component, or of this one."""
    return {
        attribute["Name"]: attribute["Value"]
        for part in json.loads(document)["SystemConfiguration"]["Components"]
        for attribute in part["Attributes"]
        if component in (None, part["FQDD"])
    }


def components_of(document: str) -> list[str]:
    return [part["FQDD"] for part in json.loads(document)["SystemConfiguration"]["Components"]]


def sent(bmc: Bench) -> list[Any]:
    return [entry.body for entry in bmc.bmc.journal.entries("POST", IMPORT)]


@pytest.mark.parametrize("tree", DELLS)
def test_an_export_has_every_attribute_and_no_secret(tree: str, shared: Path) -> None:
    recorded = json.loads((shared / "mockups" / tree / ATTRIBUTES.strip("/") / "index.json").read_text())[
        "Attributes"
    ]

    @without_waiting
    async def on_this_tree() -> None:
        async with bench(shared / "mockups" / tree, options=ServiceOptions(task_seconds=120)) as bmc:
            exported = await bmc("config.exportConfig")
        assert exported["format"] == "dell-scp-json"
        shown = attributes_of(exported["document"])
        assert set(attributes_of(exported["document"], "iDRAC.Embedded.1")) == set(recorded)
        assert shown["NTPConfigGroup.1.NTPEnable"] == recorded["NTPConfigGroup.1.NTPEnable"]
        assert shown["SNMP.1.AgentCommunity"] == MASK
        assert shown["IPMILan.1.EncryptionKey"] == MASK
        assert {"SNMP.1.AgentCommunity", "IPMILan.1.EncryptionKey"} <= set(exported["masked"])
        (request,) = bmc.bmc.journal.entries("POST", EXPORT)
        assert request.body == {"ExportFormat": "JSON", "ShareParameters": {"Target": "ALL"}}

    on_this_tree()


@pytest.mark.parametrize("tree", DELLS)
def test_what_was_exported_can_be_imported_and_the_masks_become_no_passwords(tree: str, shared: Path) -> None:
    @without_waiting
    async def on_this_tree() -> None:
        async with bench(shared / "mockups" / tree, options=ServiceOptions(task_seconds=60)) as bmc:
            before = dict((bmc.bmc.state.document(ATTRIBUTES) or {})["Attributes"])
            document = (await bmc("config.exportConfig"))["document"]
            document = document.replace('"Value":"CST6CDT"', '"Value":"UTC"')
            imported = await bmc("config.importConfig", {"document": document})
            assert imported["resetOwed"] is False
            assert imported["task"].startswith("/redfish/v1/TaskService/Tasks/")
            after = (bmc.bmc.state.document(ATTRIBUTES) or {})["Attributes"]
            assert after["Time.1.Timezone"] == "UTC"
            assert after["SNMP.1.AgentCommunity"] == before["SNMP.1.AgentCommunity"]
            (body,) = sent(bmc)
            assert body["ShutdownType"] == "NoReboot"
            assert MASK not in body["ImportBuffer"]

    on_this_tree()


@pytest.mark.parametrize("tree", DELLS)
@pytest.mark.parametrize(
    ("part", "components"),
    [
        ("BIOS", ["BIOS.Setup.1-1"]),
        ("IDRAC", ["iDRAC.Embedded.1"]),
        ("System", ["System.Embedded.1"]),
        (
            None,
            ["iDRAC.Embedded.1", "System.Embedded.1", "LifecycleController.Embedded.1", "BIOS.Setup.1-1"],
        ),
    ],
)
def test_a_part_alone_is_exported_and_nothing_else(
    tree: str, part: str | None, components: list[str], shared: Path
) -> None:
    @without_waiting
    async def on_this_tree() -> None:
        async with bench(shared / "mockups" / tree, options=ServiceOptions(task_seconds=10)) as bmc:
            exported = await bmc("config.exportConfig", {"part": part} if part else {})
            assert components_of(exported["document"]) == components
            if part == "BIOS":
                recorded = (bmc.bmc.state.document(BIOS) or {})["Attributes"]
                shown = attributes_of(exported["document"])
                assert set(shown) == set(recorded)
                assert shown["AcPwrRcvryUserDelay"] == str(recorded["AcPwrRcvryUserDelay"])

    on_this_tree()


def test_bios_values_of_a_profile_take_effect_with_the_next_start(dell: Path) -> None:
    @without_waiting
    async def on_dell() -> None:
        async with bench(dell, options=ServiceOptions(task_seconds=10)) as bmc:
            document = (await bmc("config.exportConfig", {"part": "BIOS"}))["document"]
            assert (await bmc("config.importConfig", {"document": document}))["resetOwed"] is False
            changed = profile(("AcPwrRcvry", "Off"), component="BIOS.Setup.1-1")
            assert (await bmc("config.importConfig", {"document": changed}))["resetOwed"] is True
            assert (bmc.bmc.state.document(BIOS) or {})["Attributes"]["AcPwrRcvry"] == "Last"
            await bmc("power.setPower", {"action": "reset"})
            assert (bmc.bmc.state.document(BIOS) or {})["Attributes"]["AcPwrRcvry"] == "Off"

    on_dell()


@pytest.fixture
def dell(shared: Path) -> Path:
    return shared / "mockups" / DELLS[-1]


def test_what_needs_a_restart_waits_for_one_unless_it_is_allowed(dell: Path) -> None:
    @without_waiting
    async def on_dell() -> None:
        document = profile(("LogicalProc", "Disabled"), component="BIOS.Setup.1-1")
        async with bench(dell, options=ServiceOptions(task_seconds=10)) as bmc:
            assert (await bmc("config.importConfig", {"document": document}))["resetOwed"] is True
            now = await bmc("config.importConfig", {"document": document, "restart": "graceful"})
            assert now["resetOwed"] is False
            assert [body["ShutdownType"] for body in sent(bmc)] == ["NoReboot", "Graceful"]

    on_dell()


def test_a_failed_job_is_told_in_its_own_words(dell: Path) -> None:
    @without_waiting
    async def on_dell() -> None:
        document = '{"SystemConfiguration": {"Components": 3}}'
        async with bench(dell, options=ServiceOptions(task_seconds=10)) as bmc:
            error = await bmc.fails("config.importConfig", {"document": document})
            assert error.code is ErrorCode.NOT_APPLIED
            assert "not valid" in str(error)

    on_dell()


def test_a_lost_answer_to_an_import_is_not_made_up_for_by_another(dell: Path) -> None:
    @without_waiting
    async def on_dell() -> None:
        async with bench(dell, faults=[FaultRule(method="POST", path=IMPORT, drop=Drop.AFTER)]) as bmc:
            error = await bmc.fails("config.importConfig", {"document": profile(("SSH.1.Enable", "Enabled"))})
            assert error.code is ErrorCode.OUTCOME_UNKNOWN
            assert len(sent(bmc)) == 1

    on_dell()


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_server_error_to_an_import_may_come_from_one_that_did_it(dell: Path, status: int) -> None:
    @without_waiting
    async def on_dell() -> None:
        rule = FaultRule(method="POST", path=IMPORT, status=status, body={}, execute=True)
        async with bench(dell, faults=[rule]) as bmc:
            error = await bmc.fails("config.importConfig", {"document": profile(("SSH.1.Enable", "Enabled"))})
            assert error.code is ErrorCode.OUTCOME_UNKNOWN
            assert f"HTTP {status}" in error.message
            assert len(sent(bmc)) == 1

    on_dell()


def test_a_refusal_is_told_in_the_bmcs_words(dell: Path) -> None:
    @without_waiting
    async def on_dell() -> None:
        note = {"MessageId": "IDRAC.2.8.LC068", "Message": "A configuration job is running already."}
        body = {"error": {"@Message.ExtendedInfo": [note]}}
        async with bench(dell, faults=[FaultRule(method="POST", path=IMPORT, status=400, body=body)]) as bmc:
            error = await bmc.fails("config.importConfig", {"document": profile(("SSH.1.Enable", "Enabled"))})
            assert "running already" in str(error)

    on_dell()


def test_an_unknown_part_is_refused_with_those_that_there_are(dell: Path) -> None:
    @without_waiting
    async def on_dell() -> None:
        async with bench(dell) as bmc:
            error = await bmc.fails("config.exportConfig", {"part": "Engine"})
            assert error.code is ErrorCode.INVALID_ARGUMENT
            assert "RAID" in error.message
            assert bmc.requests("POST", EXPORT) == []

    on_dell()


def test_an_export_as_xml_is_taken_as_it_is(dell: Path) -> None:
    password = '<Attribute Name="Users.2#Password">s3cret</Attribute>'
    text = f'<SystemConfiguration Model="x"><Component FQDD="iDRAC">{password}</Component></SystemConfiguration>'
    task = {"@odata.id": "/redfish/v1/TaskService/Tasks/JID_1", "TaskState": "Running"}

    @without_waiting
    async def on_dell() -> None:
        rules = [
            FaultRule(method="POST", path=EXPORT, status=202, headers={"Location": task["@odata.id"]}),
            FaultRule(method="GET", path=task["@odata.id"], status=404, count=1),
            FaultRule(method="GET", path=task["@odata.id"], status=200, body=task, count=2),
            FaultRule(method="GET", path=task["@odata.id"], status=200, body=text),
        ]
        async with bench(dell, faults=rules) as bmc:
            exported = await bmc("config.exportConfig")
        assert exported["format"] == "dell-scp-xml"
        assert exported["masked"] == ["Users.2#Password"]
        assert "s3cret" not in exported["document"]

    on_dell()


def test_an_export_that_never_ends_says_what_its_task_last_said(dell: Path) -> None:
    @without_waiting
    async def on_dell() -> None:
        async with bench(dell, options=ServiceOptions(task_seconds=9000)) as bmc:
            error = await bmc.fails("config.exportConfig", timeout=100)
            assert error.code is ErrorCode.TIMEOUT
            assert "last said" in error.message

    on_dell()


@pytest.mark.parametrize("tree", [tree for tree in TREES if tree not in DELLS])
def test_every_other_bmc_says_that_it_has_no_such_profile(tree: str, shared: Path) -> None:
    @without_waiting
    async def on_this_tree() -> None:
        async with bench(shared / "mockups" / tree) as bmc:
            error = await bmc.fails("config.exportConfig")
            assert error.code is ErrorCode.UNSUPPORTED
            assert "Dell's own" in error.message
            error = await bmc.fails("config.importConfig", {"document": profile()})
            assert error.code is ErrorCode.UNSUPPORTED

    on_this_tree()


# Secrets


SECRETS = [
    "Users.2#Password",
    "Users.2.SHA256Password",
    "Users.2#SHA256PasswordSalt",
    "Users.2#MD5v3Key",
    "Users.2#IPMIKey",
    "SNMP.1#AgentCommunity",
    "IPMILan.1#EncryptionKey",
    "NTPConfigGroup.1#NTP1SecurityKey",
    "SetupPassword",
    "iSCSITgt#ChapSecret",
    "SNMPv3.1#AuthenticationPassphrase",
]
PLAIN = [
    "NTPConfigGroup.1#NTPEnable",
    "Users.2#UserName",
    "Security.1#PasswordMinimumLength",
    "PasswordStatus",
    "Users.2#Privilege",
    "NTPConfigGroup.1#NTP1SecurityType",
    "NTPConfigGroup.1.NTP1SecurityKeyNumber",
    "VirtualMedia.1#KeyEnable",
    "SECONDARYKEYBOARD",
]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_none_is_left_to_be_read(name: str) -> None:
    assert not is_secret(name)


def test_an_empty_secret_stays_empty_and_is_no_secret() -> None:
    shown, names = masked(profile(("Users.2#Password", ""), ("Users.3#Password", "x")))
    assert attributes_of(shown) == {"Users.2#Password": "", "Users.3#Password": MASK}
    assert names == ["Users.3#Password"]


def test_a_secret_in_clear_is_not_imported_and_not_repeated() -> None:
    with pytest.raises(OperationError) as caught:
        importable(profile(("Users.2#Password", "s3cret-value"), ("A", "b")))
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert "Users.2#Password" in caught.value.message
    assert "s3cret-value" not in str(caught.value)
    xml = '<SystemConfiguration><Attribute Name="Users.2#Password">s3cret-value</Attribute></SystemConfiguration>'
    with pytest.raises(OperationError, match="in clear"):
        importable(xml)


@pytest.mark.parametrize(
    "attribute",
    [
        '<Attribute Name="Users.2#Password"><![CDATA[s3cret<]value]]></Attribute>',
        '<Attribute Set="True" Name="Users.2#Password">s3cret-value</Attribute>',
        "<Attribute\n  Name = 'Users.2#Password' >s3cret-value</Attribute >",
    ],
)
def test_a_secret_in_xml_is_found_however_it_is_written(attribute: str) -> None:
    document = f'<SystemConfiguration><Attribute Name="A"/>{attribute}</SystemConfiguration>'
    shown, names = masked(document)
    assert "s3cret" not in shown
    assert names == ["Users.2#Password"]
    with pytest.raises(OperationError, match="in clear"):
        importable(document)


def test_xml_that_never_ends_its_tags_is_no_endless_work() -> None:
    for broken in ('<Attribute Name="a"', "<Attribute ", '<Attribute Name="a">', "<Attribute Name='"):
        masked("<SystemConfiguration>" + broken * 50_000)
    with pytest.raises(OperationError, match="without an end"):
        masked("<SystemConfiguration>" + "<![CDATA[" * 50_000)


def test_a_pin_that_is_a_number_and_a_secret_that_lies_deep_are_not_shown() -> None:
    document = {"SystemConfiguration": {"Attributes": [{"Name": "X.1.Password", "Value": 4711}]}}
    assert "4711" not in masked(json.dumps(document))[0]
    deep = "[" * 200 + json.dumps({"Name": "X.1.Password", "Value": "s3cret-value"}) + "]" * 200
    with pytest.raises(OperationError, match="levels deep"):
        masked('{"SystemConfiguration": {"a": ' + deep + "}}")


def test_what_is_masked_is_left_out_of_an_import() -> None:
    kept = importable(profile(("Users.2#Password", MASK), ("A", "b")))
    assert attributes_of(kept) == {"A": "b"}
    hidden, plain = f'<Attribute Name="X#Password">{MASK}</Attribute>', '<Attribute Name="A">b</Attribute>'
    xml = "<SystemConfiguration>{}</SystemConfiguration>"
    assert importable(xml.format(hidden + plain)) == xml.format(plain)


@pytest.mark.parametrize("document", ["", "[]", "{", '{"a": 1}', "<xml/>", '{"SystemConfiguration": []}', "x" * 100])
def test_a_document_that_is_no_profile_is_refused(document: str) -> None:
    with pytest.raises(OperationError, match="INVALID_ARGUMENT"):
        importable(document)


def test_an_action_is_found_under_every_version_of_its_schema() -> None:
    for key in (
        "#OemManager.ExportSystemConfiguration",
        "#OemManager.v1_4_0.OemManager#OemManager.ExportSystemConfiguration",
    ):
        manager = {"Actions": {"Oem": {key: {"target": "/x"}}}}
        assert profile_action(manager, "ExportSystemConfiguration") == {"target": "/x"}
    preview = {"Actions": {"Oem": {"#OemManager.ImportSystemConfigurationPreview": {"target": "/x"}}}}
    assert profile_action(preview, "ImportSystemConfiguration") is None
    assert profile_action({"Actions": {"Oem": None}}, "ImportSystemConfiguration") is None
