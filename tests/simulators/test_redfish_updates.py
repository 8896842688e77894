"""How a firmware update goes on at the simulated BMC: staged, silent, purged, with a restart, in vendors' forms."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from simulators.redfish import ServiceOptions, UpdateManners
from tests.simulators.conftest import FakeClock, Start

UPDATE = "/redfish/v1/UpdateService"
INVENTORY = f"{UPDATE}/FirmwareInventory"
SIMPLE = f"{UPDATE}/Actions/UpdateService.SimpleUpdate"
ORDER = {"ImageURI": "http://x.example/bmc-3.1.4.bin", "Targets": [f"{INVENTORY}/BMC"]}


async def test_a_staged_update_takes_effect_with_the_next_start(start: Start) -> None:
    bmc = await start(fetches_images=False)

    begun = await bmc.post(SIMPLE, {**ORDER, "@Redfish.OperationApplyTime": "OnReset"})
    pending = (await bmc.get(begun.data["@odata.id"])).data["TaskState"]
    before = (await bmc.get(f"{INVENTORY}/BMC")).data["Version"]
    await bmc.reset("ForceRestart")

    assert (pending, before) == ("Pending", "2.13.0")
    assert (await bmc.get(begun.data["@odata.id"])).data["TaskState"] == "Completed"
    assert (await bmc.get(f"{INVENTORY}/BMC")).data["Version"] == "3.1.4"


async def test_a_silent_update_completes_and_changes_nothing(start: Start) -> None:
    bmc = await start(fetches_images=False, options=ServiceOptions(update=UpdateManners(silent=True)))

    begun = await bmc.post(SIMPLE, ORDER)

    assert begun.data["TaskState"] == "Completed"
    assert (await bmc.get(f"{INVENTORY}/BMC")).data["Version"] == "2.13.0"


async def test_a_task_is_gone_a_while_after_its_end(start: Start, clock: FakeClock) -> None:
    bmc = await start(fetches_images=False, options=ServiceOptions(task_kept_seconds=60), clock=clock)

    begun = await bmc.post(SIMPLE, ORDER)
    clock.move(59)
    there = (await bmc.get(begun.data["@odata.id"])).status
    clock.move(2)

    assert there == 200
    assert (await bmc.get(begun.data["@odata.id"])).status == 404
    assert (await bmc.get(begun.headers["Location"])).status == 404
    assert (await bmc.get("/redfish/v1/TaskService/Tasks")).data["Members"] == []


async def test_a_manager_that_restarts_is_away_and_then_shows_old_and_new(start: Start, clock: FakeClock) -> None:
    options = ServiceOptions(update=UpdateManners(restart_seconds=240, flaps=4, flap_seconds=10))
    bmc = await start(fetches_images=False, options=options, clock=clock)

    await bmc.post(SIMPLE, ORDER)
    away = await bmc.get("/redfish/v1/Managers/1")
    clock.move(240)
    seen = []
    for _ in range(5):
        seen.append((await bmc.get(f"{INVENTORY}/BMC")).data["Version"])
        clock.move(10)

    assert (away.status, away.headers["Retry-After"]) == (503, "240")
    assert seen == ["2.13.0", "3.1.4", "2.13.0", "3.1.4", "3.1.4"]


async def test_a_transfer_protocol_that_is_not_offered_is_refused(start: Start) -> None:
    bmc = await start(fetches_images=False)

    assert (await bmc.post(SIMPLE, {**ORDER, "TransferProtocol": "TFTP"})).status == 400


async def test_a_lenovo_takes_a_push_only_while_it_is_claimed(start: Start, shared: Path) -> None:
    bmc = await start(shared / "mockups" / "lenovo-sr670v2-xcc")
    head = {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": 'attachment; filename="uefi-9.9.9.bin"',
    }

    refused = await bmc.request("POST", "/fwupdate", data=b"x", headers=head)
    tag = (await bmc.get(UPDATE)).headers["ETag"]
    claim = {"HttpPushUriTargetsBusy": True, "HttpPushUriTargets": [f"{INVENTORY}/UEFI"]}
    claimed = await bmc.request("PATCH", UPDATE, json=claim, headers={"If-Match": tag})
    taken = await bmc.request("POST", "/fwupdate", data=b"x", headers=head)

    assert (refused.status, claimed.status, taken.status) == (400, 200, 202)
    assert (await bmc.get(f"{INVENTORY}/UEFI")).data["Version"] == "9.9.9"


@pytest.mark.parametrize(("cookie", "status"), [("sessionKey=abc", 200), ("sessionKey=other", 400), ("", 400)])
async def test_an_ilo_wants_the_key_in_its_form_and_in_a_cookie(
    start: Start, shared: Path, cookie: str, status: int
) -> None:
    bmc = await start(shared / "mockups" / "hpe-dl385-ilo5")
    form = aiohttp.FormData()
    form.add_field("sessionKey", "abc")
    form.add_field("parameters", '{"UpdateTarget": true}')
    form.add_field("file", b"x", filename="ilo5_300.bin")

    pushed = await bmc.request("POST", "/cgi-bin/uploadFile", data=form, headers={"Cookie": cookie} if cookie else {})

    assert pushed.status == status


async def test_an_upload_is_measured_and_not_kept(start: Start) -> None:
    bmc = await start(fetches_images=False)
    piece = bytes(range(256)) * 4096
    form = aiohttp.FormData()
    form.add_field("UpdateParameters", "{}", content_type="application/json")
    form.add_field("UpdateFile", pieces(piece, 24), filename="bmc-9.0.0.bin")

    pushed = await bmc.request("POST", f"{UPDATE}/upload-multipart", data=form)

    assert pushed.status == 202
    (upload,) = bmc.server.state.uploads
    assert (upload.name, upload.size) == ("bmc-9.0.0.bin", 24 * len(piece))
    assert upload.sha256 == hashlib.sha256(piece * 24).hexdigest()


async def pieces(piece: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield piece
        await asyncio.sleep(0)


async def test_a_form_that_is_cut_or_garbled_is_refused(start: Start) -> None:
    bmc = await start(fetches_images=False)
    head = {"Content-Type": "multipart/form-data; boundary=abc"}
    for body in (
        b"garbage",
        b"--abc\r\n\r\n",
        b"--abc\r\nContent-Disposition: form-data\r\n\r\nx\r\n--abc--\r\n",
        b"--abc--",
    ):
        answer = await bmc.request("POST", f"{UPDATE}/upload-multipart", data=body, headers=head)
        assert answer.status == 400, body
    missing = await bmc.request(
        "POST", f"{UPDATE}/upload-multipart", data=b"x", headers={"Content-Type": "multipart/form-data"}
    )
    assert missing.status == 400
