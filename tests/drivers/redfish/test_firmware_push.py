"""Images that are sent to the BMC: as a form, as they are, or in a vendor's form; whole, once, in constant memory."""

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from drivers import Drivers, Target
from drivers.image_access import ImageAccess
from protocol.errors import ErrorCode, OperationError
from simulators.redfish import Drop, FaultRule, RedfishServer, ServiceOptions, UpdateManners
from simulators.redfish import server as bmc_server
from simulators.redfish.documents import path_key
from simulators.redfish.update import multipart_parts
from tests.drivers.redfish.harness import PASSWORD, Bench, bench, without_waiting
from tests.drivers.redfish.test_firmware import INVENTORY, SERVICE, TASKS, UPDATE, refusal

FORM, PLAIN = f"{SERVICE}/upload-multipart", f"{SERVICE}/upload"
CONTENT = os.urandom(700_001)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "bmc-2.14.0.bin"
    file.write_bytes(CONTENT)
    return file


def update_of(image: Path | str, **more: object) -> dict[str, object]:
    where = image if isinstance(image, str) else f"file://{image}"
    return {"image": where, "targets": ["BMC"], "expectVersion": "2.14.0", **more}


def take_away(bmc: Bench, *names: str) -> None:
    def take(document: dict[str, Any]) -> None:
        for name in names:
            document.pop(name, None)

    bmc.bmc.state.edit(SERVICE, take)


def bodies(bmc: Bench) -> list[bytes]:
    """The beginnings of what is pushed from now on."""
    seen: list[bytes] = []
    service = bmc.bmc.service
    for key, handler in list(service.routes.pushes.items()):

        def push(call: Any, handler: Any = handler) -> Any:
            seen.append(call.request.body)
            return handler(call)

        service.routes.pushes[key] = push
    return seen


def pushes(bmc: Bench) -> list[tuple[str, str]]:
    """Where images were pushed to, and as what."""
    return [
        (entry.path, entry.headers["Content-Type"].partition(";")[0])
        for entry in bmc.bmc.journal.entries("POST")
        if path_key(entry.path) in bmc.bmc.service.routes.pushes
    ]


# The ways


@without_waiting
async def test_a_file_is_sent_as_a_form_with_its_parameters_first(image: Path) -> None:
    async with bench(options=ServiceOptions(task_seconds=60)) as bmc:
        seen = bodies(bmc)
        result = await bmc(UPDATE, update_of(image))
        assert (result["after"], result["transport"]) == ({"BMC": "2.14.0"}, "multipart")
        (sent,) = bmc.bmc.journal.entries("POST", FORM)
        assert int(sent.headers["Content-Length"]) > len(CONTENT)
        assert "Transfer-Encoding" not in sent.headers
        parts = multipart_parts(sent.headers["Content-Type"], seen[0])
        assert list(parts) == ["UpdateParameters", "UpdateFile"]
        assert json.loads(parts["UpdateParameters"][1]) == {"Targets": [f"{INVENTORY}/BMC"]}
        assert b"Content-Type: application/json" in seen[0].partition(b"UpdateFile")[0]
        (upload,) = bmc.bmc.state.uploads
        assert (upload.name, upload.size, upload.sha256) == ("bmc-2.14.0.bin", len(CONTENT), DIGEST)


@without_waiting
async def test_without_a_form_the_image_is_sent_as_it_is(image: Path) -> None:
    async with bench() as bmc:
        take_away(bmc, "MultipartHttpPushUri", "Actions")
        bmc.bmc.state.edit(INVENTORY, lambda d: d["Members"].sort(key=lambda m: "BMC" not in m["@odata.id"]))
        result = await bmc(UPDATE, update_of(image))
        assert (result["after"], result["transport"]) == ({"BMC": "2.14.0"}, "push")
        assert pushes(bmc) == [(PLAIN, "application/octet-stream")]
        assert bmc.bmc.state.uploads[0].sha256 == DIGEST


@without_waiting
async def test_progress_is_told_by_bytes(image: Path) -> None:
    told: list[tuple[str, float | None]] = []
    async with bench() as bmc:
        await bmc(UPDATE, update_of(image), progress=lambda *said: told.append(said))
    sent = [percent for message, percent in told if message.startswith("sending bmc-2.14.0.bin: ")]
    assert sent == sorted(sent, key=lambda percent: percent or 0)
    assert len(sent) >= 3
    assert sent[-1] == 100


