"""A ramdisk puts what admits to an image into its address, when it is about to write it and not before."""

import pytest

from agent import tickets as module
from agent.site_images import SiteImages
from protocol.commands import DriverInvoke
from protocol.errors import ErrorCode, OperationError
from protocol.image_admission import ADMISSION
from protocol.secret import Secret
from tests.agent.boot_site import TicketGiver

CHECKSUM = "ab" * 32
ADDRESS = f"http://192.0.2.1:8446/images/{ADMISSION}/{CHECKSUM}/debian.raw"


def invoke(operation: str, **args: object) -> DriverInvoke:
    concern, _, name = operation.partition(".")
    return DriverInvoke(driver="linux", concern=concern, operation=name, args=args, target_node_id="node_1")


async def test_the_writing_has_the_real_address_and_the_command_keeps_the_word() -> None:
    giver, learned = TicketGiver(), list[Secret]()
    wanted = invoke("deploy.writeImage", image={"url": ADDRESS, "sha256": CHECKSUM}, growRoot=True)
    args = await SiteImages(giver.tickets, learned.append).arguments(wanted)
    admission = giver.admission(CHECKSUM)
    assert args == {
        "image": {"url": ADDRESS.replace(ADMISSION, admission), "sha256": CHECKSUM},
        "growRoot": True,
    }
    assert wanted.args["image"] == {"url": ADDRESS, "sha256": CHECKSUM}
    # The agent's log and what it reports are cleaned of it.
    assert learned == [Secret(admission)]


@pytest.mark.parametrize(
    "wanted",
    [
        invoke("deploy.writeImage", image={"url": "https://images.example/debian.raw", "sha256": CHECKSUM}),
        invoke("deploy.writeImage", image=7),
        invoke("firmware.updateFirmware", image={"url": ADDRESS}),
        invoke("deploy.getDisks"),
    ],
    ids=["an origin's address", "no image", "another operation", "no arguments"],
)
async def test_anything_else_asks_for_nothing(wanted: DriverInvoke) -> None:
    giver = TicketGiver(away=True)
    assert await SiteImages(giver.tickets, lambda _secret: None).arguments(wanted) == wanted.args


async def test_without_the_control_plane_the_writing_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.site_images._PATIENCE", 0.05)
    monkeypatch.setattr(module, "_ASK_AGAIN_SECONDS", 0.01)
    wanted = invoke("deploy.writeImage", image={"url": ADDRESS})
    with pytest.raises(OperationError, match="gave no admission to the image") as failure:
        await SiteImages(TicketGiver(away=True).tickets, lambda _secret: None).arguments(wanted)
    assert failure.value.code is ErrorCode.UNREACHABLE
