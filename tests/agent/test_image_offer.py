"""The command by which a site makes an image ready for one of its machines."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from agent.boot_server import site_boot_server
from agent.config import BootSection, Config
from agent.image_offer import ImageOffer
from protocol.commands import CommandKind, payload_faults
from protocol.errors import ErrorCode, OperationError
from protocol.image_admission import admitted
from protocol.operations import Repeat
from tests.agent.boot_site import BootSite, TicketGiver
from tests.agent.image_origin import Origin
from tests.agent.rig import FakeClock
from tests.agent.test_image_cache import DIGEST, IMAGE

CHECKSUM = DIGEST.removeprefix("sha256-")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[BootSite]:
    site = BootSite.make(tmp_path, image=False)
    yield site
    await site.server.aclose()


def payload(url: str, **more: object) -> dict[str, object]:
    wanted = {"url": url, "name": "debian.raw", "targetNodeId": "node_1", "sha256": None, "sha512": None}
    return wanted | more


async def done(site: BootSite, asked: dict[str, object]) -> dict[str, object]:
    offer = ImageOffer(site.server, site.giver.tickets)
    assert payload_faults(CommandKind.SITE_OFFER_IMAGE, asked) == []
    assert offer.faults(asked) == []
    async with offer.turn(asked) as work:
        return (await work.run(30, lambda _message, _percent: None)).result


async def test_it_answers_with_the_address_at_the_site_without_what_admits_to_it(site: BootSite) -> None:
    async with Origin(IMAGE) as origin:
        result = await done(site, payload(origin.url, sha256=CHECKSUM.upper()))
    admission, address = site.giver.admission(CHECKSUM), str(result["url"])
    assert admission not in address
    async with aiohttp.ClientSession() as client:
        async with client.get(admitted(address, admission)) as answer:
            assert await answer.read() == IMAGE
        async with client.get(admitted(address, "0" * 40)) as answer:
            assert answer.status == 404


async def test_the_word_itself_admits_to_nothing_and_an_older_ramdisk_is_told_why(site: BootSite) -> None:
    async with Origin(IMAGE) as origin:
        result = await done(site, payload(origin.url, sha256=CHECKSUM))
    async with aiohttp.ClientSession() as client, client.get(str(result["url"])) as answer:
        assert answer.status == 409
        assert "this ramdisk is older than the site's agent" in await answer.text()


async def test_the_address_is_good_after_a_restart_of_the_agent_and_the_same_when_it_is_asked_for_again(
    site: BootSite,
) -> None:
    async with Origin(IMAGE) as origin:
        wanted = payload(origin.url, sha256=CHECKSUM)
        first = str((await done(site, wanted))["url"])
        again = await site.restarted(first)
        try:
            async with (
                aiohttp.ClientSession() as client,
                client.get(admitted(first, site.giver.admission(CHECKSUM))) as answer,
            ):
                assert await answer.read() == IMAGE
            assert (await done(again, wanted))["url"] == first
        finally:
            await again.server.aclose()


async def test_without_the_control_plane_s_word_nothing_is_offered(site: BootSite) -> None:
    site.giver.refusal = "this agent's site has no such machine"
    async with Origin(IMAGE) as origin:
        with pytest.raises(OperationError, match="gives no admission to the image: this agent's site has no such"):
            await done(site, payload(origin.url, sha256=CHECKSUM))
    assert origin.asked == []


async def test_a_control_plane_that_does_not_answer_is_not_blamed_on_the_origin_however_little_time_is_left(
    site: BootSite,
) -> None:
    site.giver.away = True
    with pytest.raises(OperationError, match="the control plane gave no admission to the image") as failure:
        async with ImageOffer(site.server, site.giver.tickets).turn(payload("http://x/a", sha256=CHECKSUM)) as work:
            await work.run(1, lambda _message, _percent: None)
    assert failure.value.code is ErrorCode.UNREACHABLE


async def test_an_image_without_a_checksum_is_not_kept(site: BootSite) -> None:
    async with Origin(IMAGE) as origin:
        with pytest.raises(OperationError, match="Name its sha256 or sha512") as failure:
            await done(site, payload(origin.url))
    assert failure.value.code is ErrorCode.UNSUPPORTED
    assert origin.asked == []


async def test_the_origins_refusal_is_the_commands(site: BootSite) -> None:
    async with Origin(IMAGE, statuses=[404]) as origin:
        with pytest.raises(OperationError, match="origin answers 404"):
            await done(site, payload(origin.url, sha256=CHECKSUM))


async def test_every_fault_of_it_is_told_before_it_begins(site: BootSite) -> None:
    offer = ImageOffer(site.server, site.giver.tickets)
    faults = offer.faults({"url": 7, "sha256": "x"})
    assert [issue.path.removeprefix("payload.") for issue in faults] == ["url", "name", "targetNodeId", "sha256"]
    assert [str(issue) for issue in offer.faults(payload("file:///etc/passwd"))] == [
        "payload.url: is no http or https address"
    ]
    (fault,) = offer.faults(payload("https://reader:Pa55word@files.example/debian.raw"))
    assert "credentials set images/HOST" in str(fault)
    assert "Pa55word" not in str(fault)
    assert offer.repeat({}) is Repeat.CONVERGE


async def test_the_hosts_own_services_are_not_fetched_from_unless_the_site_says_so(tmp_path: Path) -> None:
    config = Config(state_dir=str(tmp_path), boot=BootSection(listen="127.0.0.1:0"))
    server = site_boot_server(config, FakeClock(), TicketGiver().tickets)
    async with Origin(IMAGE) as origin:
        asked = payload(origin.url, sha256=CHECKSUM)
        with pytest.raises(OperationError, match=r'\[images\] allow = \["127\.0\.0\.1"\]') as failure:
            async with ImageOffer(server, TicketGiver().tickets).turn(asked) as work:
                await work.run(30, lambda _message, _percent: None)
    await server.aclose()
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT
    assert origin.asked == []