PUSHED: dict[str, dict[str, Any]] = {
    "dell-r750-idrac9-6.00": {
        "path": f"{SERVICE}/MultipartUpload",
        "parameters": {"Targets": [], "@Redfish.OperationApplyTime": "Immediate"},
    },
    "dell-r750-idrac9-7.10": {
        "applyTime": "onReset",
        "path": f"{SERVICE}/MultipartUpload",
        "parameters": {"Targets": [], "@Redfish.OperationApplyTime": "OnReset"},
    },
    "dmtf-rackmount1": {"path": "/FWUpdate"},
    "lenovo-sr670v2-xcc": {
        "targets": ["UEFI"],
        "path": "/mfwupdate",
        "parameters": {"Targets": [f"{INVENTORY}/UEFI"]},
    },
    "nvidia-bluefield3": {
        "path": f"{SERVICE}/update-multipart",
        "parameters": {"@Redfish.OperationApplyTime": "Immediate"},
    },
    "nvidia-dgx-h100-ami": {"path": f"{SERVICE}/upload", "parameters": {}},
    "nvidia-gh200-openbmc": {
        "path": f"{SERVICE}/update-multipart",
        "parameters": {"@Redfish.OperationApplyTime": "Immediate"},
    },
    "openbmc-stock": {"path": f"{SERVICE}/update"},
    "supermicro-821ge": {
        "targets": ["BIOS"],
        "path": f"{SERVICE}/upload",
        "parameters": {"Targets": ["/redfish/v1/Systems/1/Bios"], "@Redfish.OperationApplyTime": "Immediate"},
    },
}


@pytest.mark.case("B42")
@pytest.mark.parametrize("tree", PUSHED)
@without_waiting
async def test_b42_a_file_goes_the_way_that_the_tree_offers(tree: str, shared: Path, image: Path) -> None:
    case = dict(PUSHED[tree])
    path, parameters = case.pop("path"), case.pop("parameters", None)
    async with bench(shared / "mockups" / tree) as bmc:
        seen = bodies(bmc)
        result = await bmc(UPDATE, {"image": f"file://{image}", **case})
        kind = "application/octet-stream" if parameters is None else "multipart/form-data"
        assert pushes(bmc) == [(path, kind)]
        assert "2.14.0" in result["after"].values() or result["resetOwed"]
        if parameters is not None:
            content_type = bmc.bmc.journal.entries("POST", path)[0].headers["Content-Type"]
            assert json.loads(multipart_parts(content_type, seen[0])["UpdateParameters"][1]) == parameters
        assert bmc.bmc.state.uploads[0].sha256 == DIGEST


@without_waiting
async def test_the_form_of_hpe_ilo_holds_the_key_of_the_session(shared: Path, image: Path) -> None:
    async with bench(shared / "mockups" / "hpe-dl385-ilo5", options=ServiceOptions(task_seconds=200)) as bmc:
        seen = bodies(bmc)
        result = await bmc(UPDATE, {"image": str(image), "targets": ["1"], "expectVersion": "2.14.0"})
        assert (result["transport"], result["after"], result["task"]) == ("push", {"1": "2.14.0"}, None)
        content_type = bmc.bmc.journal.entries("POST", "/cgi-bin/uploadFile")[0].headers["Content-Type"]
        parts = multipart_parts(content_type, seen[0])
        assert list(parts) == ["sessionKey", "parameters", "file"]
        assert json.loads(parts["parameters"][1])["UpdateTarget"] is True


@without_waiting
async def test_an_ilo_that_says_error_is_a_failure_with_its_words(shared: Path, image: Path) -> None:
    failed = {"Oem": {"Hpe": {"State": "Error", "Result": {"MessageId": "iLO.2.14.ImageInvalid"}}}}
    async with bench(shared / "mockups" / "hpe-dl385-ilo5") as bmc:
        bmc.bmc.faults.add(FaultRule(method="GET", path=SERVICE, merge=failed, after=2))
        error = await bmc.fails(UPDATE, {"image": str(image), "targets": ["1"], "expectVersion": "9"})
        assert error.code is ErrorCode.BMC_ERROR
        assert [said.id for said in error.bmc] == ["iLO.2.14.ImageInvalid"]


