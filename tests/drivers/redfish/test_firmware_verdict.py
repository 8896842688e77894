"""What readings say of an update: which component is meant, whether a version is shown, and what has come of it."""

from typing import Any

import pytest

from drivers.firmware_components import closest, counterpart, is_version, meant_by, showing
from drivers.redfish.firmware_verdict import Seen, judge, says_reset_is_owed
from drivers.redfish.image_source import Image
from drivers.redfish.manners import Manners
from drivers.redfish.messages import Note
from drivers.redfish.update_service import UpdateService, after_refusal
from protocol.errors import BmcMessage
from protocol.shapes.firmware import FirmwareComponent, Transport

INVENTORY = "/redfish/v1/UpdateService/FirmwareInventory"


def part(identifier: str, version: str | None, name: str = "", **more: Any) -> FirmwareComponent:
    return FirmwareComponent(
        id=identifier, name=name or identifier, version=version, path=f"{INVENTORY}/{identifier}", **more
    )


@pytest.mark.parametrize(
    ("expected", "shown"),
    [
        ("2.72", "2.72"),
        ("2.72", "2.72 Sep 04 2022"),
        ("2.72", "iLO 5 v2.72"),
        ("v2.72", "2.72"),
        ("1.4", "BIOS Date: 08/04/2023 Ver 1.4"),
        ("2.44", "U58 v2.44 (01/17/2025)"),
        ("U58 v2.44 (01/17/2025)", "U58 v2.44 (01/17/2025)"),
        ("42s-2.83", "42S-2.83"),
    ],
)
def test_a_version_is_shown_whole_or_as_a_word(expected: str, shown: str) -> None:
    assert is_version(expected, shown)


@pytest.mark.parametrize(
    ("expected", "shown"),
    [("2.7", "2.72"), ("2.72", "12.72"), ("2.83", "42S-2.83"), ("", ""), ("1", None), ("1.4", "1.4.2")],
)
def test_a_part_of_a_version_is_another_version(expected: str, shown: str | None) -> None:
    assert not is_version(expected, shown)


DELL_BEFORE = [
    part("Installed-159-1.13.2__BIOS.Setup.1-1", "1.13.2", "BIOS"),
    part("Current-159-1.13.2__BIOS.Setup.1-1", "1.13.2", "BIOS", active=False),
    part("Previous-159-1.6.5__BIOS.Setup.1-1", "1.6.5", "BIOS", active=False),
    part("Installed-110428-00.1D.9C__PSU.Slot.1", "00.1D.9C", "Power Supply"),
]
DELL_AFTER = [
    part("Installed-159-1.14.0__BIOS.Setup.1-1", "1.14.0", "BIOS"),
    part("Previous-159-1.13.2__BIOS.Setup.1-1", "1.13.2", "BIOS", active=False),
    part("Installed-110428-00.1D.9C__PSU.Slot.1", "00.1D.9C", "Power Supply"),
]


@pytest.mark.parametrize("target", ["BIOS", DELL_BEFORE[0].id, DELL_BEFORE[0].path, ""])
def test_a_component_whose_id_holds_its_version_is_followed_over_the_update(target: str) -> None:
    verdict = judge(DELL_BEFORE, DELL_AFTER, [target] if target else [], "1.14.0")
    assert verdict.seen is Seen.REACHED
    assert verdict.after == {DELL_BEFORE[0].id: "1.14.0"}
    assert showing("1.14.0", [target] if target else [], DELL_AFTER)


def test_an_image_that_comes_under_a_new_id_is_the_successor_of_what_it_belongs_to() -> None:
    manager = ["/redfish/v1/Managers/bmc"]
    before = [part("5d0869c4", "2.15", related=manager)]
    standby = [part("5d0869c4", "2.15", related=manager), part("77aa00cc", "2.16", related=manager, active=False)]
    running = [part("77aa00cc", "2.16", related=manager), part("5d0869c4", "2.15", related=manager, active=False)]
    assert judge(before, standby, ["5d0869c4"], "2.16").seen is Seen.STAGED
    verdict = judge(before, running, ["5d0869c4"], "2.16")
    assert (verdict.seen, verdict.after) == (Seen.REACHED, {"5d0869c4": "2.16"})


def test_short_versions_do_not_make_two_components_one() -> None:
    before = [part("NIC10", "10"), part("NIC11", "11")]
    after = [part("NIC10", "11"), part("NIC11", "11")]
    assert counterpart(after[0], before) == before[0]
    assert judge(before, after, ["NIC10"], "11").after == {"NIC10": "11"}


@pytest.mark.parametrize(
    ("now", "expected", "seen"),
    [
        ([part("BMC", "2.0"), part("BIOS", "1.0")], "2.1", Seen.SAME),
        ([part("BMC", "2.1"), part("BIOS", "1.0")], "2.1", Seen.REACHED),
        ([part("BMC", "2.2"), part("BIOS", "1.0")], "2.1", Seen.OTHER),
        ([part("BMC", "2.2"), part("BIOS", "1.0")], None, Seen.REACHED),
        ([part("BMC", None), part("BIOS", "1.0")], "2.1", Seen.SAME),
        ([part("BMC", None), part("BIOS", "1.0")], None, Seen.SAME),
        ([part("BIOS", "1.0")], "2.1", Seen.SAME),
        ([part("BMC", "2.0"), part("BIOS", "2.1")], "2.1", Seen.SAME),
        ([part("BMC", "2.0"), part("BMC-Pending", "2.1", "BMC", active=False)], "2.1", Seen.STAGED),
        ([part("BMC", "2.0"), part("NIC-Pending", "2.1", active=False)], "2.1", Seen.SAME),
        ([], "2.1", Seen.SAME),
    ],
)
def test_a_reading_says_what_has_come_of_the_update(
    now: list[FirmwareComponent], expected: str | None, seen: Seen
) -> None:
    assert judge([part("BMC", "2.0"), part("BIOS", "1.0")], now, ["BMC"], expected).seen is seen


