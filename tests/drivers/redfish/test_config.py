"""The BMC's settings: read as the trees hold them, changed only where they differ, and told field by field."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivers.redfish import bmc_settings
from drivers.redfish.accounts import account_faults
from drivers.redfish.bmc_settings import (
    faults_of,
    host_name_wish,
    moment_of,
    ntp_of,
    ntp_wishes,
    oem_ntp_of,
    protocols_of,
    time_wishes,
)
from drivers.redfish.certificate_request import certificate_of, offer_of
from drivers.redfish.event_destinations import OUR_CONTEXT, destinations_of
from drivers.redfish.manners import OemSettings
from drivers.redfish.server_profile import profile_action
from protocol.errors import ErrorCode
from protocol.secret import Secret
from protocol.shapes.config import EventDestination, NetworkProtocolConfig, SetConfig
from simulators.redfish import Drop, FaultRule
from tests.drivers.redfish.harness import Bench, bench, without_waiting
from tests.drivers.redfish.test_mockups import DELL, HPE, LENOVO, SUPERMICRO, TREES

MANAGER = "/redfish/v1/Managers/1"
NETWORK = f"{MANAGER}/NetworkProtocol"
INTERFACE = f"{MANAGER}/EthernetInterfaces/1"
SUBSCRIPTIONS = "/redfish/v1/EventService/Subscriptions"
BLANK = ("", "0.0.0.0")
_WORDS = [
    "NTP",
    "NTPServers",
    "ProtocolEnabled",
    "Port",
    "SSH",
    "HTTPS",
    "DateTime",
    "DateTimeLocalOffset",
    "HostName",
    "Destination",
    "Context",
    "Protocol",
    "Subject",
    "Issuer",
    "Fingerprint",
    "FingerprintHashAlgorithm",
    "SerialNumber",
    "Parameters",
    "Name",
    "Required",
    "AllowableValues",
    "Actions",
    "Oem",
    "#x.ExportSystemConfiguration",
    "target",
    "Enabled",
    "Locked",
    "MinPasswordLength",
    "KeyUsage@Redfish.AllowableValues",
]
WITHOUT_NTP = ("intel-s2600bpb", "supermicro-x10")
"""Neither the standard nor the maker has a place for it there."""


def patches(bmc: Bench, path: str = "*") -> list[Any]:
    return [(entry.path, entry.body) for entry in bmc.bmc.journal.entries("PATCH", path)]


class Recorded:
    """A tree's own files, read without the driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def at(self, path: str | None) -> dict[str, Any]:
        file = self.folder / (path or "nowhere").strip("/") / "index.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def linked(self, document: dict[str, Any], *keys: str) -> dict[str, Any]:
        value: Any = document
        for key in keys:
            value = value.get(key) or {}
        return self.at(value.get("@odata.id"))

    def manager(self) -> dict[str, Any]:
        """The manager with a host behind it: of two, the one that is not an accelerator board's."""
        listed = self.linked(self.at("/redfish/v1"), "Managers")["Members"]
        found = [self.at(member["@odata.id"]) for member in listed]
        hosts = [
            one
            for one in found
            if any("HGX" not in link["@odata.id"] for link in one.get("Links", {}).get("ManagerForServers", []))
        ]
        return (hosts or found)[0]


@pytest.mark.parametrize("tree", TREES)
def test_every_tree_is_read_as_it_was_recorded(tree: str, shared: Path) -> None:
    recorded = Recorded(shared / "mockups" / tree)
    manager = recorded.manager()
    network = recorded.linked(manager, "NetworkProtocol")

    @without_waiting
    async def on_this_tree() -> None:
        async with bench(shared / "mockups" / tree) as bmc:
            config = await bmc("config.getConfig")
        assert config["time"] == manager.get("DateTime")
        offset = manager.get("DateTimeLocalOffset")
        assert config["timeOffset"] == (None if offset is None else str(offset))
        named = network.get("HostName")
        if named is None:
            listed = recorded.linked(manager, "EthernetInterfaces").get("Members", [])
            names = [recorded.at(member["@odata.id"]).get("HostName") for member in listed]
            named = next((name for name in names if name), None)
        assert config["hostName"] == named
        ntp = network.get("NTP") or {}
        assert config["ntpEnabled"] == ntp.get("ProtocolEnabled")
        servers = ntp.get("NTPServers")
        if servers is None and tree.startswith("hpe"):
            servers = recorded.linked(manager, "Oem", "Hpe", "Links", "DateTimeService")["StaticNTPServers"]
        assert config["ntpServers"] == [server.strip() for server in servers or [] if server not in BLANK]
        expected = {
            name: {"enabled": value["ProtocolEnabled"], "port": value.get("Port") or None}
            for name, value in network.items()
            if isinstance(value, dict) and isinstance(value.get("ProtocolEnabled"), bool) and name != "NTP"
        }
        assert config["protocols"] == expected
        listed = recorded.linked(recorded.linked(recorded.at("/redfish/v1"), "EventService"), "Subscriptions")
        subscribed = [recorded.at(member["@odata.id"]) for member in listed.get("Members", [])]
        assert config["eventDestinations"] == [
            {"url": one["Destination"], "context": one.get("Context") or None}
            for one in subscribed
            if "://" in (one.get("Destination") or "") and one.get("Protocol", "Redfish") == "Redfish"
        ]

    on_this_tree()


