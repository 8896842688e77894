"""The BMC of the virtual machine: Redfish and IPMI over one host. QEMU is a fake here, everything else is real."""

import asyncio
import json
import socket
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from simulators.cli import simulate
from simulators.ipmi import ChassisControl
from simulators.ipmi.boot_options import BOOT_FLAGS, BOOT_VALID_SECONDS
from simulators.machine import (
    BmcMemoryError,
    Firmware,
    HostState,
    MachineSpec,
    Nic,
    StateError,
    StateFolder,
    VirtualMachine,
    open_disk,
)
from simulators.machine.bmc_memory import read_memory
from simulators.machine.command_line import Wires
from simulators.machine.process import Ending, MachineFault
from tests.simulators.conftest import CD, SYSTEM, RedfishClient, basic

INSERT, EJECT = f"{CD}/Actions/VirtualMedia.InsertMedia", f"{CD}/Actions/VirtualMedia.EjectMedia"
CD_ONCE = {"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Cd"}}
ENTRIES = f"{SYSTEM}/LogServices/SEL/Entries"
ACCOUNT = "/redfish/v1/AccountService/Accounts/1"
PXE_FLAGS = bytes((0x80, 0x04, 0, 0, 0))
Told = tuple[str, dict[str, Any]]


class FakeQemu:
    """What a QEMU is to its BMC: a command line, a monitor, a serial port and an end."""

    def __init__(self, command: Sequence[str], on_end: Callable[[Ending, str], None]) -> None:
        self.command = list(command)
        self.on_end = on_end
        self.told: list[Told] = []
        self.serial, self.guest = socket.socketpair()
        self.serial.setblocking(False)
        self.guest.setblocking(False)
        self.pid = 1
        self.on_event: Callable[[str, dict[str, Any]], None] = lambda _name, _data: None

    async def execute(self, command: str, **arguments: Any) -> Any:
        self.told.append((command, arguments))

    async def end(self) -> None:
        self.guest.close()

    @property
    def commands(self) -> list[str]:
        return [command for command, _ in self.told]


