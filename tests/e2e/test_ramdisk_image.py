"""The built image under real firmware: it starts, takes its ticket from the medium, finds the network, ends in order.

The image is built once for the present sources and kept under `build/`; a build takes half a minute.
"""

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from protocol.boot_ticket import BootTicket, encode_area
from protocol.join_token import JoinToken
from protocol.secret import Secret
from ramdisk.image.architectures import ARCHITECTURES
from ramdisk.image.build import BuildOptions, Description, build
from ramdisk.image.debian import parse_packages
from tests.e2e.metal.full_set import full_set

# Waiting for one's turn is not part of the time.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600, func_only=True)]

REPOSITORY = Path(__file__).resolve().parents[2]
OVMF = Path("/usr/share/OVMF")
FIRMWARE = ("bios", "uefi", *(pytest.param(name, marks=full_set) for name in ("secure-boot", "usb-stick")))
BOOT_SECONDS = 300.0
PRESS_SECONDS = 3.0
BOOT_ID = re.compile(rb"rackwright: version \S+, boot_id ([0-9a-f-]{36})")
HOST = "10.0.2.2"
"""Of QEMU's own network, as the guest sees it."""


@dataclass(frozen=True)
class Image:
    iso: Path
    facts: Description


@pytest.fixture
def image(ramdisk: Path) -> Image:
    return Image(ramdisk.with_suffix(""), msgspec.json.decode(ramdisk.read_bytes(), type=Description))


def firmware_words(firmware: str, folder: Path) -> list[str]:
    if firmware == "bios":
        return []
    program, variables = ("OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd")
    words = []
    if firmware == "secure-boot":
        # With the keys of Microsoft and Debian enrolled, as servers are delivered.
        program, variables = ("OVMF_CODE_4M.ms.fd", "OVMF_VARS_4M.ms.fd")
        words = ["-machine", "smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on"]
    if not (OVMF / program).is_file():
        pytest.skip(f"there is no {program}: apt-get install ovmf")
    shutil.copyfile(OVMF / variables, folder / "variables")
    return [
        *words,
        *("-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={OVMF / program}"),
        *("-drive", f"if=pflash,unit=1,format=raw,file={folder / 'variables'}"),
    ]


def medium_words(firmware: str, iso: Path) -> list[str]:
    drive = f"file={iso},format=raw,readonly=on"
    if firmware == "usb-stick":
        return ["-device", "qemu-xhci", "-drive", f"{drive},if=none,id=stick", "-device", "usb-storage,drive=stick"]
    return ["-drive", f"{drive},media=cdrom"]


class Machine:
    """A virtual machine, and what it says on its serial port."""

    def __init__(self, process: asyncio.subprocess.Process, monitor: Path) -> None:
        self._process = process
        self._monitor = monitor
        self.said = b""

    async def says(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        """Waits for words on the serial port."""
        assert self._process.stdout is not None
        while (found := pattern.search(self.said)) is None:
            data = await self._process.stdout.read(4096)
            assert data, f"the machine has ended; it said: {self.said[-2000:].decode(errors='replace')}"
            self.said += data
        return found

    async def press_power_button(self) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._monitor))
        await reader.readuntil(b"(qemu) ")
        writer.write(b"system_powerdown\n")
        await reader.readuntil(b"(qemu) ")
        writer.close()

    async def ends(self) -> int:
        assert self._process.stdout is not None
        self.said += await self._process.stdout.read()
        return await self._process.wait()


@contextlib.asynccontextmanager
async def started(firmware: str, iso: Path, folder: Path) -> AsyncIterator[Machine]:
    monitor = folder / "monitor"
    process = await asyncio.create_subprocess_exec(
        *("qemu-system-x86_64", "-accel", "tcg", "-machine", "q35", "-cpu", "max", "-m", "1024", "-smp", "2"),
        *("-display", "none", "-no-reboot", "-serial", "stdio", "-monitor", f"unix:{monitor},server,nowait"),
        *("-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="),
        *firmware_words(firmware, folder),
        *medium_words(firmware, iso),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    machine = Machine(process, monitor)
    try:
        async with asyncio.timeout(BOOT_SECONDS):
            yield machine
    except TimeoutError:
        pytest.fail(
            f"not within {BOOT_SECONDS:g} s; the machine said: {machine.said[-2000:].decode(errors='replace')}"
        )
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def control_plane() -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A door at which somebody knocks; nobody is let in."""
    knocked = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.read(1)) == b"\x16":
            # The first byte of a TLS handshake.
            knocked.set()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], knocked


def for_one_machine(image: Image, ticket: BootTicket, folder: Path) -> Path:
    """A copy of the medium as a site's agent streams it: with this machine's ticket in its area."""
    iso = folder / "machine.iso"
    shutil.copyfile(image.iso, iso)
    with iso.open("r+b") as file:
        file.seek(image.facts.area_offset)
        file.write(encode_area(ticket))
    return iso


def test_the_description_is_that_of_the_files_beside_it(image: Image) -> None:
    assert image.iso.stat().st_size == image.facts.iso_size < 120_000_000
    assert image.facts.area_offset % 2048 == 0
    with image.iso.open("rb") as file:
        file.seek(image.facts.area_offset)
        assert file.read(image.facts.area_size) == encode_area(None)
    assert all(image.iso.with_name(name).is_file() for name in (image.facts.kernel, image.facts.initrd))


@full_set
def test_a_second_build_of_the_same_packages_and_program_gives_the_same_bytes(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    packages = parse_packages(image.iso.with_name(f"{image.iso.name}.packages").read_text())
    options = BuildOptions(ARCHITECTURES["x86_64"], fast=True, exactly=packages)
    again = build(tmp_path / "some where", tmp_path / "another folder", options, lambda _: None)
    assert again.read_bytes() == image.iso.with_name(f"{image.iso.name}.json").read_bytes()


@pytest.mark.usefixtures("one_at_a_time")
@pytest.mark.parametrize("firmware", FIRMWARE)
async def test_a_machine_starts_from_the_medium_uses_its_ticket_and_obeys_its_power_button(
    firmware: str, image: Image, tmp_path: Path
) -> None:
    async with control_plane() as (port, knocked):
        ticket = BootTicket(
            node_id="node_1",
            control_plane=f"wss://{HOST}:{port}",
            token=Secret(JoinToken.new("ab" * 32).text()),
        )
        async with started(firmware, for_one_machine(image, ticket, tmp_path), tmp_path) as machine:
            await machine.says(BOOT_ID)
            reading = asyncio.create_task(machine.says(re.compile(rb"Power down")))
            await knocked.wait()
            while not reading.done():
                # As people do: a press is lost for as long as the button's driver is not there.
                await machine.press_power_button()
                await asyncio.wait([reading], timeout=PRESS_SECONDS)
            assert await machine.ends() == 0
    assert ticket.token.reveal().encode() not in machine.said
    assert b"unpacking failed" not in machine.said
    assert b"ended with exit code" not in machine.said