# The least: service root and login, systems and system, manager, its protocols, the event service, its subscriptions.
LEAST = {DELL: 8, LENOVO: 8, HPE: 9, SUPERMICRO: 8}


@pytest.mark.parametrize("tree", LEAST)
def test_a_reading_costs_no_more_than_the_least(tree: str, shared: Path) -> None:
    """HPE keeps its NTP servers apart; on Supermicro 16 slots and two interfaces (its host name is null) come with
    it, less what $expand saves."""
    least = LEAST[tree]

    @without_waiting
    async def on_this_tree() -> None:
        async with bench(shared / "mockups" / tree) as bmc:
            await bmc("config.getConfig")
            more = 3 if tree == SUPERMICRO else 0
            slots = len(bmc.requests("GET", f"{SUBSCRIPTIONS}/*"))
            assert len(bmc.requests()) - more - slots <= least

    on_this_tree()


@pytest.mark.parametrize("tree", [tree for tree in TREES if not tree.startswith("dmtf-")])
def test_host_name_and_servers_are_changed_on_every_tree_that_has_a_place_for_them(tree: str, shared: Path) -> None:
    @without_waiting
    async def on_this_tree() -> None:
        async with bench(shared / "mockups" / tree) as bmc:
            before = await bmc("config.getConfig")
            wanted: dict[str, Any] = {"ntpServers": ["192.0.2.1", "ntp.example"]}
            if before["hostName"] is not None:
                wanted["hostName"] = "bmc-new"
            if tree in WITHOUT_NTP:
                error = await bmc.fails("config.setConfig", wanted)
                assert error.code is ErrorCode.UNSUPPORTED
                assert list(error.details["failed"]) == ["ntpServers"]  # type: ignore[call-overload]
                wanted.pop("ntpServers")
            else:
                assert sorted((await bmc("config.setConfig", wanted))["changed"]) == sorted(wanted)
                assert (await bmc("config.getConfig"))["ntpServers"] == wanted["ntpServers"]
            sent = len(patches(bmc))
            assert await bmc("config.setConfig", wanted) == {"changed": []}
            assert len(patches(bmc)) == sent

    on_this_tree()


# Only what differs


@without_waiting
async def test_only_what_differs_is_sent_and_in_one_request_per_resource() -> None:
    async with bench() as bmc:
        changed = await bmc(
            "config.setConfig",
            {
                "hostName": "rw-sim-bmc",
                "ntpEnabled": True,
                "ntpServers": ["192.0.2.11", "192.0.2.10"],
                "protocols": {
                    "IPMI": {"enabled": False},
                    "SSH": {"enabled": True, "port": 2222},
                    "KVMIP": {"enabled": True},
                },
            },
        )
        assert changed == {"changed": ["protocols.IPMI", "protocols.SSH", "ntpServers"]}
        assert patches(bmc) == [
            (
                NETWORK,
                {
                    "IPMI": {"ProtocolEnabled": False},
                    "SSH": {"Port": 2222},
                    "NTP": {"NTPServers": ["192.0.2.11", "192.0.2.10"]},
                },
            )
        ]
        again = await bmc("config.setConfig", {"protocols": {"IPMI": {"enabled": False}}})
        assert again == {"changed": []}
        assert len(patches(bmc)) == 1


