"""One power reset, and at every frame of it a death, a cut or a repetition: the BMC sees at most one reset.

Real processes: `rackwright control-plane serve`, `rackwright agent run`, a proxy between them that sees every frame,
and our Redfish server as the BMC, whose own journal says what reached it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.authority import Authority
from protocol.ids import new_id
from simulators.redfish import Drop, FaultRule, RedfishServerThread
from tests.e2e.frame_proxy import Deed, FrameProxy, Seen
from tests.e2e.processes import AgentProcess, ControlPlaneProcess, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

FRAMES = ["command", "started", "finished", "settled"]
ENDED = {"succeeded", "failed", "rejected", "expired", "cancelled"}
RESET = "*/Actions/ComputerSystem.Reset"


class Place:
    """One site for all points: what dies is started again, as systemd would."""

    def __init__(self, folder: Path, bmc: RedfishServerThread) -> None:
        self.bmc = bmc
        self.plane = ControlPlaneProcess(folder)
        self.agent = AgentProcess(folder)
        self.proxy: FrameProxy | None = None

    def start(self) -> None:
        self.plane.start()
        self.agent.join(self.plane)
        self.agent.credential("bmc", "admin", "password")
        self.plane.call(
            "nodes.create",
            tenantId="default",
            name="m1",
            siteId="lab",
            bmc={"address": self.bmc.url, "credentialRef": "bmc", "tls": "first-use"},
        )

    def stop(self) -> None:
        for program in (self.agent, self.plane):
            if program.running:
                program.kill()

    def reset(self) -> str:
        """Asks for a reset as a careful operator does: with a key, so that a lost answer can be asked for again."""
        key = new_id("req")

        def ask() -> str:
            answer = self.plane.call(
                "drivers.invoke",
                tenantId="default",
                nodeId="m1",
                operation="power.setPower",
                args={"action": "reset"},
                key=key,
                waitMs=0,
            )
            return str(answer["id"])

        found: str = wait_until("the reset is taken", ask)
        return found

    def resets(self) -> int:
        """Resets that the BMC carried out."""
        return self.bmc.journal.count("POST", RESET, executed_only=True)

    async def ended(self, command_id: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            row = self.plane.call("commands.get", tenantId="default", commandId=command_id)
            return row if row["state"] in ENDED else None

        found: dict[str, Any] = await asyncio.to_thread(wait_until, f"{command_id} ends", look, 60)
        return found

    async def revive(self) -> None:
        for program in (self.plane, self.agent):
            if not program.running:
                await asyncio.to_thread(program.start)


@pytest.fixture(scope="module")
def bmc() -> Iterator[RedfishServerThread]:
    with RedfishServerThread(users={"admin": "password"}, tls=True) as server:
        yield server


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, bmc: RedfishServerThread) -> Iterator[Place]:
    it = Place(tmp_path_factory.mktemp("site"), bmc)
    it.start()
    yield it
    it.stop()


@pytest.fixture
async def site(place: Place) -> AsyncIterator[Place]:
    """The site with a proxy of this test's own, and both programs running."""
    identity = place.agent.identity / "current"
    async with FrameProxy(
        Authority.open(place.plane.state / "ca"),
        identity / "agent.crt",
        identity / "agent.key",
        place.plane.agents_port,
    ) as proxy:
        place.proxy = proxy
        if place.agent.running:
            await asyncio.to_thread(place.agent.stop)
        place.agent.dial(proxy.port)
        await place.revive()
        await asyncio.to_thread(
            wait_until,
            "the agent is connected",
            lambda: place.plane.call("agents.list", tenantId="default")["items"][-1]["connected"],
        )
        yield place
        place.bmc.faults.clear()


