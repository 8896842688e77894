"""Insertions that are refused in words that no other BMC uses: the body grows by what is missed, and it ends."""

from typing import Any

import pytest

from protocol.errors import ErrorCode
from simulators.redfish import FaultRule
from tests.drivers.redfish.harness import bench, without_waiting

IMAGE = "https://192.0.2.1/a.iso"
INSERT = "*InsertMedia"
PROTOCOL = "TransferProtocolType"


def said(**message: object) -> dict[str, Any]:
    return {"error": {"code": "Base.1.8.GeneralError", "@Message.ExtendedInfo": [message]}}


MISSED = {
    "a pointer": said(MessageId="Base.1.5.PropertyMissing", RelatedProperties=[f"#/{PROTOCOL}"]),
    "a pointer without its mark": said(MessageId="Base.1.5.PropertyMissing", RelatedProperties=[PROTOCOL]),
    "a deep pointer": said(MessageId="PropertyMissing", RelatedProperties=[f"/Parameters/{PROTOCOL}"]),
    "an argument": said(MessageId="Base.1.12.ActionParameterMissing", MessageArgs=["InsertMedia", PROTOCOL]),
    "a sentence": said(MessageId="Base.1.0.GeneralError", Message="the parameter TransferProtocolType is missing"),
    "a resolution": said(MessageId="Base.1.0.GeneralError", Resolution="Give transferprotocoltype."),
    "one object": {
        "error": {
            "@Message.ExtendedInfo": {
                "MessageId": "Base.1.5.PropertyMissing",
                "MessageArgs": [PROTOCOL],
            }
        }
    },
    "no error at all": {"TransferProtocolType@Message.ExtendedInfo": [{"MessageId": "Base.1.8.PropertyMissing"}]},
    "the code alone": {"error": {"code": "Base.1.5.ActionParameterMissing", "message": "TransferProtocolType"}},
    "iLO 4": {"Messages": [{"MessageID": "Base.0.10.PropertyMissing", "MessageArgs": [PROTOCOL]}]},
    "nothing": {},
    "a web page": "<html>Bad Request</html>",
}


@pytest.mark.case("B03", "B05")
@pytest.mark.parametrize("body", MISSED.values(), ids=MISSED.keys())
@pytest.mark.parametrize("status", [400, 422])
@without_waiting
async def test_a_missed_property_is_added_in_whatever_words_it_is_missed(body: object, status: int) -> None:
    async with bench(faults=[FaultRule(method="POST", path=INSERT, status=status, body=body, count=1)]) as bmc:
        assert (await bmc("virtual-media.insertMedia", {"image": IMAGE}))["image"] == IMAGE
        first, second = [entry.body for entry in bmc.bmc.journal.entries("POST", INSERT)]
        assert first == {"Image": IMAGE}
        assert second == {"Image": IMAGE, "TransferProtocolType": "HTTPS"}


@pytest.mark.case("B03", "B08")
@pytest.mark.parametrize("body", MISSED.values(), ids=MISSED.keys())
@without_waiting
async def test_a_bmc_that_is_never_content_ends_the_ladder(body: object) -> None:
    async with bench(faults=[FaultRule(method="POST", path=INSERT, status=400, body=body)]) as bmc:
        error = await bmc.fails("virtual-media.insertMedia", {"image": IMAGE})
        assert error.code in (ErrorCode.BMC_ERROR, ErrorCode.CONFLICT)
        assert 2 <= len(bmc.requests("POST", INSERT)) <= 16


@pytest.mark.case("B04")
@without_waiting
async def test_a_bmc_that_wants_and_then_repeats_a_login_for_the_image_shows_it_to_nobody() -> None:
    wants = said(MessageId="ActionParameterMissing", Message="UserName is missing")
    echo = said(MessageId="X.1.0.Echo", Message="cannot use S3cret-of-image")
    rules = [
        FaultRule(method="POST", path=INSERT, match_body={"Password": "S3cret-of-image"}, status=409, body=echo),
        FaultRule(method="POST", path=INSERT, status=400, body=wants),
    ]
    async with bench(faults=rules) as bmc:
        error = await bmc.fails(
            "virtual-media.insertMedia", {"image": "https://reader:S3cret-of-image@192.0.2.1/a.iso"}
        )
        assert "S3cret" not in f"{error} {error.details} {error!r}"


@pytest.mark.case("B10")
@pytest.mark.parametrize("status", [400, 404, 405, 409, 412, 500, 503])
@without_waiting
async def test_an_ejection_that_is_refused_after_it_was_done_is_done(status: int) -> None:
    async with bench() as bmc:
        await bmc("virtual-media.insertMedia", {"image": IMAGE})
        bmc.bmc.faults.add(FaultRule(method="POST", path="*EjectMedia", status=status, execute=True))
        assert (await bmc("virtual-media.ejectMedia"))["ejected"] != []
        assert len(bmc.requests("POST", "*EjectMedia")) == 1


@pytest.mark.case("B10")
@without_waiting
async def test_one_slot_that_cannot_be_emptied_keeps_no_other_full() -> None:
    async with bench() as bmc:
        slots = (await bmc("virtual-media.listMedia"))["slots"]
        for slot in slots:
            bmc.bmc.state.patch(slot["location"], {"Image": IMAGE, "Inserted": True})
        stuck = FaultRule(method="POST", path=f"{slots[0]['location']}/*", status=500, body=said(Message="in use"))
        bmc.bmc.faults.add(stuck)
        error = await bmc.fails("virtual-media.ejectMedia")
        assert [words.text for words in error.bmc] == ["in use"]
        assert error.details["ejected"] == [slot["id"] for slot in slots[1:]]
