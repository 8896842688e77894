"""The engine on an empty database: a clock turned by hand, a machine with its agents, and profiles made of words.

Two ways to drive: `run` makes the transitions that are due, one after another, by the engine's own functions and
nothing else; `reconciler` is the real thing. Agents are rows and sessions of the real ledger; what they do is up to
the test, and they do a command at most once, as the agent's contract says.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from control_plane import commands
from control_plane.command_queue import mark_sent, owed_to_worker
from control_plane.engine import verbs
from control_plane.engine.code import CodeRunner
from control_plane.engine.context import StepContext
from control_plane.engine.profiles import create_profile
from control_plane.engine.reconciler import Reconciler
from control_plane.engine.records import StepRow, WorkflowRow
from control_plane.engine.registry import Definition, NoArguments, StepRegistry, default_registry
from control_plane.engine.rows import WORKFLOW_COLUMNS, Grip
from control_plane.engine.shards import take_shards
from control_plane.engine.start import Start, start
from control_plane.engine.states import RunsOn
from control_plane.engine.timing import Timing
from control_plane.engine.transitions import Next, Settlement, Then, advance, settle
from control_plane.nodes import create_node
from control_plane.records import AgentRow, CommandRow, NodeRow, SessionRow, columns
from control_plane.sessions import close_session, close_worker_sessions, open_session
from control_plane.sites import create_site, serve_by
from control_plane.store import Store, Transaction, params_of
from protocol.commands import CommandState, Ending, JournalState, Outcome
from protocol.errors import BmcMessage, Failure
from protocol.frames import Held, Hello
from protocol.ids import new_id
from tests.control_plane.ledger import Clock

__all__ = [
    "DONE",
    "GATEWAY",
    "TENANT",
    "Machine",
    "ModelAgent",
    "Rig",
    "Seen",
    "failed",
    "kexec",
    "make_rig",
    "operation",
    "power",
    "reboot",
    "work",
]

TENANT = "acme"
GATEWAY = "gateway-1"
WORKER = "engine-1"
DONE = Ending(Outcome.SUCCEEDED, result={"state": "on"})
DRIVERS = {"power": "redfish", "boot": "redfish", "virtual-media": "redfish", "management": "redfish"}
LONG_LEASE_MS = 10**12
Answer = Callable[[CommandRow], Ending | None]
Behaviour = Callable[[StepContext], Awaitable[dict[str, object] | None]]


def failed(code: str = "BMC_REFUSED", message: str = "the BMC said no", bmc: str | None = None) -> Ending:
    words = () if bmc is None else (BmcMessage(id="", text=bmc),)
    return Ending(Outcome.FAILED, error=Failure(code, message, bmc=list(words)))


def operation(use: str, on: str = "site", /, **options: Any) -> dict[str, Any]:
    """A step that is one driver operation."""
    return {"use": use, "on": on, **options}


def power(action: str = "on", /, **options: Any) -> dict[str, Any]:
    """Switches the power through the site agent. `reset` is an act that must not be done twice."""
    return operation("power.setPower", **{"with": {"action": action}, **options})


def work(step_id: str = "work", /, **options: Any) -> dict[str, Any]:
    """A control-plane step; `rig.code[step_id]` is what it does."""
    return {"id": step_id, "use": "plane.work", **options}


def kexec(**options: Any) -> dict[str, Any]:
    return {"id": "kexec", "use": "boot.kexec", "timeout": "15m", **options}


def reboot(**options: Any) -> dict[str, Any]:
    return {"id": "reboot", "use": "node.reboot", "timeout": "15m", **options}


class Seen(NamedTuple):
    """A workflow as it is stored."""

    workflow: WorkflowRow
    steps: dict[str, StepRow]

    @property
    def states(self) -> dict[str, str]:
        return {step.id: step.state.value for step in self.steps.values()}


@dataclass
class ModelAgent:
    """An agent that keeps its contract: a command once in its journal is done at most once."""

    rig: "Rig"
    id: str
    role: str
    answer: Answer = lambda row: DONE
    """What it makes of a command; None leaves it begun."""
    boot_id: str = "boot-1"
    journal_id: str = field(default_factory=lambda: new_id("jrn"))
    journal: dict[str, tuple[JournalState, Ending | None]] = field(default_factory=dict)
    executed: Counter[str] = field(default_factory=Counter)
    """By command id."""
    done: list[CommandRow] = field(default_factory=list)
    """What it was given, in the order in which it was begun."""
    endings: dict[str, Ending] = field(default_factory=dict)
    """How what was begun will end, also when the worker dies meanwhile."""
    session: SessionRow | None = None

    async def connect(self, boot_id: str | None = None) -> None:
        """Says hello with what its journal holds, and takes what the welcome brings."""
        self.boot_id = boot_id or self.boot_id
        hello = Hello(
            agent_id=self.id,
            role=self.role,
            boot_id=self.boot_id,
            journal_id=self.journal_id,
            version="0.1.0",
            held=[Held(command_id, state) for command_id, (state, _) in self.journal.items()],
        )
        self.session, sent, forget, stop = await self.rig.store.write(_open, hello)
        for command_id in forget:
            if self.journal.get(command_id, (JournalState.STARTED, None))[0] is not JournalState.STARTED:
                del self.journal[command_id]
        for row in stop:
            await self.stop(row)
        for row in sent:
            self.rig.frame()
            self.accept(row)
            self.rig.frame()
        for command_id, (state, ending) in list(self.journal.items()):
            if state is JournalState.FINISHED and ending is not None:
                await self.report(command_id, ending)

    async def disconnect(self) -> None:
        if self.session is not None:
            await self.rig.store.write(close_session, self.session.id, "cut")
        self.session = None

    def lose_journal(self) -> None:
        """Its disk (or the ramdisk that it lived in) is gone, with everything that it knew."""
        self.journal.clear()
        self.endings.clear()
        self.journal_id = new_id("jrn")

    async def receive(self) -> list[CommandRow]:
        """What its worker sends it now."""
        if self.session is None:
            return []
        rows = await self.rig.store.write(_take_owed, self.id)
        for row in rows:
            self.rig.frame()
            self.accept(row)
            self.rig.frame()
        return rows

    def accept(self, row: CommandRow) -> None:
        if row.id not in self.journal:
            self.journal[row.id] = (JournalState.ACCEPTED, None)

    async def work(self) -> bool:
        """Does everything that it has, and says so; whether there was anything."""
        await self.receive()
        if self.session is None:
            return False
        accepted = [key for key, (state, _) in self.journal.items() if state is JournalState.ACCEPTED]
        for command_id in accepted:
            await self.begin(command_id)
        left = [key for key in self.open if key in self.endings]
        for command_id in left:
            await self.finish(command_id, self.endings[command_id])
        return bool(accepted or left)

    async def begin(self, command_id: str) -> None:
        """Begins a command, and ends it where its answer is known."""
        row = await self.rig.command(command_id)
        if row.cancel_reason is not None:
            await self.stop(row)
            return
        self.done.append(row)
        ending = self.answer(row)
        if ending is None or ending.outcome is not Outcome.REJECTED:
            self.journal[command_id] = (JournalState.STARTED, None)
            self.executed[command_id] += 1
            if ending is not None:
                self.endings[command_id] = ending
            await self.rig.store.write(commands.advance, self.id, command_id, CommandState.RUNNING)
        if ending is not None:
            await self.finish(command_id, ending)

    async def stop(self, row: CommandRow) -> None:
        """A command that was not begun is not done any more; one that was goes on to its end."""
        if self.journal.get(row.id, (JournalState.ACCEPTED, None))[0] is JournalState.ACCEPTED:
            error = Failure("CANCELLED", row.cancel_reason or "")
            await self.finish(row.id, Ending(Outcome.CANCELLED, error=error))

    async def finish(self, command_id: str, ending: Ending = DONE) -> None:
        self.journal[command_id] = (JournalState.FINISHED, ending)
        if self.session is not None:
            await self.report(command_id, ending)

    async def report(self, command_id: str, ending: Ending) -> None:
        await self.rig.store.write(commands.settle, self.id, command_id, ending)
        self.journal.pop(command_id, None)

    @property
    def open(self) -> list[str]:
        """Commands that it has begun and not ended."""
        return [key for key, (state, _) in self.journal.items() if state is JournalState.STARTED]


@dataclass
class Machine:
    """The machine's own agents: the ramdisk's and the installed system's. It runs one of them, or is off."""

    ramdisk: ModelAgent
    daemon: ModelAgent
    up: ModelAgent | None = None
    boots: int = 0

    async def boot(self, role: str = "ramdisk") -> None:
        """A new boot; the agent of this role connects. The ramdisk's journal never outlives a boot."""
        self.turn(role)
        await self.connect()

    async def off(self) -> None:
        self.up = None
        await self.connect()

    def turn(self, role: str) -> None:
        """What happens at the machine itself; nobody has heard of it yet."""
        self.boots += 1
        self.ramdisk.lose_journal()
        self.up = self.ramdisk if role == "ramdisk" else self.daemon

    async def connect(self) -> None:
        """The agent that runs is connected under this boot, and no other one is."""
        for agent in (self.ramdisk, self.daemon):
            if agent is not self.up or agent.boot_id != f"boot-{self.boots}":
                await agent.disconnect()
        if self.up is not None and self.up.session is None:
            await self.up.connect(f"boot-{self.boots}")