@without_waiting
async def test_how_the_update_before_has_ended_is_not_taken_for_this_one(shared: Path, image: Path) -> None:
    async with bench(shared / "mockups" / "hpe-dl385-ilo5", options=ServiceOptions(task_seconds=400)) as bmc:
        left = {"State": "Error", "Result": {"MessageId": "iLO.2.14.ImageInvalid"}}
        bmc.bmc.state.patch(SERVICE, {"Oem": {"Hpe": left}})
        result = await bmc(UPDATE, {"image": str(image), "targets": ["1"], "expectVersion": "2.14.0"})
        assert result["after"] == {"1": "2.14.0"}


@without_waiting
async def test_lenovo_is_claimed_before_the_push_and_released_after(shared: Path, image: Path) -> None:
    async with bench(shared / "mockups" / "lenovo-sr670v2-xcc") as bmc:
        await bmc(UPDATE, {"image": str(image), "targets": ["UEFI"], "transport": "push"})
        claims = [entry.body for entry in bmc.bmc.journal.entries("PATCH", SERVICE)]
        assert claims == [
            {"HttpPushUriTargetsBusy": True, "HttpPushUriTargets": [f"{INVENTORY}/UEFI"]},
            {"HttpPushUriTargetsBusy": False, "HttpPushUriTargets": []},
        ]
        assert all("If-Match" in entry.headers for entry in bmc.bmc.journal.entries("PATCH", SERVICE))
        assert bmc.bmc.state.document(f"{INVENTORY}/UEFI")["Version"] == "2.14.0"  # type: ignore[index]


@without_waiting
async def test_a_claim_is_given_back_when_the_push_is_refused_or_cancelled(shared: Path, image: Path) -> None:
    async with bench(shared / "mockups" / "lenovo-sr670v2-xcc") as bmc:
        bmc.bmc.faults.add(FaultRule(method="POST", path="/mfwupdate", status=400, count=1))
        await bmc.fails(UPDATE, {"image": str(image), "targets": ["UEFI"]})
        assert (bmc.bmc.state.document(SERVICE) or {})["HttpPushUriTargetsBusy"] is False
        arrived = asyncio.Event()
        bmc.bmc.faults.add(FaultRule(method="POST", path="/mfwupdate", answer_late=500))
        told = asyncio.ensure_future(
            bmc(
                UPDATE,
                {"image": str(image), "targets": ["UEFI"]},
                progress=lambda _message, percent: arrived.set() if percent == 100 else None,
            )
        )
        await arrived.wait()
        told.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await told
        assert (bmc.bmc.state.document(SERVICE) or {})["HttpPushUriTargetsBusy"] is False


@without_waiting
async def test_targets_that_somebody_left_behind_do_not_decide(shared: Path, image: Path) -> None:
    async with bench(shared / "mockups" / "nvidia-gh200-openbmc") as bmc:
        bmc.bmc.state.patch(SERVICE, {"HttpPushUriTargets": [f"{INVENTORY}/FW_CPLD_0"]})
        await bmc(UPDATE, {"image": str(image), "transport": "push"})
        assert bmc.bmc.journal.entries("PATCH", SERVICE)[-1].body == {"HttpPushUriTargets": []}


@without_waiting
async def test_openbmc_is_told_the_apply_time_by_its_setting(shared: Path, image: Path) -> None:
    async with bench(shared / "mockups" / "openbmc-stock") as bmc:
        result = await bmc(UPDATE, {"image": str(image), "expectVersion": "2.14.0"})
        (setting,) = bmc.bmc.journal.entries("PATCH", SERVICE)
        assert setting.body == {"HttpPushUriOptions": {"HttpPushUriApplyTime": {"ApplyTime": "Immediate"}}}
        assert result["resetOwed"] is False
        assert (await bmc(UPDATE, {"image": str(image), "expectVersion": "2.14.0"}))["changed"] is False
    async with bench(shared / "mockups" / "openbmc-stock") as bmc:
        result = await bmc(UPDATE, {"image": str(image), "applyTime": "onReset"})
        assert result["resetOwed"] is True
        assert bmc.requests("PATCH", SERVICE) == []


