"""A virtual machine under real QEMU and real firmware, driven over Redfish and IPMI as a server is."""

import asyncio
import os
import pty
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from simulators.login import DEFAULT_PASSWORD
from simulators.machine import Firmware, HostState, MachineSpec, Nic, StateFolder, VirtualMachine, open_disk
from simulators.machine.firmware import find_uefi
from simulators.machine.process import MachineFault
from tests.simulators.conftest import CD, SYSTEM, RedfishClient
from tests.simulators.tiny_guest import tiny_files, tiny_iso

# Waiting for one's turn is not part of the time.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400, func_only=True), pytest.mark.usefixtures("one_at_a_time")]

INSERT, EJECT = f"{CD}/Actions/VirtualMedia.InsertMedia", f"{CD}/Actions/VirtualMedia.EjectMedia"
BOOT_SECONDS = 180.0
BOOT_ID = r"boot_id=([0-9a-f-]{36})\s"
READY = "guest-is-ready"
IPMITOOL = shutil.which("ipmitool")
CD_ONCE = {"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Cd"}}


@pytest.fixture(params=[Firmware.BIOS, Firmware.UEFI], ids=lambda firmware: firmware.value)
def firmware(request: pytest.FixtureRequest) -> Firmware:
    wanted: Firmware = request.param
    return available(wanted)


def available(firmware: Firmware) -> Firmware:
    if firmware is Firmware.UEFI:
        try:
            find_uefi()
        except MachineFault as fault:
            pytest.skip(str(fault))
    return firmware


def new_machine(folder: Path, firmware: Firmware, boot_file: str | None = None, **settings: Any) -> VirtualMachine:
    state = StateFolder(folder)
    identity = state.identity()
    disk = open_disk(folder / "disk.raw", "RWTESTD1", 16 << 20)
    spec = MachineSpec(
        identity, firmware, memory=512, disks=(disk,), nics=(Nic(identity.mac(1), boot_file=boot_file),)
    )
    return VirtualMachine(spec, state, tls=False, **settings)


@asynccontextmanager
async def running(
    folder: Path, firmware: Firmware, **settings: Any
) -> AsyncIterator[tuple[VirtualMachine, RedfishClient]]:
    async with new_machine(folder, firmware, **settings) as machine, RedfishClient(machine.redfish) as bmc:
        yield machine, bmc