class Rig:
    """One site, its agent, one node, its machine, and an engine."""

    def __init__(self, store: Store, clock: Clock, node_id: str, site_id: str, agents: tuple[str, str, str]) -> None:
        self.store = store
        self.clock = clock
        self.node_id = node_id
        self.site_id = site_id
        self.timing = Timing()
        self.code: dict[str, Behaviour] = {}
        """What `plane.work` steps do, by step id; nothing where there is no entry."""
        self.runs: Counter[str] = Counter()
        """How often the code of a step was begun, by step id."""
        self.registry = _registry(self)
        site, ramdisk, daemon = agents
        self.site = ModelAgent(self, site, "site")
        self.machine = Machine(ModelAgent(self, ramdisk, "ramdisk"), ModelAgent(self, daemon, "daemon"))
        self.worker = WORKER
        self.fences: dict[int, int] = {}
        self._profiles = 0
        self.frame: Callable[[], None] = lambda: None
        """Called before and after each frame that carries a command."""

    # Starting

    async def start(self, *steps: dict[str, Any], node: bool = True, **more: Any) -> str:
        """A workflow of a new profile with these main steps. `more`: cleanup, hostConfig, owner, instance_id."""
        self._profiles += 1
        asked = {name: more.pop(name) for name in ("owner", "instance_id") if name in more}
        document = {"profile": f"{self.node_id}-{self._profiles}", "drivers": DRIVERS, "steps": list(steps), **more}
        return (await self.store.write(_start, self, document, self.node_id if node else None, asked)).id

    # Driving

    def grip(self, shard: int) -> Grip:
        return Grip(self.worker, self.fences[shard])

    async def free_shards(self) -> None:
        """Every lease is over, and no worker has been seen of late."""
        await self.store.write(_expire_leases)

    async def take_over(self, worker: str) -> None:
        """From now on the engine is this worker: the former one's leases are over and its fences old."""
        await self.free_shards()
        self.worker = worker
        self.fences = await self.store.write(take_shards, worker, {}, LONG_LEASE_MS, True)

    async def advance(self, workflow_id: str, *, hinted: bool = False) -> Next:
        """At most one transition; code is not executed."""
        shard = (await self.look(workflow_id)).workflow.shard
        return await self.store.write(_advance, self.timing, workflow_id, self.grip(shard), hinted)

    async def execute(self, look: Next) -> Settlement:
        """Executes the code that a transition has handed out; nothing is settled."""
        assert look.workflow is not None
        assert look.step is not None
        runner = CodeRunner(self.store, self.registry, self.timing)
        return await runner.run(look.workflow, look.step, self.grip(look.workflow.shard))

    async def settle(self, look: Next, settlement: Settlement) -> bool:
        assert look.workflow is not None
        assert look.step is not None
        return await self.store.write(settle, self.timing, look.step, self.grip(look.workflow.shard), settlement)

    async def run(self, workflow_id: str, *, hinted: bool = False) -> Next:
        """Transitions, and the steps' code, until nothing more is due now."""
        while True:
            look = await self.advance(workflow_id, hinted=hinted)
            hinted = False
            if look.then is Then.RUN:
                await self.settle(look, await self.execute(look))
            elif look.then is not Then.AGAIN:
                return look

    async def agents_work(self) -> bool:
        """Every connected agent does what it has; whether there was anything."""
        return any([await agent.work() for agent in self.agents])

    async def finish(self, workflow_id: str, *, agents: bool = True, most: int = 500) -> Seen:
        """Time goes by and everybody does his part until the workflow has ended."""
        for _ in range(most):
            look = await self.run(workflow_id, hinted=True)
            if look.then is Then.OVER:
                return await self.look(workflow_id)
            if not (agents and await self.agents_work()):
                await self.store.write(commands.expire, 100)
                self.clock.now = max(self.clock.now, look.wake_at or 0)
        raise AssertionError(f"{workflow_id} has not ended: {await self.look(workflow_id)}")

    async def restart(self, worker: str) -> None:
        """The worker's process died and is started again; every agent that is there connects anew."""
        await self.take_over(worker)
        await self.store.write(close_worker_sessions, GATEWAY)
        for agent in self.agents:
            agent.session = None
        await self.site.connect()
        await self.machine.connect()

    @asynccontextmanager
    async def reconciler(self, worker: str = WORKER, lease_ms: int = LONG_LEASE_MS) -> AsyncIterator[Reconciler]:
        """The real reconciler, while the block runs."""
        if worker != self.worker:
            await self.store.write(_expire_leases)
        reconciler = Reconciler(self.store, self.registry, worker=worker, timing=self.timing, lease_ms=lease_ms)
        task = asyncio.create_task(reconciler.run())
        try:
            yield reconciler
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # What an operator does

    async def abort(self, workflow_id: str, reason: str | None = None) -> WorkflowRow:
        return await self.store.write(verbs.abort, self.timing, workflow_id, reason)

    async def retry(self, workflow_id: str, from_step: str | None = None) -> WorkflowRow:
        return await self.store.write(verbs.retry, workflow_id, from_step)

    async def pause(self, workflow_id: str) -> WorkflowRow:
        return await self.store.write(verbs.pause, workflow_id)

    async def resume(self, workflow_id: str) -> WorkflowRow:
        return await self.store.write(verbs.resume, workflow_id)

    async def label(self, **labels: str) -> None:
        await self.store.write(
            _label, self.node_id, {name.replace("__", "."): value for name, value in labels.items()}
        )

    # Looking

    @property
    def agents(self) -> tuple[ModelAgent, ModelAgent, ModelAgent]:
        return self.site, self.machine.ramdisk, self.machine.daemon

    @property
    def executed(self) -> Counter[str]:
        """How often each command was done, by any agent."""
        return self.site.executed + self.machine.ramdisk.executed + self.machine.daemon.executed

    async def look(self, workflow_id: str) -> Seen:
        return await self.store.read(_look, workflow_id)

    async def step(self, workflow_id: str, step_id: str) -> StepRow:
        return (await self.look(workflow_id)).steps[step_id]

    async def command(self, command_id: str | None) -> CommandRow:
        row = await self.store.read(commands.get_command, TENANT, command_id or "")
        assert row is not None
        return row

    async def commands(self, workflow_id: str) -> list[CommandRow]:
        """Every command of the workflow, in the order in which they were asked for."""
        return await self.store.read(_commands, workflow_id)

    async def events(self, workflow_id: str) -> list[tuple[str, dict[str, Any]]]:
        """What was published about the workflow, in order."""
        return await self.store.read(_events, workflow_id)

    async def event_names(self, workflow_id: str) -> list[str]:
        """`started`, `step.started work`, …"""
        return [
            kind.removeprefix("workflow.") + (f" {data['stepId']}" if "stepId" in data else "")
            for kind, data in await self.events(workflow_id)
        ]

    async def owner_queue(self) -> list[tuple[str, str]]:
        return await self.store.read(_owner_queue)


