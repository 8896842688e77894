"""A peer that nobody here wrote: OpenStack's sushy-tools emulator, which has no sessions and changes power late."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drivers import Drivers, Target
from protocol.errors import ErrorCode, OperationError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
EMULATOR = Path(__file__).resolve().parents[3] / ".peers" / "bin" / "sushy-emulator"
READY_SECONDS = 30.0


@pytest.fixture
async def emulator(tmp_path: Path) -> AsyncIterator[str]:
    """The address of an emulator with its fake machines; skipped where sushy-tools is not installed."""
    if not EMULATOR.exists():
        pytest.skip("sushy-tools is not installed: make test installs it into .peers")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    configuration = tmp_path / "emulator.conf"
    configuration.write_text(
        f"SUSHY_EMULATOR_STATE_DIR = {str(tmp_path)!r}\nSUSHY_EMULATOR_FAKE_DRIVER = True\n"
        "SUSHY_EMULATOR_FAKE_SYSTEMS = [{'uuid': '27946b59-9e44-4fa7-8e91-f3527a1ef094', 'name': 'fake1', "
        "'power_state': 'Off', 'nics': [{'mac': '00:5c:52:31:3a:9c', 'ip': '172.22.0.100'}]}]\n"
    )
    process = await asyncio.create_subprocess_exec(
        str(EMULATOR), "--config", str(configuration), "--fake", "-i", "127.0.0.1", "-p", str(port),
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
