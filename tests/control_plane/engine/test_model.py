"""The engine against everything that Hypothesis can put together, with what must hold after each single step.

Random profiles; two workers that share the shards by leases and never notice that theirs are over; a worker that dies
before or after any commit; agents that are cut off, reboot, and report late, twice or in any order; operators; a
clock that jumps. Then the world behaves, and every workflow must come to its end.

`HYPOTHESIS_PROFILE=nightly` makes it 10,000 runs; `RACKWRIGHT_SEED` repeats a run by the seed that it printed.
"""

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, event, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from control_plane import commands
from control_plane.engine.context import StepContext, StepFailed, StepNotReady
from control_plane.engine.records import StepRow
from control_plane.engine.shards import take_shards
from control_plane.engine.states import (
    ACTIVE,
    IN_FLIGHT,
    STEP_TRANSITIONS,
    WORKFLOW_TRANSITIONS,
    Ending,
    StepState,
    WorkflowState,
)
from control_plane.engine.states import Phase as StepPhase
from control_plane.engine.timing import SHARDS
from control_plane.engine.transitions import Next, Settlement, Then
from control_plane.store import Store, Transaction, migrate, open_store
from control_plane.store.crash import Crash, CrashingStore
from protocol.commands import SELF_TERMINATING, CommandState, JournalState, Outcome
from protocol.commands import Ending as CommandEnding
from protocol.errors import Failure, RequestError
from tests.control_plane.engine.rig import DONE, ModelAgent, Rig, Seen, failed, kexec, make_rig, power, reboot, work
from tests.control_plane.ledger import Clock

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")
EXAMPLES, STEPS = {"nightly": (10_000, 60)}.get(PROFILE, (300, 50))
SEED = int(os.environ.get("RACKWRIGHT_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
LEASE_MS = 15_000
CLEANUP = StepPhase.CLEANUP
JUMPS = [1, 1_000, 2_000, 5_000, 10_000, 16_000, 60_000, 900_000, 86_400_000]
UNKNOWN = CommandEnding(Outcome.FAILED, error=Failure("OUTCOME_UNKNOWN", "the agent died while it was done"))
ResultT = TypeVar("ResultT")

ON_FAILURE = st.sampled_from(
    [
        "fail",
        "fail",
        "continue",
        "rescue",
        {"use": "plane.work"},
        {"use": "power.setPower", "on": "site", "with": {"action": "reset"}},
    ]
)
OPTIONS = st.fixed_dictionaries(
    {"retries": st.integers(0, 2), "timeout": st.sampled_from(["20s", "5m"])},
    optional={"when": st.sampled_from(["gpu", "!gpu", ""]), "onFailure": ON_FAILURE},
)
BEHAVIOUR = st.sampled_from(["fine", "fine", "fails", "fails once", "later", "relays", "relays two", "reboots"])
KIND = st.sampled_from(
    ["code", "code", "reset", "on", "task", "kexec", "reboot", "mount", "code, back", "reset, back"]
)


@dataclass
class Worker:
    """What a worker has in its memory. Its leases may long be over: it does not notice."""

    name: str
    fences: dict[int, int] = field(default_factory=dict)
    handed_out: list[Next] = field(default_factory=list)
    """Code that it is to execute."""
    executed: list[tuple[Next, Settlement]] = field(default_factory=list)
    """Code that was executed and is to be settled."""


class Databases:
    """One file for many runs, each with a machine of its own; a new one before it grows large."""

    loop: ClassVar[asyncio.AbstractEventLoop | None] = None
    store: ClassVar[Store | None] = None
    folder: ClassVar[Path | None] = None
    uses: ClassVar[int] = 0
    clock: ClassVar[Clock] = Clock()

    @classmethod
    def take(cls) -> tuple[asyncio.AbstractEventLoop, Store]:
        if cls.uses % 200 == 0:
            cls.drop()
            cls.loop = asyncio.new_event_loop()
            memory = Path("/dev/shm")
            cls.folder = Path(mkdtemp(prefix="model-", dir=memory if os.access(memory, os.W_OK) else None))
            cls.store = open_store(f"sqlite://{cls.folder}/control.db", clock=cls.clock)
            cls.loop.run_until_complete(migrate(cls.store))
        cls.uses += 1
        assert cls.loop is not None
        assert cls.store is not None
        return cls.loop, cls.store

    @classmethod
    def drop(cls) -> None:
        if cls.loop is not None and cls.store is not None and cls.folder is not None:
            cls.loop.run_until_complete(cls.store.close())
            cls.loop.close()
            rmtree(cls.folder)
        cls.loop = cls.store = cls.folder = None
        cls.uses = 0


class Engine(RuleBasedStateMachine):
    """The rules are what can happen; the invariants are what must hold whatever happens."""

    def __init__(self) -> None:
        super().__init__()
        self.loop, store = Databases.take()
        self.rig: Rig = self.wait(make_rig(store, Databases.clock))
        self.store = store
        self.workers = [Worker("one"), Worker("two")]
        self.ids: list[str] = []
        self.before: dict[str, Seen] = {}
        self.outbox: list[tuple[ModelAgent, str, str, CommandEnding | None]] = []
        """Reports that are on their way: from which agent and connection, about which command."""
        self.behaving = False
        self.lives = 0
        for agent in self.rig.agents:
            agent.answer = lambda row: None

    def wait(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return self.loop.run_until_complete(work)

    # What is to be done

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.wait(self.rig.free_shards())
        self.lease(0)
        assert self.workers[0].fences
        self.start(data, node=True)

    @precondition(lambda self: len(self.ids) < 4)
    @rule(data=st.data(), node=st.booleans())
    def start(self, data: st.DataObject, node: bool) -> None:
        kinds = data.draw(st.lists(KIND if node else st.just("code"), min_size=1, max_size=5), label="steps")
        main = [self.step(data, kind, f"s{len(self.ids)}-{number}", node) for number, kind in enumerate(kinds)]
        kinds = data.draw(
            st.lists(st.sampled_from(["code", "on"] if node else ["code"]), max_size=2), label="cleanup"
        )
        cleanup = [self.step(data, kind, f"c{len(self.ids)}-{number}", node) for number, kind in enumerate(kinds)]
        for step in cleanup:
            if isinstance(step.get("onFailure"), dict):
                step["onFailure"] = "continue"
        busy = node and any(
            seen.workflow.state in ACTIVE and seen.workflow.node_id is not None for seen in self.look().values()
        )
        if busy:
            with pytest.raises(RequestError, match="CONFLICT"):
                self.wait(self.rig.start(*main, cleanup=cleanup, node=node))
        else:
            workflow_id = self.wait(self.rig.start(*main, cleanup=cleanup, node=node, owner="metal"))
            # Ids are random, and the shard with them: whose it is must be the same when a run is repeated.
            self.wait(self.store.write(_put_in_shard, workflow_id, len(self.ids) * 17 % SHARDS))
            self.ids.append(workflow_id)

    def step(self, data: st.DataObject, kind: str, step_id: str, node: bool) -> dict[str, Any]:
        options: dict[str, Any] = data.draw(OPTIONS, label=kind)
        if not node and isinstance(options.get("onFailure"), dict):
            options["onFailure"] = {"use": "plane.work"}
        kind, _, back = kind.partition(", ")
        if back:
            options["await"] = "rejoin"
        if kind in ("code", "mount"):
            behaviour = data.draw(BEHAVIOUR if node else st.sampled_from(["fine", "fails", "later"]), label="code")
            self.rig.code[step_id] = lambda context: self.perform(context, behaviour)
        match kind:
            case "code":
                return work(step_id, **options)
            case "mount":
                return {"use": "plane.mount", **options, "id": step_id}
            case "task":
                return {"use": "task.run", **options, "id": step_id}
            case "kexec":
                return kexec(**options | {"id": step_id})
            case "reboot":
                return reboot(**options | {"id": step_id})
            case _:
                return power(kind, **options | {"id": step_id})

    async def perform(self, context: StepContext, behaviour: str) -> dict[str, object] | None:
        match behaviour:
            case "fails":
                raise StepFailed("it cannot be done")
            case "fails once" if context.attempt == 1:
                raise StepFailed("not yet")
            case "later" if self.rig.runs[context.step_id] % 3:
                raise StepNotReady(None if self.rig.runs[context.step_id] % 2 else 1_000)
            case "relays" | "relays two":
                reset: dict[str, object] = {"driver": "redfish", "concern": "power", "operation": "setPower"}
                reset |= {"args": {"action": "reset"}, "targetNodeId": context.node_id, "target": None}
                for key in ["a", "b"] if behaviour == "relays two" else ["a"]:
                    await context.await_command(kind="driver.invoke", payload=reset, key=key)
            case "reboots":
                await context.await_command(kind="node.reboot", payload={}, timeout_ms=30_000)
        return {"attempt": context.attempt}

    # Operators and time

    @precondition(lambda self: self.ids)
    @rule(
        number=st.integers(0, 3),
        verb=st.sampled_from(["abort", "retry", "pause", "pause", "resume", "resume", "retry"]),
    )
    def steer(self, number: int, verb: str) -> None:
        workflow_id = self.ids[number % len(self.ids)]
        before = self.wait(self.rig.look(workflow_id))
        try:
            self.wait(getattr(self.rig, verb)(workflow_id))
            event(f"{verb} of {before.workflow.state}")
        except RequestError:
            assert self.wait(self.rig.look(workflow_id)) == before, "a verb that was refused has changed something"

    @rule(milliseconds=st.sampled_from(JUMPS))
    def time_passes(self, milliseconds: int) -> None:
        self.rig.clock.pass_by(milliseconds)

    @rule(gpu=st.booleans())
    def label(self, gpu: bool) -> None:
        self.wait(self.rig.label(**({"gpu": "yes"} if gpu else {})))

    # Workers

    @rule(number=st.integers(0, 1))
    def lease(self, number: int) -> None:
        worker = self.workers[number]
        worker.fences = self.wait(self.store.write(take_shards, worker.name, worker.fences, LEASE_MS, True))

    @precondition(lambda self: self.ids)
    @rule(
        number=st.integers(0, 1),
        chosen=st.integers(0, 3),
        hinted=st.booleans(),
        dies=st.sampled_from([None] * 8 + [0, 1]),
    )
    def look_at_one(self, number: int, chosen: int, hinted: bool, dies: int | None) -> None:
        """One transition; the worker may die just before or just after it is durable."""
        worker, workflow_id = self.workers[number], self.ids[chosen % len(self.ids)]
        before = self.wait(self.rig.look(workflow_id))
        if before.workflow.shard not in worker.fences:
            return
        look = self.as_worker(worker, dies, lambda: self.rig.advance(workflow_id, hinted=hinted))
        if isinstance(look, Next) and look.then is Then.RUN:
            worker.handed_out.append(look)
        if isinstance(look, Next) and look.then is not Then.OVER:
            self.deadline_kept(before, self.wait(self.rig.look(workflow_id)))

    @rule(number=st.integers(0, 1), dies=st.sampled_from([None] * 8 + [0, 1, 2]))
    def execute(self, number: int, dies: int | None) -> None:
        """Code is executed, by a worker that may have lost the shard long ago."""
        worker = self.workers[number]
        if worker.handed_out:
            look = worker.handed_out.pop(0)
            settlement = self.as_worker(worker, dies, lambda: self.rig.execute(look))
            if isinstance(settlement, Settlement):
                worker.executed.append((look, settlement))

    @rule(number=st.integers(0, 1), dies=st.sampled_from([None] * 8 + [0, 1]))
    def settle(self, number: int, dies: int | None) -> None:
        worker = self.workers[number]
        if worker.executed:
            look, settlement = worker.executed.pop(0)
            self.as_worker(worker, dies, lambda: self.rig.settle(look, settlement))

    @precondition(lambda self: self.ids)
    @rule(
        number=st.integers(0, 1),
        chosen=st.integers(0, 3),
        most=st.integers(1, 12),
        dies=st.none() | st.none() | st.integers(0, 25),
    )
    def drive(self, number: int, chosen: int, most: int, dies: int | None) -> None:
        """A worker goes on with a workflow for a while, or dies at any boundary on the way."""
        worker, workflow_id = self.workers[number], self.ids[chosen % len(self.ids)]
        if worker.fences:
            self.as_worker(worker, dies, lambda: self.moves(workflow_id, most))

    async def moves(self, workflow_id: str, most: int) -> None:
        for _ in range(most):
            before = await self.rig.look(workflow_id)
            look = await self.rig.advance(workflow_id)
            if look.then is not Then.OVER:
                self.deadline_kept(before, await self.rig.look(workflow_id))
            self.sound(await self.look_at_all())
            if look.then is Then.RUN:
                await self.rig.settle(look, await self.rig.execute(look))
                self.sound(await self.look_at_all())
            elif look.then is not Then.AGAIN:
                return

    @precondition(lambda self: self.ids)
    @rule(
        number=st.integers(0, 1),
        chosen=st.sampled_from([-1, -1, -1, 0, 1, 2]),
        by=st.sampled_from(["abort", "pause", "time", "time, again", "other"]),
    )
    def overtake_code(self, number: int, chosen: int, by: str) -> None:
        """Something happens between the begin of a step's code and its settlement."""
        worker, workflow_id = self.workers[number], self.ids[chosen % len(self.ids)]
        if not worker.fences:
            return
        for _ in range(6):
            look = self.as_worker(worker, None, lambda: self.rig.advance(workflow_id, hinted=True))
            self.rows_are_sound()
            if not isinstance(look, Next) or look.then is not Then.AGAIN:
                break
        if not isinstance(look, Next) or look.then is not Then.RUN:
            return
        event(f"code is overtaken: {by}")
        settlement = self.as_worker(worker, None, lambda: self.rig.execute(look))
        assert isinstance(settlement, Settlement)
        if by in ("abort", "pause"):
            with contextlib.suppress(RequestError):
                self.wait(getattr(self.rig, by)(workflow_id))
        elif by == "other":
            self.time_passes(LEASE_MS + 1)
            self.lease(1 - number)
            self.drive(1 - number, chosen, 3, None)
        else:
            self.time_passes(300_000)
            if by == "time, again":
                for _ in range(2):
                    self.as_worker(worker, None, lambda: self.rig.advance(workflow_id))
        self.rows_are_sound()
        self.as_worker(worker, None, lambda: self.rig.settle(look, settlement))

    @precondition(lambda self: self.ids)
    @rule(number=st.integers(0, 1), chosen=st.sampled_from([-1, -1, -1, 0, 1, 2]), late=st.integers(0, 10_000))
    def overtake_command(self, number: int, chosen: int, late: int) -> None:
        """The time of a step is over while its command is under way, and a worker looks at it then."""
        workflow_id = self.ids[chosen % len(self.ids)]
        workflow, steps = self.wait(self.rig.look(workflow_id))
        step = next((step for step in steps.values() if step.state is StepState.WAITING), None)
        if step is None or step.deadline is None or workflow.state not in ACTIVE:
            return
        event("a command is overtaken by its step's time")
        self.time_passes(max(0, step.deadline - self.rig.clock.now) + late)
        self.lease(number)
        self.look_at_one(number, chosen, False, None)

    @precondition(lambda self: self.ids)
    @rule(number=st.integers(0, 1), role=st.sampled_from(["ramdisk", "daemon"]))
    def reboot_before_the_command_arrives(self, number: int, role: str) -> None:
        """A machine that boots by itself just before it is given its command will go down again."""
        self.turn_at_machine(None)
        for chosen in range(len(self.ids)):
            self.drive(number, chosen, 4, None)
        self.turn_at_machine(role)
        for chosen in range(len(self.ids)):
            self.drive(number, chosen, 1, None)
        self.rows_are_sound()

    @rule(number=st.integers(0, 2), well=st.integers(0, 3))
    def serve(self, number: int, well: int) -> None:
        """An agent takes what there is, does it, and is heard."""
        self.wait(self.serve_all(self.rig.agents[number], DONE if well else failed()))

    @precondition(lambda self: self.ids)
    @rule(number=st.integers(0, 1), chosen=st.integers(0, 3), rounds=st.integers(1, 3), well=st.integers(0, 4))
    def all_goes_well(self, number: int, chosen: int, rounds: int, well: int) -> None:
        """For a while, so that the runs come far."""
        for _ in range(rounds):
            self.drive(number, chosen, 12, None)
            for agent in range(3):
                self.serve(agent, well)
            self.rows_are_sound()
            self.time_passes(2_000)

    async def serve_all(self, agent: ModelAgent, ending: CommandEnding) -> None:
        if agent is not self.rig.site and agent is not self.rig.machine.up:
            return
        if agent.session is None:
            await self.connected(agent)
        await agent.receive()
        for command_id in [key for key, (state, _) in agent.journal.items() if state is JournalState.ACCEPTED]:
            await self.begin_command(agent, command_id, 0)
        for command_id in agent.open:
            self.ended(agent, command_id, ending)
        mine = [entry for entry in self.outbox if entry[0] is agent]
        self.outbox = [entry for entry in self.outbox if entry[0] is not agent]
        for entry in mine:
            await self.arrive(*entry)

    def as_worker(self, worker: Worker, dies: int | None, work: Any) -> object:
        """What the work gave; None when the worker died of it, with all that it had in mind."""
        rig = self.rig
        rig.worker, rig.fences = worker.name, _Fences(worker.fences)
        rig.store = CrashingStore(self.store, at=dies)
        before = self.look()
        try:
            result: object = self.wait(work())
            self.changed_by(worker, before)
        except Crash:
            worker.fences, worker.handed_out, worker.executed = {}, [], []
            event("a worker died")
            return None
        finally:
            rig.store = self.store
        return result

    def changed_by(self, worker: Worker, before: dict[str, Seen]) -> None:
        """Only of shards that are really its own has the worker changed anything."""
        held = dict(self.wait(self.store.read(_held_by, worker.name)))
        for workflow_id, seen in self.look().items():
            shard = seen.workflow.shard
            assert seen == before[workflow_id] or worker.fences.get(shard) == held.get(shard), "a lost shard"

    # Agents

    @rule(number=st.integers(0, 2))
    def send(self, number: int) -> None:
        agent = self.rig.agents[number]
        self.wait(agent.receive())

    @rule(number=st.integers(0, 2))
    def mark_as_sent_and_be_cut(self, number: int) -> None:
        """The frames are lost with the connection that they were on."""
        agent = self.rig.agents[number]
        journal = dict(agent.journal)
        self.wait(agent.receive())
        agent.journal = journal
        self.cut(agent)

    @rule(number=st.integers(0, 2))
    def connect(self, number: int) -> None:
        agent = self.rig.agents[number]
        if agent is self.rig.site or agent is self.rig.machine.up:
            self.wait(self.connected(agent))

    @rule(number=st.integers(0, 2))
    def disconnect(self, number: int) -> None:
        self.cut(self.rig.agents[number])

    @rule(number=st.integers(0, 2), choice=st.integers(0, 7))
    def begin_one(self, number: int, choice: int) -> None:
        agent = self.rig.agents[number]
        if agent is not self.rig.site and agent is not self.rig.machine.up:
            return
        waiting = [key for key, (state, _) in agent.journal.items() if state is JournalState.ACCEPTED]
        if waiting:
            self.wait(self.begin_command(agent, waiting[choice % len(waiting)], choice))

    @rule(number=st.integers(0, 2), choice=st.integers(0, 7), well=st.booleans())
    def end_one(self, number: int, choice: int, well: bool) -> None:
        agent = self.rig.agents[number]
        if agent.open:
            self.ended(agent, agent.open[choice % len(agent.open)], DONE if well else failed())

    @rule(choice=st.integers(0, 7), twice=st.booleans())
    def report(self, choice: int, twice: bool) -> None:
        """A report arrives: any of those that are on their way, and perhaps once more later."""
        if not self.outbox:
            return
        agent, session, command_id, ending = self.outbox.pop(choice % len(self.outbox))
        if twice:
            self.outbox.append((agent, session, command_id, ending))
        self.wait(self.arrive(agent, session, command_id, ending))

    @rule(role=st.sampled_from(["ramdisk", "daemon", "off"]))
    def power_cut(self, role: str) -> None:
        """The machine goes down by itself, and comes up as something else, or not at all."""
        self.turn(None if role == "off" else role)

    @rule(late=st.booleans())
    def give_up_commands(self, late: bool) -> None:
        if late:
            self.rig.clock.pass_by(commands.ABSENCE_GRACE_MS)
        self.wait(self.store.write(commands.expire, 10_000))

    async def connected(self, agent: ModelAgent) -> None:
        """Hello with what the journal holds; finished ones are reported after it, by frames of their own."""
        self.outbox = [entry for entry in self.outbox if entry[0] is not agent]
        report, agent.report = agent.report, _nothing  # type: ignore[method-assign]
        try:
            await agent.connect(None if agent is self.rig.site else f"boot-{self.rig.machine.boots}")
        finally:
            agent.report = report  # type: ignore[method-assign]
        assert agent.session is not None
        self.outbox += [
            (agent, agent.session.id, command_id, ending)
            for command_id, (state, ending) in agent.journal.items()
            if state is JournalState.FINISHED
        ]

    def cut(self, agent: ModelAgent) -> None:
        self.outbox = [entry for entry in self.outbox if entry[0] is not agent]
        self.wait(agent.disconnect())

    async def begin_command(self, agent: ModelAgent, command_id: str, choice: int) -> None:
        row = await self.rig.command(command_id)
        if row.not_after <= self.rig.clock.now:
            # The agent measures the time that the frame gave it, and leaves a stale act undone.
            self.ended(agent, command_id, commands.EXPIRED)
            return
        if row.cancel_reason is not None and choice % 2 == 0:
            self.ended(agent, command_id, CommandEnding(Outcome.CANCELLED, error=Failure("CANCELLED", "as asked")))
            return
        for seen in (await self.look_at_all()).values():
            for step in seen.steps.values():
                assert step.command_id != command_id or step.state is not StepState.SUCCEEDED, "done after its step"
        agent.journal[command_id] = (JournalState.STARTED, None)
        agent.executed[command_id] += 1
        if agent.session is not None:
            self.outbox.append((agent, agent.session.id, command_id, None))
        if row.kind in SELF_TERMINATING:
            role = "ramdisk" if choice == 7 else "daemon"
            self.turn_at_machine(None if choice == 6 else role)

    def ended(self, agent: ModelAgent, command_id: str, ending: CommandEnding) -> None:
        agent.journal[command_id] = (JournalState.FINISHED, ending)
        if agent.session is not None:
            self.outbox.append((agent, agent.session.id, command_id, ending))

    async def arrive(self, agent: ModelAgent, session: str, command_id: str, ending: CommandEnding | None) -> None:
        if ending is None:
            await self.store.write(commands.advance, agent.id, command_id, CommandState.RUNNING)
            return
        settled, _ = await self.store.write(commands.settle, agent.id, command_id, ending, session)
        if settled is not commands.Settlement.STALE:
            agent.journal.pop(command_id, None)

    def turn(self, role: str | None) -> None:
        for agent in (self.rig.machine.ramdisk, self.rig.machine.daemon):
            self.cut(agent)
        self.turn_at_machine(role)

    def turn_at_machine(self, role: str | None) -> None:
        """A boot. Connections of the boot before stay open at the control plane until it notices."""
        machine = self.rig.machine
        self.outbox = [entry for entry in self.outbox if entry[0] is self.rig.site]
        machine.turn(role or "ramdisk")
        machine.up = None if role is None else machine.up
        machine.ramdisk.session = machine.daemon.session = None
        # What the installed system's agent had begun is settled when it comes up again: it never knows.
        for command_id in machine.daemon.open:
            machine.daemon.journal[command_id] = (JournalState.FINISHED, UNKNOWN)

    # What must hold

    def look(self) -> dict[str, Seen]:
        return self.wait(self.look_at_all())

    async def look_at_all(self) -> dict[str, Seen]:
        return {workflow_id: await self.rig.look(workflow_id) for workflow_id in self.ids}

    @invariant()
    def nothing_is_done_twice(self) -> None:
        twice = {command: times for command, times in self.rig.executed.items() if times > 1}
        assert not twice

    @invariant()
    def rows_are_sound(self) -> None:
        self.sound(self.look())

    def sound(self, now: dict[str, Seen]) -> None:
        active = [seen for seen in now.values() if seen.workflow.state in ACTIVE]
        assert len([seen for seen in active if seen.workflow.node_id is not None]) <= 1
        for workflow_id, seen in now.items():
            self.one_step_in_flight(seen)
            if workflow_id in self.before:
                self.lawful(self.before[workflow_id], seen)
        self.before = now

    @invariant()
    def each_attempt_has_a_command_of_its_own(self) -> None:
        for workflow_id, seen in self.before.items():
            for step in seen.steps.values():
                if step.command_id is None or step.spec.kind == "code" or step.state not in IN_FLIGHT:
                    continue
                command = self.wait(self.rig.command(step.command_id))
                key = f"wf:{workflow_id}:{step.id}"
                assert command.key == (key if step.attempt == 1 else f"{key}#{step.attempt}")
                assert command.not_after == step.deadline or seen.workflow.ending is Ending.CANCELLING

    def one_step_in_flight(self, seen: Seen) -> None:
        workflow = seen.workflow
        in_flight = [step for step in seen.steps.values() if step.state in IN_FLIGHT]
        assert [step.seq for step in in_flight] == ([] if workflow.step_seq is None else [workflow.step_seq])
        if workflow.state not in ACTIVE:
            assert not in_flight
            assert workflow.wake_at is None
            assert not [step for step in seen.steps.values() if step.state is StepState.PENDING]
            assert workflow.finished_at is not None
        elif in_flight:
            assert workflow.wake_at is not None
            assert in_flight[0].deadline is not None
            assert workflow.wake_at <= max(in_flight[0].deadline, self.rig.clock.now)
        else:
            assert workflow.wake_at is not None or workflow.state is WorkflowState.PAUSED

    def lawful(self, before: Seen, after: Seen) -> None:
        """A rule makes a few transitions at the most, each of them one of `states`."""
        old, new = before.workflow.state, after.workflow.state
        assert new is old or _reachable(WORKFLOW_TRANSITIONS, old, new), f"workflow: {old} to {new}"
        for name, step in after.steps.items():
            earlier = before.steps[name]
            assert step.attempt >= earlier.attempt
            if Ending.CANCELLING is before.workflow.ending is after.workflow.ending and step.phase is not CLEANUP:
                begun = step.state in IN_FLIGHT and earlier.state not in IN_FLIGHT
                assert not begun, f"{name} began although the workflow was aborted"
                assert step.attempt == earlier.attempt
            if before.workflow.ending is after.workflow.ending is Ending.FAILING and step.phase is StepPhase.MAIN:
                begun = step.state in IN_FLIGHT and earlier.state not in IN_FLIGHT
                assert not begun, f"{name} began although main has failed"
            if before.workflow.state is after.workflow.state is WorkflowState.PAUSED:
                begun = step.state in IN_FLIGHT and earlier.state not in IN_FLIGHT
                assert not begun, f"{name} began although the workflow was paused"
            if step.result is not None and "attempt" in step.result:
                assert step.result["attempt"] == step.attempt, "another attempt's result"
            assert step.state is earlier.state or _reachable(STEP_TRANSITIONS, earlier.state, step.state), (
                f"{name}: {earlier.state} to {step.state}"
            )

    def deadline_kept(self, before: Seen, after: Seen) -> None:
        """A step whose time was over is not in flight any more once it has been looked at."""
        workflow = before.workflow
        if workflow.step_seq is None or workflow.state not in ACTIVE:
            return
        step, now = (_by_seq(seen, workflow.step_seq) for seen in (before, after))
        if step.deadline is not None and step.deadline <= self.rig.clock.now:
            assert (now.state, now.attempt) != (step.state, step.attempt)

    def teardown(self) -> None:
        """From now on everybody behaves, and everything must end."""
        try:
            self.wait(self.behave())
        finally:
            for agent in self.rig.agents:
                self.wait(agent.disconnect())

    async def behave(self) -> None:
        rig = self.rig
        rig.store = self.store
        self.outbox.clear()
        for agent in rig.agents:
            agent.answer = self.obey
            agent.endings |= dict.fromkeys(agent.open, DONE)
        if rig.machine.up is None:
            rig.machine.turn("daemon")
        await rig.restart("undertaker")
        for workflow_id in self.ids:
            if (await rig.look(workflow_id)).workflow.state is WorkflowState.PAUSED:
                await rig.resume(workflow_id)
        for workflow_id in self.ids:
            seen = await self.finish(workflow_id)
            assert seen.workflow.state not in ACTIVE
            check_events(seen, await rig.events(workflow_id))
            event(f"ended {seen.workflow.state}")
        assert max(rig.executed.values(), default=1) == 1

    async def finish(self, workflow_id: str) -> Seen:
        for _ in range(2_000):
            look = await self.rig.run(workflow_id, hinted=True)
            if look.then is Then.OVER:
                return await self.rig.look(workflow_id)
            worked = await self.rig.agents_work()
            await self.rig.machine.connect()
            if not worked:
                await self.store.write(commands.expire, 10_000)
                self.rig.clock.now = max(self.rig.clock.now, look.wake_at or 0)
        raise AssertionError(f"it never ends: {await self.rig.look(workflow_id)}")

    def obey(self, row: Any) -> CommandEnding | None:
        if row.kind in SELF_TERMINATING:
            self.turn_at_machine("daemon")
            return None
        return DONE


class _Fences(dict[int, int]):
    """A shard that the worker does not have: an old fence, which must change nothing."""

    def __missing__(self, shard: int) -> int:
        return -1


async def _nothing(command_id: str, ending: CommandEnding) -> None:
    """The report goes by a frame of its own."""


def _put_in_shard(tx: Transaction, workflow_id: str, shard: int) -> None:
    tx.run("UPDATE workflows SET shard = :shard WHERE id = :id", {"shard": shard, "id": workflow_id})


def _held_by(tx: Transaction, worker: str) -> list[tuple[int, int]]:
    return [(row[0], row[1]) for row in tx.all("SELECT shard, fence FROM shards WHERE worker = :w", {"w": worker})]


def _by_seq(seen: Seen, seq: int) -> StepRow:
    return next(step for step in seen.steps.values() if step.seq == seq)


def _reachable(table: Any, old: Any, new: Any) -> bool:
    """In one step, or in two of one transaction: begun and ended, ended and made ready for another attempt."""
    return new in table[old] or any(new in table[between] for between in table[old])


def check_events(seen: Seen, events: list[tuple[str, dict[str, Any]]]) -> None:
    """Every event once and in order: they tell the same story as the rows."""
    names = [kind.removeprefix("workflow.") for kind, _ in events]
    assert names[0] == "created"
    assert names.count("created") == 1
    assert names.count("started") == (seen.workflow.started_at is not None)
    ends = [name for name in names if name in ("succeeded", "failed", "cancelled")]
    assert ends[-1] == seen.workflow.state.value
    # Each end but the last was followed by a retry, or by the abort of what had failed.
    assert ends.count("succeeded") + ends.count("cancelled") <= 1
    retries = names.count("retried")
    assert ends.count("failed") in (retries, retries + 1)
    told: set[tuple[object, ...]] = set()
    for kind, data in events:
        if kind == "workflow.retried":
            # A row that is skipped anew has not begun, and keeps its attempt's number.
            told = {entry for entry in told if entry[0] != "workflow.step.skipped"}
        if "stepId" in data:
            entry = (kind, data["stepId"], data["attempt"])
            assert entry not in told, "an event was told twice"
            told.add(entry)
    for step in seen.steps.values():
        mine = [kind.removeprefix("workflow.step.") for kind, data in events if data.get("stepId") == step.id]
        if step.state.value in ("succeeded", "failed", "skipped"):
            assert mine[-1] == step.state.value
        _check_one(mine)


def _check_one(names: list[str]) -> None:
    """Of one step: each attempt is begun, then ends; nothing ends that was not begun."""
    begun = False
    for name in names:
        if name == "started":
            begun = True
        elif name != "skipped":
            assert begun, names
            begun = False


@pytest.mark.timeout(14_400)
def test_whatever_happens_nothing_is_done_twice_and_everything_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\nthe engine's model: {EXAMPLES} runs of {STEPS} steps, RACKWRIGHT_SEED={SEED}\n")
    machine = seed(SEED)(Engine)
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate, Phase.shrink],
            ),
        )
    finally:
        Databases.drop()
