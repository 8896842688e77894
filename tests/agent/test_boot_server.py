"""What machines start from: media with their own ticket, iPXE scripts, and paths that outlive the agent."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import structlog

from agent import boot_media
from agent.logs import Scrubber
from protocol.boot_ticket import AREA_SIZE, BootTicket, decode_area, encode_archive
from protocol.errors import ErrorCode, OperationError
from protocol.frames import AgentFrame, TicketRequest
from protocol.join_token import JoinToken
from simulators.redfish.tls import TlsMaterial
from tests.agent.boot_site import AREA_OFFSET, BootSite, expected_iso

NODE, OTHER = "node_1", "node_2"
MAC = "b8:2a:72:dd:a0:01"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[BootSite]:
    site = BootSite.make(tmp_path)
    yield site
    await site.server.aclose()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as client:
        yield client


async def fetched(client: aiohttp.ClientSession, url: str, **headers: str) -> tuple[int, bytes]:
    async with client.get(url, headers=headers) as answer:
        return answer.status, await answer.read()


def part(start: int, length: int) -> str:
    return f"bytes={start}-{start + length - 1}"


async def ticket_in(client: aiohttp.ClientSession, url: str) -> BootTicket | None:
    """What a machine finds in the area when it starts."""
    status, area = await fetched(client, url, Range=part(AREA_OFFSET, AREA_SIZE))
    assert status == 206
    return decode_area(area)


async def base_of(site: BootSite) -> str:
    """The server's own address."""
    url = await site.server.offer_medium("node_9", "media")
    return url.rsplit("/", 2)[0]


# Media


async def test_a_medium_is_the_base_image_with_the_machines_own_ticket(
    site: BootSite, client: aiohttp.ClientSession
) -> None:
    url = await site.server.offer_medium(NODE, "media")
    status, iso = await fetched(client, url)
    assert status == 200
    assert iso == expected_iso(site.image, decode_area(iso[AREA_OFFSET:]))
    ticket = decode_area(iso[AREA_OFFSET:])
    assert ticket is not None
    assert ticket.token == site.giver.given[0].token
    assert site.image.with_name("ramdisk.iso").read_bytes() == expected_iso(site.image, None), (
        "the file stays as it is"
    )


async def test_its_address_has_no_query_cannot_be_guessed_and_ends_in_iso(site: BootSite) -> None:
    url = await site.server.offer_medium(NODE, "media")
    _, _, _, token, name = url.split("/")
    assert name.endswith(".iso")
    assert len(token) == 40
    assert "?" not in url
    assert token not in Scrubber().clean(f"the BMC said: cannot open {url}"), "no log and no error may show it"
    assert token not in Scrubber().clean(url.replace("/", r"\/"))


async def test_a_medium_is_read_in_parts_in_any_order(site: BootSite, client: aiohttp.ClientSession) -> None:
    url = await site.server.offer_medium(NODE, "media")
    _, whole = await fetched(client, url)
    for start, length in (
        (0, 2048),
        (AREA_OFFSET - 100, 200),
        (AREA_OFFSET + AREA_SIZE - 1, 2),
        (AREA_OFFSET - 5, AREA_SIZE + 10),
        (999_990, 10),
    ):
        status, data = await fetched(client, url, Range=part(start, length))
        assert (status, data) == (206, whole[start : start + length])


async def test_a_bmc_asks_for_the_head_first(site: BootSite, client: aiohttp.ClientSession) -> None:
    url = await site.server.offer_medium(NODE, "media")
    async with client.head(url) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Length"] == "1000000"
        assert answer.headers["Accept-Ranges"] == "bytes"
    async with client.put(url) as answer:
        assert answer.status == 405


async def test_each_machine_has_its_own_medium(site: BootSite, client: aiohttp.ClientSession) -> None:
    urls = [await site.server.offer_medium(node, "media") for node in (NODE, OTHER)]
    found = await asyncio.gather(*(fetched(client, url) for url in urls * 4))
    nodes = [ticket.node_id for _, iso in found if (ticket := decode_area(iso[AREA_OFFSET:])) is not None]
    assert nodes == [NODE, OTHER] * 4


