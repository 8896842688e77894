"""Any mixture of commands, repeats, cancels, cuts, kills and boots: nothing is done twice, nothing ends silently."""

import asyncio
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.session import SessionEnd
from protocol.commands import Outcome
from protocol.frames import Cancel, Command, Settled
from tests.agent.counting_driver import Machines
from tests.agent.points import Points
from tests.agent.rig import Agent, Asked, FakeClock, Ledger, Wire, setting, until

ACTS = ("reset", "cycle", "nmi")
STEPS = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 2)),
    st.tuples(st.just("repeat"), st.integers(0, 9)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("settle"), st.integers(0, 9)),
    st.tuples(st.just("cut"), st.just(0)),
    st.tuples(st.just("kill"), st.integers(0, 12)),
    st.tuples(st.just("boot"), st.just(0)),
    st.tuples(st.just("time"), st.sampled_from([1_000, 90_000])),
    st.tuples(st.just("wait"), st.integers(0, 30)),
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


class Storm:
    """One agent after the other on one disk, and the ledger that outlives them."""

    def __init__(self, folder: Path, machines: Machines) -> None:
        self.folder = folder
        self.machines = machines
        self.clock = FakeClock()
        self.ledger = Ledger()
        self.asked: list[tuple[Command, Asked]] = []
        self.agent: Agent | None = None
        self.wire: Wire | None = None
        self.session: asyncio.Task[SessionEnd] | None = None

    async def up(self, kill_at: int = 0) -> Wire:
        """A connected agent: the one there is, or a new life, or a new connection."""
        if self.agent is not None and self.agent.points.dead.is_set():
            await self.down()
        if self.agent is None:
            self.agent = Agent(self.folder, self.clock, Points(kill_at))
        if self.wire is None or self.session is None or self.session.done():
            self.wire, self.session = self.agent.connect(self.ledger)
        return self.wire

    async def down(self) -> None:
        if self.agent is not None:
            await self.agent.kill()
        self.agent = self.wire = self.session = None

    async def step(self, word: str, number: int) -> None:
        if word == "kill":
            await self.down()
            await self.up(kill_at=number)
        elif word == "boot":
            await self.down()
            self.clock.reboot()
        elif word == "time":
            self.clock.now_ms += number
        elif word == "ask":
            # Each act has a machine of its own, so that its count tells of it alone.
            command = setting(ACTS[number], f"m{len(self.asked)}")
            self.asked.append((command, self.ledger.ask(command)))
            self.ledger.settled.clear()
            (await self.up()).tell(command)
        else:
            wire = await self.up()
            if word == "cut":
                await wire.close()
            elif word == "wait":
                for _ in range(number):
                    await asyncio.sleep(0.0005)
            elif self.asked:
                command, row = self.asked[number % len(self.asked)]
                if word == "repeat":
                    wire.tell(command)
                elif word == "cancel":
                    wire.tell(Cancel(id=command.id, reason="storm"))
                elif row.ending is not None:
                    wire.tell(Settled(ids=[command.id]))

    async def calm(self) -> None:
        """No more faults: everything must come to its end."""
        while any(row.ending is None for _, row in self.asked):
            await self.up()
            if self.agent is not None and self.agent.points.kill_at:
                await self.down()
                continue
            assert self.session is not None
            waiting = asyncio.create_task(self._all_ended())
            await asyncio.wait((waiting, self.session), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _all_ended(self) -> None:
        await until(lambda: all(row.ending is not None for _, row in self.asked))

    def judge(self) -> None:
        for number, (command, row) in enumerate(self.asked):
            acts = sum(count for name, count in self.machines.acts.items() if name.startswith(f"m{number} "))
            assert acts <= 1, f"{command.id} was done {acts} times"
            assert row.ending is not None
            assert all(ending == row.ending for ending in row.endings), row.endings
            if row.ending.outcome is Outcome.SUCCEEDED:
                assert acts == 1
            else:
                assert row.ending.error is not None
                may_have = row.ending.error.details.get("mayHaveHappened", False)
                assert may_have or acts == 0, f"it happened, and the ending denies it: {row.ending}"


@given(steps=st.lists(STEPS, min_size=1, max_size=25))
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_no_mixture_of_events_does_an_act_twice_or_loses_an_ending(
    machines: Machines, steps: list[tuple[str, int]]
) -> None:
    async def weather(folder: Path) -> None:
        storm = Storm(folder, machines)
        try:
            for word, number in steps:
                await storm.step(word, number)
            async with asyncio.timeout(20):
                await storm.calm()
        finally:
            await storm.down()
        storm.judge()

    machines.clear()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(weather(Path(folder)))