async def make_rig(store: Store, clock: Clock) -> Rig:
    """A machine of its own on a migrated database; every agent is connected, the machine runs its ramdisk."""
    node_id, site_id, *agents = await store.write(_fleet)
    rig = Rig(store, clock, node_id, site_id, (agents[0], agents[1], agents[2]))
    await rig.take_over(WORKER)
    await rig.site.connect("site-boot")
    await rig.machine.boot("ramdisk")
    return rig


def _registry(rig: Rig) -> StepRegistry:
    registry = default_registry()

    async def perform(context: StepContext, _: msgspec.Struct) -> dict[str, object] | None:
        rig.runs[context.step_id] += 1
        behaviour = rig.code.get(context.step_id)
        return None if behaviour is None else await behaviour(context)

    def add(step_id: str, cleanup: str | None = None) -> None:
        registry.add(
            Definition(
                id=step_id,
                runs_on=RunsOn.CONTROL_PLANE,
                with_=NoArguments,
                function=perform,
                relays=frozenset({RunsOn.SITE}),
                timeout_ms=600_000,
                cleanup=cleanup,
            )
        )

    add("plane.work")
    add("plane.mount", cleanup="plane.unmount")
    add("plane.unmount")
    return registry


def _start(tx: Transaction, rig: Rig, document: dict[str, Any], node_id: str | None, asked: Any) -> WorkflowRow:
    version = create_profile(tx, rig.registry, rig.timing, TENANT, document, "test").version
    wanted = Start(tenant_id=TENANT, profile_id=version.profile_id, node_id=node_id, **asked)
    return start(tx, rig.registry, rig.timing, wanted)