async def test_a_new_medium_ends_the_one_before(site: BootSite, client: aiohttp.ClientSession) -> None:
    first = await site.server.offer_medium(NODE, "media")
    http = await site.server.offer_medium(NODE, "http")
    second = await site.server.offer_medium(NODE, "media")
    assert (await fetched(client, first))[0] == 404
    assert (await fetched(client, http))[0] == 200, "it is of another kind"
    assert (await fetched(client, second))[0] == 200


@pytest.mark.case("B59")
async def test_a_medium_that_was_taken_away_is_gone(site: BootSite, client: aiohttp.ClientSession) -> None:
    url = await site.server.offer_medium(NODE, "media")
    await site.server.media.withdraw(NODE, "media")
    assert (await fetched(client, url))[0] == 404


async def test_a_path_that_is_over_is_gone(site: BootSite, client: aiohttp.ClientSession) -> None:
    url = await site.server.offer_medium(NODE, "media")
    site.clock.now_ms += 24 * 3_600_000 + 1
    assert (await fetched(client, url))[0] == 404


async def test_nothing_else_is_served(site: BootSite, client: aiohttp.ClientSession) -> None:
    url = await site.server.offer_medium(NODE, "media")
    base, token = url.rsplit("/", 2)[0], url.split("/")[3]
    for path in ("", f"/{token}", f"/{token}/vmlinuz", f"/{token}/../state", "/etc/passwd", f"/{'0' * 40}/x.iso"):
        assert (await fetched(client, base + path))[0] == 404, path


async def test_a_site_without_an_image_says_what_to_do(tmp_path: Path) -> None:
    site = BootSite.make(tmp_path, image=False)
    with pytest.raises(OperationError, match=r"name its \.json as boot\.image") as failure:
        await site.server.offer_medium(NODE, "media")
    assert failure.value.code is ErrorCode.CONFLICT
    await site.server.aclose()


async def test_no_medium_is_offered_for_which_the_control_plane_gives_no_ticket(site: BootSite) -> None:
    site.giver.refusal = "this agent's site has no such machine"
    with pytest.raises(OperationError, match="this agent's site has no such machine"):
        await site.server.offer_medium(NODE, "media")


# The ticket over time


async def test_a_ticket_stays_the_same_while_it_is_read_in_parts(
    site: BootSite, client: aiohttp.ClientSession
) -> None:
    url = await site.server.offer_medium(NODE, "media")
    site.giver.use(site.giver.given[0])
    parts = [await fetched(client, url, Range=part(AREA_OFFSET + at, 4096)) for at in range(0, AREA_SIZE, 4096)]
    assert decode_area(b"".join(data for _, data in parts)) is not None
    assert len(site.giver.given) == 1


@pytest.mark.case("B47")
async def test_a_machine_that_starts_again_from_its_medium_finds_a_new_ticket(
    site: BootSite, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot_media, "QUIET_SECONDS", 0.0)
    url = await site.server.offer_medium(NODE, "media")
    first = await ticket_in(client, url)
    assert first == await ticket_in(client, url), "it was not used yet"
    assert first is not None
    site.giver.use(first)
    second = await ticket_in(client, url)
    assert second is not None
    assert second.token != first.token