class Rig:
    """Machines on one folder, one after the other, as a simulator that is started again."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.started: list[FakeQemu] = []
        self.fault = ""
        self._stack = stack

    async def _start(
        self,
        command: Callable[[Wires], Sequence[str]],
        folder: Path,
        log_file: Path,
        on_end: Callable[[Ending, str], None],
        *,
        keep_open: Sequence[int] = (),
    ) -> FakeQemu:
        if self.fault:
            raise MachineFault(self.fault)
        self.started.append(FakeQemu(command(Wires(5, 6)), on_end))
        return self.started[-1]

    def make(self, **settings: Any) -> VirtualMachine:
        state = StateFolder(self.folder)
        identity = state.identity()
        spec = MachineSpec(identity, Firmware.BIOS, memory=256, nics=(Nic(identity.mac(1)),))
        return VirtualMachine(spec, state, start=self._start, **{"tls": False, **settings})

    async def serve(self, machine: VirtualMachine | None = None) -> tuple[VirtualMachine, RedfishClient]:
        machine = await self._stack.enter_async_context(machine or self.make())
        return machine, await self._stack.enter_async_context(RedfishClient(machine.redfish))

    @property
    def newest(self) -> FakeQemu:
        return self.started[-1]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        yield Rig(tmp_path / "state", stack)


@pytest.fixture
async def image(tmp_path: Path) -> AsyncIterator[str]:
    """The URL of an image; `/slow` never answers."""
    file = tmp_path / "boot.iso"
    file.write_bytes(bytes(4096))
    gate = asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        if request.path == "/slow":
            await gate.wait()
        return web.FileResponse(file) if request.path.endswith(".iso") else web.Response(status=404)

    app = web.Application()
    app.router.add_get("/{path:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    gate.set()
    await runner.cleanup()


async def log_texts(bmc: RedfishClient) -> list[str]:
    members = (await bmc.get(ENTRIES)).data["Members"]
    return [(await bmc.get(member["@odata.id"])).data["Message"] for member in members]


async def boot_of(bmc: RedfishClient) -> tuple[str, str]:
    boot = (await bmc.get(SYSTEM)).data["Boot"]
    return boot["BootSourceOverrideEnabled"], boot["BootSourceOverrideTarget"]


def ipmi_flags(machine: VirtualMachine) -> bytes:
    bmc = machine.ipmi.bmc
    return bmc.machine.boot_options.read(BOOT_FLAGS, bmc.clock())[1:]


async def test_power_by_one_face_shows_on_the_other(rig: Rig) -> None:
    machine, bmc = await rig.serve()

    machine.ipmi.bmc.machine.obey(ChassisControl.POWER_UP)
    await machine.host.settled()
    seen = [(machine.ipmi.bmc.machine.is_on, (await bmc.get(SYSTEM)).data["PowerState"])]

    assert (await bmc.reset("ForceOff")).status == 204
    await machine.host.settled()
    seen.append((machine.ipmi.bmc.machine.is_on, (await bmc.get(SYSTEM)).data["PowerState"]))
    assert seen == [(True, "On"), (False, "Off")]
    assert len(rig.started) == 1


async def test_an_order_that_the_state_has_no_room_for_is_refused_by_both(rig: Rig) -> None:
    machine, bmc = await rig.serve()

    assert (await bmc.reset("ForceRestart")).status == 409
    with pytest.raises(RuntimeError, match="off"):
        machine.ipmi.bmc.machine.obey(ChassisControl.HARD_RESET)
    assert (await bmc.reset("GracefulShutdown")).status == 204
    await machine.host.settled()
    assert rig.started == []


async def test_a_graceful_shutdown_presses_the_button_and_the_guest_decides(rig: Rig) -> None:
    machine, bmc = await rig.serve()
    await bmc.reset("On")
    await bmc.reset("GracefulShutdown")
    await machine.host.settled()
    assert rig.newest.commands[-1] == "system_powerdown"
    assert (await bmc.get(SYSTEM)).data["PowerState"] == "On"

    rig.newest.on_end(Ending.GUEST_OFF, "guest-shutdown")
    await machine.host.settled()
    assert (await bmc.get(SYSTEM)).data["PowerState"] == "Off"
    assert not machine.ipmi.bmc.machine.is_on


async def test_an_override_by_redfish_shows_in_the_boot_flags_and_is_used_up_in_both(rig: Rig) -> None:
    machine, bmc = await rig.serve()
    await bmc.patch(SYSTEM, CD_ONCE)
    assert ipmi_flags(machine) == bytes((0x80, 0x14, 0, 0, 0))

    await bmc.reset("On")
    await machine.host.settled()

    assert "ide-cd,id=cd,bus=ide.0,bootindex=0" in rig.newest.command
    assert await boot_of(bmc) == ("Disabled", "None")
    assert ipmi_flags(machine) == bytes(5)
    override = machine.ipmi.bmc.machine.boots[-1].override
    assert override is not None
    assert override.device.name == "CDROM"


async def test_boot_flags_show_in_redfish_and_run_out_there_too(rig: Rig) -> None:
    machine, bmc = await rig.serve()
    options, now = machine.ipmi.bmc.machine.boot_options, machine.ipmi.bmc.clock()

    options.write(BOOT_FLAGS, PXE_FLAGS, now)
    assert await boot_of(bmc) == ("Once", "Pxe")

    assert options.override(now + BOOT_VALID_SECONDS + 1) is None
    assert await boot_of(bmc) == ("Disabled", "None")


async def test_an_override_by_redfish_does_not_run_out(rig: Rig) -> None:
    machine, bmc = await rig.serve()
    await bmc.patch(SYSTEM, CD_ONCE)

    options = machine.ipmi.bmc.machine.boot_options
    assert options.override(machine.ipmi.bmc.clock() + 10 * BOOT_VALID_SECONDS) is not None
    assert await boot_of(bmc) == ("Once", "Cd")


async def test_boot_flags_decide_the_start_and_are_used_up(rig: Rig) -> None:
    machine, bmc = await rig.serve()
    machine.ipmi.bmc.machine.boot_options.write(BOOT_FLAGS, PXE_FLAGS, machine.ipmi.bmc.clock())
    await bmc.reset("On")
    await machine.host.settled()

    nic = next(part for part in rig.newest.command if part.startswith("virtio-net-pci"))
    assert "bootindex=0" in nic
    assert await boot_of(bmc) == ("Disabled", "None")


async def test_a_continuous_override_holds_over_a_restart_by_the_guest(rig: Rig) -> None:
    machine, bmc = await rig.serve()
    await bmc.patch(SYSTEM, {"Boot": {"BootSourceOverrideEnabled": "Continuous", "BootSourceOverrideTarget": "Cd"}})
    await bmc.reset("On")
    await machine.host.settled()
    rig.newest.on_end(Ending.GUEST_RESET, "guest-reset")
    await machine.host.settled()

    assert [boot.target for boot in machine.redfish.state.boots] == ["Cd", "Cd"]
    assert len(rig.started) == 2


async def test_a_target_that_this_firmware_cannot_follow_is_refused(rig: Rig) -> None:
    _, bmc = await rig.serve()

    reply = await bmc.patch(SYSTEM, {"Boot": {"BootSourceOverrideTarget": "UefiHttp"}})

    assert reply.status == 400
    assert reply.message_ids == ["PropertyValueNotInList"]


async def test_an_insertion_is_a_task_that_ends_when_the_image_is_in(rig: Rig, image: str) -> None:
    machine, bmc = await rig.serve()
    await bmc.reset("On")
    await machine.host.settled()

    reply = await bmc.post(INSERT, {"Image": f"{image}/boot.iso"})
    assert reply.status == 202
    await machine.media.settled()

    assert (await bmc.get(reply.headers["Location"])).status == 200
    slot = (await bmc.get(CD)).data
    assert (slot["Inserted"], slot["Image"]) == (True, f"{image}/boot.iso")
    assert rig.newest.commands[-4:] == [
        "blockdev-add",
        "blockdev-open-tray",
        "blockdev-insert-medium",
        "blockdev-close-tray",
    ]
    assert image not in json.dumps(rig.newest.told), "QEMU's monitor and command line know no address"


async def test_an_image_that_cannot_be_read_fails_its_task_with_the_cause(rig: Rig, image: str) -> None:
    machine, bmc = await rig.serve()

    reply = await bmc.post(INSERT, {"Image": f"{image}/s3cr3t/none"})
    await machine.media.settled()

    task = (await bmc.get(reply.data["@odata.id"])).data
    assert task["TaskState"] == "Exception"
    assert "answered 404 Not Found" in task["Messages"][-1]["Message"]
    assert (await bmc.get(CD)).data["Inserted"] is False
    texts = await log_texts(bmc)
    assert "404" in texts[-1]
    assert "s3cr3t" not in texts[-1]


async def test_an_ejection_ends_an_insertion_that_hangs(rig: Rig, image: str) -> None:
    machine, bmc = await rig.serve()
    reply = await bmc.post(INSERT, {"Image": f"{image}/slow"})
    assert (await bmc.get(reply.headers["Location"])).status == 202
    assert (await bmc.post(INSERT, {"Image": f"{image}/boot.iso"})).status == 409

    await bmc.post(EJECT, {})
    await machine.media.settled()

    task = (await bmc.get(reply.data["@odata.id"])).data
    assert task["TaskState"] == "Exception"
    assert "ejection" in task["Messages"][-1]["Message"]
    assert (await bmc.post(INSERT, {"Image": f"{image}/boot.iso"})).status == 202
    await machine.media.settled()


@pytest.mark.parametrize("address", ["nfs://server/x.iso", "//server/share/x.iso"])
async def test_an_image_that_is_on_no_web_server_is_refused(rig: Rig, address: str) -> None:
    _, bmc = await rig.serve()

    reply = await bmc.post(INSERT, {"Image": address})

    assert reply.status == 400


@pytest.mark.case("B59")
async def test_an_ejection_leaves_the_override_and_takes_the_image_away(rig: Rig, image: str) -> None:
    machine, bmc = await rig.serve()
    await bmc.post(INSERT, {"Image": f"{image}/boot.iso"})
    await machine.media.settled()
    await bmc.patch(SYSTEM, CD_ONCE)
    socket_file = rig.folder / "cd.sock"
    assert socket_file.exists()

    assert (await bmc.post(f"{EJECT}/", {})).status == 204
    await machine.media.settled()

    assert await boot_of(bmc) == ("Once", "Cd")
    for path in (CD, f"{CD}/"):
        reply = await bmc.get(path, allow_redirects=False)
        assert (reply.status, reply.data["Inserted"], reply.data["Image"]) == (200, False, None)
    assert machine.drive.image is None
    assert not socket_file.exists()
    await bmc.reset("On")
    await machine.host.settled()
    assert "blockdev-add" not in rig.newest.commands


async def test_a_start_finds_the_image_that_was_put_in_while_it_was_off(rig: Rig, image: str) -> None:
    machine, bmc = await rig.serve()
    await bmc.post(INSERT, {"Image": f"{image}/boot.iso"})
    await machine.media.settled()
    await bmc.reset("On")
    await bmc.reset("ForceRestart")
    await machine.host.settled()

    for qemu in rig.started:
        assert "blockdev-insert-medium" in qemu.commands
        assert qemu.commands[-1] == "cont"


async def test_a_machine_that_does_not_start_is_off_with_its_cause_in_the_log(rig: Rig) -> None:
    machine, bmc = await rig.serve()
    rig.fault = 'QEMU did not start: Failed to get "write" lock'
    await bmc.reset("On")
    await machine.host.settled()

    system = (await bmc.get(SYSTEM)).data
    assert (system["PowerState"], system["Status"]["Health"]) == ("Off", "Critical")
    assert rig.fault in await log_texts(bmc)
    assert machine.host.state is HostState.OFF


async def test_what_the_machine_writes_is_logged_and_what_sol_types_reaches_it(rig: Rig) -> None:
    machine, bmc = await rig.serve()
    await bmc.reset("On")
    await machine.host.settled()
    loop = asyncio.get_running_loop()

    await loop.sock_sendall(rig.newest.guest, b"login: ")
    await machine.serial.seen("login: ")
    machine.ipmi.bmc.console.type(b"root\r")

    assert await loop.sock_recv(rig.newest.guest, 100) == b"root\r"
    assert machine.ipmi.bmc.console.take(100) == b"login: "
    assert (rig.folder / "serial.log").read_bytes() == b"login: "


async def test_what_is_typed_into_a_machine_that_is_off_is_lost(rig: Rig) -> None:
    machine, bmc = await rig.serve()
    await bmc.reset("On")
    await bmc.reset("ForceOff")
    await machine.host.settled()

    machine.serial.type(b"anybody?")


async def test_ipmi_says_who_the_machine_is_as_redfish_does(rig: Rig) -> None:
    machine, bmc = await rig.serve()
    system = (await bmc.get(SYSTEM)).data

    assert uuid.UUID(bytes=machine.ipmi.bmc.identity.guid[::-1]) == uuid.UUID(system["UUID"])
    assert machine.ipmi.bmc.identity.serial == system["SerialNumber"]
    port = (await bmc.get(f"{SYSTEM}/EthernetInterfaces/1")).data
    assert port["MACAddress"].lower() == machine.spec.nics[0].mac


async def test_a_bmc_that_is_started_again_remembers(rig: Rig, image: str) -> None:
    """Identity, power, boot override, image, logins and certificate; the machine starts again as its policy says."""
    async with rig.make(tls=True) as machine, RedfishClient(machine.redfish) as bmc:
        await bmc.post(INSERT, {"Image": f"{image}/boot.iso"})
        await machine.media.settled()
        await bmc.reset("On")
        await machine.host.settled()
        await bmc.patch(SYSTEM, {"Boot": {**CD_ONCE["Boot"], "BootOrder": ["Boot0002", "Boot0001", "Boot0003"]}})
        assert (await bmc.patch(ACCOUNT, {"Password": "n3w-Passw0rd"})).status == 200
        before, fingerprint = machine.spec.identity, machine.redfish.tls.fingerprint if machine.redfish.tls else ""
        assert [user.password for _, user in machine.ipmi.bmc.users.named(b"admin")] == [b"n3w-Passw0rd"]

    machine, bmc = await rig.serve(rig.make(tls=True))
    await machine.host.settled()

    assert machine.spec.identity == before
    assert machine.redfish.tls is not None
    assert machine.redfish.tls.fingerprint == fingerprint
    assert (await bmc.get(SYSTEM)).status == 401
    bmc.headers = basic("admin", "n3w-Passw0rd")
    assert (await bmc.get(CD)).data["Image"] == f"{image}/boot.iso"
    assert (await bmc.get(SYSTEM)).data["PowerState"] == "On"
    assert [boot.target for boot in machine.redfish.state.boots] == ["Cd"]
    assert "blockdev-insert-medium" in rig.newest.commands
    assert machine.ipmi.bmc.machine.restart_cause.name == "RESTORE_PREVIOUS"


async def test_a_machine_that_was_off_stays_off(rig: Rig) -> None:
    async with rig.make() as machine, RedfishClient(machine.redfish) as bmc:
        await bmc.reset("On")
        await bmc.reset("ForceOff")
        await machine.host.settled()

    machine, bmc = await rig.serve()
    await machine.host.settled()
    assert (await bmc.get(SYSTEM)).data["PowerState"] == "Off"


async def test_an_image_that_is_gone_at_the_next_start_leaves_the_drive_empty_and_a_word_why(
    rig: Rig, tmp_path: Path
) -> None:
    iso = tmp_path / "local.iso"
    iso.write_bytes(bytes(2048))
    async with rig.make() as machine:
        await machine.insert_file(iso)
    iso.unlink()

    _, bmc = await rig.serve()
    assert (await bmc.get(CD)).data["Inserted"] is False
    assert "No such file" in (await log_texts(bmc))[-1]


async def test_what_is_remembered_is_for_its_owner_only(rig: Rig) -> None:
    await rig.serve(rig.make(tls=True))

    memory = read_memory(rig.folder / "bmc.json")
    assert (rig.folder / "bmc.json").stat().st_mode & 0o077 == 0
    assert (rig.folder / "machine.json").stat().st_mode & 0o077 == 0
    assert "PRIVATE KEY" in memory.key
    assert "PRIVATE" not in repr(memory)


async def test_a_damaged_memory_says_what_to_do(rig: Rig) -> None:
    rig.folder.mkdir()
    (rig.folder / "bmc.json").write_text('{"format": "x"}')

    with pytest.raises(BmcMemoryError, match="Remove it"):
        rig.make()


async def test_one_folder_is_one_machine_at_a_time(rig: Rig) -> None:
    machine, _ = await rig.serve()

    with pytest.raises(StateError, match="in use by the simulator with process id"):
        await StateFolder(machine.folder.path).acquire(seconds=0.05)
    with pytest.raises(StateError, match="holds machine"):
        StateFolder(machine.folder.path).identity(uuid.uuid4())


async def test_a_machine_does_not_begin_with_what_another_simulator_has_changed_since(rig: Rig) -> None:
    late = rig.make()
    async with rig.make() as machine, RedfishClient(machine.redfish) as bmc:
        await bmc.patch(SYSTEM, CD_ONCE)

    with pytest.raises(StateError, match="start this one again"):
        await late.__aenter__()


async def test_a_hand_in_the_machine_room_acts_over_the_control_resource(rig: Rig) -> None:
    machine, bmc = await rig.serve(rig.make(control=True))
    room = "/_simulator/machine"

    assert (await bmc.post(room, {"action": "press-button"})).status == 202
    await machine.host.settled()
    told = (await bmc.get(room)).data
    assert (told["state"], told["uuid"]) == ("on", str(machine.spec.identity.uuid))
    await bmc.post(room, {"action": "link-down"})
    await machine.host.settled()
    assert rig.newest.told[-1] == ("set_link", {"name": "nic0", "up": False})

    assert (await bmc.post("/_simulator/state", {"power": "Off"})).status == 200
    await machine.host.settled()
    assert (await bmc.get(SYSTEM)).data["PowerState"] == "Off"
    assert (await bmc.post(room, {"action": "press-button"})).status == 202
    await machine.host.settled()
    assert ("set_link", {"name": "nic0", "up": False}) in rig.newest.told, "a cable that was pulled stays out"
    reply = await bmc.post(room, {"action": "kick"})
    assert reply.status == 400
    assert "pull-plug" in reply.data["error"]


async def test_an_error_of_the_disk_is_told(rig: Rig) -> None:
    machine, bmc = await rig.serve()
    await bmc.reset("On")
    await machine.host.settled()

    event = {"node-name": "disk0", "operation": "write", "reason": "No space left on device"}
    rig.newest.on_event("BLOCK_IO_ERROR", event)
    rig.newest.on_event("BLOCK_IO_ERROR", event)

    assert (await log_texts(bmc)) == ["QEMU could not write disk0: No space left on device"]


def test_a_disk_is_made_and_one_that_is_there_keeps_its_size(tmp_path: Path) -> None:
    made = open_disk(tmp_path / "new.raw", "S1", 1 << 20)
    assert (made.size, made.image_format) == (1 << 20, "raw")
    assert open_disk(made.file, "S1", 5 << 20).size == 1 << 20

    qcow = tmp_path / "old.qcow2"
    qcow.write_bytes(struct.pack(">4sIQIIQ", b"QFI\xfb", 3, 0, 0, 16, 8 << 30) + bytes(100))
    found = open_disk(qcow, "S2")
    assert (found.size, found.image_format) == (8 << 30, "qcow2")

    with pytest.raises(StateError, match="give its size"):
        open_disk(tmp_path / "none", "S3")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--disk-size", "big"], "write it as 8G or 512M"),
        (["--forward", "22"], "write it as 2222:22"),
        (["--memory", "1M"], "give at least 128"),
        (["--disk", "a", "--disk", "b", "--disk", "c", "--disk", "d", "--disk", "e"], "at most 4"),
    ],
)
def test_the_command_says_what_is_wrong_with_its_options_and_makes_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)

    result = CliRunner().invoke(simulate, ["machine", "--state", "state", "--disk-size", "1M", *options])

    assert result.exit_code != 0
    assert words in result.output
    assert not (tmp_path / "a").exists()


def test_the_command_names_the_packages_of_programs_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    result = CliRunner().invoke(simulate, ["machine", "--state", str(tmp_path / "s"), "--disk-size", "1M"])

    assert result.exit_code == 1
    assert "install the package qemu-system-x86" in result.output
