"""A whole deploy, its worker killed at every transaction boundary and around every command frame (A51).

Twelve steps: code, operations through the site agent, one that is retried, relayed commands, work in the ramdisk, a
step that is not ready, one that is skipped, a kexec whose return is awaited, and what tidies up afterwards.
"""

import sys
from collections import Counter
from typing import Any

import pytest

from control_plane.engine.context import StepContext, StepNotReady
from control_plane.records import CommandRow
from control_plane.store import Store, migrate, open_store
from control_plane.store.crash import Crash, CrashingStore
from protocol.commands import SELF_TERMINATING, Ending
from tests.control_plane.engine.rig import DONE, Rig, Seen, failed, kexec, make_rig, operation, power, work
from tests.control_plane.ledger import Clock

DEPLOY: list[dict[str, Any]] = [
    work("claim"),
    {"id": "mount", "use": "plane.mount"},
    operation("boot.setBootDevice", **{"id": "boot-device", "with": {"device": "pxe"}}),
    power("reset", id="reset", retries=2),
    work("relay", retries=1),
    work("settle-in"),
    {"id": "partition", "use": "task.run", "with": {"script": "partition"}},
    {"id": "write", "use": "task.run", "with": {"script": "write"}, "retries": 1},
    work("gpu", when="gpu.model=H100"),
    power("off", id="probe", onFailure="continue"),
    kexec(onFailure={"use": "power.setPower", "on": "site", "with": {"action": "reset"}}),
    work("verify"),
]
CLEANUP = [power("on", id="light"), work("release")]


class Story:
    """One deploy, told with a worker that dies at most once."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.ready: set[str] = set()
        rig.code |= {"relay": self.relay, "settle-in": self.settle_in}
        rig.site.answer = self.site
        rig.machine.ramdisk.answer = self.ramdisk

    def site(self, row: CommandRow) -> Ending:
        """The first reset fails; so does one of the relay's commands, and the probe, every time."""
        name = row.key.split(":", 2)[2]
        return failed("BMC_BUSY", "later") if name in ("reset", "relay#1:second", "probe") else DONE

    def ramdisk(self, row: CommandRow) -> Ending | None:
        if row.kind == "boot.kexec":
            self.rig.machine.turn("daemon")
            return None
        return failed("DISK", "busy") if row.key.endswith(":write") else DONE

    async def relay(self, context: StepContext) -> dict[str, object]:
        args: dict[str, object] = {"driver": "redfish", "concern": "power", "operation": "setPower"}
        args |= {"args": {"action": "reset"}, "targetNodeId": context.node_id, "target": None}
        for key in ("first", "second"):
            await context.await_command(kind="driver.invoke", payload=args, key=key)
        return {"relayed": 2}

    async def settle_in(self, context: StepContext) -> None:
        if "settle-in" not in self.ready:
            self.ready.add("settle-in")
            raise StepNotReady(3_000)

    async def finish(self, workflow_id: str) -> Seen:
        rig = self.rig
        for _ in range(500):
            look = await rig.run(workflow_id, hinted=True)
            if look.then.value == "over":
                return await rig.look(workflow_id)
            worked = await rig.agents_work()
            await rig.machine.connect()
            if not worked:
                rig.clock.now = max(rig.clock.now, look.wake_at or 0)
        raise AssertionError(await rig.look(workflow_id))


class Killer:
    """Counts the points at which the worker can die, and kills it at one of them."""

    def __init__(self, store: Store, *, boundary: int | None = None, frame: int | None = None) -> None:
        self.store = CrashingStore(store, at=boundary)
        self.frames = 0
        self._at = frame

    def frame(self) -> None:
        if self.frames == self._at:
            self.store.crashed = True
            raise Crash(f"the process died at frame {self._at}")
        self.frames += 1


async def tell(store: Store, clock: Clock, killer: Killer) -> tuple[Rig, str, Seen]:
    rig = await make_rig(store, clock)
    story = Story(rig)
    workflow_id = await rig.start(*DEPLOY, cleanup=CLEANUP)
    rig.store, rig.frame = killer.store, killer.frame
    try:
        seen = await story.finish(workflow_id)
    except Crash:
        rig.store, rig.frame = store, lambda: None
        await rig.restart("engine-2")
        seen = await story.finish(workflow_id)
    return rig, workflow_id, seen


async def essence(rig: Rig, workflow_id: str, seen: Seen) -> dict[str, Any]:
    """The end state without ids and times."""
    commands = await rig.commands(workflow_id)
    return {
        "state": seen.workflow.state,
        "error": seen.workflow.error,
        "steps": [
            (step.id, step.state, step.attempt, step.result, step.error)
            for step in sorted(seen.steps.values(), key=lambda step: step.seq)
        ],
        # The report of a command that ended its own process may or may not have been heard of.
        "commands": {
            row.key.removeprefix(f"wf:{workflow_id}:"): row.kind in SELF_TERMINATING or row.state for row in commands
        },
        "executed": Counter({row.key.split(":", 2)[2]: rig.executed[row.id] for row in commands}),
        "events": await rig.event_names(workflow_id),
    }


@pytest.mark.line("A51")
@pytest.mark.timeout(600)
async def test_a51_a_deploy_ends_the_same_wherever_its_worker_is_killed(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    store = open_store(store_url, clock=clock)
    try:
        await migrate(store)
        counting = Killer(store)
        expected = await essence(*await tell(store, clock, counting))
        assert expected["state"] == "succeeded"
        assert set(expected["executed"].values()) == {1}
        assert len(expected["commands"]) == 13
        points: list[dict[str, int]] = [{"boundary": n} for n in range(counting.store.boundaries)]
        points += [{"frame": n} for n in range(counting.frames)]
        for point in points:
            assert await essence(*await tell(store, clock, Killer(store, **point))) == expected, point
        with capsys.disabled():
            sys.stdout.write(f"\n{store.dialect}: {len(points)} crash points in a deploy of 12 steps, one end\n")
    finally:
        await store.close()
