"""The login and the signature in an image's address show up nowhere but on the wire, whatever a machine repeats."""

import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from drivers.image_access import ImageAccess
from drivers.redfish.image_source import Image, open_content
from protocol.errors import ErrorCode, OperationError
from simulators.redfish import FaultRule
from tests.drivers.redfish.harness import bench, without_waiting
from tests.drivers.redfish.test_secrets import everything_said

WORD, SIGNATURE = "Image-Pa55word", "c2lnbmF0dXJl"
TASK = "/redfish/v1/TaskService/Tasks/9"


def echo(image: str) -> dict[str, object]:
    note = {"MessageId": "X.1.0.Echo", "Message": f"cannot fetch {image} as reader with {WORD}"}
    return {"error": {"@Message.ExtendedInfo": [note]}}


@without_waiting
async def test_a_refusal_that_repeats_an_image_s_address_tells_no_login_and_no_signature() -> None:
    image = f"http://reader:{WORD}@192.0.2.1/images/bmc.bin?sig={SIGNATURE}"
    refusal = FaultRule(method="POST", path="*SimpleUpdate", status=400, body=echo(image))
    async with bench(faults=[refusal]) as bmc:
        error = await bmc.fails("firmware.updateFirmware", {"image": image, "targets": ["BMC"]}, timeout=30)

    said = everything_said(error)
    assert "cannot fetch" in said
    assert WORD not in said
    assert SIGNATURE not in said


@without_waiting
async def test_a_task_that_repeats_an_image_s_login_tells_it_neither_in_its_progress_nor_in_its_end() -> None:
    image = f"http://reader:{WORD}@192.0.2.1/images/bmc.bin?sig={SIGNATURE}"
    words = [{"MessageId": "X.1.0.Echo", "Message": f"cannot fetch {image}"}]
    task = {"@odata.id": TASK, "@odata.type": "#Task.v1_4_0.Task", "TaskState": "Exception", "Messages": words}
    faults = [
        FaultRule(method="POST", path="*SimpleUpdate", status=202, headers={"Location": TASK}, body={}),
        FaultRule(method="GET", path=TASK, status=200, body=task),
    ]
    told: list[str] = []
    async with bench(faults=faults) as bmc:
        with pytest.raises(OperationError) as caught:
            await bmc(
                "firmware.updateFirmware",
                {"image": image, "targets": ["BMC"]},
                timeout=60,
                progress=lambda message, _percent: told.append(message),
            )

    said = everything_said(caught.value) + "".join(told)
    assert "cannot fetch" in "".join(told)
    assert WORD not in said
    assert SIGNATURE not in said


@contextlib.asynccontextmanager
async def redirecting(where: str) -> AsyncIterator[str]:
    """A web server that leads every request to `where`."""

    async def answer(_request: web.BaseRequest) -> web.Response:
        return web.Response(status=302, headers={"Location": where})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/image.bin?sig={SIGNATURE}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "where",
    [f"/again?sig={SIGNATURE}", f"ftp://x:{WORD}@192.0.2.1/f?sig={SIGNATURE}", f"http://h:99999/?{SIGNATURE}"],
)
async def test_a_redirect_that_leads_nowhere_is_told_without_its_address(where: str) -> None:
    async with redirecting(where) as url:
        with pytest.raises(OperationError, match="redirects") as caught:
            async with open_content(Image.parse(url), None, ImageAccess(everywhere=True)):
                pass

    assert caught.value.code is ErrorCode.UNREACHABLE
    assert SIGNATURE not in str(caught.value)
    assert WORD not in str(caught.value)