@without_waiting
async def test_the_order_of_the_servers_is_a_difference() -> None:
    async with bench() as bmc:
        assert (await bmc("config.setConfig", {"ntpServers": ["192.0.2.10", "192.0.2.11"]}))["changed"] == []
        await bmc("config.setConfig", {"ntpServers": ["192.0.2.11", "192.0.2.10"]})
        assert (await bmc("config.getConfig"))["ntpServers"] == ["192.0.2.11", "192.0.2.10"]


@without_waiting
async def test_a_host_name_goes_to_the_interface_and_where_that_refuses_to_the_protocols() -> None:
    async with bench() as bmc:
        await bmc("config.setConfig", {"hostName": "bmc-7"})
        assert patches(bmc) == [(INTERFACE, {"HostName": "bmc-7"})]
        read_only = FaultRule(method="PATCH", path=INTERFACE, status=400, body=refusal("PropertyNotWritable"))
        bmc.bmc.faults.add(read_only)
        assert await bmc("config.setConfig", {"hostName": "bmc-8"}) == {"changed": ["hostName"]}
        assert patches(bmc)[-1] == (NETWORK, {"HostName": "bmc-8"})


@without_waiting
async def test_the_clock_is_set_in_the_bmcs_own_offset() -> None:
    async with bench() as bmc:
        await bmc("config.setConfig", {"time": "2030-01-31T12:00:00+02:00"})
        assert patches(bmc) == [(MANAGER, {"DateTime": "2030-01-31T10:00:00Z"})]
        await bmc("config.setConfig", {"time": "2030-01-31T10:00:01Z"})
        assert len(patches(bmc)) == 1


@without_waiting
async def test_now_is_the_clock_of_this_host_and_the_offset_goes_with_it() -> None:
    async with bench() as bmc:
        changed = await bmc("config.setConfig", {"time": "now", "timeOffset": "+02:00"})
        assert changed == {"changed": ["timeOffset", "time"]}
        ((_, body),) = patches(bmc)
        assert body["DateTimeLocalOffset"] == "+02:00"
        assert body["DateTime"].endswith("+02:00")


# Vendors' own places


def test_dells_attributes_serve_where_the_standard_is_refused(shared: Path) -> None:
    @without_waiting
    async def on_dell() -> None:
        async with bench(shared / "mockups" / DELL) as bmc:
            network = "/redfish/v1/Managers/iDRAC.Embedded.1/NetworkProtocol"
            bmc.bmc.faults.add(
                FaultRule(method="PATCH", path=network, status=400, body=refusal("PropertyNotWritable"))
            )
            changed = await bmc("config.setConfig", {"ntpServers": ["192.0.2.1"], "ntpEnabled": True})
            assert sorted(changed["changed"]) == ["ntpEnabled", "ntpServers"]
            own = "/redfish/v1/Managers/iDRAC.Embedded.1/Oem/Dell/DellAttributes/iDRAC.Embedded.1"
            attributes: dict[str, Any] = {}
            for _, body in patches(bmc, own):
                attributes |= body["Attributes"]
            assert attributes == {
                "NTPConfigGroup.1.NTP1": "192.0.2.1",
                "NTPConfigGroup.1.NTP2": "",
                "NTPConfigGroup.1.NTP3": "",
                "NTPConfigGroup.1.NTPEnable": "Enabled",
            }

    on_dell()


def test_a_vendors_list_and_its_single_properties_are_read_alike() -> None:
    one = OemSettings(("Oem",), ("Static",), ntp_effective="Used")
    assert oem_ntp_of(one, {"Static": ["a", "0.0.0.0"], "Used": ["a", "b", ""]}) == (None, ["a"], ["b"])
    three = OemSettings(("Oem",), ("A/1", "A/2"), ntp_enabled="A/On")
    assert oem_ntp_of(three, {"A": {"1": "x", "2": "", "On": "Disabled"}}) == (False, ["x"], [])
    assert oem_ntp_of(three, None) == (None, [], [])


@without_waiting
async def test_a_bmc_with_fixed_slots_is_given_the_rest_as_gone() -> None:
    """It keeps its second server unless that is named as null."""
    async with bench() as bmc:
        rule = FaultRule(method="PATCH", path=NETWORK, match_body={"NTP": {"NTPServers": ["192.0.2.1"]}}, status=200)
        bmc.bmc.faults.add(rule)
        await bmc("config.setConfig", {"ntpServers": ["192.0.2.1"]})
        assert patches(bmc)[-1][1] == {"NTP": {"NTPServers": ["192.0.2.1", None]}}
        assert (await bmc("config.getConfig"))["ntpServers"] == ["192.0.2.1"]


