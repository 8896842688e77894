"""A peer that nobody here wrote: OpenStack's sushy-tools emulator, which has no sessions and changes power late."""

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from drivers import Drivers, Target
from protocol.errors import ErrorCode, OperationError
from tests.drivers.ends import ended
from tests.drivers.redfish.emulator_table import EMULATOR, ISO
from tests.drivers.redfish.every_operation import OWN

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
PROGRAM = Path(__file__).resolve().parents[3] / ".peers" / "bin" / "sushy-emulator"
READY_SECONDS = 30.0


MAC = "00:5c:52:31:3a:9c"
PASSWORD = "Pl4nted-Secret"
_HASH = "import bcrypt; print(bcrypt.hashpw(input().encode(), bcrypt.gensalt(4)).decode())"


@contextlib.asynccontextmanager
async def emulator_in(folder: Path, *, with_logins: bool = False) -> AsyncIterator[str]:
    """The address of an emulator with its fake machine; skips where sushy-tools is not installed."""
    if not PROGRAM.exists():
        pytest.skip("sushy-tools is not installed: make test installs it into .peers")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings: dict[str, object] = {
        "SUSHY_EMULATOR_STATE_DIR": str(folder),
        "SUSHY_EMULATOR_FAKE_DRIVER": True,
        "SUSHY_EMULATOR_FAKE_SYSTEMS": [
            {
                "uuid": "27946b59-9e44-4fa7-8e91-f3527a1ef094",
                "name": "fake1",
                "power_state": "Off",
                "nics": [{"mac": MAC, "ip": "172.22.0.100"}],
            }
        ],
    }
    if with_logins:
        hashed = subprocess.run(
            [str(PROGRAM.with_name("python")), "-c", _HASH],
            input=PASSWORD, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        (folder / "logins").write_text(f"admin:{hashed}")
        settings["SUSHY_EMULATOR_AUTH_FILE"] = str(folder / "logins")
    configuration = folder / "emulator.conf"
    configuration.write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM), "--config", str(configuration), "--fake", "-i", "127.0.0.1", "-p", str(port),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(READY_SECONDS):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.1)
                    continue
                writer.close()
                await writer.wait_closed()
                break
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
async def emulator(tmp_path: Path) -> AsyncIterator[str]:
    async with emulator_in(tmp_path) as address:
        yield address


@pytest.fixture
async def iso(unused_tcp_port_factory: Any) -> AsyncIterator[str]:
    """The address of an image that can be fetched: the emulator fetches what is inserted."""

    async def image(_request: web.Request) -> web.Response:
        return web.Response(body=bytes(65536))

    app = web.Application()
    app.router.add_get("/ramdisk.iso", image)
    runner = web.AppRunner(app)
    await runner.setup()
    port = unused_tcp_port_factory()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield f"http://127.0.0.1:{port}/ramdisk.iso"
    await runner.cleanup()


async def test_every_operation_ends_at_the_emulator_as_it_really_answers(emulator: str, iso: str) -> None:
    assert list(EMULATOR) == OWN
    target = Target(address=emulator, username="admin", password="ignored")
    async with Drivers() as drivers:
        for operation, end in EMULATOR.items():
            arguments = {key: iso if value == ISO else value for key, value in end.arguments.items()}
            found = await ended(drivers.invoke(target, operation, arguments, rotation=end.rotation))
            assert end.is_met_by(found), (operation, found)


async def test_what_the_emulator_shows_of_the_machine_is_read(emulator: str, iso: str) -> None:
    target = Target(address=emulator, username="admin", password="ignored")
    async with Drivers() as drivers:
        inventory: dict[str, Any] = await drivers.invoke(target, "inspect.getInventory")
        assert [nic["mac"] for nic in inventory["nics"]] == [MAC]
        sensors: dict[str, Any] = await drivers.invoke(target, "management.getSensors")
        assert ("CPU Temp", 41.0) in [(sensor["name"], sensor["reading"]) for sensor in sensors["sensors"]]
        slots: dict[str, Any] = await drivers.invoke(target, "virtual-media.listMedia")
        assert [(slot["id"], slot["insertMethod"]) for slot in slots["slots"]] == [
            ("Cd", "action"),
            ("Floppy", "action"),
        ]
        await drivers.invoke(target, "virtual-media.insertMedia", {"image": iso})
        now: dict[str, Any] = await drivers.invoke(target, "virtual-media.listMedia")
        assert [(slot["id"], slot["inserted"]) for slot in now["slots"]] == [("Cd", True), ("Floppy", False)]
        with pytest.raises(OperationError) as caught:
            await drivers.invoke(
                target, "virtual-media.insertMedia", {"image": "http://127.0.0.1:9/x.iso", "device": "floppy"}
            )
        assert "Failed fetching image" in str(caught.value)


async def test_a_service_that_names_no_sessions_and_wants_basic_is_spoken_to_by_basic(tmp_path: Path) -> None:
    async with emulator_in(tmp_path, with_logins=True) as address:
        async with Drivers() as drivers:
            target = Target(address=address, username="admin", password=PASSWORD)
            assert (await drivers.invoke(target, "power.getPower"))["state"] == "off"
            assert (await drivers.invoke(target, "management.setIndicator", {"state": "blink"}))["state"] == "blink"
        async with Drivers() as drivers:
            wrong = Target(address=address, username="admin", password="wrong")
            for expected in (ErrorCode.AUTH_FAILED, ErrorCode.AUTH_BLOCKED):
                with pytest.raises(OperationError) as caught:
                    await drivers.invoke(wrong, "power.getPower")
                assert caught.value.code is expected


async def test_a_machine_of_the_emulator_is_read_booted_and_switched(emulator: str) -> None:
    async with Drivers() as drivers:
        target = Target(address=emulator, username="admin", password="ignored")
        invoke = drivers.invoke
        before = await invoke(target, "power.getPower")
        assert before["state"] in ("on", "off")
        assert (await invoke(target, "power.setPower", {"action": "off"}))["state"] == "off"
        assert await invoke(target, "power.setPower", {"action": "off"}) == {
            "state": "off",
            "changed": False,
            "verbUsed": None,
            "forced": False,
        }
        boot = await invoke(target, "boot.setBootDevice", {"device": "cd"})
        assert boot["target"] == "cd"
        assert (await invoke(target, "power.setPower", {"action": "on"}))["state"] == "on"
        assert (await invoke(target, "power.setPower", {"action": "reset"}))["changed"] is True
        report = await invoke(target, "management.qualify")
        operations = report["operations"]
        assert isinstance(operations, list)
        assert len(operations) > 20
        slots = (await invoke(target, "virtual-media.listMedia"))["slots"]
        assert isinstance(slots, list)
        with pytest.raises(OperationError) as caught:
            await invoke(target, "management.getEventLog")
        assert caught.value.code is ErrorCode.UNSUPPORTED
