"""The control plane dies at every transaction boundary of one power reset; the machine is reset once at most.

The boundaries are counted in a run that lives. Then, for each, a control plane process dies exactly there, another
one takes over on the same database, and the operator asks again with the same key.
"""

import contextlib
import http.client
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.ids import new_id
from tests.e2e.processes import AgentProcess, ControlPlaneProcess, Program, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ENDED = {"succeeded", "failed", "rejected", "expired", "cancelled"}


class Rehearsal:
    """One database and one agent process for all deaths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.acts = folder / "machines"
        self.acts.mkdir()
        self.plane = ControlPlaneProcess(folder)
        self.agent = AgentProcess(folder, {"RACKWRIGHT_SIMULATED_STATE": str(self.acts)})
        self.count = folder / "boundaries"

    def set_up(self) -> None:
        with self.plane.running_for():
            self.agent.join(self.plane)
            self.plane.call(
                "nodes.create", tenantId="default", name="m1", siteId="lab", bmc={"address": "simulated://m1"}
            )
            self.plane.stop()

    def dying(self, at: str) -> Program:
        words = ["-m", "tests.e2e.crashing_plane", at, str(self.plane.config), str(self.count)]
        return Program(self.folder, "dying", environment=os.environ.copy(), command=[sys.executable, *words])

    def hurry(self) -> None:
        """Has the agent connect now: it backs off from a control plane that dies again and again."""
        os.kill(self.agent.pid, signal.SIGHUP)

    def until_answering_or_dead(self, plane: Program) -> None:
        wait_until("it answers or dies", lambda: not plane.running or self.plane.answers())
        self.hurry()

    def resets(self) -> int:
        log = self.acts / "m1.acts"
        return log.read_text().count('"power.setPower"') if log.exists() else 0

    def ask(self, key: str) -> dict[str, Any] | None:
        """The reset's row; None while nobody answers."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, row = self.plane.ask(
                "drivers.invoke",
                tenantId="default",
                nodeId="m1",
                operation="power.setPower",
                args={"action": "reset"},
                key=key,
                waitMs=5_000,
            )
            if status == 200:
                return row
        return None

    def ended(self, key: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            row = self.ask(key)
            return row if row is not None and row["state"] in ENDED else None

        found: dict[str, Any] = wait_until("the reset ends", look, 60)
        return found


@pytest.fixture
def rehearsal(tmp_path: Path) -> Iterator[Rehearsal]:
    it = Rehearsal(tmp_path)
    it.set_up()
    with it.agent.running_for():
        wait_until("the agent runs", lambda: '"started"' in it.agent.said())
        yield it


def test_a_control_plane_that_dies_at_any_transaction_boundary_resets_nothing_twice(rehearsal: Rehearsal) -> None:
    boundaries = _count(rehearsal)
    died = 0
    for boundary in range(boundaries):
        before, key = rehearsal.resets(), new_id("req")
        with rehearsal.dying(str(boundary)).running_for() as plane:
            rehearsal.until_answering_or_dead(plane)
            rehearsal.ask(key)
            with contextlib.suppress(AssertionError):
                wait_until("it dies", lambda: not plane.running, 2)
            died += not plane.running
        with rehearsal.plane.running_for():
            rehearsal.hurry()
            row = rehearsal.ended(key)
            assert rehearsal.resets() - before == (row["state"] == "succeeded"), (boundary, row)
            rehearsal.plane.stop()
    sys.stdout.write(f"the control plane died {died} times at {boundaries} boundaries\n")
    assert died >= boundaries // 2


def _count(rehearsal: Rehearsal) -> int:
    """Boundaries of a whole story: start, the agent's hello, the command and its ending, stop."""
    with rehearsal.dying("never").running_for() as plane:
        rehearsal.until_answering_or_dead(plane)
        row = rehearsal.ended(new_id("req"))
        assert row["state"] == "succeeded"
        plane.stop()
    return int(rehearsal.count.read_text())