def _fleet(tx: Transaction) -> tuple[str, ...]:
    site = create_site(tx, TENANT, new_id("site"))
    node = create_node(
        tx,
        NodeRow(
            id=new_id("node"),
            tenant_id=TENANT,
            name=new_id("node"),
            site_id=site.id,
            labels={},
            drivers={},
            bmc_address="https://192.0.2.1",
            bmc_driver="redfish",
            credential_ref="bmc-n1",
            tls="verify",
            created_at=tx.now(),
            updated_at=tx.now(),
        ),
    )
    agents = [
        _add_agent(tx, role, site.id, None if role == "site" else node.id) for role in ("site", "ramdisk", "daemon")
    ]
    serve_by(tx, site.id, agents[0])
    return (node.id, site.id, *agents)


def _add_agent(tx: Transaction, role: str, site_id: str, node_id: str | None) -> str:
    agent = AgentRow(new_id("agent"), TENANT, site_id, node_id, role, "host", "0.1.0", {}, tx.now(), None, None, None)
    names = AgentRow.__struct_fields__
    tx.run(f"INSERT INTO agents ({', '.join(names)}) VALUES ({', '.join(f':{n}' for n in names)})", params_of(agent))
    return agent.id


def _open(tx: Transaction, hello: Hello) -> tuple[SessionRow, list[CommandRow], list[str], list[CommandRow]]:
    session, _, resume = open_session(tx, hello, GATEWAY)
    return session, mark_sent(tx, resume.send, session), resume.forget, resume.stop