@pytest.mark.case("B52")
async def test_a_medium_for_one_start_is_gone_once_the_machine_has_joined(
    site: BootSite, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Firmware shows the address of UEFI HTTP boot on the console, and leaves it where the next system reads it."""
    monkeypatch.setattr(boot_media, "QUIET_SECONDS", 0.0)
    url = await site.server.offer_medium(NODE, "http", once=True)
    first = await ticket_in(client, url)
    assert first is not None
    site.giver.use(first)
    assert (await fetched(client, url))[0] == 404
    given = len(site.giver.given)
    assert (await fetched(client, url, Range=part(0, 100)))[0] == 404
    assert len(site.giver.given) == given, "it is not asked about any more"


async def test_a_medium_for_one_start_is_given_again_where_that_start_came_to_nothing(
    site: BootSite, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot_media, "QUIET_SECONDS", 0.0)
    url = await site.server.offer_medium(NODE, "http", once=True)
    first = await ticket_in(client, url)
    assert first is not None
    assert await ticket_in(client, url) == first
    site.giver.stale.add(JoinToken.parse(first.token.reveal()).id)
    second = await ticket_in(client, url)
    assert second is not None
    assert second.token != first.token


async def test_the_medium_has_another_etag_with_another_ticket(
    site: BootSite, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot_media, "QUIET_SECONDS", 0.0)
    url = await site.server.offer_medium(NODE, "media")
    async with client.get(url) as answer:
        etag = answer.headers["ETag"]
    assert (await fetched(client, url, **{"If-None-Match": etag}))[0] == 304
    site.giver.use(site.giver.given[0])
    await ticket_in(client, url)
    assert (await fetched(client, url, **{"If-None-Match": etag}))[0] == 200


async def test_a_control_plane_that_is_away_does_not_stop_a_machine_whose_ticket_is_at_hand(
    site: BootSite, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot_media, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(boot_media, "_RENEW_SECONDS", 0.05)
    url = await site.server.offer_medium(NODE, "media")
    site.giver.away = True
    assert await ticket_in(client, url) is not None


# After the agent was started anew


async def test_a_path_outlives_the_agent_and_its_ticket_is_asked_for_anew(
    site: BootSite, client: aiohttp.ClientSession
) -> None:
    url = await site.server.offer_medium(NODE, "media")
    again = await site.restarted(url)
    try:
        _, head = await fetched(client, url, Range=part(0, 2048))
        assert head == expected_iso(site.image, None)[:2048]
        assert again.giver.given == [], "nothing of the ticket was read yet"
        ticket = await ticket_in(client, url)
        assert ticket is not None
        assert ticket.token == again.giver.given[0].token
    finally:
        await again.server.aclose()


@pytest.mark.parametrize("used", [False, True])
async def test_a_started_agent_knows_whether_the_start_that_a_medium_was_for_has_been(
    site: BootSite, client: aiohttp.ClientSession, used: bool
) -> None:
    url = await site.server.offer_medium(NODE, "http", once=True)
    if used:
        site.giver.use(site.giver.given[0])
    again = await site.restarted(url)
    try:
        assert (await fetched(client, url))[0] == (404 if used else 200)
    finally:
        await again.server.aclose()


async def test_without_the_control_plane_a_started_agent_asks_the_machine_to_wait(
    site: BootSite, client: aiohttp.ClientSession
) -> None:
    url = await site.server.offer_medium(NODE, "media")
    again = await site.restarted(url)
    try:
        again.giver.refusal = "not now"
        async with client.get(url, headers={"Range": part(AREA_OFFSET, 512)}) as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"]
    finally:
        await again.server.aclose()


async def test_no_ticket_is_on_the_disk(site: BootSite) -> None:
    await site.server.offer_medium(NODE, "media")
    secret = site.giver.given[0].token.reveal().rpartition(".")[2]
    stored = (site.folder / "boot-paths.json").read_text()
    assert secret not in stored
    assert (site.folder / "boot-paths.json").stat().st_mode & 0o777 == 0o600


async def test_after_a_boot_of_the_host_the_paths_time_begins_anew(
    site: BootSite, client: aiohttp.ClientSession
) -> None:
    url = await site.server.offer_medium(NODE, "media")
    again = await site.restarted(url, boot=True)
    assert await ticket_in(client, url) is not None
    again.clock.now_ms += 24 * 3_600_000 + 1
    assert (await fetched(client, url))[0] == 404
    await again.server.aclose()


# Where it listens


async def test_a_certificate_makes_it_https(tmp_path: Path) -> None:
    material = TlsMaterial.self_signed(("127.0.0.1",))
    (tmp_path / "cert.pem").write_bytes(material.certificate)
    (tmp_path / "key.pem").write_bytes(material.key)
    site = BootSite.make(tmp_path, tls_certificate=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem"))
    url = await site.server.offer_medium(NODE, "media")
    assert url.startswith("https://127.0.0.1:")
    trust = ssl.create_default_context(cadata=material.certificate.decode())
    async with aiohttp.ClientSession() as client, client.get(url, ssl=trust) as answer:
        iso = await answer.read()
    assert iso == expected_iso(site.image, decode_area(iso[AREA_OFFSET:]))
    await site.server.aclose()


async def test_machines_are_told_the_addresses_that_were_configured(tmp_path: Path) -> None:
    site = BootSite.make(
        tmp_path,
        url="http://boot.site.example:80/",
        machines_url="http://10.9.8.7:8446",
        control_plane="https://10.9.8.7:8443",
    )
    url = await site.server.offer_medium(NODE, "media", reached_by="192.0.2.20")
    assert url.startswith("http://boot.site.example:80/")
    _, area = await site.server.media.content(url.split("/")[3], "x.iso") or ("", None)
    assert area is not None
    await area.prepare(0, area.size)
    ticket = decode_area(bytes(await area.read(AREA_OFFSET, AREA_SIZE)))
    assert ticket is not None
    assert ticket.control_plane == "https://10.9.8.7:8443"
    await site.server.aclose()


async def test_a_port_that_is_taken_is_told_with_what_to_change(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        site = BootSite.make(tmp_path, listen=f"127.0.0.1:{taken.getsockname()[1]}")
        await site.server.start_for_machines()
        with pytest.raises(OperationError, match=r"set boot\.listen"):
            await site.server.offer_medium(NODE, "media")
        await site.server.aclose()


async def test_a_site_that_is_not_to_listen_says_so(tmp_path: Path) -> None:
    site = BootSite.make(tmp_path, listen="")
    await site.server.start_for_machines()
    with pytest.raises(OperationError, match=r"set boot\.listen"):
        await site.server.offer_medium(NODE, "media")
    await site.server.aclose()


async def test_boot_loaders_of_one_folder_are_for_everybody(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    (tmp_path / "loaders").mkdir()
    (tmp_path / "loaders" / "ipxe.efi").write_bytes(b"loader" * 100)
    site = BootSite.make(tmp_path, loaders_dir=str(tmp_path / "loaders"))
    base = await base_of(site)
    assert await fetched(client, f"{base}/loaders/ipxe.efi") == (200, b"loader" * 100)
    for name in ("none.efi", ".", "..%2fboot-paths.json", ""):
        assert (await fetched(client, f"{base}/loaders/{name}"))[0] == 404, name
    await site.server.aclose()


# iPXE


@pytest.fixture
async def ipxe(site: BootSite) -> str:
    """The address under which machines ask for scripts; one machine is armed."""
    site.giver.machines[MAC] = NODE
    base = await base_of(site)
    await site.server.arm_ipxe(NODE)
    return f"{base}/ipxe"


async def test_a_machine_that_is_to_start_gets_a_script_with_kernel_ramdisk_and_its_ticket(
    site: BootSite, client: aiohttp.ClientSession, ipxe: str
) -> None:
    _, data = await fetched(client, f"{ipxe}/b8-2a-72-dd-a0-01")
    script = data.decode()
    assert script.startswith("#!ipxe\n")
    assert "vmlinuz console=tty0 panic=60 console=ttyS0,115200 initrd=initrd initrd=ticket ||" in script
    base = ipxe.removesuffix("/ipxe")
    files = [word for word in script.split() if word.startswith("/") and not word.startswith("/ipxe")]
    kernel, initrd, ticket = [(await fetched(client, base + file))[1] for file in files]
    assert kernel == b"kernel" * 1000
    assert initrd == b"initrd" * 1000
    held = site.giver.given[-1]
    assert ticket == encode_archive(held)


@pytest.mark.parametrize("asker", ["b8:2a:72:dd:a0:99", "4c4c4544-0042-3510-8052-b9c04f4e4d32", "nonsense"])
async def test_any_other_machine_goes_on_to_its_next_device(
    site: BootSite, client: aiohttp.ClientSession, ipxe: str, asker: str
) -> None:
    status, script = await fetched(client, f"{ipxe}/{asker}")
    assert status == 200
    assert script.endswith(b"exit\n")
    assert b"kernel" not in script


async def test_while_the_control_plane_is_away_no_machine_waits_for_another(
    site: BootSite, ipxe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rack that comes back after a power cut asks for everybody's script at once."""
    asked: set[str] = set()
    both = asyncio.Event()

    def hear(frame: AgentFrame) -> None:
        assert isinstance(frame, TicketRequest)
        asked.update(frame.machine.macs if frame.machine is not None else ())
        if len(asked) == 2:
            both.set()

    monkeypatch.setattr(site.giver.tickets, "_say", hear)
    others = [asyncio.create_task(site.server.media.script(f"b8:2a:72:dd:a0:9{number}")) for number in range(2)]
    try:
        # Sooner than anybody's patience ends.
        await asyncio.wait_for(both.wait(), 8)
    finally:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def test_while_the_image_is_being_replaced_a_machine_goes_on_to_its_next_device(
    site: BootSite, client: aiohttp.ClientSession, ipxe: str
) -> None:
    again = await site.restarted(ipxe)
    try:
        (site.folder / "image" / "ramdisk.iso.json").unlink()
        _, script = await again.server.media.script(MAC)
    finally:
        await again.server.aclose()
    assert script.endswith("exit\n")


async def test_a_machine_whose_load_has_failed_gets_the_same_script_again(
    site: BootSite, client: aiohttp.ClientSession, ipxe: str
) -> None:
    first = await fetched(client, f"{ipxe}/{MAC}")
    assert await fetched(client, f"{ipxe}/{MAC}") == first


@pytest.mark.case("B52")
async def test_a_machine_whose_ramdisk_has_joined_is_not_started_by_the_network_once_more(
    site: BootSite, client: aiohttp.ClientSession, ipxe: str
) -> None:
    await fetched(client, f"{ipxe}/{MAC}")
    site.giver.use(site.giver.given[-1])
    _, script = await fetched(client, f"{ipxe}/{MAC}")
    assert script.endswith(b"exit\n")
    given = len(site.giver.given)
    await fetched(client, f"{ipxe}/{MAC}")
    assert len(site.giver.given) == given, "it is not asked about any more"


async def test_a_ticket_that_has_run_out_unused_is_no_sign_that_the_machine_has_started(
    site: BootSite, client: aiohttp.ClientSession, ipxe: str
) -> None:
    """A self-test may take longer than most of a ticket's life, and a load may fail for as long."""
    await fetched(client, f"{ipxe}/{MAC}")
    handed = site.giver.given[-1]
    site.giver.stale.add(JoinToken.parse(handed.token.reveal()).id)
    _, script = await fetched(client, f"{ipxe}/{MAC}")
    assert b"kernel" in script
    assert site.giver.given[-1] != handed
    site.giver.use(site.giver.given[-1])
    _, script = await fetched(client, f"{ipxe}/{MAC}")
    assert script.endswith(b"exit\n")


@pytest.mark.parametrize("used", [False, True])
async def test_what_was_handed_out_is_known_after_the_agent_was_started_anew(
    site: BootSite, client: aiohttp.ClientSession, ipxe: str, used: bool
) -> None:
    await fetched(client, f"{ipxe}/{MAC}")
    if used:
        site.giver.use(site.giver.given[-1])
    again = await site.restarted(ipxe)
    try:
        _, script = await again.server.media.script(MAC)
        assert ("kernel" in script) is not used
    finally:
        await again.server.aclose()


async def test_a_machine_may_ask_by_another_of_its_ports(
    site: BootSite, client: aiohttp.ClientSession, ipxe: str
) -> None:
    second = "b8:2a:72:dd:a0:02"
    site.giver.machines[second] = NODE
    await fetched(client, f"{ipxe}/{MAC}")
    _, script = await fetched(client, f"{ipxe}/{second}")
    assert b"kernel" in script
    site.giver.use(site.giver.given[-1])
    _, script = await fetched(client, f"{ipxe}/{MAC}")
    assert script.endswith(b"exit\n")


async def test_a_control_plane_that_is_away_lets_the_machine_go_on(
    site: BootSite, client: aiohttp.ClientSession, ipxe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.machine_media._SCRIPT_SECONDS", 0.05)
    site.giver.away = True
    _, script = await fetched(client, f"{ipxe}/{MAC}")
    assert script.endswith(b"exit\n")


# The log


async def test_the_log_tells_who_fetched_what_and_shows_no_path(
    site: BootSite, client: aiohttp.ClientSession, ipxe: str
) -> None:
    with structlog.testing.capture_logs() as logs:
        url = await site.server.offer_medium(NODE, "media")
        await fetched(client, url, Range=part(AREA_OFFSET, 512))
        await fetched(client, f"{ipxe}/{MAC}")
    told = [line for line in logs if line["event"] == "boot_fetched"]
    assert [(line["what"], line["node"], line["status"]) for line in told] == [
        ("iso", NODE, 206),
        ("ipxe", NODE, 200),
    ]
    assert url.split("/")[3] not in str(logs)
    for ticket in site.giver.given:
        assert ticket.token.reveal() not in str(logs)