@asynccontextmanager
async def images(*files: Path) -> AsyncIterator[tuple[str, list[tuple[str, str, str]]]]:
    """An HTTP server on loopback with ranges; gives its URL and what it was asked (method, path, range)."""
    asked: list[tuple[str, str, str]] = []

    async def serve(request: web.Request) -> web.FileResponse:
        asked.append((request.method, request.path, request.headers.get("Range", "")))
        return web.FileResponse(next(file for file in files if file.name == request.path.lstrip("/")))

    app = web.Application()
    app.router.add_get("/{name}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def becomes(machine: VirtualMachine, state: HostState, seconds: float = 60.0) -> None:
    """Waits for a state of the host."""
    reached = asyncio.Event()

    def look(now: HostState, _cause: object) -> None:
        if now is state:
            reached.set()

    machine.host.on_state.append(look)
    try:
        if machine.host.state is not state:
            await asyncio.wait_for(reached.wait(), seconds)
    finally:
        machine.host.on_state.remove(look)


async def booted(machine: VirtualMachine, after: int = 0) -> str:
    """The boot_id of the next boot of the guest after a position of its serial port."""
    await machine.serial.seen(READY, after=after, timeout=BOOT_SECONDS)
    return (await machine.serial.seen(BOOT_ID, after=after))[1]


async def insert(machine: VirtualMachine, bmc: RedfishClient, url: str) -> None:
    reply = await bmc.post(INSERT, {"Image": url})
    assert reply.status == 202, reply.data
    await machine.media.settled()
    assert (await bmc.get(reply.data["@odata.id"])).data["TaskState"] == "Completed"


async def test_a_machine_boots_an_iso_from_a_url_and_each_reset_is_a_new_boot(
    tmp_path: Path, firmware: Firmware
) -> None:
    iso = tiny_iso("cd")
    async with images(iso) as (url, asked), running(tmp_path, firmware) as (machine, bmc):
        await insert(machine, bmc, f"{url}/cd.iso")
        await bmc.patch(SYSTEM, CD_ONCE)
        assert (await bmc.reset("On")).status == 204

        first = await booted(machine)
        identity = machine.spec.identity
        assert f"uuid={identity.uuid} serial={identity.serial}" in machine.serial.text
        assert f"firmware={firmware.value}" in machine.serial.text
        assert asked[0][0] == "HEAD"
        assert all(method == "HEAD" or asked_range.startswith("bytes=") for method, _, asked_range in asked)
        assert (await bmc.get(SYSTEM)).data["Boot"]["BootSourceOverrideEnabled"] == "Disabled"

        position = machine.serial.position
        assert (await bmc.reset("ForceRestart")).status == 204
        second = await booted(machine, position)

        assert first != second
        assert (await bmc.get(SYSTEM)).data["PowerState"] == "On"


async def test_a_guest_that_restarts_or_switches_off_is_seen_by_its_bmc(tmp_path: Path) -> None:
    """The override that is set while the guest runs holds for the restart that the guest makes by itself."""
    async with running(tmp_path, Firmware.BIOS) as (machine, bmc):
        await machine.insert_file(tiny_iso("cd"))
        await bmc.reset("On")
        first = await booted(machine)

        await bmc.patch(SYSTEM, CD_ONCE)
        position = machine.serial.position
        machine.serial.type(b"reboot -f\n")
        second = await booted(machine, position)
        assert first != second
        assert [boot.target for boot in machine.redfish.state.boots] == ["None", "Cd"]

        machine.serial.type(b"poweroff -f\n")
        await becomes(machine, HostState.OFF)
        assert (await bmc.get(SYSTEM)).data["PowerState"] == "Off"
        assert machine.qemu is None


@pytest.mark.case("B59")
async def test_an_image_that_is_ejected_is_gone_for_a_machine_that_runs(tmp_path: Path) -> None:
    async with images(tiny_iso("cd")) as (url, _), running(tmp_path, Firmware.BIOS) as (machine, bmc):
        await insert(machine, bmc, f"{url}/cd.iso")
        await bmc.reset("On")
        await machine.host.settled()
        qemu = machine.qemu
        assert qemu is not None
        assert [node["node-name"] for node in await qemu.execute("query-named-block-nodes")].count("medium1") == 1

        await bmc.post(EJECT, {})
        await machine.media.settled()
        names = [node["node-name"] for node in await qemu.execute("query-named-block-nodes")]
        assert "medium1" not in names
        assert not (tmp_path / "cd.sock").exists()

        await insert(machine, bmc, f"{url}/cd.iso")
        drives = {block["qdev"]: block for block in await qemu.execute("query-block") if "qdev" in block}
        assert drives["cd"]["inserted"]["node-name"] == "medium2"
        assert drives["cd"]["tray_open"] is False


async def test_power_orders_really_start_and_end_qemu(tmp_path: Path) -> None:
    async with running(tmp_path, Firmware.BIOS) as (machine, bmc):
        await bmc.reset("On")
        await becomes(machine, HostState.ON)
        first = machine.qemu
        assert first is not None
        assert alive(first.pid)
        assert (await bmc.reset("Nmi")).status == 204

        await bmc.reset("PowerCycle")
        await becomes(machine, HostState.OFF)
        assert not alive(first.pid)
        await becomes(machine, HostState.ON)
        second = machine.qemu
        assert second is not None

        await bmc.reset("ForceOff")
        await becomes(machine, HostState.OFF)
        assert not alive(second.pid)
        assert (await bmc.get(SYSTEM)).data["PowerState"] == "Off"


async def test_a_qemu_that_dies_is_a_machine_that_is_off_with_the_cause_in_its_log(tmp_path: Path) -> None:
    async with running(tmp_path, Firmware.BIOS) as (machine, bmc):
        await bmc.reset("On")
        await becomes(machine, HostState.ON)
        assert machine.qemu is not None

        machine.qemu.crash()
        await becomes(machine, HostState.OFF)
        await machine.host.settled()

        system = (await bmc.get(SYSTEM)).data
        assert (system["PowerState"], system["Status"]["Health"]) == ("Off", "Critical")
        entries = (await bmc.get(f"{SYSTEM}/LogServices/SEL/Entries")).data["Members"]
        assert "signal 9" in (await bmc.get(entries[-1]["@odata.id"])).data["Message"]

        await bmc.reset("On")
        await becomes(machine, HostState.ON)
        assert (await bmc.get(SYSTEM)).data["Status"]["Health"] == "OK"


async def test_uefi_boots_from_the_address_that_the_bmc_gives_it(tmp_path: Path) -> None:
    available(Firmware.UEFI)
    async with images(tiny_iso("http")) as (url, asked), running(tmp_path, Firmware.UEFI) as (machine, bmc):
        wanted = {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "UefiHttp"}
        reply = await bmc.patch(SYSTEM, {"Boot": {**wanted, "HttpBootUri": f"{url}/http.iso"}})
        assert reply.status == 200, reply.data
        await bmc.reset("On")

        await booted(machine)
        assert "from=http" in machine.serial.text
        assert ("GET", "/http.iso", "") in asked


async def test_bios_boots_over_the_network_by_the_script_that_dhcp_names(tmp_path: Path) -> None:
    kernel, initrd = tiny_files()
    script = tmp_path / "boot.ipxe"
    async with images(kernel, initrd, script) as (url, asked):
        script.write_text(
            "#!ipxe\nkernel vmlinuz initrd=initrd.gz console=ttyS0,115200 quiet from=ipxe\ninitrd initrd.gz\nboot\n"
        )
        boot_file = url.replace("127.0.0.1", "10.0.2.2") + "/boot.ipxe"
        async with running(tmp_path / "state", Firmware.BIOS, boot_file=boot_file) as (machine, bmc):
            await bmc.patch(
                SYSTEM, {"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}}
            )
            await bmc.reset("On")

            await booted(machine)
            assert "from=ipxe" in machine.serial.text
            assert [path for _, path, _ in asked] == ["/boot.ipxe", "/vmlinuz", "/initrd.gz"]


@pytest.mark.skipif(IPMITOOL is None, reason="ipmitool is not installed: apt-get install ipmitool")
async def test_sol_of_ipmitool_is_the_serial_port(tmp_path: Path) -> None:
    async with running(tmp_path, Firmware.BIOS) as (machine, _):
        await machine.insert_file(tiny_iso("cd"))
        await ipmitool(machine, "chassis", "bootdev", "cdrom")
        await ipmitool(machine, "chassis", "power", "on")
        await booted(machine)
        assert "is on" in await ipmitool(machine, "chassis", "power", "status")
        assert str(machine.spec.identity.uuid) in (await ipmitool(machine, "mc", "guid")).lower()

        ours, theirs = pty.openpty()
        sol = await asyncio.create_subprocess_exec(
            *tool(machine, "sol", "activate"), stdin=theirs, stdout=theirs, stderr=theirs, env=environment()
        )
        os.close(theirs)
        try:
            await shown(ours, "SOL Session operational")
            os.write(ours, b"echo typed-$((40+2))\r")
            await shown(ours, "typed-42")
        finally:
            sol.kill()
            await sol.wait()
            os.close(ours)
        assert "typed-42" in machine.serial.text


async def test_a_machine_goes_on_after_its_simulator_was_killed(tmp_path: Path) -> None:
    """QEMU dies with its simulator; the next one has the same machine, and starts it again as its policy says."""
    command = [sys.executable, "-m", "rackwright", "simulate", "machine", "--state", str(tmp_path / "state")]
    options = ["--firmware", "bios", "--memory", "256", "--disk-size", "16M", "--http", "--control"]

    async with AsyncExitStack() as stack:
        first = await started(stack, [*command, *options, "--on"])
        state = await until_on(first.url)
        assert alive(state["pid"])

        os.kill(first.pid, signal.SIGKILL)
        await first.ended()
        second = await started(stack, [*command, *options])
        again = await until_on(second.url)

        assert not alive(state["pid"])
        assert (again["uuid"], again["macs"]) == (state["uuid"], state["macs"])
        os.kill(second.pid, signal.SIGTERM)
        assert await second.ended() == 0
        assert not alive(again["pid"])


class Simulator:
    """A simulator in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process = process
        self.pid = process.pid
        self.url = url

    async def ended(self) -> int:
        return await asyncio.wait_for(self._process.wait(), 30)


async def started(stack: AsyncExitStack, command: list[str]) -> Simulator:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    stack.push_async_callback(process.wait)
    stack.callback(lambda: process.kill() if process.returncode is None else None)
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
    assert line.startswith("redfish "), line
    return Simulator(process, line.split()[1])


async def until_on(url: str) -> dict[str, Any]:
    """The control resource of a machine once it runs."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            async with session.get(f"{url}/_simulator/machine") as answer:
                state: dict[str, Any] = await answer.json()
            if state["state"] == "on":
                return state
            await asyncio.sleep(0.1)


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet taken away does not."""
    try:
        return not re.search(r"^State:\s+Z", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return False


def tool(machine: VirtualMachine, *words: str) -> list[str]:
    assert IPMITOOL is not None
    target = ["-H", "127.0.0.1", "-p", str(machine.ipmi.port), "-U", "admin", "-E"]
    return [IPMITOOL, "-I", "lanplus", *target, *words]


def environment() -> dict[str, str]:
    return {**os.environ, "IPMI_PASSWORD": DEFAULT_PASSWORD, "LC_ALL": "C"}


async def ipmitool(machine: VirtualMachine, *words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *tool(machine, *words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environment()
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def shown(terminal: int, text: str) -> None:
    """Waits until a terminal has shown a text."""
    loop = asyncio.get_running_loop()
    seen = bytearray()
    found = asyncio.Event()

    def read() -> None:
        seen.extend(os.read(terminal, 4096))
        if text.encode() in seen:
            found.set()

    loop.add_reader(terminal, read)
    try:
        await asyncio.wait_for(found.wait(), 60)
    except TimeoutError as error:
        raise AssertionError(f"the terminal never showed {text!r}: {bytes(seen)!r}") from error
    finally:
        loop.remove_reader(terminal)