def _at(frame: str, deed: Deed, place: Place, victim: str) -> tuple[Any, asyncio.Event]:
    """A plan that does the deed to the first frame of this type, and kills the victim before or after it passes."""
    met = asyncio.Event()

    async def plan(seen: Seen) -> Deed:
        if seen.type != frame or met.is_set():
            return Deed.PASS
        met.set()
        program = {"agent": place.agent, "control plane": place.plane}.get(victim)
        if program is None:
            return deed
        if deed is Deed.PASS_AND_CUT:
            # The frame must be on its way before the victim dies.
            asyncio.get_running_loop().call_later(0.01, program.kill)
            return Deed.PASS
        program.kill()
        return deed

    return plan, met


@pytest.mark.case("B49")
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(
    ("victim", "deed"),
    [
        ("agent", Deed.DROP_AND_CUT),
        ("agent", Deed.PASS_AND_CUT),
        ("control plane", Deed.DROP_AND_CUT),
        ("control plane", Deed.PASS_AND_CUT),
        ("connection", Deed.DROP_AND_CUT),
        ("connection", Deed.PASS_AND_CUT),
        ("nobody", Deed.TWICE),
    ],
)
async def test_a_reset_happens_at_most_once_whatever_dies_at_whichever_frame(
    site: Place, frame: str, victim: str, deed: Deed
) -> None:
    assert site.proxy is not None
    before = site.resets()
    site.proxy.plan, met = _at(frame, deed, site, victim)
    asking = asyncio.create_task(asyncio.to_thread(site.reset))
    async with asyncio.timeout(20):
        await met.wait()
    await asyncio.sleep(0.05)
    await site.revive()
    command_id = await asking
    row = await site.ended(command_id)
    done = site.resets() - before
    assert done <= 1
    if row["state"] == "succeeded":
        assert done == 1
    else:
        assert row["error"]["code"] == "OUTCOME_UNKNOWN", row
    # The ending survives what comes after it, and no late frame changes the count.
    await asyncio.sleep(0.2)
    again = await site.ended(command_id)
    assert (again["state"], site.resets() - before) == (row["state"], done)


async def test_an_agent_killed_while_the_bmc_resets_does_not_reset_again(site: Place) -> None:
    before = site.resets()
    site.bmc.faults.add(FaultRule(method="POST", path=RESET, answer_late=3.0, count=1))
    command_id = await asyncio.to_thread(site.reset)
    await asyncio.to_thread(wait_until, "the reset reaches the BMC", lambda: site.resets() > before)
    site.agent.kill()
    await site.revive()
    row = await site.ended(command_id)
    assert site.resets() - before == 1
    assert row["state"] == "failed"
    assert row["error"]["code"] == "OUTCOME_UNKNOWN"
    assert "power" in row["error"]["message"]


async def test_an_agent_killed_before_the_bmc_acted_does_not_reset_at_all_behind_our_back(site: Place) -> None:
    before = site.resets()
    site.bmc.faults.add(FaultRule(method="POST", path=RESET, latency=5.0, drop=Drop.BEFORE, count=1))
    posts = site.bmc.journal.count("POST", RESET)
    command_id = await asyncio.to_thread(site.reset)
    await asyncio.to_thread(
        wait_until, "the request is under way", lambda: site.bmc.journal.count("POST", RESET) > posts
    )
    site.agent.kill()
    await site.revive()
    row = await site.ended(command_id)
    assert site.resets() == before
    assert row["error"]["code"] == "OUTCOME_UNKNOWN"


async def test_both_killed_at_once_still_end_in_one_reset_at_most(site: Place) -> None:
    before = site.resets()
    site.bmc.faults.add(FaultRule(method="POST", path=RESET, answer_late=2.0, count=1))
    command_id = await asyncio.to_thread(site.reset)
    await asyncio.to_thread(wait_until, "the reset reaches the BMC", lambda: site.resets() > before)
    site.agent.kill()
    site.plane.kill()
    await site.revive()
    row = await site.ended(command_id)
    assert site.resets() - before == 1
    assert row["state"] in ENDED