# What is refused before anything is sent


@pytest.mark.parametrize("scheme", ["http", "https"])
@without_waiting
async def test_what_carries_this_connection_is_not_switched_off(scheme: str) -> None:
    async with bench(tls=scheme == "https", verify=False) as bmc:
        for setting in ({"enabled": False}, {"enabled": True, "port": 8443}):
            error = await bmc.fails("config.setConfig", {"hostName": "x", "protocols": {"HTTPS": setting}})
            assert error.code is ErrorCode.INVALID_ARGUMENT
            assert "this very connection" in error.message
        assert patches(bmc) == []


@without_waiting
async def test_every_fault_is_told_at_once() -> None:
    async with bench() as bmc:
        error = await bmc.fails(
            "config.setConfig",
            {
                "hostName": "no_name",
                "ntpServers": ["ntp.example", "ntp.example", "http://x/"],
                "time": "yesterday",
                "timeOffset": "2",
                "protocols": {
                    "ssh": {"enabled": True},
                    "Gopher": {"enabled": True},
                    "IPMI": {"enabled": True, "port": 0},
                },
                "eventDestinations": [
                    {"url": "ftp://x"},
                    {"url": "https://u:p@x/"},
                    {"url": "https://a/"},
                    {"url": "https://a/"},
                ],
            },
        )
        paths = [issue["path"] for issue in error.details["issues"]]  # type: ignore[attr-defined]
        assert paths == [
            "hostName",
            "ntpServers[2]",
            "ntpServers",
            "time",
            "timeOffset",
            "protocols.ssh",
            "protocols.Gopher",
            "protocols.IPMI.port",
            "eventDestinations[0].url",
            "eventDestinations[1].url",
            "eventDestinations[3].url",
        ]
        assert "did you mean SSH?" in error.message
        assert patches(bmc) == []


@pytest.mark.parametrize("name", ["bmc7", "a", "bmc-7.rack4.example", "7", "x" * 63])
def test_a_host_name_is_taken(name: str) -> None:
    assert faults_of(SetConfig(host_name=name), {}, ()) == []


@pytest.mark.parametrize("name", ["", "-a", "a-", "a..b", "x" * 64, "a b", "bmc\n"])
def test_a_host_name_is_refused(name: str) -> None:
    assert len(faults_of(SetConfig(host_name=name), {}, ())) == 1


# Some yes, some no


def refusal(key: str, text: str = "refused") -> dict[str, Any]:
    note = {"MessageId": f"Base.1.12.{key}", "Message": text}
    return {"error": {"code": note["MessageId"], "message": text, "@Message.ExtendedInfo": [note]}}


@without_waiting
async def test_what_was_changed_and_what_was_not_is_told_exactly_with_the_bmcs_words() -> None:
    rules = [
        FaultRule(
            method="PATCH",
            path=NETWORK,
            match_body={"IPMI": {}},
            status=400,
            body=refusal("PropertyValueConflict", "IPMI is locked by policy."),
        )
    ]
    async with bench(faults=rules) as bmc:
        error = await bmc.fails(
            "config.setConfig",
            {"ntpServers": ["192.0.2.1"], "protocols": {"IPMI": {"enabled": False}}, "hostName": "bmc-9"},
        )
        assert error.details["changed"] == ["ntpServers", "hostName"]
        failed: Any = error.details["failed"]
        assert list(failed) == ["protocols.IPMI"]
        assert failed["protocols.IPMI"]["bmc"][0]["text"] == "IPMI is locked by policy."
        assert [message.text for message in error.bmc] == ["IPMI is locked by policy."]
        assert "ntpServers was changed" in error.message
        config = await bmc("config.getConfig")
        assert (config["ntpServers"], config["hostName"]) == (["192.0.2.1"], "bmc-9")
        assert config["protocols"]["IPMI"]["enabled"] is True


@without_waiting
async def test_a_yes_that_does_not_read_back_is_not_applied() -> None:
    async with bench(faults=[FaultRule(method="PATCH", path=NETWORK, status=204)]) as bmc:
        error = await bmc.fails("config.setConfig", {"protocols": {"IPMI": {"enabled": False}}})
        assert error.code is ErrorCode.NOT_APPLIED
        assert error.details["changed"] == []