@without_waiting
async def test_a_staged_copy_in_the_inventory_owes_a_reset(shared: Path, image: Path) -> None:
    async with bench(
        shared / "mockups" / "lenovo-sr670v2-xcc", options=ServiceOptions(update=UpdateManners(silent=True))
    ) as bmc:
        shown = FaultRule(method="GET", path=f"{INVENTORY}/UEFI-Pending", merge={"Version": "2.14.0"}, after=1)
        bmc.bmc.faults.add(shown)
        result = await bmc(UPDATE, {"image": str(image), "targets": ["UEFI"], "expectVersion": "2.14.0"})
        assert (result["resetOwed"], result["after"]) == (True, {"UEFI": "22J-1.51"})


# The image


@contextlib.asynccontextmanager
async def web_server(**answers: Any) -> AsyncIterator[str]:
    """A server of images beside the BMC."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        answer = answers[request.path.strip("/").partition(".")[0].partition("-")[0]]
        result: web.StreamResponse = await answer(request)
        return result

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


async def whole(_request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(body=CONTENT)


async def elsewhere(_request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "/bmc-2.14.0.bin"})


async def forbidden(_request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(status=403)


async def without_length(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(CONTENT)
    return response


async def cut(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": str(len(CONTENT))})
    await response.prepare(request)
    await response.write(CONTENT[:300_000])
    assert request.transport is not None
    request.transport.close()
    return response


async def test_an_image_on_the_web_streams_through_to_a_bmc_that_only_takes_pushes() -> None:
    async with web_server(bmc=whole, latest=elsewhere) as images, bench() as bmc:
        take_away(bmc, "Actions")
        await bmc(UPDATE, update_of(f"{images}/bmc-2.14.0.bin"))
        assert bmc.bmc.state.uploads[0].sha256 == DIGEST
        await bmc(UPDATE, update_of(f"{images}/latest-2.15.0.bin", expectVersion="2.15.0"))
        assert [upload.sha256 for upload in bmc.bmc.state.uploads] == [DIGEST, DIGEST]


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (forbidden, ErrorCode.INVALID_ARGUMENT, "answers with HTTP 403"),
        (without_length, ErrorCode.INVALID_ARGUMENT, "does not say how long the image is"),
        (cut, ErrorCode.UNREACHABLE, "has not got it whole, so nothing was installed"),
    ],
)
async def test_an_image_that_does_not_come_whole_installs_nothing(answer: Any, code: ErrorCode, said: str) -> None:
    async with web_server(bmc=answer) as images, bench() as bmc:
        take_away(bmc, "Actions")
        error = await bmc.fails(UPDATE, update_of(f"{images}/bmc-2.14.0.bin"))
        assert error.code is code
        assert said in error.message
        assert (bmc.bmc.state.document(f"{INVENTORY}/BMC") or {})["Version"] == "2.13.0"
        assert bmc.bmc.journal.count("POST", FORM, executed_only=True) == 0


@without_waiting
async def test_a_file_that_cannot_be_an_image_is_refused_before_anything_is_sent(tmp_path: Path, image: Path) -> None:
    (tmp_path / "empty.bin").touch()
    os.mkfifo(tmp_path / "pipe")
    async with bench() as bmc:
        for name, said in (
            ("empty.bin", "is empty"),
            ("pipe", "is no ordinary file"),
            (".", "is no ordinary file"),
            ("none.bin", "No such file"),
        ):
            error = await bmc.fails(UPDATE, update_of(f"file://{tmp_path}/{name}"))
            assert error.code is ErrorCode.INVALID_ARGUMENT
            assert said in error.message
        assert "no ordinary file" in (await bmc.fails(UPDATE, update_of("/dev/zero"))).message
        assert "three slashes" in (await bmc.fails(UPDATE, update_of("file://elsewhere/x.bin"))).message
        bmc.bmc.state.patch(SERVICE, {"MaxImageSizeBytes": 1000})
        assert "takes 1000 at most" in (await bmc.fails(UPDATE, update_of(image))).message
        assert pushes(bmc) == []


@without_waiting
async def test_alone_a_file_cannot_be_offered_to_a_bmc_that_only_fetches(image: Path) -> None:
    async with bench() as bmc:
        take_away(bmc, "HttpPushUri", "MultipartHttpPushUri")
        error = await bmc.fails(UPDATE, update_of(image))
        assert error.code is ErrorCode.UNSUPPORTED
        assert "only a site agent can offer it a file" in error.message


# On the wire


async def test_a_refusal_that_comes_before_the_image_is_sent_is_told(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(incoming: web.BaseRequest) -> Any:
        await incoming.content.readany()
        raise web.HTTPRequestEntityTooLarge(
            1, 2, text=json.dumps(refusal("GeneralError", "image is too large")), content_type="application/json"
        )

    monkeypatch.setattr(bmc_server, "receive", refuse)
    image.write_bytes(CONTENT * 20)
    async with bench() as bmc:
        error = await bmc.fails(UPDATE, update_of(image), timeout=60)
        assert error.code is ErrorCode.BMC_ERROR
        assert "image is too large" in str(error)


async def test_a_bmc_that_hangs_up_in_the_middle_has_installed_nothing(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang_up(incoming: web.BaseRequest) -> Any:
        await incoming.content.readany()
        assert incoming.transport is not None
        incoming.transport.abort()
        raise ConnectionResetError

    monkeypatch.setattr(bmc_server, "receive", hang_up)
    image.write_bytes(CONTENT * 20)
    async with bench() as bmc:
        error = await bmc.fails(UPDATE, update_of(image), timeout=60)
        assert error.code is ErrorCode.UNREACHABLE
        assert "it has not got the whole body" in error.message
        assert error.code.retryable


@without_waiting
async def test_a_push_whose_answer_is_lost_is_found_again_and_never_resent(image: Path) -> None:
    lost = FaultRule(method="POST", path=FORM, drop=Drop.AFTER)
    async with bench(faults=[lost], options=ServiceOptions(task_seconds=90)) as bmc:
        result = await bmc(UPDATE, update_of(image))
        assert (result["after"], result["task"]) == ({"BMC": "2.14.0"}, f"{TASKS}/1")
        assert len(pushes(bmc)) == 1


@without_waiting
async def test_a_push_that_meets_an_ended_session_is_sent_once_more(image: Path) -> None:
    """The refusal proves that nothing was done with the first one."""
    refused = FaultRule(method="POST", path=FORM, status=401, count=1)
    async with bench(faults=[refused]) as bmc:
        await bmc(UPDATE, update_of(image))
        assert len(pushes(bmc)) == 2


async def test_a_push_that_is_refused_again_is_given_up(image: Path) -> None:
    refused = FaultRule(method="POST", path=FORM, status=401)
    async with bench(faults=[refused]) as bmc:
        error = await bmc.fails(UPDATE, update_of(image))
        assert error.code is ErrorCode.AUTH_FAILED
        assert len(pushes(bmc)) == 2


async def test_an_image_of_any_size_takes_no_memory(tmp_path: Path) -> None:
    large = tmp_path / "bmc-2.14.0.bin"
    size = 160 * 1024 * 1024
    with large.open("wb") as file:
        file.truncate(size)
    process = psutil.Process()
    most = 0

    def look(_message: str, _percent: float | None) -> None:
        nonlocal most
        most = max(most, process.memory_info().rss)

    async with (
        RedfishServer(users={"admin": PASSWORD}) as bmc,
        Drivers() as drivers,
    ):
        target = Target(address=bmc.url, username="admin", password=PASSWORD)
        await drivers.invoke(target, "firmware.getFirmware")
        before = process.memory_info().rss
        await drivers.invoke(target, UPDATE, update_of(large), progress=look)
        assert bmc.state.uploads[0].size == size
        # The BMC runs in this process too; both together stay far below what is sent.
        assert most - before < 32 * 1024 * 1024


async def test_an_image_of_the_site_hosts_own_services_is_not_passed_on_to_a_bmc(image: Path) -> None:
    """A push is fetched by the site's host, which reaches more than the operator who names the address."""
    async with RedfishServer(users={"admin": PASSWORD}) as bmc, Drivers(images=ImageAccess()) as drivers:
        target = Target(address=bmc.url, username="admin", password=PASSWORD)
        for address in ("http://127.0.0.1:1/bmc-2.14.0.bin", "http://169.254.169.254/latest/bmc-2.14.0.bin"):
            with pytest.raises(OperationError, match=r"\[images\] allow = ") as failure:
                await drivers.invoke(target, UPDATE, update_of(address, transport="multipart"))
            assert failure.value.code is ErrorCode.INVALID_ARGUMENT
        assert bmc.journal.count("POST", FORM) == 0
