"""SimpleUpdate: the simulated BMC fetches the image as a BMC does, and its task says why it did not come."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from simulators.redfish import ServiceOptions
from simulators.redfish.image_fetch import ImageOrder
from tests.simulators.conftest import RedfishClient, Reply, Start, basic

UPDATE = "/redfish/v1/UpdateService"
FIRMWARE = f"{UPDATE}/FirmwareInventory/BMC"
SIMPLE = f"{UPDATE}/Actions/UpdateService.SimpleUpdate"
IMAGE = bytes(range(256)) * 2000


class Images:
    """A web server with one image; `answer` may be another one."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[web.Request] = []
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        match request.path.split("/")[1]:
            case "whole":
                return web.Response(body=IMAGE)
            case "login":
                wanted = basic("reader", "p@ss")["Authorization"]
                return web.Response(body=IMAGE) if request.headers.get("Authorization") == wanted else status(401)
            case "moved":
                raise web.HTTPFound(f"{self.url}/whole/bmc-3.1.4.bin")
            case "loop":
                raise web.HTTPFound(f"{self.url}{request.path}")
            case "empty":
                return web.Response(body=b"")
            case "slow":
                response = web.StreamResponse()
                response.content_length = len(IMAGE)
                await response.prepare(request)
                await response.write(IMAGE[:1000])
                self.begun.set()
                await self.go_on.wait()
                await response.write(IMAGE[1000:])
                return response
            case "short":
                response = web.StreamResponse()
                response.content_length = len(IMAGE) + 10
                await response.prepare(request)
                await response.write(IMAGE)
                assert request.transport is not None
                request.transport.close()
                return response
        return status(404)


def status(code: int) -> web.Response:
    return web.Response(status=code)


@pytest.fixture
async def images() -> AsyncIterator[Images]:
    images = Images()
    application = web.Application()
    application.router.add_get("/{tail:.*}", images.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    images.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield images
    images.go_on.set()
    await runner.cleanup()


async def ended(bmc: RedfishClient, begun: Reply) -> dict[str, object]:
    """The task once it has ended."""
    assert begun.status == 202
    while True:
        task: dict[str, object] = (await bmc.get(begun.data["@odata.id"])).data
        if task["TaskState"] in ("Completed", "Exception", "Cancelled"):
            return task
        await asyncio.sleep(0.01)


async def version(bmc: RedfishClient) -> str:
    return str((await bmc.get(FIRMWARE)).data["Version"])


@pytest.mark.parametrize("path", ["whole", "moved"])
async def test_an_image_is_fetched_whole_before_it_is_installed(start: Start, images: Images, path: str) -> None:
    bmc = await start()
    task = await ended(bmc, await bmc.post(SIMPLE, {"ImageURI": f"{images.url}/{path}/bmc-3.1.4.bin"}))
    assert task["TaskState"] == "Completed"
    assert await version(bmc) == "3.1.4"
    (upload,) = bmc.server.state.uploads
    assert (upload.name, upload.size, upload.sha256) == (
        "bmc-3.1.4.bin",
        len(IMAGE),
        hashlib.sha256(IMAGE).hexdigest(),
    )


@pytest.mark.parametrize("how", ["parameters", "address"])
async def test_the_login_is_taken_from_the_parameters_or_from_the_address(
    start: Start, images: Images, how: str
) -> None:
    bmc = await start()
    order = {"ImageURI": f"{images.url}/login/bmc-3.1.4.bin"}
    if how == "parameters":
        order |= {"Username": "reader", "Password": "p@ss"}
    else:
        order["ImageURI"] = order["ImageURI"].replace("//", "//reader:p%40ss@")
    assert (await ended(bmc, await bmc.post(SIMPLE, order)))["TaskState"] == "Completed"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("login", "Base.1.18.ResourceAtUriUnauthorized"),
        ("nothing", "Update.1.0.TransferFailed"),
        ("empty", "Update.1.0.TransferFailed"),
        ("short", "Update.1.0.TransferFailed"),
        ("loop", "Base.1.18.CouldNotEstablishConnection"),
        ("nobody", "Base.1.18.CouldNotEstablishConnection"),
    ],
)
async def test_what_does_not_come_whole_fails_the_task_with_the_standards_message(
    start: Start, images: Images, path: str, message: str
) -> None:
    bmc = await start()
    base = "http://127.0.0.1:1" if path == "nobody" else images.url
    task = await ended(bmc, await bmc.post(SIMPLE, {"ImageURI": f"{base}/{path}/bmc-3.1.4.bin"}))
    assert (task["TaskState"], task["TaskStatus"]) == ("Exception", "Critical")
    messages = task["Messages"]
    assert isinstance(messages, list)
    assert [said["MessageId"] for said in messages] == [message]
    assert f"{base}/{path}/bmc-3.1.4.bin" in messages[0]["Message"]
    assert await version(bmc) == "2.13.0"
    assert not bmc.server.state.uploads


async def test_a_task_that_is_cancelled_meanwhile_stops_the_fetching_and_installs_nothing(
    start: Start, images: Images
) -> None:
    bmc = await start(options=ServiceOptions(task_seconds=0.01))
    begun = await bmc.post(SIMPLE, {"ImageURI": f"{images.url}/slow/bmc-3.1.4.bin"})
    await images.begun.wait()
    assert (await bmc.get(begun.data["@odata.id"])).data["TaskState"] == "Running"
    assert (await bmc.delete(begun.data["@odata.id"])).status == 204
    images.go_on.set()
    assert (await ended(bmc, begun))["TaskState"] == "Cancelled"
    assert await version(bmc) == "2.13.0"


async def test_a_server_that_stops_leaves_no_fetching_behind(start: Start, images: Images) -> None:
    bmc = await start()
    await bmc.post(SIMPLE, {"ImageURI": f"{images.url}/slow/bmc-3.1.4.bin"})
    await images.begun.wait()
    await bmc.server.stop()
    assert not [task for task in asyncio.all_tasks() if "_bring" in repr(task)]


async def test_an_address_that_is_none_is_refused_at_once(start: Start) -> None:
    bmc = await start()
    refused = await bmc.post(SIMPLE, {"ImageURI": "http://[::1/x.bin"})
    assert (refused.status, refused.message_ids) == (400, ["ActionParameterValueFormatError"])


def test_the_protocol_may_be_named_beside_the_address() -> None:
    order = ImageOrder.of("192.0.2.1/bmc-3.1.4.bin", "HTTPS")
    assert (order.uri, order.name, order.is_fetched) == ("https://192.0.2.1/bmc-3.1.4.bin", "bmc-3.1.4.bin", True)
    assert not ImageOrder.of("tftp://192.0.2.1/bmc.bin").is_fetched