@pytest.mark.parametrize("drop", [Drop.BEFORE, Drop.AFTER])
@without_waiting
async def test_a_lost_answer_is_made_up_for_by_reading(drop: Drop) -> None:
    async with bench(faults=[FaultRule(method="PATCH", path=NETWORK, drop=drop)]) as bmc:
        wanted = {"protocols": {"IPMI": {"enabled": False}}}
        if drop is Drop.AFTER:
            assert await bmc("config.setConfig", wanted) == {"changed": ["protocols.IPMI"]}
        else:
            assert (await bmc.fails("config.setConfig", wanted)).code is ErrorCode.OUTCOME_UNKNOWN
        assert len(patches(bmc)) == 1


@without_waiting
async def test_a_bmc_that_cannot_be_spoken_to_any_more_is_asked_nothing_more() -> None:
    async with bench(faults=[FaultRule(method="PATCH,GET", path=f"{INTERFACE}*", status=503)]) as bmc:
        bmc.bmc.faults.add(FaultRule(method="PATCH", path=NETWORK, status=503))
        error = await bmc.fails("config.setConfig", {"protocols": {"IPMI": {"enabled": False}}, "time": "now"})
        assert error.code is ErrorCode.BUSY
        assert error.details["notTried"] == ["time"]


# Event destinations


@without_waiting
async def test_a_destination_is_made_only_where_it_is_missing() -> None:
    async with bench() as bmc:
        wanted = {
            "eventDestinations": [
                {"url": "https://events.example/a"},
                {"url": "https://b.example/", "context": "ops"},
            ]
        }
        assert await bmc("config.setConfig", wanted) == {"changed": ["eventDestinations"]}
        assert await bmc("config.setConfig", wanted) == {"changed": []}
        assert len(bmc.requests("POST", SUBSCRIPTIONS)) == 2
        assert (await bmc("config.getConfig"))["eventDestinations"] == [
            {"url": "https://events.example/a", "context": OUR_CONTEXT},
            {"url": "https://b.example/", "context": "ops"},
        ]


@without_waiting
async def test_ours_are_taken_away_by_their_context_and_nobody_elses() -> None:
    async with bench() as bmc:
        for url, context in (("https://ours.example/", OUR_CONTEXT), ("https://theirs.example/", "theirs")):
            listed = {"url": url, "context": context}
            await bmc("config.setConfig", {"eventDestinations": [listed]})
        assert [one["url"] for one in (await bmc("config.getConfig"))["eventDestinations"]] == [
            "https://theirs.example/"
        ]
        await bmc("config.setConfig", {"eventDestinations": []})
        assert len((await bmc("config.getConfig"))["eventDestinations"]) == 1


@without_waiting
async def test_a_refused_duplicate_is_told_in_the_bmcs_words_unless_it_is_there() -> None:
    body = refusal("ResourceAlreadyExists", "There is such a subscription.")
    async with bench(faults=[FaultRule(method="POST", path=SUBSCRIPTIONS, status=400, body=body)]) as bmc:
        error = await bmc.fails("config.setConfig", {"eventDestinations": [{"url": "https://a.example/"}]})
        assert "There is such a subscription." in str(error)
        bmc.bmc.faults.clear()
        bmc.bmc.faults.add(FaultRule(method="POST", path=SUBSCRIPTIONS, status=409, body=body, execute=True))
        assert (await bmc("config.setConfig", {"eventDestinations": [{"url": "https://a.example/"}]}))["changed"]


@without_waiting
async def test_what_the_bmc_misses_in_a_subscription_is_added() -> None:
    body = refusal("PropertyMissing", "The property DeliveryRetryPolicy is missing.")
    rule = FaultRule(method="POST", path=SUBSCRIPTIONS, count=1, status=400, body=body)
    async with bench(faults=[rule]) as bmc:
        await bmc("config.setConfig", {"eventDestinations": [{"url": "https://a.example/"}]})
        first, second = (entry.body for entry in bmc.bmc.journal.entries("POST", SUBSCRIPTIONS))
        assert "DeliveryRetryPolicy" not in first
        assert second["DeliveryRetryPolicy"] == "RetryForever"


@without_waiting
async def test_a_bmc_without_an_event_service_says_so() -> None:
    async with bench() as bmc:
        bmc.bmc.state.remove("/redfish/v1/EventService")
        error = await bmc.fails("config.setConfig", {"eventDestinations": [{"url": "https://a.example/"}]})
        assert error.code is ErrorCode.UNSUPPORTED
        assert (await bmc("config.getConfig"))["eventDestinations"] == []