def test_without_a_target_only_what_has_changed_counts() -> None:
    before = [part("BMC", "2.0"), part("PSU", "2.1")]
    assert judge(before, before, [], "2.1").seen is Seen.SAME
    verdict = judge(before, [part("BMC", "2.1"), part("PSU", "2.1")], [], "2.1")
    assert (verdict.seen, verdict.before, verdict.after) == (Seen.REACHED, {"BMC": "2.0"}, {"BMC": "2.1"})


def test_several_targets_must_all_show_it() -> None:
    before = [part("A", "1"), part("B", "1")]
    assert judge(before, [part("A", "2"), part("B", "1")], ["A", "B"], "2").seen is Seen.OTHER
    assert judge(before, [part("A", "2"), part("B", "2")], ["A", "B"], "2").seen is Seen.REACHED


def test_names_that_are_nearly_right_are_offered() -> None:
    components = [part("BMC", "1"), part("BIOS", "1", "System ROM")]
    assert meant_by("BCM", components) == []
    assert closest("BCM", components) == ["BMC"]
    assert meant_by("system rom", components) == [components[1]]
    # The manager whose id is 1 is not the component whose id is 1.
    assert meant_by("/redfish/v1/Managers/1", [part("1", "1")]) == []


@pytest.mark.parametrize(
    ("identifier", "text", "owed"),
    [
        ("iLO.2.14.SystemResetRequired", "", True),
        ("", "The update takes effect after the server is rebooted.", True),
        ("", "A reboot is required to complete the update.", True),
        ("", "Job JID_1 was successfully scheduled.", True),
        ("JCP001", "", True),
        ("Update.1.0.UpdateSuccessful", "Device updated with image.", False),
        ("Base.1.18.Success", "The task was carried out.", False),
    ],
)
def test_words_that_owe_a_reset_are_understood(identifier: str, text: str, owed: bool) -> None:
    assert says_reset_is_owed([BmcMessage(identifier, text)]) is owed


def test_an_images_address_is_taken_apart() -> None:
    image = Image.parse("https://u%40x:p%3Aw@images.example:8443/a%20b/fw.bin?sig=1")
    assert (image.url, image.name) == ("https://images.example:8443/a%20b/fw.bin?sig=1", "fw.bin")
    assert (image.user, image.password, image.protocol) == ("u@x", "p:w", "HTTPS")
    assert image.shown == "https://images.example:8443/a%20b/fw.bin"
    assert "p:w" not in repr(image)
    assert Image.parse("file:///srv/a%20b.bin").path == "/srv/a b.bin"
    assert Image.parse("file://localhost/srv/x.bin").path == "/srv/x.bin"
    assert Image.parse("sub/x.bin").path == "sub/x.bin"
    assert Image.parse("smb://host/share/x.bin").protocol == "CIFS"


@pytest.mark.parametrize(
    "image",
    ["", "  ", "http://", "http://host", "http://host/", "http:///x", "ht!tp://x/y", "https://[::1/x", "a\nb"],
)
def test_what_is_no_image_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match="image is an address"):
        Image.parse(image)


@pytest.mark.parametrize("document", [{}, {"Actions": None}, {"HttpPushUri": 7, "MultipartHttpPushUri": ["x"]}])
def test_a_half_broken_service_offers_nothing_and_breaks_nothing(document: dict[str, Any]) -> None:
    broken = {"HttpPushUriOptions": 1, "MaxImageSizeBytes": "x", "HttpPushUriTargets": {}, "Oem": []}
    service = UpdateService(
        "/u", {**broken, **document}, Manners(update_state=("Oem", "Hpe")), {"Parameters": [None, 1]}
    )
    assert service.simple_target is None
    assert service.protocols == []
    assert service.largest is None
    assert service.progress is None
    assert service.push_targets is None
    assert not service.is_claimable
    for way in Transport:
        assert service.apply_times(way) == []


def test_only_a_parameter_that_the_bmc_does_not_know_is_left_out() -> None:
    body = {"ImageURI": "http://x/y", "Targets": ["/t"], "@Redfish.OperationApplyTime": "Immediate"}
    refused = Note("Base.1.8.PropertyValueNotInList", "Targets has a wrong value", ("Targets",))
    assert after_refusal(body, [refused], "HTTP") is None
    unknown = Note("Base.1.8.ActionParameterUnknown", "unknown", ("@Redfish.OperationApplyTime",))
    assert after_refusal(body, [unknown], "HTTP") == {"ImageURI": "http://x/y", "Targets": ["/t"]}
    missing = Note("Base.1.8.ActionParameterMissing", "TransferProtocol is required", ("TransferProtocol",))
    assert after_refusal(body, [missing], "HTTP") == {**body, "TransferProtocol": "HTTP"}
    assert after_refusal({**body, "TransferProtocol": "HTTP"}, [missing], "HTTP") is None
