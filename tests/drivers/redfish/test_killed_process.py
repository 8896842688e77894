"""A process that is killed leaves its session to the BMC's own expiry; with four slots the next one still works."""

import asyncio
import sys
import textwrap
from pathlib import Path

import pytest

from drivers import Drivers, Target
from protocol.errors import ErrorCode
from simulators.redfish import RedfishServer, ServiceOptions
from tests.drivers.redfish.harness import PASSWORD, SESSIONS, bench, without_waiting

REPOSITORY = Path(__file__).resolve().parents[3]
SLOTS = 4
EXPIRY_SECONDS = 1.0
_CLIENT = textwrap.dedent("""
    import asyncio, sys
    from drivers import Drivers, Target

    async def main(address, password):
        async with Drivers() as drivers:
            while True:
                await drivers.invoke(Target(address=address, username="admin", password=password), "power.getPower")
                print("read", flush=True)

    asyncio.run(main(sys.argv[1], sys.stdin.readline().strip()))
""")


async def killed_in_the_middle(bmc: RedfishServer) -> None:
    """A process that reads the power again and again, until it is killed without a word."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CLIENT, bmc.url,
        cwd=REPOSITORY, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{PASSWORD}\n".encode())
    await process.stdin.drain()
    for _ in range(3):
        assert await process.stdout.readline() == b"read\n"
    process.kill()
    await process.wait()


@pytest.mark.e2e
@pytest.mark.case("B32")
async def test_a_killed_process_uses_one_slot_until_it_expires_and_the_next_works() -> None:
    options = ServiceOptions(max_sessions=SLOTS, session_timeout=EXPIRY_SECONDS)
    async with RedfishServer(users={"admin": PASSWORD}, options=options) as bmc, Drivers() as drivers:
        target = Target(address=bmc.url, username="admin", password=PASSWORD)
        for killed in range(1, SLOTS + 3):
            await killed_in_the_middle(bmc)
            assert bmc.state.sessions_created >= killed
            assert 1 <= len(bmc.state.open_sessions) <= SLOTS
        assert (await drivers.invoke(target, "power.getPower", timeout=30))["state"] == "on"
        await drivers.aclose()
        async with asyncio.timeout(20):
            while bmc.state.open_sessions:
                await asyncio.sleep(0.05)


@pytest.mark.case("B32")
@without_waiting
async def test_when_the_slots_are_full_of_dead_sessions_the_next_login_waits_for_one_to_expire() -> None:
    async with bench(options=ServiceOptions(max_sessions=SLOTS, session_timeout=50)) as bmc:
        abandoned = [Drivers() for _ in range(SLOTS)]
        for drivers in abandoned:
            await drivers.invoke(bmc.target, "power.getPower")
        assert len(bmc.bmc.state.open_sessions) == SLOTS
        assert (await bmc.fails("power.getPower", timeout=20)).code is ErrorCode.BUSY
        assert (await bmc("power.getPower", timeout=120))["state"] == "on"
        assert len(bmc.requests("POST", SESSIONS)) <= SLOTS + 8
        for drivers in abandoned:
            await drivers.aclose()