# Half-broken input


def test_settings_of_strange_types_are_left_out() -> None:
    broken = {
        "SSH": None,
        "IPMI": {"ProtocolEnabled": None},
        "HTTPS": {"ProtocolEnabled": True, "Port": "443"},
        "X": 3,
    }
    assert protocols_of(broken) == {"HTTPS": NetworkProtocolConfig(enabled=True, port=443)}
    assert protocols_of(None) == {}
    assert ntp_of({"NTP": {"ProtocolEnabled": "yes", "NTPServers": [None, 3, " a "]}}) == (None, ["a"], [])
    assert ntp_of({"NTP": []}) == (None, [], [])
    assert destinations_of([{}, {"Destination": 3}, {"Destination": "127.0.0.1"}, {"Destination": "http://a"}]) == [
        EventDestination(url="http://a")
    ]
    assert moment_of("0000-00-00T00:00:00Z") is None
    assert moment_of(None) is None


def test_the_interface_that_bears_the_bmcs_name_is_chosen() -> None:
    interfaces: list[tuple[str, dict[str, Any]]] = [
        ("/usb", {"HostName": ""}),
        ("/off", {"HostName": "b", "InterfaceEnabled": False}),
        ("/eth", {"HostName": "b"}),
    ]
    wish = host_name_wish("new", ("/net", {"HostName": "b"}), interfaces, None)
    assert wish is not None
    assert [way.path for way in wish.ways] == ["/eth", "/net"]
    assert host_name_wish("B", ("/net", {"HostName": "b"}), interfaces, None) is None


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_WORDS) | st.text(max_size=5), inner),
    max_leaves=25,
)


@given(st.dictionaries(st.sampled_from(_WORDS) | st.text(max_size=5), _json))
@settings(max_examples=300, deadline=None)
def test_no_document_breaks_the_reading(document: dict[str, Any]) -> None:
    protocols_of(document)
    ntp_of(document)
    oem_ntp_of(
        OemSettings(("Oem",), ("NTP/NTPServers",), ntp_effective="NTPServers", ntp_enabled="NTP/Name"), document
    )
    destinations_of([document])
    certificate_of(document)
    offer_of(document, document)
    profile_action(document, "ExportSystemConfiguration")
    account_faults(document, document, "user", Secret("secret"))
    moment_of(document.get("DateTime"))
    ntp_wishes(SetConfig(ntp_servers=["a"], ntp_enabled=True), ("/n", document), None)
    host_name_wish("a", ("/n", document), [("/e", document)], None)
    time_wishes("/m", document, SetConfig(time="now", time_offset="+02:00"), lambda: 0.0)


def test_requests_are_merged_without_losing_either() -> None:
    body = {"NTP": {"ProtocolEnabled": True}}
    bmc_settings.merge(body, {"NTP": {"NTPServers": ["a"]}, "SSH": {"Port": 1}})
    assert body == {"NTP": {"ProtocolEnabled": True, "NTPServers": ["a"]}, "SSH": {"Port": 1}}


@pytest.mark.parametrize("tree", TREES)
def test_every_tree_is_given_a_destination_and_loses_it_again(tree: str, shared: Path) -> None:
    """Supermicro has slots that are always there, and switches one on; the others make and delete."""
    url = "https://events.example/hook"

    @without_waiting
    async def on_this_tree() -> None:
        async with bench(shared / "mockups" / tree) as bmc:
            before = (await bmc("config.getConfig"))["eventDestinations"]
            service = bmc.bmc.service.store.tree.root.get("EventService")
            state = bmc.bmc.state.document(service["@odata.id"]) if service else None
            if state is None or state.get("ServiceEnabled") is False:
                error = await bmc.fails("config.setConfig", {"eventDestinations": [{"url": url}]})
                assert error.code is ErrorCode.UNSUPPORTED
                return
            assert await bmc("config.setConfig", {"eventDestinations": [{"url": url}]}) == {
                "changed": ["eventDestinations"]
            }
            ours = {"url": url, "context": OUR_CONTEXT}
            found = (await bmc("config.getConfig"))["eventDestinations"]
            assert ours in found
            assert all(one in found for one in before)
            assert await bmc("config.setConfig", {"eventDestinations": []}) == {"changed": ["eventDestinations"]}
            assert (await bmc("config.getConfig"))["eventDestinations"] == before

    on_this_tree()
