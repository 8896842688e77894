"""Entity tags: as BMCs send them, and the one rule by which a PATCH carries them."""

import pytest

from drivers.redfish import etag
from protocol.errors import ErrorCode
from simulators.redfish import FaultRule, ServiceOptions
from tests.drivers.redfish.harness import SYSTEM, Bench, bench, without_waiting

PXE = ("boot.setBootDevice", {"device": "pxe"})


@pytest.mark.case("B30")
@pytest.mark.parametrize(
    ("sent", "normal"),
    [
        ('"1"', '"1"'),
        ('W/"1"', 'W/"1"'),
        ('""1""', '"1"'),
        ('"1-gzip"', '"1"'),
        ('W/"1-gzip"', 'W/"1"'),
        ('"1"-gzip', '"1"'),
        ("1", '"1"'),
        ('W/"a-b.c"', 'W/"a-b.c"'),
        ("", None),
        ('""', None),
        ('W/""', None),
        ("   ", None),
    ],
)
def test_a_tag_is_brought_to_its_proper_form(sent: str, normal: str | None) -> None:
    assert etag.normal(sent) == normal


@pytest.mark.case("B30")
@pytest.mark.parametrize(
    ("headers", "body", "tag"),
    [
        (['"1"'], {"@odata.etag": '"2"'}, '"1"'),
        ([], {"@odata.etag": 'W/"2"'}, 'W/"2"'),
        ([""], {"@odata.etag": '"2"'}, '"2"'),
        (["", '"3"'], {}, '"3"'),
        (['"1"', '"2"'], {}, '"1"'),
        (['"1", "2"'], {}, '"1"'),
        ([], {}, None),
        ([], {"@odata.etag": 5}, None),
        ([], None, None),
    ],
)
def test_the_header_counts_before_the_body(headers: list[str], body: object, tag: str | None) -> None:
    assert etag.as_sent(headers, body) == tag


def if_match_of_patches(bmc: Bench) -> list[str | None]:
    return [entry.headers.get("If-Match") for entry in bmc.bmc.journal.entries("PATCH")]


def true_tag(bmc: Bench) -> str:
    """The service's own tag of the system, such as `"abc"`."""
    resource = bmc.bmc.service.store.find(SYSTEM)
    assert resource is not None
    return resource.etag.removeprefix("W/")


@pytest.mark.case("B30")
@pytest.mark.parametrize("deform", ['"{}"', "{}-gzip", "{}"])
@without_waiting
async def test_a_deformed_tag_is_carried_in_its_proper_form(deform: str) -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        tag = true_tag(bmc)
        sent = f'{tag[:-1]}-gzip"' if deform.endswith("-gzip") else deform.format(tag)
        bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, count=2, headers={"ETag": sent}))
        await bmc(*PXE)
        assert if_match_of_patches(bmc) == [tag]


@pytest.mark.case("B30")
@without_waiting
async def test_without_a_header_the_tag_of_the_body_is_carried() -> None:
    async with bench(faults=[FaultRule(method="GET", remove_headers=("ETag",))]) as bmc:
        await bmc("power.getPower")
        tag = true_tag(bmc)
        bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, merge={"@odata.etag": tag}, remove_headers=("ETag",)))
        bmc.bmc.faults.remove("rule-1")
        await bmc(*PXE)
        assert if_match_of_patches(bmc) == [tag]


@pytest.mark.case("B30")
@without_waiting
async def test_two_tags_in_one_answer_are_no_fault() -> None:
    async with bench(faults=[FaultRule(method="GET", path=SYSTEM, add_headers={"ETag": '"another"'})]) as bmc:
        assert (await bmc(*PXE))["target"] == "pxe"


@pytest.mark.case("B30")
@without_waiting
async def test_after_412_the_fresh_tag_is_tried_once() -> None:
    async with bench(faults=[FaultRule(method="GET", path=SYSTEM, count=1, headers={"ETag": '"stale"'})]) as bmc:
        assert (await bmc(*PXE))["target"] == "pxe"
        first, second = if_match_of_patches(bmc)
        assert first == '"stale"'
        assert second not in (None, '"stale"')


@pytest.mark.case("B30")
@without_waiting
async def test_a_bmc_that_gives_weak_tags_and_takes_strong_ones_gets_a_strong_one() -> None:
    weak = FaultRule(method="PATCH", match_headers={"If-Match": "W/*"}, status=412)
    async with bench(faults=[weak]) as bmc:
        tag = bmc.bmc.service.store.find(SYSTEM)
        assert tag is not None
        bmc.bmc.faults.add(
            FaultRule(method="GET", path=SYSTEM, count=3, headers={"ETag": 'W/"weak"'}),
        )
        bmc.bmc.faults.add(FaultRule(method="PATCH", match_headers={"If-Match": '"weak"'}, status=204))
        await bmc.fails(*PXE, timeout=20)
        assert if_match_of_patches(bmc)[:3] == ['W/"weak"', 'W/"weak"', '"weak"']


@pytest.mark.case("B30")
@without_waiting
async def test_as_a_last_resort_no_tag_is_sent_and_that_is_told() -> None:
    refuses = FaultRule(method="PATCH", match_headers={"If-Match": "*"}, status=412)
    async with bench(faults=[refuses]) as bmc:
        async with bmc.drivers.turn(bmc.target, PXE[0], PXE[1]) as turn:
            reply = await turn.run(PXE[1])
        assert reply.observed == {"patchedWithoutTag": SYSTEM}
        assert if_match_of_patches(bmc)[-1] is None


@pytest.mark.case("B30")
@without_waiting
async def test_a_bmc_that_demands_a_tag_it_did_not_show_is_asked_for_it() -> None:
    hidden = FaultRule(method="GET", path=SYSTEM, count=2, remove_headers=("ETag",), merge={"@odata.etag": None})
    async with bench(faults=[hidden], options=ServiceOptions(require_etag=True)) as bmc:
        assert (await bmc(*PXE))["target"] == "pxe"
        assert [entry.status for entry in bmc.bmc.journal.entries("PATCH")] == [428, 200]


@pytest.mark.case("B30")
@without_waiting
async def test_a_bmc_that_takes_no_tag_at_all_ends_in_its_refusal() -> None:
    async with bench(faults=[FaultRule(method="PATCH", status=412)]) as bmc:
        assert (await bmc.fails(*PXE)).code is ErrorCode.CONFLICT
        assert len(if_match_of_patches(bmc)) <= 4


def test_the_strong_form_of_a_weak_tag() -> None:
    assert etag.strong('W/"1"') == '"1"'
    assert etag.strong('"1"') is None