def _take_owed(tx: Transaction, agent_id: str) -> list[CommandRow]:
    owed = owed_to_worker(tx, GATEWAY, [agent_id], 100)
    return [sent for row, session in owed for sent in mark_sent(tx, [row], session)]


def _advance(tx: Transaction, timing: Timing, workflow_id: str, grip: Grip, hinted: bool) -> Next:
    return advance(tx, timing, workflow_id, grip, hinted=hinted)


def _expire_leases(tx: Transaction) -> None:
    tx.run("UPDATE shards SET expires_at = 0")
    tx.run("DELETE FROM workers")


def _label(tx: Transaction, node_id: str, labels: dict[str, str]) -> None:
    tx.run(
        "UPDATE nodes SET labels = :labels WHERE id = :id",
        {"id": node_id, "labels": msgspec.json.encode(labels).decode()},
    )


def _look(tx: Transaction, workflow_id: str) -> Seen:
    workflow = tx.one(
        f"SELECT {WORKFLOW_COLUMNS} FROM workflows WHERE id = :id", {"id": workflow_id}, into=WorkflowRow
    )
    assert workflow is not None
    return Seen(workflow, {step.id: step for step in verbs.steps_of(tx, workflow_id)})


def _commands(tx: Transaction, workflow_id: str) -> list[CommandRow]:
    return tx.all(
        f"SELECT {columns(CommandRow)} FROM commands WHERE workflow_id = :id ORDER BY created_at, id",
        {"id": workflow_id},
        into=CommandRow,
    )


def _events(tx: Transaction, workflow_id: str) -> list[tuple[str, dict[str, Any]]]:
    rows = tx.all(
        "SELECT type, data FROM events WHERE tenant_id = :tenant AND subject = :subject ORDER BY seq",
        {"tenant": TENANT, "subject": f"workflow/{workflow_id}"},
    )
    return [(kind, msgspec.json.decode(data)) for kind, data in rows]


def _owner_queue(tx: Transaction) -> list[tuple[str, str]]:
    return [(kind, key) for kind, key in tx.all("SELECT kind, key FROM owner_queue ORDER BY seq")]
